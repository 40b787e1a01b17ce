"""Removing what a data directory keeps for nobody: parked streams, and what no epoch needs.

The manifest without the streams is written as often as there are manifests without a name, and
those of before are removed: what only they needed can go then. At every moment the newest manifest
is whole, so dying in between leaves something to be pruned once more.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field, replace

from tidegate.checkpoint.manifest import Manifest
from tidegate.checkpoint.manifests import STATE, Manifests, stamp_of, without_streams
from tidegate.connectors.files.listing import is_chunk
from tidegate.runtime.directory import DataDirectory
from tidegate.runtime.parked import state_bytes
from tidegate.runtime.state_files import OFFSETS, needed_by


@dataclass(frozen=True)
class Removed:
    """Something that goes: what it is, what it has to do with, and its bytes."""

    what: str
    name: str
    size: int


@dataclass
class Pruning:
    """What goes from a directory, and why some of it stays."""

    directory: DataDirectory
    # By pipeline, the streams that go; and those whose rows for subscribers go.
    streams: dict[str, set[str]]
    rows: set[str]
    removed: list[Removed] = field(default_factory=list)
    # Checkpoints with a name that know streams which go.
    holding: list[tuple[str, str, list[str]]] = field(default_factory=list)

    def look(self) -> None:
        """Find out what would go."""
        for pipeline in self.directory.pipelines():
            _Pipeline(self.directory, pipeline, self.streams.get(pipeline, set())).look(self)
        sizes = self.directory.streams()
        for name in sorted(self.rows & sizes.keys()):
            self.removed.append(Removed("rows for subscribers", name, sizes[name]))

    def carry_out(self) -> None:
        for pipeline in self.directory.pipelines():
            _Pipeline(self.directory, pipeline, self.streams.get(pipeline, set())).carry_out()
        for name in sorted(self.rows):
            self.directory.remove_stream(name)


class _Pipeline:
    """The part of it that concerns one pipeline."""

    def __init__(self, directory: DataDirectory, name: str, streams: Set[str]) -> None:
        self.name = name
        self.streams = streams
        self.store = directory.pipeline(name)
        self.manifests = Manifests(self.store)
        self.named = {item.stamp: item.name for item in self.manifests.named.all()}

    def look(self, into: Pruning) -> None:
        newest = self.manifests.newest().manifest
        if newest is None:
            return
        for stream in sorted(self.streams & newest.streams.keys()):
            what = f"offsets and state in {self.name}"
            into.removed.append(Removed(what, stream, state_bytes(newest, stream)))
        for manifest in self._kept_for_names():
            holds = sorted(self.streams & manifest.streams.keys())
            if holds:
                into.holding.append((self.named[manifest.stamp], self.name, holds))
        after = without_streams(newest, self.streams)
        kept = self._kept_for_names() if after is not newest else self.manifests.kept()
        lost = self._unneeded([after, *kept], newest)
        own = {file for o in newest.operators.values() for file in o.files}
        rubbish = [size for name, size in lost if name.removeprefix(f"{STATE}/") not in own]
        if rubbish:
            what = f"{len(rubbish):,} file{'s' if len(rubbish) > 1 else ''} that no epoch needs"
            into.removed.append(Removed(what, self.name, sum(rubbish)))

    def carry_out(self) -> None:
        newest = self.manifests.settled().manifest
        if newest is None:
            return
        after = without_streams(newest, self.streams)
        if after is not newest:
            old = [n for n in self.manifests.names() if stamp_of(n) not in self.named]
            for more in range(max(len(old), 1)):
                self.manifests.create(replace(after, epoch=after.epoch + more))
            self.store.delete(old)
        lost = self._unneeded(self.manifests.kept(), newest)
        self.store.delete([name for name, _ in lost])

    def _kept_for_names(self) -> list[Manifest]:
        return [m for m in self.manifests.kept() if m.stamp in self.named]

    def _unneeded(self, kept: list[Manifest], last: Manifest) -> list[tuple[str, int]]:
        """The files that none of these manifests needs."""
        needed = set().union(*map(needed_by, kept))
        most = f"{STATE}/{last.stamp}"
        state = [i for i in self.store.list(STATE) if i.name[: len(most)] <= most]
        names = [i for i in self.store.list(OFFSETS) if is_chunk(i.name)]
        half = [*self.store.asides(STATE), *self.store.asides(OFFSETS)]
        return [(i.name, i.size) for i in [*state, *names, *half] if i.name not in needed]
