"""Operators that step once for several streams: their rows go through a shuffle that all read.

Rows travel as blobs, so that every reader is a task that wants all of what was sent: then Spark
sees the same shuffle, and runs it once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from tidegate.columns import SIDE
from tidegate.physical.planner import EnrichPlan, LeafPlan, OperatorPlan, ScanPlan
from tidegate.spark.order import Order, OrderPlace
from tidegate.spark.pack import Batches
from tidegate.spark.sides import TICKS
from tidegate.spark.step import StepSpec
from tidegate.spark.worker import keep_what_is_loaded, task_number
from tidegate.state.codec import table_from_bytes, table_to_bytes

SENT_SCHEMA = "task INT, data BINARY"
# Their ticks are known by numbers from here on, whatever the operator's is in each stream.
FIRST_SHARED = 1_000_000
_BLOB_BYTES = 16 << 20


@dataclass(frozen=True)
class SharedOperator:
    """One operator of several streams: its number in ticks, its names in manifests."""

    id: int
    keys: tuple[str, ...]
    streams: Told
    # The stream and number of the operator that is stepped for all.
    first: tuple[str, int]


# The streams that are told what was read.
Told = tuple[str, ...]
# By stream in lower case, and number there.
SharedOperators = Mapping[tuple[str, int], SharedOperator]


@dataclass(frozen=True)
class ReceiveSpec:
    """How a reader knows the rows of a shared operator: with names of its own."""

    output: pa.Schema
    # Whether what only passes goes on here, or with another reader.
    passes: bool
    # The origin of the ticks among its rows.
    origin: int

    def rows(self, order: Order, batches: Batches) -> Batches:
        """What the operator has given, as it came; every reader hears the time."""
        for batch in batches:
            for data in batch.column(1).to_pylist():
                table = table_from_bytes(data, self.output)
                yield from (table if self.passes else _ticks_only(table)).to_batches()


def sender(spec: StepSpec, place: OrderPlace) -> Callable[[Batches], Batches]:
    """The function for mapInArrow: a step whose rows become blobs."""

    def send(batches: Batches) -> Batches:
        task = pa.array([task_number()], pa.int32())
        for batch in spec.rows(place.read(), batches):
            for part in _parts(batch):
                data = pa.array([table_to_bytes(part)], pa.binary())
                yield pa.record_batch([task, data], names=["task", "data"])
        keep_what_is_loaded()

    return send


def _parts(batch: pa.RecordBatch) -> Iterator[pa.Table]:
    """Pieces that are small enough for a blob."""
    rows = max(batch.num_rows * _BLOB_BYTES // max(batch.nbytes, 1), 1)
    for start in range(0, batch.num_rows, rows):
        yield pa.Table.from_batches([batch.slice(start, rows)])


def _ticks_only(table: pa.Table) -> pa.Table:
    """Rows, and of what passes on their side only the time: the rest is for the first reader."""
    sides = table.column(SIDE)
    if sides.null_count == len(sides):
        return table
    return table.filter(pa.array([s is None or s[:1] == TICKS for s in sides.to_pylist()]))


def read_scans(
    stream: str, leaves: Sequence[LeafPlan], shared: SharedOperators, told: Told
) -> Iterator[tuple[ScanPlan, Told]]:
    """The scans that are read for a stream, each with the streams that are told of it."""
    for leaf in leaves:
        if isinstance(leaf, ScanPlan):
            yield leaf, told
        elif isinstance(leaf, EnrichPlan):
            yield from read_scans(stream, leaf.leaves, shared, told)
        else:
            yield from _scans_below(stream, leaf, shared, told)


def _scans_below(
    stream: str, plan: OperatorPlan, shared: SharedOperators, told: Told
) -> Iterator[tuple[ScanPlan, Told]]:
    one = shared.get((stream.lower(), plan.number))
    if one is not None and one.first != (stream.lower(), plan.number):
        return
    for fed in plan.ports:
        yield from read_scans(stream, fed.leaves, shared, one.streams if one else told)
