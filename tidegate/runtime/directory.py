"""The data directory: one process at a time, a folder per pipeline, a folder per memory source."""

from __future__ import annotations

import os
import tempfile
from functools import cached_property
from pathlib import Path

from tidegate.catalog.catalog import LOCK, SPARK_LOG, unsafe
from tidegate.errors import DataDirectoryError, TidegateError
from tidegate.runtime.locks import LEASES, DiskLock, Lease, Lock
from tidegate.storage import NotThere, Store, open_store, probe, uri

_PIPELINES, _ORDERS = "_pipelines", "_orders"
# How everything below a data directory is laid out, and the file that says so.
FORMAT = 3
_FORMAT_FILE = "_format"
_NOT_DATA = (LOCK, SPARK_LOG, f"{LEASES}/")
# So many directories are named in a hint.
_MOST_NAMED = 3


class DataDirectory:
    """Locked while open; everything Tidegate keeps lies below it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        store = open_store(uri(path))
        self.store = open_store(uri(store.local_path().resolve())) if store.local else store
        self._lock: Lock | None = None

    def __str__(self) -> str:
        return str(self.path) if self.store.local else self.store.uri

    @property
    def path(self) -> Path:
        """Where it is on this machine, if it is."""
        return self.store.local_path()

    def open(self, any_format: bool = False) -> None:
        """Create it if needed and take the lock; `any_format`: whoever wrote it."""
        lock = self._taken()
        try:
            if not any_format:
                self._require_format()
            # A driver that is gone speaks to nobody any more.
            self.store.delete_all(_ORDERS)
        except TidegateError:
            lock.release()
            raise
        self._lock = lock

    def _taken(self) -> Lock:
        lock: Lock = DiskLock(self.path) if self.store.local else Lease(self.store)
        try:
            if self.store.local:
                self.path.mkdir(parents=True, exist_ok=True)
            self._require_ours()
            lock.take()
        except OSError as error:
            raise DataDirectoryError(
                "TG-601",
                f"the data directory {self} cannot be used: {error.strerror or error}",
                hint="choose a directory you may write to, for example with --data DIR.",
            ) from None
        return lock

    @property
    def is_open(self) -> bool:
        return self._lock is not None

    def require_held(self) -> None:
        """Raise if another process has taken it over."""
        if self._lock is not None:
            self._lock.require_held()

    @property
    def is_ours(self) -> bool:
        """Whether it was ever opened."""
        return self.store.exists(self.mark)

    @property
    def mark(self) -> str:
        """The file that says so."""
        return LOCK if self.store.local else _FORMAT_FILE

    def _require_ours(self) -> None:
        """Other people's files are left alone: --fresh would remove them one day."""
        if self.is_ours or not self.holds_anything():
            return
        raise DataDirectoryError(
            "TG-601",
            f"{self} is not empty and not a data directory of Tidegate",
            hint=self.meant() or "choose a directory that is empty or does not exist yet.",
        )

    def meant(self) -> str | None:
        """What to say if data directories lie in this one: one of them is meant."""
        if not self.store.local or not self.path.is_dir():
            return None
        found = sorted(self.path.glob(f"*/{LOCK}"))[:_MOST_NAMED]
        names = " or ".join(str(mark.parent) for mark in found)
        return f"did you mean {names}?" if names else None

    def holds_anything(self) -> bool:
        if self.store.local:
            return any(self.path.iterdir())
        return any(not item.name.startswith(_NOT_DATA) for item in self.store.list())

    def empty(self) -> None:
        """Remove all of it but the lease that this process holds."""
        names = [item.name for item in self.store.list()]
        self.store.delete(name for name in names if not name.startswith(f"{LEASES}/"))

    def _require_format(self) -> None:
        """What another version wrote is not read, and not written over."""
        try:
            found = self.store.get(_FORMAT_FILE).decode().strip()
        except NotThere:
            found = "of an earlier version" if self._is_used() else str(FORMAT)
            if not self.store.local and found == str(FORMAT):
                probe(self.store)
        if found != str(FORMAT):
            raise DataDirectoryError(
                "TG-601",
                f"the format of the data directory {self} is {found}, and this version reads "
                f"{FORMAT}",
                hint="choose another directory with --data DIR; all streams then start from the "
                "beginning.",
            )
        self.store.put(_FORMAT_FILE, f"{FORMAT}\n".encode())

    def _is_used(self) -> bool:
        if self.store.local:
            return bool({item.name for item in self.path.iterdir()} - {LOCK, SPARK_LOG})
        return self.holds_anything()

    def close(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    @cached_property
    def log_file(self) -> Path:
        """What Spark says; beside an object store it stays on this machine."""
        if self.store.local:
            return self.path / SPARK_LOG
        handle, name = tempfile.mkstemp(prefix="tidegate-spark-", suffix=".log")
        os.close(handle)
        return Path(name)

    def source(self, name: str) -> Store:
        """Where a source keeps rows of its own."""
        return self.store.child("_sources").child(_folder(name))

    def remove_source(self, name: str) -> None:
        self.store.child("_sources").delete_all(_folder(name))

    def remove_stream(self, name: str) -> None:
        self.store.delete_all(_folder(name))

    def streams(self) -> dict[str, int]:
        """The streams whose rows lie here for subscribers, and how many bytes they have."""
        found: dict[str, int] = {}
        for item in self.store.list():
            folder, slash, _ = item.name.partition("/")
            if slash and unsafe(folder) is None:
                found[folder] = found.get(folder, 0) + item.size
        return found

    def stream(self, name: str) -> Store:
        """Where the rows of a stream lie that somebody subscribed to."""
        return self.store.child(_folder(name))

    def pipeline(self, name: str) -> Store:
        """Where a pipeline keeps its manifests and its state."""
        return self.store.child(_PIPELINES).child(_folder(name))

    def pipelines(self) -> list[str]:
        """The pipelines that have manifests."""
        items = self.store.child(_PIPELINES).list()
        return sorted({item.name.partition("/")[0] for item in items})

    @property
    def orders(self) -> Store:
        """Where a driver speaks to its tasks."""
        return self.store.child(_ORDERS)


def _folder(name: str) -> str:
    """The folder of a name, which never leads out of the data directory."""
    assert unsafe(name) is None, f"{name!r}: {unsafe(name)}"
    return name.lower()
