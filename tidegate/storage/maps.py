"""Whole files as buffers of Arrow that are mapped, not read; the last ones stay mapped.

Files are immutable, so a file is known by its path, size, time and inode. A file that was removed
keeps its room on the disk while it is mapped; so removed files leave as soon as another comes.
"""

from __future__ import annotations

import os
import stat
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

_KEPT = 64

_Identity = tuple[int, int, int]
_maps: OrderedDict[str, tuple[_Identity, pa.Buffer]] = OrderedDict()
_lock = threading.Lock()


def mapped(path: str) -> pa.Buffer:
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
        while len(_maps) > _KEPT:
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
