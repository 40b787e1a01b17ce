"""A store that is away for a moment, at any moment: the pipeline waits, and no row is lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.pipelines import NoSyncDisk, PipelineHarness, PythonPipeline, NoSpark, check
from tidegate.observe.status import State
from tidegate.runtime import pipeline as module
from tidegate.spark.errors import JobFailed
from tidegate.storage import StorageError
from tidegate.storage import local as disk
from tidegate.storage.local import LocalStore

CALLS = ("put", "put_new", "get", "list", "exists", "size", "delete", "move_new", "sync")


class Faults:
    """Lets one call of the loop fail, before it did anything or with its answer lost."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = -1
        self.after = False
        self.failed: list[str] = []
        for name in CALLS:
            monkeypatch.setattr(LocalStore, name, self._flaky(name, getattr(LocalStore, name)))

    def _flaky(self, name: str, real: Any) -> Any:
        def call(store: LocalStore, *args: Any, **kwargs: Any) -> Any:
            if not threading.current_thread().name.startswith("tidegate"):
                return real(store, *args, **kwargs)
            self.left -= 1
            if self.left != 0:
                return real(store, *args, **kwargs)
            self.failed.append(name)
            if self.after:
                real(store, *args, **kwargs)
            raise StorageError(store.uri, "does not answer", retryable=True)

        return call


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Iterator[Faults]:
    monkeypatch.setattr(module, "_BACKOFF_SECONDS", 0.001)
    before = disk.use_disk(NoSyncDisk())
    yield Faults(monkeypatch)
    disk.use_disk(before)


@pytest.mark.parametrize("after", [False, True])
def test_a_store_that_is_away_at_any_call_is_waited_for(
    tmp_path: Path, faults: Faults, after: bool
) -> None:
    faults.after = after
    harness = PipelineHarness(tmp_path, streams=1)
    values: list[int] = []
    for call in range(1, 400):
        values.append(call)
        harness.insert(call)
        faults.left, met = call, len(faults.failed)
        ended = harness.run()
        assert ended.failure is None, (faults.failed[-1:], ended.failure)
        assert {(item.state, item.error) for item in ended.status()} == {(State.FINISHED, None)}
        if len(faults.failed) == met:
            break
    else:
        pytest.fail("it never gets through")
    faults.left = -1
    check(harness, *values)
    assert {"put", "put_new", "list", "delete", "move_new"} <= set(faults.failed)


def test_tasks_that_do_not_reach_a_store_are_run_again_until_they_do(
    tmp_path: Path, faults: Faults
) -> None:
    harness = PipelineHarness(tmp_path, streams=1)
    harness.insert(1)
    pipeline = harness.pipeline()
    said: list[str | None] = []
    told = "the server does not answer"
    text = f"thrown from the Python worker\nStorageError: error[TG-613]: s3://b/x: {told}\n"

    def away(loop: Any, epoch_spec: Any) -> None:
        if len(said) < 7:
            said.append(loop.status()[0].error)
            raise JobFailed(RuntimeError(text))

    pipeline.job = away  # type: ignore[method-assign,assignment]
    pipeline.start(harness.members, True)
    assert pipeline._thread is not None
    pipeline._thread.join(60)
    assert pipeline.failure is None
    assert said[0] is None and told in str(said[-1])
    check(harness, 1)


class Shrinking:
    """A cluster that loses a core whenever somebody looks."""

    def __init__(self) -> None:
        self.cores = 40

    @property
    def defaultParallelism(self) -> int:  # noqa: N802
        self.cores = max(self.cores - 1, 2)
        return self.cores


def test_workers_that_leave_in_mid_epoch_take_no_share_with_them(
    tmp_path: Path, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks of a frame read the shares of the order by number: there must be one for each."""
    harness = PipelineHarness(tmp_path, streams=1)
    harness.catalog.get("s").options._values["inserts_per_epoch"] = 500  # type: ignore[union-attr]
    monkeypatch.setattr("tidegate.runtime.epoch._SMALL_BYTES", 0)
    monkeypatch.setattr(NoSpark, "sparkContext", Shrinking())
    harness.insert(*range(1, 201))
    unread: list[int] = []
    build = PythonPipeline._build

    def built(self: PythonPipeline, members: Any, job: Any) -> Any:
        unread.extend(len(splits) - job.tasks for splits in job.epoch_spec.splits.values())
        return build(self, members, job)

    monkeypatch.setattr(PythonPipeline, "_build", built)
    monkeypatch.setattr(PythonPipeline, "job", staticmethod(failing(2)))
    assert harness.run().failure is None
    assert len(unread) >= 3 and max(unread) <= 0
    check(harness, *range(1, 201))


def failing(times: int) -> Any:
    left = [times]

    def job(loop: Any, epoch_spec: Any) -> None:
        loop._frames.forget()
        if left[0]:
            left[0] -= 1
            raise JobFailed(RuntimeError("ExecutorLostFailure"))

    return job
