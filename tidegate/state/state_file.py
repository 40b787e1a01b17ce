"""State files: in each epoch a task writes one immutable file for all its key groups.

A file contains entries, followed by one index per key group. The *state handle* of a key group is
the extent of its index; the index has the extent of every entry, in this file or in older ones.
Entries start at multiples of 64 bytes, so that tables can be read from a memory map without a copy.

If a key group needs less than half of the bytes that it once wrote to a file, the needed entries
are written again to the new file. A key group therefore keeps at most twice the bytes it needs.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from tidegate.errors import DataDirectoryError
from tidegate.state.codec import pad
from tidegate.storage import NotFound, Writer

_VERSION = 1
# A key group with at most this much state is rewritten completely in every epoch.
_SMALL_STATE_BYTES = 64 << 10
# The process remembers at most this many extents whose checksum it has verified.
_MAX_VERIFIED = 200_000

ReadFile = Callable[[str], memoryview]
# An entry of an index: number of the file, offset, length, checksum.
Extent = tuple[int, int, int, int]


class StateBackend(Protocol):
    """The state of one operator in one key group: named, sorted maps from bytes to bytes."""

    def get(self, name: str, key: bytes) -> bytes | memoryview | None:
        """Return the value of a key, or None."""
        ...

    def put(self, name: str, key: bytes, value: bytes) -> None:
        """Set the value of a key."""
        ...

    def delete(self, name: str, key: bytes) -> None:
        """Remove a key; missing keys are ignored."""
        ...

    def scan(
        self, name: str, start: bytes = b"", end: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes | memoryview]]:
        """Yield the entries in [start, end), sorted by key.

        State may change during a scan. Keys that are deleted or added meanwhile are not returned.
        """
        ...

    def clear(self) -> None:
        """Remove all entries of this operator and key group."""
        ...


@dataclass(frozen=True)
class StateHandle:
    """The extent of a key group's index: all that is needed to open its state."""

    file: str
    offset: int
    length: int
    checksum: int

    def to_json(self) -> list[Any]:
        return [self.file, self.offset, self.length, self.checksum]

    @classmethod
    def from_json(cls, stored: list[Any]) -> StateHandle:
        file, offset, length, checksum = stored
        return cls(str(file), int(offset), int(length), int(checksum))


class StateFileBuilder:
    """Writes a state file, which is created with its first byte."""

    def __init__(self, name: str, open_writer: Callable[[str], Writer]) -> None:
        self.name = name
        self._open = open_writer
        self._writer: Writer | None = None
        self.size = 0

    def append(self, data: bytes | memoryview) -> int:
        """Write data at the next multiple of 64 bytes; return its offset."""
        if self._writer is None:
            self._writer = self._open(self.name)
        offset = self.size
        self._writer.write(data)
        length = memoryview(data).nbytes
        padding = pad(length)
        if padding:
            self._writer.write(padding)
        self.size += length + len(padding)
        return offset

    def close(self) -> None:
        """Make the file visible and durable."""
        if self._writer is not None:
            self._writer.close()


@dataclass
class _Index:
    """The entries of a key group, the files they are in, and the bytes once written to each."""

    files: list[str]
    written_bytes: list[int]
    entries: dict[bytes, Extent]

    def to_bytes(self) -> bytes:
        extents = {key.hex(): list(extent) for key, extent in sorted(self.entries.items())}
        content = [_VERSION, self.files, self.written_bytes, extents]
        return json.dumps(content, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes, description: str) -> _Index:
        version, files, written_bytes, extents = json.loads(data)
        if version != _VERSION:
            reason = f"its format is {version}, and this version of Tidegate reads {_VERSION}"
            raise damaged_state(description, reason)
        entries = {bytes.fromhex(key): (f, o, n, c) for key, (f, o, n, c) in extents.items()}
        return cls(files, written_bytes, entries)


# Extents whose checksum this process has verified. Files are immutable.
_verified: set[tuple[str, int, int]] = set()


def _read_verified(
    read: ReadFile, file: str, extent: tuple[int, int, int], description: str
) -> memoryview:
    """Return the bytes of an extent; verify the checksum when it is read for the first time."""
    offset, length, checksum = extent
    try:
        data = read(file)[offset : offset + length]
    except NotFound:
        raise damaged_state(description, f"the file {file} does not exist") from None
    key = (file, offset, checksum)
    if key not in _verified:
        if len(data) != length:
            raise damaged_state(description, f"the file {file} is truncated")
        if zlib.crc32(data) != checksum:
            raise damaged_state(description, f"a checksum in the file {file} is wrong")
        if len(_verified) >= _MAX_VERIFIED:
            _verified.clear()
        _verified.add(key)
    return data


class StateFileBackend:
    """The state of one operator in one key group, read from files; `save` writes the changes.

    `description` names the state in errors, such as "the state of the stream totals, operator …".
    """

    def __init__(self, handle: StateHandle | None, read: ReadFile, description: str) -> None:
        self._read = read
        self._description = description
        self._new: dict[bytes, bytes] = {}
        self._index = _Index([], [], {})
        if handle is not None:
            extent = (handle.offset, handle.length, handle.checksum)
            stored = _read_verified(read, handle.file, extent, description)
            self._index = _Index.from_bytes(bytes(stored), description)

    def get(self, name: str, key: bytes) -> bytes | memoryview | None:
        entry = _entry_key(name, key)
        new = self._new.get(entry)
        if new is not None:
            return new
        extent = self._index.entries.get(entry)
        return None if extent is None else self._read_entry(extent)

    def put(self, name: str, key: bytes, value: bytes) -> None:
        entry = _entry_key(name, key)
        self._index.entries.pop(entry, None)
        self._new[entry] = value

    def delete(self, name: str, key: bytes) -> None:
        entry = _entry_key(name, key)
        self._index.entries.pop(entry, None)
        self._new.pop(entry, None)

    def scan(
        self, name: str, start: bytes = b"", end: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes | memoryview]]:
        prefix = _entry_key(name, b"")
        for entry in sorted({*self._index.entries, *self._new}):
            key = entry[len(prefix) :]
            if entry.startswith(prefix) and key >= start and (end is None or key < end):
                value = self.get(name, key)
                if value is not None:
                    yield key, value

    def clear(self) -> None:
        self._index.entries.clear()
        self._new.clear()

    def save(self, file: StateFileBuilder) -> StateHandle:
        """Write new entries, entries of sparse files, and the index; return the state handle."""
        self._rewrite_sparse_files()
        index = _Index([], [], {})
        new_numbers: dict[str, int] = {}
        for entry, (number, *extent) in self._index.entries.items():
            name = self._index.files[number]
            if name not in new_numbers:
                new_numbers[name] = len(index.files)
                index.files.append(name)
                index.written_bytes.append(self._index.written_bytes[number])
            offset, length, checksum = extent
            index.entries[entry] = (new_numbers[name], offset, length, checksum)
        own_number = len(index.files)
        written_bytes = 0
        for entry, value in self._new.items():
            index.entries[entry] = (own_number, file.append(value), len(value), zlib.crc32(value))
            written_bytes += len(value)
        if self._new:
            index.files.append(file.name)
            index.written_bytes.append(written_bytes)
        data = index.to_bytes()
        return StateHandle(file.name, file.append(data), len(data), zlib.crc32(data))

    def _rewrite_sparse_files(self) -> None:
        needed = [0] * len(self._index.files)
        for number, _, length, _ in self._index.entries.values():
            needed[number] += length
        small = sum(needed) <= _SMALL_STATE_BYTES
        for entry, extent in list(self._index.entries.items()):
            number = extent[0]
            if small or needed[number] * 2 < self._index.written_bytes[number]:
                self._new[entry] = bytes(self._read_entry(extent))
                del self._index.entries[entry]

    @property
    def needed_files(self) -> list[str]:
        """The older files that contain entries of this key group."""
        return list(self._index.files)

    def _read_entry(self, extent: Extent) -> memoryview:
        number, offset, length, checksum = extent
        file = self._index.files[number]
        return _read_verified(self._read, file, (offset, length, checksum), self._description)


def damaged_state(description: str, reason: str) -> DataDirectoryError:
    """Return the error for state files that are missing or damaged."""
    return DataDirectoryError(
        "TG-605",
        f"{description} cannot be read: {reason}",
        hint="go back to an older epoch: SHOW CHECKPOINTS; lists them, and RESTORE FROM CHECKPOINT "
        "n; restores one. Or restore the data directory from a backup, or remove the data of the "
        "pipeline to start from the beginning.",
    )


def _entry_key(name: str, key: bytes) -> bytes:
    """Prefix a key with the name of its map; the length makes names prefix-free."""
    text = name.encode()
    return bytes([len(text)]) + text + key
