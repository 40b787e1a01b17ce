"""The few things a disk is asked to do where it matters whether power may be lost."""

from __future__ import annotations

import fcntl
import os

# On macOS fsync only hands the bytes to the drive; this one waits until they are kept.
_FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)


class Disk:
    """The disk as it is; tests put another one in its place (`use`)."""

    def __init__(self) -> None:
        # Folders that are known to survive a loss of power, so that their parents are synced once.
        self.durable: set[str] = set()

    def create(self, path: str) -> int:
        """A new file, open for writing."""
        return os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o666)

    def write(self, handle: int, data: bytes | memoryview) -> None:
        rest = memoryview(data).cast("B")
        while rest:
            rest = rest[os.write(handle, rest) :]

    def sync(self, handle: int) -> None:
        if _FULL_SYNC is not None:
            fcntl.fcntl(handle, _FULL_SYNC)
        else:
            os.fsync(handle)

    def close(self, handle: int) -> None:
        os.close(handle)

    def link(self, source: str, goal: str) -> None:
        """A second name; fails if the goal is there."""
        os.link(source, goal)

    def rename(self, source: str, goal: str) -> None:
        """Another name, in one step; replaces the goal."""
        os.replace(source, goal)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def make_folder(self, path: str) -> None:
        os.mkdir(path)

    def remove_folder(self, path: str) -> None:
        """Fails if there is something in it."""
        os.rmdir(path)

    def sync_file(self, path: str) -> None:
        """Make a file durable that was written by somebody else."""
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.sync(handle)
        finally:
            os.close(handle)

    def sync_folder(self, path: str) -> None:
        """Make the names in a folder durable."""
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


_disk = Disk()


def current() -> Disk:
    """The disk of this process."""
    return _disk


def use(disk: Disk) -> Disk:
    """Put another disk in place, and return the one before."""
    global _disk
    before, _disk = _disk, disk
    return before
