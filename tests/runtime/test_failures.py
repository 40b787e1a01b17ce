"""Sinks and sources that are away, jobs that fail, and stopping."""

from __future__ import annotations

import errno
import os
import threading
from typing import Any

import pytest

from tests.support.pipelines import PipelineHarness, Killed, PythonPipeline, check
from tidegate.connectors.files.sink import FilesSink
from tidegate.connectors.memory import connector as memory
from tidegate.errors import RunError, SystemUnavailable, TidegateError
from tidegate.observe.status import State
from tidegate.runtime import pipeline as module
from tidegate.spark.errors import JobFailed
from tidegate.storage import StorageError


def test_a_sink_that_is_away_is_tried_again_and_the_pipeline_waits(
    harness: PipelineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BACKOFF_SECONDS", 0.001)
    commit, left = FilesSink.commit, [6]

    def away(self: FilesSink, *args: Any) -> None:
        if left[0]:
            left[0] -= 1
            raise StorageError("s3://b/x", "is away", retryable=True)
        commit(self, *args)

    harness.insert(1)
    running = harness.pipeline()
    running.start(harness.members, False)
    running.wait(30)
    monkeypatch.setattr(FilesSink, "commit", away)
    harness.insert(2)
    running.wait(30)
    running.stop()
    assert left == [0]
    check(harness, 1, 2)


def test_a_sink_that_cannot_commit_stops_the_pipeline_and_says_why(
    harness: PipelineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BACKOFF_SECONDS", 0.001)

    def full(self: FilesSink, *args: Any) -> None:
        raise StorageError("file:///x", os.strerror(errno.ENOSPC), hint="make room.")

    harness.insert(1)
    running = harness.pipeline()
    running.start(harness.members, False)
    running.wait(30)
    monkeypatch.setattr(FilesSink, "commit", full)
    harness.insert(2)
    with pytest.raises(TidegateError, match="No space left") as caught:
        running.wait(30)
    assert caught.value.hint == "make room."
    assert {item.state for item in running.status()} == {State.FAILED}
    assert all("No space left" in (item.error or "") for item in running.status())
    running.stop()
    monkeypatch.undo()
    assert harness.run().failure is None
    check(harness, 1, 2)


def test_a_job_that_fails_by_chance_is_run_again(
    harness: PipelineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BACKOFF_SECONDS", 0.001)
    left = [3]

    def fails(pipeline: PythonPipeline, epoch_spec: Any) -> None:
        if left[0]:
            left[0] -= 1
            raise JobFailed(RuntimeError("Python worker exited unexpectedly (crashed)"))

    running = harness.pipeline()
    running.job = fails
    harness.insert(1)
    running.start(harness.members, False)
    running.wait(30)
    running.stop()
    assert left == [0]
    check(harness, 1)


def test_the_stream_that_fails_is_named(harness: PipelineHarness) -> None:
    """All streams are one job, so each is run alone to find it."""

    class Second(PythonPipeline):
        def _job(self, frame: Any, epoch_spec: Any) -> list[bytes]:
            if any(member.key == "t1" for member in frame):
                raise JobFailed(RuntimeError("[DIVIDE_BY_ZERO] Division by zero."))
            return super()._job(frame, epoch_spec)

    running = Second(harness.pipeline().context, "main")
    harness.insert(1)
    running.start(harness.members, False)
    with pytest.raises(RunError, match="the stream t1 stopped") as caught:
        running.wait(30)
    assert "nothing is lost" in (caught.value.hint or "").lower()
    assert harness.epochs() == []
    told = {status.name: (status.state, status.error) for status in running.status()}
    assert told.pop("t1") == (State.FAILED, caught.value.message)
    assert set(told.values()) == {(State.STOPPED, "stopped, because the stream t1 did")}


@pytest.mark.parametrize("error", [RunError("TG-503", "boom"), ValueError("boom"), Killed("boom")])
def test_whoever_looks_at_a_pipeline_that_failed_gets_its_error(
    harness: PipelineHarness, error: BaseException
) -> None:
    def fails(pipeline: PythonPipeline, epoch_spec: Any) -> None:
        raise error

    running = harness.pipeline()
    running.job = fails
    harness.insert(1)
    running.start(harness.members, False)
    for look in (lambda: running.wait(30), running.is_alive, lambda: running.wait(None)):
        with pytest.raises(TidegateError, match="boom"):
            look()
    assert {item.state for item in running.status()} == {State.FAILED}
    running.stop()
    assert {item.state for item in running.status()} == {State.FAILED}


def test_a_pipeline_that_fails_wakes_up_whoever_waits(harness: PipelineHarness) -> None:
    go = threading.Event()

    def fails(pipeline: PythonPipeline, epoch_spec: Any) -> None:
        assert go.wait(30)
        raise RunError("TG-503", "boom")

    running = harness.pipeline()
    running.job = fails
    harness.insert(1)
    running.start(harness.members, False)
    threading.Timer(0.05, go.set).start()
    with pytest.raises(RunError, match="boom"):
        running.wait(None)


def test_waiting_has_an_end_and_stopping_leaves_nothing_half_done(harness: PipelineHarness) -> None:
    ran, go = threading.Event(), threading.Event()

    def sleeps(pipeline: PythonPipeline, epoch_spec: Any) -> None:
        ran.set()
        assert go.wait(30)

    running = harness.pipeline()
    running.job = sleeps
    harness.insert(1)
    running.start(harness.members, False)
    assert ran.wait(30)
    assert running.wait(0.01) is False
    threading.Timer(0.05, go.set).start()
    running.stop()
    assert not running.is_alive()
    assert {item.state for item in running.status()} == {State.STOPPED}
    assert harness.run().failure is None
    check(harness, 1)


def test_a_clock_that_goes_back_does_not_take_the_pipeline_with_it(
    harness: PipelineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.insert(1)
    harness.run(until_end=False).stop()
    first = harness.pipeline().manifests.load_newest().manifest
    assert first is not None
    monkeypatch.setattr(module, "_now_us", lambda: 1_000)
    harness.insert(2)
    assert harness.run().failure is None
    second = harness.pipeline().manifests.load_newest().manifest
    assert second is not None and second.now_us == first.now_us
    check(harness, 1, 2)


@pytest.mark.parametrize("where", ["cut", "job"])
def test_a_source_that_is_away_is_waited_for_and_nothing_ends_without_it(
    harness: PipelineHarness, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setattr(module, "_BACKOFF_SECONDS", 0.001)
    told: list[str | None] = []
    times = iter(range(3))

    def away() -> None:
        if next(times, None) is not None:
            raise SystemUnavailable("the broker is away")

    def plan_range(self: memory.MemorySource, since: Any, tasks: int) -> Any:
        told.extend(item.error for item in pipeline.status())
        if where == "cut":
            away()
        return real(self, since, tasks)

    def job(pipeline: PythonPipeline, epoch_spec: Any) -> None:
        if where == "job":
            try:
                away()
            except SystemUnavailable as error:
                raise JobFailed(RuntimeError(f"in a task: {error.render()}")) from None

    real = memory.MemorySource.plan_range
    monkeypatch.setattr(memory.MemorySource, "cut", input_range)
    monkeypatch.setattr(PythonPipeline, "job", staticmethod(job))
    harness.insert(1, 2)
    pipeline = harness.pipeline()
    pipeline.start(harness.members, until_end=True)
    assert pipeline._thread is not None
    pipeline._thread.join(60)
    check(harness, 1, 2)
    assert "the broker is away" in told
    assert [item.error for item in pipeline.status()] == [None, None]


def test_available_now_ends_though_more_and_more_comes(
    harness: PipelineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = memory.MemorySource.plan_range

    def plan_range(self: memory.MemorySource, since: Any, tasks: int) -> Any:
        found = real(self, since, tasks)
        harness.insert(len(harness.epochs()) + 2)
        return found

    harness.insert(1)
    monkeypatch.setattr(memory.MemorySource, "cut", input_range)
    pipeline = harness.pipeline()
    pipeline.start(harness.members, until_end=False, available_now=True)
    assert pipeline._thread is not None
    pipeline._thread.join(60)
    check(harness, 1)
    assert pipeline.counters["t0"].state is State.FINISHED
