"""Small files that a files sink has committed are merged into larger ones.

The merged file is written aside and synced, then a record of the merge is created: that decides it,
once, also if two processes try. Only then does the file get its name, and what it replaces is
deleted: a rename and some deletes, with nothing to wait for in between. Whoever finds the newest
record finishes its merge, any number of times with the same result.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from tidegate.connectors.files.listing import Held, held, merged_name
from tidegate.connectors.files.writer import Content
from tidegate.storage import AlreadyExists, NotFound, StorageError

if TYPE_CHECKING:
    from tidegate.storage import Store

_RECORDS, _ASIDE = "merges", "merged"
_RECORD = re.compile(r".*/(\d+)\.json")
# A merged file has at most as many bytes: it goes through one process.
_MOST_BYTES = 64 << 20
# Files up to here are merged with whatever came after them, others with half as much at least.
_TINY_BYTES = 1 << 20


@dataclass(frozen=True)
class Limits:
    """When files are merged, and how much a file holds."""

    # So many files are too many; None: nothing is merged.
    files: int | None
    rows: int | None
    bytes: int | None

    @property
    def most_bytes(self) -> int:
        return min(self.bytes or _MOST_BYTES, _MOST_BYTES)


@dataclass
class File:
    """A file that was committed."""

    path: str
    held: Held
    size: int
    rows: int | None = None


@dataclass(frozen=True)
class Merge:
    """The record of a merge: what replaces which files."""

    folder: str
    name: str
    aside: str
    size: int
    rows: int
    files: tuple[str, ...]

    @property
    def goal(self) -> str:
        return f"{self.folder}/{self.name}" if self.folder else self.name


@dataclass
class Compaction:
    """Merges the files of one sink, which all begin with a prefix."""

    store: Store
    # The folder for what the sink keeps of itself.
    aside: str
    prefix: str
    limits: Limits
    # The newest record, -1 for none; and what it says, unless that is done.
    number: int = -1
    pending: Merge | None = None
    # By folder, what is there, or None if nobody has looked; and where something was added.
    files: dict[str, list[File]] | None = None
    changed: set[str] = field(default_factory=set)

    # Opening

    def recover(self) -> None:
        """Finish what was decided, and remove what was not."""
        self.files = None
        records = self._records()
        self.number = max(records, default=-1)
        if records:
            self.pending = self._record(self.number)
            self._finish()
        self.store.delete(self._record_name(n) for n in records if n != self.number)
        folder = f"{self.aside}/{_ASIDE}"
        left = [*self.store.list(folder), *self.store.list_unfinished(folder)]
        self.store.delete(item.name for item in left)

    def _records(self) -> list[int]:
        names = [item.name for item in self.store.list(f"{self.aside}/{_RECORDS}")]
        return [int(found[1]) for name in names if (found := _RECORD.fullmatch(name))]

    def _record_name(self, number: int) -> str:
        return f"{self.aside}/{_RECORDS}/{number:012d}.json"

    def _record(self, number: int) -> Merge:
        name = self._record_name(number)
        try:
            stored = json.loads(self.store.get(name))
            return Merge(**{**stored, "files": tuple(stored["files"])})
        except (ValueError, KeyError, TypeError) as error:
            raise StorageError(f"{self.store.uri}/{name}", f"is damaged ({error})") from None

    # Merging

    def add(self, path: str, size: int, rows: int | None = None) -> None:
        """A file was committed."""
        found = held(path)
        if self.files is not None and found is not None and found.owner == self.prefix:
            self.files.setdefault(found.folder, []).append(File(path, found, size, rows))
            self.changed.add(found.folder)

    def run(self, content: Content) -> None:
        """Merge what has become too much, about one merged file's worth of it."""
        if self.limits.files is None:
            return
        self._finish()
        budget = self.limits.most_bytes
        while budget > 0:
            there = self._there()
            if not self.changed:
                return
            folder = next(iter(self.changed))
            chosen = self._chosen(there[folder], self.limits.files, content)
            if not chosen:
                self.changed.discard(folder)
                continue
            budget -= sum(file.size for file in chosen)
            self._merge(folder, chosen, content)

    def _there(self) -> dict[str, list[File]]:
        if self.files is None:
            self.files = {}
            self.changed.clear()
            for item in self.store.list():
                self.add(item.name, item.size)
        return self.files

    def _chosen(self, files: Sequence[File], least: int, content: Content) -> list[File]:
        """Files that are worth a merge: the newest ones, as far back as they are small."""
        chosen: list[File] = []
        size = rows = 0
        for unit in _units(files):
            more = sum(file.size for file in unit)
            another = bool(chosen) and unit[0].held.generation != chosen[0].held.generation
            size += more
            if another or size > self.limits.most_bytes or _is_large(more, size - more):
                break
            if self.limits.rows is not None:
                rows += sum(self._rows(file, content) for file in unit)
                if rows > self.limits.rows:
                    break
            chosen = [*unit, *chosen]
        return chosen if len(chosen) >= least else []

    def _rows(self, file: File, content: Content) -> int:
        if file.rows is None:
            try:
                file.rows = content.count(self.store, file.path)
            except NotFound:
                # Somebody else has removed it, which is noticed when it is merged.
                return 0
        return file.rows

    def _merge(self, folder: str, chosen: Sequence[File], content: Content) -> None:
        first, last = chosen[0].held, chosen[-1].held
        name = merged_name(self.prefix, first.generation, first.first, last.last, content.format)
        aside = f"{uuid.uuid4().hex[:12]}-{name}"
        paths = [file.path for file in chosen]
        try:
            with self.store.writer(f"{self.aside}/{_ASIDE}/{aside}") as out:
                rows = content.merge(self.store, paths, out)
        except NotFound:
            # The directory is its owner's: what somebody has removed stays removed.
            self.files = None
            return
        merge = Merge(folder, name, aside, out.tell(), rows, tuple(paths))
        if self._decide(merge):
            self._finish()
        else:
            # Another process was faster.
            self.recover()

    def _decide(self, merge: Merge) -> bool:
        """Create the record of a merge; False if its number was taken, now or at any time."""
        number = self.number + 1
        content = json.dumps(asdict(merge), indent=1).encode()
        try:
            self.store.put_new(self._record_name(number), content)
        except AlreadyExists:
            return False
        # The newest record is never deleted, so a number that was used before has newer ones.
        if max(self._records()) != number:
            return False
        before, self.number, self.pending = self.number, number, merge
        if before >= 0:
            self.store.delete([self._record_name(before)])
        return True

    def _finish(self) -> None:
        """Swap the files of the newest record.

        The merged file is safe under its name aside, so nothing has to be synced in between. Where
        it is gone, nothing was replaced, or whoever owns the directory has removed it.
        """
        merge = self.pending
        if merge is None:
            return
        aside = f"{self.aside}/{_ASIDE}/{merge.aside}"
        if self.store.exists(merge.goal) or self.store.exists(aside):
            self.store.move_new(aside, merge.goal)
            if self.store.size(merge.goal) != merge.size:
                raise AlreadyExists(f"{self.store.uri}/{merge.goal}")
            self.store.delete(merge.files)
            self.store.sync([merge.folder])
        self.pending = None
        self._replace(merge)

    def _replace(self, merge: Merge) -> None:
        if self.files is not None:
            old = self.files.get(merge.folder, [])
            self.files[merge.folder] = [file for file in old if file.path not in merge.files]
            self.add(merge.goal, merge.size, merge.rows)


def _is_large(size: int, newer: int) -> bool:
    """Whether a file waits until more has come after it: else it is written again and again."""
    return newer > 0 and size > max(2 * newer, _TINY_BYTES)


def _units(files: Sequence[File]) -> Iterable[list[File]]:
    """Files by the epochs they hold, the newest first: a merge takes all of an epoch or none."""
    by_epochs: dict[tuple[int, int], list[File]] = {}
    for file in sorted(files, key=lambda file: file.path):
        by_epochs.setdefault((file.held.generation, file.held.first), []).append(file)
    return (by_epochs[key] for key in sorted(by_epochs, reverse=True))
