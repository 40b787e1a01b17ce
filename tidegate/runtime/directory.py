"""The data directory: its lock, its format, and the folders of pipelines, streams and sources."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import IO, Any, Protocol

from tidegate.catalog.catalog import LOCK, SPARK_LOG, name_problem
from tidegate.catalog.objects import Declared
from tidegate.errors import CatalogError, DataDirectoryError, Location, TidegateError
from tidegate.storage import (
    AlreadyExists,
    NotFound,
    StorageError,
    Store,
    open_store,
    require_conditional_writes,
    uri,
)

# ---- Locks: one process per data directory

LEASES = "_lock"
_HEARTBEAT_SECONDS = 5.0
# A lease without a heartbeat for this long has expired.
_EXPIRY_SECONDS = 20.0


class Lock(Protocol):
    """The exclusive right of one process to use a data directory."""

    def acquire(self) -> None:
        """Raise if another process has the lock."""

    def release(self) -> None: ...

    def require_held(self) -> None:
        """Raise if another process has taken over the lock."""


class FileLock:
    """A lock on a file of a local disk. The system releases it when the process ends."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file: IO[str] | None = None

    def acquire(self) -> None:
        file = (self.folder / LOCK).open("a+", encoding="utf-8")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            file.close()
            raise _in_use_error(str(self.folder), f"process {holder}") from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        self._file = file

    def release(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def require_held(self) -> None:
        """Do nothing: the lock cannot be taken from a living process."""


class Lease:
    """A lock in an object store: a numbered object that its holder rewrites as a heartbeat.

    A process that finds an expired lease creates the object with the next number. If several
    processes try, one succeeds. A zombie driver, whose lease was taken over, finds the newer lease
    before it publishes an epoch. Commits need no check, because only one process can create a
    manifest.
    """

    def __init__(
        self,
        store: Store,
        heartbeat_s: float = _HEARTBEAT_SECONDS,
        expiry_s: float = _EXPIRY_SECONDS,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.store = store.child(LEASES)
        self.directory_uri = store.uri
        self.heartbeat_s, self.expiry_s = heartbeat_s, expiry_s
        self._sleep = sleep
        self._number = 0
        self._heartbeats = 0
        self._released = threading.Event()
        self._thread: threading.Thread | None = None

    def acquire(self) -> None:
        number, lease = self._newest()
        if lease is not None:
            self._wait_for_expiry(number, lease)
        self._number = number + 1
        try:
            self.store.put_new(_lease_name(self._number), self._content())
        except AlreadyExists:
            holder = "a process that has just started"
            raise _in_use_error(self.directory_uri, holder) from None
        self.store.delete([_lease_name(number)])
        self._released.clear()
        self._thread = threading.Thread(target=self._renew, name="tidegate lease", daemon=True)
        self._thread.start()

    def release(self) -> None:
        if self._thread is None:
            return
        self._released.set()
        self._thread.join()
        self._thread = None
        with suppress(StorageError):
            if not self._is_lost():
                self.store.put(_lease_name(self._number), self._content(released=True))

    def require_held(self) -> None:
        if self._is_lost():
            raise DataDirectoryError(
                "TG-602",
                f"another process has taken over the data directory {self.directory_uri}: this "
                f"process did not renew its lease for {self.expiry_s:.0f} s",
                hint="let the other process run, or stop it and restart this one. No data was "
                "lost.",
            )

    def _is_lost(self) -> bool:
        successor, own = _lease_name(self._number + 1), _lease_name(self._number)
        return self.store.exists(successor) or not self.store.exists(own)

    def _renew(self) -> None:
        while not self._released.wait(self.heartbeat_s):
            # If the store is unavailable, the next heartbeat tries again.
            with suppress(StorageError):
                if self._is_lost():
                    return
                self._heartbeats += 1
                self.store.put(_lease_name(self._number), self._content())

    def _newest(self) -> tuple[int, dict[str, Any] | None]:
        """Return the number of the newest lease, and its content unless it was released."""
        numbers = [int(file.name.removesuffix(".json")) for file in self.store.list()]
        if not numbers:
            return 0, None
        number = max(numbers)
        try:
            lease = json.loads(self.store.get(_lease_name(number)))
        except (NotFound, ValueError):
            return number, None
        return number, None if lease.get("released") else lease

    def _wait_for_expiry(self, number: int, lease: dict[str, Any]) -> None:
        """Return when the lease was released or has expired; raise if its holder is alive."""
        if _holder_has_ended(lease):
            return
        waited = 0.0
        while waited < self.expiry_s and lease["process"] != [_machine(), os.getpid()]:
            self._sleep(self.heartbeat_s / 5)
            waited += self.heartbeat_s / 5
            newest = self._newest()
            if newest[1] is None:
                return
            if newest != (number, lease):
                break
        else:
            if waited >= self.expiry_s:
                return
        holder = f"process {lease['process'][1]} on {lease.get('host')}"
        raise _in_use_error(self.directory_uri, holder)

    def _content(self, released: bool = False) -> bytes:
        content = {
            "process": [_machine(), os.getpid()],
            "host": socket.gethostname(),
            "heartbeat": self._heartbeats,
            "released": released,
        }
        return json.dumps(content).encode()


def _lease_name(number: int) -> str:
    return f"{number:012d}.json"


def _machine() -> str:
    """Identify this machine since its last boot, and the container; "" if that is impossible."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def _holder_has_ended(lease: dict[str, Any]) -> bool:
    """Return whether the holder was a process of this machine that has ended."""
    machine, process = lease["process"]
    if not machine or machine != _machine():
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def _in_use_error(directory: str, holder: str) -> DataDirectoryError:
    return DataDirectoryError(
        "TG-602",
        f"the data directory {directory} is in use by {holder}",
        hint="stop that process, or choose another directory with --data DIR.",
    )


# ---- The directory

# The layout of the data directory. A directory of another format is rejected.
FORMAT = 4
_FORMAT_FILE = "_format"
_PIPELINES, _SOURCES, _EPOCH_SPECS = "_pipelines", "_sources", "_epoch_specs"
_CONTROL_FILES = (LOCK, SPARK_LOG, f"{LEASES}/")
_MAX_SUGGESTIONS = 3


class DataDirectory:
    """All files of Tidegate, on a local disk or in an object store. It is locked while open."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        store = open_store(uri(path))
        self.store = open_store(uri(store.local_path().resolve())) if store.local else store
        self._lock: Lock | None = None

    def __str__(self) -> str:
        return str(self.path) if self.store.local else self.store.uri

    @property
    def path(self) -> Path:
        """The path on this machine, for local directories only."""
        return self.store.local_path()

    def open(self, skip_format_check: bool = False) -> None:
        """Create it if needed and acquire the lock; `skip_format_check`: accept any format."""
        lock = self._acquire_lock()
        try:
            if not skip_format_check:
                self._require_format()
            # Epoch specs of an earlier driver are obsolete.
            self.store.delete_all(_EPOCH_SPECS)
        except BaseException:
            lock.release()
            raise
        self._lock = lock

    def _acquire_lock(self) -> Lock:
        lock: Lock = FileLock(self.path) if self.store.local else Lease(self.store)
        try:
            if self.store.local:
                self.path.mkdir(parents=True, exist_ok=True)
            self._require_data_directory()
            lock.acquire()
        except OSError as error:
            raise DataDirectoryError(
                "TG-601",
                f"the data directory {self} cannot be used: {error.strerror or error}",
                hint="choose a directory that you can write to, for example with --data DIR.",
            ) from None
        return lock

    @property
    def is_open(self) -> bool:
        return self._lock is not None

    def require_lock(self) -> None:
        """Raise if another process has taken over the lock."""
        if self._lock is not None:
            self._lock.require_held()

    @property
    def is_initialized(self) -> bool:
        """Whether it is a data directory, that is, whether it was ever opened."""
        return self.store.exists(self.marker_file)

    @property
    def marker_file(self) -> str:
        """The file that every data directory has."""
        return LOCK if self.store.local else _FORMAT_FILE

    def _require_data_directory(self) -> None:
        """Reject folders with other files, because --fresh would delete these files."""
        if self.is_initialized or not self.has_files():
            return
        raise DataDirectoryError(
            "TG-601",
            f"{self} is not empty and not a data directory of Tidegate",
            hint=self.nearby_directories_hint()
            or "choose a directory that is empty or does not exist yet.",
        )

    def nearby_directories_hint(self) -> str | None:
        """Return a hint that names data directories inside this folder, if there are any."""
        if not self.store.local or not self.path.is_dir():
            return None
        locks = sorted(self.path.glob(f"*/{LOCK}"))[:_MAX_SUGGESTIONS]
        names = " or ".join(str(lock.parent) for lock in locks)
        return f"did you mean {names}?" if names else None

    def has_files(self) -> bool:
        if self.store.local:
            return any(self.path.iterdir())
        return any(not file.name.startswith(_CONTROL_FILES) for file in self.store.list())

    def clear(self) -> None:
        """Delete everything except the lease of this process."""
        names = [file.name for file in self.store.list()]
        self.store.delete(name for name in names if not name.startswith(f"{LEASES}/"))

    def _require_format(self) -> None:
        """Reject a directory of another format; write the format into a new one."""
        try:
            version = self.store.get(_FORMAT_FILE).decode().strip()
        except NotFound:
            version = "" if self._has_data() else str(FORMAT)
            if not self.store.local and version == str(FORMAT):
                require_conditional_writes(self.store)
        if version != str(FORMAT):
            stored_format = f"the format {version}" if version else "an earlier format"
            raise DataDirectoryError(
                "TG-601",
                f"the data directory {self} has {stored_format}, and this version of Tidegate "
                f"reads {FORMAT}",
                hint="choose another directory with --data DIR. All streams then start from the "
                "beginning.",
            )
        self.store.put(_FORMAT_FILE, f"{FORMAT}\n".encode())

    def _has_data(self) -> bool:
        if self.store.local:
            return bool({entry.name for entry in self.path.iterdir()} - {LOCK, SPARK_LOG})
        return self.has_files()

    def close(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    @cached_property
    def log_file(self) -> Path:
        """The file for Spark's log; a temporary file if the directory is in an object store."""
        if self.store.local:
            return self.path / SPARK_LOG
        handle, name = tempfile.mkstemp(prefix="tidegate-spark-", suffix=".log")
        os.close(handle)
        return Path(name)

    def pipeline(self, name: str) -> Store:
        """Return the folder with the manifests and the state of a pipeline."""
        return self.store.child(_PIPELINES).child(_folder(name))

    def pipeline_names(self) -> list[str]:
        """Return the pipelines that have manifests."""
        files = self.store.child(_PIPELINES).list()
        return sorted({file.name.partition("/")[0] for file in files})

    def source(self, name: str) -> Store:
        """Return the folder with rows of a source, such as rows inserted into a memory source."""
        return self.store.child(_SOURCES).child(_folder(name))

    def remove_source(self, name: str) -> None:
        self.store.child(_SOURCES).delete_all(_folder(name))

    def stream(self, name: str) -> Store:
        """Return the folder with stored rows of a stream, for subscribers and views."""
        return self.store.child(_folder(name))

    def remove_stream(self, name: str) -> None:
        self.store.delete_all(_folder(name))

    def stream_sizes(self) -> dict[str, int]:
        """Return the streams with stored rows, and the sizes of these rows."""
        sizes: dict[str, int] = {}
        for file in self.store.list():
            folder, slash, _ = file.name.partition("/")
            if slash and name_problem(folder) is None:
                sizes[folder] = sizes.get(folder, 0) + file.size
        return sizes

    @property
    def epoch_specs(self) -> Store:
        """The folder in which a driver writes the epoch specs for its tasks."""
        return self.store.child(_EPOCH_SPECS)


def _folder(name: str) -> str:
    """Return the folder of a name; reject names that could leave the data directory."""
    assert name_problem(name) is None, f"{name!r}: {name_problem(name)}"
    return name.lower()


# ---- Clusters, whose tasks cannot read paths on the disk of the driver


_HINT = (
    "use a URI that all machines can access, such as s3://bucket/folder. If the path is a network "
    "file system that is mounted on all machines, SET shared_disk = true;"
)


def is_cluster(master: str | None) -> bool:
    """Return whether tasks run on other machines than the driver."""
    return master is not None and not master.startswith("local")


def unshared_directory(data: str) -> TidegateError | None:
    """Return the error for a data directory that tasks on other machines cannot access."""
    if not data.startswith("file:"):
        return None
    return DataDirectoryError(
        "TG-601",
        f"the data directory {data} is on the disk of one machine, but tasks of a cluster run on "
        "others",
        hint=_HINT,
    )


def unshared_paths(declared: Iterable[Declared]) -> list[TidegateError]:
    """Return errors for sources and sinks with a path that only the driver can access."""
    errors: list[TidegateError] = []
    for item in declared:
        path = item.options.get("path")
        if not isinstance(path, str) or not uri(path).startswith("file:"):
            continue
        option = next(o for o in item.statement.options if o.name.lower() == "path")
        span = option.value_span
        errors.append(
            CatalogError(
                "TG-207",
                f"the path of {item.name} is on the disk of one machine, but tasks of a cluster "
                "run on others",
                location=Location(item.script.text, span.start, span.end, item.script.file),
                hint=_HINT,
            )
        )
    return errors
