"""A cache of downloaded objects: files in a folder of the user, mapped into memory.

All processes of a user on this machine share the folder. File names contain the version of the
object. The least recently used files are removed when the cache exceeds its size.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from tidegate.storage.local import map_file
from tidegate.storage.store import StorageError, translate_write_errors

if TYPE_CHECKING:
    import pyarrow as pa

MAX_CACHE_BYTES = 8 << 30
# Another process may evict a file just before it is mapped.
_MAX_ATTEMPTS = 5

Download = Callable[[Callable[[memoryview], object]], None]


def mapped_object(uri: str, version: str, size: int, download: Download) -> pa.Buffer:
    """Return an object as a memory map, downloading it if this version is not in the cache.

    `download` is called with a function that writes bytes to the cache.
    """
    name = hashlib.sha256(f"{uri}\n{version}\n{size}".encode("utf-8", "surrogateescape"))
    path = f"{_folder()}/{name.hexdigest()}"
    for _ in range(_MAX_ATTEMPTS):
        with suppress(FileNotFoundError):
            if os.stat(path).st_size == size:
                # Update only the access time: the modification time identifies the memory map.
                os.utime(path, ns=(time.time_ns(), os.stat(path).st_mtime_ns))
                return map_file(path)
        _fetch(uri, path, size, download)
    raise StorageError(uri, f"cannot be cached in {path}: other processes keep removing the file")


def _folder() -> str:
    """Return the cache folder, which only this user can read and write."""
    path = f"{tempfile.gettempdir()}/tidegate-{os.geteuid()}"
    with translate_write_errors(path), suppress(FileExistsError):
        os.mkdir(path, 0o700)
    status = os.lstat(path)
    private = stat.S_ISDIR(status.st_mode) and not status.st_mode & 0o077
    if not private or status.st_uid != os.geteuid():
        hint = "remove it, or set TMPDIR to a folder that only you can access."
        raise StorageError(path, "is not a private folder of this user", hint=hint)
    return path


def _fetch(uri: str, path: str, size: int, download: Download) -> None:
    """Download an object to a temporary file, then rename it."""
    folder = os.path.dirname(path)
    _evict(folder, size)
    with translate_write_errors(folder):
        handle, temporary = tempfile.mkstemp(dir=folder)
        try:
            with os.fdopen(handle, "wb") as file:
                download(file.write)
                file.flush()
                # The cache survives a power failure, so its files must be complete, too.
                os.fsync(file.fileno())
                received = file.tell()
            if received != size:
                reason = f"has {size} bytes, but {received} were received"
                raise StorageError(uri, reason, retryable=True)
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise


def _evict(folder: str, size: int) -> None:
    """Remove the least recently used files until an object of this size fits."""
    files = []
    for entry in os.scandir(folder):
        with suppress(FileNotFoundError):
            status = entry.stat(follow_symlinks=False)
            files.append((status.st_atime_ns, status.st_size, entry.path))
    total = sum(file[1] for file in files) + size
    for _, file_size, path in sorted(files):
        if total <= MAX_CACHE_BYTES:
            return
        with suppress(FileNotFoundError):
            os.unlink(path)
        total -= file_size
