"""The line of manifests of a pipeline, in a folder of their own.

The newest one that is whole is the truth. Creating the next one commits an epoch: that can be done
once, so of two processes that try, one succeeds.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Set
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from tidegate.checkpoint.manifest import DamagedManifest, Manifest
from tidegate.errors import DataDirectoryError
from tidegate.storage import AlreadyExists, NotFound

if TYPE_CHECKING:
    from tidegate.storage import Store


# ---- Names of checkpoints: a manifest that has one is kept until the name is dropped.
#
# A name is a small file of its own, so that a manifest is never written again. What it stands for is
# in the name of the file: to know what must be kept, nothing has to be read.

NAMES_FOLDER = "names"
_FILE = re.compile(r"names/(.+)\.(\d+)-(\d+)\.json")


@dataclass(frozen=True)
class Name:
    """A name and the epoch it stands for."""

    name: str
    generation: int
    epoch: int

    @property
    def stamp(self) -> str:
        return f"{self.generation:03d}-{self.epoch:012d}"

    @property
    def file(self) -> str:
        return f"{NAMES_FOLDER}/{self.name}.{self.stamp}.json"


class Names:
    """The names that were given in one pipeline; upper and lower case are the same."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def all(self) -> list[Name]:
        found = (_FILE.fullmatch(item.name) for item in self.store.list(NAMES_FOLDER))
        return [Name(m.group(1), int(m.group(2)), int(m.group(3))) for m in found if m is not None]

    def find(self, name: str) -> Name | None:
        return next((item for item in self.all() if item.name.lower() == name.lower()), None)

    def add(self, name: Name) -> None:
        self.store.put_new(name.file, json.dumps(asdict(name)).encode())

    def remove(self, name: Name) -> None:
        self.store.delete([name.file])


MANIFESTS_FOLDER = "manifests"
STATE = "state"
_NAME = re.compile(r"manifests/(\d+)-(\d+)\.json")


@dataclass(frozen=True)
class Skipped:
    """A manifest that was newer, but could not be used."""

    name: str
    reason: str


@dataclass(frozen=True)
class NewestManifest:
    """The newest manifest that can be used; None: there is none at all."""

    manifest: Manifest | None
    skipped: tuple[Skipped, ...] = ()


class Manifests:
    """The manifests of one pipeline."""

    def __init__(self, store: Store, max_retained: int = 3) -> None:
        self.store = store
        self.max_retained = max_retained
        self.named = Names(store)
        # What gets a name must not expire at the same moment.
        self._lock = threading.Lock()
        self._kept: set[str] | None = None
        # Those that are there: a folder in an object store is not listed in every epoch.
        self._there: list[str] | None = None

    # Reading

    def names(self) -> list[str]:
        """All of them, oldest first: by generation, then by epoch."""
        found = [item.name for item in self.store.list(MANIFESTS_FOLDER)]
        return sorted((n for n in found if _NAME.fullmatch(n)), key=_place)

    def load(self, name: str) -> Manifest:
        return Manifest.from_bytes(self.store.get(name))

    def newest(self) -> NewestManifest:
        """The newest whose state is there; damaged ones are passed over, and said."""
        skipped: list[Skipped] = []
        whole = _Whole(self.store)
        for name in reversed(self.names()[-self.max_retained :]):
            try:
                manifest = self.load(name)
                whole.require(manifest)
                return NewestManifest(manifest, tuple(skipped))
            except DamagedManifest as error:
                skipped.append(Skipped(name, str(error)))
            except NotFound:
                continue
        if skipped:
            raise self._unusable(skipped)
        return NewestManifest(None)

    def _unusable(self, skipped: list[Skipped]) -> DataDirectoryError:
        older = self.usable()
        back = f"RESTORE FROM CHECKPOINT {older[0].epoch}; goes back; or " if older else ""
        return DataDirectoryError(
            "TG-605",
            f"none of the newest {len(skipped)} manifests in {self.store.uri}/{MANIFESTS_FOLDER} can be "
            f"used: {skipped[0].name}: {skipped[0].reason}",
            hint=f"{back}put back a copy of the data directory from before, or remove it: all "
            "streams then start from the beginning.",
        )

    def kept(self) -> list[Manifest]:
        """Those that are kept, newest first; damaged ones are left out."""
        found = []
        for name in reversed(self.names()):
            try:
                found.append(self.load(name))
            except (DamagedManifest, NotFound):
                continue
        return found

    def last(self) -> Manifest | None:
        """The newest that can be read, whether its state is there or not."""
        for name in reversed(self.names()):
            try:
                return self.load(name)
            except (DamagedManifest, NotFound):
                continue
        return None

    def usable(self) -> list[Manifest]:
        """Those that are kept and whose state is there, newest first."""
        whole = _Whole(self.store)
        return [manifest for manifest in self.kept() if whole.flaw(manifest) is None]

    # Deciding

    def settled(self) -> NewestManifest:
        """The newest that can be used, as one that the next epoch can follow.

        Where newer ones are damaged, their numbers are spent: it is written again behind them, and
        says that the epochs in between never were.
        """
        found = self.newest()
        if found.manifest is None or not found.skipped:
            return found
        generation, epoch = self.top()
        manifest = found.manifest.gone_back(generation, epoch + 1)
        self.create(manifest)
        return NewestManifest(manifest, found.skipped)

    def top(self) -> tuple[int, int]:
        """The largest generation and the largest epoch that were ever used and are still known."""
        places = [_place(name) for name in self.names()] or [(0, -1)]
        return max(g for g, _ in places), max(e for _, e in places)

    def create(self, manifest: Manifest, again: bool = False) -> None:
        """Commit an epoch; `again`: it may be there, because an answer was lost."""
        name = f"{MANIFESTS_FOLDER}/{manifest.stamp}.json"
        data = manifest.to_bytes()
        try:
            self.store.put_new(name, data)
        except AlreadyExists:
            if again and self.store.get(name) == data:
                return
            raise DataDirectoryError(
                "TG-602",
                f"another process has decided epoch {manifest.epoch} of this pipeline",
                hint="stop that process; this one has stopped and wrote nothing.",
            ) from None
        with self._lock:
            if self._there is not None:
                self._there = sorted([*self._there, name], key=_place)

    # Keeping

    def keep_newest(self, name: str) -> Name | None:
        """Give the newest one a name; None if there is none yet."""
        with self._lock:
            newest = self.newest().manifest
            if newest is None:
                return None
            added = Name(name, newest.generation, newest.epoch)
            self.named.add(added)
            self._kept = None
            return added

    def drop_name(self, name: Name) -> None:
        """What it stood for expires like all others from now on."""
        with self._lock:
            self.named.remove(name)
            self._kept = None

    def expire(self) -> list[str]:
        """Remove what is older than the newest few and has no name; returns their stamps."""
        with self._lock:
            if self._kept is None:
                self._kept = {f"{MANIFESTS_FOLDER}/{name.stamp}.json" for name in self.named.all()}
            if self._there is None:
                self._there = self.names()
            old = self._there[: -self.max_retained]
            gone = [name for name in old if name not in self._kept]
            self.store.delete(gone)
            self._there = [name for name in self._there if name not in gone]
        return [stamp_of(name) for name in gone]


def stamp_of(name: str) -> str:
    """The generation and epoch of a manifest, by its name."""
    return name.rpartition("/")[2].removesuffix(".json")


class _Whole:
    """Whether the state that manifests speak of is there; it is listed at most once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._sizes: dict[str, int] | None = None

    def require(self, manifest: Manifest) -> None:
        flaw = self.flaw(manifest)
        if flaw is not None:
            raise DamagedManifest(flaw)

    def flaw(self, manifest: Manifest) -> str | None:
        for operator in manifest.operators.values():
            for file, size in operator.files.items():
                there = self._there().get(file)
                if there is None:
                    return f"its state file {STATE}/{file} is missing"
                if there != size:
                    return f"its state file {STATE}/{file} has {there:,} bytes, and had {size:,}"
        return None

    def _there(self) -> dict[str, int]:
        if self._sizes is None:
            self._sizes = {item.name: item.size for item in self._store.child(STATE).list()}
        return self._sizes


def _place(name: str) -> tuple[int, int]:
    found = _NAME.fullmatch(name)
    assert found is not None, f"{name} is the name of a manifest"
    return int(found.group(1)), int(found.group(2))


# ---- What is left of a pipeline when a stream is dropped.


def forget_stream(store: Store, stream: str) -> None:
    """Drop what a pipeline that does not run has kept of a stream."""
    manifests = Manifests(store)
    found = manifests.settled().manifest
    if found is not None:
        manifest = without_stream(found, stream.lower())
        if manifest is not found:
            manifests.create(manifest)


def without_stream(manifest: Manifest, stream: str) -> Manifest:
    """The next manifest, which knows nothing of a stream; the same if it did not know it."""
    return without_streams(manifest, {stream})


def without_streams(manifest: Manifest, streams: Set[str]) -> Manifest:
    """The same of several; what was decided for sinks of others stays: it may be uncommitted."""
    if not streams & manifest.streams.keys():
        return manifest
    return replace(
        manifest,
        epoch=manifest.epoch + 1,
        streams={k: s for k, s in manifest.streams.items() if k not in streams},
        operators={k: o for k, o in manifest.operators.items() if o.stream not in streams},
        sinks={k: s for k, s in manifest.sinks.items() if s.stream not in streams},
    )
