"""Stores on disks of this machine."""

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
    AlreadyExists,
    NotFound,
    StoredFile,
    StoredFiles,
    is_moved,
    translate_read_errors,
    translate_write_errors,
    valid_name,
)

if TYPE_CHECKING:
    import pyarrow as pa


# ---- Operations on the disk. A power failure can happen between any two of them.

# On macOS fsync does not wait until the drive has persisted the data; this command does.
_FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)


class Disk:
    """The real disk. Tests replace it with `use_disk`."""

    def __init__(self) -> None:
        # Folders whose parents have been synced by this process.
        self.synced_folders: set[str] = set()

    def create(self, path: str) -> int:
        """Create a file and return its descriptor, open for writing."""
        return os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o666)

    def write(self, handle: int, data: bytes | memoryview) -> None:
        remaining = memoryview(data).cast("B")
        while remaining:
            remaining = remaining[os.write(handle, remaining) :]

    def sync(self, handle: int) -> None:
        if _FULL_SYNC is not None:
            fcntl.fcntl(handle, _FULL_SYNC)
        else:
            os.fsync(handle)

    def close(self, handle: int) -> None:
        os.close(handle)

    def link(self, source: str, target: str) -> None:
        """Give a file a second name; fail if the target exists."""
        os.link(source, target)

    def rename(self, source: str, target: str) -> None:
        """Rename a file atomically; replace the target."""
        os.replace(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def make_folder(self, path: str) -> None:
        os.mkdir(path)

    def remove_folder(self, path: str) -> None:
        """Remove a folder; fail if it is not empty."""
        os.rmdir(path)

    def sync_file(self, path: str) -> None:
        """Make a file durable that another writer has written."""
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.sync(handle)
        finally:
            os.close(handle)

    def sync_folder(self, path: str) -> None:
        """Make the entries of a folder durable."""
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


_disk = Disk()


def current_disk() -> Disk:
    """Return the disk that this process uses."""
    return _disk


def use_disk(disk: Disk) -> Disk:
    """Replace the disk of this process; return the previous one."""
    global _disk
    previous, _disk = _disk, disk
    return previous


# ---- Writing: a temporary file that is synced and then gets its final name

_BUFFER_BYTES = 1 << 20


class LocalWriter:
    """Writes a temporary file next to its target; `close` renames it, `abort` removes it."""

    def __init__(
        self, uri: str, target: str, temporary: tuple[str, int], replace: bool, durable: bool = True
    ) -> None:
        self._uri = uri
        self._target = target
        self._temporary, self._handle = temporary
        self._replace = replace
        self._durable = durable
        self._pending = bytearray()
        self._flushed_bytes = 0
        self._open = True

    @property
    def closed(self) -> bool:
        return not self._open

    def write(self, data: bytes | memoryview) -> int:
        """Append data; small writes are buffered."""
        if not self._open:
            raise ValueError("write to a closed writer")
        view = memoryview(data).cast("B")
        if len(self._pending) + len(view) > _BUFFER_BYTES:
            self.flush()
        if len(view) > _BUFFER_BYTES:
            self._write_through(view)
        else:
            self._pending += view
        return len(view)

    def tell(self) -> int:
        return self._flushed_bytes + len(self._pending)

    def flush(self) -> None:
        """Write the buffered data to the disk."""
        pending, self._pending = self._pending, bytearray()
        self._write_through(memoryview(pending))

    def close(self) -> None:
        """Make the file durable and visible under its name. Idempotent."""
        if not self._open:
            return
        try:
            self.flush()
            with translate_write_errors(self._uri):
                if self._durable:
                    current_disk().sync(self._handle)
                self._close_handle()
                self._publish()
                if self._durable:
                    current_disk().sync_folder(os.path.dirname(self._target))
        except BaseException:
            self.abort()
            raise

    def abort(self) -> None:
        """Remove the temporary file. Idempotent, and safe after an error."""
        self._close_handle()
        with suppress(OSError):
            current_disk().unlink(self._temporary)

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

    def _write_through(self, data: memoryview) -> None:
        with translate_write_errors(self._uri):
            current_disk().write(self._handle, data)
        self._flushed_bytes += len(data)

    def _publish(self) -> None:
        if self._replace:
            current_disk().rename(self._temporary, self._target)
            return
        try:
            current_disk().link(self._temporary, self._target)
        except FileExistsError:
            # A network file system may have linked the file, lost the response and retried.
            if not os.path.samefile(self._temporary, self._target):
                raise AlreadyExists(self._uri) from None
        current_disk().unlink(self._temporary)

    def _close_handle(self) -> None:
        if self._open:
            self._open = False
            with suppress(OSError):
                current_disk().close(self._handle)


# Temporary files. Spark ignores names that start with a dot, too.
_TEMPORARY_NAME = re.compile(r"\.tidegate-\d+-[0-9a-f]{16}")
# Another process may remove an empty folder just before a file is created in it.
_MAX_ATTEMPTS = 10

T = TypeVar("T")


@dataclass(frozen=True)
class LocalStore:
    """The files below one folder, which is created with the first file."""

    uri: str
    _root: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_root", uris.to_path(self.uri))

    @property
    def local(self) -> bool:
        return True

    def child(self, name: str) -> LocalStore:
        return LocalStore(uris.from_path(self._path(valid_name(name))))

    def put_new(self, name: str, data: bytes) -> None:
        with self.writer(name) as writer:
            writer.write(data)

    def put(self, name: str, data: bytes, durable: bool = True) -> None:
        target, temporary = self._path(name), self._create_temporary(name)
        with LocalWriter(self._uri(name), target, temporary, True, durable) as writer:
            writer.write(data)

    def get(self, name: str) -> bytes:
        with translate_read_errors(self._uri(name)), open(self._path(name), "rb") as file:
            return file.read()

    def get_range(self, name: str, start: int, length: int) -> bytes:
        with translate_read_errors(self._uri(name)), open(self._path(name), "rb") as file:
            file.seek(start)
            return file.read(length)

    def exists(self, name: str) -> bool:
        try:
            self.size(name)
        except NotFound:
            return False
        return True

    def size(self, name: str) -> int:
        with translate_read_errors(self._uri(name)):
            status = os.stat(self._path(name))
        if not stat.S_ISREG(status.st_mode):
            raise NotFound(self._uri(name))
        return status.st_size

    def list(self, folder: str = "") -> StoredFiles:
        return self._list_files(folder, lambda name: not _TEMPORARY_NAME.fullmatch(name))

    def list_unfinished(self, folder: str = "") -> StoredFiles:
        return self._list_files(folder, lambda name: bool(_TEMPORARY_NAME.fullmatch(name)))

    def delete(self, names: Iterable[str]) -> None:
        folders = set()
        for name in names:
            path = self._path(name)
            with translate_write_errors(self._uri(name), "cannot be deleted"):
                _remove_file(path)
            folders.add(os.path.dirname(path))
        for folder in folders:
            self._remove_empty(folder)

    def delete_all(self, folder: str) -> None:
        top = self._folder(folder)
        with translate_write_errors(self._uri(folder), "cannot be deleted"):
            if folder and os.path.islink(top):
                _remove_folder(top)
            for path, folders, files in os.walk(top, topdown=False, onerror=_ignore_missing):
                for name in files:
                    _remove_file(f"{path}/{name}")
                for name in folders:
                    _remove_folder(f"{path}/{name}")
        self._remove_empty(top)

    def move_new(self, source: str, target: str) -> None:
        with translate_write_errors(self._uri(source), f"cannot be moved to {target}"):
            if not is_moved(self, source, target):
                move = current_disk().rename
                try:
                    self._in_folder(target, lambda path: move(self._path(source), path))
                except FileNotFoundError:
                    # Another process may have moved the file in the meantime.
                    if not is_moved(self, source, target):
                        raise NotFound(self._uri(source)) from None

    def sync(self, folders: Iterable[str]) -> None:
        for folder in sorted(set(folders)):
            path = self._folder(folder)
            with (
                translate_write_errors(self._uri(folder), "cannot be synced"),
                suppress(FileNotFoundError),
            ):
                current_disk().sync_folder(path)

    def sync_files(self, names: Iterable[str]) -> None:
        names = list(names)
        for name in names:
            with translate_write_errors(self._uri(name), "cannot be synced"):
                current_disk().sync_file(self._path(name))
        self.sync(name.rpartition("/")[0] for name in names)

    def writer(self, name: str) -> LocalWriter:
        return LocalWriter(self._uri(name), self._path(name), self._create_temporary(name), False)

    def map(self, name: str) -> pa.Buffer:
        with translate_read_errors(self._uri(name)):
            return map_file(self._path(name))

    def local_path(self, name: str = "") -> Path:
        return Path(self._folder(name))

    def spark_uri(self, name: str = "") -> str:
        return uris.to_spark_uri(self._uri(name))

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{valid_name(name)}"

    def _folder(self, folder: str) -> str:
        return self._path(folder) if folder else self._root

    def _uri(self, name: str) -> str:
        return uris.from_path(self._folder(name))

    def _create_temporary(self, name: str) -> tuple[str, int]:
        """Create a temporary file in the folder of `name`; return its path and descriptor."""

        def create(path: str) -> tuple[str, int]:
            folder = os.path.dirname(path)
            temporary = f"{folder}/.tidegate-{os.getpid()}-{os.urandom(8).hex()}"
            return temporary, current_disk().create(temporary)

        with translate_write_errors(self._uri(name)):
            return self._in_folder(name, create)

    def _in_folder(self, name: str, action: Callable[[str], T]) -> T:
        """Run an action on the path of a name, after creating its folder."""
        path = self._path(name)
        for _ in range(_MAX_ATTEMPTS):
            try:
                self._create_durable_folder(os.path.dirname(path))
                return action(path)
            except FileNotFoundError:
                current_disk().synced_folders.clear()
        return action(path)

    def _create_durable_folder(self, folder: str) -> None:
        """Create a folder and its parents, and sync them.

        An existing folder may have been created a moment ago by a process that has not synced it
        yet. Therefore every process syncs the path from the store's folder down once.
        """
        synced, root = current_disk().synced_folders, self._root
        if folder in synced or folder == "/":
            return
        in_store = folder == root or folder.startswith(root.rstrip("/") + "/")
        if not in_store and os.path.isdir(folder):
            return
        parent = os.path.dirname(folder)
        self._create_durable_folder(parent)
        try:
            current_disk().make_folder(folder)
        except FileExistsError:
            is_new = False
        else:
            is_new = True
        try:
            current_disk().sync_folder(parent)
        except PermissionError:
            # The folder above the store may not be readable. It matters only for a new folder.
            if is_new:
                raise
        synced.add(folder)

    def _remove_empty(self, folder: str) -> None:
        """Remove a folder and its parents inside the store while they are empty."""
        root = self._root
        while folder != root and folder.startswith(root):
            try:
                current_disk().remove_folder(folder)
            except FileNotFoundError:
                pass
            except OSError:
                return
            current_disk().synced_folders.discard(folder)
            folder = os.path.dirname(folder)

    def _list_files(self, folder: str, is_included: Callable[[str], bool]) -> StoredFiles:
        top = self._folder(folder)
        prefix_length = len(self._root.rstrip("/")) + 1
        files = []
        with translate_write_errors(self._uri(folder), "cannot be listed"):
            entries = [entry for entry in _walk(top) if is_included(entry.name)]
            for entry in entries:
                # A file may be deleted between the listing of its folder and `stat`.
                with suppress(FileNotFoundError):
                    status = entry.stat()
                    name, modified_us = entry.path[prefix_length:], status.st_mtime_ns // 1000
                    files.append(StoredFile(name, status.st_size, modified_us))
        return sorted(files, key=lambda file: file.name)


def _walk(folder: str) -> Iterator[os.DirEntry[str]]:
    """Yield the files below a folder, following links; ignore folders that disappear."""
    try:
        entries = list(os.scandir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        if entry.is_file():
            yield entry
        elif entry.is_dir() and not _is_cycle(entry):
            yield from _walk(entry.path)


def _is_cycle(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is a link to one of its parent folders."""
    if not entry.is_symlink():
        return False
    parent = os.path.realpath(os.path.dirname(entry.path))
    return (parent + "/").startswith(os.path.realpath(entry.path).rstrip("/") + "/")


def _remove_file(path: str) -> None:
    """Remove a file; ignore missing files and folders."""
    with suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
        current_disk().unlink(path)


def _remove_folder(folder: str) -> None:
    """Remove a folder or a link to one; keep a folder that has files again."""
    if os.path.islink(folder):
        _remove_file(folder)
        return
    current_disk().synced_folders.discard(folder)
    with suppress(OSError):
        current_disk().remove_folder(folder)


def _ignore_missing(error: OSError) -> None:
    if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
        raise error


# Files are immutable, so a file is identified by its path, size, modification time and inode. A
# deleted file keeps its disk space while it is mapped, so deleted files are unmapped first.
_MAX_MAPPED_FILES = 64
_Identity = tuple[int, int, int]
_mapped: OrderedDict[str, tuple[_Identity, pa.Buffer]] = OrderedDict()
_mapped_lock = threading.Lock()


def map_file(path: str) -> pa.Buffer:
    """Map a file into memory. The buffer stays valid when the file is deleted or unmapped here."""
    identity = _identity(path)
    with _mapped_lock:
        entry = _mapped.get(path)
        if entry is not None and entry[0] == identity:
            _mapped.move_to_end(path)
            return entry[1]
    import pyarrow as pa

    with pa.memory_map(path, "r") as file:
        buffer = file.read_buffer()
    with _mapped_lock:
        _unmap_deleted()
        _mapped[path] = (identity, buffer)
        _mapped.move_to_end(path)
        while len(_mapped) > _MAX_MAPPED_FILES:
            _mapped.popitem(last=False)
    return buffer


def _identity(path: str) -> _Identity:
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise IsADirectoryError(path)
    return status.st_size, status.st_mtime_ns, status.st_ino


def _unmap_deleted() -> None:
    for path in [path for path in _mapped if not os.path.exists(path)]:
        del _mapped[path]
