"""A loss of power at any step leaves nothing or the whole."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.storage.lossy_disk import LossyDisk, PowerLost, lose_power
from tidegate.storage import Store, open_store
from tidegate.storage import local as disk

Action = Callable[[Store], None]
OLD = b"old" * 1000
NEW = b"new!" * 1000


@pytest.fixture(autouse=True)
def the_disk_as_before() -> Iterator[None]:
    before = disk.current()
    yield
    disk.use(before)


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


def powers_out(
    folder: Path, before: Action | None, action: Action, steps: int, seed: int | None
) -> tuple[Store, bool]:
    """Do something until power is lost; what is there afterwards, and whether it was done."""
    journal = folder / f"journal-{steps}-{seed}"
    store = open_store(str(folder / f"store-{steps}-{seed}" / "data"))
    if before is not None:
        disk.use(LossyDisk(journal))
        before(store)
    disk.use(LossyDisk(journal, steps))
    done = True
    try:
        action(store)
    except PowerLost:
        done = False
    disk.use(disk.Disk())
    lose_power(journal, None if seed is None else random.Random(seed))
    return store, done


def every_outcome(
    folder: Path, action: Action, before: Action | None = None
) -> Iterator[tuple[Store, bool]]:
    for seed in SEEDS:
        done, steps = False, 0
        while not done:
            store, done = powers_out(folder, before, action, steps, seed)
            yield store, done
            steps += 1
        assert steps > 5


@pytest.mark.parametrize("action", CREATING, ids=["put_new", "writer", "move_new"])
def test_created_whole_or_not_at_all(tmp_path: Path, action: Action) -> None:
    seen = set()
    for store, done in every_outcome(tmp_path, action):
        found = store.get("a/b/x") if store.exists("a/b/x") else None
        assert found in (None, NEW)
        assert found == NEW or not done
        assert {item.name for item in store.list()} <= {"a/b/x", "staged/x"}
        seen.add((found is not None, done))
    assert {(False, False), (True, True)} <= seen


def test_a_moved_file_is_never_lost(tmp_path: Path) -> None:
    def stage(store: Store) -> None:
        store.put_new("staged/x", NEW)

    for store, done in every_outcome(tmp_path, move, stage):
        assert store.exists("a/b/x") or not done
        move(store)
        assert store.get("a/b/x") == NEW
        assert [item.name for item in store.list()] == ["a/b/x"]


def test_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    seen = set()
    replace, create = (lambda store, data=data: store.put("a/b/x", data) for data in (NEW, OLD))
    for store, done in every_outcome(tmp_path, replace, create):
        found = store.get("a/b/x")
        assert found == NEW if done else found in (OLD, NEW)
        seen.add(found)
    assert seen == {OLD, NEW}


class Careless(LossyDisk):
    """A disk whose syncs do nothing: the tests above must notice."""

    def sync(self, handle: int) -> None:
        self._step()

    def sync_folder(self, path: str) -> None:
        self._step()


@pytest.mark.parametrize("seed", range(3))
def test_the_lossy_disk_loses_what_is_not_synced(tmp_path: Path, seed: int) -> None:
    disk.use(Careless(tmp_path / "journal"))
    store = open_store(str(tmp_path / "data"))
    store.put_new("x", NEW)
    assert store.get("x") == NEW
    lose_power(tmp_path / "journal", None if seed == 0 else random.Random(seed))
    disk.use(disk.Disk())
    assert not store.exists("x") or store.get("x") != NEW
