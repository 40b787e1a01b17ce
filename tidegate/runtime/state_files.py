"""The files of a pipeline that manifests name: those that a kept manifest needs stay, others go."""

from __future__ import annotations

from collections.abc import Iterable

from tidegate.checkpoint.manifest import Manifest
from tidegate.checkpoint.manifests import STATE, Manifests
from tidegate.connectors.files.listing import chunks_of, is_chunk
from tidegate.storage import StorageError, Store

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
        self._needed = {m.stamp: needed_by(m) for m in self.manifests.kept()}
        self.store.delete(self._dead_state(last))
        # The first epoch decides what its predecessor may have left.
        self._swept_at = None

    def decided(self, manifest: Manifest) -> None:
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
        most = f"{STATE}/{last.stamp}"
        names = [item.name for item in self.store.list(STATE)]
        dead = [name for name in names if name not in needed and name[: len(most)] <= most]
        return [*dead, *(item.name for item in self.store.asides(STATE))]

    def _dead_names(self) -> list[str]:
        """Names of files read that have been merged into others, or were never decided."""
        needed = _all(self._needed.values())
        there = [item.name for item in self.store.list(OFFSETS) if is_chunk(item.name)]
        return [name for name in there if name not in needed]


def needed_by(manifest: Manifest) -> set[str]:
    """The files that a manifest names, in the folder of its pipeline."""
    state = {
        f"{STATE}/{file}" for operator in manifest.operators.values() for file in operator.files
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
