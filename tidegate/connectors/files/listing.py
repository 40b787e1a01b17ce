"""Finds the new files of a directory. Every file is read once, in the order of modification times.

An offset contains the files of its epoch. The files of earlier epochs are stored, too, because a
file may appear late with an old modification time: up to a thousand names are in the offset itself,
the others in immutable files of names (chunks) that the offset refers to.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tidegate.storage import Store, StoredFile

# How long a new file may be incomplete because it is still being written.
WRITING_SECONDS = 3.0

# ---- The names of files that a files sink has published.
#
# A file of a task is named after its epoch, a merged file after the first and the last epoch of the
# files that it replaces. A merged file contains all rows of these epochs in its folder, so other
# files of the same epochs are about to be deleted and must not be read.

_MERGED = "-to-"
_NAME = re.compile(
    r"(?P<prefix>.+-)(?P<generation>\d{3,})-(?P<first>\d{12,})-"
    r"(?:to-(?P<last>\d{12,})|\d{5,}-\d{3,})\.(?:parquet|json|csv)"
)


@dataclass(frozen=True)
class EpochFileName:
    """The parts of a file name: the sink and the epochs whose rows the file contains."""

    folder: str
    prefix: str
    generation: int
    first: int
    last: int
    merged: bool

    @property
    def series(self) -> tuple[str, str, int]:
        """The folder, sink and generation, within which files can replace each other."""
        return self.folder, self.prefix, self.generation

    def replaces(self, other: EpochFileName) -> bool:
        """Return whether this file contains the rows of another file of the same series."""
        return self.first <= other.first and other.last <= self.last and self != other


def parse_file_name(path: str) -> EpochFileName | None:
    """Parse the name of a file, or return None if no files sink has written it."""
    folder, _, name = path.rpartition("/")
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    first, last = int(match["first"]), match["last"]
    return EpochFileName(
        folder,
        match["prefix"],
        int(match["generation"]),
        first,
        int(last) if last else first,
        last is not None,
    )


def merged_name(prefix: str, generation: int, first: int, last: int, suffix: str) -> str:
    """Return the name of the file that replaces the files of these epochs."""
    return f"{prefix}{generation:03d}-{first:012d}{_MERGED}{last:012d}.{suffix}"


class MergedFiles:
    """The merged files in a listing."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._by_series: dict[tuple[str, str, int], list[EpochFileName]] = {}
        for path in paths:
            # Listings are long and few names are merged files, so most names are not parsed.
            name = parse_file_name(path) if _MERGED in path else None
            if name is not None and name.merged:
                self._by_series.setdefault(name.series, []).append(name)

    def __bool__(self) -> bool:
        return bool(self._by_series)

    def replaces(self, path: str) -> bool:
        """Return whether a merged file contains the rows of this file."""
        name = parse_file_name(path)
        return name is not None and any(
            item.replaces(name) for item in self._by_series.get(name.series, ())
        )


# ---- The files that have been read.

# An offset contains up to this many names of earlier epochs. More are written to a chunk.
_RECENT = 1_000
_CHUNK = "names-"
# This many chunks of similar size are merged into one.
_FANOUT = 8


class SeenFiles:
    """The names of the files that were read up to an offset."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._chunks: dict[str, frozenset[str]] = {}

    def names(self, offset: Mapping[str, Any] | None) -> set[str]:
        """Return all names up to an offset."""
        if offset is None:
            return set()
        seen = {*offset["files"], *offset["recent"]}
        for chunk in offset["older"]:
            seen |= self._chunk(chunk)
        return seen

    def _chunk(self, name: str) -> frozenset[str]:
        if name not in self._chunks:
            self._chunks[name] = frozenset(json.loads(self.store.get(name)))
        return self._chunks[name]

    def next(self, offset: Mapping[str, Any] | None, files: list[str]) -> dict[str, Any]:
        """Return the offset after reading these files. May write a chunk."""
        if offset is None:
            return {"files": files, "recent": [], "older": []}
        recent = [*offset["recent"], *offset["files"]]
        older = list(offset["older"])
        if len(recent) > _RECENT:
            older = self._with_chunk(older, recent)
            recent = []
        return {"files": files, "recent": recent, "older": older}

    def _with_chunk(self, older: list[str], names: Iterable[str]) -> list[str]:
        """Write a chunk of names, merged with the existing chunks of similar size."""
        content = set(names)
        while True:
            merged = [name for name in older if len(self._chunk(name)) < _FANOUT * len(content)]
            if len(merged) < _FANOUT:
                break
            content = content.union(*map(self._chunk, merged))
            older = [name for name in older if name not in merged]
        text = json.dumps(sorted(content), indent=0).encode()
        # Streams at different offsets share the folder, so a chunk is named after its content.
        chunk = f"{_CHUNK}{hashlib.sha256(text).hexdigest()[:32]}"
        self.store.put(chunk, text)
        self._chunks[chunk] = frozenset(content)
        return [*older, chunk]


def chunks_of(offset: Any) -> list[str]:
    """Return the chunks that an offset refers to. Offsets of other sources have none."""
    return list(offset.get("older") or ()) if isinstance(offset, Mapping) else []


def is_chunk(name: str) -> bool:
    return name.rpartition("/")[2].startswith(_CHUNK)


# ---- Listing a directory.


def new_files(items: Iterable[StoredFile], seen: set[str], glob: str | None) -> list[StoredFile]:
    """Return the files that have not been read, by modification time, then name.

    Rows that a files sink has merged are read from the merged file only. Callers must check with
    `partly_read_merge` that no row of a merged file has been read before.
    """
    items = list(items)
    files = [item for item in items if item.name not in seen and _is_data(item.name, glob)]
    merged = MergedFiles(item.name for item in items)
    if merged:
        files = [item for item in files if not merged.replaces(item.name)]
    return sorted(files, key=lambda item: (item.modified_us, item.name))


def partly_read_merge(files: Iterable[StoredFile], seen: Iterable[str]) -> str | None:
    """Return a new merged file that contains rows of files that have been read, if there is one."""
    for item in files:
        merged = MergedFiles([item.name])
        if merged and any(merged.replaces(name) for name in seen):
            return item.name
    return None


def _is_data(name: str, glob: str | None) -> bool:
    """Return whether a file matches the glob and is not hidden, nor in a hidden folder."""
    parts = name.split("/")
    if any(part.startswith((".", "_")) and "=" not in part for part in parts):
        return False
    return glob is None or fnmatch.fnmatchcase(parts[-1], glob)
