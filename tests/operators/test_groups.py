"""Groups as tables: keys, panes, empty groups, and bags in order of arrival."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.operators.aggregate_inputs import NAN, D, L, S, call_of, input_rows
from tests.operators.test_aggregate_functions import EXAMPLES
from tidegate.columns import HASH, PANE, ROWS, WEIGHT
from tidegate.errors import RunError
from tidegate.operators.aggregate.functions import AggregateCall
from tidegate.operators.aggregate.groups import Aggregator, GroupSpec
from tidegate.operators.kernels.arrays import concat, filter_by_time
from tidegate.operators.kernels.keys import find_rows, group_ids
from tidegate.operators.kernels.weighted_rows import unpaired

COUNT = AggregateCall("count", "count(*)", (), L)
LIST = call_of("collect_list", [L], pa.list_(L))


def rows_with_keys(kind: pa.DataType, keys: list[Any]) -> pa.Table:
    zeros = pa.array(np.zeros(len(keys), np.int64))
    return pa.table({PANE: zeros, HASH: zeros, "k0": pa.array(keys, kind)})


def pre_aggregate(aggregator: Aggregator, rows: list[tuple[int | None, int]]) -> Any:
    """Return the partial aggregate of one group; rows are values and weights."""
    column = pa.array([value for value, _ in rows], L)
    return aggregator.pre_aggregate(
        input_rows([0] * len(rows), {"a0_0": column}, [weight for _, weight in rows])
    )


def test_equal_keys_are_one_group() -> None:
    aggregator = Aggregator(GroupSpec((D,), (COUNT,)))
    table = rows_with_keys(D, [0.0, -0.0, NAN, -NAN, None, None, 1.0])
    result = aggregator.evaluate(aggregator.pre_aggregate(table))
    counts = dict(zip(map(repr, result["k0"].to_pylist()), result["r0"].to_pylist(), strict=True))
    assert counts == {"0.0": 2, "nan": 2, "None": 2, "1.0": 1}


NESTED: list[tuple[pa.DataType, list[Any], dict[str, int]]] = [
    (
        pa.struct([("x", D), ("y", pa.list_(D))]),
        [{"x": 0.0, "y": [-0.0]}, {"x": -0.0, "y": [0.0]}, {"x": None, "y": None}, None, None],
        {"{'x': 0.0, 'y': [0.0]}": 2, "{'x': None, 'y': None}": 1, "None": 2},
    ),
    (
        pa.map_(S, D),
        [[("b", 1.0), ("a", 0.0)], [("a", -0.0), ("b", 1.0)], [], [("a", NAN)], [("a", -NAN)]],
        {"[('a', 0.0), ('b', 1.0)]": 2, "[]": 1, "[('a', nan)]": 2},
    ),
    (pa.list_(S), [["a", None], ["a", None], ["a"], [None], []], {"['a', None]": 2, "['a']": 1,
     "[None]": 1, "[]": 1}),
]  # fmt: skip


@pytest.mark.parametrize("kind, keys, expected", NESTED, ids=lambda item: str(item)[:20])
@pytest.mark.parametrize("retracts", [False, True])
def test_nested_keys_are_groups(
    kind: pa.DataType, keys: list[Any], expected: dict[str, int], retracts: bool
) -> None:
    """Keys are shown with 0.0, NaN and sorted map entries, as in Spark."""
    calls = (COUNT, call_of("count", [L], L, distinct=True), call_of("first", [L], L))
    aggregator = Aggregator(GroupSpec((kind,), calls, retracts))
    parts = []
    for number, key in enumerate(keys):
        rows = rows_with_keys(kind, [key, key])
        rows = rows.append_column("a1_0", pa.array([number, number]))
        rows = rows.append_column("a2_0", pa.array([number, number]))
        parts.append(aggregator.pre_aggregate(rows.append_column(WEIGHT, pa.array([1, 1], L))))
        if retracts:
            retractions = rows.slice(1).append_column(WEIGHT, pa.array([-1], L))
            parts.append(aggregator.pre_aggregate(retractions))
    result = aggregator.evaluate(aggregator.combine_parts(parts))
    shown_keys = list(map(repr, result["k0"].to_pylist()))
    rows_per_key = 1 if retracts else 2
    assert dict(zip(shown_keys, result["r0"].to_pylist(), strict=True)) == {
        key: rows_per_key * count for key, count in expected.items()
    }
    assert dict(zip(shown_keys, result["r1"].to_pylist(), strict=True)) == expected
    assert sorted(result["r2"].to_pylist())[0] == 0


def test_key_that_cannot_be_compared_is_rejected() -> None:
    with pytest.raises(RunError, match="GROUP BY is not supported over map"):
        GroupSpec((pa.map_(pa.struct([("a", L)]), L),), (COUNT,))


def test_panes_are_separate_groups() -> None:
    aggregator = Aggregator(GroupSpec((), (COUNT, call_of("count", [S], L, distinct=True))))
    rows = pa.table({PANE: [10, 10, 20], HASH: [0, 0, 0], "a1_0": ["a", "b", "a"]})
    tables = aggregator.pre_aggregate(rows)
    assert aggregator.evaluate(tables).sort_by(PANE).to_pylist() == [
        {PANE: 10, HASH: 0, "r0": 2, "r1": 2},
        {PANE: 20, HASH: 0, "r0": 1, "r1": 1},
    ]
    late = filter_by_time(tables, lambda pane: pane > 10)
    assert [table.num_rows for table in late] == [1, 1]


@pytest.mark.parametrize("retracts", [False, True])
def test_group_without_rows_has_default_results(retracts: bool) -> None:
    """An aggregate without keys and rows has NULL states."""
    calls = tuple(
        call_of(name, [kind], result, **options)
        for name, kind, result, _, _, options in EXAMPLES
        if not pa.types.is_nested(kind)
    )
    aggregator = Aggregator(GroupSpec((), calls, retracts))
    zeros = {PANE: 0, HASH: 0, ROWS: 0}
    main = aggregator.schemas[0]
    empty_group = pa.table([pa.array([zeros.get(f.name)], f.type) for f in main], schema=main)
    empty = aggregator.empty()
    results = aggregator.evaluate((empty_group, *empty[1:])).to_pylist()[0]
    for index, item in enumerate(calls):
        expected: Any = None
        if pa.types.is_list(item.result) and "percentile" not in item.function:
            expected = []
        elif "count" in item.function:
            expected = 0
        assert results[f"r{index}"] == expected, item.function
    assert aggregator.evaluate(empty).num_rows == 0
    merged = aggregator.evaluate(
        aggregator.combine(concat([(empty_group, *empty[1:])] * 2))
    ).to_pylist()[0]
    assert merged == results


def test_no_rows_are_no_groups() -> None:
    calls = tuple(
        call_of(name, [kind], result, **options) for name, kind, result, _, _, options in EXAMPLES
    )
    aggregator = Aggregator(GroupSpec((L,), calls))
    columns = {f"a{i}_0": pa.array([], item.arguments[0]) for i, item in enumerate(calls)}
    tables = aggregator.pre_aggregate(input_rows([], columns))
    assert [table.num_rows for table in tables] == [0] * len(tables)
    assert tuple(table.schema for table in tables) == aggregator.schemas
    assert aggregator.combine_parts([]) == aggregator.empty()


def test_retraction_removes_the_latest_identical_row() -> None:
    aggregator = Aggregator(GroupSpec((L,), (LIST,), retracts=True))
    tables = pre_aggregate(aggregator, [(1, 1), (2, 1), (1, 1), (3, 1), (1, -1), (3, -1)])
    assert tables[1]["v0"].to_pylist() == [1, 2]
    assert aggregator.evaluate(tables)["r0"].to_pylist() == [[1, 2]]


def test_retraction_before_its_row_waits_for_it() -> None:
    aggregator = Aggregator(GroupSpec((L,), (LIST,), retracts=True))
    early, late = (
        pre_aggregate(aggregator, [(1, -1)]),
        pre_aggregate(aggregator, [(2, 1), (1, 1), (1, 1)]),
    )
    both = aggregator.combine_parts([early, late])
    assert both[1][ROWS].to_pylist() == [-1, 1, 1, 1]
    assert aggregator.evaluate(both)["r0"].to_pylist() == [[2, 1]]
    assert aggregator.evaluate(early)["r0"].to_pylist() == [[]]


def test_null_is_a_value_of_first() -> None:
    first = Aggregator(GroupSpec((L,), (call_of("first", [L], L),), retracts=True))
    tables = pre_aggregate(first, [(None, 1), (5, 1)])
    assert first.evaluate(tables)["r0"].to_pylist() == [None]
    without = first.combine_parts([tables, pre_aggregate(first, [(None, -1)])])
    assert first.evaluate(without)["r0"].to_pylist() == [5]
    assert without[1].num_rows == 1


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from([1, -1])), min_size=1, max_size=30))
def test_unpaired_rows_and_retractions(pairs: list[tuple[int, int]]) -> None:
    pairs = sorted(pairs, key=lambda pair: pair[0])
    expected = [True] * len(pairs)
    open_rows: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for index, (id, weight) in enumerate(pairs):
        if weight > 0:
            open_rows[id].append(index)
        elif open_rows[id]:
            expected[index] = expected[open_rows[id].pop()] = False
    ids, weights = (np.array(column) for column in zip(*pairs, strict=True))
    assert unpaired(ids, weights).tolist() == expected


def test_find_rows_and_group_ids() -> None:
    table = rows_with_keys(S, ["a", None, "b"])
    assert find_rows(table, rows_with_keys(S, ["b", "c", None]), ["k0"]).tolist() == [2, -1, 1]
    ids, count = group_ids(rows_with_keys(S, ["a", "b", "a"]), ["k0"])
    assert count == 2 and ids[0] == ids[2] != ids[1]


def test_weights_are_ignored_without_retractions() -> None:
    rows = rows_with_keys(L, [1, 1]).append_column(WEIGHT, pa.array([1, -1], L))
    assert Aggregator(GroupSpec((L,), (COUNT,), retracts=True)).pre_aggregate(rows)[0][
        ROWS
    ].to_pylist() == [0]
    assert Aggregator(GroupSpec((L,), (COUNT,))).pre_aggregate(rows)[0][ROWS].to_pylist() == [2]
