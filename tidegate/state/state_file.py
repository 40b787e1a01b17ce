"""State in files: a task writes one immutable file per epoch, for all its key groups.

A file holds entries, then an index per key group, and nothing is ever changed in it. The *head* of
a key group says where its index lies; the index says where every entry lies, in this file or in
older ones. Entries lie at multiples of 64 bytes, so that tables can be read where they are mapped,
without a copy.

A file of which a key group needs less than half of what it wrote there is left behind: what is
still needed is written again. So what is kept is at most twice what is needed.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from tidegate.errors import DataDirectoryError
from tidegate.storage import NotFound

_ALIGNMENT = 64
_PADDING = bytes(_ALIGNMENT)
_VERSION = 1
# What lies in files that are this small together is not worth a second look.
_FEW_BYTES = 64 << 10
# So many places are remembered as whole; then they are checked again.
_MOST_KNOWN = 200_000

Read = Callable[[str], memoryview]
# An entry of an index: the file by its number, where it begins, how long it is, its checksum.
Place = tuple[int, int, int, int]


class StateFileWriter(Protocol):
    """Where a new state file goes; it is there when it is closed."""

    def write(self, data: bytes | memoryview) -> Any: ...
    def close(self) -> None: ...


@dataclass(frozen=True)
class StateHandle:
    """Where the index of a key group lies."""

    file: str
    offset: int
    length: int
    checksum: int

    def as_json(self) -> list[Any]:
        return [self.file, self.offset, self.length, self.checksum]

    @classmethod
    def of(cls, stored: list[Any]) -> StateHandle:
        file, offset, length, checksum = stored
        return cls(str(file), int(offset), int(length), int(checksum))


class StateFile:
    """A state file while it is written; nobody needs it before the first byte."""

    def __init__(self, name: str, open_writer: Callable[[str], StateFileWriter]) -> None:
        self.name = name
        self._open = open_writer
        self._writer: StateFileWriter | None = None
        self.size = 0

    def append(self, data: bytes | memoryview) -> int:
        """Write at the next multiple of 64 bytes; returns where that is."""
        if self._writer is None:
            self._writer = self._open(self.name)
        at = self.size
        self._writer.write(data)
        length = memoryview(data).nbytes
        padding = -length % _ALIGNMENT
        if padding:
            self._writer.write(_PADDING[:padding])
        self.size += length + padding
        return at

    def close(self) -> None:
        """From now on it is there, also after a loss of power."""
        if self._writer is not None:
            self._writer.close()


@dataclass
class _Index:
    """What a key group keeps: the files it has entries in, with the bytes it wrote to each."""

    files: list[str]
    written: list[int]
    entries: dict[bytes, Place]

    def to_bytes(self) -> bytes:
        places = {key.hex(): list(place) for key, place in sorted(self.entries.items())}
        content = [_VERSION, self.files, self.written, places]
        return json.dumps(content, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes, what: str) -> _Index:
        version, files, written, places = json.loads(data)
        if version != _VERSION:
            raise unreadable(what, f"its format is {version}, and this version reads {_VERSION}")
        entries = {bytes.fromhex(key): (f, o, n, c) for key, (f, o, n, c) in places.items()}
        return cls(files, written, entries)


# What has been read and found whole by this process; files never change.
_whole: set[tuple[str, int, int]] = set()


def _checked(read: Read, file: str, place: tuple[int, int, int], what: str) -> memoryview:
    """The bytes at a place; checked when they are read for the first time."""
    offset, length, checksum = place
    try:
        data = read(file)[offset : offset + length]
    except NotFound:
        raise unreadable(what, f"the file {file} is not there") from None
    key = (file, offset, checksum)
    if key not in _whole:
        if len(data) != length:
            raise unreadable(what, f"the file {file} is cut short")
        if zlib.crc32(data) != checksum:
            raise unreadable(what, f"a checksum in the file {file} is wrong")
        if len(_whole) >= _MOST_KNOWN:
            _whole.clear()
        _whole.add(key)
    return data


class FileBackend:
    """The state of one operator in one key group; what is put is written by `save`."""

    def __init__(self, handle: StateHandle | None, read: Read, what: str) -> None:
        self._read = read
        self._what = what
        self._new: dict[bytes, bytes] = {}
        self._gone = False
        self._index = _Index([], [], {})
        if handle is not None:
            place = (handle.offset, handle.length, handle.checksum)
            stored = _checked(read, handle.file, place, what)
            self._index = _Index.from_bytes(bytes(stored), what)

    # What operators see

    def get(self, name: str, key: bytes) -> bytes | memoryview | None:
        full = _full(name, key)
        new = self._new.get(full)
        if new is not None:
            return new
        place = self._index.entries.get(full)
        return None if place is None else self._stored(place)

    def put(self, name: str, key: bytes, value: bytes) -> None:
        full = _full(name, key)
        self._index.entries.pop(full, None)
        self._new[full] = value

    def delete(self, name: str, key: bytes) -> None:
        full = _full(name, key)
        self._index.entries.pop(full, None)
        self._new.pop(full, None)

    def scan(
        self, name: str, start: bytes = b"", end: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes | memoryview]]:
        prefix = _full(name, b"")
        for full in sorted({*self._index.entries, *self._new}):
            key = full[len(prefix) :]
            if full.startswith(prefix) and key >= start and (end is None or key < end):
                value = self.get(name, key)
                if value is not None:
                    yield key, value

    def clear(self) -> None:
        self._index.entries.clear()
        self._new.clear()

    # What the task does

    def save(self, file: StateFile) -> StateHandle:
        """Write what is new, and what is left of files that are mostly over; then the index."""
        self._leave_old_files()
        index = _Index([], [], {})
        numbers: dict[str, int] = {}
        for full, (number, *place) in self._index.entries.items():
            name = self._index.files[number]
            if name not in numbers:
                numbers[name] = len(index.files)
                index.files.append(name)
                index.written.append(self._index.written[number])
            offset, length, checksum = place
            index.entries[full] = (numbers[name], offset, length, checksum)
        own = len(index.files)
        written = 0
        for full, value in self._new.items():
            index.entries[full] = (own, file.append(value), len(value), zlib.crc32(value))
            written += len(value)
        if self._new:
            index.files.append(file.name)
            index.written.append(written)
        data = index.to_bytes()
        return StateHandle(file.name, file.append(data), len(data), zlib.crc32(data))

    def _leave_old_files(self) -> None:
        needed = [0] * len(self._index.files)
        for number, _, length, _ in self._index.entries.values():
            needed[number] += length
        small = sum(needed) <= _FEW_BYTES
        for full, place in list(self._index.entries.items()):
            number = place[0]
            if small or needed[number] * 2 < self._index.written[number]:
                self._new[full] = bytes(self._stored(place))
                del self._index.entries[full]

    @property
    def needed_files(self) -> list[str]:
        """The older files that hold entries of this key group."""
        return list(self._index.files)

    def _stored(self, place: Place) -> memoryview:
        number, offset, length, checksum = place
        file = self._index.files[number]
        return _checked(self._read, file, (offset, length, checksum), self._what)


def files_of(handle: StateHandle, read: Read, what: str) -> set[str]:
    """Every file that the state behind a head needs."""
    return {handle.file, *FileBackend(handle, read, what).needed_files}


def unreadable(what: str, why: str) -> DataDirectoryError:
    """State that is damaged: nothing is made of it."""
    return DataDirectoryError(
        "TG-605",
        f"{what} cannot be read: {why}",
        hint="SHOW CHECKPOINTS; lists older epochs, and RESTORE FROM CHECKPOINT n; goes back to "
        "one; or put back a copy of the data directory from before, or remove the data of the "
        "pipeline: it then starts from the beginning.",
    )


def _full(name: str, key: bytes) -> bytes:
    """A key with the name before it; its length keeps names apart that begin alike."""
    text = name.encode()
    return bytes([len(text)]) + text + key


# ---- What an operator sees of its state: named, sorted maps from bytes to bytes.


class StateBackend(Protocol):
    """The state of one operator in one key group."""

    def get(self, name: str, key: bytes) -> bytes | memoryview | None:
        """The value of a key; None if there is none."""
        ...

    def put(self, name: str, key: bytes, value: bytes) -> None:
        """Set the value of a key, whatever was there."""
        ...

    def delete(self, name: str, key: bytes) -> None:
        """Forget a key; no error if there is none."""
        ...

    def scan(
        self, name: str, start: bytes = b"", end: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes | memoryview]]:
        """The entries from `start` up to but without `end`, sorted by key.

        State may change during a scan: what was deleted no longer comes, nor does what was added.
        """
        ...

    def clear(self) -> None:
        """Forget everything of this operator and key group."""
        ...
