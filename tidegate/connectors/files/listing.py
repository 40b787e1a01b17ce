"""Which files of a directory are new: every file is read once, in the order of their times.

A manifest holds the files of its epoch. Those of earlier epochs are remembered too, because a file
may turn up late with an old time: the last thousand in the manifest itself, the others in files of
names beside it, each written once.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tidegate.storage import StoredFile, Store

# ---- Names of files that a files sink has committed: they say which epochs a file holds.
#
# A task's file is named after its epoch, a merged one after the first and the last epoch of the files
# it replaces. A merged file holds all rows that its sink has of these epochs in that folder, so what
# lies beside it of the same epochs is about to be deleted, and its rows must not be read again.

_MERGED = "-to-"
_NAME = re.compile(
    r"(?P<owner>.+-)(?P<generation>\d{3,})-(?P<first>\d{12,})-"
    r"(?:to-(?P<last>\d{12,})|\d{5,}-\d{3,})\.(?:parquet|json|csv)"
)


@dataclass(frozen=True)
class Held:
    """What a file holds, by its name: epochs of one generation of one sink."""

    folder: str
    owner: str
    generation: int
    first: int
    last: int
    merged: bool

    @property
    def place(self) -> tuple[str, str, int]:
        return self.folder, self.owner, self.generation

    def holds(self, other: Held) -> bool:
        """Whether the rows of another file of this place are in this one."""
        return self.first <= other.first and other.last <= self.last and self != other


def held(path: str) -> Held | None:
    """What a file holds; None for files that no sink has named."""
    folder, _, name = path.rpartition("/")
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    first, last = int(found["first"]), found["last"]
    return Held(
        folder,
        found["owner"],
        int(found["generation"]),
        first,
        int(last) if last else first,
        last is not None,
    )


def merged_name(prefix: str, generation: int, first: int, last: int, suffix: str) -> str:
    return f"{prefix}{generation:03d}-{first:012d}{_MERGED}{last:012d}.{suffix}"


class MergedFiles:
    """The merged files among some."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._by_place: dict[tuple[str, str, int], list[Held]] = {}
        for path in paths:
            # Most are not, and there may be very many.
            found = held(path) if _MERGED in path else None
            if found is not None and found.merged:
                self._by_place.setdefault(found.place, []).append(found)

    def __bool__(self) -> bool:
        return bool(self._by_place)

    def hold(self, path: str) -> bool:
        """Whether one of them holds the rows of another file."""
        found = held(path)
        return found is not None and any(
            item.holds(found) for item in self._by_place.get(found.place, ())
        )


# As many names lie in a manifest; more go to a file of their own.
_RECENT = 1_000
_CHUNK = "names-"
# So many files of names of a size become one.
_FANOUT = 8


class SeenFiles:
    """The files that were read, up to an offset."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._chunks: dict[str, frozenset[str]] = {}

    def names(self, offset: Mapping[str, Any] | None) -> set[str]:
        """All names up to an offset."""
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
        """The offset after reading these files."""
        if offset is None:
            return {"files": files, "recent": [], "older": []}
        recent = [*offset["recent"], *offset["files"]]
        older = list(offset["older"])
        if len(recent) > _RECENT:
            older = self._with_chunk(older, recent)
            recent = []
        return {"files": files, "recent": recent, "older": older}

    def _with_chunk(self, older: list[str], names: Iterable[str]) -> list[str]:
        """One more file of names; where there are many of about its size, all of them in one."""
        kept = set(names)
        while True:
            merged = [name for name in older if len(self._chunk(name)) < _FANOUT * len(kept)]
            if len(merged) < _FANOUT:
                break
            kept = kept.union(*map(self._chunk, merged))
            older = [name for name in older if name not in merged]
        text = json.dumps(sorted(kept), indent=0).encode()
        # Streams that are not equally far share the folder: the name is that of the content.
        chunk = f"{_CHUNK}{hashlib.sha256(text).hexdigest()[:32]}"
        self.store.put(chunk, text)
        self._chunks[chunk] = frozenset(kept)
        return [*older, chunk]


def chunks_of(offset: Any) -> list[str]:
    """The files of names that an offset needs; other sources' offsets need none."""
    return list(offset.get("older") or ()) if isinstance(offset, Mapping) else []


def is_chunk(name: str) -> bool:
    return name.rpartition("/")[2].startswith(_CHUNK)


def new_files(items: Iterable[StoredFile], seen: set[str], glob: str | None) -> list[StoredFile]:
    """What was not read yet, by modification time, then path.

    What a sink of ours has merged is read from the merged file only; `read_in_part` tells whether
    that can be done.
    """
    items = list(items)
    found = [item for item in items if item.name not in seen and _is_data(item.name, glob)]
    merged = MergedFiles(item.name for item in items)
    if merged:
        found = [item for item in found if not merged.hold(item.name)]
    return sorted(found, key=lambda item: (item.modified_us, item.name))


def read_in_part(found: Iterable[StoredFile], seen: Iterable[str]) -> str | None:
    """A new file into which files were merged that have been read before."""
    for item in found:
        merged = MergedFiles([item.name])
        if merged and any(merged.hold(name) for name in seen):
            return item.name
    return None


def _is_data(name: str, glob: str | None) -> bool:
    """Hidden files and folders are not data, and neither is what a glob leaves out."""
    parts = name.split("/")
    if any(part.startswith((".", "_")) and "=" not in part for part in parts):
        return False
    return glob is None or fnmatch.fnmatchcase(parts[-1], glob)
