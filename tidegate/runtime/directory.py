"""The data directory: one process at a time, a folder per pipeline, a folder per memory source."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import IO

from tidegate.errors import DataDirectoryError, TidegateError
from tidegate.names import LOCK, SPARK_LOG, unsafe
from tidegate.storage import Store, open_store, uri

_PIPELINES, _ORDERS = "_pipelines", "_orders"
# How everything below a data directory is laid out, and the file that says so.
FORMAT = 3
_FORMAT_FILE = "_format"


class DataDirectory:
    """Locked while open; everything Tidegate keeps lies below it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).expanduser().resolve()
        self._lock: IO[str] | None = None

    def open(self, any_format: bool = False) -> None:
        """Create it if needed and take the lock; `any_format`: whoever wrote it."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._require_ours()
            lock = (self.path / LOCK).open("a+", encoding="utf-8")
        except OSError as error:
            raise DataDirectoryError(
                "TG-601",
                f"the data directory {self.path} cannot be used: {error.strerror or error}",
                hint="choose a directory you may write to, for example with --data DIR.",
            ) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.seek(0)
            holder = lock.read().strip() or "unknown"
            lock.close()
            raise DataDirectoryError(
                "TG-602",
                f"the data directory {self.path} is in use by process {holder}",
                hint="stop that process, or choose another directory with --data DIR.",
            ) from None
        try:
            if not any_format:
                self._require_format()
        except TidegateError:
            lock.close()
            raise
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        self._lock = lock
        # A driver that is gone speaks to nobody any more.
        self.store.delete_all(_ORDERS)

    @property
    def is_open(self) -> bool:
        return self._lock is not None

    def _require_ours(self) -> None:
        """Other people's files are left alone: --fresh would remove them one day."""
        if any(self.path.iterdir()) and not (self.path / LOCK).exists():
            raise DataDirectoryError(
                "TG-601",
                f"{self.path} is not empty and not a data directory of Tidegate",
                hint="choose a directory that is empty or does not exist yet.",
            )

    def _require_format(self) -> None:
        """What another version wrote is not read, and not written over."""
        marker = self.path / _FORMAT_FILE
        if marker.exists():
            found = marker.read_text("utf-8").strip()
        else:
            used = {item.name for item in self.path.iterdir()} - {LOCK, SPARK_LOG}
            found = "of an earlier version" if used else str(FORMAT)
        if found != str(FORMAT):
            raise DataDirectoryError(
                "TG-601",
                f"the format of the data directory {self.path} is {found}, and this version reads "
                f"{FORMAT}",
                hint="choose another directory with --data DIR; all streams then start from the "
                "beginning.",
            )
        marker.write_text(f"{FORMAT}\n", "utf-8")

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    @property
    def log_file(self) -> Path:
        return self.path / SPARK_LOG

    @property
    def store(self) -> Store:
        return open_store(uri(self.path))

    def source(self, name: str) -> Store:
        """Where a source keeps rows of its own."""
        return self.store.child("_sources").child(_folder(name))

    def remove_source(self, name: str) -> None:
        self.store.child("_sources").delete_all(_folder(name))

    def remove_stream(self, name: str) -> None:
        self.store.delete_all(_folder(name))

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
