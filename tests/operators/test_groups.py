"""Tables of groups: shapes, keys, panes, bags in order of arrival."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.operators.test_accumulators import EXAMPLES, NAN, D, L, S, call, rows_of
from tidegate.columns import HASH, PANE, ROWS, WEIGHT
from tidegate.errors import RunError
from tidegate.operators.aggregate.functions import AggregateCall
from tidegate.operators.aggregate.groups import Aggregator, GroupSpec
from tidegate.operators.kernels.arrays import concat, filter_panes
from tidegate.operators.kernels.keys import find_rows, group_ids
from tidegate.operators.kernels.weighted_rows import unpaired

COUNT = AggregateCall("count", "count(*)", (), L)
LIST = call("collect_list", [L], pa.list_(L))


def keyed(kind: pa.DataType, keys: list[Any]) -> pa.Table:
    zeros = pa.array(np.zeros(len(keys), np.int64))
    return pa.table({PANE: zeros, HASH: zeros, "k0": pa.array(keys, kind)})


def changes(groups: Aggregator, rows: list[tuple[int | None, int]]) -> Any:
    """Lifted rows of one group: values and weights."""
    column = pa.array([value for value, _ in rows], L)
    return groups.pre_aggregate(
        rows_of([0] * len(rows), {"a0_0": column}, [weight for _, weight in rows])
    )


def test_keys_that_are_equal_are_one_group() -> None:
    groups = Aggregator(GroupSpec((D,), (COUNT,)))
    table = keyed(D, [0.0, -0.0, NAN, -NAN, None, None, 1.0])
    result = groups.evaluate(groups.pre_aggregate(table))
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
    """What is shown of a key is 0.0, NaN, and a map in the order of its keys, as Spark has it."""
    calls = (COUNT, call("count", [L], L, distinct=True), call("first", [L], L))
    groups = Aggregator(GroupSpec((kind,), calls, retracts))
    parts = []
    for place, key in enumerate(keys):
        rows = keyed(kind, [key, key])
        rows = rows.append_column("a1_0", pa.array([place, place]))
        rows = rows.append_column("a2_0", pa.array([place, place]))
        parts.append(groups.pre_aggregate(rows.append_column(WEIGHT, pa.array([1, 1], L))))
        if retracts:
            back = rows.slice(1).append_column(WEIGHT, pa.array([-1], L))
            parts.append(groups.pre_aggregate(back))
    result = groups.evaluate(groups.combine_parts(parts))
    shown = list(map(repr, result["k0"].to_pylist()))
    each = 1 if retracts else 2
    assert dict(zip(shown, result["r0"].to_pylist(), strict=True)) == {
        key: each * count for key, count in expected.items()
    }
    assert dict(zip(shown, result["r1"].to_pylist(), strict=True)) == expected
    assert sorted(result["r2"].to_pylist())[0] == 0


def test_a_key_that_cannot_be_compared_is_rejected() -> None:
    with pytest.raises(RunError, match="GROUP BY is not supported over map"):
        GroupSpec((pa.map_(pa.struct([("a", L)]), L),), (COUNT,))


def test_panes_are_groups_of_their_own() -> None:
    groups = Aggregator(GroupSpec((), (COUNT, call("count", [S], L, distinct=True))))
    rows = pa.table({PANE: [10, 10, 20], HASH: [0, 0, 0], "a1_0": ["a", "b", "a"]})
    tables = groups.pre_aggregate(rows)
    assert groups.evaluate(tables).sort_by(PANE).to_pylist() == [
        {PANE: 10, HASH: 0, "r0": 2, "r1": 2},
        {PANE: 20, HASH: 0, "r0": 1, "r1": 1},
    ]
    late = filter_panes(tables, lambda pane: pane > 10)
    assert [table.num_rows for table in late] == [1, 1]


@pytest.mark.parametrize("retracts", [False, True])
def test_a_group_without_rows_has_the_results_of_nothing(retracts: bool) -> None:
    """States are NULL where an aggregate without keys saw no rows."""
    calls = tuple(
        call(name, [kind], result, **options)
        for name, kind, result, _, _, options in EXAMPLES
        if not pa.types.is_nested(kind)
    )
    groups = Aggregator(GroupSpec((), calls, retracts))
    zero = {PANE: 0, HASH: 0, ROWS: 0}
    main = groups.schemas[0]
    one = pa.table([pa.array([zero.get(f.name)], f.type) for f in main], schema=main)
    empty = groups.empty()
    nothing = groups.evaluate((one, *empty[1:])).to_pylist()[0]
    for index, item in enumerate(calls):
        expected: Any = None
        if pa.types.is_list(item.result) and "percentile" not in item.function:
            expected = []
        elif "count" in item.function:
            expected = 0
        assert nothing[f"r{index}"] == expected, item.function
    assert groups.evaluate(empty).num_rows == 0
    merged = groups.evaluate(groups.combine(concat([(one, *empty[1:])] * 2))).to_pylist()[0]
    assert merged == nothing


def test_lifting_no_rows_gives_no_groups() -> None:
    calls = tuple(
        call(name, [kind], result, **options) for name, kind, result, _, _, options in EXAMPLES
    )
    groups = Aggregator(GroupSpec((L,), calls))
    columns = {f"a{i}_0": pa.array([], one.arguments[0]) for i, one in enumerate(calls)}
    tables = groups.pre_aggregate(rows_of([], columns))
    assert [table.num_rows for table in tables] == [0] * len(tables)
    assert tuple(table.schema for table in tables) == groups.schemas
    assert groups.combine_parts([]) == groups.empty()


def test_a_row_taken_back_is_the_latest_equal_one() -> None:
    groups = Aggregator(GroupSpec((L,), (LIST,), retracts=True))
    tables = changes(groups, [(1, 1), (2, 1), (1, 1), (3, 1), (1, -1), (3, -1)])
    assert tables[1]["v0"].to_pylist() == [1, 2]
    assert groups.evaluate(tables)["r0"].to_pylist() == [[1, 2]]


def test_what_is_taken_back_before_it_came_waits() -> None:
    groups = Aggregator(GroupSpec((L,), (LIST,), retracts=True))
    early, late = changes(groups, [(1, -1)]), changes(groups, [(2, 1), (1, 1), (1, 1)])
    both = groups.combine_parts([early, late])
    assert both[1][ROWS].to_pylist() == [-1, 1, 1, 1]
    assert groups.evaluate(both)["r0"].to_pylist() == [[2, 1]]
    assert groups.evaluate(early)["r0"].to_pylist() == [[]]


def test_nulls_are_values_where_they_count() -> None:
    first = Aggregator(GroupSpec((L,), (call("first", [L], L),), retracts=True))
    tables = changes(first, [(None, 1), (5, 1)])
    assert first.evaluate(tables)["r0"].to_pylist() == [None]
    without = first.combine_parts([tables, changes(first, [(None, -1)])])
    assert first.evaluate(without)["r0"].to_pylist() == [5]
    assert without[1].num_rows == 1


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from([1, -1])), min_size=1, max_size=30))
def test_unmatched_brackets(pairs: list[tuple[int, int]]) -> None:
    pairs = sorted(pairs, key=lambda pair: pair[0])
    expected = [True] * len(pairs)
    opened: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for place, (run, sign) in enumerate(pairs):
        if sign > 0:
            opened[run].append(place)
        elif opened[run]:
            expected[place] = expected[opened[run].pop()] = False
    ids, signs = (np.array(column) for column in zip(*pairs, strict=True))
    assert unpaired(ids, signs).tolist() == expected


def test_places_and_ids() -> None:
    table = keyed(S, ["a", None, "b"])
    assert find_rows(table, keyed(S, ["b", "c", None]), ["k0"]).tolist() == [2, -1, 1]
    ids, count = group_ids(keyed(S, ["a", "b", "a"]), ["k0"])
    assert count == 2 and ids[0] == ids[2] != ids[1]


def test_weights_are_needed_only_where_rows_are_taken_back() -> None:
    rows = keyed(L, [1, 1]).append_column(WEIGHT, pa.array([1, -1], L))
    assert Aggregator(GroupSpec((L,), (COUNT,), retracts=True)).pre_aggregate(rows)[0][
        ROWS
    ].to_pylist() == [0]
    assert Aggregator(GroupSpec((L,), (COUNT,))).pre_aggregate(rows)[0][ROWS].to_pylist() == [2]
