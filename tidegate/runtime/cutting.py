"""What an epoch is made of: the ranges of the sources, the end of input, a moment of the clock."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tidegate.checkpoint.manifest import Manifest
from tidegate.connectors.base import Cut, OpenSource
from tidegate.runtime.members import Member

# A stream and a source, in lower case.
Place = tuple[str, str]
# Up to here an epoch is small, as long as little state is touched.
_SMALL_BYTES = 512 << 10
_SMALL_ROWS = 20_000
_SMALL_STATE_BYTES = 16 << 20
# From here on it is large.
_LARGE_BYTES = 16 << 20
_LARGE_ROWS = 500_000


@dataclass(frozen=True)
class Epoch:
    """What was cut for an epoch: by stream and source; sources without news are not there."""

    cuts: Mapping[Place, Cut]
    ends: bool
    more: bool
    # How many tasks it was cut for: workers may come and go while it runs.
    tasks: int = 1
    # Streams, each with a source, by how far they are in it: they read the same, if anything.
    alike: tuple[tuple[Place, ...], ...] = ()

    @property
    def large(self) -> bool:
        """Whether it is worth a shuffle that Spark adds up rows first."""
        return any(
            cut.size > _LARGE_BYTES or (cut.rows or 0) > _LARGE_ROWS for cut in self.cuts.values()
        )

    @property
    def small(self) -> bool:
        """Whether one task is enough: every other one costs more than it helps."""
        return all(
            cut.size <= _SMALL_BYTES and (cut.rows or 0) <= _SMALL_ROWS
            for cut in self.cuts.values()
        )

    @property
    def partitions(self) -> dict[str, int]:
        """How many there are of each source whose partitions have watermarks of their own."""
        return {
            f"{stream}/{source}": cut.partitions
            for (stream, source), cut in self.cuts.items()
            if cut.partitions is not None
        }

    def cuts_of(self, stream: str) -> dict[str, Cut]:
        """Those of one stream, by source."""
        return {source: cut for (owner, source), cut in self.cuts.items() if owner == stream}

    @property
    def native(self) -> dict[Place, Cut]:
        """What Spark's own readers read."""
        return {key: cut for key, cut in self.cuts.items() if cut.native is not None}


def next_epoch(
    members: Iterable[Member],
    manifest: Manifest,
    sources: Mapping[str, OpenSource],
    tasks: int,
    until_end: bool,
) -> Epoch:
    """The next range of every stream and source that has one; those equally far read the same."""
    alike = _equally_far(members, manifest)
    cuts: dict[Place, Cut] = {}
    for group in alike:
        stream, source = group[0]
        cut = sources[source].cut(manifest.streams[stream].offsets.get(source), tasks)
        if cut is not None:
            cuts |= dict.fromkeys(group, cut)
    more = any(cut.more for cut in cuts.values())
    return Epoch(cuts, until_end and not more, more, tasks, alike)


def _equally_far(members: Iterable[Member], manifest: Manifest) -> tuple[tuple[Place, ...], ...]:
    """Streams, each with a source, by how far they are in it."""
    groups: dict[str, list[Place]] = {}
    for member in members:
        offsets = manifest.streams[member.key].offsets
        for source in member.sources:
            since = json.dumps([source, offsets.get(source)], sort_keys=True)
            groups.setdefault(since, []).append((member.key, source))
    return tuple(tuple(group) for group in groups.values())


def has_little_state(manifest: Manifest) -> bool:
    """Whether one task can step all key groups in no time."""
    kept = sum(int(o.report.get("bytes") or 0) for o in manifest.operators.values())
    return kept <= _SMALL_STATE_BYTES


def has_open_ends(members: Iterable[Member], manifest: Manifest) -> bool:
    """Whether a stream has operators that were not told of the end yet."""
    return any(m.plan.operators and not manifest.streams[m.key].ended for m in members)


def wake_us(members: Mapping[str, Member], manifest: Manifest) -> int | None:
    """The next moment of the clock that an operator has asked for."""
    operators = (o for o in manifest.operators.values() if o.stream in members)
    asked = [operator.report.get("wake_us") for operator in operators]
    return min((us for us in asked if us is not None), default=None)
