"""Streams that come and go while a pipeline runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.pipelines import PipelineHarness, check, expected, kill_at
from tidegate.catalog.objects import Stream
from tidegate.checkpoint.manifests import forget_stream
from tidegate.errors import DataDirectoryError, RunError
from tidegate.runtime.epoch import Epoch, build_epoch_spec
from tidegate.runtime.pipeline import EpochStep
from tidegate.storage import open_store


def test_a_stream_that_joins_later_reads_everything_and_the_others_go_on(tmp_path: Path) -> None:
    harness = PipelineHarness(tmp_path)
    first, second = harness.members
    harness.insert(1, 2)
    harness.members = [first]
    running = harness.run(until_end=False)
    running.wait(30)
    harness.insert(3)
    running.change([first, second], 0)
    running.wait(30)
    running.stop()
    check(harness, 1, 2, 3)


def test_a_stream_that_starts_over_does_not_write_beside_its_old_rows(tmp_path: Path) -> None:
    harness = PipelineHarness(tmp_path)
    harness.insert(1)
    harness.run()
    stream = next(iter(harness.catalog.of(Stream)))
    changed = harness.member(stream, operators=False, on_change="restart")
    harness.members = [changed, harness.members[1]]
    with pytest.raises(RunError, match="would write them again"):
        harness.run()
    check(harness, 1)


def test_a_stream_that_takes_the_place_of_another_is_checked_before_it_runs(tmp_path: Path) -> None:
    harness = PipelineHarness(tmp_path)
    first, second = harness.members
    harness.insert(1)
    running = harness.run(until_end=False)
    running.wait(30)
    counters, sinks = running.counters["t0"], dict(running.sinks)
    stream = next(iter(harness.catalog.of(Stream)))
    other = harness.member(stream, operators=False)
    with pytest.raises(DataDirectoryError, match="needs other operators") as rejected:
        running.check([other, second])
    assert rejected.value.code == "TG-603"
    assert running.members["t0"] is first, "nothing is changed"
    same = harness.member(stream, operators=True)
    object.__setattr__(same, "declared", stream)
    running.check([same, second])
    running.change([same, second], 0)
    harness.insert(2)
    running.wait(30)
    assert running.counters["t0"] is not counters
    for name, (_, _, opened) in running.sinks.items():
        assert (opened is sinks[name][2]) == name.endswith("1"), (
            "those of the stream are opened anew"
        )
    running.stop()
    check(harness, 1, 2)


def test_a_sink_that_was_away_is_told_what_it_lacks(tmp_path: Path) -> None:
    harness = PipelineHarness(tmp_path, streams=1)
    whole, without = harness.members[0], harness.member(next(iter(harness.catalog.of(Stream))), True)
    object.__setattr__(without, "sinks", whole.sinks[1:])
    for members, rows, said in (
        ([without], (1,), ""),
        ([whole], (2,), "one0 does not have 2 rows of t0: they were given out before the sink"),
        ([without], (3, 4), ""),
        ([whole], (), "one0 does not have 4 rows of t0: they were given out while the sink"),
        ([whole], (5,), "one0 does not have 4 rows of t0: they were given out while the sink"),
        ([whole], (6,), ""),
    ):
        harness.insert(*rows)
        harness.members = members
        running = harness.run(until_end=False)
        assert running.wait(30)
        running.stop()
        warnings = [warning.message for warning in running.warnings]
        assert len(warnings) == bool(said)
        assert all(said in warning for warning in warnings)
    assert [a for a, _ in harness.rows("one0")] == expected(2, 5, 6)


@pytest.mark.parametrize("running", [True, False])
def test_what_was_decided_for_others_is_not_lost_when_a_stream_is_dropped(
    harness: PipelineHarness, monkeypatch: pytest.MonkeyPatch, running: bool
) -> None:
    """Killed between the decision and the commits; then a stream is dropped."""
    harness.insert(1, 2)
    kill_at(monkeypatch, EpochStep.COMMITTED, 2)
    harness.run()
    monkeypatch.undo()
    if running:
        pipeline = harness.run(until_end=False)
        pipeline.forget("t1")
        pipeline.stop()
    else:
        forget_stream(harness.store, "T1")
        forget_stream(harness.store, "T1")
    harness.members = harness.members[:1]
    harness.insert(3)
    assert harness.run().failure is None
    assert [a for a, _ in harness.rows("one0")] == expected(1, 2, 3)
    assert harness.rows("one0") == harness.rows("two0") == harness.rows("kept0")
    manifest = harness.pipeline().manifests.load_newest().manifest
    assert manifest is not None and manifest.streams.keys() == {"t0"}


def test_the_orders_of_a_driver_are_gone_with_it(harness: PipelineHarness) -> None:
    running = harness.run(until_end=False)
    running.place.write(build_epoch_spec(running._manifest, Epoch({}, False, False), 0, 0, 1))
    running.stop()
    assert open_store(str(harness.folder / "orders")).list() == []
