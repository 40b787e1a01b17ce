"""A power failure at any step leaves a complete file or none."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.lossy_disk import LossyDisk, PowerLost, lose_power
from tidegate.storage import Store, open_store
from tidegate.storage.local import Disk, current_disk, use_disk

Action = Callable[[Store], None]
OLD = b"old" * 1000
NEW = b"new!" * 1000


@pytest.fixture(autouse=True)
def restore_disk() -> Iterator[None]:
    previous = current_disk()
    yield
    use_disk(previous)


def write(store: Store) -> None:
    with store.writer("a/b/x") as writer:
        for start in range(0, len(NEW), 1000):
            writer.write(NEW[start : start + 1000])
            writer.flush()


def stage_and_move(store: Store) -> None:
    store.put_new("staged/x", NEW)
    move(store)


def move(store: Store) -> None:
    store.move_new("staged/x", "a/b/x")
    store.sync(["a/b"])


CREATING = [lambda store: store.put_new("a/b/x", NEW), write, stage_and_move]
SEEDS = [None, *range(6)]


def run_until_power_loss(
    folder: Path, setup: Action | None, action: Action, steps: int, seed: int | None
) -> tuple[Store, bool]:
    """Run an action until the power fails; return the store and whether the action completed."""
    journal = folder / f"journal-{steps}-{seed}"
    store = open_store(str(folder / f"store-{steps}-{seed}" / "data"))
    if setup is not None:
        use_disk(LossyDisk(journal))
        setup(store)
    use_disk(LossyDisk(journal, steps))
    completed = True
    try:
        action(store)
    except PowerLost:
        completed = False
    use_disk(Disk())
    lose_power(journal, None if seed is None else random.Random(seed))
    return store, completed


def outcomes(
    folder: Path, action: Action, setup: Action | None = None
) -> Iterator[tuple[Store, bool]]:
    for seed in SEEDS:
        completed, steps = False, 0
        while not completed:
            store, completed = run_until_power_loss(folder, setup, action, steps, seed)
            yield store, completed
            steps += 1
        assert steps > 5


@pytest.mark.parametrize("action", CREATING, ids=["put_new", "writer", "move_new"])
def test_creates_complete_file_or_none(tmp_path: Path, action: Action) -> None:
    seen = set()
    for store, completed in outcomes(tmp_path, action):
        content = store.get("a/b/x") if store.exists("a/b/x") else None
        assert content in (None, NEW)
        assert content == NEW or not completed
        assert {item.name for item in store.list()} <= {"a/b/x", "staged/x"}
        seen.add((content is not None, completed))
    assert {(False, False), (True, True)} <= seen


def test_never_loses_a_moved_file(tmp_path: Path) -> None:
    def stage(store: Store) -> None:
        store.put_new("staged/x", NEW)

    for store, completed in outcomes(tmp_path, move, stage):
        assert store.exists("a/b/x") or not completed
        move(store)
        assert store.get("a/b/x") == NEW
        assert [item.name for item in store.list()] == ["a/b/x"]


def test_replaces_complete_file_or_keeps_old_one(tmp_path: Path) -> None:
    seen = set()
    replace, create = (lambda store, data=data: store.put("a/b/x", data) for data in (NEW, OLD))
    for store, completed in outcomes(tmp_path, replace, create):
        content = store.get("a/b/x")
        assert content == NEW if completed else content in (OLD, NEW)
        seen.add(content)
    assert seen == {OLD, NEW}


class UnsyncedDisk(LossyDisk):
    """A disk whose syncs do nothing, to prove that the tests above detect it."""

    def sync(self, handle: int) -> None:
        self._step()

    def sync_folder(self, path: str) -> None:
        self._step()


@pytest.mark.parametrize("seed", range(3))
def test_lossy_disk_loses_unsynced_data(tmp_path: Path, seed: int) -> None:
    use_disk(UnsyncedDisk(tmp_path / "journal"))
    store = open_store(str(tmp_path / "data"))
    store.put_new("x", NEW)
    assert store.get("x") == NEW
    lose_power(tmp_path / "journal", None if seed == 0 else random.Random(seed))
    use_disk(Disk())
    assert not store.exists("x") or store.get("x") != NEW
