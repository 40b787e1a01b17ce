"""Materializing and compacting changelogs, compared with the model of the test kit."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.columns import OP
from tidegate.connectors.changelog_compaction import compact_changes, materialize
from tidegate.errors import RunError
from tidegate.testing.compare import StreamOutput
from tidegate.types import ChangelogKind

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.float64()), (OP, pa.string())])
KEY = ("k",)
keys = st.one_of(st.none(), st.integers(0, 2))
values = st.sampled_from([None, 0.5, 1.5, float("nan")])


def table(rows: list[tuple[Any, ...]]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [(), (), ()]
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], SCHEMA)


def model(rows: pa.Table, kind: ChangelogKind) -> list[str]:
    output = StreamOutput(kind, KEY if kind is ChangelogKind.UPSERT else ())
    output.add(rows)
    return sorted(map(repr, output.all_rows()))


def sorted_texts(rows: pa.Table) -> list[str]:
    return sorted(map(repr, rows.to_pylist()))


@st.composite
def upserts(draw: st.DrawFn) -> list[tuple[Any, ...]]:
    row = st.tuples(keys, values, st.sampled_from(["+I", "+U", "-U", "-D"]))
    return draw(st.lists(row, max_size=12))


@st.composite
def changelogs(draw: st.DrawFn) -> list[tuple[Any, ...]]:
    """Generate changes that only retract existing rows."""
    existing: list[tuple[Any, Any]] = []
    rows: list[tuple[Any, ...]] = []
    for _ in range(draw(st.integers(0, 12))):
        if existing and draw(st.booleans()):
            retracted = existing.pop(draw(st.integers(0, len(existing) - 1)))
            rows.append((*retracted, draw(st.sampled_from(["-U", "-D"]))))
        else:
            row = (draw(keys), draw(values))
            existing.append(row)
            rows.append((*row, draw(st.sampled_from(["+I", "+U"]))))
    return rows


@given(upserts(), st.integers(0, 12), st.integers(0, 12))
def test_compacting_upserts_in_parts_gives_the_same_table(
    rows: list[tuple[Any, ...]], first: int, second: int
) -> None:
    check_compaction(rows, first, second, ChangelogKind.UPSERT)


@given(changelogs(), st.integers(0, 12), st.integers(0, 12))
def test_compacting_changelogs_in_parts_gives_the_same_table(
    rows: list[tuple[Any, ...]], first: int, second: int
) -> None:
    check_compaction(rows, first, second, ChangelogKind.CHANGELOG)


def check_compaction(
    rows: list[tuple[Any, ...]], first: int, second: int, kind: ChangelogKind
) -> None:
    first, second = sorted((first, second))
    whole = model(table(rows), kind)
    parts = [table(rows[:first]), table(rows[first:second]), table(rows[second:])]
    parts[0] = compact_changes(parts[0], kind, KEY, complete=True)
    parts[1] = compact_changes(parts[1], kind, KEY)
    assert parts[1].num_rows <= max(second - first, 0)
    assert sorted_texts(materialize(pa.concat_tables(parts), kind, KEY)) == whole


def test_append_only_rows_are_not_changed() -> None:
    rows = pa.table({"a": [1, 1, 2]})
    assert materialize(rows, ChangelogKind.APPEND, ()).equals(rows)


def test_upserts_without_a_key_keep_the_last_row() -> None:
    rows = pa.table({"n": [1, 2, 3]})
    assert materialize(rows, ChangelogKind.UPSERT, ()).to_pylist() == [{"n": 3}]


def test_types_do_not_change() -> None:
    kind = pa.map_(
        pa.string(), pa.struct([("x", pa.decimal128(20, 3)), ("y", pa.list_(pa.date32()))])
    )
    rows = pa.table(
        {
            "m": pa.array([[("a", {"x": None, "y": []})]] * 2, kind),
            "t": pa.array([1, 1], pa.timestamp("us", "UTC")),
            OP: ["+I", "+I"],
        }
    )
    table_rows = materialize(rows, ChangelogKind.CHANGELOG, ())
    assert table_rows.equals(rows.drop_columns([OP]))


def test_rejects_the_retraction_of_an_unknown_row() -> None:
    with pytest.raises(RunError) as caught:
        materialize(table([(1, 0.5, "-D")]), ChangelogKind.CHANGELOG, ())
    assert caught.value.code == "TG-605"
