"""The sink of a materialized view keeps all rows in few files, also after crashes and restores."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.compiling import compile_text
from tests.support.lossy_disk import LossyDisk, lose_power
from tests.support.sinks import committed, run, stage
from tidegate.catalog.objects import Sink, Stream
from tidegate.catalog.options import Options
from tidegate.checkpoint.manifest import Manifest, StreamState
from tidegate.connectors.base import CommittedState, EpochId, SinkContext
from tidegate.connectors.changelog_compaction import materialize
from tidegate.connectors.view import (
    COMPACT_AFTER,
    ChangeFile,
    ViewSchema,
    ViewSink,
    files_to_compact,
    list_change_files,
    read_change_file,
)
from tidegate.errors import RunError
from tidegate.runtime.reconciliation import view_change_error
from tidegate.storage import local as disk
from tidegate.types import ChangelogKind

VIEW = "CREATE SOURCE s (a BIGINT) WITH (connector = 'memory'); CREATE MATERIALIZED VIEW v AS SELECT a FROM s;"


def view_sink(
    path: Path,
    restorable_epochs: tuple[int, ...] = (),
    life: str = "1234",
    kind: ChangelogKind = ChangelogKind.APPEND,
) -> ViewSink:
    stream = compile_text(VIEW).catalog.get("v")
    assert isinstance(stream, Stream) and stream.materialized
    key = ("a",) if kind is ChangelogKind.UPSERT else ()
    options = Options(
        {"schema": ViewSchema(kind, key, (("a", "BIGINT"),)), "definition": "m"}, {}, set()
    )
    sink = Sink("view of v", options, stream.statement, stream.script, "view", "v", True)
    manifests = [Manifest(0, e, 1, 0, {"v": StreamState(life)}) for e in restorable_epochs]
    return ViewSink(
        SinkContext(sink, str(path), life, lambda *_: None, restorable=lambda: manifests)
    )


def rows(sink: ViewSink) -> list[int]:
    tables = [read_change_file(sink.store, item)[0] for item in list_change_files(sink.store)]
    return [a for table in tables for a in table.column("a").to_pylist()]


def rows_emitted(sink: ViewSink) -> int:
    return sum(read_change_file(sink.store, item)[1] for item in list_change_files(sink.store))


def test_compacts_files_without_losing_rows(tmp_path: Path) -> None:
    sink = view_sink(tmp_path)
    sink.recover(CommittedState(None))
    run(sink, *range(200))
    assert rows(sink) == list(range(200))
    assert len(list_change_files(sink.store)) < 3 * COMPACT_AFTER
    assert rows_emitted(sink) == 200


def test_compacts_upserts_and_keeps_their_count(tmp_path: Path) -> None:
    sink = view_sink(tmp_path, kind=ChangelogKind.UPSERT)
    sink.recover(CommittedState(None))
    for number in range(100):
        sink.publish(EpochId(0, number), stage(sink, EpochId(0, number), [number % 3]))
    assert rows_emitted(sink) == 100
    assert len(rows(sink)) < 50
    tables = [
        read_change_file(sink.store, item)[0].replace_schema_metadata(None)
        for item in list_change_files(sink.store)
    ]
    view = materialize(pa.concat_tables(tables), ChangelogKind.UPSERT, ("a",))
    assert sorted(view.column("a").to_pylist()) == [0, 1, 2]


@pytest.mark.parametrize("tasks", [1, 3])
def test_publishing_an_epoch_again_changes_nothing(tmp_path: Path, tasks: int) -> None:
    sink = view_sink(tmp_path)
    sink.recover(CommittedState(None))
    committables = stage(sink, EpochId(0, 0), [1, 2, 3], tasks)
    for _ in range(2):
        sink.publish(EpochId(0, 0), committables)
        view_sink(tmp_path).recover(committed(0, committables))
        assert sorted(rows(sink)) == [1, 2, 3]
    assert not list((tmp_path / "view" / "1234" / "staged").glob("*"))


def test_crash_during_compaction_leaves_every_row_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = view_sink(tmp_path)
    sink.recover(CommittedState(None))
    run(sink, *range(COMPACT_AFTER - 1))
    monkeypatch.setattr(type(sink.store), "delete", lambda self, names: None)
    committables = run(sink, COMPACT_AFTER - 1)
    monkeypatch.undo()
    assert len(list((tmp_path / "view" / "1234").glob("*.arrow"))) == COMPACT_AFTER + 1
    assert rows(sink) == list(range(COMPACT_AFTER))
    reopened = view_sink(tmp_path)
    reopened.recover(committed(COMPACT_AFTER - 1, committables))
    assert rows(reopened) == list(range(COMPACT_AFTER))
    assert len(list((tmp_path / "view" / "1234").glob("*.arrow"))) == 1


def test_restores_to_a_retained_epoch(tmp_path: Path) -> None:
    """Later epochs are undone, and their numbers are used again."""
    sink = view_sink(tmp_path, restorable_epochs=(7, 38, 39))
    sink.recover(CommittedState(None))
    run(sink, *range(40))
    assert len(list_change_files(sink.store)) < 30
    restored = view_sink(tmp_path, restorable_epochs=(7,))
    restored.recover(replace(committed(7), lineage=Manifest(0, 7, 1, 0).lineage))
    assert rows(restored) == list(range(8))
    run(restored, 50, generation=1)
    assert rows(restored) == [*range(8), 50]


def test_rejects_a_restore_inside_of_a_file(tmp_path: Path) -> None:
    sink = view_sink(tmp_path)
    sink.recover(CommittedState(None))
    run(sink, *range(COMPACT_AFTER))
    with pytest.raises(RunError) as caught:
        view_sink(tmp_path).recover(committed(5))
    assert caught.value.code == "TG-605" and "epoch 5" in caught.value.message


def test_starting_over_uses_a_new_folder_and_deletes_unreferenced_ones(
    tmp_path: Path,
) -> None:
    sink = view_sink(tmp_path)
    sink.recover(CommittedState(None))
    run(sink, 0, 1)
    new = view_sink(tmp_path, life="5678")
    old = Manifest(0, 1, 1, 0, {"v": StreamState("1234")})
    new.context = replace(new.context, restorable=lambda: [old])
    new.recover(CommittedState(None))
    assert rows(new) == [] and rows(sink) == [0, 1]
    new.context = replace(new.context, restorable=lambda: [])
    new.recover(committed(2))
    assert not (tmp_path / "view" / "1234").exists()


@pytest.mark.parametrize("seed", range(4))
def test_committed_epochs_survive_a_power_loss(tmp_path: Path, seed: int) -> None:
    before = disk.use_disk(LossyDisk(tmp_path / "journal"))
    try:
        sink = view_sink(tmp_path / "s")
        sink.recover(CommittedState(None))
        run(sink, *range(COMPACT_AFTER + 3), tasks=2)
    finally:
        disk.use_disk(before)
    lose_power(tmp_path / "journal", random.Random(seed) if seed else None)
    reopened = view_sink(tmp_path / "s")
    reopened.recover(committed(COMPACT_AFTER + 2))
    assert sorted(rows(reopened)) == sorted(list(range(COMPACT_AFTER + 3)) * 2)


@given(st.sets(st.integers(0, 120)), st.integers(0, 10**6))
def test_compaction_never_crosses_a_restorable_epoch(restorable: set[int], seed: int) -> None:
    """For any restorable epochs while files are compacted."""
    numbers = random.Random(seed).sample(range(121), 80)
    files: list[ChangeFile] = []
    for number in sorted(numbers):
        files.append(ChangeFile(number, number))
        chosen = files_to_compact(files, restorable)
        if chosen:
            at = files.index(chosen[0])
            whole = ChangeFile(chosen[0].first, chosen[-1].last, sum(c.epochs for c in chosen))
            files[at : at + len(chosen)] = [whole]
    assert sum(item.epochs for item in files) == len(numbers)
    assert not any(item.first <= e < item.last for item in files for e in restorable)


def test_files_grow_with_the_logarithm_of_epochs() -> None:
    files: list[ChangeFile] = []
    merged_epochs = 0
    for number in range(5_000):
        files.append(ChangeFile(number, number))
        chosen = files_to_compact(files, ())
        if chosen:
            whole = ChangeFile(chosen[0].first, chosen[-1].last, sum(c.epochs for c in chosen))
            files[files.index(chosen[0]) :] = [whole]
            merged_epochs += whole.epochs
    assert len(files) < 2 * COMPACT_AFTER + 10
    assert merged_epochs < 20 * 5_000


STORED = StreamState("1", rows_out=7, view_definition="old")


@pytest.mark.parametrize(
    ("now", "stored", "words"),
    [
        ("old", STORED, None),
        (None, STORED, None),
        ("new", replace(STORED, rows_out=0), None),
        ("new", STORED, "the query of the materialized view v changed"),
        (
            "new",
            replace(STORED, view_definition=None),
            "7 rows that it emitted before were not stored",
        ),
    ],
)
def test_rejects_a_changed_view_query(now: Any, stored: StreamState, words: Any) -> None:
    error = view_change_error("v", now, stored)
    assert (error is None) == (words is None)
    if error is not None:
        assert words in error.message and "--on-change restart" in str(error.hint)
