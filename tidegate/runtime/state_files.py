"""The state files of a pipeline: those that a kept manifest needs stay, the others go."""

from __future__ import annotations

from collections.abc import Iterable

from tidegate.checkpoint.manifest import Manifest
from tidegate.checkpoint.manifests import Manifests
from tidegate.storage import StorageError, Store

# What failed tasks have left behind is looked for after so many epochs.
_EPOCHS_BETWEEN_SWEEPS = 64


class StateFiles:
    """Knows which files the kept manifests need."""

    def __init__(self, store: Store, manifests: Manifests) -> None:
        self.store = store
        self.manifests = manifests
        self._needed: list[tuple[str, set[str]]] = []
        self._swept_at: int | None = None

    def open(self, last: Manifest) -> None:
        """Find out what is needed, and remove what nobody needs."""
        self._needed = [(m.stamp, _files(m)) for m in self.manifests.kept()]
        self._sweep(last)
        # The first epoch decides what its predecessor may have left.
        self._swept_at = None

    def decided(self, manifest: Manifest) -> None:
        """One more manifest, which may let older ones go."""
        self._needed.insert(0, (manifest.stamp, _files(manifest)))
        try:
            self._remove(manifest)
        except StorageError as error:
            # What cannot be removed while the store is away goes after one of the next epochs.
            if not error.retryable:
                raise

    def _remove(self, manifest: Manifest) -> None:
        self.manifests.expire()
        self._expire()
        if self._swept_at is None or manifest.epoch >= self._swept_at + _EPOCHS_BETWEEN_SWEEPS:
            self._sweep(manifest)

    def _expire(self) -> None:
        """Remove the state that only manifests needed which are gone now."""
        kept = {name.rpartition("/")[2].removesuffix(".json") for name in self.manifests.names()}
        gone = [files for stamp, files in self._needed if stamp not in kept]
        self._needed = [item for item in self._needed if item[0] in kept]
        dead = _all(gone) - _all(files for _, files in self._needed)
        if dead:
            self.store.delete(sorted(dead))

    def _sweep(self, last: Manifest) -> None:
        """Remove files of decided epochs that no manifest names.

        Those of later epochs are left alone: a process that should be dead could still decide one.
        """
        self._swept_at = last.epoch
        needed = _all(files for _, files in self._needed)
        stamp = last.stamp
        names = [item.name for item in self.store.list()]
        dead = [name for name in names if name not in needed and name[: len(stamp)] <= stamp]
        if dead:
            self.store.delete(dead)


def _files(manifest: Manifest) -> set[str]:
    return {file for operator in manifest.operators.values() for file in operator.files}


def _all(sets: Iterable[set[str]]) -> set[str]:
    return set().union(*sets)
