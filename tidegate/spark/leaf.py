"""The leaves of a frame: tasks read the shares of their order, and count what they read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from tidegate.columns import NOW, SIDE
from tidegate.operators.watermark import UNHEARD_US, Tick
from tidegate.spark.order import OrderPlace
from tidegate.spark.pack import Batches
from tidegate.spark.sides import note_bytes, tick_bytes
from tidegate.spark.worker import keep_what_is_loaded

if TYPE_CHECKING:
    from tidegate.connectors.base import ShareReader

_HIDDEN = [pa.field(SIDE, pa.binary()), pa.field(NOW, pa.int64())]


@dataclass(frozen=True)
class Leaf:
    """The place where a scan of a stream reads its source; `share` is its name in orders."""

    spark: SparkSession
    share: str
    # Those whose scans read here: each is told how many records there were.
    streams: tuple[str, ...]
    place: OrderPlace
    tasks: int
    # The origin of the time of this scan, if its partitions have watermarks of their own.
    origin: int | None = None

    def __call__(self, reader: ShareReader) -> DataFrame:
        """What tasks read, with a note of how many records that were, and the time."""
        schema = pa.schema([*reader.schema, *_HIDDEN])
        read = _reading(reader, self, schema)
        numbers = self.spark.range(0, self.tasks, 1, self.tasks)
        return numbers.mapInArrow(read, from_arrow_schema(schema))

    def counted(self, frame: DataFrame) -> DataFrame:
        """A frame with a note of how many rows it has, where readers cannot tell."""
        known = to_arrow_schema(frame.schema, timezone="UTC")
        # A note has no columns but its own, whatever was declared NOT NULL.
        schema = pa.schema([field.with_nullable(True) for field in known])
        # Spark parses the names of columns that go to Python, and a name may hold anything.
        plain = frame.toDF(*[f"c{place}" for place, _ in enumerate(schema)])
        return plain.mapInArrow(_counting(self.streams, schema), from_arrow_schema(schema))


def _counting(streams: tuple[str, ...], schema: pa.Schema) -> Callable[[Batches], Batches]:
    def count(batches: Batches) -> Batches:
        from pyspark import TaskContext

        rows = 0
        for batch in batches:
            rows += batch.column(schema.get_field_index(SIDE)).null_count
            yield pa.record_batch(batch.columns, schema=schema)
        if rows:
            context = TaskContext.get()
            task = context.partitionId() if context is not None else 0
            note = {"streams": streams, "task": task, "rows": rows}
            yield _note_row(note_bytes(note), schema)

    return count


def _reading(reader: ShareReader, leaf: Leaf, schema: pa.Schema) -> Callable[[Batches], Batches]:
    # What goes to tasks must not hold the session.
    source, streams, place, origin = leaf.share, leaf.streams, leaf.place, leaf.origin

    def read(batches: Batches) -> Batches:
        order = place.read()
        shares = order.shares.get(source, [])
        for task in (task for batch in batches for task in batch.column(0).to_pylist()):
            records = 0
            if task == 0 and origin is not None and source in order.partitions:
                known = [Tick(origin, n, UNHEARD_US) for n in range(order.partitions[source])]
                yield _note_row(tick_bytes(*known), schema)
            for share in shares[task] if task < len(shares) else []:
                for batch, count in reader.read(share):
                    records += count
                    yield _with_hidden(batch, order.now_us, schema)
            if records:
                # Where rows are grouped, equal notes would become one: the task tells them apart.
                about = {"streams": streams, "source": source, "task": task}
                yield _note_row(note_bytes({**about, "rows": records}), schema)
        keep_what_is_loaded()

    return read


def _with_hidden(batch: pa.RecordBatch, now_us: int, schema: pa.Schema) -> pa.RecordBatch:
    count = batch.num_rows
    hidden: list[Any] = [
        pa.nulls(count, pa.binary()),
        pa.repeat(pa.scalar(now_us, pa.int64()), count),
    ]
    return pa.record_batch([*batch.columns, *hidden], schema=schema)


def _note_row(note: bytes, schema: pa.Schema) -> pa.RecordBatch:
    arrays = [pa.nulls(1, field.type) for field in schema]
    arrays[schema.get_field_index(SIDE)] = pa.array([note], pa.binary())
    return pa.record_batch(arrays, schema=schema)
