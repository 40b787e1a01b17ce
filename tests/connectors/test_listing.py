"""The listing returns every new file once, whenever it appears."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.sinks import files_source
from tidegate.connectors.files import listing
from tidegate.connectors.files.listing import SeenFiles, new_files
from tidegate.connectors.files.source import FilesSource
from tidegate.storage import StoredFile, open_store


def names(items: list[StoredFile]) -> list[str]:
    return [item.name for item in items]


def test_new_files_are_sorted_by_time_then_path() -> None:
    items = [
        StoredFile("b", 1, 5),
        StoredFile("a", 1, 9),
        StoredFile("d/c", 1, 5),
        StoredFile("a b", 1, 5),
    ]
    assert names(new_files(items, set(), None)) == ["a b", "b", "d/c", "a"]
    assert names(new_files(items, {"b", "a"}, None)) == ["a b", "d/c"]


@pytest.mark.parametrize(
    ("name", "is_data"),
    [
        ("x.json", True),
        ("day=1/x.json", True),
        ("_k=1/x.json", True),
        ("_tidegate/x.json", False),
        ("a/_SUCCESS", False),
        ("a/.x.json", False),
        (".hidden/x.json", False),
        ("x.csv", False),
        ("X.JSON", False),
    ],
)
def test_ignores_hidden_files_and_matches_globs_by_name(name: str, is_data: bool) -> None:
    assert bool(new_files([StoredFile(name, 1, 1)], set(), "*.json")) is is_data


def put(folder: Path, name: str, second: int) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{}\n")
    os.utime(path, (second, second))


def chosen(input_range: Any) -> list[str]:
    return list(input_range.offset["files"])


def plan_all(source: FilesSource, since: Any) -> tuple[list[str], Any]:
    """Plan epochs until there is no new file. Return the files and the last offset."""
    files: list[str] = []
    while (input_range := source.plan_range(since, 2)) is not None:
        assert input_range.has_more == (
            len(chosen(input_range)) > 0 and _more(source, input_range.offset)
        )
        files += chosen(input_range)
        source.on_commit(input_range.offset)
        since = input_range.offset
    return files, since


def _more(source: FilesSource, offset: Any) -> bool:
    names = source.seen_files.names(offset)
    return bool(new_files(source.store.list(), names, source.options["glob"]))


def test_reads_a_late_file_with_an_old_modification_time(tmp_path: Path) -> None:
    folder, offsets = tmp_path / "in", tmp_path / "offsets"
    for number in range(4):
        put(folder, f"{number}.json", 100 + number)
    source = files_source(folder, offsets, ", files_per_epoch = 3")
    files, since = plan_all(source, None)
    assert files == [f"{number}.json" for number in range(4)]
    put(folder, "late.json", 50)
    put(folder, "0a.json", 100)
    restarted = files_source(folder, offsets, ", files_per_epoch = 3")
    assert plan_all(restarted, since)[0] == ["late.json", "0a.json"]


def test_reads_thousands_of_files_once_with_small_offsets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names move from the offset to chunks, which are merged."""
    monkeypatch.setattr(listing, "_RECENT", 10)
    monkeypatch.setattr(listing, "_FANOUT", 3)
    seen_files = SeenFiles(open_store(str(tmp_path)))
    offset: Any = None
    expected: set[str] = set()
    for epoch in range(1_000):
        files = [f"{epoch}-{n}" for n in range(epoch % 4)]
        offset = seen_files.next(offset, files)
        expected |= set(files)
        assert len(offset["recent"]) <= 10 + 4
        assert len(offset["older"]) <= 3 * 5, (
            "the number of chunks grows with the digits, not with the files"
        )
        if epoch % 50 == 0:
            assert SeenFiles(open_store(str(tmp_path))).names(offset) == expected
    assert SeenFiles(open_store(str(tmp_path))).names(offset) == expected


def test_remembers_names_with_any_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "_RECENT", 1)
    odd = ["a\nb", "ä", "x y", "\udcff", '"', "\\"]
    seen_files = SeenFiles(open_store(str(tmp_path)))
    offset: Any = None
    for name in (*odd, "last"):
        offset = seen_files.next(offset, [name])
    assert offset["older"]
    assert SeenFiles(open_store(str(tmp_path))).names(offset) == {*odd, "last"}


def test_uncommitted_range_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "_RECENT", 2)
    folder, offsets = tmp_path / "in", tmp_path / "offsets"
    for number in range(20):
        put(folder, f"{number:02d}.json", 100)
    source = files_source(folder, offsets, ", files_per_epoch = 1")
    since, files = None, []
    for number in range(20):
        lost = [chosen(source.plan_range(since, 2)) for _ in range(2)]
        put(folder, f"{number:02d}a.json", 100 - number)
        source = files_source(folder, offsets, ", files_per_epoch = 1")
        input_range = source.plan_range(since, 2)
        assert input_range is not None and lost[0] == lost[1]
        files += chosen(input_range)
        since = input_range.offset
        source.on_commit(since)
    rest, _ = plan_all(source, since)
    assert sorted(files + rest) == sorted(path.name for path in folder.iterdir())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(data=st.data())
def test_streams_at_different_offsets_read_every_file_once(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, data: Any
) -> None:
    """One stream is behind; files appear late, with arbitrary and equal modification times."""
    monkeypatch.setattr(listing, "_RECENT", 2)
    monkeypatch.setattr(listing, "_FANOUT", 2)
    folder = tmp_path_factory.mktemp("files")
    inputs, offsets = folder / "in", folder / "offsets"
    inputs.mkdir()
    source = files_source(inputs, offsets, ", files_per_epoch = 2")
    since: dict[str, Any] = {"a": None, "b": None}
    read: dict[str, list[str]] = {"a": [], "b": []}
    count = 0
    for _ in range(data.draw(st.integers(1, 8))):
        for _ in range(data.draw(st.integers(0, 5))):
            prefix = data.draw(st.sampled_from("xyz"))
            put(inputs, f"{prefix}{count}.json", data.draw(st.integers(1, 3)))
            count += 1
        if data.draw(st.booleans()):
            source = files_source(inputs, offsets, ", files_per_epoch = 2")
        running = data.draw(st.sampled_from([["a"], ["b"], ["a", "b"]]))
        ranges = {stream: source.plan_range(since[stream], 2) for stream in running}
        for stream, input_range in ranges.items():
            if input_range is not None:
                read[stream] += chosen(input_range)
                since[stream] = input_range.offset
                source.on_commit(input_range.offset)
    for stream in ("a", "b"):
        read[stream] += plan_all(source, since[stream])[0]
        assert sorted(read[stream]) == sorted(path.name for path in inputs.iterdir())


def test_removed_or_replaced_files_are_not_read_again(tmp_path: Path) -> None:
    folder, offsets = tmp_path / "in", tmp_path / "offsets"
    put(folder, "a.json", 1)
    put(folder, "b.json", 2)
    source = files_source(folder, offsets)
    _, since = plan_all(source, None)
    (folder / "a.json").unlink()
    put(folder, "b.json", 99)
    put(folder, "c.json", 3)
    assert plan_all(source, since)[0] == ["c.json"]


def test_large_text_files_are_split_over_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tidegate.connectors.files import source as module

    monkeypatch.setattr(module, "_PART_BYTES", 100)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "big.json").write_bytes(b"{}\n" * 1_000)
    (tmp_path / "in" / "big.json.gz").write_bytes(b"x" * 1_000)
    (tmp_path / "in" / "small.json").write_bytes(b"{}\n")
    input_range = files_source(tmp_path / "in", tmp_path / "offsets").plan_range(None, 4)
    assert input_range is not None and len(input_range.splits) == 4
    parts = sorted(part for split in input_range.splits for part in split)
    big = [(start, end) for name, _, start, end in parts if name == "big.json"]
    assert big == [(0, 750), (750, 1_500), (1_500, 2_250), (2_250, None)]
    whole = [(start, end) for name, _, start, end in parts if name != "big.json"]
    assert whole == [(0, None)] * 2
