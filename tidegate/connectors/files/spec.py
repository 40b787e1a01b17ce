"""Directories of parquet, JSON or CSV files, as a source and as a sink.

What they are and what can be said of them; `files_source` and `files_sink` do the work.
"""

from __future__ import annotations

from tidegate.catalog.connector import (
    ANY_KIND,
    APPEND_ONLY,
    Columns,
    Complaint,
    ConnectorSpec,
    LookupSpec,
    SinkSpec,
    SourceSpec,
    Values,
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
    OptionSpec("path", OptionType.TEXT, "the directory", required=True),
    OptionSpec("format", OptionType.TEXT, "the file format", default="parquet", choices=_FORMATS),
    OptionSpec(
        "header", OptionType.BOOLEAN, "whether files have a header", default=True, only_with=CSV
    ),
    DELIMITER,
)
_READING = (
    OptionSpec(
        "multi_line",
        OptionType.BOOLEAN,
        "whether a record may go over several lines; each file is then read as a whole",
        default=False,
        only_with=_TEXT,
    ),
    OptionSpec(
        "encoding",
        OptionType.TEXT,
        "how texts are encoded; utf-16 needs multi_line",
        default="utf-8",
        choices=("utf-8", "iso-8859-1", "windows-1252", "utf-16"),
        only_with=_TEXT,
    ),
    timestamp_format(_TEXT),
    *CSV_READING,
)

_GLOB = OptionSpec("glob", OptionType.TEXT, "only files whose name fits this pattern")


def _check_source(options: Values) -> Complaint | None:
    if options["encoding"] == "utf-16" and not options["multi_line"]:
        return "lines of utf-16 cannot be told apart byte by byte", "add multi_line = true."
    return None


def _accepts(options: Values) -> frozenset[ChangelogKind]:
    return ANY_KIND if options["changelog"] == "column" else APPEND_ONLY


def _check_columns(options: Values, columns: Columns) -> str | None:
    """CSV has no nested values, and a directory name needs a plain one."""
    nested = {name for name, kind in columns if kind.startswith(_NESTED)}
    if options["format"] == "csv" and nested:
        return f"CSV cannot hold the column {sorted(nested)[0]}: use format = 'json' or 'parquet'"
    partition = {name.lower() for name in options["partition_by"] or ()}
    for name in sorted(nested):
        if name.lower() in partition:
            return f"partition_by: {name} is not a plain value that could name a directory"
    if columns and {name.lower() for name, _ in columns} <= partition:
        return "partition_by names every column, so nothing is left to write into the files"
    return None


SPEC = ConnectorSpec(
    "files",
    "directories of parquet, JSON or CSV files",
    source=SourceSpec(
        (
            *_COMMON,
            *_READING,
            OptionSpec(
                "files_per_epoch",
                OptionType.INTEGER,
                "files handed out per epoch; the setting of that name if left out",
                minimum=1,
            ),
            _GLOB,
            OptionSpec(
                "bounded",
                OptionType.BOOLEAN,
                "true if no more files will come",
                default=False,
            ),
        ),
        bounded=lambda options: bool(options["bounded"]),
        identity=("path", "format"),
        metadata={"path": ("STRING",), "modified": ("TIMESTAMP",)},
        check=_check_source,
    ),
    sink=SinkSpec(
        (
            *_COMMON,
            OptionSpec("partition_by", OptionType.NAMES, "columns that become directories"),
            OptionSpec(
                "max_file_rows",
                OptionType.INTEGER,
                "rows that a file holds at most; then another one is begun",
                minimum=1,
            ),
            OptionSpec(
                "max_file_bytes",
                OptionType.INTEGER,
                "bytes after which another file is begun",
                default=1 << 28,
                minimum=1,
            ),
            OptionSpec(
                "compact_after",
                OptionType.INTEGER,
                "so many small files of a directory are merged into one; none if left out",
                minimum=2,
            ),
            EXISTING,
            OptionSpec(
                "changelog",
                OptionType.TEXT,
                "what to do with streams that retract rows",
                default="reject",
                choices=("reject", "column"),
            ),
        ),
        accepts=_accepts,
        check_columns=_check_columns,
        exclusive=("path",),
        changelog_hint="let the stream EMIT ON WINDOW CLOSE, or keep _op as a column: changelog = "
        "'column'.",
    ),
    lookup=LookupSpec((*_COMMON, *_READING, _GLOB), check=_check_source),
)
