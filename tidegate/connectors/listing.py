"""Which files of a directory are new: every file is read once, in the order of their times.

A manifest holds the files of its epoch. Those of earlier epochs are remembered too, because a file
may turn up late with an old time: the last thousand in the manifest itself, the others in files of
names beside it, each written once.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from tidegate.connectors.files_names import MergedFiles
from tidegate.storage import Item, Store

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


def new_files(items: Iterable[Item], seen: set[str], glob: str | None) -> list[Item]:
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


def read_in_part(found: Iterable[Item], seen: Iterable[str]) -> str | None:
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
