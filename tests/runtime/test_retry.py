"""Retries: storage that is unavailable at any call, and clusters that lose executors."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest

from tests.support.pipelines import (
    NoSyncDisk,
    PipelineHarness,
    PythonExecutor,
    PythonPipeline,
    assert_exactly_once,
)
from tidegate.observe.status import State
from tidegate.spark.errors import JobFailed
from tidegate.spark.tasks.protocol import EpochSpec
from tidegate.storage import StorageError
from tidegate.storage.local import LocalStore, use_disk

CALLS = ("put", "put_new", "get", "list", "exists", "size", "delete", "move_new", "sync")


class Faults:
    """Makes one storage call of the loop fail, before or after it was executed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.remaining = -1
        self.after_call = False
        self.failed: list[str] = []
        for name in CALLS:
            monkeypatch.setattr(LocalStore, name, self._wrap(name, getattr(LocalStore, name)))

    def _wrap(self, name: str, original: Any) -> Any:
        def call(store: LocalStore, *args: Any, **kwargs: Any) -> Any:
            if not threading.current_thread().name.startswith("tidegate"):
                return original(store, *args, **kwargs)
            self.remaining -= 1
            if self.remaining != 0:
                return original(store, *args, **kwargs)
            self.failed.append(name)
            if self.after_call:
                original(store, *args, **kwargs)
            raise StorageError(store.uri, "does not answer", retryable=True)

        return call


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Iterator[Faults]:
    monkeypatch.setattr("tidegate.runtime.retry.INITIAL_DELAY_S", 0.001)
    previous = use_disk(NoSyncDisk())
    yield Faults(monkeypatch)
    use_disk(previous)


@pytest.mark.parametrize("after_call", [False, True])
def test_retries_every_storage_call(tmp_path: Path, faults: Faults, after_call: bool) -> None:
    faults.after_call = after_call
    harness = PipelineHarness(tmp_path, streams=1)
    values: list[int] = []
    for call in range(1, 400):
        values.append(call)
        harness.insert(call)
        faults.remaining, failed_before = call, len(faults.failed)
        pipeline = harness.run()
        assert pipeline.failure is None, (faults.failed[-1:], pipeline.failure)
        assert {(item.state, item.error) for item in pipeline.status()} == {(State.FINISHED, None)}
        if len(faults.failed) == failed_before:
            break
    else:
        pytest.fail("the pipeline never finished")
    faults.remaining = -1
    assert_exactly_once(harness, *values)
    assert {"put", "put_new", "list", "delete", "move_new"} <= set(faults.failed)


def test_reruns_tasks_that_cannot_access_the_store(tmp_path: Path, faults: Faults) -> None:
    harness = PipelineHarness(tmp_path, streams=1)
    harness.insert(1)
    pipeline = harness.pipeline()
    errors: list[str | None] = []
    message = "the server does not answer"
    text = f"thrown from the Python worker\nStorageError: error[TG-613]: s3://b/x: {message}\n"

    def fail_first_jobs(pipeline: Any, epoch_spec: Any) -> None:
        if len(errors) < 7:
            errors.append(pipeline.status()[0].error)
            raise JobFailed(RuntimeError(text))

    pipeline.job = fail_first_jobs  # type: ignore[method-assign,assignment]
    pipeline.start(harness.streams, True)
    assert pipeline._thread is not None
    pipeline._thread.join(60)
    assert pipeline.failure is None
    assert errors[0] is None and message in str(errors[-1])
    assert_exactly_once(harness, 1)


def test_lost_executors_do_not_lose_splits(
    tmp_path: Path, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks read splits by number, so a job needs a task for each split."""
    harness = PipelineHarness(tmp_path, streams=1)
    harness.catalog.get("s").options._values["inserts_per_epoch"] = 500  # type: ignore[union-attr]
    monkeypatch.setattr("tidegate.runtime.epoch._SMALL_BYTES", 0)
    # The cluster loses a core whenever the number is read.
    cores = chain(range(39, 2, -1), repeat(2))
    monkeypatch.setattr(PythonExecutor, "tasks", property(lambda self: next(cores)))
    harness.insert(*range(1, 201))
    surplus: list[int] = []
    run = PythonExecutor.run

    def compare(self: PythonExecutor, graph: Any, epoch_spec: EpochSpec) -> list[bytes]:
        surplus.extend(len(splits) - graph.tasks for splits in epoch_spec.splits.values())
        return run(self, graph, epoch_spec)

    monkeypatch.setattr(PythonExecutor, "run", compare)
    monkeypatch.setattr(PythonPipeline, "job", staticmethod(failing_job(2)))
    assert harness.run().failure is None
    assert len(surplus) >= 3 and max(surplus) <= 0
    assert_exactly_once(harness, *range(1, 201))


def failing_job(times: int) -> Any:
    remaining = [times]

    def job(pipeline: Any, epoch_spec: Any) -> None:
        if remaining[0]:
            remaining[0] -= 1
            raise JobFailed(RuntimeError("ExecutorLostFailure"))

    return job
