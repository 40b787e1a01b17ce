"""A disk that loses power: what was not synced may be gone, in any combination.

Every change is noted in a journal outside of the store, so several processes can share one. What a
sync covers is safe. `lose_power` undoes what is not: all of it, or what the dice say. Names in
folders are independent of each other, except that a rename is one step, as on every file system
with a journal. Bytes that were not synced are cut off somewhere.
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

TaskReport = dict[str, Any]


class PowerLost(BaseException):
    """The moment at which everything stops."""


class LossyDisk(Disk):
    """Notes what it does; `steps` is how many steps there are until power is lost."""

    def __init__(self, journal: Path, steps: int | None = None) -> None:
        super().__init__()
        self.journal = journal
        self.steps = steps
        self.kept: dict[int, str] = {}
        journal.mkdir(parents=True, exist_ok=True)

    def create(self, path: str) -> int:
        self._step()
        handle = super().create(path)
        # Noted at once: bytes of a file that nobody noted would count as safe.
        self.kept[handle] = self._keep(path)
        self._note(do="create", path=path, kept=self.kept[handle])
        return handle

    def write(self, handle: int, data: bytes | memoryview) -> None:
        half = len(memoryview(data)) // 2
        self._step()
        super().write(handle, memoryview(data)[:half])
        self._step()
        super().write(handle, memoryview(data)[half:])

    def sync(self, handle: int) -> None:
        self._step()
        self._note(do="sync", kept=self.kept[handle])

    def link(self, source: str, goal: str) -> None:
        self._step()
        super().link(source, goal)
        self._note(do="link", path=goal)

    def rename(self, source: str, goal: str) -> None:
        self._step()
        replaced = self._keep(goal) if Path(goal).exists() else None
        super().rename(source, goal)
        self._note(do="rename", path=goal, source=source, kept=replaced)

    def unlink(self, path: str) -> None:
        self._step()
        kept = self._keep(path)
        super().unlink(path)
        self._note(do="unlink", path=path, kept=kept)

    def make_folder(self, path: str) -> None:
        self._step()
        super().make_folder(path)
        self._note(do="make_folder", path=path)

    def remove_folder(self, path: str) -> None:
        self._step()
        super().remove_folder(path)
        self._note(do="remove_folder", path=path)

    def sync_folder(self, path: str) -> None:
        self._step()
        # A folder that is not there cannot be synced.
        Path(path).stat()
        self._note(do="sync_folder", path=path)

    def _step(self) -> None:
        if self.steps is not None:
            if self.steps <= 0:
                raise PowerLost
            self.steps -= 1

    def _keep(self, path: str) -> str:
        """A second name outside of the store, under which the file can be found again."""
        kept = str(self.journal / f"kept-{os.urandom(8).hex()}")
        os.link(path, kept)
        return kept

    def _note(self, **note: Any) -> None:
        line = (json.dumps(note) + "\n").encode()
        handle = os.open(self.journal / "notes", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        try:
            os.write(handle, line)
        finally:
            os.close(handle)


def lose_power(journal: Path, dice: random.Random | None = None) -> None:
    """Undo what was not synced: without dice all of it. The journal begins anew."""
    notes = [json.loads(line) for line in _lines(journal / "notes")]
    for note in _unsafe(notes):
        if dice is None or dice.random() < 0.5:
            _undo(note)
    for kept in _unsynced(notes):
        os.truncate(kept, 0 if dice is None else dice.randint(0, Path(kept).stat().st_size))
    shutil.rmtree(journal)
    journal.mkdir()


def _lines(path: Path) -> list[str]:
    return path.read_text("utf-8").splitlines() if path.exists() else []


def _unsafe(notes: list[TaskReport]) -> list[TaskReport]:
    """The changes of folders that no later sync of the folder covers, the last one first."""
    found, synced = [], set()
    for note in reversed(notes):
        if note["do"] == "sync_folder":
            synced.add(note["path"])
        elif note["do"] != "sync":
            paths = [note[key] for key in ("path", "source") if key in note]
            if not synced & {str(Path(path).parent) for path in paths}:
                found.append(note)
    return found


def _unsynced(notes: list[TaskReport]) -> set[str]:
    created = {note["kept"] for note in notes if note["do"] == "create"}
    return created - {note["kept"] for note in notes if note["do"] == "sync"}


def _undo(note: TaskReport) -> None:
    path = Path(note["path"])
    # What a change left behind may be gone by another change, or its folder may be.
    with suppress(FileNotFoundError):
        if note["do"] in ("create", "link"):
            path.unlink()
        elif note["do"] == "make_folder":
            shutil.rmtree(path)
        elif note["do"] == "remove_folder":
            # It may have been made again since.
            path.mkdir(exist_ok=True)
        elif note["do"] == "unlink":
            os.link(note["kept"], path)
        elif note["do"] == "rename":
            path.rename(note["source"])
            if note["kept"] is not None:
                os.link(note["kept"], path)
