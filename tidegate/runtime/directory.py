"""The data directory: one process at a time, a folder per pipeline, a folder per memory source."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import IO, Any, Protocol

from tidegate.catalog.catalog import LOCK, SPARK_LOG, unsafe
from tidegate.errors import DataDirectoryError, TidegateError
from tidegate.storage import (
    AlreadyExists,
    NotFound,
    StorageError,
    Store,
    open_store,
    require_conditional_writes,
    uri,
)

# ---- One process at a time on a data directory: a lock of the disk, or a lease on an object store.

LEASES = "_lock"
_BEAT_SECONDS = 5.0
# One that stands still for so long has no holder any more.
_PATIENCE_SECONDS = 20.0


class Lock(Protocol):
    """Taken by one process; rejected to others."""

    def take(self) -> None: ...

    def release(self) -> None: ...

    def require_held(self) -> None:
        """Raise if another process has taken it over."""


class DiskLock:
    """The lock of a folder; the system lets go of it when its process ends, however it ends."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file: IO[str] | None = None

    def take(self) -> None:
        lock = (self.folder / LOCK).open("a+", encoding="utf-8")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.seek(0)
            holder = lock.read().strip() or "unknown"
            lock.close()
            raise _in_use(str(self.folder), f"process {holder}") from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        self._file = lock

    def release(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def require_held(self) -> None:
        """Nobody can take it from a process that lives."""


class Lease:
    """A numbered object that its holder writes anew every few seconds.

    Who finds one that stands still creates the next number, which of several processes one can do.
    A holder that was only slow learns of that before it makes an epoch visible.
    """

    def __init__(
        self,
        store: Store,
        beat: float = _BEAT_SECONDS,
        patience: float = _PATIENCE_SECONDS,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.store = store.child(LEASES)
        self.shown = store.uri
        self.beat, self.patience = beat, patience
        self._sleep = sleep
        self._number = 0
        self._beats = 0
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def take(self) -> None:
        number, held = self._newest()
        if held is not None:
            self._wait_until_abandoned(number, held)
        self._number = number + 1
        try:
            self.store.put_new(_name(self._number), self._content())
        except AlreadyExists:
            raise _in_use(self.shown, "a process that has just started") from None
        self.store.delete([_name(number)])
        self._over.clear()
        self._thread = threading.Thread(target=self._keep, name="tidegate lease", daemon=True)
        self._thread.start()

    def release(self) -> None:
        if self._thread is None:
            return
        self._over.set()
        self._thread.join()
        self._thread = None
        with suppress(StorageError):
            if not self._is_lost():
                self.store.put(_name(self._number), self._content(released=True))

    def require_held(self) -> None:
        if self._is_lost():
            raise DataDirectoryError(
                "TG-602",
                f"another process has taken over the data directory {self.shown}: this one did not "
                f"say for {self.patience:.0f} s that it lives",
                hint="let the other one run, or stop it and start again: nothing is lost.",
            )

    def _is_lost(self) -> bool:
        return self.store.exists(_name(self._number + 1)) or not self.store.exists(
            _name(self._number)
        )

    def _keep(self) -> None:
        while not self._over.wait(self.beat):
            # A store that is away now is asked again by the next beat.
            with suppress(StorageError):
                if self._is_lost():
                    return
                self._beats += 1
                self.store.put(_name(self._number), self._content())

    def _newest(self) -> tuple[int, dict[str, Any] | None]:
        """The last lease there was, and what it says if it is held."""
        numbers = [int(item.name.removesuffix(".json")) for item in self.store.list()]
        if not numbers:
            return 0, None
        number = max(numbers)
        try:
            found = json.loads(self.store.get(_name(number)))
        except (NotFound, ValueError):
            return number, None
        return number, None if found.get("released") else found

    def _wait_until_abandoned(self, number: int, held: dict[str, Any]) -> None:
        if _has_ended(held):
            return
        waited = 0.0
        while waited < self.patience and held["process"] != [_machine(), os.getpid()]:
            self._sleep(self.beat / 5)
            waited += self.beat / 5
            now = self._newest()
            if now[1] is None:
                return
            if now != (number, held):
                break
        else:
            if waited >= self.patience:
                return
        raise _in_use(self.shown, f"process {held['process'][1]} on {held.get('host')}")

    def _content(self, released: bool = False) -> bytes:
        about = {
            "process": [_machine(), os.getpid()],
            "host": socket.gethostname(),
            "beat": self._beats,
            "released": released,
        }
        return json.dumps(about).encode()


def _name(number: int) -> str:
    return f"{number:012d}.json"


def _machine() -> str:
    """What tells this machine, since its start, from others; "" if nothing does."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def _has_ended(held: dict[str, Any]) -> bool:
    """Whether the holder was a process of this machine that is no more."""
    machine, process = held["process"]
    if not machine or machine != _machine():
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def _in_use(shown: str, holder: str) -> DataDirectoryError:
    return DataDirectoryError(
        "TG-602",
        f"the data directory {shown} is in use by {holder}",
        hint="stop that process, or choose another directory with --data DIR.",
    )


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
        except NotFound:
            found = "of an earlier version" if self._is_used() else str(FORMAT)
            if not self.store.local and found == str(FORMAT):
                require_conditional_writes(self.store)
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
    def epoch_specs(self) -> Store:
        """Where a driver speaks to its tasks."""
        return self.store.child(_ORDERS)


def _folder(name: str) -> str:
    """The folder of a name, which never leads out of the data directory."""
    assert unsafe(name) is None, f"{name!r}: {unsafe(name)}"
    return name.lower()
