"""A files sink: nothing is seen before its commit, nothing twice, nothing is ever deleted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.sinks import decided, files_sink, run, stage
from tidegate.connectors.protocols import Decided, EpochId
from tidegate.errors import RunError
from tidegate.storage.local import LocalStore

FRESH = Decided(None)


def names(path: Path) -> list[str]:
    return sorted(item.name for item in path.rglob("*.parquet") if "_tidegate" not in item.parts)


def rows(path: Path) -> list[int]:
    files = [item for item in path.rglob("*.parquet") if "_tidegate" not in item.parts]
    return sorted(n for file in files for n in pq.read_table(file).column("a").to_pylist())


def marker(path: Path) -> Path:
    return path / "_tidegate" / "1234-out-" / "committed.json"


def staged(path: Path) -> list[Path]:
    return list((path / "_tidegate").rglob("*.parquet"))


def test_staged_rows_are_seen_by_nobody_before_the_commit(tmp_path: Path) -> None:
    sink = files_sink(tmp_path)
    sink.recover(FRESH)
    tokens = stage(sink, EpochId(0, 0), [1, 2, 3], tasks=2)
    assert names(tmp_path) == [] and len(staged(tmp_path)) == 2
    sink.commit(EpochId(0, 0), tokens)
    assert rows(tmp_path) == [1, 2, 3] and staged(tmp_path) == []
    assert json.loads(marker(tmp_path).read_text()) == {"generation": 0, "epoch": 0}


def test_no_rows_no_file(tmp_path: Path) -> None:
    sink = files_sink(tmp_path)
    sink.recover(FRESH)
    run(sink, 0, tasks=0)
    assert names(tmp_path) == [] and sink.last == EpochId(0, -1)


def test_names_are_made_of_pipeline_sink_generation_epoch_and_task(tmp_path: Path) -> None:
    sink = files_sink(tmp_path)
    sink.recover(FRESH)
    run(sink, 3, tasks=2)
    assert names(tmp_path) == [
        f"1234-out-000-000000000003-0000{task}-000.parquet" for task in range(2)
    ]


def test_a_commit_can_be_repeated_at_any_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after each of its moves, and before its marker."""
    sink = files_sink(tmp_path)
    sink.recover(FRESH)
    tokens = stage(sink, EpochId(0, 0), list(range(9)), tasks=3)
    move, left = LocalStore.move_new, [0]

    def dies(self: LocalStore, source: str, goal: str) -> None:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        move(self, source, goal)

    monkeypatch.setattr(LocalStore, "move_new", dies)
    for moves in range(3):
        left[0] = moves
        with pytest.raises(KeyboardInterrupt):
            files_sink(tmp_path).recover(decided(0, tokens))
    monkeypatch.undo()
    for _ in range(2):
        files_sink(tmp_path).recover(decided(0, tokens))
        assert rows(tmp_path) == list(range(9)) and len(names(tmp_path)) == 3


def test_what_was_only_staged_is_removed_once_its_epoch_is_decided(tmp_path: Path) -> None:
    sink = files_sink(tmp_path)
    sink.recover(FRESH)
    stage(sink, EpochId(0, 0), [666])
    run(sink, 0)
    assert len(staged(tmp_path)) == 1
    files_sink(tmp_path).recover(decided(0))
    assert staged(tmp_path) == [] and rows(tmp_path) == [0]


@pytest.mark.parametrize("epoch", [0, 1])
def test_what_a_zombie_has_staged_for_the_next_epoch_is_left_to_it(
    tmp_path: Path, epoch: int
) -> None:
    """It may still decide that epoch, and then its rows must be there."""
    zombie = files_sink(tmp_path)
    zombie.recover(Decided(None))
    run(zombie, *range(epoch))
    tokens = stage(zombie, EpochId(0, epoch), [77])
    files_sink(tmp_path).recover(decided(0) if epoch else Decided(None))
    zombie.commit(EpochId(0, epoch), tokens)
    assert rows(tmp_path) == [*range(epoch), 77]


def refused(path: Path, *args: Any) -> str:
    """The refusal of a recovery, which leaves everything as it is."""
    before = {item: item.read_bytes() for item in path.rglob("*") if item.is_file()}
    with pytest.raises(RunError) as caught:
        files_sink(path).recover(*args)
    assert caught.value.code == "TG-504" and caught.value.hint
    assert {item: item.read_bytes() for item in path.rglob("*") if item.is_file()} == before
    return caught.value.message


def test_a_lost_marker_is_an_error_and_nothing_is_deleted(tmp_path: Path) -> None:
    sink = files_sink(tmp_path)
    sink.recover(FRESH)
    run(sink, 0, 1)
    marker(tmp_path).unlink()
    assert "is gone" in refused(tmp_path, decided(1))
    assert "is gone" in refused(tmp_path, FRESH)


@pytest.mark.parametrize("text", ["", "{", "{}", "[]", '{"epoch": "x"}', '{"epoch": null}', "5"])
def test_a_damaged_marker_is_an_error(tmp_path: Path, text: str) -> None:
    sink = files_sink(tmp_path)
    sink.recover(FRESH)
    run(sink, 0)
    marker(tmp_path).write_text(text)
    assert "is damaged" in refused(tmp_path, decided(0))


def test_a_marker_that_is_ahead_is_refused(tmp_path: Path) -> None:
    sink = files_sink(tmp_path)
    sink.recover(FRESH)
    run(sink, 0, 1, 2)
    assert "at epoch 1" in refused(tmp_path, decided(1))
    assert "ahead of the pipeline" in refused(tmp_path, FRESH)


def test_a_marker_of_another_generation_is_refused(tmp_path: Path) -> None:
    sink = files_sink(tmp_path)
    sink.recover(FRESH)
    run(sink, 5, generation=1)
    assert "generation 1" in refused(tmp_path, decided(5))
    assert "generation 1" in refused(tmp_path, decided(9, generation=2))


def test_a_marker_that_is_one_behind_is_finished(tmp_path: Path) -> None:
    sink = files_sink(tmp_path)
    sink.recover(FRESH)
    run(sink, 0)
    tokens = stage(sink, EpochId(0, 1), [11])
    again = files_sink(tmp_path)
    again.recover(decided(1, tokens))
    assert rows(tmp_path) == [0, 11] and again.last == EpochId(0, 1)


def test_files_beyond_the_marker_are_refused(tmp_path: Path) -> None:
    sink = files_sink(tmp_path)
    sink.recover(FRESH)
    run(sink, 0, 1, 2)
    marker(tmp_path).write_text('{"generation": 0, "epoch": 0}')
    assert "holds epochs up to 2" in refused(tmp_path, decided(0))


def test_tokens_whose_files_are_gone_are_an_error(tmp_path: Path) -> None:
    sink = files_sink(tmp_path)
    sink.recover(FRESH)
    tokens = stage(sink, EpochId(0, 0), [1])
    staged(tmp_path)[0].unlink()
    with pytest.raises(RunError) as caught:
        files_sink(tmp_path).recover(decided(0, tokens))
    assert caught.value.code == "TG-504" and "is not there" in caught.value.message


def test_a_pipeline_that_wrote_nothing_is_in_nobodys_way(tmp_path: Path) -> None:
    first = files_sink(tmp_path)
    first.recover(FRESH)
    other = files_sink(tmp_path, "5678")
    other.recover(FRESH)
    run(first, 0)
    with pytest.raises(RunError, match="an earlier pipeline"):
        files_sink(tmp_path, "9999").recover(FRESH)
    appending = files_sink(tmp_path, "9999", ", existing = 'append'")
    appending.recover(FRESH)
    run(appending, 0)
    assert rows(tmp_path) == [0, 0]


def test_a_place_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError) as caught:
        files_sink(tmp_path / "file" / "out").recover(FRESH)
    assert caught.value.code == "TG-504" and "cannot write to" in caught.value.message
