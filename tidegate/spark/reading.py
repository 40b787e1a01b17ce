"""What tasks read themselves, for all streams of a pipeline at once.

A record is read and decoded once, and packed for every operator that wants it. What was packed for
all of them goes through one shuffle, which Spark runs once, whoever reads it. Streams without
operators have their rows staged right there; their notes go with those of an operator.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from tidegate.columns import LIVE, MARK, ORIGIN, SIDE
from tidegate.operators.vectorized import VectorStage
from tidegate.spark.direct import DirectScan
from tidegate.spark.order import Order, OrderPlace
from tidegate.spark.pack import BYTES_TO_SEND, PASSING, Batches, Packer, PackSpec, packed_rows
from tidegate.spark.sides import NOTE, note_bytes
from tidegate.spark.staging import Staging, StagingSpec
from tidegate.spark.worker import keep_what_is_loaded, task_number

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tidegate.connectors.base import ShareReader

# A stream and a source, in lower case.
Place = tuple[str, str]
# What a packer may hold at least, however many there are.
_LEAST_BYTES = 8 << 20


class Taker(Protocol):
    """What a task does with the rows that it has read."""

    def add(self, batch: pa.RecordBatch) -> Batches:
        """Take in rows; what has become too much to hold is sent."""

    def tell(self, note: bytes) -> None:
        """Pass a note on to the driver."""

    def finish(self) -> Batches:
        """What has not been sent yet."""


@dataclass(frozen=True)
class ReadPort:
    """A port of an operator whose rows tasks read and compute."""

    scan: DirectScan
    stage: VectorStage
    pack: PackSpec

    @property
    def hidden(self) -> tuple[str, ...]:
        return self.scan.hidden

    def taker(self, order: Order, tasks: Sequence[int], limit: int) -> Taker:
        packer = Packer(self.pack, task_number(), order, limit)
        packer.ticks += self.scan.partitions_of(order) if 0 in tasks else []
        return packer


@dataclass(frozen=True)
class ReadStream:
    """A stream without operators whose rows tasks read, compute and stage."""

    scan: DirectScan
    stage: VectorStage
    staging: StagingSpec
    # The operator by which its notes go to the driver; None if they go there themselves.
    by: int | None = None
    hidden = (ORIGIN, MARK, LIVE, SIDE)

    def taker(self, order: Order, tasks: Sequence[int], limit: int) -> Taker:
        return _Stager(Staging(self.staging, order, task_number()), self.by)


@dataclass
class _Stager:
    work: Staging
    by: int | None

    def add(self, batch: pa.RecordBatch) -> Batches:
        self.work.add(pa.Table.from_batches([batch]))
        return iter(())

    def tell(self, note: bytes) -> None:
        self.work.sides.notes.append(note[1:])

    def finish(self) -> Batches:
        notes = self.work.notes()
        if self.by is None:
            yield notes
            return
        listed = [NOTE + note for note in notes.column("note").to_pylist()]
        yield packed_rows(self.by, task_number(), 0, b"", [(0, PASSING, note) for note in listed])


Reader = ReadPort | ReadStream


@dataclass(frozen=True)
class ReadRange:
    """A range of a source, read once for all who want it."""

    reader: ShareReader
    readers: tuple[Reader, ...]

    def run(self, order: Order, tasks: Sequence[int]) -> Batches:
        """Read the shares of some tasks, and give everybody the rows that it wants."""
        limit = max(BYTES_TO_SEND // len(self.readers), _LEAST_BYTES)
        takers = [(each, each.taker(order, tasks, limit)) for each in self.readers]
        first = self.readers[0].scan
        shares = order.shares.get(first.share, [])
        for task in tasks:
            records = 0
            for share in shares[task] if task < len(shares) else []:
                for batch, count in self.reader.read(share):
                    records += count
                    judged = first.judged(batch, order.now_us)
                    for each, taker in takers:
                        rows = each.scan.scanned(batch, order.now_us, judged)
                        yield from taker.add(each.stage.apply(rows, each.hidden))
            if records:
                told = [stream for each in self.readers for stream in each.scan.streams]
                about = {"streams": told, "source": first.share, "task": task, "rows": records}
                takers[0][1].tell(note_bytes(about))
        for _, taker in takers:
            yield from taker.finish()


def reading(ranges: Sequence[ReadRange], place: OrderPlace) -> Callable[[Batches], Batches]:
    """The function for mapInArrow: rows for a shuffle, or notes where there are no operators."""

    def run(batches: Batches) -> Batches:
        order = place.read()
        tasks = [task for batch in batches for task in batch.column(0).to_pylist()]
        for each in ranges:
            yield from each.run(order, tasks)
        keep_what_is_loaded()

    return run


def ranges_of(
    readers: Iterable[Reader],
    first_of: Mapping[Place, Place],
    reader_of: Callable[[Sequence[DirectScan]], ShareReader | None],
) -> tuple[ReadRange, ...]:
    """What is read for all of them; `first_of` tells the first place where the same is read."""
    found: dict[Place, list[Reader]] = {}
    for each in readers:
        place = each.scan.place
        found.setdefault(first_of.get(place, place), []).append(each)
    ranges: list[ReadRange] = []
    for place, together in found.items():
        reader = reader_of([each.scan for each in together])
        if reader is None:
            ranges += [ReadRange(each.scan.reader, (each,)) for each in together]
            continue
        same = tuple(replace(each, scan=replace(each.scan, place=place)) for each in together)
        ranges.append(ReadRange(reader, same))
    return tuple(ranges)


@dataclass
class Reading:
    """What tasks read for a pipeline, and what was packed of it for all operators."""

    ranges: tuple[ReadRange, ...] = ()
    # The numbers of operators in the shuffle.
    members: dict[Hashable, int] = field(default_factory=dict)
    # Streams, in lower case, whose rows are staged where they are read.
    streams: set[str] = field(default_factory=set)
    shuffled: DataFrame | None = None

    def packed(self, member: int) -> DataFrame:
        """What came for one operator."""
        assert self.shuffled is not None, "nobody has read"
        if len(set(self.members.values())) == 1:
            return self.shuffled
        # A plain comparison would be moved below the shuffle, and every reader had its own then.
        return self.shuffled.where(f"if(spark_partition_id() < 0, -1, member) = {member}")
