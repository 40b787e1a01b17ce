"""The loop of a pipeline without Spark: killed at every step, damaged, raced."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.support.lossy_disk import LossyDisk, PowerLost, lose_power
from tests.support.pipelines import PipelineHarness, PythonPipeline, check, kill_at
from tidegate.connectors.memory import connector as memory
from tidegate.errors import DataDirectoryError, RunError
from tidegate.observe.status import State
from tidegate.runtime.pipeline import EpochStep
from tidegate.storage import local as disk


def test_to_the_end_and_again(harness: PipelineHarness) -> None:
    harness.insert(1, 2, 3)
    finished = harness.run()
    assert finished.failure is None
    assert {item.state for item in finished.status()} == {State.FINISHED}
    assert [(item.rows_in, item.rows_out) for item in finished.status()] == [(6, 6)] * 2
    check(harness, 1, 2, 3)
    harness.insert(4)
    assert harness.run().failure is None
    check(harness, 1, 2, 3, 4)


@pytest.mark.parametrize("step", EpochStep)
def test_killed_at_every_step_of_every_epoch_each_row_is_there_once(
    harness: PipelineHarness, monkeypatch: pytest.MonkeyPatch, step: EpochStep
) -> None:
    """In one run after the other, also at the commit of every single sink."""
    values: list[int] = []
    for times in range(1, 9):
        values += [10 * times + n for n in range(3)]
        harness.insert(*values[-3:])
        kill_at(monkeypatch, step, times)
        died = harness.run()
        monkeypatch.undo()
        if step is not EpochStep.PUBLISHING and times < 3:
            assert died.failure is not None, "it was killed"
    assert harness.run().failure is None
    check(harness, *values)


def test_killed_again_and_again_before_anything_is_decided(
    harness: PipelineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.insert(1)
    for step in (EpochStep.CUT, EpochStep.RAN, EpochStep.RAN, EpochStep.CUT):
        kill_at(monkeypatch, step, 1)
        assert harness.run().failure is not None
        assert harness.epochs() == [] and all(harness.rows(sink) == [] for sink in harness.sinks())
        monkeypatch.undo()
    assert harness.run().failure is None
    check(harness, 1)


def test_killed_between_the_commits_of_two_sinks_both_have_the_same_rows(
    harness: PipelineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids are random: whoever computes an epoch again gives other rows to the second sink."""
    harness.insert(1, 2)
    kill_at(monkeypatch, EpochStep.PUBLISHING, 1)
    assert harness.run().failure is not None
    monkeypatch.undo()
    counts = {sink: len(harness.rows(sink)) for sink in harness.sinks()}
    assert sorted(counts.values()) == [0] * 5 + [2]
    assert harness.run().failure is None
    check(harness, 1, 2)


@pytest.mark.parametrize("seed", range(12))
def test_power_lost_again_and_again_each_row_is_there_once(harness: PipelineHarness, seed: int) -> None:
    """Everything that was not synced may be gone, in any combination."""
    dice = random.Random(seed)
    journal = harness.folder / "journal"
    values: list[int] = []
    before = disk.current_disk()
    lost = 0
    try:
        for _ in range(6):
            lossy = LossyDisk(journal)
            disk.use_disk(lossy)
            values += [len(values) + 1 + n for n in range(1 + dice.randrange(3))]
            harness.insert(*values[harness.inserts.count() :])
            lossy.steps = dice.randrange(1, 250)
            try:
                failure = harness.run().failure
                lost += failure is not None
                assert failure is None or lossy.steps == 0, failure
            except PowerLost:
                lost += 1
            disk.use_disk(before)
            lose_power(journal, dice if dice.random() < 0.8 else None)
            memory.forget_inserts(str(harness.folder))
        assert harness.inserts.count() == len(values)
        assert harness.run().failure is None
    finally:
        disk.use_disk(before)
    assert lost > 0
    check(harness, *values)


# What is kept


def test_only_what_kept_manifests_name_is_kept(harness: PipelineHarness) -> None:
    harness.insert(*range(1, 11))
    assert harness.run(max_retained=2).failure is None
    kept = harness.pipeline().manifests.load_all()
    assert len(kept) == 2
    named = {f for m in kept for o in m.operators.values() for f in o.files}
    assert harness.state_files() == named and len(named) == 4


def test_what_a_dead_attempt_wrote_is_swept_once_its_epoch_is_decided(harness: PipelineHarness) -> None:
    harness.insert(1)
    harness.run()
    state = harness.store.child("state")
    state.put_new("000-000000000001-of-an-old-attempt", b"")
    state.put_new("000-000000000900-of-a-zombie", b"")
    harness.insert(2)
    harness.run()
    harness.run()
    assert "000-000000000001-of-an-old-attempt" not in harness.state_files()
    # A process that should be dead could still decide that epoch.
    assert "000-000000000900-of-a-zombie" in harness.state_files()


def test_an_idle_pipeline_writes_nothing(harness: PipelineHarness) -> None:
    harness.insert(1)
    harness.run(until_end=False).stop()
    running = harness.run(until_end=False)
    running.wait(30)
    before = {path: path.stat().st_mtime_ns for path in harness.folder.rglob("*")}
    for _ in range(20):
        running.wake()
        running.wait(30)
    after = {path: path.stat().st_mtime_ns for path in harness.folder.rglob("*")}
    running.stop()
    assert before == after


# Damage


def newest(harness: PipelineHarness) -> Path:
    return sorted((harness.folder / "pipeline" / "manifests").glob("*.json"))[-1]


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def test_a_damaged_manifest_and_no_sink_that_is_ahead_goes_on_from_the_one_before(
    harness: PipelineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.insert(1, 2)
    kill_at(monkeypatch, EpochStep.COMMITTED, 2)
    harness.run()
    monkeypatch.undo()
    damage(newest(harness))
    again = harness.run()
    assert again.failure is None
    assert [warning.code for warning in again.warnings] == ["TG-605"]
    assert "000-000000000001.json" in again.warnings[0].message
    check(harness, 1, 2)
    harness.insert(3)
    assert harness.run().failure is None
    check(harness, 1, 2, 3)


def test_a_damaged_manifest_and_a_sink_that_is_ahead_is_rejected_with_what_to_do(
    harness: PipelineHarness,
) -> None:
    harness.insert(1, 2)
    harness.run()
    before = {sink: harness.rows(sink) for sink in harness.sinks()}
    damage(newest(harness))
    for _ in range(2):
        with pytest.raises(RunError) as caught:
            harness.run()
        assert caught.value.code == "TG-525" and "is ahead of the pipeline" in caught.value.message
        assert "restore the data directory" in (caught.value.hint or "")
        assert {s: harness.rows(s) for s in harness.sinks() if "kept" not in s} == {
            s: rows for s, rows in before.items() if "kept" not in s
        }


def test_if_all_manifests_are_damaged_nothing_is_started(harness: PipelineHarness) -> None:
    harness.insert(1, 2)
    harness.run()
    for path in (harness.folder / "pipeline" / "manifests").glob("*.json"):
        damage(path)
    with pytest.raises(DataDirectoryError) as caught:
        harness.run()
    assert caught.value.code == "TG-605"
    check(harness, 1, 2)


def test_a_data_directory_that_is_gone_does_not_write_rows_again(harness: PipelineHarness) -> None:
    harness.insert(1)
    harness.run()
    harness.store.delete_all("manifests")
    with pytest.raises(RunError, match="an earlier pipeline wrote"):
        harness.run()


# Two processes


def test_of_two_drivers_the_second_to_decide_stops_and_nothing_is_lost(harness: PipelineHarness) -> None:
    """A zombie that has run its job wakes up after a successor has begun, and decides first."""
    harness.insert(1)
    harness.run(until_end=False).stop()
    ran, go = threading.Event(), threading.Event()

    def sleeps(pipeline: PythonPipeline, epoch_spec: Any) -> None:
        ran.set()
        assert go.wait(30)

    zombie, successor = harness.pipeline(), harness.pipeline()
    zombie.job = sleeps
    harness.insert(2)
    zombie.start(harness.members, False)
    assert ran.wait(30)

    def decides_late(pipeline: PythonPipeline, epoch_spec: Any) -> None:
        go.set()
        zombie.wait(30)

    successor.job = decides_late
    successor.start(harness.members, False)
    with pytest.raises(DataDirectoryError) as caught:
        successor.wait(30)
    assert caught.value.code == "TG-602"
    zombie.stop()
    successor.stop()
    harness.insert(3)
    assert harness.run().failure is None
    check(harness, 1, 2, 3)


def test_a_zombie_that_decides_second_stops_and_nothing_is_lost(harness: PipelineHarness) -> None:
    harness.insert(1)
    harness.run(until_end=False).stop()
    ran, go = threading.Event(), threading.Event()

    def sleeps(pipeline: PythonPipeline, epoch_spec: Any) -> None:
        ran.set()
        assert go.wait(30)

    zombie = harness.pipeline()
    zombie.job = sleeps
    harness.insert(2)
    zombie.start(harness.members, False)
    assert ran.wait(30)
    harness.insert(3)
    assert harness.run().failure is None
    go.set()
    with pytest.raises(DataDirectoryError) as caught:
        zombie.wait(30)
    assert caught.value.code == "TG-602" and "committed nothing" in (caught.value.hint or "")
    zombie.stop()
    check(harness, 1, 2, 3)
    harness.insert(4)
    assert harness.run().failure is None
    check(harness, 1, 2, 3, 4)
