"""The files sink publishes every row once, after the commit, and never deletes published files."""

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


def test_staged_rows_are_invisible_before_publish(tmp_path: Path) -> None:
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


def test_epoch_without_rows_writes_no_file(tmp_path: Path) -> None:
    sink = files_sink(tmp_path)
    sink.recover(FRESH)
    run(sink, 0, tasks=0)
    assert names(tmp_path) == [] and sink.last == EpochId(0, -1)


def test_file_names_contain_stream_sink_generation_epoch_and_task(tmp_path: Path) -> None:
    sink = files_sink(tmp_path)
    sink.recover(FRESH)
    run(sink, 3, tasks=2)
    assert names(tmp_path) == [
        f"1234-out-000-000000000003-0000{task}-000.parquet" for task in range(2)
    ]


@pytest.mark.parametrize("batches", [[10], [3, 3, 4], [1] * 10, [4, 4, 2]])
def test_starts_a_new_file_at_max_file_rows(tmp_path: Path, batches: list[int]) -> None:
    """For any batch sizes, and without empty files."""
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


def test_partition_folders_fill_their_files_separately(tmp_path: Path) -> None:
    sink = files_sink(tmp_path, options=", max_file_rows = 2, partition_by = 'a'")
    sink.recover(FRESH)
    writer_factory = sink.writer_factory(pa.schema([("b", pa.int64()), ("a", pa.string())])).open(
        "000", 0
    )
    for _ in range(3):
        writer_factory.add(pa.table({"b": [1, 2, 3], "a": ["x", "y", "x"]}))
    files = [
        (committable["folder"], committable["rows"]) for committable in writer_factory.finish()
    ]
    assert sorted(files) == [(["a=x"], 2)] * 3 + [(["a=y"], 1), (["a=y"], 2)]


@pytest.mark.parametrize("kind", ["parquet", "json"])
def test_starts_a_new_file_at_max_file_bytes(tmp_path: Path, kind: str) -> None:
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


def test_publish_can_be_repeated_after_a_crash_at_any_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Crash after each rename, and before the marker is written."""
    sink = files_sink(tmp_path)
    sink.recover(FRESH)
    committables = stage(sink, EpochId(0, 0), list(range(9)), tasks=3)
    move, remaining = LocalStore.move_new, [0]

    def crash(self: LocalStore, source: str, goal: str) -> None:
        if not remaining[0]:
            raise KeyboardInterrupt
        remaining[0] -= 1
        move(self, source, goal)

    monkeypatch.setattr(LocalStore, "move_new", crash)
    for moves in range(3):
        remaining[0] = moves
        with pytest.raises(KeyboardInterrupt):
            files_sink(tmp_path).recover(committed(0, committables))
    monkeypatch.undo()
    for _ in range(2):
        files_sink(tmp_path).recover(committed(0, committables))
        assert rows(tmp_path) == list(range(9)) and len(names(tmp_path)) == 3


def test_recover_deletes_staged_files_of_committed_epochs(tmp_path: Path) -> None:
    sink = files_sink(tmp_path)
    sink.recover(FRESH)
    stage(sink, EpochId(0, 0), [666])
    run(sink, 0)
    assert len(staged(tmp_path)) == 1
    files_sink(tmp_path).recover(committed(0))
    assert staged(tmp_path) == [] and rows(tmp_path) == [0]


@pytest.mark.parametrize("epoch", [0, 1])
def test_recover_keeps_staged_files_of_the_next_epoch(tmp_path: Path, epoch: int) -> None:
    """A zombie driver may still commit that epoch."""
    zombie = files_sink(tmp_path)
    zombie.recover(CommittedState(None))
    run(zombie, *range(epoch))
    committables = stage(zombie, EpochId(0, epoch), [77])
    files_sink(tmp_path).recover(committed(0) if epoch else CommittedState(None))
    zombie.publish(EpochId(0, epoch), committables)
    assert rows(tmp_path) == [*range(epoch), 77]


def rejected(path: Path, *args: Any) -> str:
    """Return the error of `recover`, which must not change any file."""
    before = {item: item.read_bytes() for item in path.rglob("*") if item.is_file()}
    with pytest.raises(RunError) as caught:
        files_sink(path).recover(*args)
    assert caught.value.code in ("TG-525", "TG-526") and caught.value.hint
    assert {item: item.read_bytes() for item in path.rglob("*") if item.is_file()} == before
    return caught.value.message


def test_rejects_a_lost_marker_and_deletes_nothing(tmp_path: Path) -> None:
    sink = files_sink(tmp_path)
    sink.recover(FRESH)
    run(sink, 0, 1)
    marker(tmp_path).unlink()
    assert "is missing" in rejected(tmp_path, committed(1))
    assert "is missing" in rejected(tmp_path, FRESH)


@pytest.mark.parametrize("text", ["", "{", "{}", "[]", '{"epoch": "x"}', '{"epoch": null}', "5"])
def test_rejects_a_damaged_marker(tmp_path: Path, text: str) -> None:
    sink = files_sink(tmp_path)
    sink.recover(FRESH)
    run(sink, 0)
    marker(tmp_path).write_text(text)
    assert "is damaged" in rejected(tmp_path, committed(0))


def test_rejects_a_marker_ahead_of_the_manifest(tmp_path: Path) -> None:
    sink = files_sink(tmp_path)
    sink.recover(FRESH)
    run(sink, 0, 1, 2)
    assert "last epoch is 1" in rejected(tmp_path, committed(1))
    assert "has not committed" in rejected(tmp_path, FRESH)


def test_rejects_a_marker_of_another_generation(tmp_path: Path) -> None:
    sink = files_sink(tmp_path)
    sink.recover(FRESH)
    run(sink, 5, generation=1)
    assert "generation 1" in rejected(tmp_path, committed(5))
    assert "generation 1" in rejected(tmp_path, committed(9, generation=2))


def test_recover_publishes_the_epoch_that_the_marker_lacks(tmp_path: Path) -> None:
    sink = files_sink(tmp_path)
    sink.recover(FRESH)
    run(sink, 0)
    committables = stage(sink, EpochId(0, 1), [11])
    reopened = files_sink(tmp_path)
    reopened.recover(committed(1, committables))
    assert rows(tmp_path) == [0, 11] and reopened.last == EpochId(0, 1)


def test_rejects_files_beyond_the_marker(tmp_path: Path) -> None:
    sink = files_sink(tmp_path)
    sink.recover(FRESH)
    run(sink, 0, 1, 2)
    marker(tmp_path).write_text('{"generation": 0, "epoch": 0}')
    assert "contains epochs up to 2" in rejected(tmp_path, committed(0))


def test_missing_staged_files_are_an_error(tmp_path: Path) -> None:
    sink = files_sink(tmp_path)
    sink.recover(FRESH)
    committables = stage(sink, EpochId(0, 0), [1])
    staged(tmp_path)[0].unlink()
    with pytest.raises(RunError) as caught:
        files_sink(tmp_path).recover(committed(0, committables))
    assert caught.value.code == "TG-529" and "does not exist" in caught.value.message


def test_pipeline_without_rows_does_not_block_another(tmp_path: Path) -> None:
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


def test_unwritable_path_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError) as caught:
        files_sink(tmp_path / "file" / "out").recover(FRESH)
    assert caught.value.code == "TG-529" and "cannot write to" in caught.value.message


# Columns and layout.


def files(path: Path) -> dict[Path, bytes]:
    return {item: item.read_bytes() for item in path.rglob("*") if item.is_file()}


def layout_differences(path: Path, state: CommittedState, **other: Any) -> str:
    """Return the differences in the error of a sink with another layout; no file may change."""
    before = files(path)
    with pytest.raises(RunError) as caught:
        files_sink(path, **other).recover(state)
    assert caught.value.code == "TG-523" and files(path) == before
    assert "CREATE SINK out" in caught.value.render() and "another path" in str(caught.value.hint)
    return caught.value.message.partition("than new files: ")[2]


def test_rejects_columns_that_differ_from_existing_files(tmp_path: Path) -> None:
    sink = files_sink(tmp_path, columns=(("a", "BIGINT"), ("b", "STRING")))
    sink.recover(FRESH)
    run(sink, 0)
    for columns, difference in [
        ([("a", "STRING"), ("b", "STRING")], "the column a changed from BIGINT to STRING"),
        ([("a", "BIGINT")], "the column b STRING was removed"),
        ([("a", "BIGINT"), ("b", "STRING"), ("c", "INT")], "the column c INT was added"),
        (
            [("a", "BIGINT"), ("B", "STRING")],
            "the column b STRING was removed; the column B STRING was",
        ),
    ]:
        assert difference in layout_differences(tmp_path, committed(0), columns=tuple(columns))
    # The order of the columns does not matter.
    files_sink(tmp_path, columns=(("b", "string"), ("a", "bigint"))).recover(committed(0))


@pytest.mark.parametrize(
    ("before", "now", "difference"),
    [
        ("", ", format = 'json'", "format changed from parquet to json"),
        ("", ", partition_by = 'a'", "partition_by changed from nothing to a"),
        (
            ", format = 'csv'",
            ", format = 'csv', header = false",
            "header changed from True to False",
        ),
        (", format = 'csv'", ", format = 'csv', delimiter = ';'", "delimiter changed from , to ;"),
    ],
)
def test_rejects_options_that_differ_from_existing_files(
    tmp_path: Path, before: str, now: str, difference: str
) -> None:
    columns = (("a", "STRING"), ("b", "STRING"))
    sink = files_sink(tmp_path, options=before, columns=columns)
    sink.recover(FRESH)
    writer_factory = sink.writer_factory(pa.schema([("a", pa.string())])).open(
        EpochId(0, 0).stamp, 0
    )
    writer_factory.add(pa.table({"a": ["x"]}))
    sink.publish(EpochId(0, 0), writer_factory.finish())
    assert difference in layout_differences(tmp_path, committed(0), options=now, columns=columns)
    if "csv" in before:
        difference = "the order of columns changed from a, b to b, a"
        assert difference in layout_differences(
            tmp_path, committed(0), options=before, columns=columns[::-1]
        )


def test_accepts_other_columns_if_there_are_no_files(tmp_path: Path) -> None:
    """No rows were written yet, or a user has moved the files away and the stream continues."""
    other = (("z", "STRING"),)
    files_sink(tmp_path, columns=other).recover(FRESH)
    sink = files_sink(tmp_path)
    sink.recover(FRESH)
    run(sink, 0)
    assert layout_differences(tmp_path, committed(0), columns=other)
    for name in names(tmp_path):
        (tmp_path / name).rename(tmp_path.parent / name)
    files_sink(tmp_path, columns=other).recover(committed(0))
    stored = json.loads(marker(tmp_path).read_text())
    assert stored["epoch"] == 0 and stored["shape"]["columns"] == [["z", "STRING"]]


def test_rejects_other_columns_before_publishing_committed_rows(tmp_path: Path) -> None:
    sink = files_sink(tmp_path)
    sink.recover(FRESH)
    committables = stage(sink, EpochId(0, 0), [1])
    assert layout_differences(tmp_path, committed(0, committables), columns=(("z", "STRING"),))
    files_sink(tmp_path).recover(committed(0, committables))
    assert rows(tmp_path) == [1]


def test_existing_append_requires_the_same_columns(tmp_path: Path) -> None:
    first = files_sink(tmp_path)
    first.recover(FRESH)
    run(first, 0)
    append = ", existing = 'append'"
    other = (("a", "STRING"),)
    assert layout_differences(tmp_path, FRESH, pipeline="5678", options=append, columns=other)
    files_sink(tmp_path, "5678", append).recover(FRESH)


def test_adds_the_layout_to_a_marker_without_one(tmp_path: Path) -> None:
    sink = files_sink(tmp_path)
    sink.recover(FRESH)
    run(sink, 0)
    marker(tmp_path).write_text('{"generation": 0, "epoch": 0}')
    files_sink(tmp_path).recover(committed(0))
    assert layout_differences(tmp_path, committed(0), columns=(("z", "STRING"),))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"epoch": null}', '{"epoch": 1, "shape": 5}'])
def test_rejects_a_damaged_marker_of_an_earlier_pipeline(tmp_path: Path, text: str) -> None:
    sink = files_sink(tmp_path)
    sink.recover(FRESH)
    run(sink, 0)
    marker(tmp_path).write_text(text)
    before = files(tmp_path)
    with pytest.raises(RunError, match=r"1234-out-/committed\.json is damaged") as caught:
        files_sink(tmp_path, "5678").recover(FRESH)
    assert caught.value.code == "TG-526" and files(tmp_path) == before


def test_distinguishes_sinks_with_the_same_name_suffix(tmp_path: Path) -> None:
    sink = files_sink(tmp_path, "1234-other")
    sink.recover(FRESH)
    run(sink, 0)
    files_sink(tmp_path, columns=(("z", "STRING"),)).recover(FRESH)


def test_relative_paths_are_relative_to_the_sql_file(tmp_path: Path) -> None:
    file = tmp_path / "project" / "a.sql"
    (tmp_path / "project" / "in").mkdir(parents=True)
    text = "CREATE SOURCE s (a BIGINT) WITH (connector = 'files', path = 'in', format = 'json');"
    source = compile_text(text, str(file)).catalog.get("s")
    assert isinstance(source, Source)
    opened = FilesSource(SourceContext(source, str(tmp_path), str(tmp_path), Settings()))
    assert opened.store.uri == f"file://{tmp_path}/project/in"
    assert source.options["path"] == "in", "what identifies a source does not depend on the place"
    assert uri("in", "") == uri("in") and uri("/in", "project") == "file:///in"
