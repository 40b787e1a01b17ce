"""Removing what a data directory keeps for nobody: parked streams, and what no epoch needs.

The manifest without the streams is written as often as there are manifests without a name, and
those of before are removed: what only they needed can go then. At every moment the newest manifest
is whole, so dying in between leaves something to be pruned once more.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass, field, replace

from tidegate.catalog.catalog import Catalog
from tidegate.checkpoint.manifest import Manifest
from tidegate.checkpoint.manifests import STATE_FOLDER, Manifests, stamp_of, without_streams
from tidegate.connectors.files.listing import chunks_of, is_chunk
from tidegate.errors import RunError
from tidegate.runtime.directory import DataDirectory
from tidegate.runtime.planning import pipeline_of
from tidegate.storage import StorageError, Store

# ---- The files of a pipeline that manifests name: those that a kept manifest needs stay, others go.

# What belongs to the offsets of sources, and does not fit into them.
OFFSETS = "offsets"
# What failed tasks have left behind is looked for after so many epochs.
_EPOCHS_BETWEEN_SWEEPS = 64


class StateFiles:
    """Knows which files the kept manifests need."""

    def __init__(self, store: Store, manifests: Manifests) -> None:
        self.store = store
        self.manifests = manifests
        self._needed: dict[str, set[str]] = {}
        self._swept_at: int | None = None

    def open(self, last: Manifest) -> None:
        """Find out what is needed, and remove what nobody needs."""
        self._needed = {m.stamp: needed_by(m) for m in self.manifests.load_all()}
        self.store.delete(self._dead_state(last))
        # The first epoch decides what its predecessor may have left.
        self._swept_at = None

    def committed(self, manifest: Manifest) -> None:
        """One more manifest, which may let older ones go."""
        self._needed[manifest.stamp] = needed_by(manifest)
        try:
            self._remove(manifest)
        except StorageError as error:
            # What cannot be removed while the store is away goes after one of the next epochs.
            if not error.retryable:
                raise

    def _remove(self, manifest: Manifest) -> None:
        gone = [self._needed.pop(stamp, set()) for stamp in self.manifests.expire()]
        self.store.delete(sorted(_all(gone) - _all(self._needed.values())))
        if self._swept_at is None or manifest.epoch >= self._swept_at + _EPOCHS_BETWEEN_SWEEPS:
            self._swept_at = manifest.epoch
            # Whoever should be dead has lost this epoch, and what was cut for it with it.
            self.store.delete([*self._dead_state(manifest), *self._dead_names()])

    def _dead_state(self, last: Manifest) -> list[str]:
        """State of decided epochs that no manifest names, and what was written half.

        That of later epochs is left alone: a process that should be dead could still decide one.
        """
        needed = _all(self._needed.values())
        most = f"{STATE_FOLDER}/{last.stamp}"
        names = [item.name for item in self.store.list(STATE_FOLDER)]
        dead = [name for name in names if name not in needed and name[: len(most)] <= most]
        return [*dead, *(item.name for item in self.store.list_unfinished(STATE_FOLDER))]

    def _dead_names(self) -> list[str]:
        """Names of files read that have been merged into others, or were never decided."""
        needed = _all(self._needed.values())
        there = [item.name for item in self.store.list(OFFSETS) if is_chunk(item.name)]
        return [name for name in there if name not in needed]


def needed_by(manifest: Manifest) -> set[str]:
    """The files that a manifest names, in the folder of its pipeline."""
    state = {
        f"{STATE_FOLDER}/{file}"
        for operator in manifest.operators.values()
        for file in operator.files
    }
    names = {
        f"{OFFSETS}/{source}/{chunk}"
        for stream in manifest.streams.values()
        for source, offset in stream.offsets.items()
        for chunk in chunks_of(offset)
    }
    return state | names


def _all(sets: Iterable[set[str]]) -> set[str]:
    return set().union(*sets)


# ---- Streams that a data directory knows and nobody declares any more.
#
# Their offsets and their state are kept: declared again, they go on where they were. `tidegate prune`
# removes what is kept of them.

# Whether a stream of a pipeline is declared.
IsDeclared = Callable[[str, str], bool]


def declared_in(*catalogs: Catalog) -> IsDeclared:
    """A stream is declared if it is so for the pipeline that knows it."""

    def is_declared(pipeline: str, stream: str) -> bool:
        found = [item for catalog in catalogs if (item := catalog.get(stream)) is not None]
        return any(pipeline_of(item) == pipeline for item in found)

    return is_declared


def parked(directory: DataDirectory, is_declared: IsDeclared) -> dict[str, list[str]]:
    """By pipeline, the streams that are not declared."""
    found = {}
    for pipeline in directory.pipelines():
        manifest = Manifests(directory.pipeline(pipeline)).load_newest_readable()
        streams = manifest.streams if manifest is not None else {}
        names = [name for name in sorted(streams) if not is_declared(pipeline, name)]
        if names:
            found[pipeline] = names
    return found


def state_bytes(manifest: Manifest, stream: str) -> int:
    """How large the state files are in which a stream has a part."""
    own = [o for o in manifest.operators.values() if o.stream == stream]
    return sum({file: size for o in own for file, size in o.files.items()}.values())


def parked_warning(directory: DataDirectory, catalog: Catalog) -> RunError | None:
    """What to say about streams that are kept for nobody."""
    found = parked(directory, declared_in(catalog))
    names = sorted({name for streams in found.values() for name in streams})
    if not names:
        return None
    is_one = len(names) == 1
    those = f"the stream {names[0]}" if is_one else f"the streams {', '.join(names)}"
    # By its name a stream would go from the pipeline that it runs in now, too.
    moved = any(catalog.get(name) is not None for name in names)
    which = ["--script", "FILE"] if moved else names
    command = " ".join(shlex.quote(part) for part in [str(directory.path), *which])
    return RunError(
        "TG-614",
        f"{those} {'is' if is_one else 'are'} parked: no longer declared in "
        f"{' and '.join(found)}, with offsets and state kept",
        hint=f"declare {'it' if is_one else 'them'} again to go on from there; or stop, and remove "
        f"what is kept: tidegate prune {command}",
    )


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
        self.named = {item.stamp: item.name for item in self.manifests.checkpoint_names.all()}

    def look(self, into: Pruning) -> None:
        newest = self.manifests.load_newest().manifest
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
        kept = self._kept_for_names() if after is not newest else self.manifests.load_all()
        lost = self._unneeded([after, *kept], newest)
        own = {file for o in newest.operators.values() for file in o.files}
        rubbish = [size for name, size in lost if name.removeprefix(f"{STATE_FOLDER}/") not in own]
        if rubbish:
            what = f"{len(rubbish):,} file{'s' if len(rubbish) > 1 else ''} that no epoch needs"
            into.removed.append(Removed(what, self.name, sum(rubbish)))

    def carry_out(self) -> None:
        newest = self.manifests.recover().manifest
        if newest is None:
            return
        after = without_streams(newest, self.streams)
        if after is not newest:
            old = [n for n in self.manifests.names() if stamp_of(n) not in self.named]
            for more in range(max(len(old), 1)):
                self.manifests.create(replace(after, epoch=after.epoch + more))
            self.store.delete(old)
        lost = self._unneeded(self.manifests.load_all(), newest)
        self.store.delete([name for name, _ in lost])

    def _kept_for_names(self) -> list[Manifest]:
        return [m for m in self.manifests.load_all() if m.stamp in self.named]

    def _unneeded(self, kept: list[Manifest], last: Manifest) -> list[tuple[str, int]]:
        """The files that none of these manifests needs."""
        needed = set().union(*map(needed_by, kept))
        most = f"{STATE_FOLDER}/{last.stamp}"
        state = [i for i in self.store.list(STATE_FOLDER) if i.name[: len(most)] <= most]
        names = [i for i in self.store.list(OFFSETS) if is_chunk(i.name)]
        half = [*self.store.list_unfinished(STATE_FOLDER), *self.store.list_unfinished(OFFSETS)]
        return [(i.name, i.size) for i in [*state, *names, *half] if i.name not in needed]
