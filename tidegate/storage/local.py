"""A store on a disk of this machine."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from tidegate.storage import disk, maps, uris
from tidegate.storage.failure import NotThere, changing, reading
from tidegate.storage.local_writer import LocalWriter
from tidegate.storage.store import Item, Items, checked, is_moved

if TYPE_CHECKING:
    import pyarrow as pa

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
                _gone(disk.current().unlink, path)
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
                    _gone(disk.current().unlink, f"{path}/{name}")
                for name in folders:
                    _remove(f"{path}/{name}")
        self._remove_empty(top)

    def move_new(self, source: str, goal: str) -> None:
        with changing(self._uri(source), f"cannot be moved to {goal}"):
            if not is_moved(self, source, goal):
                move = disk.current().rename
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
                disk.current().sync_folder(path)

    def sync_files(self, names: Iterable[str]) -> None:
        names = list(names)
        for name in names:
            with changing(self._uri(name), "cannot be synced"):
                disk.current().sync_file(self._path(name))
        self.sync(name.rpartition("/")[0] for name in names)

    def writer(self, name: str) -> LocalWriter:
        return LocalWriter(self._uri(name), self._path(name), self._aside(name), False)

    def map(self, name: str) -> pa.Buffer:
        with reading(self._uri(name)):
            return maps.mapped(self._path(name))

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
            return aside, disk.current().create(aside)

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
                disk.current().durable.clear()
        return action(path)

    def _make(self, folder: str) -> None:
        """Make a folder that survives a loss of power.

        One that is there may have been made just now, by somebody who has not synced it yet: so
        every process syncs the way down from the store's folder once.
        """
        durable, root = disk.current().durable, self._root
        if folder in durable or folder == "/":
            return
        mine = folder == root or folder.startswith(root.rstrip("/") + "/")
        if not mine and os.path.isdir(folder):
            return
        parent = os.path.dirname(folder)
        self._make(parent)
        made = _made(folder)
        try:
            disk.current().sync_folder(parent)
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
                disk.current().remove_folder(folder)
            except FileNotFoundError:
                pass
            except OSError:
                return
            disk.current().durable.discard(folder)
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
        _gone(disk.current().unlink, folder)
        return
    disk.current().durable.discard(folder)
    with suppress(OSError):
        disk.current().remove_folder(folder)


def _made(folder: str) -> bool:
    """Make a folder; whether it was not there before."""
    try:
        disk.current().make_folder(folder)
    except FileExistsError:
        return False
    return True


def _unless_gone(error: OSError) -> None:
    if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
        raise error
