"""Unavailable sinks and sources, failing jobs, and stopping."""

from __future__ import annotations

import errno
import os
import threading
import time
from typing import Any

import pytest

from tests.support.pipelines import (
    Killed,
    PipelineHarness,
    PythonExecutor,
    PythonPipeline,
    assert_exactly_once,
)
from tidegate.connectors.files.sink import FilesSink
from tidegate.connectors.memory import connector as memory
from tidegate.errors import RunError, SystemUnavailable, TidegateError
from tidegate.observe.status import State
from tidegate.runtime import pipeline as module
from tidegate.spark.errors import JobFailed
from tidegate.storage import StorageError


def test_retries_unavailable_sink(
    harness: PipelineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate.runtime.retry.INITIAL_DELAY_S", 0.001)
    publish, remaining = FilesSink.publish, [6]

    def fail_first_calls(self: FilesSink, *args: Any) -> None:
        if remaining[0]:
            remaining[0] -= 1
            raise StorageError("s3://b/x", "is unavailable", retryable=True)
        publish(self, *args)

    harness.insert(1)
    pipeline = harness.pipeline()
    pipeline.start(harness.streams, False)
    pipeline.wait(30)
    monkeypatch.setattr(FilesSink, "publish", fail_first_calls)
    harness.insert(2)
    pipeline.wait(30)
    pipeline.stop()
    assert remaining == [0]
    assert_exactly_once(harness, 1, 2)


def test_permanent_sink_error_stops_the_pipeline(
    harness: PipelineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate.runtime.retry.INITIAL_DELAY_S", 0.001)

    def disk_full(self: FilesSink, *args: Any) -> None:
        raise StorageError("file:///x", os.strerror(errno.ENOSPC), hint="make room.")

    harness.insert(1)
    pipeline = harness.pipeline()
    pipeline.start(harness.streams, False)
    pipeline.wait(30)
    monkeypatch.setattr(FilesSink, "publish", disk_full)
    harness.insert(2)
    with pytest.raises(TidegateError, match="No space left") as caught:
        pipeline.wait(30)
    assert caught.value.hint == "make room."
    assert {item.state for item in pipeline.status()} == {State.FAILED}
    assert all("No space left" in (item.error or "") for item in pipeline.status())
    pipeline.stop()
    monkeypatch.undo()
    assert harness.run().failure is None
    assert_exactly_once(harness, 1, 2)


def test_reruns_job_after_transient_failure(
    harness: PipelineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate.runtime.retry.INITIAL_DELAY_S", 0.001)
    remaining = [3]

    def fail(pipeline: PythonPipeline, epoch_spec: Any) -> None:
        if remaining[0]:
            remaining[0] -= 1
            raise JobFailed(RuntimeError("Python worker exited unexpectedly (crashed)"))

    pipeline = harness.pipeline()
    pipeline.job = fail
    harness.insert(1)
    pipeline.start(harness.streams, False)
    pipeline.wait(30)
    pipeline.stop()
    assert remaining == [0]
    assert_exactly_once(harness, 1)


def test_stop_does_not_wait_for_the_next_attempt_of_a_job(
    harness: PipelineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate.runtime.retry.INITIAL_DELAY_S", 20.0)
    failed: list[float] = []

    def fail(pipeline: PythonPipeline, epoch_spec: Any) -> None:
        failed.append(time.monotonic())
        raise JobFailed(RuntimeError("Python worker exited unexpectedly (crashed)"))

    pipeline = harness.pipeline()
    pipeline.job = fail
    harness.insert(1)
    pipeline.start(harness.streams, False)
    while not failed:
        time.sleep(0.01)
    # New rows do not start the next attempt early.
    pipeline.wake()
    assert not pipeline.wait(0.2) and len(failed) == 1
    pipeline.stop()
    assert time.monotonic() - failed[0] < 10
    assert pipeline.failure is None
    assert {item.state for item in pipeline.status()} == {State.STOPPED}


def test_error_names_the_failing_stream(
    harness: PipelineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One job runs all streams, so each one is run alone to find the failing one."""
    run = PythonExecutor.run

    def fail_with_t1(self: PythonExecutor, graph: Any, epoch_spec: Any) -> list[bytes]:
        if any(stream.key == "t1" for stream in graph.streams):
            raise JobFailed(RuntimeError("[DIVIDE_BY_ZERO] Division by zero."))
        return run(self, graph, epoch_spec)

    monkeypatch.setattr(PythonExecutor, "run", fail_with_t1)
    pipeline = harness.pipeline()
    harness.insert(1)
    pipeline.start(harness.streams, False)
    with pytest.raises(RunError, match="the stream t1 stopped") as caught:
        pipeline.wait(30)
    assert "lost" in (caught.value.hint or "")
    assert harness.epochs() == []
    errors = {status.name: (status.state, status.error) for status in pipeline.status()}
    assert errors.pop("t1") == (State.FAILED, caught.value.message)
    assert set(errors.values()) == {(State.STOPPED, "stopped because the stream t1 failed")}


@pytest.mark.parametrize("error", [RunError("TG-503", "boom"), ValueError("boom"), Killed("boom")])
def test_wait_and_is_alive_raise_the_error_of_a_failed_pipeline(
    harness: PipelineHarness, error: BaseException
) -> None:
    def fail(pipeline: PythonPipeline, epoch_spec: Any) -> None:
        raise error

    pipeline = harness.pipeline()
    pipeline.job = fail
    harness.insert(1)
    pipeline.start(harness.streams, False)
    for call in (lambda: pipeline.wait(30), pipeline.may_emit, lambda: pipeline.wait(None)):
        with pytest.raises(TidegateError, match="boom"):
            call()
    assert {item.state for item in pipeline.status()} == {State.FAILED}
    pipeline.stop()
    assert {item.state for item in pipeline.status()} == {State.FAILED}


def test_failure_ends_wait(harness: PipelineHarness) -> None:
    proceed = threading.Event()

    def fail(pipeline: PythonPipeline, epoch_spec: Any) -> None:
        assert proceed.wait(30)
        raise RunError("TG-503", "boom")

    pipeline = harness.pipeline()
    pipeline.job = fail
    harness.insert(1)
    pipeline.start(harness.streams, False)
    threading.Timer(0.05, proceed.set).start()
    with pytest.raises(RunError, match="boom"):
        pipeline.wait(None)


def test_wait_times_out_and_stop_discards_the_epoch(harness: PipelineHarness) -> None:
    job_started, proceed = threading.Event(), threading.Event()

    def block(pipeline: PythonPipeline, epoch_spec: Any) -> None:
        job_started.set()
        assert proceed.wait(30)

    pipeline = harness.pipeline()
    pipeline.job = block
    harness.insert(1)
    pipeline.start(harness.streams, False)
    assert job_started.wait(30)
    assert pipeline.wait(0.01) is False
    threading.Timer(0.05, proceed.set).start()
    pipeline.stop()
    assert not pipeline.may_emit()
    assert {item.state for item in pipeline.status()} == {State.STOPPED}
    assert harness.run().failure is None
    assert_exactly_once(harness, 1)


def test_processing_time_never_goes_back(
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
    assert second is not None and second.processing_time_us == first.processing_time_us
    assert_exactly_once(harness, 1, 2)


@pytest.mark.parametrize("where", ["planning", "job"])
def test_retries_unavailable_source(
    harness: PipelineHarness, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setattr("tidegate.runtime.retry.INITIAL_DELAY_S", 0.001)
    errors: list[str | None] = []
    times = iter(range(3))

    def fail_first_calls() -> None:
        if next(times, None) is not None:
            raise SystemUnavailable("the broker is unavailable")

    def plan_range(self: memory.MemorySource, since: Any, tasks: int) -> Any:
        errors.extend(item.error for item in pipeline.status())
        if where == "planning":
            fail_first_calls()
        return original(self, since, tasks)

    def job(pipeline: PythonPipeline, epoch_spec: Any) -> None:
        if where == "job":
            try:
                fail_first_calls()
            except SystemUnavailable as error:
                raise JobFailed(RuntimeError(f"in a task: {error.render()}")) from None

    original = memory.MemorySource.plan_range
    monkeypatch.setattr(memory.MemorySource, "plan_range", plan_range)
    monkeypatch.setattr(PythonPipeline, "job", staticmethod(job))
    harness.insert(1, 2)
    pipeline = harness.pipeline()
    pipeline.start(harness.streams, until_end=True)
    assert pipeline._thread is not None
    pipeline._thread.join(60)
    assert_exactly_once(harness, 1, 2)
    assert "the broker is unavailable" in errors
    assert [item.error for item in pipeline.status()] == [None, None]


def test_available_now_ends_although_rows_keep_arriving(
    harness: PipelineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = memory.MemorySource.plan_range

    def plan_range(self: memory.MemorySource, since: Any, tasks: int) -> Any:
        planned_range = original(self, since, tasks)
        harness.insert(len(harness.epochs()) + 2)
        return planned_range

    harness.insert(1)
    monkeypatch.setattr(memory.MemorySource, "plan_range", plan_range)
    pipeline = harness.pipeline()
    pipeline.start(harness.streams, until_end=False, available_now=True)
    assert pipeline._thread is not None
    pipeline._thread.join(60)
    assert_exactly_once(harness, 1)
    assert pipeline.counters["t0"].state is State.FINISHED
