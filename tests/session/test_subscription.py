"""Subscriptions and memory sinks: delivered and missed epochs, recovery, and the cost of polling."""

from __future__ import annotations

import os
import random
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.lossy_disk import LossyDisk, lose_power
from tests.support.sinks import committed, memory_sink, run, stage
from tidegate.checkpoint.manifest import EpochRange
from tidegate.connectors.base import CommittedState, EpochId
from tidegate.connectors.memory import connector as memory
from tidegate.errors import RunError
from tidegate.session.subscription import Subscription
from tidegate.storage import StorageError, open_store
from tidegate.storage import local as disk


def subscribed(path: Path, from_epoch: int | None = None) -> Subscription:
    return Subscription(open_store(str(path)), from_epoch)


def epochs(subscription: Subscription) -> dict[int, list[int]]:
    return {b.epoch: b.table.column("a").to_pylist() for b in subscription.take_all()}


def test_unchanged_sink_is_not_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = memory_sink(tmp_path)
    run(sink, 0, 1)
    old = time.time() - 60
    os.utime(tmp_path / "out", (old, old))
    subscription = subscribed(tmp_path)
    assert epochs(subscription) == {0: [0], 1: [1]}
    listed: list[Any] = []
    stored = memory.stored_epochs
    monkeypatch.setattr(
        memory, "stored_epochs", lambda store: listed.append(store) or stored(store)
    )
    assert subscription.take_all() == [] and not listed
    run(sink, 2, 5)
    assert epochs(subscription) == {2: [2], 5: [5]}
    assert len(listed) == 1


def test_slow_subscriber_gets_an_error_for_missed_epochs(tmp_path: Path) -> None:
    sink = memory_sink(tmp_path, retain=3)
    run(sink, 0, 1)
    slow = subscribed(tmp_path)
    assert list(epochs(slow)) == [0, 1]
    run(sink, 2, 3, 4)
    assert list(epochs(slow)) == [2, 3, 4]
    run(sink, 5, 6, 7, 8)
    with pytest.raises(RunError) as caught:
        slow.take_all()
    assert caught.value.code == "TG-604" and "epoch 5" in caught.value.message
    assert list(epochs(subscribed(tmp_path))) == [6, 7, 8]


def test_epochs_without_rows_are_not_missed_epochs(tmp_path: Path) -> None:
    sink = memory_sink(tmp_path, retain=3)
    run(sink, 0)
    subscription = subscribed(tmp_path)
    assert list(epochs(subscription)) == [0]
    run(sink, 7)
    assert list(epochs(subscription)) == [7]


def test_epochs_expire_although_numbers_are_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DROP STREAM, RESTORE and damaged manifests skip numbers."""
    sink = memory_sink(tmp_path, retain=3)
    run(sink, 0, 1)
    listed: list[Any] = []
    stored = memory.stored_epochs
    monkeypatch.setattr(
        memory, "stored_epochs", lambda store: listed.append(store) or stored(store)
    )
    run(sink, 2, 7)
    assert list(stored(sink.store)) == [7] and memory.last_expired(sink.store) == 2
    run(sink, 9, 10)
    assert list(stored(sink.store)) == [9, 10] and memory.last_expired(sink.store) == 7
    # An epoch without rows also expires older ones.
    run(sink, 12, tasks=0)
    assert list(stored(sink.store)) == [10] and memory.last_expired(sink.store) == 9
    assert not listed, "an epoch does not list the stored ones"


def test_fewer_retained_epochs_expire_all_older_ones(tmp_path: Path) -> None:
    run(memory_sink(tmp_path, retain=100), *range(10))
    slow = subscribed(tmp_path, from_epoch=4)
    sink = memory_sink(tmp_path, retain=2)
    sink.recover(committed(9))
    run(sink, 10)
    assert list(memory.stored_epochs(sink.store)) == [9, 10]
    with pytest.raises(RunError, match="epoch 4 has been removed"):
        slow.take_all()
    assert list(epochs(subscribed(tmp_path))) == [9, 10]


def test_failed_deletion_of_expired_epochs_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = memory_sink(tmp_path, retain=1)
    run(sink, 0)

    def fail(*_: Any) -> None:
        raise StorageError("out", "does not answer", retryable=True)

    committables = stage(sink, EpochId(0, 4), [4])
    with monkeypatch.context() as patch:
        patch.setattr(disk.LocalStore, "delete", fail)
        with pytest.raises(StorageError):
            sink.publish(EpochId(0, 4), committables)
    sink.publish(EpochId(0, 4), committables)
    assert epochs(subscribed(tmp_path)) == {4: [4]} and memory.last_expired(sink.store) == 0


def test_undone_epochs_do_not_count_as_expired(tmp_path: Path) -> None:
    run(memory_sink(tmp_path, retain=100), 0, 1, 2, 3)
    sink = memory_sink(tmp_path, retain=2)
    state = committed(20, generation=1)
    lineage = (EpochRange(0, -1, 1), EpochRange(1, 20, 20))
    sink.recover(replace(state, lineage=lineage, staged_epoch=EpochId(0, 1)))
    run(sink, 21, generation=1)
    assert list(memory.stored_epochs(sink.store)) == [21]
    assert memory.last_expired(sink.store) == 1


@pytest.mark.parametrize("tasks", [1, 3])
def test_repeatedly_committed_epoch_is_read_once_and_completely(tmp_path: Path, tasks: int) -> None:
    sink = memory_sink(tmp_path)
    sink.recover(CommittedState(None))
    committables = stage(sink, EpochId(0, 0), list(range(6)), tasks)
    assert epochs(subscribed(tmp_path)) == {}
    for _ in range(2):
        sink.publish(EpochId(0, 0), committables)
        assert sorted(epochs(subscribed(tmp_path))[0]) == list(range(6))
    for _ in range(2):
        memory_sink(tmp_path).recover(committed(0, committables))
        assert sorted(epochs(subscribed(tmp_path))[0]) == list(range(6))
    assert not list((tmp_path / "staged").glob("*"))


def test_recover_publishes_the_committed_epoch_and_deletes_other_staged_rows(
    tmp_path: Path,
) -> None:
    sink = memory_sink(tmp_path)
    run(sink, 0)
    stage(sink, EpochId(0, 1), [666])
    committables = stage(sink, EpochId(0, 1), [1, 2], tasks=2)
    memory_sink(tmp_path).recover(committed(1, committables))
    assert {e: sorted(rows) for e, rows in epochs(subscribed(tmp_path)).items()} == {
        0: [0],
        1: [1, 2],
    }
    assert not list((tmp_path / "staged").glob("*"))


@pytest.mark.parametrize("epoch", [0, 1])
def test_staged_rows_of_a_zombie_for_the_next_epoch_are_kept(tmp_path: Path, epoch: int) -> None:
    """The zombie may still commit that epoch, and then its rows must exist."""
    zombie = memory_sink(tmp_path)
    zombie.recover(CommittedState(None))
    run(zombie, *range(epoch))
    committables = stage(zombie, EpochId(0, epoch), [77])
    memory_sink(tmp_path).recover(committed(0) if epoch else CommittedState(None))
    zombie.publish(EpochId(0, epoch), committables)
    assert epochs(subscribed(tmp_path)) == {**{n: [n] for n in range(epoch)}, epoch: [77]}


@pytest.mark.parametrize("tasks", [1, 2])
@pytest.mark.parametrize("seed", range(5))
def test_committed_epochs_survive_a_power_loss(tmp_path: Path, tasks: int, seed: int) -> None:
    """Including later epochs without rows: only the manifest of the last epoch has its committables."""
    before = disk.use_disk(LossyDisk(tmp_path / "journal"))
    try:
        sink = memory_sink(tmp_path / "s")
        sink.recover(CommittedState(None))
        run(sink, 0, 1, tasks=tasks)
        run(sink, 2, tasks=0)
    finally:
        disk.use_disk(before)
    lose_power(tmp_path / "journal", random.Random(seed) if seed else None)
    memory_sink(tmp_path / "s").recover(committed(2))
    assert epochs(subscribed(tmp_path / "s")) == {n: [n] * tasks for n in range(2)}


def test_epochs_ahead_of_the_pipeline_are_rejected_and_kept(tmp_path: Path) -> None:
    """Readers have read these epochs; the user must decide about them after restoring old manifests."""
    run(memory_sink(tmp_path), 0, 1, 2)
    for _ in range(2):
        with pytest.raises(RunError, match="contains epoch 2") as caught:
            memory_sink(tmp_path).recover(committed(1))
        assert caught.value.code == "TG-525" and caught.value.hint
        assert epochs(subscribed(tmp_path)) == {n: [n] for n in range(3)}
    memory_sink(tmp_path).recover(committed(2))


def test_restarted_stream_keeps_epochs_of_its_own_pipeline(tmp_path: Path) -> None:
    """Epochs continue in the same pipeline. In another one they begin again, so old ones are deleted."""
    run(memory_sink(tmp_path), 0, 1, 2)
    over = CommittedState(None, lineage=(EpochRange(0, -1, 2),))
    memory_sink(tmp_path).recover(over)
    assert epochs(subscribed(tmp_path)) == {n: [n] for n in range(3)}
    memory_sink(tmp_path).recover(CommittedState(None, lineage=(EpochRange(0, -1, 1),)))
    assert epochs(subscribed(tmp_path)) == {}
