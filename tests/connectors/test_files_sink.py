"""A files sink: nothing is seen before its commit, nothing twice, nothing is ever deleted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.compiling import compile_text
from tests.support.sinks import committed, files_sink, run, stage
from tidegate.catalog.objects import Source
from tidegate.catalog.settings import Settings
from tidegate.connectors.base import CommittedState, EpochId, SourceContext
from tidegate.connectors.files.source import FilesSource
from tidegate.errors import RunError
from tidegate.storage import uri
from tidegate.storage.local import LocalStore

FRESH = CommittedState(None)


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
    committables = stage(sink, EpochId(0, 0), [1, 2, 3], tasks=2)
    assert names(tmp_path) == [] and len(staged(tmp_path)) == 2
    sink.publish(EpochId(0, 0), committables)
    assert rows(tmp_path) == [1, 2, 3] and staged(tmp_path) == []
    assert json.loads(marker(tmp_path).read_text()) == {
        "generation": 0,
        "epoch": 0,
        "shape": {
            "format": "parquet",
            "partition_by": [],
            "columns": [["a", "BIGINT"]],
            "header": None,
            "delimiter": None,
        },
    }


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


@pytest.mark.parametrize("batches", [[10], [3, 3, 4], [1] * 10, [4, 4, 2]])
def test_a_full_file_is_followed_by_another(tmp_path: Path, batches: list[int]) -> None:
    """However the rows come, and a file is never begun for nothing."""
    sink = files_sink(tmp_path, options=", max_file_rows = 4")
    sink.recover(FRESH)
    writer_factory = sink.writer_factory(pa.schema([("a", pa.int64())])).open(
        EpochId(0, 0).stamp, 7
    )
    values = iter(range(10))
    for count in batches:
        writer_factory.add(pa.table({"a": [next(values) for _ in range(count)]}))
    committables = writer_factory.finish()
    sink.publish(EpochId(0, 0), committables)
    assert [committable["rows"] for committable in committables] == [4, 4, 2]
    assert names(tmp_path) == [f"1234-out-000-000000000000-00007-00{n}.parquet" for n in range(3)]
    assert rows(tmp_path) == list(range(10))


def test_every_folder_has_full_files_of_its_own(tmp_path: Path) -> None:
    sink = files_sink(tmp_path, options=", max_file_rows = 2, partition_by = 'a'")
    sink.recover(FRESH)
    writer_factory = sink.writer_factory(pa.schema([("b", pa.int64()), ("a", pa.string())])).open(
        "000", 0
    )
    for _ in range(3):
        writer_factory.add(pa.table({"b": [1, 2, 3], "a": ["x", "y", "x"]}))
    found = [
        (committable["folder"], committable["rows"]) for committable in writer_factory.finish()
    ]
    assert sorted(found) == [(["a=x"], 2)] * 3 + [(["a=y"], 1), (["a=y"], 2)]


@pytest.mark.parametrize("kind", ["parquet", "json"])
def test_a_file_with_enough_bytes_is_full_too(tmp_path: Path, kind: str) -> None:
    sink = files_sink(tmp_path, options=f", max_file_bytes = 20000, format = '{kind}'")
    sink.recover(FRESH)
    writer_factory = sink.writer_factory(pa.schema([("a", pa.string())])).open(
        EpochId(0, 0).stamp, 0
    )
    for part in range(6):
        writer_factory.add(pa.table({"a": [f"{part} {hash((part, n))}" for n in range(500)]}))
    committables = writer_factory.finish()
    sink.publish(EpochId(0, 0), committables)
    sizes = [item.stat().st_size for item in sorted(tmp_path.glob("*0-*"))]
    assert sizes == [committable["bytes"] for committable in committables]
    assert len(sizes) > 2 and all(size >= 20000 for size in sizes[:-1])
    assert sum(committable["rows"] for committable in committables) == 3000


def test_a_commit_can_be_repeated_at_any_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after each of its moves, and before its marker."""
    sink = files_sink(tmp_path)
    sink.recover(FRESH)
    committables = stage(sink, EpochId(0, 0), list(range(9)), tasks=3)
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
            files_sink(tmp_path).recover(committed(0, committables))
    monkeypatch.undo()
    for _ in range(2):
        files_sink(tmp_path).recover(committed(0, committables))
        assert rows(tmp_path) == list(range(9)) and len(names(tmp_path)) == 3


def test_what_was_only_staged_is_removed_once_its_epoch_is_decided(tmp_path: Path) -> None:
    sink = files_sink(tmp_path)
    sink.recover(FRESH)
    stage(sink, EpochId(0, 0), [666])
    run(sink, 0)
    assert len(staged(tmp_path)) == 1
    files_sink(tmp_path).recover(committed(0))
    assert staged(tmp_path) == [] and rows(tmp_path) == [0]


@pytest.mark.parametrize("epoch", [0, 1])
def test_what_a_zombie_has_staged_for_the_next_epoch_is_left_to_it(
    tmp_path: Path, epoch: int
) -> None:
    """It may still decide that epoch, and then its rows must be there."""
    zombie = files_sink(tmp_path)
    zombie.recover(CommittedState(None))
    run(zombie, *range(epoch))
    committables = stage(zombie, EpochId(0, epoch), [77])
    files_sink(tmp_path).recover(committed(0) if epoch else CommittedState(None))
    zombie.publish(EpochId(0, epoch), committables)
    assert rows(tmp_path) == [*range(epoch), 77]


def rejected(path: Path, *args: Any) -> str:
    """The rejection of a recovery, which leaves everything as it is."""
    before = {item: item.read_bytes() for item in path.rglob("*") if item.is_file()}
    with pytest.raises(RunError) as caught:
        files_sink(path).recover(*args)
    assert caught.value.code in ("TG-525", "TG-526") and caught.value.hint
    assert {item: item.read_bytes() for item in path.rglob("*") if item.is_file()} == before
    return caught.value.message


def test_a_lost_marker_is_an_error_and_nothing_is_deleted(tmp_path: Path) -> None:
    sink = files_sink(tmp_path)
    sink.recover(FRESH)
    run(sink, 0, 1)
    marker(tmp_path).unlink()
    assert "is missing" in rejected(tmp_path, committed(1))
    assert "is missing" in rejected(tmp_path, FRESH)


@pytest.mark.parametrize("text", ["", "{", "{}", "[]", '{"epoch": "x"}', '{"epoch": null}', "5"])
def test_a_damaged_marker_is_an_error(tmp_path: Path, text: str) -> None:
    sink = files_sink(tmp_path)
    sink.recover(FRESH)
    run(sink, 0)
    marker(tmp_path).write_text(text)
    assert "is damaged" in rejected(tmp_path, committed(0))


def test_a_marker_that_is_ahead_is_rejected(tmp_path: Path) -> None:
    sink = files_sink(tmp_path)
    sink.recover(FRESH)
    run(sink, 0, 1, 2)
    assert "at epoch 1" in rejected(tmp_path, committed(1))
    assert "ahead of the pipeline" in rejected(tmp_path, FRESH)


def test_a_marker_of_another_generation_is_rejected(tmp_path: Path) -> None:
    sink = files_sink(tmp_path)
    sink.recover(FRESH)
    run(sink, 5, generation=1)
    assert "generation 1" in rejected(tmp_path, committed(5))
    assert "generation 1" in rejected(tmp_path, committed(9, generation=2))


def test_a_marker_that_is_one_behind_is_finished(tmp_path: Path) -> None:
    sink = files_sink(tmp_path)
    sink.recover(FRESH)
    run(sink, 0)
    committables = stage(sink, EpochId(0, 1), [11])
    again = files_sink(tmp_path)
    again.recover(committed(1, committables))
    assert rows(tmp_path) == [0, 11] and again.last == EpochId(0, 1)


def test_files_beyond_the_marker_are_rejected(tmp_path: Path) -> None:
    sink = files_sink(tmp_path)
    sink.recover(FRESH)
    run(sink, 0, 1, 2)
    marker(tmp_path).write_text('{"generation": 0, "epoch": 0}')
    assert "contains epochs up to 2" in rejected(tmp_path, committed(0))


def test_tokens_whose_files_are_gone_are_an_error(tmp_path: Path) -> None:
    sink = files_sink(tmp_path)
    sink.recover(FRESH)
    committables = stage(sink, EpochId(0, 0), [1])
    staged(tmp_path)[0].unlink()
    with pytest.raises(RunError) as caught:
        files_sink(tmp_path).recover(committed(0, committables))
    assert caught.value.code == "TG-529" and "does not exist" in caught.value.message


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
    assert caught.value.code == "TG-529" and "cannot write to" in caught.value.message


# Columns


def files(path: Path) -> dict[Path, bytes]:
    return {item: item.read_bytes() for item in path.rglob("*") if item.is_file()}


def changed(path: Path, given: CommittedState, **other: Any) -> str:
    """The rejection of a sink that writes something else now; nothing is touched."""
    before = files(path)
    with pytest.raises(RunError) as caught:
        files_sink(path, **other).recover(given)
    assert caught.value.code == "TG-523" and files(path) == before
    assert "CREATE SINK out" in caught.value.render() and "another path" in str(caught.value.hint)
    return caught.value.message.partition("would have: ")[2]


def test_other_columns_than_those_of_the_files_are_rejected(tmp_path: Path) -> None:
    sink = files_sink(tmp_path, columns=(("a", "BIGINT"), ("b", "STRING")))
    sink.recover(FRESH)
    run(sink, 0)
    for columns, said in [
        ([("a", "STRING"), ("b", "STRING")], "the column a was BIGINT and is now STRING"),
        ([("a", "BIGINT")], "the column b STRING is missing"),
        ([("a", "BIGINT"), ("b", "STRING"), ("c", "INT")], "the column c INT is new"),
        ([("a", "BIGINT"), ("B", "STRING")], "the column b STRING is missing; the column B STRING is"),
    ]:
        assert said in changed(tmp_path, committed(0), columns=tuple(columns))
    # In another order they are the same.
    files_sink(tmp_path, columns=(("b", "string"), ("a", "bigint"))).recover(committed(0))


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        ("", ", format = 'json'", "format was parquet and is now json"),
        ("", ", partition_by = 'a'", "partition_by was nothing and is now a"),
        (", format = 'csv'", ", format = 'csv', header = false", "header was True and is now False"),
        (", format = 'csv'", ", format = 'csv', delimiter = ';'", "delimiter was , and is now ;"),
    ],
)
def test_files_that_are_written_in_another_way_are_rejected(
    tmp_path: Path, before: str, now: str, said: str
) -> None:
    columns = (("a", "STRING"), ("b", "STRING"))
    sink = files_sink(tmp_path, options=before, columns=columns)
    sink.recover(FRESH)
    writer_factory = sink.writer_factory(pa.schema([("a", pa.string())])).open(
        EpochId(0, 0).stamp, 0
    )
    writer_factory.add(pa.table({"a": ["x"]}))
    sink.publish(EpochId(0, 0), writer_factory.finish())
    assert said in changed(tmp_path, committed(0), options=now, columns=columns)
    if "csv" in before:
        said = "the columns were a, b and are now b, a"
        assert said in changed(tmp_path, committed(0), options=before, columns=columns[::-1])


def test_other_columns_go_where_no_files_are(tmp_path: Path) -> None:
    """Nothing was written yet; or somebody has moved the files away, and the stream goes on."""
    other = (("z", "STRING"),)
    files_sink(tmp_path, columns=other).recover(FRESH)
    sink = files_sink(tmp_path)
    sink.recover(FRESH)
    run(sink, 0)
    assert changed(tmp_path, committed(0), columns=other)
    for name in names(tmp_path):
        (tmp_path / name).rename(tmp_path.parent / name)
    files_sink(tmp_path, columns=other).recover(committed(0))
    stored = json.loads(marker(tmp_path).read_text())
    assert stored["epoch"] == 0 and stored["shape"]["columns"] == [["z", "STRING"]]


def test_rows_that_were_decided_and_not_shown_yet_have_columns_too(tmp_path: Path) -> None:
    sink = files_sink(tmp_path)
    sink.recover(FRESH)
    committables = stage(sink, EpochId(0, 0), [1])
    assert changed(tmp_path, committed(0, committables), columns=(("z", "STRING"),))
    files_sink(tmp_path).recover(committed(0, committables))
    assert rows(tmp_path) == [1]


def test_appending_to_the_rows_of_an_earlier_pipeline_needs_its_columns(tmp_path: Path) -> None:
    first = files_sink(tmp_path)
    first.recover(FRESH)
    run(first, 0)
    append = ", existing = 'append'"
    other = (("a", "STRING"),)
    assert changed(tmp_path, FRESH, pipeline="5678", options=append, columns=other)
    files_sink(tmp_path, "5678", append).recover(FRESH)


def test_a_marker_without_columns_gets_them(tmp_path: Path) -> None:
    sink = files_sink(tmp_path)
    sink.recover(FRESH)
    run(sink, 0)
    marker(tmp_path).write_text('{"generation": 0, "epoch": 0}')
    files_sink(tmp_path).recover(committed(0))
    assert changed(tmp_path, committed(0), columns=(("z", "STRING"),))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"epoch": null}', '{"epoch": 1, "shape": 5}'])
def test_a_damaged_marker_of_an_earlier_pipeline_is_an_error(tmp_path: Path, text: str) -> None:
    sink = files_sink(tmp_path)
    sink.recover(FRESH)
    run(sink, 0)
    marker(tmp_path).write_text(text)
    before = files(tmp_path)
    with pytest.raises(RunError, match=r"1234-out-/committed\.json is damaged") as caught:
        files_sink(tmp_path, "5678").recover(FRESH)
    assert caught.value.code == "TG-526" and files(tmp_path) == before


def test_a_sink_whose_name_ends_alike_is_another_one(tmp_path: Path) -> None:
    sink = files_sink(tmp_path, "1234-other")
    sink.recover(FRESH)
    run(sink, 0)
    files_sink(tmp_path, columns=(("z", "STRING"),)).recover(FRESH)


def test_relative_paths_begin_beside_the_sql_file(tmp_path: Path) -> None:
    file = tmp_path / "project" / "a.sql"
    (tmp_path / "project" / "in").mkdir(parents=True)
    text = "CREATE SOURCE s (a BIGINT) WITH (connector = 'files', path = 'in', format = 'json');"
    source = compile_text(text, str(file)).catalog.get("s")
    assert isinstance(source, Source)
    opened = FilesSource(SourceContext(source, str(tmp_path), str(tmp_path), Settings()))
    assert opened.store.uri == f"file://{tmp_path}/project/in"
    assert source.options["path"] == "in", "what identifies a source does not depend on the place"
    assert uri("in", "") == uri("in") and uri("/in", "project") == "file:///in"
