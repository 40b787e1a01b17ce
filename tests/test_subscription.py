"""What a subscriber is told, and what looking costs."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pyarrow as pa
import pytest

from tidegate.connectors import memory
from tidegate.errors import RunError
from tidegate.subscription import Subscription


class Frame:
    """Stands for the rows of an epoch on Spark."""

    def __init__(self, value: int) -> None:
        self.value = value

    def toArrow(self) -> pa.Table:  # noqa: N802
        return pa.table({"n": [self.value]})


def write(writer: memory.MemoryWriter, *epochs: int) -> None:
    for epoch in epochs:
        writer.stage(epoch, Frame(epoch))  # type: ignore[arg-type]
        writer.commit(epoch)


def opened(path: Path, retain: int) -> memory.MemoryWriter:
    writer = memory.MemoryWriter(path / "out", retain)
    writer.prepare()
    return writer


def test_nothing_is_listed_while_nothing_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = opened(tmp_path, 100)
    write(writer, 0, 1)
    old = time.time() - 60
    os.utime(writer.directory, (old, old))
    subscription = Subscription(writer.directory)
    assert [batch.epoch for batch in subscription.take_all()] == [0, 1]
    listed: list[Path] = []
    stored = memory.stored_epochs
    monkeypatch.setattr(memory, "stored_epochs", lambda path: listed.append(path) or stored(path))
    assert subscription.take_all() == [] and not listed
    write(writer, 2, 5)
    assert [batch.epoch for batch in subscription.take_all()] == [2, 5]
    assert len(listed) == 1


def test_a_slow_subscriber_is_told_what_it_missed(tmp_path: Path) -> None:
    writer = opened(tmp_path, 3)
    write(writer, 0, 1)
    slow = Subscription(writer.directory)
    assert [batch.epoch for batch in slow.take_all()] == [0, 1]
    write(writer, 2, 3, 4)
    assert [batch.epoch for batch in slow.take_all()] == [2, 3, 4]
    write(writer, 5, 6, 7, 8)
    with pytest.raises(RunError) as caught:
        slow.take_all()
    assert caught.value.code == "TG-604" and "epoch 5" in caught.value.message
    assert [batch.epoch for batch in Subscription(writer.directory).take_all()] == [6, 7, 8]


def test_epochs_without_rows_are_not_missed(tmp_path: Path) -> None:
    writer = opened(tmp_path, 3)
    write(writer, 0)
    subscription = Subscription(writer.directory)
    assert len(subscription.take_all()) == 1
    write(writer, 7)
    assert [batch.epoch for batch in subscription.take_all()] == [7]
