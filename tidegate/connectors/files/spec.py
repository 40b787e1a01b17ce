"""The option specs of the files connector: directories of Parquet, JSON or CSV files."""

from __future__ import annotations

from tidegate.catalog.connector import (
    ANY_KIND,
    APPEND_ONLY,
    ColumnTypes,
    ConnectorSpec,
    LookupSpec,
    OptionProblem,
    OptionValues,
    SinkSpec,
    SourceSpec,
)
from tidegate.catalog.options import OptionSpec, OptionType
from tidegate.connectors.common_options import (
    CSV,
    CSV_READING,
    DELIMITER,
    EXISTING,
    timestamp_format,
)
from tidegate.types import ChangelogKind

_NESTED = ("ARRAY", "MAP", "STRUCT", "VARIANT")
_FORMATS = ("parquet", "json", "csv")
_TEXT = ("format", ("json", "csv"))

_COMMON = (
    OptionSpec("path", OptionType.TEXT, "directory (path or URI)", required=True),
    OptionSpec(
        "format", OptionType.TEXT, "format of the files", default="parquet", choices=_FORMATS
    ),
    OptionSpec(
        "header", OptionType.BOOLEAN, "true if files have a header", default=True, only_with=CSV
    ),
    DELIMITER,
)
_READING = (
    OptionSpec(
        "multi_line",
        OptionType.BOOLEAN,
        "true if a record can span several lines; files are then not split between tasks",
        default=False,
        only_with=_TEXT,
    ),
    OptionSpec(
        "encoding",
        OptionType.TEXT,
        "character encoding; utf-16 needs multi_line = true",
        default="utf-8",
        choices=("utf-8", "iso-8859-1", "windows-1252", "utf-16"),
        only_with=_TEXT,
    ),
    timestamp_format(_TEXT),
    *CSV_READING,
)

_GLOB = OptionSpec(
    "glob",
    OptionType.TEXT,
    "pattern of the names of files to read, such as *.json; default: all files",
)


def _check_source(options: OptionValues) -> OptionProblem | None:
    if options["encoding"] == "utf-16" and not options["multi_line"]:
        return "utf-16 files need multi_line = true", "add multi_line = true."
    return None


def _accepts(options: OptionValues) -> frozenset[ChangelogKind]:
    return ANY_KIND if options["changelog"] == "column" else APPEND_ONLY


def _check_columns(options: OptionValues, columns: ColumnTypes) -> str | None:
    """Reject nested values in CSV files and in directory names."""
    nested = {name for name, sql_type in columns if sql_type.startswith(_NESTED)}
    if options["format"] == "csv" and nested:
        return f"CSV cannot hold the column {sorted(nested)[0]}: use format = 'json' or 'parquet'"
    partition = {name.lower() for name in options["partition_by"] or ()}
    for name in sorted(nested):
        if name.lower() in partition:
            return f"partition_by: {name} is nested, and its values cannot be directory names"
    if columns and {name.lower() for name, _ in columns} <= partition:
        return "partition_by contains every column, so no column is left for the files"
    return None


SPEC = ConnectorSpec(
    "files",
    "directories of Parquet, JSON or CSV files",
    source=SourceSpec(
        (
            *_COMMON,
            *_READING,
            OptionSpec(
                "files_per_epoch",
                OptionType.INTEGER,
                "maximum number of files read per epoch; default: SET files_per_epoch",
                minimum=1,
            ),
            _GLOB,
            OptionSpec(
                "bounded",
                OptionType.BOOLEAN,
                "true if no files will be added, so that the source is bounded",
                default=False,
            ),
        ),
        is_bounded=lambda options: bool(options["bounded"]),
        identity_options=("path", "format"),
        metadata={"path": ("STRING",), "modified": ("TIMESTAMP",)},
        check=_check_source,
    ),
    sink=SinkSpec(
        (
            *_COMMON,
            OptionSpec(
                "partition_by",
                OptionType.NAMES,
                "partition columns, written as directories such as day=2026-01-01",
            ),
            OptionSpec(
                "max_file_rows",
                OptionType.INTEGER,
                "maximum number of rows per file",
                minimum=1,
            ),
            OptionSpec(
                "max_file_bytes",
                OptionType.INTEGER,
                "size at which a new file is started, in bytes",
                default=1 << 28,
                minimum=1,
            ),
            OptionSpec(
                "compact_after",
                OptionType.INTEGER,
                "merge the small files of a directory as soon as it has this many; default: files "
                "are not merged",
                minimum=2,
            ),
            EXISTING,
            OptionSpec(
                "changelog",
                OptionType.TEXT,
                "reject streams that update or retract rows, or write the operation to a column "
                "_op",
                default="reject",
                choices=("reject", "column"),
            ),
        ),
        accepts=_accepts,
        check_columns=_check_columns,
        exclusive_options=("path",),
        changelog_hint="write the operation to a column _op: changelog = 'column'",
    ),
    lookup=LookupSpec((*_COMMON, *_READING, _GLOB), check=_check_source),
)
