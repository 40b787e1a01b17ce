"""The delta source reads a snapshot and then appended files, each once."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.support.delta import E0, KEYED, opened, row, rows_of, source_of, staged
from tidegate.connectors.base import InputRange
from tidegate.errors import TidegateError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "table"


def add(path: Path, *numbers: int, **options: Any) -> None:
    """Append rows as a new version."""
    table = pa.table({"id": pa.array(numbers, pa.int64()), "name": [f"n{n}" for n in numbers]})
    write_deltalake(str(path), table, mode="append", **options)


def ids(source: Any, input_range: InputRange | None) -> list[int]:
    return sorted(row["id"] for row in rows_of(source, input_range))


def test_reads_the_snapshot_and_each_later_version_once(path: Path) -> None:
    add(path, 1, 2)
    add(path, 3)
    source = source_of(path)
    assert not source.source.bounded
    first = source.plan_range(None, 2)
    assert first is not None and ids(source, first) == [1, 2, 3] and not first.has_more
    assert source.plan_range(first.offset, 2) is None
    add(path, 4)
    add(path, 5)
    DeltaTable(str(path)).optimize.compact()
    DeltaTable(str(path)).vacuum(0, dry_run=False, enforce_retention_duration=False)
    add(path, 6)
    # A log entry that was deleted before it was read is an error.
    with pytest.raises(TidegateError, match="was removed before it was read") as caught:
        ids(source, source.plan_range(first.offset, 2))
    assert caught.value.code == "TG-528" and caught.value.hint


def test_skips_compaction_and_respects_limits(path: Path) -> None:
    for number in range(5):
        add(path, number)
    source = source_of(path, files_per_epoch="2")
    at, all_ids = None, []
    while (input_range := source.plan_range(at, 2)) is not None:
        new_ids = ids(source, input_range)
        assert len(new_ids) <= 2 and input_range.has_more == (len(all_ids) + len(new_ids) < 5)
        all_ids += new_ids
        if len(all_ids) == 2:
            # The snapshot of the first range is read completely, despite later versions.
            DeltaTable(str(path)).optimize.compact()
        # After a restart only the offset is known.
        source, at = source_of(path, files_per_epoch="2"), input_range.offset
    assert sorted(all_ids) == [0, 1, 2, 3, 4]
    add(path, 5)
    last = source.plan_range(at, 2)
    assert ids(source, last) == [5]


def test_version_that_changes_rows_stops_the_source_or_is_skipped(path: Path) -> None:
    sink = opened(path, KEYED)
    sink.publish(E0, staged(sink, E0, [row(1, "a", "+I"), row(2, "b", "+I")]))
    stopping, skipping = source_of(path), source_of(path, on_rewrite="skip")
    first = stopping.plan_range(None, 1)
    assert ids(stopping, first) == [1, 2] and first is not None
    DeltaTable(str(path)).delete("id = 1")
    add(path, 3)
    with pytest.raises(TidegateError, match="changes or removes rows") as caught:
        stopping.plan_range(first.offset, 1)
    assert caught.value.code == "TG-528" and "on_rewrite = 'skip'" in (caught.value.hint or "")
    assert ids(skipping, skipping.plan_range(first.offset, 1)) == [3]


def test_start_and_bounded_choose_the_versions(path: Path) -> None:
    add(path, 1)
    add(path, 2)
    later = source_of(path, start="0")
    assert ids(later, later.plan_range(None, 1)) == [2]
    whole = source_of(path, bounded="true")
    first = whole.plan_range(None, 1)
    assert whole.source.bounded and ids(whole, first) == [1, 2] and first is not None
    add(path, 3)
    assert whole.plan_range(first.offset, 1) is None
    part = source_of(path, bounded="true", start="0", files_per_epoch="1")
    second = part.plan_range(None, 1)
    add(path, 4)
    assert second is not None and ids(part, second) == [2]
    third = part.plan_range(second.offset, 1)
    assert third is not None and ids(part, third) == [3]
    assert part.plan_range(third.offset, 1) is None


def test_reads_partition_values_and_columns_missing_in_old_files(path: Path) -> None:
    at = dt.datetime(2026, 1, 2, 3, 4, 5, 678, dt.UTC)
    schema = pa.schema(
        [
            ("id", pa.int64()),
            ("name", pa.string()),
            ("day", pa.date32()),
            ("at", pa.timestamp("us", "UTC")),
            ("ok", pa.bool_()),
        ]
    )
    values = [
        {"id": 1, "name": "b/c=d %41é", "day": at.date(), "at": at, "ok": True},
        {"id": 2, "name": None, "day": None, "at": None, "ok": None},
    ]
    write_deltalake(
        str(path),
        pa.Table.from_pylist(values, schema),
        partition_by=["name", "day", "at", "ok"],
    )
    columns = "id BIGINT, name STRING, day DATE, at TIMESTAMP, OK BOOLEAN"
    source = source_of(path, columns)
    first = source.plan_range(None, 1)
    expected = [{"OK" if k == "ok" else k: v for k, v in item.items()} for item in values]
    assert sorted(rows_of(source, first), key=lambda r: r["id"]) == expected
    more = pa.Table.from_pylist(
        [{**values[0], "more": [1]}], schema.append(pa.field("more", pa.list_(pa.int32())))
    )
    write_deltalake(str(path), more, mode="append", schema_mode="merge")
    assert first is not None and rows_of(source, source.plan_range(first.offset, 1)) == expected[:1]
    wide = source_of(path, f"{columns}, more ARRAY<INT>")
    rows = rows_of(wide, wide.plan_range(None, 1))
    assert sorted(str(item["more"]) for item in rows) == ["None", "None", "[1]"]


def test_rows_carry_their_position_in_version_order(path: Path) -> None:
    for number in (3, 1, 2):
        add(path, number)
    source = source_of(path, start="0")
    rows = rows_of(source, source.plan_range(None, 1), arrival=True)
    rows.sort(key=lambda item: (item["_tg_file"], item["_tg_row"]))
    assert [item["id"] for item in rows] == [1, 2]


def test_rejects_unsuitable_tables_when_opened(path: Path) -> None:
    def rejected(columns: str = "id BIGINT") -> str:
        with pytest.raises(TidegateError) as caught:
            source_of(path, columns)
        assert caught.value.code in ("TG-522", "TG-523", "TG-529") and caught.value.hint
        return caught.value.message

    assert "which does not exist" in rejected()
    add(path, 1)
    assert "has no column nam" in rejected("nam STRING")
    assert "id of the table is int64, but id is INT" in rejected("id INT")
