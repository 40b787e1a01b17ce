"""The manifests of a pipeline: a folder of create-only files, and names of checkpoints.

The newest intact manifest is the state of the pipeline. Creating the next manifest commits an
epoch. If two processes try to create the same one, exactly one succeeds.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Set
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from tidegate.checkpoint.manifest import DamagedManifest, Manifest, epoch_stamp
from tidegate.errors import DataDirectoryError
from tidegate.storage import AlreadyExists, NotFound

if TYPE_CHECKING:
    from tidegate.storage import Store


# ---- Names of checkpoints
#
# A manifest with a name is kept until the name is dropped. A name is a small separate file, because
# manifests are immutable. The file name contains the epoch, so that no file has to be read to find
# out which manifests have names.

CHECKPOINTS_FOLDER = "checkpoints"
_CHECKPOINT_PATTERN = re.compile(r"checkpoints/(.+)\.(\d+)-(\d+)\.json")


@dataclass(frozen=True)
class CheckpointName:
    """The name of a checkpoint, and the manifest that has it."""

    name: str
    generation: int
    epoch: int

    @property
    def stamp(self) -> str:
        return epoch_stamp(self.generation, self.epoch)

    @property
    def file(self) -> str:
        return f"{CHECKPOINTS_FOLDER}/{self.name}.{self.stamp}.json"


class CheckpointNames:
    """The named checkpoints of a pipeline. Names are case-insensitive."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def all(self) -> list[CheckpointName]:
        files = self.store.list(CHECKPOINTS_FOLDER)
        matches = (_CHECKPOINT_PATTERN.fullmatch(file.name) for file in files)
        return [
            CheckpointName(match.group(1), int(match.group(2)), int(match.group(3)))
            for match in matches
            if match is not None
        ]

    def find(self, name: str) -> CheckpointName | None:
        return next((item for item in self.all() if item.name.lower() == name.lower()), None)

    def add(self, name: CheckpointName) -> None:
        self.store.put_new(name.file, json.dumps(asdict(name)).encode())

    def remove(self, name: CheckpointName) -> None:
        self.store.delete([name.file])


# ---- Manifests

MANIFESTS_FOLDER = "manifests"
STATE_FOLDER = "state"
_MANIFEST_PATTERN = re.compile(r"manifests/(\d+)-(\d+)\.json")


@dataclass(frozen=True)
class SkippedManifest:
    """A newer manifest that cannot be used, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class NewestManifest:
    """The newest usable manifest, or None before the first epoch; and newer, damaged ones."""

    manifest: Manifest | None
    skipped: tuple[SkippedManifest, ...] = ()


class Manifests:
    """The manifests of one pipeline."""

    def __init__(self, store: Store, max_retained: int = 3) -> None:
        self.store = store
        self.max_retained = max_retained
        self.checkpoint_names = CheckpointNames(store)
        # Prevents a manifest from expiring while it is being named.
        self._lock = threading.Lock()
        self._named_files: set[str] | None = None
        # A copy of the folder's listing, because listing an object store in every epoch is slow.
        self._names: list[str] | None = None

    def names(self) -> list[str]:
        """List the names of all manifests, ordered by generation and epoch."""
        names = [file.name for file in self.store.list(MANIFESTS_FOLDER)]
        return sorted((n for n in names if _MANIFEST_PATTERN.fullmatch(n)), key=_numbers_of)

    def load(self, name: str) -> Manifest:
        return Manifest.from_bytes(self.store.get(name))

    def load_newest(self) -> NewestManifest:
        """Load the newest manifest whose state files exist; skip damaged ones and report them."""
        skipped: list[SkippedManifest] = []
        state = _StateListing(self.store)
        for name in reversed(self.names()[-self.max_retained :]):
            try:
                manifest = self.load(name)
                problem = state.problem(manifest)
                if problem is not None:
                    raise DamagedManifest(problem)
                return NewestManifest(manifest, tuple(skipped))
            except DamagedManifest as error:
                skipped.append(SkippedManifest(name, str(error)))
            except NotFound:
                continue
        if skipped:
            raise self._unusable_error(skipped)
        return NewestManifest(None)

    def _unusable_error(self, skipped: list[SkippedManifest]) -> DataDirectoryError:
        older = self.load_usable()
        restore = f"run RESTORE FROM CHECKPOINT {older[0].epoch}; or " if older else ""
        return DataDirectoryError(
            "TG-605",
            f"none of the newest {len(skipped)} manifests in {self.store.uri}/{MANIFESTS_FOLDER} "
            f"can be used: {skipped[0].name}: {skipped[0].reason}",
            hint=f"{restore}restore the data directory from a backup. If you remove it, all "
            "streams start from the beginning.",
        )

    def load_all(self) -> list[Manifest]:
        """Load all manifests, newest first; skip damaged ones."""
        manifests = []
        for name in reversed(self.names()):
            try:
                manifests.append(self.load(name))
            except (DamagedManifest, NotFound):
                continue
        return manifests

    def load_newest_without_state_check(self) -> Manifest | None:
        """Load the newest readable manifest without checking its state files."""
        for name in reversed(self.names()):
            try:
                return self.load(name)
            except (DamagedManifest, NotFound):
                continue
        return None

    def load_usable(self) -> list[Manifest]:
        """Load all manifests whose state files exist, newest first."""
        state = _StateListing(self.store)
        return [manifest for manifest in self.load_all() if state.problem(manifest) is None]

    def recover(self) -> NewestManifest:
        """Load the newest usable manifest so that the next epoch can follow it.

        The numbers of newer, damaged manifests cannot be used again. Therefore the usable manifest
        is written once more after them, and records that the epochs in between are rolled back.
        """
        newest = self.load_newest()
        if newest.manifest is None or not newest.skipped:
            return newest
        generation, epoch = self.highest_numbers()
        manifest = newest.manifest.restored_as(generation, epoch + 1)
        self.create(manifest)
        return NewestManifest(manifest, newest.skipped)

    def highest_numbers(self) -> tuple[int, int]:
        """Return the highest generation and the highest epoch of all stored manifests."""
        numbers = [_numbers_of(name) for name in self.names()] or [(0, -1)]
        return max(g for g, _ in numbers), max(e for _, e in numbers)

    def create(self, manifest: Manifest, is_retry: bool = False) -> None:
        """Commit an epoch by creating its manifest.

        `is_retry`: the response to an earlier attempt was lost, so the manifest may exist already.
        """
        name = f"{MANIFESTS_FOLDER}/{manifest.stamp}.json"
        data = manifest.to_bytes()
        try:
            self.store.put_new(name, data)
        except AlreadyExists:
            if not is_retry or self.store.get(name) != data:
                raise DataDirectoryError(
                    "TG-602",
                    f"another process has committed epoch {manifest.epoch} of this pipeline",
                    hint="stop the other process. This one has stopped and committed nothing.",
                ) from None
        with self._lock:
            if self._names is not None and name not in self._names:
                self._names = sorted([*self._names, name], key=_numbers_of)

    def name_newest(self, name: str) -> CheckpointName | None:
        """Give the newest manifest a name; return None before the first epoch."""
        with self._lock:
            manifest = self.load_newest().manifest
            if manifest is None:
                return None
            checkpoint = CheckpointName(name, manifest.generation, manifest.epoch)
            self.checkpoint_names.add(checkpoint)
            self._named_files = None
            return checkpoint

    def drop_name(self, name: CheckpointName) -> None:
        """Drop a name; its manifest then expires like all others."""
        with self._lock:
            self.checkpoint_names.remove(name)
            self._named_files = None

    def known_names(self) -> list[str]:
        """Return the names of all manifests like `names`, but list the folder only once."""
        with self._lock:
            return list(self._load_names())

    def _load_names(self) -> list[str]:
        if self._names is None:
            self._names = self.names()
        return self._names

    def expire(self) -> list[str]:
        """Remove all but the newest `max_retained` manifests and named ones; return the stamps."""
        with self._lock:
            if self._named_files is None:
                stamps = [name.stamp for name in self.checkpoint_names.all()]
                self._named_files = {f"{MANIFESTS_FOLDER}/{stamp}.json" for stamp in stamps}
            old = self._load_names()[: -self.max_retained]
            expired = [name for name in old if name not in self._named_files]
            self.store.delete(expired)
            self._names = [name for name in self._load_names() if name not in expired]
        return [stamp_of(name) for name in expired]


def stamp_of(name: str) -> str:
    """Return the stamp (generation and epoch) of a manifest's file name."""
    return name.rpartition("/")[2].removesuffix(".json")


class _StateListing:
    """The state files of a pipeline; the folder is listed at most once."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @cached_property
    def _sizes(self) -> dict[str, int]:
        return {file.name: file.size for file in self._store.child(STATE_FOLDER).list()}

    def problem(self, manifest: Manifest) -> str | None:
        """Return which state file of a manifest is missing or has another size, or None."""
        for operator in manifest.operators.values():
            for name, expected in operator.files.items():
                size = self._sizes.get(name)
                if size is None:
                    return f"its state file {STATE_FOLDER}/{name} is missing"
                if size != expected:
                    return (
                        f"its state file {STATE_FOLDER}/{name} has {size:,} bytes instead of "
                        f"{expected:,}"
                    )
        return None


def _numbers_of(name: str) -> tuple[int, int]:
    match = _MANIFEST_PATTERN.fullmatch(name)
    assert match is not None, f"{name} is not the name of a manifest"
    return int(match.group(1)), int(match.group(2))


# ---- Dropping streams


def forget_stream(store: Store, stream: str) -> None:
    """Remove a stream from the newest manifest of a pipeline that is not running."""
    manifests = Manifests(store)
    newest = manifests.recover().manifest
    if newest is not None:
        manifest = without_streams(newest, {stream.lower()})
        if manifest is not newest:
            manifests.create(manifest)


def without_streams(manifest: Manifest, streams: Set[str]) -> Manifest:
    """Return the next manifest without these streams, or the same one if it has none of them.

    The committables of other sinks stay, because they may not have been published yet.
    """
    if not streams & manifest.streams.keys():
        return manifest
    return replace(
        manifest,
        epoch=manifest.epoch + 1,
        streams={k: s for k, s in manifest.streams.items() if k not in streams},
        operators={k: o for k, o in manifest.operators.items() if o.stream not in streams},
        sinks={k: s for k, s in manifest.sinks.items() if s.stream not in streams},
    )
