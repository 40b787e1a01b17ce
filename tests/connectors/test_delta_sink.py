"""The delta sink publishes an epoch as one version, once, and rejects unsuitable tables."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.delta import (
    E0,
    E1,
    E2,
    KEYED,
    ROWS,
    opened,
    row,
    schema_of,
    sink_of,
    staged,
    table_rows,
)
from tidegate.checkpoint.manifest import EpochRange
from tidegate.connectors.base import CommittedState, EpochId, StreamSchema
from tidegate.errors import TidegateError
from tidegate.storage import local as disk
from tidegate.types import ChangelogKind


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "table"


def version(path: Path) -> int:
    return DeltaTable(str(path)).version()


def test_publishing_an_epoch_again_adds_no_version(path: Path) -> None:
    sink = opened(path)
    committables = staged(sink, E0, [row(1, "a")], [row(2, "b"), row(3, None)], [])
    assert table_rows(path) == [], "nothing is seen before the commit"
    before = version(path)
    for publisher in (sink, sink, sink_of(path)):
        if publisher is not sink:
            publisher.recover(CommittedState(E0, committables))
        publisher.publish(E0, committables)
        assert table_rows(path) == [(1, "a"), (2, "b"), (3, None)]
        assert version(path) == before + 1
    sink.publish(E1, [])
    assert version(path) == before + 1, "no rows, no version"


def test_recover_publishes_committed_rows_and_deletes_staged_ones(path: Path) -> None:
    sink = opened(path)
    staged(sink, E0, [row(1)])
    committed = staged(sink, E0, [row(2, "x")])
    following = staged(sink, E1, [row(3, "y")])
    sink_of(path).recover(CommittedState(E0, committed, E0))
    staged_files = [f.name for f in (path / "_tidegate").rglob("*.parquet")]
    assert staged_files == [following[0]["staged"]], "a zombie process may still commit it"
    sink.publish(E1, following)
    assert table_rows(path) == [(2, "x"), (3, "y")]


@pytest.mark.parametrize(("rows", "op"), [(ROWS, None), (KEYED, "+I")])
def test_one_of_two_concurrent_publishers_of_an_epoch_wins(
    path: Path, monkeypatch: pytest.MonkeyPatch, rows: StreamSchema, op: str | None
) -> None:
    sink = opened(path, rows)
    committables = staged(sink, E0, [row(1, "a", op)])
    other = sink_of(path, rows)
    other.recover(CommittedState(None))
    plain = other.table.refresh
    calls = [0]

    def raced() -> None:
        """Let the other sink publish between the refresh and the write."""
        plain()
        calls[0] += 1
        if calls[0] == 1:
            sink.publish(E0, committables)

    monkeypatch.setattr(other.table, "refresh", raced)
    other.publish(E0, committables)
    assert calls[0] > 1 and table_rows(path) == [(1, "a")]


def test_publishes_despite_concurrent_writers(path: Path) -> None:
    sink = opened(path, KEYED)
    sink.publish(E0, staged(sink, E0, [row(1, "a", "+I")]))
    write_deltalake(
        str(path), pa.table({"id": [7], "name": ["other"]}, schema_of(ROWS)), mode="append"
    )
    sink.publish(E1, staged(sink, E1, [row(1, "a", "-U"), row(1, "b", "+U"), row(7, None, "-D")]))
    committables = staged(sink, E2, [row(2, "c", "+I")])
    DeltaTable(str(path)).optimize.compact()
    DeltaTable(str(path)).vacuum(0, dry_run=False, enforce_retention_duration=False)
    sink.publish(E2, committables)
    assert table_rows(path) == [(1, "b"), (2, "c")]


def test_fences_older_generations(path: Path) -> None:
    zombie = opened(path)
    zombie.publish(E0, staged(zombie, E0, [row(1, "a")]))
    late = staged(zombie, E1, [row(2, "zombie")])
    line = [EpochRange(0, -1, 0), EpochRange(1, 2, 3)]
    newer = sink_of(path)
    newer.recover(CommittedState(EpochId(1, 3), (), E0, line))
    opened_at = version(path)
    newer.recover(CommittedState(EpochId(1, 3), (), E0, line))
    assert version(path) == opened_at
    with pytest.raises(TidegateError, match="generation 1 of its pipeline"):
        zombie.publish(E1, late)
    newer.publish(EpochId(1, 4), staged(newer, EpochId(1, 4), [row(3, "c")]))
    assert table_rows(path) == [(1, "a"), (3, "c")]


def test_rejects_a_marker_that_is_ahead_or_lost_or_of_another_pipeline(path: Path) -> None:
    sink = opened(path)
    committables = staged(sink, E1, [row(1, "a")])
    sink.publish(E1, committables)
    with pytest.raises(TidegateError, match="contains epoch 1 of generation 0 of the sink out"):
        sink_of(path).recover(CommittedState(E0, (), E0))
    with pytest.raises(TidegateError, match="contains rows that an earlier pipeline wrote"):
        sink_of(path, stream="5678").recover(CommittedState(None))
    sink_of(path, stream="5678", existing="append").recover(CommittedState(None))
    with pytest.raises(TidegateError, match="no longer contains the commit marker of the sink out"):
        sink_of(path, stream="9999").recover(CommittedState(E2, committables, E2))


class RecordingDisk(disk.Disk):
    """A disk that records fsyncs and deletes."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[tuple[str, str]] = []

    def sync_file(self, path: str) -> None:
        self.done.append(("sync", Path(path).name))
        super().sync_file(path)

    def unlink(self, path: str) -> None:
        self.done.append(("unlink", Path(path).name))
        super().unlink(path)


@pytest.mark.parametrize(("rows", "op"), [(ROWS, None), (KEYED, "+I")])
def test_syncs_files_of_deltalake_before_deleting_staged_files(
    path: Path, rows: StreamSchema, op: str | None
) -> None:
    sink = opened(path, rows)
    committables = staged(sink, E0, [row(1, "a", op)])
    noting = RecordingDisk()
    before = disk.use_disk(noting)
    try:
        sink.publish(E0, committables)
    finally:
        disk.use_disk(before)
    log = f"{version(path):020d}.json"
    assert ("sync", log) in noting.done
    if op is not None:
        files = {("sync", Path(uri).name) for uri in DeltaTable(str(path)).file_uris()}
        assert files <= {*noting.done[: noting.done.index(("unlink", committables[0]["staged"]))]}


changes = st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["a", "b", None])), max_size=8)


@settings(max_examples=6)
@given(st.lists(changes, min_size=1, max_size=3), st.randoms(use_true_random=False))
def test_changelog_in_any_order_leaves_its_net_rows(
    tmp_path_factory: pytest.TempPathFactory, epochs: list, chance: Any
) -> None:
    """Each step upserts or deletes a key; the tasks get the changes in any order."""
    path = tmp_path_factory.mktemp("delta") / "table"
    sink = opened(path, KEYED)
    expected: dict[int, str] = {}
    for number, steps in enumerate(epochs):
        rows = []
        for key, name in steps:
            before = expected.pop(key, None)
            if name is None:
                rows += [row(key, before, "-D")] if before is not None else []
                continue
            rows += (
                [row(key, before, "-U"), row(key, name, "+U")]
                if before is not None
                else [row(key, name, "+I")]
            )
            expected[key] = name
        chance.shuffle(rows)
        half = len(rows) // 2
        epoch = EpochId(0, number)
        committables = staged(sink, epoch, rows[:half], rows[half:])
        sink.publish(epoch, committables)
        # The staged files are deleted, and publishing the epoch again still succeeds.
        sink_of(path, KEYED).recover(CommittedState(epoch, committables, epoch))
        sink.publish(epoch, committables)
        assert table_rows(path) == sorted(expected.items())


def test_updates_rows_with_null_keys_and_upserts_without_op(path: Path) -> None:
    rows = StreamSchema(ROWS.columns, ChangelogKind.UPSERT, ("id",), True, frozenset({"id"}))
    sink = opened(path / "a", rows)
    sink.publish(E0, staged(sink, E0, [row(None, "x", "+I"), row(1, "a", "+I")]))
    sink.publish(E1, staged(sink, E1, [row(None, "y", "+U"), row(1, "a", "-D")]))
    assert table_rows(path / "a") == [(None, "y")]
    plain = StreamSchema(ROWS.columns, ChangelogKind.UPSERT, ("id",))
    other = opened(path / "b", plain)
    other.publish(E0, staged(other, E0, [row(1, "a"), row(2, "b")]))
    other.publish(E1, staged(other, E1, [row(1, "c")]))
    assert table_rows(path / "b") == [(1, "c"), (2, "b")]


TYPES: list[tuple[str, list[Any]]] = [
    ("BOOLEAN", [True, None]),
    ("TINYINT", [-128, None]),
    ("SMALLINT", [-(2**15), 1]),
    ("INT", [-(2**31), 2**31 - 1]),
    ("BIGINT", [-(2**63), 2**63 - 1]),
    ("FLOAT", [0.5, float("inf")]),
    ("DOUBLE", [1e-300, -0.0]),
    ("DECIMAL(20,3)", [Decimal("12345678901234567.890"), Decimal("-0.001")]),
    ("STRING", ["ä\t\\N\n'\"", ""]),
    ("BINARY", [b"\x00\xff", b""]),
    ("DATE", [dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
    ("TIMESTAMP", [dt.datetime(1969, 12, 31, 23, 59, 59, 999999, dt.UTC), None]),
    ("TIMESTAMP_NTZ", [dt.datetime(2026, 3, 29, 2, 30), None]),
    ("ARRAY<INT>", [[1, None], None]),
    ("STRUCT<a: INT, b: ARRAY<STRING>>", [{"a": 1, "b": ["x"]}, None]),
    ("MAP<STRING, BIGINT>", [[("k", 1)], None]),
]


@pytest.mark.parametrize("by_key", [False, True])
def test_every_type_round_trips(path: Path, by_key: bool) -> None:
    columns = tuple((f"c{place}", kind) for place, (kind, _) in enumerate(TYPES))
    kind = ChangelogKind.UPSERT if by_key else ChangelogKind.APPEND
    rows = StreamSchema(columns, kind, ("c4",) if by_key else None)
    sink = opened(path, rows)
    schema = schema_of(rows)
    table = pa.table(
        [pa.array(values, schema.field(place).type) for place, (_, values) in enumerate(TYPES)],
        schema=schema,
    )
    writer_factory = sink.writer_factory(schema).open(E0.stamp, 0)
    writer_factory.add(table)
    sink.publish(E0, writer_factory.finish())
    stored = pa.table(DeltaTable(str(path)).to_pyarrow_table()).sort_by("c4")
    for place, (name, values) in enumerate(TYPES):
        assert stored.column(f"c{place}").to_pylist() == values, name


@pytest.mark.parametrize("by_key", [False, True])
def test_partition_values_may_be_any_text_except_the_empty_one(path: Path, by_key: bool) -> None:
    columns = (("id", "BIGINT"), ("Name", "STRING"), ("day", "DATE"))
    kind = ChangelogKind.UPSERT if by_key else ChangelogKind.APPEND
    rows = StreamSchema(columns, kind, ("id",) if by_key else None)
    sink = opened(path, rows, partition_by="name, day")
    day = dt.date(2026, 1, 2)
    names = ["a", "b/c=d %41é", "__x", None, "a"]
    given_rows = [
        {"id": n, "Name": name, "day": day if n else None} for n, name in enumerate(names)
    ]
    sink.publish(E0, staged(sink, E0, given_rows))
    assert DeltaTable(str(path)).metadata().partition_columns == ["Name", "day"]
    stored = (
        pa.table(DeltaTable(str(path)).to_pyarrow_table())
        .sort_by("id")
        .select(["id", "Name", "day"])
    )
    assert stored.to_pylist() == given_rows
    with pytest.raises(TidegateError, match="Name is '' in a row") as caught:
        staged(sink, E1, [{"id": 1, "Name": "", "day": day}])
    assert caught.value.code == "TG-504" and caught.value.hint


def rejected(path: Path, rows: StreamSchema = ROWS, **options: str) -> str:
    with pytest.raises(TidegateError) as caught:
        sink_of(path, rows, **options).recover(CommittedState(None))
    assert caught.value.code in ("TG-522", "TG-523", "TG-529") and caught.value.hint
    return caught.value.message


def created(path: Path, *fields: Any, **more: Any) -> None:
    from deltalake import Schema

    DeltaTable.create(str(path), Schema.from_arrow(pa.schema(fields)), mode="overwrite", **more)


def test_rejects_unsuitable_tables_when_opened(path: Path) -> None:
    assert "which does not exist" in rejected(path, create_table="false")
    id_field, name = pa.field("id", pa.int64()), pa.field("NAME", pa.string())
    created(path, pa.field("id", pa.int32()), name)
    assert "the column id of the table is int32, but id is BIGINT" in rejected(path)
    created(path, id_field)
    assert "the table has no column name" in rejected(path)
    created(path, id_field, name, pa.field("more", pa.int32(), nullable=False))
    assert "the column more of the table is NOT NULL" in rejected(path)
    created(path, id_field, name, partition_by=["NAME"])
    assert "partitioned by NAME, not by id" in rejected(path, partition_by="id")
    created(path, id_field, name, configuration={"delta.appendOnly": "true"})
    assert "it is append-only" in rejected(path, KEYED)
    created(path, id_field, name)
    DeltaTable(str(path)).alter.add_constraint({"positive": "id > 0"})
    assert "delta.constraints.positive" in rejected(path)
    odd = StreamSchema((("id", "DOUBLE"), ("name", "STRING")), ChangelogKind.UPSERT, ("id",))
    assert "cannot be compared safely" in rejected(path / "other", odd)


def test_rejects_null_in_a_not_null_column_before_the_commit(
    path: Path,
) -> None:
    created(path, pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string()))
    sink = opened(path)
    with pytest.raises(TidegateError, match="id is NULL in a row"):
        staged(sink, E0, [row(None, "a")])


def test_publishing_to_a_deleted_table_is_an_error(path: Path) -> None:
    import shutil

    sink = opened(path)
    committables = staged(sink, E0, [row(1, "a")])
    shutil.rmtree(path)
    with pytest.raises(TidegateError):
        sink.publish(E0, committables)
