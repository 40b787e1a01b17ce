"""Operators and scans that several streams of a pipeline share.

Rows of a shared operator go through a shuffle as blobs, so that all readers have the same plan
below them and Spark runs the shuffle once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import DataFrame

from tidegate.catalog.objects import Source
from tidegate.columns import CONTROL
from tidegate.physical.planner import LeafPlan, LookupPlan, OperatorPlan, ScanPlan
from tidegate.spark.tasks.protocol import (
    WATERMARKS,
    EpochSpec,
    EpochSpecStore,
    InputKey,
    keep_loaded_modules,
    task_number,
)
from tidegate.spark.tasks.shuffle import Batches
from tidegate.spark.tasks.step import StepSpec
from tidegate.state.codec import table_from_bytes, table_to_bytes

if TYPE_CHECKING:
    from tidegate.connectors.base import ScanRequest, SourceConnector

SENT_SCHEMA = "task INT, data BINARY"
# The first origin number of shared operators, independent of their number in each stream.
FIRST_SHARED = 1_000_000
_BLOB_BYTES = 16 << 20


@dataclass(frozen=True)
class SharedOperator:
    """One operator of several streams: its origin number and its names in manifests."""

    id: int
    keys: tuple[str, ...]
    streams: StreamNames
    # The stream and number of the operator that runs for all.
    first: tuple[str, int]


# The streams that record counts are attributed to.
StreamNames = tuple[str, ...]
# By stream in lower case, and number there.
SharedOperators = Mapping[tuple[str, int], SharedOperator]


@dataclass(frozen=True)
class ReceiveSpec:
    """The rows of a shared operator for one reader, with the reader's column names."""

    output: pa.Schema
    # True if this reader passes on other control messages.
    passes: bool
    # The origin of the watermark updates among its rows.
    origin: int

    def rows(self, epoch_spec: EpochSpec, batches: Batches) -> Batches:
        """Return the rows of the operator; every reader gets the watermark updates."""
        for batch in batches:
            for data in batch.column(1).to_pylist():
                table = table_from_bytes(data, self.output)
                yield from (table if self.passes else _updates_only(table)).to_batches()


def sender(spec: StepSpec, epoch_specs: EpochSpecStore) -> Callable[[Batches], Batches]:
    """Return the function for mapInArrow that runs an operator and sends its rows as blobs."""

    def send(batches: Batches) -> Batches:
        task = pa.array([task_number()], pa.int32())
        for batch in spec.rows(epoch_specs.read(), batches):
            for part in _parts(batch):
                data = pa.array([table_to_bytes(part)], pa.binary())
                yield pa.record_batch([task, data], names=["task", "data"])
        keep_loaded_modules()

    return send


def _parts(batch: pa.RecordBatch) -> Iterator[pa.Table]:
    """Split a batch into pieces that are small enough for a blob."""
    rows = max(batch.num_rows * _BLOB_BYTES // max(batch.nbytes, 1), 1)
    for start in range(0, batch.num_rows, rows):
        yield pa.Table.from_batches([batch.slice(start, rows)])


def _updates_only(table: pa.Table) -> pa.Table:
    """Return the rows with watermark updates only; the first reader passes on other messages."""
    control = table.column(CONTROL)
    if control.null_count == len(control):
        return table
    return table.filter(pa.array([m is None or m[:1] == WATERMARKS for m in control.to_pylist()]))


def read_scans(
    stream: str, leaves: Sequence[LeafPlan], shared: SharedOperators, stream_names: StreamNames
) -> Iterator[tuple[ScanPlan, StreamNames]]:
    """Yield the scans of a stream, each with the streams that its records are counted for."""
    for leaf in leaves:
        if isinstance(leaf, ScanPlan):
            yield leaf, stream_names
        elif isinstance(leaf, LookupPlan):
            yield from read_scans(stream, leaf.leaves, shared, stream_names)
        else:
            yield from _scans_below(stream, leaf, shared, stream_names)


def _scans_below(
    stream: str, plan: OperatorPlan, shared: SharedOperators, stream_names: StreamNames
) -> Iterator[tuple[ScanPlan, StreamNames]]:
    one = shared.get((stream.lower(), plan.number))
    if one is not None and one.first != (stream.lower(), plan.number):
        return
    for fed in plan.ports:
        yield from read_scans(stream, fed.leaves, shared, one.streams if one else stream_names)


# ---- Sources that several scans of a pipeline read alike: their records are decoded once per
# epoch.
#
# Only in large epochs and for sources that Spark decodes: caching the decoded rows costs more than
# a small epoch takes. Sources that tasks read directly are read once anyway, see `reading`.


@dataclass(frozen=True)
class SharedScan:
    """One read for several scans: the splits of the first, and the columns of all.

    `streams` are the streams that the records are counted for.
    """

    leader: str
    read: ScanRequest
    streams: tuple[str, ...]


def shared_scans(
    scans: Iterable[tuple[str, ScanPlan, StreamNames]],
    alike: Sequence[Sequence[InputKey]],
    source_of: Callable[[ScanPlan], tuple[Source, ScanRequest]],
    sources: Mapping[str, SourceConnector],
) -> dict[InputKey, SharedScan]:
    """Return the scans to share; `alike` are streams whose ranges of a source are equal.

    Each scan has its stream, and the streams that its counts are attributed to.
    """
    scans_by_range: dict[InputKey, list[tuple[StreamNames, ScanPlan, ScanRequest]]] = {}
    by_spark: set[InputKey] = set()
    for stream, scan, stream_names in scans:
        if scan.late_rows_of is None:
            source, read = source_of(scan)
            range_key = (stream.lower(), source.name.lower())
            scans_by_range.setdefault(range_key, []).append((stream_names, scan, read))
            if sources[source.name.lower()].create_reader(read) is None:
                by_spark.add(range_key)
    shared: dict[InputKey, SharedScan] = {}
    for group, partitioned in product(alike, (True, False)):
        # If Spark decodes one scan of a source, it decodes all of them.
        range_keys = [
            range_key
            for range_key in group
            if range_key in by_spark
            and {scan.partitioned for _, scan, _ in scans_by_range[range_key]} == {partitioned}
        ]
        members = [item for range_key in range_keys for item in scans_by_range[range_key]]
        # The partitions of a source with partition watermarks are reported to one origin.
        origins = {scan.index for _, scan, _ in members if partitioned}
        if len(members) > 1 and len(origins) < 2:
            read = merged([read for _, _, read in members])
            streams = tuple(stream for stream_names, _, _ in members for stream in stream_names)
            one = SharedScan(range_keys[0][0], read, streams)
            shared |= dict.fromkeys(range_keys, one)
    return shared


def merged(reads: Sequence[ScanRequest]) -> ScanRequest:
    """Return a read that contains the columns of all reads."""
    columns = tuple(dict.fromkeys(column for read in reads for column in read.columns))
    arrival, located = any(r.with_arrival for r in reads), any(r.with_location for r in reads)
    return replace(reads[0], columns=columns, with_arrival=arrival, with_location=located)


def without_reports(frame: DataFrame) -> DataFrame:
    """Return the same rows for another scan, without the reports that the first one passes on."""
    if CONTROL not in frame.columns:
        return frame
    return frame.where(f"{CONTROL} IS NULL OR substring({CONTROL}, 1, 1) = X'{WATERMARKS.hex()}'")
