"""Restoring checkpoints: generations, sinks with and without rollback, damaged manifests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.manifests import FIRST, create_manifests
from tests.support.pipelines import PipelineHarness, expected
from tests.support.sinks import committed, files_sink, memory_sink, run
from tidegate.checkpoint.checkpoints import Checkpoints, RestoreRequest, restore
from tidegate.checkpoint.manifest import RestoreRecord, SinkState
from tidegate.checkpoint.manifests import Manifests
from tidegate.connectors.base import CommittedState, EpochId
from tidegate.errors import DataDirectoryError, RunError
from tidegate.session.subscription import Subscription
from tidegate.storage import open_store


def tolerates_restore(connector: str) -> bool:
    return connector != "files"


def checkpoints(
    harness: PipelineHarness, rollback: Callable[[str], bool] = tolerates_restore
) -> Checkpoints:
    return Checkpoints({"main": Manifests(harness.store)}, rollback)


def numbers(harness: PipelineHarness, sink: str) -> list[int]:
    return [a for a, _ in harness.rows(sink)]


def test_restore_starts_generation_above_all_numbers(tmp_path: Path) -> None:
    manifests = create_manifests(
        tmp_path, *(replace(FIRST, epoch=epoch, processing_time_us=epoch) for epoch in range(6))
    )
    restored = restore(
        manifests, manifests.load("manifests/000-000000000003.json"), keep_sink_rows=False
    )
    assert (restored.generation, restored.epoch, restored.processing_time_us) == (1, 7, 3)
    assert restored.restores == [RestoreRecord(0, 3, 7)]
    assert manifests.load_newest().manifest == restored
    included = [(g, e) for g in (0, 1) for e in range(9) if restored.includes(g, e)]
    assert included == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 7)]


def test_process_of_old_generation_cannot_commit(tmp_path: Path) -> None:
    manifests = create_manifests(tmp_path, FIRST, replace(FIRST, epoch=1))
    restore(manifests, FIRST, keep_sink_rows=False)
    with pytest.raises(DataDirectoryError) as caught:
        manifests.create(replace(FIRST, epoch=2))
    assert caught.value.code == "TG-602"


def test_lineage_after_two_restores(tmp_path: Path) -> None:
    """A lineage includes exactly the epochs that led to the manifest."""
    manifests = create_manifests(tmp_path, *(replace(FIRST, epoch=epoch) for epoch in range(3)))
    first = restore(manifests, FIRST, keep_sink_rows=False)
    manifests.create(replace(first, epoch=first.epoch + 1))
    second = restore(manifests, first, keep_sink_rows=True)
    assert second.restores == [RestoreRecord(0, 0, 4), RestoreRecord(1, 4, 7)]
    assert second.keep_before_generation == 2
    included = [(g, e) for g in range(4) for e in range(10) if second.includes(g, e)]
    assert included == [(0, 0), (1, 4), (2, 7)]
    undone = restore(
        manifests, manifests.load("manifests/000-000000000003.json"), keep_sink_rows=False
    )
    assert (
        undone.includes(0, 2) and not undone.includes(1, 4) and undone.keep_before_generation == 2
    )


def test_restore_keeps_unpublished_committables(tmp_path: Path) -> None:
    """Restore the newest manifest, whose process died before publishing."""
    sink = SinkState("s", "files", 0, ["committable"])
    manifests = create_manifests(tmp_path, replace(FIRST, sinks={"out": sink}))
    restored = restore(manifests, manifests.load_all()[0], keep_sink_rows=False)
    state = CommittedState.from_manifest(restored, "out")
    assert state.last == EpochId(1, 2)
    assert (state.committables_epoch, state.committables) == (EpochId(0, 0), ["committable"])


def test_files_sink_rejects_commit_markers_outside_the_lineage(tmp_path: Path) -> None:
    sink = files_sink(tmp_path)
    sink.recover(CommittedState(None))
    run(sink, 0, 1, 2)
    restored = replace(FIRST, epoch=2).restored_as(1, 4)
    files_sink(tmp_path).recover(CommittedState.from_manifest(restored, "out"))
    older = replace(FIRST, epoch=1).restored_as(1, 4)
    with pytest.raises(RunError) as caught:
        files_sink(tmp_path).recover(CommittedState.from_manifest(older, "out"))
    assert caught.value.code == "TG-525" and "has not committed" in caught.value.message
    assert "RESTORE FROM CHECKPOINT 4 WITH (sinks = 'keep')" in (caught.value.hint or "")
    files_sink(tmp_path).recover(
        CommittedState.from_manifest(replace(older, keep_before_generation=1), "out")
    )


def test_files_sink_rejects_marker_of_unknown_generation(tmp_path: Path) -> None:
    sink = files_sink(tmp_path)
    sink.recover(CommittedState(None))
    run(sink, 3, generation=5)
    with pytest.raises(RunError, match="has not committed"):
        files_sink(tmp_path).recover(committed(8))


def test_files_sink_rejects_files_of_rolled_back_epoch(
    tmp_path: Path,
) -> None:
    """Files were published, but the commit marker was not written."""
    sink = files_sink(tmp_path)
    sink.recover(CommittedState(None))
    run(sink, 0)
    marker = next(tmp_path.rglob("committed.json"))
    previous = marker.read_bytes()
    run(sink, 1)
    marker.write_bytes(previous)
    with pytest.raises(RunError, match="contains epochs up to 1"):
        files_sink(tmp_path).recover(CommittedState.from_manifest(FIRST.restored_as(0, 2), "out"))


def test_subscribers_get_restore_error_once(tmp_path: Path) -> None:
    sink = memory_sink(tmp_path)
    run(sink, 0, 1, 2)
    store = open_store(str(tmp_path))
    ahead, behind, late = Subscription(store), Subscription(store), Subscription(store, 2)
    ahead.take_all()
    assert [batch.epoch for batch in Subscription(store, 1).take_all()] == [1, 2]
    restored = FIRST.restored_as(1, 4)
    memory_sink(tmp_path).recover(CommittedState.from_manifest(restored, "out"))
    run(sink, 5, generation=1)
    assert [batch.epoch for batch in behind.take_all()] == [0, 5]
    for subscription in (ahead, late):
        with pytest.raises(RunError, match="was restored to epoch 0") as caught:
            subscription.take_all()
        assert caught.value.code == "TG-611"
        assert [batch.epoch for batch in subscription.take_all()] == [5]
        assert subscription.take_all() == []


def test_pipeline_continues_from_restored_totals(tmp_path: Path) -> None:
    harness = PipelineHarness(tmp_path, streams=1)
    harness.insert(1)
    pipeline = harness.run(until_end=False)
    pipeline.wait(30)
    checkpoints(harness).create("one")
    harness.insert(2, 3)
    pipeline.wait(30)
    pipeline.stop()
    request = RestoreRequest("one", keep_sink_rows=True)
    (restored,) = checkpoints(harness).restore(request)
    assert [warning.code for warning in restored.warnings] == ["TG-610"]
    harness.insert(4)
    pipeline = harness.run()
    assert pipeline.failure is None
    assert numbers(harness, "kept0") == expected(1, 2, 3, 4)
    assert numbers(harness, "one0") == sorted([*expected(1, 2, 3, 4), *expected(2, 3)])
    status = pipeline.status()[0]
    assert status.rows_in == 6
    newest = pipeline.manifests.load_newest().manifest
    assert newest is not None and newest.streams["t0"].rows_in == 8
    # After another restart the commit marker is of the new generation.
    harness.insert(5)
    assert harness.run().failure is None
    assert numbers(harness, "kept0") == expected(1, 2, 3, 4, 5)


def test_rejects_sinks_without_rollback_and_changes_nothing(tmp_path: Path) -> None:
    harness = PipelineHarness(tmp_path, streams=1)
    harness.insert(1, 2)
    harness.run()
    previous = harness.epochs()
    for action in (checkpoints(harness).check, checkpoints(harness).restore):
        with pytest.raises(RunError) as caught:
            action(RestoreRequest(0))
        assert caught.value.code == "TG-610" and "one0 (files) up to epoch 1" in str(caught.value)
        assert "RESTORE FROM CHECKPOINT 0 WITH (sinks = 'keep');" in (caught.value.hint or "")
    assert harness.epochs() == previous
    harness.insert(3)
    assert harness.run().failure is None
    assert numbers(harness, "one0") == expected(1, 2, 3)


def test_restore_to_epoch_of_sinks_needs_no_keep(tmp_path: Path) -> None:
    """The last epochs had no rows for the sinks, because a stream was dropped."""
    harness = PipelineHarness(tmp_path, streams=1)
    harness.insert(1, 2)
    harness.run()
    newest = Manifests(harness.store).load_newest().manifest
    assert newest is not None
    Manifests(harness.store).create(replace(newest, epoch=newest.epoch + 1))
    checkpoints(harness).restore(RestoreRequest(newest.epoch))
    harness.insert(3)
    assert harness.run().failure is None
    for sink in harness.sinks():
        assert numbers(harness, sink) == expected(1, 2, 3)


def test_rejects_epoch_without_pipeline_if_there_are_several(tmp_path: Path) -> None:
    manifests = {
        n: create_manifests(tmp_path / n, FIRST, replace(FIRST, epoch=1)) for n in ("main", "other")
    }
    both = Checkpoints(manifests, tolerates_restore)
    with pytest.raises(RunError, match="has its own epochs") as caught:
        both.restore(RestoreRequest(0))
    assert "WITH (pipeline = 'main')" in (caught.value.hint or "")
    (restored,) = both.restore(RestoreRequest(0, pipeline="Other"))
    assert (restored.pipeline, restored.manifest.generation) == ("other", 1)
    with pytest.raises(RunError, match="the pipeline othr does not exist") as caught:
        both.restore(RestoreRequest(0, pipeline="othr"))
    assert caught.value.hint == "did you mean other?"
    with pytest.raises(RunError, match=r"epoch 7 .* has expired or does not exist") as caught:
        both.restore(RestoreRequest(7, pipeline="main"))
    assert caught.value.hint == "available epochs: 0, 1."


def test_named_checkpoint_restores_the_pipelines_it_contains(tmp_path: Path) -> None:
    main, other = create_manifests(tmp_path / "main", FIRST), create_manifests(tmp_path / "other")
    both = Checkpoints({"main": main, "other": other}, tolerates_restore)
    both.create("x")
    other.create(FIRST)
    assert [restored.pipeline for restored in both.restore(RestoreRequest("X"))] == ["main"]
    with pytest.raises(RunError, match="does not contain the pipeline other"):
        both.restore(RestoreRequest("x", pipeline="other"))


def test_skips_manifest_with_missing_or_truncated_state(tmp_path: Path) -> None:
    for damage in ("missing", "truncated"):
        harness = PipelineHarness(tmp_path / damage, streams=1)
        (stream,) = harness.streams
        object.__setattr__(stream, "sinks", tuple(s for s in stream.sinks if s.name == "kept0"))
        harness.insert(1, 2)
        harness.run()
        newest = Manifests(harness.store).load_newest().manifest
        assert newest is not None
        (file,) = next(iter(newest.operators.values())).files
        path = harness.folder / "pipeline" / "state" / file
        path.unlink() if damage == "missing" else path.write_bytes(b"st")
        harness.insert(3)
        pipeline = harness.run()
        assert pipeline.failure is None
        (warning,) = pipeline.warnings
        assert warning.code == "TG-605" and file in warning.message
        assert numbers(harness, "kept0") == expected(1, 2, 3)
        assert "TG-605" not in [warning.code for warning in harness.run().warnings]


def test_sinks_ahead_of_fallback_manifest_need_keep(
    tmp_path: Path,
) -> None:
    harness = PipelineHarness(tmp_path, streams=1)
    harness.insert(1, 2)
    harness.run()
    newest = sorted((harness.folder / "pipeline" / "manifests").glob("*.json"))[-1]
    newest.write_bytes(newest.read_bytes()[:-9])
    with pytest.raises(RunError) as caught:
        harness.run()
    hint = caught.value.hint or ""
    epoch = int(hint.partition("RESTORE FROM CHECKPOINT ")[2].split()[0])
    checkpoints(harness).restore(RestoreRequest(epoch, keep_sink_rows=True))
    assert harness.run().failure is None
    assert numbers(harness, "kept0") == expected(1, 2)
    assert numbers(harness, "one0") == sorted([*expected(1, 2), *expected(2)])


def test_restores_named_checkpoint_if_newest_manifests_are_damaged(tmp_path: Path) -> None:
    manifests = create_manifests(tmp_path, FIRST)
    named = Checkpoints({"main": manifests}, tolerates_restore)
    named.create("old")
    for epoch in range(1, 5):
        manifests.create(replace(FIRST, epoch=epoch))
    manifests.expire()
    for path in sorted((tmp_path / "manifests").glob("*.json"))[1:]:
        path.write_bytes(b"{")
    with pytest.raises(DataDirectoryError) as caught:
        manifests.load_newest()
    assert "RESTORE FROM CHECKPOINT 0;" in (caught.value.hint or "")
    (restored,) = named.restore(RestoreRequest("old"))
    assert (restored.manifest.generation, restored.manifest.epoch) == (1, 5)
    assert manifests.load_newest().manifest == restored.manifest
