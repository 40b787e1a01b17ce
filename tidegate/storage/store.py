"""What a store is: a folder on a disk, or the part of a bucket below a prefix."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, TypeAlias

from tidegate.errors import TidegateError

if TYPE_CHECKING:
    import pyarrow as pa


# ---- What can go wrong with stored bytes: one error that says where, why and whether to try again.

# What passes by itself: a server that is away or busy, too many files open at the moment.
_PASSING = {
    errno.EAGAIN,
    errno.EBUSY,
    errno.ECONNREFUSED,
    errno.ECONNRESET,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
    errno.EMFILE,
    errno.ENETDOWN,
    errno.ENETUNREACH,
    errno.ENFILE,
    errno.ESTALE,
    errno.ETIMEDOUT,
}
_HINTS = {
    errno.ENOSPC: "make room on that disk, or put the data elsewhere.",
    errno.EDQUOT: "make room on that disk, or put the data elsewhere.",
    errno.EROFS: "this place is read-only; choose one that can be written.",
    errno.EACCES: "give the user that runs this the right to read and write there.",
    errno.EPERM: "give the user that runs this the right to read and write there.",
    errno.EXDEV: "both places must be on one file system.",
}


class StorageError(TidegateError):
    """Stored bytes cannot be read or written; `retryable` says whether waiting may help."""

    def __init__(
        self, uri: str, reason: str, *, retryable: bool = False, hint: str | None = None
    ) -> None:
        code = "TG-613" if retryable else "TG-608"
        super().__init__(code, f"{uri}: {reason}", hint=hint)
        self.uri = uri
        self.reason = reason
        self.retryable = retryable


class AlreadyThere(StorageError):
    """Something of that name exists, and was to be created."""

    def __init__(self, uri: str) -> None:
        super().__init__(uri, "is already there")


class NotThere(StorageError):
    """Nothing of that name exists."""

    def __init__(self, uri: str) -> None:
        super().__init__(uri, "is not there")


def of_os_error(error: OSError, uri: str, what: str) -> StorageError:
    """The error of the operating system as ours."""
    number = error.errno or 0
    reason = f"{what}: {error.strerror or error}"
    return StorageError(uri, reason, retryable=number in _PASSING, hint=_HINTS.get(number))


@contextmanager
def reading(uri: str) -> Iterator[None]:
    """Errors while something is read; a folder is not something that can be read."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        raise NotThere(uri) from None
    except OSError as error:
        raise of_os_error(error, uri, "cannot be read") from error


@contextmanager
def changing(uri: str, what: str = "cannot be written") -> Iterator[None]:
    """Errors while something is written, moved or deleted."""
    try:
        yield
    except OSError as error:
        raise of_os_error(error, uri, what) from error


@dataclass(frozen=True, slots=True)
class Item:
    """One stored file."""

    name: str
    size: int
    modified_us: int


# Stores have a method called list, so the type needs another name in them.
Items: TypeAlias = list[Item]


class Writer(Protocol):
    """A file in the making: it has its name, whole and durable, once it is closed, or never.

    Leaving the `with` block closes it, leaving it by an exception aborts it. It is enough of a file
    for Arrow's writers.
    """

    @property
    def closed(self) -> bool: ...

    def write(self, data: bytes | memoryview) -> int: ...
    def tell(self) -> int: ...
    def flush(self) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...
    def __enter__(self) -> Writer: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class Store(Protocol):
    """Named, immutable bytes below one URI.

    Names are relative, with `/` between their parts, and without empty, `.` or `..` parts. The
    name of a folder may be empty: the store itself. What cannot be done raises a `StorageError`.
    """

    @property
    def uri(self) -> str: ...

    @property
    def local(self) -> bool: ...

    def child(self, name: str) -> Store:
        """The store below a folder of this one."""

    def put_new(self, name: str, data: bytes) -> None:
        """Create it, whole and durable, or raise `AlreadyThere`: of many that try, one succeeds.

        After an error that is not `AlreadyThere` nobody knows whether it was created. Whoever
        tries again and then finds it already there has to read it, to see whose it is.
        """

    def put(self, name: str, data: bytes, durable: bool = True) -> None:
        """Create or replace it, whole: readers see the old or the new. What is not `durable` may be
        gone after a loss of power."""

    def get(self, name: str) -> bytes:
        """All of it, or `NotThere`."""

    def get_range(self, name: str, start: int, length: int) -> bytes:
        """A part of it; less than asked for where it ends before."""

    def exists(self, name: str) -> bool:
        """Whether there is something to get; a folder is nothing."""

    def size(self, name: str) -> int:
        """Its bytes, or `NotThere`."""

    def list(self, folder: str = "") -> Items:
        """Everything below a folder, at any depth, by name; nothing if there is no such folder."""

    def asides(self, folder: str = "") -> Items:
        """What was written half, by writers that are at it or that died; `delete` removes them."""

    def delete(self, names: Iterable[str]) -> None:
        """Remove them; those that are gone are fine. A loss of power may bring them back."""

    def delete_all(self, folder: str) -> None:
        """Remove everything below a folder, what was written half included."""

    def move_new(self, source: str, goal: str) -> None:
        """Give a file its final name, any number of times with the same result.

        It is done if the goal is there: what is left of the source is removed. A goal of another
        size is somebody else's, and raises `AlreadyThere`. Durable after `sync` of its folder.
        """

    def sync(self, folders: Iterable[str]) -> None:
        """Make durable what was moved into these folders."""

    def sync_files(self, names: Iterable[str]) -> None:
        """Make files durable that somebody else has written here, with their names."""

    def writer(self, name: str) -> Writer:
        """A writer of a file that must not exist yet."""

    def map(self, name: str) -> pa.Buffer:
        """All of it as a buffer that is not copied; the file must not change any more."""

    def local_path(self, name: str = "") -> Path:
        """Its path on this machine; only local stores have one."""

    def spark_uri(self, name: str = "") -> str:
        """Its URI as Spark has to see it."""


def checked(name: str) -> str:
    """The name of a file, or a mistake of the caller."""
    if "\0" in name or any(part in ("", ".", "..") for part in name.split("/")):
        raise ValueError(f"not a name in a store: {name!r}")
    return name


def is_moved(store: Store, source: str, goal: str) -> bool:
    """Whether the goal of a move is there; then nothing is left of its source."""
    there, left = _size(store, goal), _size(store, source)
    if there is None:
        return False
    if left is not None and left != there:
        raise AlreadyThere(f"{store.uri}/{goal}")
    if left is not None:
        store.delete([source])
    return True


def _size(store: Store, name: str) -> int | None:
    try:
        return store.size(name)
    except NotThere:
        return None


# ---- A stored file that is read in parts: whoever needs its end alone does not fetch the rest.


class RangedFile(io.RawIOBase):
    """Reads by ranges, as its reader asks for them."""

    def __init__(self, store: Store, name: str, size: int) -> None:
        self._store, self._name, self._size = store, name, size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = start + offset
        return self._at

    def read(self, size: int = -1) -> bytes:
        length = self._size - self._at if size < 0 else min(size, self._size - self._at)
        data = self._store.get_range(self._name, self._at, length) if length > 0 else b""
        self._at += len(data)
        return data
