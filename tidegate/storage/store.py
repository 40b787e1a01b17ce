"""What a store is: a folder on a disk, or the part of a bucket below a prefix."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, TypeAlias

from tidegate.storage.failure import AlreadyThere, NotThere

if TYPE_CHECKING:
    import pyarrow as pa


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
