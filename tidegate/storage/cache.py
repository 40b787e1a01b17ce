"""Objects of object stores, fetched once into a folder of the user's and mapped from there.

The folder is shared by all processes of a user on this machine. It is only a cache: a file in it
has the version of the object in its name, and the oldest ones leave when it grows too big.
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

from tidegate.storage.local import mapped_file
from tidegate.storage.store import StorageError, changing

if TYPE_CHECKING:
    import pyarrow as pa

KEPT_BYTES = 8 << 30
# Another process may remove a file as the oldest one just before it is mapped.
_TRIES = 5

Download = Callable[[Callable[[memoryview], object]], None]


def cached(uri: str, version: str, size: int, download: Download) -> pa.Buffer:
    """The object as a mapped buffer; `download` writes its bytes where it is told to."""
    name = hashlib.sha256(f"{uri}\n{version}\n{size}".encode("utf-8", "surrogateescape"))
    path = f"{_folder()}/{name.hexdigest()}"
    for _ in range(_TRIES):
        with suppress(FileNotFoundError):
            if os.stat(path).st_size == size:
                _touch(path)
                return mapped_file(path)
        _fetch(uri, path, size, download)
    raise StorageError(uri, f"cannot be kept in {path}: it is removed again and again")


def _folder() -> str:
    """The folder of this user, which nobody else can read or prepare."""
    path = f"{tempfile.gettempdir()}/tidegate-{os.geteuid()}"
    with changing(path), suppress(FileExistsError):
        os.mkdir(path, 0o700)
    found = os.lstat(path)
    private = stat.S_ISDIR(found.st_mode) and not found.st_mode & 0o077
    if not private or found.st_uid != os.geteuid():
        hint = "remove it, or set TMPDIR to a folder of your own."
        raise StorageError(path, "is not a folder of this user alone", hint=hint)
    return path


def _fetch(uri: str, path: str, size: int, download: Download) -> None:
    """Get the object aside, then give it its name."""
    folder = os.path.dirname(path)
    _make_room(folder, size)
    with changing(folder):
        handle, aside = tempfile.mkstemp(dir=folder)
        try:
            with os.fdopen(handle, "wb") as file:
                download(file.write)
                file.flush()
                # A cache outlives a loss of power, so what it names must be whole as well.
                os.fsync(file.fileno())
                got = file.tell()
            if got != size:
                raise StorageError(uri, f"has {size} bytes, but {got} came", retryable=True)
            os.replace(aside, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(aside)
            raise


def _make_room(folder: str, size: int) -> None:
    """Remove what was not used for longest, until the new one fits."""
    files = []
    for entry in os.scandir(folder):
        with suppress(FileNotFoundError):
            found = entry.stat(follow_symlinks=False)
            files.append((found.st_atime_ns, found.st_size, entry.path))
    total = sum(file[1] for file in files) + size
    for _, bytes_there, path in sorted(files):
        if total <= KEPT_BYTES:
            return
        with suppress(FileNotFoundError):
            os.unlink(path)
        total -= bytes_there


def _touch(path: str) -> None:
    """Note that it is used. The time of its change stays, by which its map is known."""
    os.utime(path, ns=(time.time_ns(), os.stat(path).st_mtime_ns))
