"""Deletes files that no manifest needs, and streams that are not declared any more.

While a pipeline runs, `FileSweeper` deletes the files of expired manifests and of failed tasks.
`tidegate prune` removes streams and files from a data directory that is not in use.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass, field, replace

from tidegate.catalog.catalog import Catalog
from tidegate.checkpoint.manifest import DamagedManifest, Manifest
from tidegate.checkpoint.manifests import STATE_FOLDER, Manifests, stamp_of, without_streams
from tidegate.connectors.files.listing import chunks_of, is_chunk
from tidegate.errors import RunError
from tidegate.runtime.directory import DataDirectory
from tidegate.runtime.planning import pipeline_of
from tidegate.storage import NotFound, StorageError, Store

# ---- Sweeping: files of a running pipeline

# Files with parts of offsets that are too large for a manifest.
OFFSETS_FOLDER = "offsets"
# Files of failed tasks are searched for once in this many epochs.
_EPOCHS_BETWEEN_SWEEPS = 64


class FileSweeper:
    """Deletes state and offset files that no stored manifest needs any more."""

    def __init__(self, store: Store, manifests: Manifests) -> None:
        self.store = store
        self.manifests = manifests
        # By manifest.
        self._needed: dict[str, set[str]] = {}
        self._swept_at: int | None = None

    def start(self, last: Manifest) -> None:
        """Collect the needed files, and delete state files that failed tasks have left behind."""
        self._needed = {m.stamp: needed_files(m) for m in self.manifests.load_all()}
        self.store.delete(self._orphaned_state(last))
        # Sweep again after the first commit. Until then, a zombie driver could commit its epoch.
        self._swept_at = None

    def on_commit(self, manifest: Manifest) -> None:
        """Expire old manifests, and delete the files that only they needed."""
        self._needed[manifest.stamp] = needed_files(manifest)
        try:
            self._sweep(manifest)
        except StorageError as error:
            # If the store is unavailable, a later sweep deletes the files.
            if not error.retryable:
                raise

    def _sweep(self, manifest: Manifest) -> None:
        self._register_unknown()
        expired = [self._needed.pop(stamp, set()) for stamp in self.manifests.expire()]
        self.store.delete(sorted(_union(expired) - _union(self._needed.values())))
        if self._swept_at is None or manifest.epoch >= self._swept_at + _EPOCHS_BETWEEN_SWEEPS:
            self._swept_at = manifest.epoch
            # A zombie driver cannot commit this epoch any more: its offset files are garbage.
            self.store.delete([*self._orphaned_state(manifest), *self._orphaned_offsets()])

    def _register_unknown(self) -> None:
        """Collect the needed files of manifests without an epoch, such as that of DROP STREAM."""
        for name in self.manifests.known_names():
            stamp = stamp_of(name)
            if stamp in self._needed:
                continue
            try:
                self._needed[stamp] = needed_files(self.manifests.load(name))
            except (DamagedManifest, NotFound):
                # It cannot be restored, so it needs no files.
                self._needed[stamp] = set()

    def _orphaned_state(self, last: Manifest) -> list[str]:
        """Return state files up to the last epoch that no manifest needs, and unfinished files.

        State of later epochs is kept, because a zombie driver could still commit it.
        """
        needed = _union(self._needed.values())
        names = [file.name for file in self.store.list(STATE_FOLDER)]
        orphaned = [name for name in names if name not in needed and _is_up_to(name, last)]
        return [*orphaned, *(file.name for file in self.store.list_unfinished(STATE_FOLDER))]

    def _orphaned_offsets(self) -> list[str]:
        """Return offset files that were merged into others, or belong to no committed epoch."""
        needed = _union(self._needed.values())
        names = [file.name for file in self.store.list(OFFSETS_FOLDER) if is_chunk(file.name)]
        return [name for name in names if name not in needed]


def needed_files(manifest: Manifest) -> set[str]:
    """Return the files that a manifest refers to, relative to the folder of the pipeline."""
    state = {
        f"{STATE_FOLDER}/{file}"
        for operator in manifest.operators.values()
        for file in operator.files
    }
    offsets = {
        f"{OFFSETS_FOLDER}/{source}/{chunk}"
        for stream in manifest.streams.values()
        for source, offset in stream.offsets.items()
        for chunk in chunks_of(offset)
    }
    return state | offsets


def _is_up_to(state_file: str, last: Manifest) -> bool:
    """Return whether a state file is not of a later epoch: its name starts with its epoch."""
    limit = f"{STATE_FOLDER}/{last.stamp}"
    return state_file[: len(limit)] <= limit


def _union(sets: Iterable[set[str]]) -> set[str]:
    return set().union(*sets)


# ---- Parked streams: streams in a manifest that are not declared any more
#
# Their offsets and state are kept. If they are declared again, they continue where they stopped.

# Returns whether a stream of a pipeline is declared.
IsDeclared = Callable[[str, str], bool]


def declared_in(*catalogs: Catalog) -> IsDeclared:
    """Return a function that looks up a stream, with its pipeline, in these catalogs."""

    def is_declared(pipeline: str, stream: str) -> bool:
        objects = (catalog.get(stream) for catalog in catalogs)
        return any(pipeline_of(item) == pipeline for item in objects if item is not None)

    return is_declared


def parked_streams(directory: DataDirectory, is_declared: IsDeclared) -> dict[str, list[str]]:
    """Return the parked streams of each pipeline that has some."""
    parked = {}
    for pipeline in directory.pipeline_names():
        manifest = Manifests(directory.pipeline(pipeline)).load_newest_without_state_check()
        streams = manifest.streams if manifest is not None else {}
        names = [name for name in sorted(streams) if not is_declared(pipeline, name)]
        if names:
            parked[pipeline] = names
    return parked


def parked_warning(directory: DataDirectory, catalog: Catalog) -> RunError | None:
    """Return a warning about the parked streams of a data directory."""
    parked = parked_streams(directory, declared_in(catalog))
    names = sorted({name for streams in parked.values() for name in streams})
    if not names:
        return None
    is_one = len(names) == 1
    streams = f"the stream {names[0]}" if is_one else f"the streams {', '.join(names)}"
    # Pruning by name would also remove a stream that now runs in another pipeline.
    has_moved = any(catalog.get(name) is not None for name in names)
    arguments = ["--script", "FILE"] if has_moved else names
    command = " ".join(shlex.quote(part) for part in [str(directory.path), *arguments])
    return RunError(
        "TG-614",
        f"{streams} {'is' if is_one else 'are'} parked: no longer declared in "
        f"{' and '.join(parked)}, but offsets and state are kept",
        hint=f"declare {'it' if is_one else 'them'} again to continue; or stop the session and "
        f"remove the stored data: tidegate prune {command}",
    )


# ---- Pruning
#
# A manifest without the streams is written until it has replaced all manifests without a name. Then
# the files that only the old manifests needed are deleted. The newest manifest is intact at any
# moment, so pruning can be repeated if the process dies.


@dataclass(frozen=True)
class PrunedItem:
    """What `tidegate prune` deletes for a stream or pipeline, with its size in bytes."""

    description: str
    name: str
    size: int


@dataclass
class Pruning:
    """The streams to remove from a data directory, and the plan of what is deleted."""

    directory: DataDirectory
    # The streams to remove from each pipeline, and the streams whose stored rows to remove.
    streams: dict[str, set[str]]
    rows: set[str]
    items: list[PrunedItem] = field(default_factory=list)
    # Named checkpoints that contain streams to remove: name, pipeline, streams.
    checkpoints: list[tuple[str, str, list[str]]] = field(default_factory=list)

    def plan(self) -> None:
        """Determine `items` and `checkpoints` without deleting anything."""
        for pipeline in self._pipelines():
            pipeline.plan(self)
        sizes = self.directory.stream_sizes()
        for name in sorted(self.rows & sizes.keys()):
            self.items.append(PrunedItem("rows for subscribers", name, sizes[name]))

    def run(self) -> None:
        """Delete the streams and all files that are not needed."""
        for pipeline in self._pipelines():
            pipeline.run()
        for name in sorted(self.rows):
            self.directory.remove_stream(name)

    def _pipelines(self) -> list[_PipelinePruning]:
        return [
            _PipelinePruning(self.directory, name, self.streams.get(name, set()))
            for name in self.directory.pipeline_names()
        ]


class _PipelinePruning:
    """Removes streams and unneeded files of one pipeline."""

    def __init__(self, directory: DataDirectory, name: str, streams: Set[str]) -> None:
        self.name = name
        self.streams = streams
        self.store = directory.pipeline(name)
        self.manifests = Manifests(self.store)
        names = self.manifests.checkpoint_names.all()
        self.checkpoint_names = {item.stamp: item.name for item in names}

    def plan(self, pruning: Pruning) -> None:
        newest = self.manifests.load_newest().manifest
        if newest is None:
            return
        for stream in sorted(self.streams & newest.streams.keys()):
            description = f"offsets and state in {self.name}"
            pruning.items.append(PrunedItem(description, stream, _state_bytes(newest, stream)))
        named = self._named_manifests()
        for manifest in named:
            streams = sorted(self.streams & manifest.streams.keys())
            if streams:
                name = self.checkpoint_names[manifest.stamp]
                pruning.checkpoints.append((name, self.name, streams))
        pruned = without_streams(newest, self.streams)
        remaining = named if pruned is not newest else self.manifests.load_all()
        unneeded = self._unneeded_files([pruned, *remaining], newest)
        # The state of the removed streams is listed per stream above.
        state = {file for o in newest.operators.values() for file in o.files}
        garbage = [
            size for name, size in unneeded if name.removeprefix(f"{STATE_FOLDER}/") not in state
        ]
        if garbage:
            plural = "s" if len(garbage) > 1 else ""
            description = f"{len(garbage):,} file{plural} that no epoch needs"
            pruning.items.append(PrunedItem(description, self.name, sum(garbage)))

    def run(self) -> None:
        newest = self.manifests.recover().manifest
        if newest is None:
            return
        pruned = without_streams(newest, self.streams)
        if pruned is not newest:
            old = [n for n in self.manifests.names() if stamp_of(n) not in self.checkpoint_names]
            for number in range(max(len(old), 1)):
                self.manifests.create(replace(pruned, epoch=pruned.epoch + number))
            self.store.delete(old)
        unneeded = self._unneeded_files(self.manifests.load_all(), newest)
        self.store.delete([name for name, _ in unneeded])

    def _named_manifests(self) -> list[Manifest]:
        return [m for m in self.manifests.load_all() if m.stamp in self.checkpoint_names]

    def _unneeded_files(self, manifests: list[Manifest], last: Manifest) -> list[tuple[str, int]]:
        """Return the names and sizes of files that none of these manifests needs."""
        needed = set().union(*map(needed_files, manifests))
        state = [f for f in self.store.list(STATE_FOLDER) if _is_up_to(f.name, last)]
        offsets = [f for f in self.store.list(OFFSETS_FOLDER) if is_chunk(f.name)]
        unfinished = [
            *self.store.list_unfinished(STATE_FOLDER),
            *self.store.list_unfinished(OFFSETS_FOLDER),
        ]
        files = [*state, *offsets, *unfinished]
        return [(file.name, file.size) for file in files if file.name not in needed]


def _state_bytes(manifest: Manifest, stream: str) -> int:
    """Return the size of the state files that contain state of a stream."""
    operators = [o for o in manifest.operators.values() if o.stream == stream]
    return sum({file: size for o in operators for file, size in o.files.items()}.values())
