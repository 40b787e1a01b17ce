"""A store on a disk of this machine."""

from __future__ import annotations

import fcntl
import os
import re
import stat
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from tidegate.storage import uris
from tidegate.storage.store import (
    AlreadyThere,
    Item,
    Items,
    NotThere,
    changing,
    checked,
    is_moved,
    reading,
)

if TYPE_CHECKING:
    import pyarrow as pa


# ---- The few things a disk is asked to do where it matters whether power may be lost.

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


# ---- A file in the making on a local disk: written aside, synced, then given its name.

_BUFFER_BYTES = 1 << 20


class LocalWriter:
    """Collects bytes beside their goal; `close` makes them the goal, `abort` forgets them."""

    def __init__(
        self, uri: str, goal: str, aside: tuple[str, int], replace: bool, durable: bool = True
    ) -> None:
        self._uri = uri
        self._goal = goal
        self._aside, self._handle = aside
        self._replace = replace
        self._durable = durable
        self._pending = bytearray()
        self._written = 0
        self._open = True

    @property
    def closed(self) -> bool:
        return not self._open

    def write(self, data: bytes | memoryview) -> int:
        """Take more bytes; small ones are collected first."""
        if not self._open:
            raise ValueError("write to a closed writer")
        view = memoryview(data).cast("B")
        if len(self._pending) + len(view) > _BUFFER_BYTES:
            self.flush()
        if len(view) > _BUFFER_BYTES:
            self._send(view)
        else:
            self._pending += view
        return len(view)

    def tell(self) -> int:
        return self._written + len(self._pending)

    def flush(self) -> None:
        """Hand to the disk what was collected."""
        pending, self._pending = self._pending, bytearray()
        self._send(memoryview(pending))

    def close(self) -> None:
        """Make it durable under its name; closing twice is fine."""
        if not self._open:
            return
        try:
            self.flush()
            with changing(self._uri):
                if self._durable:
                    current().sync(self._handle)
                self._release()
                self._give_name()
                if self._durable:
                    current().sync_folder(os.path.dirname(self._goal))
        except BaseException:
            self.abort()
            raise

    def abort(self) -> None:
        """Leave nothing behind; also after an error, and twice is fine."""
        self._release()
        with suppress(OSError):
            current().unlink(self._aside)

    def __enter__(self) -> LocalWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        elif self._open:
            self.abort()

    def _send(self, data: memoryview) -> None:
        with changing(self._uri):
            current().write(self._handle, data)
        self._written += len(data)

    def _give_name(self) -> None:
        if self._replace:
            current().rename(self._aside, self._goal)
            return
        try:
            current().link(self._aside, self._goal)
        except FileExistsError:
            # A network file system may have linked it, lost its answer and tried again.
            if not os.path.samefile(self._aside, self._goal):
                raise AlreadyThere(self._uri) from None
        current().unlink(self._aside)

    def _release(self) -> None:
        if self._open:
            self._open = False
            with suppress(OSError):
                current().close(self._handle)


# Names of what is written half. Spark does not read what begins with a dot either.
_ASIDE = re.compile(r"\.tidegate-\d+-[0-9a-f]{16}")
# A folder may be removed by somebody, as empty, just before something is put there.
_TRIES = 10

T = TypeVar("T")


@dataclass(frozen=True)
class LocalStore:
    """The files below one folder; it need not exist before something is put there."""

    uri: str
    _root: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_root", uris.path_of(self.uri))

    @property
    def local(self) -> bool:
        return True

    def child(self, name: str) -> LocalStore:
        return LocalStore(uris.of_path(self._path(checked(name))))

    def put_new(self, name: str, data: bytes) -> None:
        with self.writer(name) as writer:
            writer.write(data)

    def put(self, name: str, data: bytes, durable: bool = True) -> None:
        goal, aside = self._path(name), self._aside(name)
        with LocalWriter(self._uri(name), goal, aside, True, durable) as writer:
            writer.write(data)

    def get(self, name: str) -> bytes:
        with reading(self._uri(name)), open(self._path(name), "rb") as file:
            return file.read()

    def get_range(self, name: str, start: int, length: int) -> bytes:
        with reading(self._uri(name)), open(self._path(name), "rb") as file:
            file.seek(start)
            return file.read(length)

    def exists(self, name: str) -> bool:
        try:
            self.size(name)
        except NotThere:
            return False
        return True

    def size(self, name: str) -> int:
        with reading(self._uri(name)):
            found = os.stat(self._path(name))
        if not stat.S_ISREG(found.st_mode):
            raise NotThere(self._uri(name))
        return found.st_size

    def list(self, folder: str = "") -> Items:
        return self._items(folder, lambda name: not _ASIDE.fullmatch(name))

    def asides(self, folder: str = "") -> Items:
        return self._items(folder, lambda name: bool(_ASIDE.fullmatch(name)))

    def delete(self, names: Iterable[str]) -> None:
        folders = set()
        for name in names:
            path = self._path(name)
            with changing(self._uri(name), "cannot be deleted"):
                _gone(current().unlink, path)
            folders.add(os.path.dirname(path))
        for folder in folders:
            self._remove_empty(folder)

    def delete_all(self, folder: str) -> None:
        top = self._folder(folder)
        with changing(self._uri(folder), "cannot be deleted"):
            if folder and os.path.islink(top):
                _remove(top)
            for path, folders, files in os.walk(top, topdown=False, onerror=_unless_gone):
                for name in files:
                    _gone(current().unlink, f"{path}/{name}")
                for name in folders:
                    _remove(f"{path}/{name}")
        self._remove_empty(top)

    def move_new(self, source: str, goal: str) -> None:
        with changing(self._uri(source), f"cannot be moved to {goal}"):
            if not is_moved(self, source, goal):
                move = current().rename
                try:
                    self._in_folder(goal, lambda path: move(self._path(source), path))
                except FileNotFoundError:
                    # Another process was faster, and did the same.
                    if not is_moved(self, source, goal):
                        raise NotThere(self._uri(source)) from None

    def sync(self, folders: Iterable[str]) -> None:
        for folder in sorted(set(folders)):
            path = self._folder(folder)
            with changing(self._uri(folder), "cannot be synced"), suppress(FileNotFoundError):
                current().sync_folder(path)

    def sync_files(self, names: Iterable[str]) -> None:
        names = list(names)
        for name in names:
            with changing(self._uri(name), "cannot be synced"):
                current().sync_file(self._path(name))
        self.sync(name.rpartition("/")[0] for name in names)

    def writer(self, name: str) -> LocalWriter:
        return LocalWriter(self._uri(name), self._path(name), self._aside(name), False)

    def map(self, name: str) -> pa.Buffer:
        with reading(self._uri(name)):
            return mapped_file(self._path(name))

    def local_path(self, name: str = "") -> Path:
        return Path(self._folder(name))

    def spark_uri(self, name: str = "") -> str:
        return uris.for_spark(self._uri(name))

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{checked(name)}"

    def _folder(self, folder: str) -> str:
        return self._path(folder) if folder else self._root

    def _uri(self, name: str) -> str:
        return uris.of_path(self._folder(name))

    def _aside(self, name: str) -> tuple[str, int]:
        """A new file, open for writing, in the folder of that name."""

        def create(path: str) -> tuple[str, int]:
            folder = os.path.dirname(path)
            aside = f"{folder}/.tidegate-{os.getpid()}-{os.urandom(8).hex()}"
            return aside, current().create(aside)

        with changing(self._uri(name)):
            return self._in_folder(name, create)

    def _in_folder(self, name: str, action: Callable[[str], T]) -> T:
        """Do something with a path, whose folder is made before."""
        path = self._path(name)
        for _ in range(_TRIES):
            try:
                self._make(os.path.dirname(path))
                return action(path)
            except FileNotFoundError:
                current().durable.clear()
        return action(path)

    def _make(self, folder: str) -> None:
        """Make a folder that survives a loss of power.

        One that is there may have been made just now, by somebody who has not synced it yet: so
        every process syncs the way down from the store's folder once.
        """
        durable, root = current().durable, self._root
        if folder in durable or folder == "/":
            return
        mine = folder == root or folder.startswith(root.rstrip("/") + "/")
        if not mine and os.path.isdir(folder):
            return
        parent = os.path.dirname(folder)
        self._make(parent)
        made = _made(folder)
        try:
            current().sync_folder(parent)
        except PermissionError:
            # The folder above the store may be closed to us; what we did not put there is not ours.
            if made:
                raise
        durable.add(folder)

    def _remove_empty(self, folder: str) -> None:
        """Remove a folder and those above it, up to the store's own, as long as they are empty."""
        root = self._root
        while folder != root and folder.startswith(root):
            try:
                current().remove_folder(folder)
            except FileNotFoundError:
                pass
            except OSError:
                return
            current().durable.discard(folder)
            folder = os.path.dirname(folder)

    def _items(self, folder: str, wanted: Callable[[str], bool]) -> Items:
        top = self._folder(folder)
        cut = len(self._root.rstrip("/")) + 1
        with changing(self._uri(folder), "cannot be listed"):
            entries = [entry for entry in _files(top) if wanted(entry.name)]
            items = [item for entry in entries if (item := _item(entry, cut)) is not None]
        return sorted(items, key=lambda item: item.name)


def _item(entry: os.DirEntry[str], cut: int) -> Item | None:
    """A listed file, unless it is gone by now."""
    try:
        found = entry.stat()
    except FileNotFoundError:
        return None
    return Item(entry.path[cut:], found.st_size, found.st_mtime_ns // 1000)


def _files(folder: str) -> Iterator[os.DirEntry[str]]:
    """The files below a folder, links followed; folders that vanish meanwhile have none."""
    try:
        entries = list(os.scandir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        if entry.is_file():
            yield entry
        elif entry.is_dir() and not _leads_up(entry):
            yield from _files(entry.path)


def _leads_up(entry: os.DirEntry[str]) -> bool:
    """Whether a link leads to a folder that it is in: following it would never end."""
    if not entry.is_symlink():
        return False
    here = os.path.realpath(os.path.dirname(entry.path))
    return (here + "/").startswith(os.path.realpath(entry.path).rstrip("/") + "/")


def _gone(remove: Callable[[str], None], path: str) -> None:
    """Remove a file; one that is gone, or that was never a file, is fine."""
    with suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
        remove(path)


def _remove(folder: str) -> None:
    """Remove a folder, or a link to one; into one that was filled meanwhile somebody writes."""
    if os.path.islink(folder):
        _gone(current().unlink, folder)
        return
    current().durable.discard(folder)
    with suppress(OSError):
        current().remove_folder(folder)


def _made(folder: str) -> bool:
    """Make a folder; whether it was not there before."""
    try:
        current().make_folder(folder)
    except FileExistsError:
        return False
    return True


def _unless_gone(error: OSError) -> None:
    if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
        raise error


# Files are immutable, so a file is identified by its path, size, modification time and inode. A
# deleted file keeps its disk space while it is mapped, so deleted files are unmapped first.
_MAPPED_FILES = 64
_Identity = tuple[int, int, int]
_maps: OrderedDict[str, tuple[_Identity, pa.Buffer]] = OrderedDict()
_lock = threading.Lock()


def mapped_file(path: str) -> pa.Buffer:
    """The file as a buffer. It stays valid when the file is removed or leaves the cache."""
    identity = _identity(path)
    with _lock:
        kept = _maps.get(path)
        if kept is not None and kept[0] == identity:
            _maps.move_to_end(path)
            return kept[1]
    buffer = _map(path)
    with _lock:
        _forget_removed()
        _maps[path] = (identity, buffer)
        _maps.move_to_end(path)
        while len(_maps) > _MAPPED_FILES:
            _maps.popitem(last=False)
    return buffer


def _identity(path: str) -> _Identity:
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode):
        raise IsADirectoryError(path)
    return found.st_size, found.st_mtime_ns, found.st_ino


def _map(path: str) -> pa.Buffer:
    import pyarrow as pa

    with pa.memory_map(path, "r") as file:
        return file.read_buffer()


def _forget_removed() -> None:
    for path in [path for path in _maps if not os.path.exists(path)]:
        del _maps[path]
