"""One process at a time on a data directory: a lock of the disk, or a lease on an object store."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Protocol

from tidegate.catalog.catalog import LOCK
from tidegate.errors import DataDirectoryError
from tidegate.storage import AlreadyThere, NotThere, StorageError, Store

LEASES = "_lock"
_BEAT_SECONDS = 5.0
# One that stands still for so long has no holder any more.
_PATIENCE_SECONDS = 20.0


class Lock(Protocol):
    """Taken by one process; refused to others."""

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
        except AlreadyThere:
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
        except (NotThere, ValueError):
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
