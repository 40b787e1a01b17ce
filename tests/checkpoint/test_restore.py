"""Going back to a checkpoint: a new generation, nothing twice that can be forgotten."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.pipelines import House, expected
from tests.support.sinks import committed, files_sink, memory_sink, run
from tidegate.checkpoint.checkpoints import Checkpoints, RestoreRequest, restore
from tidegate.checkpoint.manifest import Manifest, SinkState
from tidegate.checkpoint.manifests import Manifests
from tidegate.connectors.base import CommittedState, EpochId
from tidegate.errors import DataDirectoryError, RunError
from tidegate.session.subscription import Subscription
from tidegate.storage import open_store

FIRST = Manifest(0, 0, 16, 1)


def forgets(connector: str) -> bool:
    return connector != "files"


def checkpoints(house: House, can: Callable[[str], bool] = forgets) -> Checkpoints:
    return Checkpoints({"main": Manifests(house.store)}, can)


def filled(path: Path, *manifests: Manifest) -> Manifests:
    found = Manifests(open_store(str(path)))
    for manifest in manifests:
        found.create(manifest)
    return found


def numbers(house: House, sink: str) -> list[int]:
    return [a for a, _ in house.rows(sink)]


# Manifests


def test_a_restore_begins_a_generation_above_all_numbers(tmp_path: Path) -> None:
    found = filled(tmp_path, *(replace(FIRST, epoch=epoch, now_us=epoch) for epoch in range(6)))
    begun = restore(found, found.load("manifests/000-000000000003.json"), keep=False)
    assert (begun.generation, begun.epoch, begun.now_us) == (1, 7, 3)
    assert begun.restored == [[0, 3, 7]]
    assert found.newest().manifest == begun
    known = [(g, e) for g in (0, 1) for e in range(9) if begun.knows(g, e)]
    assert known == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 7)]


def test_a_process_that_believes_in_the_line_of_before_cannot_go_on(tmp_path: Path) -> None:
    found = filled(tmp_path, FIRST, replace(FIRST, epoch=1))
    restore(found, FIRST, keep=False)
    with pytest.raises(DataDirectoryError) as caught:
        found.create(replace(FIRST, epoch=2))
    assert caught.value.code == "TG-602"


def test_going_back_again_and_undoing_it(tmp_path: Path) -> None:
    """Each line knows the epochs that led to it, and no others."""
    found = filled(tmp_path, *(replace(FIRST, epoch=epoch) for epoch in range(3)))
    first = restore(found, FIRST, keep=False)
    found.create(replace(first, epoch=first.epoch + 1))
    second = restore(found, first, keep=True)
    assert second.restored == [[0, 0, 4], [1, 4, 7]] and second.keep_before_generation == 2
    known = [(g, e) for g in range(4) for e in range(10) if second.knows(g, e)]
    assert known == [(0, 0), (1, 4), (2, 7)]
    undone = restore(found, found.load("manifests/000-000000000003.json"), keep=False)
    assert undone.knows(0, 2) and not undone.knows(1, 4) and undone.keep_before_generation == 2


def test_tokens_that_may_not_be_visible_yet_are_not_lost(tmp_path: Path) -> None:
    """The one that is restored is the newest, and its process died before the commit."""
    sink = SinkState("s", "files", 0, ["token"])
    found = filled(tmp_path, replace(FIRST, sinks={"out": sink}))
    begun = restore(found, found.kept()[0], keep=False)
    told = CommittedState.by(begun, "out")
    assert told.last == EpochId(1, 2)
    assert (told.committables_epoch, told.committables) == (EpochId(0, 0), ["token"])


# Sinks


def test_a_files_sink_takes_markers_of_the_line_and_rejects_others(tmp_path: Path) -> None:
    sink = files_sink(tmp_path)
    sink.recover(CommittedState(None))
    run(sink, 0, 1, 2)
    begun = replace(FIRST, epoch=2).restored_as(1, 4)
    files_sink(tmp_path).recover(CommittedState.by(begun, "out"))
    back = replace(FIRST, epoch=1).restored_as(1, 4)
    with pytest.raises(RunError) as caught:
        files_sink(tmp_path).recover(CommittedState.by(back, "out"))
    assert caught.value.code == "TG-525" and "is ahead of the pipeline" in caught.value.message
    assert "RESTORE FROM CHECKPOINT 4 WITH (sinks = 'keep')" in (caught.value.hint or "")
    files_sink(tmp_path).recover(CommittedState.by(replace(back, keep_before_generation=1), "out"))


def test_a_marker_of_a_generation_that_nobody_knows_is_rejected(tmp_path: Path) -> None:
    sink = files_sink(tmp_path)
    sink.recover(CommittedState(None))
    run(sink, 3, generation=5)
    with pytest.raises(RunError, match="of another generation"):
        files_sink(tmp_path).recover(committed(8))


def test_files_of_an_epoch_that_was_given_up_while_it_was_committed_are_rejected(
    tmp_path: Path,
) -> None:
    """Its files had their names, and its marker was not written yet."""
    sink = files_sink(tmp_path)
    sink.recover(CommittedState(None))
    run(sink, 0)
    marker = next(tmp_path.rglob("committed.json"))
    before = marker.read_bytes()
    run(sink, 1)
    marker.write_bytes(before)
    with pytest.raises(RunError, match="holds epochs up to 1"):
        files_sink(tmp_path).recover(CommittedState.by(FIRST.restored_as(0, 2), "out"))


def test_subscribers_are_told_once_that_the_stream_went_back(tmp_path: Path) -> None:
    sink = memory_sink(tmp_path)
    run(sink, 0, 1, 2)
    store = open_store(str(tmp_path))
    ahead, behind, late = Subscription(store), Subscription(store), Subscription(store, 2)
    ahead.take_all()
    assert [batch.epoch for batch in Subscription(store, 1).take_all()] == [1, 2]
    begun = FIRST.restored_as(1, 4)
    memory_sink(tmp_path).recover(CommittedState.by(begun, "out"))
    run(sink, 5, generation=1)
    assert [batch.epoch for batch in behind.take_all()] == [0, 5]
    for told in (ahead, late):
        with pytest.raises(RunError, match="was restored to epoch 0") as caught:
            told.take_all()
        assert caught.value.code == "TG-611"
        assert [batch.epoch for batch in told.take_all()] == [5]
        assert told.take_all() == []


# Pipelines


def test_totals_are_those_of_the_checkpoint_and_what_is_read_again(tmp_path: Path) -> None:
    house = House(tmp_path, streams=1)
    house.insert(1)
    running = house.run(until_end=False)
    running.wait(30)
    checkpoints(house).keep("one")
    house.insert(2, 3)
    running.wait(30)
    running.stop()
    wanted = RestoreRequest("one", keep=True)
    (done,) = checkpoints(house).restore(wanted)
    assert [warning.code for warning in done.warnings] == ["TG-610"]
    house.insert(4)
    again = house.run()
    assert again.failure is None
    assert numbers(house, "kept0") == expected(1, 2, 3, 4)
    assert numbers(house, "one0") == sorted([*expected(1, 2, 3, 4), *expected(2, 3)])
    status = again.status()[0]
    assert status.rows_in == 6
    newest = again.manifests.load_newest().manifest
    assert newest is not None and newest.streams["t0"].rows_in == 8
    # And over another restart: the marker is of the new generation now.
    house.insert(5)
    assert house.run().failure is None
    assert numbers(house, "kept0") == expected(1, 2, 3, 4, 5)


def test_sinks_that_cannot_forget_reject_and_nothing_is_changed(tmp_path: Path) -> None:
    house = House(tmp_path, streams=1)
    house.insert(1, 2)
    house.run()
    before = house.epochs()
    for act in (checkpoints(house).check, checkpoints(house).restore):
        with pytest.raises(RunError) as caught:
            act(RestoreRequest(0))
        assert caught.value.code == "TG-610" and "one0 (files) up to epoch 1" in str(caught.value)
        assert "RESTORE FROM CHECKPOINT 0 WITH (sinks = 'keep');" in (caught.value.hint or "")
    assert house.epochs() == before
    house.insert(3)
    assert house.run().failure is None
    assert numbers(house, "one0") == expected(1, 2, 3)


def test_going_back_to_where_the_sinks_are_needs_no_word_about_them(tmp_path: Path) -> None:
    """The last epochs gave them nothing: a stream was dropped."""
    house = House(tmp_path, streams=1)
    house.insert(1, 2)
    house.run()
    newest = Manifests(house.store).load_newest().manifest
    assert newest is not None
    Manifests(house.store).create(replace(newest, epoch=newest.epoch + 1))
    checkpoints(house).restore(RestoreRequest(newest.epoch))
    house.insert(3)
    assert house.run().failure is None
    for sink in house.sinks():
        assert numbers(house, sink) == expected(1, 2, 3)


def test_an_epoch_of_several_pipelines_needs_the_name_of_one(tmp_path: Path) -> None:
    found = {n: filled(tmp_path / n, FIRST, replace(FIRST, epoch=1)) for n in ("main", "other")}
    both = Checkpoints(found, forgets)
    with pytest.raises(RunError, match="counts its own epochs") as caught:
        both.restore(RestoreRequest(0))
    assert "WITH (pipeline = 'main')" in (caught.value.hint or "")
    (done,) = both.restore(RestoreRequest(0, pipeline="Other"))
    assert (done.pipeline, done.begun.generation) == ("other", 1)
    with pytest.raises(RunError, match="there is no pipeline othr") as caught:
        both.restore(RestoreRequest(0, pipeline="othr"))
    assert caught.value.hint == "did you mean other?"
    with pytest.raises(RunError, match=r"epoch 7 .* is not kept") as caught:
        both.restore(RestoreRequest(7, pipeline="main"))
    assert caught.value.hint == "epochs that are kept: 0, 1."


def test_a_named_checkpoint_takes_back_those_pipelines_that_have_it(tmp_path: Path) -> None:
    main, other = filled(tmp_path / "main", FIRST), filled(tmp_path / "other")
    both = Checkpoints({"main": main, "other": other}, forgets)
    both.keep("x")
    other.create(FIRST)
    assert [done.pipeline for done in both.restore(RestoreRequest("X"))] == ["main"]
    with pytest.raises(RunError, match="has nothing of the pipeline other"):
        both.restore(RestoreRequest("x", pipeline="other"))


# Damage


def test_a_manifest_whose_state_is_missing_or_cut_short_is_passed_over(tmp_path: Path) -> None:
    for damage in ("missing", "cut short"):
        house = House(tmp_path / damage.replace(" ", "_"), streams=1)
        (member,) = house.members
        object.__setattr__(member, "sinks", tuple(s for s in member.sinks if s.name == "kept0"))
        house.insert(1, 2)
        house.run()
        newest = Manifests(house.store).load_newest().manifest
        assert newest is not None
        (file,) = next(iter(newest.operators.values())).files
        path = house.folder / "pipeline" / "state" / file
        path.unlink() if damage == "missing" else path.write_bytes(b"st")
        house.insert(3)
        again = house.run()
        assert again.failure is None
        (warning,) = again.warnings
        assert warning.code == "TG-605" and file in warning.message
        assert numbers(house, "kept0") == expected(1, 2, 3)
        assert "TG-605" not in [warning.code for warning in house.run().warnings]


def test_sinks_that_are_ahead_of_the_fallback_reject_until_restore_says_keep(
    tmp_path: Path,
) -> None:
    house = House(tmp_path, streams=1)
    house.insert(1, 2)
    house.run()
    newest = sorted((house.folder / "pipeline" / "manifests").glob("*.json"))[-1]
    newest.write_bytes(newest.read_bytes()[:-9])
    with pytest.raises(RunError) as caught:
        house.run()
    hint = caught.value.hint or ""
    epoch = int(hint.partition("RESTORE FROM CHECKPOINT ")[2].split()[0])
    checkpoints(house).restore(RestoreRequest(epoch, keep=True))
    assert house.run().failure is None
    assert numbers(house, "kept0") == expected(1, 2)
    assert numbers(house, "one0") == sorted([*expected(1, 2), *expected(2)])


def test_where_the_newest_are_all_damaged_a_named_one_is_the_way_out(tmp_path: Path) -> None:
    found = filled(tmp_path, FIRST)
    one = Checkpoints({"main": found}, forgets)
    one.keep("old")
    for epoch in range(1, 5):
        found.create(replace(FIRST, epoch=epoch))
    found.expire()
    for path in sorted((tmp_path / "manifests").glob("*.json"))[1:]:
        path.write_bytes(b"{")
    with pytest.raises(DataDirectoryError) as caught:
        found.newest()
    assert "RESTORE FROM CHECKPOINT 0;" in (caught.value.hint or "")
    (done,) = one.restore(RestoreRequest("old"))
    assert (done.begun.generation, done.begun.epoch) == (1, 5)
    assert found.newest().manifest == done.begun
