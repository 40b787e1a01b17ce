"""Sources that several scans of a pipeline read alike: their records are decoded once per epoch.

Only in large epochs, and where decoding is work for Spark (texts, topics): keeping what was decoded
costs more than reading parquet again, and more than a small epoch takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame

from tidegate.catalog.objects import Source
from tidegate.columns import SIDE
from tidegate.physical.plan import ScanPlan
from tidegate.spark.shared_operators import Told
from tidegate.spark.sides import TICKS

if TYPE_CHECKING:
    from tidegate.connectors.protocols import OpenSource, Read

# A stream and a source, in lower case.
Place = tuple[str, str]


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
    for stream, scan, told in scans:
        if scan.late_of is None:
            source, read = asked(scan)
            reader = sources[source.name.lower()].direct(read)
            if reader is None or getattr(reader, "decodes", False):
                place = (stream.lower(), source.name.lower())
                found.setdefault(place, []).append((told, scan, read))
    shared: dict[Place, SharedScan] = {}
    for group in alike:
        places = [place for place in group if place in found]
        together = [item for place in places for item in found[place]]
        origins = {scan.index for _, scan, _ in together if scan.partitioned}
        several = any(scan.partitioned for _, scan, _ in together) and len(origins) > 1
        mixed = len({scan.partitioned for _, scan, _ in together}) > 1
        if len(together) > 1 and not several and not mixed:
            read = _merged([read for _, _, read in together])
            streams = tuple(stream for told, _, _ in together for stream in told)
            one = SharedScan(places[0][0], read, streams)
            shared |= dict.fromkeys(places, one)
    return shared


def _merged(reads: Sequence[Read]) -> Read:
    """What all of them want."""
    columns = tuple(dict.fromkeys(column for read in reads for column in read.columns))
    arrival, located = any(r.arrival for r in reads), any(r.located for r in reads)
    return replace(reads[0], columns=columns, arrival=arrival, located=located)


def without_notes(frame: DataFrame) -> DataFrame:
    """The same rows for another scan: who was first passes on the notes, and all hear the time."""
    if SIDE not in frame.columns:
        return frame
    return frame.where(f"{SIDE} IS NULL OR substring({SIDE}, 1, 1) = X'{TICKS.hex()}'")
