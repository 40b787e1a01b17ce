"""Directories of parquet, JSON or CSV files, as a source and as a sink.

As a sink, an epoch is written aside and its files are renamed into place; their names are a
function of pipeline, epoch and partition, so a replayed epoch replaces itself. A marker says which
epoch was the last; a file is never visible half-written.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidegate.catalog.connector import (
    ANY_KIND,
    APPEND_ONLY,
    Columns,
    Complaint,
    ConnectorSpec,
    SinkSpec,
    SourceSpec,
    Values,
)
from tidegate.catalog.options import OptionSpec, OptionType
from tidegate.columns import ARRIVAL_FILE, ARRIVAL_ROW, OP, RECORD_FILE, RECORD_LINE
from tidegate.connectors.filesystem import literally, open_directory
from tidegate.errors import RunError
from tidegate.types import ChangelogKind

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidegate.runtime.connector import SinkContext, SourceContext

_MICROSECONDS = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"
_NESTED = ("ARRAY", "MAP", "STRUCT", "VARIANT")
_FORMATS = ("parquet", "json", "csv")
_CSV, _TEXT = ("format", ("csv",)), ("format", ("json", "csv"))
# What Spark knows in a pattern of times; a text between ' and ' stands for itself.
_PATTERN_LETTERS = frozenset("GyMLdDQqEFahHKkmsSVzOXx")


def _one_character(value: str) -> str | None:
    return None if len(value) == 1 else f"{value!r} is not one character"


def _not_empty(value: str) -> str | None:
    return None if value else "it is empty"


def _is_pattern(value: str) -> str | None:
    """What is wrong with a pattern of Spark's for times."""
    letters = {c for part in value.split("'")[::2] for c in part if c.isalpha()}
    strange = sorted(letters - _PATTERN_LETTERS)
    if "%" in value or strange or not letters:
        wrong = "%" if "%" in value else strange[0] if strange else value
        return f"{wrong!r} is no part of a pattern such as yyyy-MM-dd HH:mm:ss"
    return None


_COMMON = (
    OptionSpec("path", OptionType.TEXT, "the directory", required=True),
    OptionSpec("format", OptionType.TEXT, "the file format", default="parquet", choices=_FORMATS),
    OptionSpec(
        "header", OptionType.BOOLEAN, "whether files have a header", default=True, only_with=_CSV
    ),
    OptionSpec(
        "delimiter",
        OptionType.TEXT,
        "what separates values",
        default=",",
        only_with=_CSV,
        check=_not_empty,
    ),
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
    OptionSpec(
        "timestamp_format",
        OptionType.TEXT,
        "a pattern such as dd.MM.yyyy HH:mm:ss for all times; ISO 8601 if left out",
        only_with=_TEXT,
        check=_is_pattern,
    ),
    OptionSpec(
        "null_value",
        OptionType.TEXT,
        "the text that means NULL, besides no text at all",
        only_with=_CSV,
    ),
    OptionSpec(
        "quote",
        OptionType.TEXT,
        "the character around values that hold a delimiter",
        default='"',
        only_with=_CSV,
        check=_one_character,
        may_be_off=True,
    ),
    OptionSpec(
        "escape",
        OptionType.TEXT,
        "the character before a quote that does not end the value",
        default='"',
        only_with=_CSV,
        check=_one_character,
    ),
)


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
            OptionSpec("glob", OptionType.TEXT, "only files whose name fits this pattern"),
            OptionSpec(
                "bounded",
                OptionType.BOOLEAN,
                "true if no more files will come",
                default=False,
            ),
        ),
        bounded=lambda options: bool(options["bounded"]),
        identity=("path", "format"),
        # Of text Spark counts the lines, headers and empty ones too.
        counted_by_spark=lambda options: bool(options["format"] == "parquet"),
        check=_check_source,
    ),
    sink=SinkSpec(
        (
            *_COMMON,
            OptionSpec("partition_by", OptionType.NAMES, "columns that become directories"),
            OptionSpec(
                "existing",
                OptionType.TEXT,
                "what to do if an earlier pipeline with a sink of this name wrote there",
                default="refuse",
                choices=("refuse", "append"),
            ),
            OptionSpec(
                "changelog",
                OptionType.TEXT,
                "what to do with streams that retract rows",
                default="refuse",
                choices=("refuse", "column"),
            ),
        ),
        accepts=_accepts,
        check_columns=_check_columns,
        exclusive=("path",),
        changelog_hint="let the stream EMIT ON WINDOW CLOSE, or keep _op as a column: changelog = "
        "'column'.",
    ),
)


def read(spark: SparkSession, context: SourceContext) -> DataFrame:
    """New files by arrival; records that cannot be read come with their text."""
    from tidegate.physical.stage_sql import quoted

    options = context.source.options
    columns = [(c.name, str(c.type)) for c in context.source.stored_columns]
    columns += [(OP, "STRING")] if options["changelog"] else []
    limit = options["files_per_epoch"] or context.settings["files_per_epoch"]
    # Spark would pass over files that are a week older than the newest one, without a word.
    reader = spark.readStream.option("maxFilesPerTrigger", limit).option("maxFileAge", "36500d")
    if options["glob"]:
        reader = reader.option("pathGlobFilter", options["glob"])
    path = _existing_directory(spark, options["path"], context.source.name)
    kept = _arrival(options["format"]) if context.arrival else ()
    if options["format"] == "parquet":
        schema = ", ".join(f"{quoted(name)} {kind}" for name, kind in columns)
        kept += _ROW_PLACE if context.located else ()
        return reader.schema(schema).parquet(path).selectExpr("*", *kept)
    from tidegate.connectors.text_files import TextFiles

    texts = reader.text(path, wholetext=options["multi_line"])
    return TextFiles(options, tuple(columns), kept, context.located).read(texts)


# Where a row of parquet stood.
_ROW_PLACE = (
    f"_metadata.file_path AS {RECORD_FILE}",
    f"_metadata.row_index + 1 AS {RECORD_LINE}",
)


def _arrival(kind: str) -> tuple[str, ...]:
    """Where a row stood: files by the time they were written, then the place in the file."""
    parts = [
        "lpad(CAST(unix_micros(_metadata.file_modification_time) AS STRING), 20, '0')",
        "_metadata.file_path",
        "lpad(CAST(_metadata.file_block_start AS STRING), 20, '0')",
    ]
    # Rows of a block of text come one after the other, and keep that order where they are sorted.
    row = "_metadata.row_index" if kind == "parquet" else "0L"
    # Parquet numbers its rows by file, whatever block they are in. A blank is less than whatever a
    # path may go on with, so that a comes before a.csv.
    file = f"concat_ws(' ', {', '.join(parts[:2] if kind == 'parquet' else parts)})"
    return f"{file} AS {ARRIVAL_FILE}", f"{row} AS {ARRIVAL_ROW}"


def _existing_directory(spark: SparkSession, path: str, name: str) -> str:
    """Spark starts silently on a directory that is not there; a typo should not."""
    target = open_directory(spark, path)
    if not target.exists(target.root):
        raise RunError(
            "TG-504",
            f"the source {name} reads the directory {path}, which does not exist",
            hint=f"mkdir -p {path}, or correct the option path.",
        )
    return literally(target.root)


@dataclass
class FilesWriter:
    """Stages an epoch with Spark's own writer, commits it by renaming files."""

    spark: SparkSession
    context: SinkContext

    def __post_init__(self) -> None:
        sink = self.context.sink
        self.target = open_directory(self.spark, sink.options["path"])
        self.prefix = f"{self.context.pipeline_id}-{sink.name.lower()}-"
        self.aside = f"{self.target.root}/_tidegate/{self.prefix}"
        self.last = -1

    def prepare(self) -> None:
        """Read the marker and remove what an earlier run staged or left half-committed."""
        from py4j.protocol import Py4JError

        try:
            self.target.make(self.aside)
            marker = self.target.read_text(self.aside + "/committed.json")
            self.last = int(json.loads(marker)["epoch"]) if marker else -1
            self._remove_uncommitted(marker is not None)
            self.target.delete(self.aside + "/staging")
            self._refuse_doubles()
            if marker is None:
                self._mark(-1)
        except (OSError, ValueError, Py4JError) as error:
            raise RunError(
                "TG-504",
                f"the sink {self.context.sink.name} cannot write to "
                f"{self.context.sink.options['path']}: {_reason(error)}",
                hint="create the directory, or correct the option path.",
            ) from None

    def _refuse_doubles(self) -> None:
        """A pipeline that starts anew would write rows again that an earlier one has written."""
        others = f"-{self.context.sink.name.lower()}-"
        if self.last >= 0 or self.context.sink.options["existing"] == "append":
            return
        for path in self.target.files(f"{self.target.root}/_tidegate"):
            folder, _, name = path.rpartition("/")
            owner = folder.rpartition("/")[2]
            if name != "committed.json" or not owner.endswith(others) or owner == self.prefix:
                continue
            if int(json.loads(self.target.read_text(path) or '{"epoch": -1}')["epoch"]) >= 0:
                raise RunError(
                    "TG-504",
                    f"{self.context.sink.options['path']} holds rows that an earlier pipeline "
                    f"wrote for the sink {self.context.sink.name}; this one starts anew and would "
                    "write them again",
                    hint="remove the directory, choose another path, or say existing = 'append'.",
                )

    def _remove_uncommitted(self, marked: bool) -> None:
        """A run that died while renaming left files of one epoch that will be written again.

        Files of more epochs than that were committed: then the marker is not the one that belongs
        to them, and nothing is touched.
        """
        ahead: dict[int, list[str]] = {}
        for path in self.target.files(self.target.root):
            name = path.rpartition("/")[2]
            epoch = name.removeprefix(self.prefix).partition("-")[0]
            if name.startswith(self.prefix) and epoch.isdigit() and int(epoch) > self.last:
                ahead.setdefault(int(epoch), []).append(path)
        if len(ahead) > 1 or (ahead and not marked):
            raise RunError(
                "TG-504",
                f"{self.context.sink.options['path']} holds epochs up to {max(ahead)} of the sink "
                f"{self.context.sink.name}, but its marker {self.aside}/committed.json "
                + (f"says {self.last}" if marked else "is gone"),
                hint="put the marker back (it belongs to these files), or write to another path.",
            )
        for path in (path for paths in ahead.values() for path in paths):
            self.target.delete(path)

    def committed(self) -> int:
        return self.last

    def stage(self, epoch: int, frame: DataFrame) -> None:
        options = self.context.sink.options
        writer = frame.write.format(options["format"]).mode("overwrite")
        writer = writer.option("mapreduce.fileoutputcommitter.algorithm.version", "2")
        writer = writer.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
        if options["format"] == "csv":
            writer = writer.option("header", str(options["header"]).lower())
            writer = writer.option("sep", options["delimiter"]).option("escape", '"')
            writer = writer.option("ignoreLeadingWhiteSpace", "false")
            writer = writer.option("ignoreTrailingWhiteSpace", "false")
        if options["format"] != "parquet":
            # Spark's own formats end at the milliseconds.
            writer = writer.option("timestampFormat", _MICROSECONDS + "XXX")
            writer = writer.option("timestampNTZFormat", _MICROSECONDS)
        if options["partition_by"]:
            writer = writer.partitionBy(*options["partition_by"])
        writer.save(self._staging(epoch))

    def commit(self, epoch: int) -> None:
        """Move the files of the epoch into place, then say so."""
        staging = self._staging(epoch)
        made: set[str] = set()
        for path in list(self.target.files(staging)):
            relative = path[len(staging) :].strip("/")
            folder, _, name = relative.rpartition("/")
            if name.startswith(("_", ".")):
                continue
            goal = f"{self.target.root}/{folder}" if folder else self.target.root
            if goal not in made:
                self.target.make(goal)
                made.add(goal)
            self.target.rename(path, f"{goal}/{self.prefix}{epoch:012d}-{_short_name(name)}")
        self._mark(epoch)
        self.target.delete(staging)
        self.last = epoch

    def _mark(self, epoch: int) -> None:
        self.target.write_text(self.aside + "/committed.json", json.dumps({"epoch": epoch}))

    def _staging(self, epoch: int) -> str:
        return f"{self.aside}/staging/{epoch:012d}"


# Spark's names have a random part; with partition_by another character follows it.
_PART = re.compile(r"part-(\d+)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}[-.](c\d+)\.(.+)")


def _short_name(name: str) -> str:
    """part-00003-<uuid>-c000.snappy.parquet → 00003-c000.snappy.parquet."""
    found = _PART.fullmatch(name)
    assert found is not None, f"{name} is a file of Spark's"
    return "{}-{}.{}".format(*found.groups())


def _reason(error: Exception) -> str:
    """The first line of a Java exception, without its class."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    java = getattr(error, "java_exception", None)
    text = str(java.getMessage() if java is not None else error)
    return text.splitlines()[0] if text else type(error).__name__


def write(spark: SparkSession, context: SinkContext) -> FilesWriter:
    return FilesWriter(spark, context)
