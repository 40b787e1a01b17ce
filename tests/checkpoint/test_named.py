"""Named checkpoints: they and their state are kept until they are dropped."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.manifests import FIRST, create_manifests
from tests.support.pipelines import PipelineHarness
from tidegate.checkpoint.checkpoints import Checkpoints
from tidegate.checkpoint.manifest import OperatorState
from tidegate.checkpoint.manifests import Manifests
from tidegate.errors import RunError
from tidegate.storage import open_store


def checkpoints(**pipelines: Manifests) -> Checkpoints:
    return Checkpoints(pipelines, lambda connector: False)


def epochs(manifests: Manifests) -> list[int]:
    return [manifest.epoch for manifest in manifests.load_all()]


def test_named_checkpoint_is_kept_until_dropped(tmp_path: Path) -> None:
    manifests = create_manifests(tmp_path, 0, 1, 2)
    names = checkpoints(main=manifests).create("Before")
    assert {key: (item.name, item.epoch) for key, item in names.items()} == {"main": ("Before", 2)}
    create_manifests(tmp_path, 3, 4, 5, 6, 7)
    manifests.expire()
    assert epochs(manifests) == [7, 6, 5, 2]
    checkpoints(main=manifests).drop("before")
    manifests.expire()
    assert epochs(manifests) == [7, 6, 5]


def test_names_survive_a_restart(tmp_path: Path) -> None:
    checkpoints(main=create_manifests(tmp_path, 0)).create("first")
    manifests = create_manifests(tmp_path, 1, 2, 3, 4)
    manifests.expire()
    assert epochs(manifests) == [4, 3, 2, 0]


def test_manifest_expires_after_its_last_name_is_dropped(tmp_path: Path) -> None:
    manifests = create_manifests(tmp_path, 0)
    named = checkpoints(main=manifests)
    named.create("a")
    named.create("b")
    assert [(c.name, c.epoch) for c in named.list_all()] == [("a", 0), ("b", 0)]
    create_manifests(tmp_path, 1, 2, 3)
    named.drop("a")
    manifests.expire()
    assert epochs(manifests) == [3, 2, 1, 0]
    named.drop("b")
    manifests.expire()
    assert epochs(manifests) == [3, 2, 1]


def test_generates_names(tmp_path: Path) -> None:
    named = checkpoints(
        main=create_manifests(tmp_path / "a", 5), other=create_manifests(tmp_path / "b", 9)
    )
    assert [next(iter(named.create(None).values())).name for _ in range(2)] == [
        "checkpoint-1",
        "checkpoint-2",
    ]
    named.drop("checkpoint-1")
    assert next(iter(named.create(None).values())).name == "checkpoint-3"
    rows = [(c.pipeline, c.name, c.epoch) for c in named.list_all()]
    assert ("main", "checkpoint-2", 5) in rows and ("other", "checkpoint-3", 9) in rows


def test_rejects_existing_and_unknown_names(
    tmp_path: Path,
) -> None:
    named = checkpoints(main=create_manifests(tmp_path, 0))
    named.create("before-upgrade")
    with pytest.raises(RunError) as caught:
        named.create("BEFORE-upgrade")
    assert caught.value.code == "TG-202" and "DROP CHECKPOINT" in (caught.value.hint or "")
    with pytest.raises(RunError) as caught:
        named.drop("before-upgrad")
    assert caught.value.code == "TG-609" and caught.value.hint == "did you mean before-upgrade?"


def test_rejects_checkpoint_before_first_epoch(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="nothing to checkpoint"):
        checkpoints(main=create_manifests(tmp_path)).create("x")
    assert not (tmp_path / "names").exists()


def test_lists_state_bytes_and_time(tmp_path: Path) -> None:
    manifests = Manifests(open_store(str(tmp_path)))
    operator = OperatorState("s", "w", "ff", report={"bytes": 30, "rows": 2})
    manifests.create(
        replace(FIRST, processing_time_us=60_000_000, operators={"a": operator, "b": operator})
    )
    (checkpoint,) = checkpoints(main=manifests).list_all()
    assert (checkpoint.generation, checkpoint.epoch, checkpoint.state_bytes, checkpoint.name) == (
        0,
        0,
        60,
        None,
    )
    assert checkpoint.time.isoformat() == "1970-01-01T00:01:00+00:00"


def test_running_pipeline_keeps_state_of_named_checkpoint(tmp_path: Path) -> None:
    harness = PipelineHarness(tmp_path, streams=1)
    harness.insert(1)
    pipeline = harness.run(until_end=False)
    pipeline.wait(30)
    checkpoints(main=pipeline.manifests).create("x")
    manifest = pipeline.manifests.load_all()[0]
    needed = {file for o in manifest.operators.values() for file in o.files}
    assert needed
    harness.insert(2, 3, 4, 5, 6)
    pipeline.wait(30)
    pipeline.stop()
    assert harness.epochs()[0] == manifest.epoch and needed <= harness.state_files()
    # A restart sweeps, too.
    harness.insert(7)
    harness.run()
    assert needed <= harness.state_files()
    checkpoints(main=harness.pipeline().manifests).drop("x")
    harness.insert(8)
    harness.run()
    assert manifest.epoch not in harness.epochs() and not needed & harness.state_files()
