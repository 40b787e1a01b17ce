"""Streams and sinks that are added, replaced or dropped while a pipeline runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.pipelines import PipelineHarness, assert_exactly_once, expected, kill_at
from tidegate.catalog.objects import Stream
from tidegate.checkpoint.manifests import forget_stream
from tidegate.errors import DataDirectoryError, RunError
from tidegate.runtime.epoch import EpochPlan, build_epoch_spec
from tidegate.runtime.pipeline import EpochStep
from tidegate.storage import StorageError, open_store
from tidegate.storage.local import LocalStore


def test_added_stream_reads_from_the_beginning(tmp_path: Path) -> None:
    harness = PipelineHarness(tmp_path)
    first, second = harness.streams
    harness.insert(1, 2)
    harness.streams = [first]
    pipeline = harness.run(until_end=False)
    pipeline.wait(30)
    harness.insert(3)
    pipeline.change([first, second], 0)
    pipeline.wait(30)
    pipeline.stop()
    assert_exactly_once(harness, 1, 2, 3)


def test_rejects_restarted_stream_if_a_sink_has_its_old_rows(tmp_path: Path) -> None:
    harness = PipelineHarness(tmp_path)
    harness.insert(1)
    harness.run()
    stream = next(iter(harness.catalog.of_type(Stream)))
    changed = harness.stream(stream, operators=False, on_change="restart")
    harness.streams = [changed, harness.streams[1]]
    with pytest.raises(RunError, match="would write them again"):
        harness.run()
    assert_exactly_once(harness, 1)


def test_checks_replaced_stream_before_it_runs(tmp_path: Path) -> None:
    harness = PipelineHarness(tmp_path)
    first, second = harness.streams
    harness.insert(1)
    pipeline = harness.run(until_end=False)
    pipeline.wait(30)
    counters, sinks = pipeline.counters["t0"], dict(pipeline.sinks)
    stream = next(iter(harness.catalog.of_type(Stream)))
    other = harness.stream(stream, operators=False)
    with pytest.raises(DataDirectoryError, match="the operators of the stream") as rejected:
        pipeline.check([other, second])
    assert rejected.value.code == "TG-603"
    assert pipeline.streams["t0"] is first, "nothing is changed"
    same = harness.stream(stream, operators=True)
    object.__setattr__(same, "declaration", stream)
    pipeline.check([same, second])
    pipeline.change([same, second], 0)
    harness.insert(2)
    pipeline.wait(30)
    assert pipeline.counters["t0"] is not counters
    for name, (_, _, connector) in pipeline.sinks.items():
        assert (connector is sinks[name][2]) == name.endswith("1"), (
            "only sinks of the replaced stream are opened again"
        )
    pipeline.stop()
    assert_exactly_once(harness, 1, 2)


def test_warns_about_rows_that_a_detached_sink_missed(tmp_path: Path) -> None:
    harness = PipelineHarness(tmp_path, streams=1)
    attached, detached = (
        harness.streams[0],
        harness.stream(next(iter(harness.catalog.of_type(Stream))), True),
    )
    object.__setattr__(detached, "sinks", attached.sinks[1:])
    for streams, rows, message in (
        ([detached], (1,), ""),
        (
            [attached],
            (2,),
            "the sink one0 has missed 2 rows of t0: they were emitted before the sink",
        ),
        ([detached], (3, 4), ""),
        ([attached], (), "the sink one0 has missed 4 rows of t0: they were emitted while the sink"),
        (
            [attached],
            (5,),
            "the sink one0 has missed 4 rows of t0: they were emitted while the sink",
        ),
        ([attached], (6,), ""),
    ):
        harness.insert(*rows)
        harness.streams = streams
        pipeline = harness.run(until_end=False)
        assert pipeline.wait(30)
        pipeline.stop()
        warnings = [warning.message for warning in pipeline.warnings]
        assert len(warnings) == bool(message)
        assert all(message in warning for warning in warnings)
    assert [a for a, _ in harness.rows("one0")] == expected(2, 5, 6)


@pytest.mark.parametrize("is_running", [True, False])
def test_drop_stream_keeps_unpublished_rows_of_others(
    harness: PipelineHarness, monkeypatch: pytest.MonkeyPatch, is_running: bool
) -> None:
    """Kill the pipeline between the commit and publishing, then drop a stream."""
    harness.insert(1, 2)
    kill_at(monkeypatch, EpochStep.COMMITTED, 2)
    harness.run()
    monkeypatch.undo()
    if is_running:
        pipeline = harness.run(until_end=False)
        pipeline.drop_stream("t1")
        pipeline.stop()
    else:
        forget_stream(harness.store, "T1")
        forget_stream(harness.store, "T1")
    harness.streams = harness.streams[:1]
    harness.insert(3)
    assert harness.run().failure is None
    assert [a for a, _ in harness.rows("one0")] == expected(1, 2, 3)
    assert harness.rows("one0") == harness.rows("two0") == harness.rows("kept0")
    manifest = harness.pipeline().manifests.load_newest().manifest
    assert manifest is not None and manifest.streams.keys() == {"t0"}


def test_checkpoint_after_drop_stream_keeps_its_state(harness: PipelineHarness) -> None:
    """The manifest of DROP STREAM belongs to no epoch, but it can be named and restored."""
    harness.insert(1)
    pipeline = harness.run(until_end=False)
    assert pipeline.wait(30)
    pipeline.drop_stream("t1")
    named = pipeline.manifests.name_newest("kept")
    assert named is not None and named.epoch == 1
    for value in range(2, 7):
        harness.insert(value)
        assert pipeline.wait(30)
    pipeline.stop()
    assert pipeline.failure is None
    usable = pipeline.manifests.load_usable()
    assert [manifest.epoch for manifest in usable] == [6, 5, 4, 1]
    files = {f for m in usable for o in m.operators.values() for f in o.files}
    assert harness.state_files() == files, "no other file is kept"


@pytest.mark.parametrize("after_call", [False, True])
def test_drop_stream_retries_unavailable_storage(
    harness: PipelineHarness, monkeypatch: pytest.MonkeyPatch, after_call: bool
) -> None:
    monkeypatch.setattr("tidegate.runtime.retry.INITIAL_DELAY_S", 0.001)
    harness.insert(1)
    pipeline = harness.run(until_end=False)
    assert pipeline.wait(30)
    original, failures = LocalStore.put_new, [2]

    def fail(store: LocalStore, name: str, *args: Any, **kwargs: Any) -> None:
        if failures[0] and "manifests/" in name:
            failures[0] -= 1
            if after_call and failures[0]:
                original(store, name, *args, **kwargs)
            raise StorageError(store.uri, "does not answer", retryable=True)
        original(store, name, *args, **kwargs)

    monkeypatch.setattr(LocalStore, "put_new", fail)
    pipeline.drop_stream("t1")
    assert failures == [0]
    harness.insert(2)
    assert pipeline.wait(30)
    pipeline.stop()
    assert pipeline.failure is None and harness.epochs() == [0, 1, 2]
    assert [a for a, _ in harness.rows("one0")] == expected(1, 2)


def test_drop_stream_of_a_zombie_writes_nothing(harness: PipelineHarness) -> None:
    harness.insert(1)
    pipeline = harness.run(until_end=False)
    assert pipeline.wait(30)

    def require_lock() -> None:
        raise DataDirectoryError("TG-602", "another process has taken over")

    pipeline.context = replace(pipeline.context, require_lock=require_lock)
    with pytest.raises(DataDirectoryError, match="has taken over"):
        pipeline.drop_stream("t1")
    assert harness.epochs() == [0] and pipeline.streams.keys() == {"t0", "t1"}


def test_stop_deletes_epoch_specs(harness: PipelineHarness) -> None:
    pipeline = harness.run(until_end=False)
    pipeline.epoch_spec_store.write(
        build_epoch_spec(pipeline._manifest, EpochPlan({}, False, False), 0, 0, 1)
    )
    pipeline.stop()
    assert open_store(str(harness.folder / "epoch_specs")).list() == []
