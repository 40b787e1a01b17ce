"""A few rows are merged as Arrow merges them, in the same order."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.operators.harness import L, S
from tidegate.operators.kernels.keys import MAX_SMALL_ROWS, SmallMerge, merge_rows, plan_small_merge

SCHEMA = pa.schema([("pane", L), ("hash", L), ("k0", L), ("rows", L), ("top", L)])
KEYS = ["pane", "k0"]
MERGES = [("hash", "min"), ("rows", "sum"), ("top", "max")]
NUMBERS = st.integers(-(2**63), 2**63 - 1)
ROW = st.tuples(st.sampled_from([0, 60]), NUMBERS, st.integers(-2, 2), NUMBERS, NUMBERS)


def made() -> SmallMerge:
    few = plan_small_merge(SCHEMA, KEYS, MERGES)
    assert few is not None
    return few


def table(rows: list[tuple[int | None, ...]]) -> pa.Table:
    columns = [pa.array(column, L) for column in zip(*rows, strict=True)]
    return pa.table(columns, schema=SCHEMA)


@settings(deadline=None)
@given(st.lists(st.lists(ROW, min_size=1, max_size=12), min_size=1, max_size=3))
def test_a_few_rows_are_merged_as_arrow_does_it(parts: list[list[tuple[int, ...]]]) -> None:
    # Sums that leave the range come back in the same way.
    both = pa.concat_tables([table(rows) for rows in parts])
    found = made().merge(both)
    assert found is not None
    assert found.equals(merge_rows(both, KEYS, MERGES).select(SCHEMA.names))


def test_what_numpy_would_do_otherwise_is_left_to_arrow() -> None:
    row = (0, 1, 2, 3, 4)
    assert made().merge(table([row, (0, 1, 2, None, 4)])) is None
    assert made().merge(table([row] * (MAX_SMALL_ROWS + 1))) is None
    assert plan_small_merge(pa.schema([("k0", S), ("rows", L)]), ["k0"], [("rows", "sum")]) is None
    assert plan_small_merge(SCHEMA, KEYS, [*MERGES[:2], ("top", "list")]) is None
