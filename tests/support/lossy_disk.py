"""A disk that loses power: unsynced changes may be lost, in any combination.

Every change is recorded in a journal outside the store, which several processes can share.
`lose_power` undoes changes that no sync covers: all of them, or a random choice. Names in folders
are lost independently of each other, except that a rename is atomic, as on every journaling file
system. Unsynced files are truncated at a random position.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from tidegate.storage.local import Disk

Entry = dict[str, Any]


class PowerLost(BaseException):
    """The power fails; raised by the next operation on the disk."""


class LossyDisk(Disk):
    """Records all changes; the power fails after `steps` operations."""

    def __init__(self, journal: Path, steps: int | None = None) -> None:
        super().__init__()
        self.journal = journal
        self.steps = steps
        self.backups: dict[int, str] = {}
        journal.mkdir(parents=True, exist_ok=True)

    def create(self, path: str) -> int:
        self._step()
        handle = super().create(path)
        # Record the file at once: files without a record count as synced.
        self.backups[handle] = self._back_up(path)
        self._record(do="create", path=path, backup=self.backups[handle])
        return handle

    def write(self, handle: int, data: bytes | memoryview) -> None:
        half = len(memoryview(data)) // 2
        self._step()
        super().write(handle, memoryview(data)[:half])
        self._step()
        super().write(handle, memoryview(data)[half:])

    def sync(self, handle: int) -> None:
        self._step()
        self._record(do="sync", backup=self.backups[handle])

    def link(self, source: str, target: str) -> None:
        self._step()
        super().link(source, target)
        self._record(do="link", path=target)

    def rename(self, source: str, target: str) -> None:
        self._step()
        replaced = self._back_up(target) if Path(target).exists() else None
        super().rename(source, target)
        self._record(do="rename", path=target, source=source, backup=replaced)

    def unlink(self, path: str) -> None:
        self._step()
        backup = self._back_up(path)
        super().unlink(path)
        self._record(do="unlink", path=path, backup=backup)

    def make_folder(self, path: str) -> None:
        self._step()
        super().make_folder(path)
        self._record(do="make_folder", path=path)

    def remove_folder(self, path: str) -> None:
        self._step()
        super().remove_folder(path)
        self._record(do="remove_folder", path=path)

    def sync_folder(self, path: str) -> None:
        self._step()
        # A missing folder cannot be synced.
        Path(path).stat()
        self._record(do="sync_folder", path=path)

    def _step(self) -> None:
        if self.steps is not None:
            if self.steps <= 0:
                raise PowerLost
            self.steps -= 1

    def _back_up(self, path: str) -> str:
        """Link a file to a name outside the store, from which it can be restored."""
        backup = str(self.journal / f"backup-{os.urandom(8).hex()}")
        os.link(path, backup)
        return backup

    def _record(self, **entry: Any) -> None:
        line = (json.dumps(entry) + "\n").encode()
        handle = os.open(self.journal / "entries", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        try:
            os.write(handle, line)
        finally:
            os.close(handle)


def lose_power(journal: Path, dice: random.Random | None = None) -> None:
    """Undo unsynced changes, all of them or those that `dice` choose, and empty the journal."""
    entries = [json.loads(line) for line in _lines(journal / "entries")]
    for entry in _unsynced_changes(entries):
        if dice is None or dice.random() < 0.5:
            _undo(entry)
    for backup in _unsynced_files(entries):
        os.truncate(backup, 0 if dice is None else dice.randint(0, Path(backup).stat().st_size))
    shutil.rmtree(journal)
    journal.mkdir()


def _lines(path: Path) -> list[str]:
    return path.read_text("utf-8").splitlines() if path.exists() else []


def _unsynced_changes(entries: list[Entry]) -> list[Entry]:
    """Return the changes of folders that no later sync of the folder covers, newest first."""
    changes, synced = [], set()
    for entry in reversed(entries):
        if entry["do"] == "sync_folder":
            synced.add(entry["path"])
        elif entry["do"] != "sync":
            paths = [entry[key] for key in ("path", "source") if key in entry]
            if not synced & {str(Path(path).parent) for path in paths}:
                changes.append(entry)
    return changes


def _unsynced_files(entries: list[Entry]) -> set[str]:
    created = {entry["backup"] for entry in entries if entry["do"] == "create"}
    return created - {entry["backup"] for entry in entries if entry["do"] == "sync"}


def _undo(entry: Entry) -> None:
    path = Path(entry["path"])
    # Undoing another change may have removed the file or its folder.
    with suppress(FileNotFoundError):
        if entry["do"] in ("create", "link"):
            path.unlink()
        elif entry["do"] == "make_folder":
            shutil.rmtree(path)
        elif entry["do"] == "remove_folder":
            # The folder may have been created again since.
            path.mkdir(exist_ok=True)
        elif entry["do"] == "unlink":
            os.link(entry["backup"], path)
        elif entry["do"] == "rename":
            path.rename(entry["source"])
            if entry["backup"] is not None:
                os.link(entry["backup"], path)
