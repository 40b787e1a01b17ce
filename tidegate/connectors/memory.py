"""Rows from and to the Python process.

As a source, inserted rows become parquet files in the data directory, which Spark reads like any
other: they are durable, and a restart goes on where it was. As a sink, every epoch becomes one
Arrow file, so each subscriber can read every epoch, also after a restart.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidegate.catalog.connector import ConnectorSpec, LookupSpec, SinkSpec, SourceSpec
from tidegate.catalog.options import OptionSpec, OptionType
from tidegate.connectors.filesystem import literally
from tidegate.errors import RunError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidegate.runtime.connector import SinkContext, SourceContext

SPEC = ConnectorSpec(
    "memory",
    "rows from and to the Python process",
    source=SourceSpec(
        (
            OptionSpec(
                "inserts_per_epoch",
                OptionType.INTEGER,
                "inserts handed out per epoch",
                default=1_000,
                minimum=1,
            ),
        ),
        insertable=True,
    ),
    sink=SinkSpec(
        (
            OptionSpec(
                "retain_epochs",
                OptionType.INTEGER,
                "epochs kept for subscribers that come later",
                default=100_000,
                minimum=1,
            ),
        )
    ),
    lookup=LookupSpec((), built=False),
)

DEFAULT_RETAIN_EPOCHS = 100_000
_SUFFIX = ".arrow"
# The file that tells which epoch was the last one to be removed.
_EXPIRED = "expired"
_counter = itertools.count()


def read(spark: SparkSession, context: SourceContext) -> DataFrame:
    """The inserted rows, one file an insert, oldest first."""
    from tidegate.physical.stage_sql import quoted

    columns = [f"{quoted(c.name)} {c.type}" for c in context.source.stored_columns]
    if context.source.options["changelog"]:
        columns.append("_op STRING")
    rows = rows_directory(context.directory)
    reader = spark.readStream.format("parquet").schema(", ".join(columns))
    reader = reader.option("maxFilesPerTrigger", context.source.options["inserts_per_epoch"])
    frame = reader.load(literally(str(rows)))
    if not context.arrival:
        return frame
    # The name of a file begins with the time at which it was inserted.
    return frame.selectExpr(
        "*", "_metadata.file_name AS _tg_file", "_metadata.row_index AS _tg_row"
    )


def rows_directory(directory: Path) -> Path:
    """Where the rows of a memory source lie."""
    rows = directory / "rows"
    rows.mkdir(parents=True, exist_ok=True)
    return rows


def append(directory: Path, table: Any) -> None:
    """Make one insert durable: written aside, synced, renamed."""
    import pyarrow.parquet

    rows = rows_directory(directory)
    name = f"{time.time_ns():020d}-{os.getpid()}-{next(_counter):08d}.parquet"
    aside = rows / f".{name}.tmp"
    pyarrow.parquet.write_table(table, aside, coerce_timestamps="us", store_schema=False)
    with aside.open("rb") as file:
        os.fsync(file.fileno())
    aside.rename(rows / name)


@dataclass
class MemoryWriter:
    """One Arrow file an epoch, in a directory that subscribers read."""

    directory: Path
    retain_epochs: int
    last: int = -1
    # Epochs without rows are not worth a file: where the clock asks for epochs there are many.
    quiet: bool = True

    def prepare(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        for leftover in self.directory.glob(".*"):
            leftover.unlink()
        epochs = list(stored_epochs(self.directory))
        self.last = epochs[-1] if epochs else -1

    def committed(self) -> int:
        return self.last

    def stage(self, epoch: int, frame: DataFrame) -> None:
        import pyarrow as pa

        table = frame.toArrow()
        if not table.num_rows and self.quiet:
            return
        with (
            pa.OSFile(str(self._aside(epoch)), "wb") as sink,
            pa.ipc.new_file(sink, table.schema) as writer,
        ):
            writer.write_table(table)

    def commit(self, epoch: int) -> None:
        aside = self._aside(epoch)
        if aside.exists() or not self.quiet:
            aside.rename(epoch_file(self.directory, epoch))
        self.last = epoch
        expired = epoch_file(self.directory, epoch - self.retain_epochs)
        if epoch >= self.retain_epochs and expired.exists():
            # Said before it is done: a slow subscriber must not take the next epoch for its own.
            (self.directory / _EXPIRED).write_text(str(epoch - self.retain_epochs))
            expired.unlink()

    def _aside(self, epoch: int) -> Path:
        return self.directory / f".{epoch:012d}{_SUFFIX}"


def epoch_file(directory: Path, epoch: int) -> Path:
    return directory / f"{epoch:012d}{_SUFFIX}"


def last_expired(directory: Path) -> int:
    """The last epoch with rows that is no longer kept, -1 for none."""
    path = directory / _EXPIRED
    return int(path.read_text() or -1) if path.exists() else -1


def stored_epochs(directory: Path) -> Iterator[int]:
    """The epochs that are there, in order."""
    names = sorted(path.name for path in directory.glob(f"*{_SUFFIX}"))
    return (int(name.removesuffix(_SUFFIX)) for name in names if not name.startswith("."))


def read_epoch(directory: Path, epoch: int) -> Any:
    """The rows of an epoch as an Arrow table."""
    import pyarrow as pa

    try:
        with pa.memory_map(str(epoch_file(directory, epoch))) as source:
            return pa.ipc.open_file(source).read_all()
    except FileNotFoundError:
        raise RunError(
            "TG-604",
            f"epoch {epoch} is no longer kept",
            hint="raise retain_epochs of the memory sink, or subscribe earlier.",
        ) from None


def write(spark: SparkSession, context: SinkContext) -> MemoryWriter:
    retain = context.sink.options["retain_epochs"]
    return MemoryWriter(context.directory / "out", retain)
