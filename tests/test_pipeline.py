"""The loop of a pipeline without Spark: killed at every step, damaged, raced, stopped, failing."""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.pipelines import House, Killed, Looped, expected
from tests.storage.lossy_disk import LossyDisk, PowerLost, lose_power
from tidegate.catalog.objects import Stream
from tidegate.checkpoint.forget import forget_stream
from tidegate.connectors import memory
from tidegate.connectors.files_sink import FilesSink
from tidegate.errors import DataDirectoryError, RunError, SystemAway, TidegateError
from tidegate.observe.status import State
from tidegate.runtime import pipeline as module
from tidegate.runtime.cutting import Epoch
from tidegate.runtime.ordering import order_of
from tidegate.runtime.steps import Step
from tidegate.spark.failure import JobFailed
from tidegate.storage import StorageError, disk, open_store


class Hasty(disk.Disk):
    """Does not wait for the disk: here a process dies, not the machine."""

    def sync(self, handle: int) -> None:
        pass

    def sync_folder(self, path: str) -> None:
        Path(path).stat()


@pytest.fixture(autouse=True)
def in_haste() -> Iterator[None]:
    before = disk.use(Hasty())
    yield
    disk.use(before)


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


def check(house: House, *values: int) -> None:
    """Every sink has every row once, and all sinks of a stream have the same ones."""
    for sink in house.sinks():
        assert [a for a, _ in house.rows(sink)] == expected(*values), sink
    for number in range(len(house.members)):
        one, two, kept = (house.rows(f"{name}{number}") for name in ("one", "two", "kept"))
        assert one == two == kept, "rows were computed again"


def kill_at(monkeypatch: pytest.MonkeyPatch, step: Step, times: int) -> None:
    """Die when a step is reached for so many times."""
    left = [times]

    def reached(here: Step) -> None:
        if here is step:
            left[0] -= 1
            if left[0] == 0:
                raise Killed

    monkeypatch.setattr(module, "reached", reached)


def test_to_the_end_and_again(house: House) -> None:
    house.insert(1, 2, 3)
    finished = house.run()
    assert finished.failure is None
    assert {item.state for item in finished.status()} == {State.FINISHED}
    assert [(item.rows_in, item.rows_out) for item in finished.status()] == [(6, 6)] * 2
    check(house, 1, 2, 3)
    house.insert(4)
    assert house.run().failure is None
    check(house, 1, 2, 3, 4)


@pytest.mark.parametrize("step", Step)
def test_killed_at_every_step_of_every_epoch_each_row_is_there_once(
    house: House, monkeypatch: pytest.MonkeyPatch, step: Step
) -> None:
    """In one run after the other, also at the commit of every single sink."""
    values: list[int] = []
    for times in range(1, 9):
        values += [10 * times + n for n in range(3)]
        house.insert(*values[-3:])
        kill_at(monkeypatch, step, times)
        died = house.run()
        monkeypatch.undo()
        if step is not Step.COMMITTING and times < 3:
            assert died.failure is not None, "it was killed"
    assert house.run().failure is None
    check(house, *values)


def test_killed_again_and_again_before_anything_is_decided(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.insert(1)
    for step in (Step.CUT, Step.RAN, Step.RAN, Step.CUT):
        kill_at(monkeypatch, step, 1)
        assert house.run().failure is not None
        assert house.epochs() == [] and all(house.rows(sink) == [] for sink in house.sinks())
        monkeypatch.undo()
    assert house.run().failure is None
    check(house, 1)


def test_killed_between_the_commits_of_two_sinks_both_have_the_same_rows(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids are random: whoever computes an epoch again gives other rows to the second sink."""
    house.insert(1, 2)
    kill_at(monkeypatch, Step.COMMITTING, 1)
    assert house.run().failure is not None
    monkeypatch.undo()
    counts = {sink: len(house.rows(sink)) for sink in house.sinks()}
    assert sorted(counts.values()) == [0] * 5 + [2]
    assert house.run().failure is None
    check(house, 1, 2)


@pytest.mark.parametrize("seed", range(12))
def test_power_lost_again_and_again_each_row_is_there_once(house: House, seed: int) -> None:
    """Everything that was not synced may be gone, in any combination."""
    dice = random.Random(seed)
    journal = house.folder / "journal"
    values: list[int] = []
    before = disk.current()
    lost = 0
    try:
        for _ in range(6):
            lossy = LossyDisk(journal)
            disk.use(lossy)
            values += [len(values) + 1 + n for n in range(1 + dice.randrange(3))]
            house.insert(*values[house.inserts.count() :])
            lossy.steps = dice.randrange(1, 250)
            try:
                failure = house.run().failure
                lost += failure is not None
                assert failure is None or lossy.steps == 0, failure
            except PowerLost:
                lost += 1
            disk.use(before)
            lose_power(journal, dice if dice.random() < 0.8 else None)
            memory.forget_inserts(str(house.folder))
        assert house.inserts.count() == len(values)
        assert house.run().failure is None
    finally:
        disk.use(before)
    assert lost > 0
    check(house, *values)


# What is kept


def test_only_what_kept_manifests_name_is_kept(house: House) -> None:
    house.insert(*range(1, 11))
    assert house.run(max_retained=2).failure is None
    kept = house.pipeline().manifests.kept()
    assert len(kept) == 2
    named = {f for m in kept for o in m.operators.values() for f in o.files}
    assert house.state_files() == named and len(named) == 4


def test_what_a_dead_attempt_wrote_is_swept_once_its_epoch_is_decided(house: House) -> None:
    house.insert(1)
    house.run()
    state = house.store.child("state")
    state.put_new("000-000000000001-of-an-old-attempt", b"")
    state.put_new("000-000000000900-of-a-zombie", b"")
    house.insert(2)
    house.run()
    house.run()
    assert "000-000000000001-of-an-old-attempt" not in house.state_files()
    # A process that should be dead could still decide that epoch.
    assert "000-000000000900-of-a-zombie" in house.state_files()


def test_an_idle_pipeline_writes_nothing(house: House) -> None:
    house.insert(1)
    house.run(until_end=False).stop()
    running = house.run(until_end=False)
    running.wait(30)
    before = {path: path.stat().st_mtime_ns for path in house.folder.rglob("*")}
    for _ in range(20):
        running.nudge()
        running.wait(30)
    after = {path: path.stat().st_mtime_ns for path in house.folder.rglob("*")}
    running.stop()
    assert before == after


# Damage


def newest(house: House) -> Path:
    return sorted((house.folder / "pipeline" / "manifests").glob("*.json"))[-1]


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def test_a_damaged_manifest_and_no_sink_that_is_ahead_goes_on_from_the_one_before(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.insert(1, 2)
    kill_at(monkeypatch, Step.DECIDED, 2)
    house.run()
    monkeypatch.undo()
    damage(newest(house))
    again = house.run()
    assert again.failure is None
    assert [warning.code for warning in again.warnings] == ["TG-605"]
    assert "000-000000000001.json" in again.warnings[0].message
    check(house, 1, 2)
    house.insert(3)
    assert house.run().failure is None
    check(house, 1, 2, 3)


def test_a_damaged_manifest_and_a_sink_that_is_ahead_is_refused_with_what_to_do(
    house: House,
) -> None:
    house.insert(1, 2)
    house.run()
    before = {sink: house.rows(sink) for sink in house.sinks()}
    damage(newest(house))
    for _ in range(2):
        with pytest.raises(RunError) as caught:
            house.run()
        assert caught.value.code == "TG-504" and "is ahead of the pipeline" in caught.value.message
        assert "put back the data directory" in (caught.value.hint or "")
        assert {s: house.rows(s) for s in house.sinks() if "kept" not in s} == {
            s: rows for s, rows in before.items() if "kept" not in s
        }


def test_if_all_manifests_are_damaged_nothing_is_started(house: House) -> None:
    house.insert(1, 2)
    house.run()
    for path in (house.folder / "pipeline" / "manifests").glob("*.json"):
        damage(path)
    with pytest.raises(DataDirectoryError) as caught:
        house.run()
    assert caught.value.code == "TG-605"
    check(house, 1, 2)


def test_a_data_directory_that_is_gone_does_not_write_rows_again(house: House) -> None:
    house.insert(1)
    house.run()
    house.store.delete_all("manifests")
    with pytest.raises(RunError, match="an earlier pipeline wrote"):
        house.run()


# Two processes


def test_of_two_drivers_the_second_to_decide_stops_and_nothing_is_lost(house: House) -> None:
    """A zombie that has run its job wakes up after a successor has begun, and decides first."""
    house.insert(1)
    house.run(until_end=False).stop()
    ran, go = threading.Event(), threading.Event()

    def sleeps(pipeline: Looped, order: Any) -> None:
        ran.set()
        assert go.wait(30)

    zombie, successor = house.pipeline(), house.pipeline()
    zombie.job = sleeps
    house.insert(2)
    zombie.start(house.members, False)
    assert ran.wait(30)

    def decides_late(pipeline: Looped, order: Any) -> None:
        go.set()
        zombie.wait(30)

    successor.job = decides_late
    successor.start(house.members, False)
    with pytest.raises(DataDirectoryError) as caught:
        successor.wait(30)
    assert caught.value.code == "TG-602"
    zombie.stop()
    successor.stop()
    house.insert(3)
    assert house.run().failure is None
    check(house, 1, 2, 3)


def test_a_zombie_that_decides_second_stops_and_nothing_is_lost(house: House) -> None:
    house.insert(1)
    house.run(until_end=False).stop()
    ran, go = threading.Event(), threading.Event()

    def sleeps(pipeline: Looped, order: Any) -> None:
        ran.set()
        assert go.wait(30)

    zombie = house.pipeline()
    zombie.job = sleeps
    house.insert(2)
    zombie.start(house.members, False)
    assert ran.wait(30)
    house.insert(3)
    assert house.run().failure is None
    go.set()
    with pytest.raises(DataDirectoryError) as caught:
        zombie.wait(30)
    assert caught.value.code == "TG-602" and "wrote nothing" in (caught.value.hint or "")
    zombie.stop()
    check(house, 1, 2, 3)
    house.insert(4)
    assert house.run().failure is None
    check(house, 1, 2, 3, 4)


# Failures


def test_a_sink_that_is_away_is_tried_again_and_the_pipeline_waits(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BACKOFF_SECONDS", 0.001)
    commit, left = FilesSink.commit, [6]

    def away(self: FilesSink, *args: Any) -> None:
        if left[0]:
            left[0] -= 1
            raise StorageError("s3://b/x", "is away", retryable=True)
        commit(self, *args)

    house.insert(1)
    running = house.pipeline()
    running.start(house.members, False)
    running.wait(30)
    monkeypatch.setattr(FilesSink, "commit", away)
    house.insert(2)
    running.wait(30)
    running.stop()
    assert left == [0]
    check(house, 1, 2)


def test_a_sink_that_cannot_commit_stops_the_pipeline_and_says_why(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BACKOFF_SECONDS", 0.001)

    def full(self: FilesSink, *args: Any) -> None:
        raise StorageError("file:///x", os.strerror(errno.ENOSPC), hint="make room.")

    house.insert(1)
    running = house.pipeline()
    running.start(house.members, False)
    running.wait(30)
    monkeypatch.setattr(FilesSink, "commit", full)
    house.insert(2)
    with pytest.raises(TidegateError, match="No space left") as caught:
        running.wait(30)
    assert caught.value.hint == "make room."
    assert {item.state for item in running.status()} == {State.FAILED}
    assert all("No space left" in (item.error or "") for item in running.status())
    running.stop()
    monkeypatch.undo()
    assert house.run().failure is None
    check(house, 1, 2)


def test_a_job_that_fails_by_chance_is_run_again(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BACKOFF_SECONDS", 0.001)
    left = [3]

    def fails(pipeline: Looped, order: Any) -> None:
        if left[0]:
            left[0] -= 1
            raise JobFailed(RuntimeError("Python worker exited unexpectedly (crashed)"))

    running = house.pipeline()
    running.job = fails
    house.insert(1)
    running.start(house.members, False)
    running.wait(30)
    running.stop()
    assert left == [0]
    check(house, 1)


def test_the_stream_that_fails_is_named(house: House) -> None:
    """All streams are one job, so each is run alone to find it."""

    class Second(Looped):
        def _job(self, frame: Any, order: Any) -> list[bytes]:
            if any(member.key == "t1" for member in frame):
                raise JobFailed(RuntimeError("[DIVIDE_BY_ZERO] Division by zero."))
            return super()._job(frame, order)

    running = Second(house.pipeline().context, "main")
    house.insert(1)
    running.start(house.members, False)
    with pytest.raises(RunError, match="the stream t1 stopped") as caught:
        running.wait(30)
    assert "nothing is lost" in (caught.value.hint or "").lower()
    assert house.epochs() == []
    told = {status.name: (status.state, status.error) for status in running.status()}
    assert told.pop("t1") == (State.FAILED, caught.value.message)
    assert set(told.values()) == {(State.STOPPED, "stopped, because the stream t1 did")}


@pytest.mark.parametrize("error", [RunError("TG-503", "boom"), ValueError("boom"), Killed("boom")])
def test_whoever_looks_at_a_pipeline_that_failed_gets_its_error(
    house: House, error: BaseException
) -> None:
    def fails(pipeline: Looped, order: Any) -> None:
        raise error

    running = house.pipeline()
    running.job = fails
    house.insert(1)
    running.start(house.members, False)
    for look in (lambda: running.wait(30), running.is_alive, lambda: running.wait(None)):
        with pytest.raises(TidegateError, match="boom"):
            look()
    assert {item.state for item in running.status()} == {State.FAILED}
    running.stop()
    assert {item.state for item in running.status()} == {State.FAILED}


def test_a_pipeline_that_fails_wakes_up_whoever_waits(house: House) -> None:
    go = threading.Event()

    def fails(pipeline: Looped, order: Any) -> None:
        assert go.wait(30)
        raise RunError("TG-503", "boom")

    running = house.pipeline()
    running.job = fails
    house.insert(1)
    running.start(house.members, False)
    threading.Timer(0.05, go.set).start()
    with pytest.raises(RunError, match="boom"):
        running.wait(None)


def test_waiting_has_an_end_and_stopping_leaves_nothing_half_done(house: House) -> None:
    ran, go = threading.Event(), threading.Event()

    def sleeps(pipeline: Looped, order: Any) -> None:
        ran.set()
        assert go.wait(30)

    running = house.pipeline()
    running.job = sleeps
    house.insert(1)
    running.start(house.members, False)
    assert ran.wait(30)
    assert running.wait(0.01) is False
    threading.Timer(0.05, go.set).start()
    running.stop()
    assert not running.is_alive()
    assert {item.state for item in running.status()} == {State.STOPPED}
    assert house.run().failure is None
    check(house, 1)


def test_a_clock_that_goes_back_does_not_take_the_pipeline_with_it(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.insert(1)
    house.run(until_end=False).stop()
    first = house.pipeline().manifests.newest().manifest
    assert first is not None
    monkeypatch.setattr(module, "_now_us", lambda: 1_000)
    house.insert(2)
    assert house.run().failure is None
    second = house.pipeline().manifests.newest().manifest
    assert second is not None and second.now_us == first.now_us
    check(house, 1, 2)


# Streams that come and go


def test_a_stream_that_joins_later_reads_everything_and_the_others_go_on(tmp_path: Path) -> None:
    house = House(tmp_path)
    first, second = house.members
    house.insert(1, 2)
    house.members = [first]
    running = house.run(until_end=False)
    running.wait(30)
    house.insert(3)
    running.change([first, second], 0)
    running.wait(30)
    running.stop()
    check(house, 1, 2, 3)


def test_a_stream_that_starts_over_does_not_write_beside_its_old_rows(tmp_path: Path) -> None:
    house = House(tmp_path)
    house.insert(1)
    house.run()
    stream = next(iter(house.catalog.of(Stream)))
    changed = house.member(stream, operators=False, on_change="restart")
    house.members = [changed, house.members[1]]
    with pytest.raises(RunError, match="would write them again"):
        house.run()
    check(house, 1)


def test_a_stream_that_takes_the_place_of_another_is_checked_before_it_runs(tmp_path: Path) -> None:
    house = House(tmp_path)
    first, second = house.members
    house.insert(1)
    running = house.run(until_end=False)
    running.wait(30)
    counters, sinks = running.counters["t0"], dict(running.sinks)
    stream = next(iter(house.catalog.of(Stream)))
    other = house.member(stream, operators=False)
    with pytest.raises(DataDirectoryError, match="needs other operators") as refused:
        running.check([other, second])
    assert refused.value.code == "TG-603"
    assert running.members["t0"] is first, "nothing is changed"
    same = house.member(stream, operators=True)
    object.__setattr__(same, "declared", stream)
    running.check([same, second])
    running.change([same, second], 0)
    house.insert(2)
    running.wait(30)
    assert running.counters["t0"] is not counters
    for name, (_, _, opened) in running.sinks.items():
        assert (opened is sinks[name][2]) == name.endswith("1"), (
            "those of the stream are opened anew"
        )
    running.stop()
    check(house, 1, 2)


def test_a_sink_that_was_away_is_told_what_it_lacks(tmp_path: Path) -> None:
    house = House(tmp_path, streams=1)
    whole, without = house.members[0], house.member(next(iter(house.catalog.of(Stream))), True)
    object.__setattr__(without, "sinks", whole.sinks[1:])
    for members, rows, said in (
        ([without], (1,), ""),
        ([whole], (2,), "one0 does not have 2 rows of t0: they were given out before the sink"),
        ([without], (3, 4), ""),
        ([whole], (), "one0 does not have 4 rows of t0: they were given out while the sink"),
        ([whole], (5,), "one0 does not have 4 rows of t0: they were given out while the sink"),
        ([whole], (6,), ""),
    ):
        house.insert(*rows)
        house.members = members
        running = house.run(until_end=False)
        assert running.wait(30)
        running.stop()
        warnings = [warning.message for warning in running.warnings]
        assert len(warnings) == bool(said)
        assert all(said in warning for warning in warnings)
    assert [a for a, _ in house.rows("one0")] == expected(2, 5, 6)


@pytest.mark.parametrize("running", [True, False])
def test_what_was_decided_for_others_is_not_lost_when_a_stream_is_dropped(
    house: House, monkeypatch: pytest.MonkeyPatch, running: bool
) -> None:
    """Killed between the decision and the commits; then a stream is dropped."""
    house.insert(1, 2)
    kill_at(monkeypatch, Step.DECIDED, 2)
    house.run()
    monkeypatch.undo()
    if running:
        pipeline = house.run(until_end=False)
        pipeline.forget("t1")
        pipeline.stop()
    else:
        forget_stream(house.store, "T1")
        forget_stream(house.store, "T1")
    house.members = house.members[:1]
    house.insert(3)
    assert house.run().failure is None
    assert [a for a, _ in house.rows("one0")] == expected(1, 2, 3)
    assert house.rows("one0") == house.rows("two0") == house.rows("kept0")
    manifest = house.pipeline().manifests.newest().manifest
    assert manifest is not None and manifest.streams.keys() == {"t0"}


def test_the_orders_of_a_driver_are_gone_with_it(house: House) -> None:
    running = house.run(until_end=False)
    running.place.write(order_of(running._manifest, Epoch({}, False, False), 0, 0, 1))
    running.stop()
    assert open_store(str(house.folder / "orders")).list() == []


@pytest.mark.parametrize("where", ["cut", "job"])
def test_a_source_that_is_away_is_waited_for_and_nothing_ends_without_it(
    house: House, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setattr(module, "_BACKOFF_SECONDS", 0.001)
    told: list[str | None] = []
    times = iter(range(3))

    def away() -> None:
        if next(times, None) is not None:
            raise SystemAway("the broker is away")

    def cut(self: memory.MemorySource, since: Any, tasks: int) -> Any:
        told.extend(item.error for item in pipeline.status())
        if where == "cut":
            away()
        return real(self, since, tasks)

    def job(pipeline: Looped, order: Any) -> None:
        if where == "job":
            try:
                away()
            except SystemAway as error:
                raise JobFailed(RuntimeError(f"in a task: {error.render()}")) from None

    real = memory.MemorySource.cut
    monkeypatch.setattr(memory.MemorySource, "cut", cut)
    monkeypatch.setattr(Looped, "job", staticmethod(job))
    house.insert(1, 2)
    pipeline = house.pipeline()
    pipeline.start(house.members, until_end=True)
    assert pipeline._thread is not None
    pipeline._thread.join(60)
    check(house, 1, 2)
    assert "the broker is away" in told
    assert [item.error for item in pipeline.status()] == [None, None]


def test_available_now_ends_though_more_and_more_comes(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = memory.MemorySource.cut

    def cut(self: memory.MemorySource, since: Any, tasks: int) -> Any:
        found = real(self, since, tasks)
        house.insert(len(house.epochs()) + 2)
        return found

    house.insert(1)
    monkeypatch.setattr(memory.MemorySource, "cut", cut)
    pipeline = house.pipeline()
    pipeline.start(house.members, until_end=False, available_now=True)
    assert pipeline._thread is not None
    pipeline._thread.join(60)
    check(house, 1)
    assert pipeline.counters["t0"].state is State.FINISHED
