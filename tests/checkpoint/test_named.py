"""Checkpoints with a name: kept until they are dropped, with the state they need."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.pipelines import House
from tidegate.checkpoint.checkpoints import Checkpoints
from tidegate.checkpoint.manifest import Manifest, OperatorState
from tidegate.checkpoint.manifests import Manifests
from tidegate.errors import RunError
from tidegate.storage import open_store

FIRST = Manifest(0, 0, 16, 1)


def filled(path: Path, *epochs: int) -> Manifests:
    found = Manifests(open_store(str(path)))
    for epoch in epochs:
        found.create(replace(FIRST, epoch=epoch))
    return found


def checkpoints(**pipelines: Manifests) -> Checkpoints:
    return Checkpoints(pipelines, lambda connector: False)


def epochs(manifests: Manifests) -> list[int]:
    return [manifest.epoch for manifest in manifests.load_all()]


def test_what_has_a_name_is_kept_until_it_is_dropped(tmp_path: Path) -> None:
    found = filled(tmp_path, 0, 1, 2)
    kept = checkpoints(main=found).keep("Before")
    assert {key: (item.name, item.epoch) for key, item in kept.items()} == {"main": ("Before", 2)}
    filled(tmp_path, 3, 4, 5, 6, 7)
    found.expire()
    assert epochs(found) == [7, 6, 5, 2]
    checkpoints(main=found).drop("before")
    found.expire()
    assert epochs(found) == [7, 6, 5]


def test_a_name_given_by_one_process_is_known_to_the_next(tmp_path: Path) -> None:
    checkpoints(main=filled(tmp_path, 0)).keep("first")
    later = filled(tmp_path, 1, 2, 3, 4)
    later.expire()
    assert epochs(later) == [4, 3, 2, 0]


def test_a_manifest_may_have_several_names_and_goes_with_the_last(tmp_path: Path) -> None:
    found = filled(tmp_path, 0)
    both = checkpoints(main=found)
    both.keep("a")
    both.keep("b")
    assert [(c.name, c.epoch) for c in both.listed()] == [("a", 0), ("b", 0)]
    filled(tmp_path, 1, 2, 3)
    both.drop("a")
    found.expire()
    assert epochs(found) == [3, 2, 1, 0]
    both.drop("b")
    found.expire()
    assert epochs(found) == [3, 2, 1]


def test_names_are_made_up_where_none_is_given(tmp_path: Path) -> None:
    both = checkpoints(main=filled(tmp_path / "a", 5), other=filled(tmp_path / "b", 9))
    assert [next(iter(both.keep(None).values())).name for _ in range(2)] == [
        "checkpoint-1",
        "checkpoint-2",
    ]
    both.drop("checkpoint-1")
    assert next(iter(both.keep(None).values())).name == "checkpoint-3"
    listed = [(c.pipeline, c.name, c.epoch) for c in both.listed()]
    assert ("main", "checkpoint-2", 5) in listed and ("other", "checkpoint-3", 9) in listed


def test_a_name_is_given_once_and_an_unknown_one_is_rejected_with_the_nearest(
    tmp_path: Path,
) -> None:
    one = checkpoints(main=filled(tmp_path, 0))
    one.keep("before-upgrade")
    with pytest.raises(RunError) as caught:
        one.keep("BEFORE-upgrade")
    assert caught.value.code == "TG-202" and "DROP CHECKPOINT" in (caught.value.hint or "")
    with pytest.raises(RunError) as caught:
        one.drop("before-upgrad")
    assert caught.value.code == "TG-609" and caught.value.hint == "did you mean before-upgrade?"


def test_before_the_first_epoch_there_is_nothing_to_keep(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="nothing to keep yet"):
        checkpoints(main=filled(tmp_path)).keep("x")
    assert not (tmp_path / "names").exists()


def test_the_listing_says_what_is_in_them(tmp_path: Path) -> None:
    found = Manifests(open_store(str(tmp_path)))
    operator = OperatorState("s", "w", "ff", report={"bytes": 30, "rows": 2})
    found.create(replace(FIRST, now_us=60_000_000, operators={"a": operator, "b": operator}))
    (only,) = checkpoints(main=found).listed()
    assert (only.generation, only.epoch, only.state_bytes, only.name) == (0, 0, 60, None)
    assert only.time.isoformat() == "1970-01-01T00:01:00+00:00"


def test_a_running_pipeline_keeps_the_state_of_what_has_a_name(tmp_path: Path) -> None:
    house = House(tmp_path, streams=1)
    house.insert(1)
    running = house.run(until_end=False)
    running.wait(30)
    checkpoints(main=running.manifests).keep("x")
    manifest = running.manifests.load_all()[0]
    needed = {file for o in manifest.operators.values() for file in o.files}
    assert needed
    house.insert(2, 3, 4, 5, 6)
    running.wait(30)
    running.stop()
    assert house.epochs()[0] == manifest.epoch and needed <= house.state_files()
    # Also over a restart, which sweeps.
    house.insert(7)
    house.run()
    assert needed <= house.state_files()
    checkpoints(main=house.pipeline().manifests).drop("x")
    house.insert(8)
    house.run()
    assert manifest.epoch not in house.epochs() and not needed & house.state_files()
