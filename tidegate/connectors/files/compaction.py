"""Merges the small files that a files sink has published into larger ones.

The merged file is written to an internal folder and fsynced. Then a record of the merge is created,
which commits the merge and can succeed only once, even if two processes try. After that the file is
renamed to its final name and the files that it replaces are deleted. Every process that finds an
unfinished merge in the newest record finishes it; doing so repeatedly has no further effect.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from tidegate.connectors.files.listing import EpochFileName, merged_name, parse_file_name
from tidegate.connectors.files.writer import FileFormat
from tidegate.storage import AlreadyExists, NotFound, StorageError

if TYPE_CHECKING:
    from tidegate.storage import Store

_RECORDS, _STAGED = "merges", "merge_staging"
_RECORD = re.compile(r".*/(\d+)\.json")
# The maximum size of a merged file, because one process writes it.
_MAX_BYTES = 64 << 20
# Larger files are only merged with newer files of at least half their size.
_TINY_BYTES = 1 << 20


@dataclass(frozen=True)
class CompactionLimits:
    """The conditions for a merge, and the maximum size of a merged file."""

    # Merge this many small files of a folder; None disables merging.
    files: int | None
    rows: int | None
    bytes: int | None

    @property
    def max_bytes(self) -> int:
        return min(self.bytes or _MAX_BYTES, _MAX_BYTES)


@dataclass
class CommittedFile:
    """A published file."""

    path: str
    name: EpochFileName
    size: int
    rows: int | None = None


@dataclass(frozen=True)
class MergeRecord:
    """The record that commits a merge: a new file and the files that it replaces.

    The field names are keys of the stored JSON. `internal_name` is the name in the internal folder.
    """

    folder: str
    name: str
    internal_name: str
    size: int
    rows: int
    files: tuple[str, ...]

    @property
    def target(self) -> str:
        return f"{self.folder}/{self.name}" if self.folder else self.name


@dataclass
class Compaction:
    """Merges the files of one sink.

    The sink calls `recover` when it opens, `add` for every file that it publishes, and `run` after
    every epoch.
    """

    store: Store
    # The internal folder of the sink.
    internal: str
    # The prefix of the names of its files.
    prefix: str
    limits: CompactionLimits
    # The number of the newest record, -1 for none; and the record, unless its merge is finished.
    number: int = -1
    pending: MergeRecord | None = None
    # The files of each folder, None if they have not been listed; and folders with new files.
    files: dict[str, list[CommittedFile]] | None = None
    changed: set[str] = field(default_factory=set)

    def recover(self) -> None:
        """Finish the newest merge, and delete files of merges that were not committed."""
        self.files = None
        records = self._records()
        self.number = max(records, default=-1)
        if records:
            self.pending = self._record(self.number)
            self._finish()
        self.store.delete(self._record_name(n) for n in records if n != self.number)
        folder = f"{self.internal}/{_STAGED}"
        leftovers = [*self.store.list(folder), *self.store.list_unfinished(folder)]
        self.store.delete(item.name for item in leftovers)

    def _records(self) -> list[int]:
        names = [item.name for item in self.store.list(f"{self.internal}/{_RECORDS}")]
        return [int(match[1]) for name in names if (match := _RECORD.fullmatch(name))]

    def _record_name(self, number: int) -> str:
        return f"{self.internal}/{_RECORDS}/{number:012d}.json"

    def _record(self, number: int) -> MergeRecord:
        name = self._record_name(number)
        try:
            stored = json.loads(self.store.get(name))
            return MergeRecord(**{**stored, "files": tuple(stored["files"])})
        except (ValueError, KeyError, TypeError) as error:
            raise StorageError(f"{self.store.uri}/{name}", f"is damaged ({error})") from None

    def add(self, path: str, size: int, rows: int | None = None) -> None:
        """Register a published file."""
        name = parse_file_name(path)
        if self.files is not None and name is not None and name.prefix == self.prefix:
            self.files.setdefault(name.folder, []).append(CommittedFile(path, name, size, rows))
            self.changed.add(name.folder)

    def run(self, file_format: FileFormat) -> None:
        """Merge files of folders that have too many. Writes about one merged file per call."""
        if self.limits.files is None:
            return
        self._finish()
        budget = self.limits.max_bytes
        while budget > 0:
            files = self._listed_files()
            if not self.changed:
                return
            folder = next(iter(self.changed))
            chosen = self._choose(files[folder], self.limits.files, file_format)
            if not chosen:
                self.changed.discard(folder)
                continue
            budget -= sum(file.size for file in chosen)
            self._merge(folder, chosen, file_format)

    def _listed_files(self) -> dict[str, list[CommittedFile]]:
        if self.files is None:
            self.files = {}
            self.changed.clear()
            for item in self.store.list():
                self.add(item.name, item.size)
        return self.files

    def _choose(
        self, files: Sequence[CommittedFile], min_files: int, file_format: FileFormat
    ) -> list[CommittedFile]:
        """Choose the files to merge: the newest files, up to a large file or a limit."""
        chosen: list[CommittedFile] = []
        size = rows = 0
        for unit in _units(files):
            unit_size = sum(file.size for file in unit)
            is_other_generation = (
                bool(chosen) and unit[0].name.generation != chosen[0].name.generation
            )
            size += unit_size
            if (
                is_other_generation
                or size > self.limits.max_bytes
                or _is_large(unit_size, size - unit_size)
            ):
                break
            if self.limits.rows is not None:
                rows += sum(self._rows(file, file_format) for file in unit)
                if rows > self.limits.rows:
                    break
            chosen = [*unit, *chosen]
        return chosen if len(chosen) >= min_files else []

    def _rows(self, file: CommittedFile, file_format: FileFormat) -> int:
        if file.rows is None:
            try:
                file.rows = file_format.count(self.store, file.path)
            except NotFound:
                # The file has been removed. `_merge` will notice.
                return 0
        return file.rows

    def _merge(self, folder: str, chosen: Sequence[CommittedFile], file_format: FileFormat) -> None:
        first, last = chosen[0].name, chosen[-1].name
        name = merged_name(
            self.prefix, first.generation, first.first, last.last, file_format.format
        )
        internal_name = f"{uuid.uuid4().hex[:12]}-{name}"
        paths = [file.path for file in chosen]
        try:
            with self.store.writer(f"{self.internal}/{_STAGED}/{internal_name}") as out:
                rows = file_format.merge(self.store, paths, out)
        except NotFound:
            # A user has removed a file. It stays removed, so list the files again.
            self.files = None
            return
        merge = MergeRecord(folder, name, internal_name, out.tell(), rows, tuple(paths))
        if self._commit(merge):
            self._finish()
        else:
            # Another process has committed a merge.
            self.recover()

    def _commit(self, merge: MergeRecord) -> bool:
        """Create the record of a merge. Returns False if its number is or was in use."""
        number = self.number + 1
        content = json.dumps(asdict(merge), indent=1).encode()
        try:
            self.store.put_new(self._record_name(number), content)
        except AlreadyExists:
            return False
        # The newest record is never deleted, so there is a newer one if this number was in use.
        if max(self._records()) != number:
            return False
        previous, self.number, self.pending = self.number, number, merge
        if previous >= 0:
            self.store.delete([self._record_name(previous)])
        return True

    def _finish(self) -> None:
        """Replace the files of the newest record by the merged file.

        The merged file is durable in the internal folder, so no sync is needed in between. If it is
        in neither location, the merge has been finished and a user has removed the file.
        """
        merge = self.pending
        if merge is None:
            return
        merged = f"{self.internal}/{_STAGED}/{merge.internal_name}"
        if self.store.exists(merge.target) or self.store.exists(merged):
            self.store.move_new(merged, merge.target)
            if self.store.size(merge.target) != merge.size:
                raise AlreadyExists(f"{self.store.uri}/{merge.target}")
            self.store.delete(merge.files)
            self.store.sync([merge.folder])
        self.pending = None
        self._replace(merge)

    def _replace(self, merge: MergeRecord) -> None:
        if self.files is not None:
            old = self.files.get(merge.folder, [])
            self.files[merge.folder] = [file for file in old if file.path not in merge.files]
            self.add(merge.target, merge.size, merge.rows)


def _is_large(size: int, newer: int) -> bool:
    """Return whether a file is too large to be rewritten for so few newer bytes."""
    return newer > 0 and size > max(2 * newer, _TINY_BYTES)


def _units(files: Sequence[CommittedFile]) -> Iterable[list[CommittedFile]]:
    """Group files by epoch, newest first. A merge contains all files of an epoch or none."""
    by_epochs: dict[tuple[int, int], list[CommittedFile]] = {}
    for file in sorted(files, key=lambda file: file.path):
        by_epochs.setdefault((file.name.generation, file.name.first), []).append(file)
    return (by_epochs[key] for key in sorted(by_epochs, reverse=True))
