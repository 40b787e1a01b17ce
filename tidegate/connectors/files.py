"""Directories of parquet, JSON or CSV files, as a source and as a sink.

As a sink, an epoch is written aside and its files are renamed into place; their names are a
function of pipeline, epoch and partition, so a replayed epoch replaces itself. A marker says which
epoch was the last; a file is never visible half-written.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.catalog.connector import (
    ANY_KIND,
    APPEND_ONLY,
    ConnectorSpec,
    SinkSpec,
    SourceSpec,
    Values,
)
from tidegate.catalog.options import OptionSpec, OptionType
from tidegate.errors import RunError
from tidegate.types import ChangelogKind

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidegate.runtime.connector import SinkContext, SourceContext

_FORMATS = ("parquet", "json", "csv")
_COMMON = (
    OptionSpec("path", OptionType.TEXT, "the directory", required=True),
    OptionSpec("format", OptionType.TEXT, "the file format", default="parquet", choices=_FORMATS),
    OptionSpec("header", OptionType.BOOLEAN, "whether CSV files have a header", default=True),
    OptionSpec("delimiter", OptionType.TEXT, "what separates the values of CSV", default=","),
)


def _accepts(options: Values) -> frozenset[ChangelogKind]:
    return ANY_KIND if options["changelog"] == "column" else APPEND_ONLY


SPEC = ConnectorSpec(
    "files",
    "directories of parquet, JSON or CSV files",
    source=SourceSpec(
        (
            *_COMMON,
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
    ),
    sink=SinkSpec(
        (
            *_COMMON,
            OptionSpec("partition_by", OptionType.NAMES, "columns that become directories"),
            OptionSpec(
                "changelog",
                OptionType.TEXT,
                "what to do with streams that take rows back",
                default="refuse",
                choices=("refuse", "column"),
            ),
        ),
        accepts=_accepts,
        exclusive=("path",),
        changelog_hint="let the stream EMIT ON WINDOW CLOSE, or keep _op as a column: changelog = "
        "'column'.",
    ),
)


def read(spark: SparkSession, context: SourceContext) -> DataFrame:
    """New files by arrival; records that cannot be read come with their text."""
    from tidegate.runtime.connector import BAD_RECORD

    options = context.source.options
    kind = options["format"]
    columns = [f"`{c.name}` {c.type}" for c in context.source.stored_columns]
    if options["changelog"]:
        columns.append("_op STRING")
    if kind != "parquet":
        columns.append(f"{BAD_RECORD} STRING")
    limit = options["files_per_epoch"] or context.settings["files_per_epoch"]
    reader = spark.readStream.format(kind).schema(", ".join(columns))
    reader = reader.option("maxFilesPerTrigger", limit)
    if options["glob"]:
        reader = reader.option("pathGlobFilter", options["glob"])
    if kind != "parquet":
        reader = reader.option("mode", "PERMISSIVE").option("columnNameOfCorruptRecord", BAD_RECORD)
        reader = reader.option("timestampFormat", "yyyy-MM-dd'T'HH:mm:ss[.SSSSSS][.SSS][XXX]")
    if kind == "csv":
        reader = reader.option("header", str(options["header"]).lower())
        reader = reader.option("sep", options["delimiter"]).option("enforceSchema", "true")
    return reader.load(_existing_directory(spark, options["path"], context.source.name))


def _existing_directory(spark: SparkSession, path: str, name: str) -> str:
    """Spark starts silently on a directory that is not there; a typo should not."""
    target = _HadoopDirectory(spark, path)
    if not target.exists(target.root):
        raise RunError(
            "TG-504",
            f"the source {name} reads the directory {path}, which does not exist",
            hint=f"mkdir -p {path}, or correct the option path.",
        )
    return path


@dataclass
class FilesWriter:
    """Stages an epoch with Spark's own writer, commits it by renaming files."""

    spark: SparkSession
    context: SinkContext

    def __post_init__(self) -> None:
        options = self.context.sink.options
        self.target = _HadoopDirectory(self.spark, options["path"])
        self.aside = self.target.child(
            "_tidegate", f"{self.context.sink.name.lower()}-{self.context.pipeline_id}"
        )
        self.last = -1

    def prepare(self) -> None:
        """Read the marker, drop what was only staged."""
        try:
            self.target.make(self.aside)
        except Exception as error:
            raise RunError(
                "TG-504",
                f"the sink {self.context.sink.name} cannot write to "
                f"{self.context.sink.options['path']}: {_reason(error)}",
                hint="create the directory, or correct the option path.",
            ) from None
        marker = self.target.read_text(self.aside + "/committed.json")
        self.last = int(json.loads(marker)["epoch"]) if marker else -1
        self.target.delete(self.aside + "/staging")

    def committed(self) -> int:
        return self.last

    def stage(self, epoch: int, frame: DataFrame) -> None:
        options = self.context.sink.options
        staging = self._staging(epoch)
        self.target.delete(staging)
        writer = frame.write.format(options["format"]).mode("overwrite")
        writer = writer.option("mapreduce.fileoutputcommitter.algorithm.version", "2")
        if options["format"] == "csv":
            writer = writer.option("header", str(options["header"]).lower())
            writer = writer.option("sep", options["delimiter"])
        if options["partition_by"]:
            writer = writer.partitionBy(*options["partition_by"])
        writer.save(staging)

    def commit(self, epoch: int) -> None:
        """Move the files of the epoch into place, replacing what an earlier try left."""
        staging = self._staging(epoch)
        prefix = f"{self.context.pipeline_id}-{self.context.sink.name.lower()}-{epoch:012d}-"
        moves = []
        for path in self.target.files(staging):
            relative = path[len(staging) :].strip("/")
            folder, _, name = relative.rpartition("/")
            if name.startswith(("_", ".")):
                continue
            moves.append((path, folder, prefix + _short_name(name)))
        self._remove_leftovers(prefix)
        for path, folder, name in moves:
            goal = self.target.child(folder) if folder else self.target.root
            self.target.make(goal)
            self.target.rename(path, f"{goal}/{name}")
        self.target.write_text(self.aside + "/committed.json", json.dumps({"epoch": epoch}))
        self.target.delete(staging)
        self.last = epoch

    def _remove_leftovers(self, prefix: str) -> None:
        """A try that died while renaming may have left files that this one would not replace."""
        begun = self.aside + "/renaming.json"
        earlier = self.target.read_text(begun)
        if earlier is not None and json.loads(earlier)["prefix"] == prefix:
            for path in self.target.files(self.target.root):
                if path.rpartition("/")[2].startswith(prefix):
                    self.target.delete(path)
        self.target.write_text(begun, json.dumps({"prefix": prefix}))

    def _staging(self, epoch: int) -> str:
        return f"{self.aside}/staging/{epoch:012d}"


def _short_name(name: str) -> str:
    """part-00003-<uuid>-c000.snappy.parquet → 00003-c000.snappy.parquet."""
    stem, _, extension = name.partition(".")
    parts = stem.split("-")
    return f"{parts[1]}-{parts[-1]}.{extension}"


def _reason(error: Exception) -> str:
    """The first line of a Java exception, without its class."""
    java = getattr(error, "java_exception", None)
    text = str(java.getMessage() if java is not None else error)
    return text.splitlines()[0] if text else type(error).__name__


def write(spark: SparkSession, context: SinkContext) -> FilesWriter:
    return FilesWriter(spark, context)


class _HadoopDirectory:
    """A directory on any file system Spark knows, by the few calls a sink needs."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        jvm: Any = spark._jvm
        self._path = jvm.org.apache.hadoop.fs.Path
        hadoop = spark._jsc.hadoopConfiguration()
        self._fs = self._path(path).getFileSystem(hadoop)
        self._io = jvm.org.apache.commons.io.IOUtils
        self._utf8 = jvm.java.nio.charset.StandardCharsets.UTF_8
        self.root = str(self._fs.makeQualified(self._path(path)).toString())

    def child(self, *names: str) -> str:
        return "/".join([self.root, *names])

    def exists(self, path: str) -> bool:
        return bool(self._fs.exists(self._path(path)))

    def make(self, path: str) -> None:
        if not self._fs.exists(self._path(path)):
            self._fs.mkdirs(self._path(path))

    def delete(self, path: str) -> None:
        self._fs.delete(self._path(path), True)

    def rename(self, source: str, goal: str) -> None:
        """Rename, replacing the goal: a replay writes the same names again."""
        self.delete(goal)
        if not self._fs.rename(self._path(source), self._path(goal)):
            raise RunError("TG-503", f"{source} could not be renamed to {goal}")

    def files(self, path: str) -> list[str]:
        """Every file below a path."""
        if not self._fs.exists(self._path(path)):
            return []
        found = []
        iterator = self._fs.listFiles(self._path(path), True)
        while iterator.hasNext():
            found.append(str(iterator.next().getPath().toString()))
        return found

    def read_text(self, path: str) -> str | None:
        if not self._fs.exists(self._path(path)):
            return None
        stream = self._fs.open(self._path(path))
        try:
            return str(self._io.toString(stream, self._utf8))
        finally:
            stream.close()

    def write_text(self, path: str, text: str) -> None:
        aside = path + ".tmp"
        stream = self._fs.create(self._path(aside), True)
        stream.write(bytearray(text.encode()))
        stream.close()
        self.rename(aside, path)
