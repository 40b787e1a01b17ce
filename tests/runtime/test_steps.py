"""The loop of a pipeline without Spark: killed at every step, damaged, raced."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.support.lossy_disk import LossyDisk, PowerLost, lose_power
from tests.support.pipelines import PipelineHarness, PythonPipeline, assert_exactly_once, kill_at
from tidegate.connectors.memory import connector as memory
from tidegate.errors import DataDirectoryError, RunError
from tidegate.observe.status import State
from tidegate.runtime.pipeline import EpochStep
from tidegate.storage.local import current_disk, use_disk


def test_runs_to_end_and_continues_with_new_rows(harness: PipelineHarness) -> None:
    harness.insert(1, 2, 3)
    finished = harness.run()
    assert finished.failure is None
    assert {item.state for item in finished.status()} == {State.FINISHED}
    assert [(item.rows_in, item.rows_out) for item in finished.status()] == [(6, 6)] * 2
    assert_exactly_once(harness, 1, 2, 3)
    harness.insert(4)
    assert harness.run().failure is None
    assert_exactly_once(harness, 1, 2, 3, 4)


@pytest.mark.parametrize("step", EpochStep)
def test_exactly_once_when_killed_at_every_step(
    harness: PipelineHarness, monkeypatch: pytest.MonkeyPatch, step: EpochStep
) -> None:
    """Kill one run after the other; PUBLISHING is reached once per sink."""
    values: list[int] = []
    for times in range(1, 9):
        values += [10 * times + n for n in range(3)]
        harness.insert(*values[-3:])
        kill_at(monkeypatch, step, times)
        pipeline = harness.run()
        monkeypatch.undo()
        if step is not EpochStep.PUBLISHING and times < 3:
            assert pipeline.failure is not None, "it was killed"
    assert harness.run().failure is None
    assert_exactly_once(harness, *values)


def test_kills_before_commit_leave_no_rows(
    harness: PipelineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.insert(1)
    for step in (EpochStep.PLANNED, EpochStep.RAN, EpochStep.RAN, EpochStep.PLANNED):
        kill_at(monkeypatch, step, 1)
        assert harness.run().failure is not None
        assert harness.epochs() == [] and all(harness.rows(sink) == [] for sink in harness.sinks())
        monkeypatch.undo()
    assert harness.run().failure is None
    assert_exactly_once(harness, 1)


def test_kill_between_two_sinks_publishes_the_same_rows(
    harness: PipelineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids are random, so recomputing the epoch would publish other rows to the second sink."""
    harness.insert(1, 2)
    kill_at(monkeypatch, EpochStep.PUBLISHING, 1)
    assert harness.run().failure is not None
    monkeypatch.undo()
    counts = {sink: len(harness.rows(sink)) for sink in harness.sinks()}
    assert sorted(counts.values()) == [0] * 5 + [2]
    assert harness.run().failure is None
    assert_exactly_once(harness, 1, 2)


@pytest.mark.parametrize("seed", range(12))
def test_exactly_once_after_power_failures(harness: PipelineHarness, seed: int) -> None:
    """Unsynced changes may be lost in any combination."""
    dice = random.Random(seed)
    journal = harness.folder / "journal"
    values: list[int] = []
    previous = current_disk()
    failures = 0
    try:
        for _ in range(6):
            lossy = LossyDisk(journal)
            use_disk(lossy)
            values += [len(values) + 1 + n for n in range(1 + dice.randrange(3))]
            harness.insert(*values[harness.inserts.count() :])
            lossy.steps = dice.randrange(1, 250)
            try:
                failure = harness.run().failure
                failures += failure is not None
                assert failure is None or lossy.steps == 0, failure
            except PowerLost:
                failures += 1
            use_disk(previous)
            lose_power(journal, dice if dice.random() < 0.8 else None)
            memory.forget_inserts(str(harness.folder))
        assert harness.inserts.count() == len(values)
        assert harness.run().failure is None
    finally:
        use_disk(previous)
    assert failures > 0
    assert_exactly_once(harness, *values)


def test_deletes_state_of_expired_manifests(harness: PipelineHarness) -> None:
    harness.insert(*range(1, 11))
    assert harness.run(max_retained=2).failure is None
    manifests = harness.pipeline().manifests.load_all()
    assert len(manifests) == 2
    files = {f for m in manifests for o in m.operators.values() for f in o.files}
    assert harness.state_files() == files and len(files) == 4


def test_sweeps_state_of_failed_attempts_after_commit(harness: PipelineHarness) -> None:
    harness.insert(1)
    harness.run()
    state = harness.store.child("state")
    state.put_new("000-000000000001-of-an-old-attempt", b"")
    state.put_new("000-000000000900-of-a-zombie", b"")
    harness.insert(2)
    harness.run()
    harness.run()
    assert "000-000000000001-of-an-old-attempt" not in harness.state_files()
    # A zombie could still commit that epoch.
    assert "000-000000000900-of-a-zombie" in harness.state_files()


def test_idle_pipeline_writes_nothing(harness: PipelineHarness) -> None:
    harness.insert(1)
    harness.run(until_end=False).stop()
    pipeline = harness.run(until_end=False)
    pipeline.wait(30)
    previous = {path: path.stat().st_mtime_ns for path in harness.folder.rglob("*")}
    for _ in range(20):
        pipeline.wake()
        pipeline.wait(30)
    after = {path: path.stat().st_mtime_ns for path in harness.folder.rglob("*")}
    pipeline.stop()
    assert previous == after


def newest_manifest(harness: PipelineHarness) -> Path:
    return sorted((harness.folder / "pipeline" / "manifests").glob("*.json"))[-1]


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def test_continues_from_previous_manifest_if_newest_is_damaged(
    harness: PipelineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.insert(1, 2)
    kill_at(monkeypatch, EpochStep.COMMITTED, 2)
    harness.run()
    monkeypatch.undo()
    damage(newest_manifest(harness))
    pipeline = harness.run()
    assert pipeline.failure is None
    assert [warning.code for warning in pipeline.warnings] == ["TG-605"]
    assert "000-000000000001.json" in pipeline.warnings[0].message
    assert_exactly_once(harness, 1, 2)
    harness.insert(3)
    assert harness.run().failure is None
    assert_exactly_once(harness, 1, 2, 3)


def test_rejects_damaged_manifest_if_a_sink_is_ahead(
    harness: PipelineHarness,
) -> None:
    harness.insert(1, 2)
    harness.run()
    previous = {sink: harness.rows(sink) for sink in harness.sinks()}
    damage(newest_manifest(harness))
    for _ in range(2):
        with pytest.raises(RunError) as caught:
            harness.run()
        assert caught.value.code == "TG-525" and "has not committed" in caught.value.message
        assert "restore the data directory" in (caught.value.hint or "")
        assert {s: harness.rows(s) for s in harness.sinks() if "kept" not in s} == {
            s: rows for s, rows in previous.items() if "kept" not in s
        }


def test_rejects_start_if_all_manifests_are_damaged(harness: PipelineHarness) -> None:
    harness.insert(1, 2)
    harness.run()
    for path in (harness.folder / "pipeline" / "manifests").glob("*.json"):
        damage(path)
    with pytest.raises(DataDirectoryError) as caught:
        harness.run()
    assert caught.value.code == "TG-605"
    assert_exactly_once(harness, 1, 2)


def test_rejects_sink_of_lost_data_directory(harness: PipelineHarness) -> None:
    harness.insert(1)
    harness.run()
    harness.store.delete_all("manifests")
    with pytest.raises(RunError, match="an earlier pipeline wrote"):
        harness.run()


def test_zombie_that_commits_first_stops_its_successor(harness: PipelineHarness) -> None:
    """A zombie continues while its successor runs the same epoch, and commits it first."""
    harness.insert(1)
    harness.run(until_end=False).stop()
    job_started, proceed = threading.Event(), threading.Event()

    def block(pipeline: PythonPipeline, epoch_spec: Any) -> None:
        job_started.set()
        assert proceed.wait(30)

    zombie, successor = harness.pipeline(), harness.pipeline()
    zombie.job = block
    harness.insert(2)
    zombie.start(harness.streams, False)
    assert job_started.wait(30)

    def let_zombie_commit_first(pipeline: PythonPipeline, epoch_spec: Any) -> None:
        proceed.set()
        zombie.wait(30)

    successor.job = let_zombie_commit_first
    successor.start(harness.streams, False)
    with pytest.raises(DataDirectoryError) as caught:
        successor.wait(30)
    assert caught.value.code == "TG-602"
    zombie.stop()
    successor.stop()
    harness.insert(3)
    assert harness.run().failure is None
    assert_exactly_once(harness, 1, 2, 3)


def test_zombie_that_commits_second_stops(harness: PipelineHarness) -> None:
    harness.insert(1)
    harness.run(until_end=False).stop()
    job_started, proceed = threading.Event(), threading.Event()

    def block(pipeline: PythonPipeline, epoch_spec: Any) -> None:
        job_started.set()
        assert proceed.wait(30)

    zombie = harness.pipeline()
    zombie.job = block
    harness.insert(2)
    zombie.start(harness.streams, False)
    assert job_started.wait(30)
    harness.insert(3)
    assert harness.run().failure is None
    proceed.set()
    with pytest.raises(DataDirectoryError) as caught:
        zombie.wait(30)
    assert caught.value.code == "TG-602" and "committed nothing" in (caught.value.hint or "")
    zombie.stop()
    assert_exactly_once(harness, 1, 2, 3)
    harness.insert(4)
    assert harness.run().failure is None
    assert_exactly_once(harness, 1, 2, 3, 4)
