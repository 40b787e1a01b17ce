"""The data directory: one process at a time, a folder per pipeline, a folder per memory source."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import IO

from tidegate.errors import DataDirectoryError
from tidegate.names import LOCK, SPARK_LOG, unsafe


class DataDirectory:
    """Locked while open; everything Tidegate keeps lies below it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).expanduser().resolve()
        self._lock: IO[str] | None = None

    def open(self) -> None:
        """Create it if needed and take the lock."""
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
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        self._lock = lock

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

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    @property
    def log_file(self) -> Path:
        return self.path / SPARK_LOG

    def source(self, name: str) -> Path:
        """Where a source keeps rows of its own."""
        return self.path / "_sources" / _folder(name)

    def pipeline(self, name: str) -> Path:
        return self.path / _folder(name)


def _folder(name: str) -> str:
    """The folder of a name, which never leads out of the data directory."""
    assert unsafe(name) is None, f"{name!r}: {unsafe(name)}"
    return name.lower()
