"""Sources that several scans of a pipeline read alike: their records are decoded once per epoch.

Only in large epochs, and where decoding is work for Spark: keeping what was decoded costs more than
a small epoch takes. What tasks read themselves they read once in any case, see `reading`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame

from tidegate.catalog.objects import Source
from tidegate.columns import SIDE
from tidegate.physical.planner import ScanPlan
from tidegate.spark.reading import Place
from tidegate.spark.shared_operators import Told
from tidegate.spark.sides import TICKS

if TYPE_CHECKING:
    from tidegate.connectors.base import OpenSource, Read


@dataclass(frozen=True)
class SharedScan:
    """How several scans read a source: with the order of the first, all their columns, a note for
    the stream of each."""

    leader: str
    read: Read
    streams: tuple[str, ...]


def shared_scans(
    scans: Iterable[tuple[str, ScanPlan, Told]],
    alike: Sequence[Sequence[Place]],
    asked: Callable[[ScanPlan], tuple[Source, Read]],
    sources: Mapping[str, OpenSource],
) -> dict[Place, SharedScan]:
    """Which scans are one; `alike` are streams whose ranges of a source are the same.

    Each scan comes with its stream, and those that are told of it.
    """
    found: dict[Place, list[tuple[Told, ScanPlan, Read]]] = {}
    by_spark: set[Place] = set()
    for stream, scan, told in scans:
        if scan.late_of is None:
            source, read = asked(scan)
            place = (stream.lower(), source.name.lower())
            found.setdefault(place, []).append((told, scan, read))
            if sources[source.name.lower()].direct(read) is None:
                by_spark.add(place)
    shared: dict[Place, SharedScan] = {}
    for group, partitioned in product(alike, (True, False)):
        # Where Spark decodes for one scan of a stream, it does so for all of them.
        places = [
            place
            for place in group
            if place in by_spark
            and {scan.partitioned for _, scan, _ in found[place]} == {partitioned}
        ]
        together = [item for place in places for item in found[place]]
        # Whose partitions have watermarks of their own is told to one origin.
        origins = {scan.index for _, scan, _ in together if partitioned}
        if len(together) > 1 and len(origins) < 2:
            read = merged([read for _, _, read in together])
            streams = tuple(stream for told, _, _ in together for stream in told)
            one = SharedScan(places[0][0], read, streams)
            shared |= dict.fromkeys(places, one)
    return shared


def merged(reads: Sequence[Read]) -> Read:
    """What all of them want."""
    columns = tuple(dict.fromkeys(column for read in reads for column in read.columns))
    arrival, located = any(r.arrival for r in reads), any(r.located for r in reads)
    return replace(reads[0], columns=columns, arrival=arrival, located=located)


def without_notes(frame: DataFrame) -> DataFrame:
    """The same rows for another scan: who was first passes on the notes, and all hear the time."""
    if SIDE not in frame.columns:
        return frame
    return frame.where(f"{SIDE} IS NULL OR substring({SIDE}, 1, 1) = X'{TICKS.hex()}'")
