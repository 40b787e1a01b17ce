"""What tasks read themselves, for all operators of a pipeline at once.

A record is read and decoded once, and packed for every operator that wants it. What was packed for
all of them goes through one shuffle, which Spark runs once, whoever reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tidegate.operators.vectors import VectorStage
from tidegate.spark.direct import DirectScan, task_numbers
from tidegate.spark.order import Order, OrderPlace
from tidegate.spark.pack import BYTES_TO_SEND, Batches, Packer, PackSpec
from tidegate.spark.sides import note_bytes
from tidegate.spark.worker import keep_what_is_loaded, task_number

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tidegate.connectors.protocols import ShareReader

# A stream and a source, in lower case.
Place = tuple[str, str]
# What a packer may hold at least, however many there are in a task.
_LEAST_BYTES = 8 << 20


@dataclass(frozen=True)
class ReadPort:
    """A port of an operator whose rows tasks read and compute."""

    scan: DirectScan
    stage: VectorStage
    pack: PackSpec


@dataclass(frozen=True)
class ReadRange:
    """A range of a source, read once for some ports."""

    reader: ShareReader
    ports: tuple[ReadPort, ...]

    def feed(self, order: Order, tasks: Iterable[int], packers: Sequence[Packer]) -> Batches:
        """Give every packer the rows of its port; what has become too much to hold is sent."""
        first = self.ports[0].scan
        shares = order.shares.get(first.share, [])
        for task in tasks:
            if task == 0:
                for port, packer in zip(self.ports, packers, strict=True):
                    packer.ticks += port.scan.partitions_of(order)
            records = 0
            for share in shares[task] if task < len(shares) else []:
                for batch, count in self.reader.read(share):
                    records += count
                    judged = first.judged(batch, order.now_us)
                    for port, packer in zip(self.ports, packers, strict=True):
                        rows = port.scan.scanned(batch, order.now_us, judged)
                        yield from packer.add(port.stage.apply(rows, port.scan.hidden))
            if records:
                told = [stream for port in self.ports for stream in port.scan.streams]
                packers[0].notes.append(note_bytes(first.count_of(task, records, told)))


def read_and_pack(ranges: Sequence[ReadRange], place: OrderPlace) -> Callable[[Batches], Batches]:
    """The function for mapInArrow."""

    def run(batches: Batches) -> Batches:
        order = place.read()
        tasks = list(task_numbers(batches))
        for each in ranges:
            limit = max(BYTES_TO_SEND // len(each.ports), _LEAST_BYTES)
            packers = [Packer(port.pack, task_number(), order, limit) for port in each.ports]
            yield from each.feed(order, tasks, packers)
            for packer in packers:
                yield from packer.finish()
        keep_what_is_loaded()

    return run


def ranges_of(
    ports: Iterable[ReadPort],
    first_of: Mapping[Place, Place],
    reader_of: Callable[[Sequence[DirectScan]], ShareReader | None],
) -> tuple[ReadRange, ...]:
    """What is read for some ports; `first_of` says where of all that read the same."""
    found: dict[Place, list[ReadPort]] = {}
    for port in ports:
        place = port.scan.place
        found.setdefault(first_of.get(place, place), []).append(port)
    ranges: list[ReadRange] = []
    for place, together in found.items():
        reader = reader_of([port.scan for port in together])
        if reader is None:
            ranges += [ReadRange(port.scan.reader, (port,)) for port in together]
            continue
        same = tuple(replace(p, scan=replace(p.scan, place=place)) for p in together)
        ranges.append(ReadRange(reader, same))
    return tuple(ranges)


@dataclass
class Reading:
    """The operators of a pipeline whose rows tasks read, and what was packed for all of them."""

    ranges: tuple[ReadRange, ...] = ()
    # The numbers of operators in the shuffle.
    members: dict[Hashable, int] = field(default_factory=dict)
    shuffled: DataFrame | None = None

    def packed(self, member: int) -> DataFrame:
        """What came for one operator."""
        assert self.shuffled is not None, "nobody has read"
        if len(set(self.members.values())) == 1:
            return self.shuffled
        # A plain comparison would be moved below the shuffle, and every reader had its own then.
        return self.shuffled.where(f"if(spark_partition_id() < 0, -1, member) = {member}")
