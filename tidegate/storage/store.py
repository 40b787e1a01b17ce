"""The contract of a store: a folder on a disk, or the objects of a bucket below a prefix."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Protocol, TypeAlias

from tidegate.errors import TidegateError
from tidegate.storage import uris

if TYPE_CHECKING:
    import pyarrow as pa


# ---- Errors

# Transient errors: a server that is down or busy, too many open files.
_TRANSIENT = {
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
    errno.ENOSPC: "free space on this disk, or use another location.",
    errno.EDQUOT: "free space on this disk, or use another location.",
    errno.EROFS: "this location is read-only; choose a writable one.",
    errno.EACCES: "grant the user that runs this process read and write permission.",
    errno.EPERM: "grant the user that runs this process read and write permission.",
    errno.EXDEV: "both locations must be on the same file system.",
}


class StorageError(TidegateError):
    """A store cannot be read or written; `retryable` is True if a retry may succeed."""

    def __init__(
        self, uri: str, reason: str, *, retryable: bool = False, hint: str | None = None
    ) -> None:
        code = "TG-613" if retryable else "TG-608"
        super().__init__(code, f"{uri}: {reason}", hint=hint)
        self.uri = uri
        self.reason = reason
        self.retryable = retryable


class AlreadyExists(StorageError):
    """A file that was to be created exists."""

    def __init__(self, uri: str) -> None:
        super().__init__(uri, "already exists")


class NotFound(StorageError):
    """A file does not exist."""

    def __init__(self, uri: str) -> None:
        super().__init__(uri, "does not exist")


def _from_os_error(error: OSError, uri: str, action: str) -> StorageError:
    number = error.errno or 0
    reason = f"{action}: {error.strerror or error}"
    return StorageError(uri, reason, retryable=number in _TRANSIENT, hint=_HINTS.get(number))


@contextmanager
def translate_read_errors(uri: str) -> Iterator[None]:
    """Raise errors of the operating system as `StorageError`; a folder is `NotFound`."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        raise NotFound(uri) from None
    except OSError as error:
        raise _from_os_error(error, uri, "cannot be read") from error


@contextmanager
def translate_write_errors(uri: str, action: str = "cannot be written") -> Iterator[None]:
    """Raise errors of the operating system as `StorageError`; `action` is what failed."""
    try:
        yield
    except OSError as error:
        raise _from_os_error(error, uri, action) from error


# ---- The contract


@dataclass(frozen=True, slots=True)
class StoredFile:
    """An entry of a listing; the name is relative to the store."""

    name: str
    size: int
    modified_us: int


# `Store` has a method `list`, which hides the type in annotations of the class body.
StoredFiles: TypeAlias = list[StoredFile]


class Writer(Protocol):
    """A file that is being written. It becomes visible when it is closed, complete and durable.

    Leaving the `with` block closes the writer; leaving it by an exception aborts it. The interface
    is the part of a Python file that Arrow's writers need.
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
    """Immutable files below one URI.

    Names are relative, with `/` as the separator, and without empty, `.` or `..` parts. A folder
    name may be empty, which means the store itself. All methods raise `StorageError`.
    """

    @property
    def uri(self) -> str: ...

    @property
    def local(self) -> bool: ...

    def child(self, name: str) -> Store:
        """Return the store of a folder of this store."""

    def put_new(self, name: str, data: bytes) -> None:
        """Create a file, complete and durable, or raise `AlreadyExists`.

        If several processes create the same name, exactly one succeeds. After any other error the
        file may or may not have been created. A caller that retries and gets `AlreadyExists` must
        read the file to find out who created it.
        """

    def put(self, name: str, data: bytes, durable: bool = True) -> None:
        """Create or replace a file. Readers see the old or the new content, never a mixture.

        A file that is not `durable` may be lost in a power failure.
        """

    def get(self, name: str) -> bytes:
        """Return the content of a file, or raise `NotFound`."""

    def get_range(self, name: str, start: int, length: int) -> bytes:
        """Return `length` bytes from `start`, or fewer at the end of the file."""

    def exists(self, name: str) -> bool:
        """Return whether a file of this name exists. Folders do not count."""

    def size(self, name: str) -> int:
        """Return the size of a file in bytes, or raise `NotFound`."""

    def list(self, folder: str = "") -> StoredFiles:
        """List the files below a folder, at any depth, by name; a missing folder is empty."""

    def list_unfinished(self, folder: str = "") -> StoredFiles:
        """List temporary files of writers that are still open or died; `delete` removes them."""

    def delete(self, names: Iterable[str]) -> None:
        """Delete files; missing ones are ignored. A power failure may bring deleted files back."""

    def delete_all(self, folder: str) -> None:
        """Delete everything below a folder, including unfinished files."""

    def move_new(self, source: str, target: str) -> None:
        """Rename a file to a name that does not exist yet. Idempotent.

        If the target exists with the same size, the move has been done before and the source is
        removed if it is still there. A target of another size raises `AlreadyExists`. The move is
        durable after `sync` of the target's folder.
        """

    def sync(self, folders: Iterable[str]) -> None:
        """Make the files durable that were moved into these folders."""

    def sync_files(self, names: Iterable[str]) -> None:
        """Make files and their names durable that were not written through this store."""

    def writer(self, name: str) -> Writer:
        """Open a writer for a new file."""

    def map(self, name: str) -> pa.Buffer:
        """Return the content of a file as a memory map; the file must not change afterwards."""

    def local_path(self, name: str = "") -> Path:
        """Return the path on this machine. Only for local stores."""

    def spark_uri(self, name: str = "") -> str:
        """Return the URI in the form that Spark needs."""


def valid_name(name: str) -> str:
    """Return the name of a file, or raise `ValueError` if it could leave the store."""
    if "\0" in name or any(part in ("", ".", "..") for part in name.split("/")):
        raise ValueError(f"not a valid file name: {name!r}")
    return name


def is_moved(store: Store, source: str, target: str) -> bool:
    """Return whether the target of a move exists; if so, remove what is left of the source."""
    target_size, source_size = _size(store, target), _size(store, source)
    if target_size is None:
        return False
    if source_size is not None and source_size != target_size:
        raise AlreadyExists(f"{store.uri}/{target}")
    if source_size is not None:
        store.delete([source])
    return True


def _size(store: Store, name: str) -> int | None:
    try:
        return store.size(name)
    except NotFound:
        return None


# ---- Opening a store

NO_OPTIONS: Mapping[str, str] = MappingProxyType({})


def open_store(uri: str, options: Mapping[str, str] = NO_OPTIONS) -> Store:
    """Return the store at a URI without reading or creating anything.

    The same URI and options return the same object.
    """
    return _cached_store(uris.uri(uri), tuple(sorted(options.items())))


@lru_cache(maxsize=256)
def _cached_store(uri: str, options: tuple[tuple[str, str], ...]) -> Store:
    if uri.startswith("file:"):
        from tidegate.storage.local import LocalStore

        return LocalStore(uri)
    from tidegate.storage.objects import ObjectStore, open_client

    return ObjectStore(uri, open_client(uri, dict(options)))


def require_conditional_writes(store: Store) -> None:
    """Raise `StorageError` unless the store is writable and creates each name only once.

    Some S3-compatible servers ignore the condition of a write and replace the existing object.
    """
    name = f"probe-{os.getpid()}-{os.urandom(8).hex()}"
    store.put_new(name, b"1")
    try:
        store.put_new(name, b"2")
    except AlreadyExists:
        return
    finally:
        store.delete([name])
    raise StorageError(
        store.uri,
        "replaces existing objects (it ignores If-None-Match)",
        hint="use a store that supports conditional writes.",
    )


class RangedFile(io.RawIOBase):
    """A read-only file that fetches only the byte ranges that its reader asks for."""

    def __init__(self, store: Store, name: str, size: int) -> None:
        self._store, self._name, self._size = store, name, size
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        self._position = start + offset
        return self._position

    def read(self, size: int = -1) -> bytes:
        remaining = self._size - self._position
        length = remaining if size < 0 else min(size, remaining)
        data = self._store.get_range(self._name, self._position, length) if length > 0 else b""
        self._position += len(data)
        return data
