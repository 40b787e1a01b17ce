"""Compaction of a files sink never loses or duplicates rows, also after crashes."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.lossy_disk import LossyDisk, PowerLost, lose_power
from tests.support.sinks import committed, files_sink, files_source, run, stage
from tidegate.connectors.base import CommittedState, EpochId
from tidegate.connectors.files import compaction as files_compaction
from tidegate.connectors.files.listing import MergedFiles
from tidegate.connectors.files.sink import FilesSink
from tidegate.errors import RunError
from tidegate.storage import StorageError, open_store
from tidegate.storage import local as disk
from tidegate.storage.local import LocalStore

FRESH = CommittedState(None)


def names(path: Path) -> list[str]:
    """Return the files that a reader sees, without hidden folders."""
    files = (str(item.relative_to(path)) for item in path.rglob("*.*") if item.is_file())
    return sorted(n for n in files if not n.startswith(("_", ".")) and "/." not in n)


def rows(path: Path, which: Callable[[str], bool] = lambda name: True) -> Counter[int]:
    tables = [pq.read_table(path / name, partitioning=None) for name in names(path) if which(name)]
    return Counter(value for table in tables for value in table.column("a").to_pylist())


def visible_rows(path: Path) -> Counter[int]:
    """Return the rows for a reader that skips files replaced by a merged file."""
    merged = MergedFiles(names(path))
    return rows(path, lambda name: not merged.replaces(name))


def opened(path: Path, options: str = ", compact_after = 3", last: int | None = None) -> FilesSink:
    sink = files_sink(path, options=options)
    sink.recover(FRESH if last is None else committed(last))
    return sink


def internal_files(path: Path, folder: str) -> list[str]:
    return sorted(item.name for item in (path / "_tidegate" / "1234-out-" / folder).glob("*"))


def test_merges_the_configured_number_of_files(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    run(sink, 0, 1)
    assert len(names(tmp_path)) == 2
    run(sink, 2)
    assert names(tmp_path) == ["1234-out-000-000000000000-to-000000000002.parquet"]
    run(sink, 3, 4)
    # Together with the merged file these are three files again.
    assert names(tmp_path) == ["1234-out-000-000000000000-to-000000000004.parquet"]
    assert rows(tmp_path) == Counter(range(5))
    assert (
        internal_files(tmp_path, "merge_staging") == []
        and len(internal_files(tmp_path, "merges")) == 1
    )


def test_rows_keep_their_order(tmp_path: Path) -> None:
    sink = opened(tmp_path, ", compact_after = 6")
    for epoch in range(3):
        place = EpochId(0, epoch)
        sink.publish(place, stage(sink, place, [epoch * 10 + n for n in range(4)], tasks=2))
    table = pq.read_table(tmp_path / names(tmp_path)[0])
    assert table.column("a").to_pylist() == [0, 2, 1, 3, 10, 12, 11, 13, 20, 22, 21, 23]


def test_merges_nothing_by_default(tmp_path: Path) -> None:
    run(opened(tmp_path, ""), *range(20))
    assert len(names(tmp_path)) == 20


def test_merges_files_that_existed_at_the_start(tmp_path: Path) -> None:
    run(opened(tmp_path, ""), *range(5))
    run(opened(tmp_path, last=4), 5)
    assert names(tmp_path) == ["1234-out-000-000000000000-to-000000000005.parquet"]


def test_merges_partition_folders_separately(tmp_path: Path) -> None:
    sink = opened(tmp_path, ", compact_after = 2, partition_by = 'a'")
    factory = sink.writer_factory(pa.schema([("b", pa.int64()), ("a", pa.string())]))
    for epoch, keys in enumerate(["xy", "x", "yz", "x"]):
        writer_factory = factory.open(EpochId(0, epoch).stamp, 0)
        writer_factory.add(pa.table({"b": [epoch] * len(keys), "a": list(keys)}))
        sink.publish(EpochId(0, epoch), writer_factory.finish())
    assert names(tmp_path) == [
        "a=x/1234-out-000-000000000000-to-000000000003.parquet",
        "a=y/1234-out-000-000000000000-to-000000000002.parquet",
        "a=z/1234-out-000-000000000002-00000-001.parquet",
    ]
    held = {
        name[:3]: pq.read_table(tmp_path / name, partitioning=None).column("b").to_pylist()
        for name in names(tmp_path)
    }
    assert held == {"a=x": [0, 1, 3], "a=y": [0, 2], "a=z": [2]}


@pytest.mark.parametrize("kind", ["json", "csv", "csv', header = 'false"])
def test_merges_text_files_and_keeps_one_header(tmp_path: Path, kind: str) -> None:
    sink = opened(tmp_path, f", compact_after = 2, max_file_rows = 100, format = '{kind}'")
    factory = sink.writer_factory(pa.schema([("a", pa.int64())]))
    texts = ['{"a":"\\"\\n"}', '{"a":2}'] if kind == "json" else ['"x ""\ny"', "2"]
    for epoch, text in enumerate(texts):
        writer_factory = factory.open(EpochId(0, epoch).stamp, 0)
        writer_factory.add(pa.table({"line": [text]}))
        sink.publish(EpochId(0, epoch), writer_factory.finish())
    head = "a\n" if kind == "csv" else ""
    assert (tmp_path / names(tmp_path)[0]).read_text() == head + "".join(f"{t}\n" for t in texts)
    reopened = files_sink(tmp_path, options=f", compact_after = 2, format = '{kind}'")
    reopened.writer_factory(pa.schema([("a", pa.int64())]))
    assert reopened.format.count(reopened.store, names(tmp_path)[0]) == 2


def test_merged_files_respect_max_file_rows(tmp_path: Path) -> None:
    sink = opened(tmp_path, ", compact_after = 2, max_file_rows = 4")
    run(sink, *range(7))
    # After a restart the rows of the files must be counted.
    run(opened(tmp_path, ", compact_after = 2, max_file_rows = 4", last=6), *range(7, 11))
    assert [file.num_rows for file in map(pq.read_table, sorted(tmp_path.glob("*.p*")))] == [
        4,
        4,
        3,
    ]
    assert rows(tmp_path) == Counter(range(11))


def test_large_files_are_merged_only_with_enough_newer_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would be rewritten for every few small files."""
    monkeypatch.setattr(files_compaction, "_TINY_BYTES", 1)
    sink = opened(tmp_path, ", compact_after = 2")
    merged_sizes: list[int] = []
    merge = files_compaction.Compaction._merge

    def counted(self: Any, folder: str, chosen: Any, content: Any) -> None:
        merged_sizes.extend(file.size for file in chosen)
        merge(self, folder, chosen, content)

    monkeypatch.setattr(files_compaction.Compaction, "_merge", counted)
    for number in range(64):
        place = EpochId(0, number)
        sink.publish(place, stage(sink, place, random.Random(number).sample(range(10**9), 2000)))
    assert sum(rows(tmp_path).values()) == 64 * 2000
    sizes = [(tmp_path / name).stat().st_size for name in names(tmp_path)]
    assert len(sizes) <= 8 and sum(merged_sizes) <= 8 * sum(sizes)


def test_does_not_merge_files_of_two_generations(tmp_path: Path) -> None:
    sink = opened(tmp_path, ", compact_after = 3")
    run(sink, 0, 1)
    run(sink, 2, 3, generation=1)
    assert len(names(tmp_path)) == 4
    run(sink, 4, generation=1)
    assert len(names(tmp_path)) == 3 and rows(tmp_path) == Counter(range(5))


def test_rejects_a_merged_file_ahead_of_the_manifest(tmp_path: Path) -> None:
    run(opened(tmp_path), 0, 1, 2)
    with pytest.raises(RunError, match="has not committed"):
        opened(tmp_path, last=1)
    assert rows(tmp_path) == Counter(range(3))


def test_files_removed_by_a_user_stay_removed(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    run(sink, 0, 1)
    next(tmp_path.glob("*0000-*")).unlink()
    run(sink, 2, 3)
    assert sum(rows(tmp_path).values()) == 3 and len(names(tmp_path)) == 1


def test_merged_file_removed_by_a_user_is_not_an_error(tmp_path: Path) -> None:
    run(opened(tmp_path), 0, 1, 2)
    (tmp_path / names(tmp_path)[0]).unlink()
    run(opened(tmp_path, last=2), 3)
    assert rows(tmp_path) == Counter([3])


def test_damaged_file_is_an_error_and_is_kept(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    run(sink, 0, 1)
    damaged = tmp_path / names(tmp_path)[0]
    damaged.write_bytes(damaged.read_bytes()[:-9])
    with pytest.raises(RunError, match="cannot be merged"):
        run(sink, 2)
    assert len(names(tmp_path)) == 3


def test_old_marker_does_not_publish_merged_rows_again(tmp_path: Path) -> None:
    """A zombie process may write the marker again."""
    sink = opened(tmp_path)
    marker = tmp_path / "_tidegate" / "1234-out-" / "committed.json"
    run(sink, 0, 1)
    before = marker.read_bytes()
    committables = run(sink, 2)
    marker.write_bytes(before)
    reopened = files_sink(tmp_path)
    reopened.recover(committed(2, committables))
    assert rows(tmp_path) == Counter(range(3)) and reopened.last == EpochId(0, 2)


# Crashes.


class WatchedDisk(disk.Disk):
    """A disk that reads the directory after every step, like a concurrent reader."""

    def __init__(self, path: Path, expected: Counter[int]) -> None:
        super().__init__()
        self.path, self.expected = path, expected
        self.doubles: list[str] = []

    def _look(self, step: str) -> None:
        visible = rows(self.path)
        assert not self.expected - visible, f"rows are missing after {step}"
        assert visible_rows(self.path) == self.expected, f"names are wrong after {step}"
        if visible != self.expected:
            self.doubles.append(step)

    def sync(self, handle: int) -> None:
        self._look("sync")

    def link(self, source: str, goal: str) -> None:
        super().link(source, goal)
        self._look("link")

    def rename(self, source: str, goal: str) -> None:
        super().rename(source, goal)
        self._look("rename")

    def unlink(self, path: str) -> None:
        super().unlink(path)
        self._look("unlink")

    def sync_folder(self, path: str) -> None:
        self._look("sync_folder")


def test_readers_see_duplicates_only_between_the_rename_and_the_deletes(
    tmp_path: Path,
) -> None:
    """No fsync happens in between, and the names identify the duplicates."""
    run(opened(tmp_path, ""), *range(4))
    sink = opened(tmp_path, ", compact_after = 4", last=3)
    watched = WatchedDisk(tmp_path, Counter(range(4)))
    before = disk.use_disk(watched)
    try:
        sink.publish(EpochId(0, 3), [])
    finally:
        disk.use_disk(before)
    assert len(names(tmp_path)) == 1
    assert watched.doubles == ["rename", "unlink", "unlink", "unlink"]


def run_until_crash(tmp_path: Path, steps: int, dice: random.Random | None, loses: bool) -> bool:
    """Publish with a merge and crash after some disk operations. Return whether it crashed."""
    path, journal = tmp_path / "out", tmp_path / "journal"
    sink = opened(path, ", compact_after = 4")
    run(sink, *range(3))
    committables = stage(sink, EpochId(0, 3), [3])
    before = disk.use_disk(LossyDisk(journal, steps))
    try:
        sink.publish(EpochId(0, 3), committables)
        ended = False
    except PowerLost:
        ended = True
    finally:
        disk.use_disk(before)
    if loses:
        lose_power(journal, dice)
    if names(path) and len(names(path)) > 4:
        assert visible_rows(path) == Counter(range(4))
    # The next process does not merge, but must finish the pending merge.
    for options in ("", ", compact_after = 4"):
        reopened = files_sink(path, options=options)
        reopened.recover(committed(3, committables))
        assert rows(path) == Counter(range(4)), f"after {steps} steps"
    reopened.publish(EpochId(0, 3), committables)
    assert rows(path) == Counter(range(4)) and len(names(path)) == 1
    assert internal_files(path, "merge_staging") == [] and internal_files(path, "staging") == []
    return ended


@pytest.mark.parametrize("loses", [False, True])
def test_survives_a_crash_after_any_step_without_duplicates(tmp_path: Path, loses: bool) -> None:
    """The process is killed, or all unsynced writes are lost."""
    steps = 0
    while run_until_crash(tmp_path / str(steps), steps, None, loses):
        steps += 1
    assert steps > 20


@pytest.mark.parametrize("seed", range(6))
def test_survives_a_power_loss_after_any_step(tmp_path: Path, seed: int) -> None:
    steps = 0
    while run_until_crash(tmp_path / str(steps), steps, random.Random(seed * 1000 + steps), True):
        steps += 1


@pytest.mark.parametrize("seed", range(4))
def test_survives_repeated_crashes_without_duplicates(tmp_path: Path, seed: int) -> None:
    """Also while an interrupted merge is being finished."""
    dice = random.Random(seed)
    path, journal = tmp_path / "out", tmp_path / "journal"
    before = disk.current_disk()
    epoch, committables = -1, []
    deaths = 0
    for _ in range(60):
        disk.use_disk(LossyDisk(journal, dice.randint(0, 90)))
        try:
            sink = files_sink(path, options=f", compact_after = {dice.randint(2, 4)}")
            sink.recover(committed(epoch, committables) if epoch >= 0 else FRESH)
            for _ in range(3):
                staged = stage(sink, EpochId(0, epoch + 1), [epoch + 1])
                epoch, committables = epoch + 1, staged
                sink.publish(EpochId(0, epoch), committables)
        except PowerLost:
            deaths += 1
        finally:
            disk.use_disk(before)
        lose_power(journal, dice)
    files_sink(path).recover(committed(epoch, committables))
    assert rows(path) == Counter(range(epoch + 1)) and deaths > 10 and epoch > 20


@pytest.mark.parametrize("operation", ["move_new", "delete", "sync", "put_new", "list"])
@pytest.mark.parametrize("after", [False, True])
def test_retries_while_the_store_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str, after: bool
) -> None:
    """Operations fail before or after they take effect; publishing is retried until it succeeds."""
    real = getattr(LocalStore, operation)
    path, failures = tmp_path, 0
    for skipped in range(12):
        path = tmp_path / str(skipped)
        sink = opened(path, ", compact_after = 4")
        run(sink, *range(3))
        committables = stage(sink, EpochId(0, 3), [3])
        calls = [0]

        def flaky(self: LocalStore, *args: Any, at: int = skipped, calls: Any = calls) -> Any:
            calls[0] += 1
            if calls[0] != at + 1:
                return real(self, *args)
            if after:
                real(self, *args)
            raise StorageError(self.uri, "is away", retryable=True)

        monkeypatch.setattr(LocalStore, operation, flaky)
        for _ in range(3):
            try:
                sink.publish(EpochId(0, 3), committables)
                break
            except StorageError:
                failures += 1
        monkeypatch.undo()
        assert rows(path) == Counter(range(4)), (operation, skipped)
        files_sink(path).recover(committed(3, committables))
        assert rows(path) == Counter(range(4)) and len(names(path)) == 1
    assert failures


# Two processes.


def test_one_of_two_merging_processes_wins(tmp_path: Path) -> None:
    first = opened(tmp_path, ", compact_after = 3")
    run(first, 0, 1)
    two = opened(tmp_path, ", compact_after = 4", last=1)
    two.compaction._listed_files()
    run(first, 2)
    # The second process does not know the merge, and its list of files is outdated.
    run(two, 3, 4)
    assert rows(tmp_path) == Counter(range(5))
    run(two, 5, 6)
    assert rows(tmp_path) == Counter(range(7)) and len(names(tmp_path)) <= 2


@pytest.mark.parametrize("merges", [1, 2])
def test_zombie_cannot_commit_a_merge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, merges: int
) -> None:
    """Its successor has already merged the same files, once or more."""
    zombie = opened(tmp_path, ", compact_after = 3")
    run(zombie, 0, 1)
    decide = files_compaction.Compaction._commit

    def late(self: Any, merge: Any) -> bool:
        monkeypatch.undo()
        successor = files_sink(tmp_path, options=", compact_after = 2")
        successor.recover(committed(2))
        successor.publish(EpochId(0, 2), [])
        if merges == 2:
            run(successor, 3)
        return decide(self, merge)

    monkeypatch.setattr(files_compaction.Compaction, "_commit", late)
    run(zombie, 2)
    expected = Counter(range(3 if merges == 1 else 4))
    assert rows(tmp_path) == expected and len(names(tmp_path)) == 1
    opened(tmp_path, ", compact_after = 2", last=3)
    assert rows(tmp_path) == expected


def test_zombie_whose_merged_file_was_deleted_replaces_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zombie = opened(tmp_path, ", compact_after = 3")
    run(zombie, 0, 1)
    decide = files_compaction.Compaction._commit

    def late(self: Any, merge: Any) -> bool:
        monkeypatch.undo()
        files_sink(tmp_path).recover(committed(2))
        return decide(self, merge)

    monkeypatch.setattr(files_compaction.Compaction, "_commit", late)
    run(zombie, 2)
    assert rows(tmp_path) == Counter(range(3))
    run(opened(tmp_path, last=2), 3)
    assert rows(tmp_path) == Counter(range(4)) and len(names(tmp_path)) == 1


def test_damaged_merge_record_is_an_error(tmp_path: Path) -> None:
    run(opened(tmp_path), 0, 1, 2)
    record = tmp_path / "_tidegate" / "1234-out-" / "merges" / internal_files(tmp_path, "merges")[0]
    for text in ("", "[]", "{}", json.dumps({"files": 5})):
        record.write_text(text)
        with pytest.raises(RunError, match="is damaged"):
            opened(tmp_path, last=2)
    assert rows(tmp_path) == Counter(range(3))


# Reading merged files.


def test_source_reads_a_merged_file_once(tmp_path: Path) -> None:
    """Files next to the merged file are about to be deleted."""
    path = tmp_path / "out"
    sink = opened(path, "")
    run(sink, *range(3))
    contents = {name: (path / name).read_bytes() for name in names(path)}
    run(opened(path, last=2), 3)
    for name, data in contents.items():
        (path / name).write_bytes(data)
    source = files_source(path, tmp_path / "offsets")
    input_range = source.plan_range(None, 1)
    assert input_range is not None
    assert input_range.offset["files"] == ["1234-out-000-000000000000-to-000000000003.parquet"]
    source.on_commit(input_range.offset)
    assert source.plan_range(input_range.offset, 1) is None


def test_source_that_read_a_part_of_a_merged_file_stops(tmp_path: Path) -> None:
    path = tmp_path / "out"
    sink = opened(path, ", compact_after = 3")
    run(sink, 0, 1)
    source = files_source(path, tmp_path / "offsets")
    input_range = source.plan_range(None, 1)
    assert input_range is not None
    run(sink, 2)
    with pytest.raises(RunError, match="merged into") as caught:
        source.plan_range(input_range.offset, 1)
    assert caught.value.code == "TG-528" and "compact_after" in str(caught.value.hint)


def test_compaction_does_not_change_the_store(tmp_path: Path) -> None:
    """Names that resemble merged files have no meaning without a files sink."""
    for name in ("from-to-here.json", "a-000-1-to-2.json"):
        (tmp_path / name).write_text("{}\n")
    assert not MergedFiles(item.name for item in open_store(str(tmp_path)).list())
