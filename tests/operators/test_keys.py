"""Equal keys (−0.0 and 0.0, NaN, nested values) are one key in every operator; small merges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.operators.harness import D, L, Query, S, rows_of
from tidegate.columns import ARRIVAL_FILE, ARRIVAL_ROW, HASH, OP, PANE, WEIGHT
from tidegate.operators.aggregate.groups import WindowPanes
from tidegate.operators.join.interval import IntervalJoin
from tidegate.operators.join.regular import RegularJoin
from tidegate.operators.kernels.join_condition import JoinCondition
from tidegate.operators.kernels.keys import (
    MAX_SMALL_ROWS,
    SmallMerge,
    canonicalize,
    find_rows,
    group_ids,
    hash_rows,
    is_comparable,
    is_groupable,
    merge_rows,
    plan_small_merge,
    rows_identical,
)
from tidegate.operators.kernels.ordering import Ordering
from tidegate.operators.kernels.weighted_rows import diff_results
from tidegate.operators.normalize import NormalizeOperator
from tidegate.operators.operator import Operator
from tidegate.operators.runner import OperatorRunner
from tidegate.operators.top_n.updating import UpdatingTopN
from tidegate.operators.top_n.window import Ranking
from tidegate.operators.watermark import END_OF_INPUT_US, Origin, WatermarkUpdate
from tidegate.state.memory import MemoryStore

NAN = float("nan")
STRUCT = pa.struct([("x", D), ("y", pa.list_(D))])
MAP = pa.map_(S, D)
# A type, two equal values, and another value.
EQUAL: list[tuple[pa.DataType, Any, Any, Any]] = [
    (D, 0.0, -0.0, 1.0),
    (D, NAN, -NAN, 0.0),
    (pa.float32(), 0.0, -0.0, None),
    (STRUCT, {"x": 0.0, "y": [NAN, -0.0]}, {"x": -0.0, "y": [-NAN, 0.0]}, {"x": 0.0, "y": [NAN]}),
    (pa.list_(S), ["a", None], ["a", None], ["a"]),
    (pa.list_(STRUCT), [{"x": -0.0, "y": []}], [{"x": 0.0, "y": []}], [{"x": 0.0, "y": None}]),
]
MAPS: list[tuple[pa.DataType, Any, Any, Any]] = [
    (MAP, [("a", 0.0), ("b", 1.0)], [("b", 1.0), ("a", -0.0)], [("a", 1.0), ("b", 0.0)]),
]
IDS = [str(index) for index, _ in enumerate([*EQUAL, *MAPS])]


class Harness:
    """An operator in one key group, restarted before every epoch; keys are hashed as they are."""

    def __init__(self, operator: Operator, ports: int = 1) -> None:
        self.operator, self.ports = operator, ports
        self.store = MemoryStore()

    def epoch(
        self, *tables: pa.Table | None, watermark_us: int | None = None
    ) -> list[tuple[Any, ...]]:
        origins = tuple((Origin(port),) for port in range(self.ports))
        updates = (
            [WatermarkUpdate(port, 0, watermark_us) for port in range(self.ports)]
            if watermark_us is not None
            else []
        )
        inputs = [
            [] if table is None else [self.operator.pre_aggregate(port, _with_hash(table))]
            for port, table in enumerate(tables)
        ]
        inputs += [[] for _ in range(self.ports - len(inputs))]
        self.store = MemoryStore.restore(self.store.snapshot())
        result = OperatorRunner(1, self.operator, origins).run_epoch(
            self.store.backend(1, 0), inputs, updates, 1_000, key_group=0
        )
        return [row for table in result.output.rows for row in rows_of(table)]


def _with_hash(table: pa.Table) -> pa.Table:
    return table.append_column(HASH, pa.array(hash_rows([table.column("k0")], table.num_rows)))


def rows(kind: pa.DataType, keys: Sequence[Any], **columns: Sequence[Any]) -> pa.Table:
    key = pa.array(keys, kind)
    table = {PANE: pa.array([0] * len(keys), L), "k0": key, "c0": key}
    table |= {name: pa.array(values) for name, values in columns.items()}
    return pa.table(table)


# Equal and identical values


def test_canonicalize_returns_zero_nan_and_sorted_maps() -> None:
    kind = pa.struct([("m", MAP), ("v", pa.list_(D))])
    values = [None, {"m": [("b", -0.0), ("a", None)], "v": None}, {"m": None, "v": [-0.0, None]}]
    array = pa.array([*values, *values], kind)
    expected = [
        None,
        {"m": [("a", None), ("b", 0.0)], "v": None},
        {"m": None, "v": [0.0, None]},
    ]
    for column in (array.slice(3), pa.chunked_array([array.slice(3, 1), array.slice(4)])):
        canonical = canonicalize(column)
        assert canonical.type == kind
        assert repr(canonical.to_pylist()) == repr(expected)


@pytest.mark.parametrize("kind, one, other, different", [*EQUAL, *MAPS], ids=IDS)
def test_equal_values_are_one_group(kind: Any, one: Any, other: Any, different: Any) -> None:
    table = pa.table(
        {"k": canonicalize(pa.array([one, None, different, other, None], kind)), "n": range(5)}
    )
    ids, count = group_ids(table, ["k"])
    assert ids[0] == ids[3] and count == (2 if different is None else 3)
    merged = merge_rows(table, ["k"], [("n", "sum")])
    assert merged.schema.field("k").type == kind and merged.column_names == ["k", "n"]
    assert sorted(merged["n"].to_pylist()) == ([3, 7] if different is None else [2, 3, 5])
    assert find_rows(table.slice(0, 1), table, ["k"]).tolist() == [0, -1, -1, 0, -1]
    assert len({*hash_rows([pa.array([one, other], kind)], 2).tolist()}) == 1


def test_identical_rows_have_zeros_of_the_same_sign() -> None:
    left = pa.table(
        {"a": pa.array([0.0, NAN, None, 1.0], D), "b": pa.array([[0.0], None, [], [NAN]])}
    )
    assert rows_identical(left, left).all()
    other = pa.table({"a": pa.array([-0.0, -NAN, None, 1.0], D), "b": left["b"]})
    assert rows_identical(left, other).tolist() == [False, True, True, True]
    other = pa.table({"a": left["a"], "b": pa.array([[-0.0], [], [], [-NAN]])})
    assert rows_identical(left, other).tolist() == [False, False, True, True]


LEAVES = st.one_of(st.none(), st.sampled_from([0.0, -0.0, 1.5, NAN]))
LISTS = st.one_of(st.none(), st.lists(LEAVES, max_size=3))
ENTRIES = st.dictionaries(st.sampled_from("abc"), LISTS, max_size=3).map(lambda d: list(d.items()))
VALUES = st.one_of(
    st.none(), st.fixed_dictionaries({"m": st.one_of(st.none(), ENTRIES), "x": LEAVES})
)


def normalize(value: Any) -> Any:
    """Return values that are equal in Python if they are equal as keys."""
    if isinstance(value, float):
        return "nan" if value != value else value + 0.0
    if isinstance(value, dict):
        return tuple(normalize(part) for _, part in sorted(value.items()))
    if isinstance(value, list):
        parts = [normalize(part) for part in value]
        is_map = bool(value) and isinstance(value[0], tuple)
        return ("list", *(sorted(parts, key=repr) if is_map else parts))
    return tuple(normalize(part) for part in value) if isinstance(value, tuple) else value


@settings(deadline=None, max_examples=150)
@given(st.lists(VALUES, max_size=12))
def test_equal_nested_values_have_one_group_and_hash(values: list[Any]) -> None:
    kind = pa.struct([("m", pa.map_(S, pa.list_(D))), ("x", D)])
    column = pa.array(values, kind)
    ids, count = group_ids(pa.table({"k": canonicalize(column)}), ["k"])
    expected = [repr(normalize(value)) for value in values]
    assert count == len(set(expected))
    assert len(set(zip(ids.tolist(), expected, strict=True))) == count
    assert len(set(zip(hash_rows([column], len(values)).tolist(), expected, strict=True))) == count


def test_groupable_and_comparable_types() -> None:
    map_with_struct_keys = pa.map_(STRUCT, L)
    assert (
        is_groupable(STRUCT)
        and is_groupable(MAP)
        and is_groupable(pa.list_(MAP))
        and is_groupable(pa.null())
    )
    assert not is_groupable(map_with_struct_keys)
    assert not is_groupable(pa.struct([("m", map_with_struct_keys)]))
    assert is_comparable(STRUCT) and not is_comparable(MAP) and not is_comparable(pa.list_(MAP))


# Operators


@pytest.mark.parametrize("kind, one, other, different", [*EQUAL, *MAPS], ids=IDS)
@pytest.mark.parametrize("ttl_us", [None, 1_000_000])
def test_group_by_takes_equal_keys_as_one(
    kind: Any, one: Any, other: Any, different: Any, ttl_us: int | None
) -> None:
    run = Harness(Query(keys=(kind,), mode="early", ttl_us=ttl_us).operator())
    assert [row[1:] for row in run.epoch(rows(kind, [one, different]))] == [(1, "+I"), (1, "+I")]
    changed = run.epoch(rows(kind, [other]))
    assert [row[1:] for row in changed] == [(1, "-U"), (2, "+U")]
    assert "-0.0" not in repr(changed)


@pytest.mark.parametrize("kind, one, other, different", EQUAL, ids=IDS[: len(EQUAL)])
def test_distinct_takes_equal_rows_as_one(kind: Any, one: Any, other: Any, different: Any) -> None:
    query = Query(keys=(kind,), calls=(), arguments=(), filters=(), mode="early", retracts=True)
    run = Harness(query.operator())

    def ops(keys: list[Any], weights: list[int]) -> list[str]:
        return [row[-1] for row in run.epoch(rows(kind, keys, **{WEIGHT: weights}))]

    assert ops([one], [1]) == ["+I"]
    assert ops([other], [1]) == []
    assert ops([one, different], [-1, 1]) == ["+I"]
    assert ops([other], [-1]) == ["-D"]


@pytest.mark.parametrize("kind, one, other, different", EQUAL, ids=IDS[: len(EQUAL)])
@pytest.mark.parametrize("gap_us", [None, 10])
def test_windows_and_sessions_take_equal_keys_as_one(
    kind: Any, one: Any, other: Any, different: Any, gap_us: int | None
) -> None:
    panes = WindowPanes("TUMBLE", 100, 100) if gap_us is None else None
    run = Harness(Query(keys=(kind,), panes=panes, gap_us=gap_us).operator())
    assert run.epoch(rows(kind, [one, different]), watermark_us=0) == []
    assert run.epoch(rows(kind, [other]), watermark_us=0) == []
    assert sorted(row[-1] for row in run.epoch(watermark_us=END_OF_INPUT_US)) == [1, 2]


@pytest.mark.parametrize("kind, one, other, different", EQUAL, ids=IDS[: len(EQUAL)])
def test_upserts_of_equal_keys_replace_each_other(
    kind: Any, one: Any, other: Any, different: Any
) -> None:
    run = Harness(NormalizeOperator((kind,), (kind, S)))
    arrival_row = 0

    def upsert(key: Any, value: str, op: str) -> list[tuple[Any, ...]]:
        nonlocal arrival_row
        arrival_row += 1
        table = rows(kind, [key], c1=[value], **{OP: [op], ARRIVAL_FILE: [""]})
        return run.epoch(table.append_column(ARRIVAL_ROW, pa.array([arrival_row])))

    assert [row[1:] for row in upsert(one, "a", "+U")] == [("a", "+I")]
    assert [row[1:] for row in upsert(different, "z", "+U")] == [("z", "+I")]
    assert [row[1:] for row in upsert(other, "b", "+U")] == [("a", "-U"), ("b", "+U")]
    assert [row[1:] for row in upsert(one, "", "-D")] == [("b", "-D")]


def test_change_of_the_sign_of_zero_is_emitted() -> None:
    """Otherwise a later retraction would not match the emitted row."""
    before = pa.table({"k": ["a", "b"], "v": [0.0, NAN]})
    after = pa.table({"k": ["a", "b"], "v": [-0.0, -NAN]})
    changes = diff_results(before, after, ["k"])
    assert repr(rows_of(changes)) == "[('a', 0.0, '-U'), ('a', -0.0, '+U')]"


@pytest.mark.parametrize("kind, one, other, different", EQUAL, ids=IDS[: len(EQUAL)])
@pytest.mark.parametrize("ttl_us", [None, 1_000_000])
def test_top_n_takes_equal_partitions_as_one(
    kind: Any, one: Any, other: Any, different: Any, ttl_us: int | None
) -> None:
    run = Harness(UpdatingTopN(Ranking((kind,), (Ordering(L),), (kind, L), 1), ttl_us=ttl_us))
    next_row = 0

    def add(keys: list[Any], values: list[int]) -> list[tuple[Any, ...]]:
        nonlocal next_row
        arrival_rows = [next_row + number for number, _ in enumerate(keys)]
        next_row += len(keys)
        named = {ARRIVAL_FILE: [""] * len(keys), ARRIVAL_ROW: arrival_rows}
        return [row[1:] for row in run.epoch(rows(kind, keys, c1=values, o0=values, **named))]

    assert add([one, different], [5, 7]) == [(5, "+I"), (7, "+I")]
    assert add([other, other], [6, 3]) == [(5, "-U"), (3, "+U")]


def test_top_n_retracts_the_row_with_the_same_sign_of_zero() -> None:
    run = Harness(UpdatingTopN(Ranking((S,), (Ordering(L),), (S, D), 2), retracts=True))

    def add(values: list[float], op: str) -> list[tuple[Any, ...]]:
        named = {OP: [op] * len(values), ARRIVAL_FILE: [""] * len(values)}
        table = rows(S, ["a"] * len(values), c1=values, o0=[1] * len(values), **named)
        return run.epoch(table.append_column(ARRIVAL_ROW, pa.array(range(len(values)))))

    add([0.0, -0.0], "+I")
    assert repr(add([0.0], "-D")) == "[('a', 0.0, '-D')]"


@pytest.mark.parametrize("kind, one, other, different", EQUAL, ids=IDS[: len(EQUAL)])
def test_interval_join_takes_equal_keys_as_one(
    kind: Any, one: Any, other: Any, different: Any
) -> None:
    condition = JoinCondition((kind,), (False,), -5, 5)
    run = Harness(IntervalJoin(condition, ((kind, S), (kind, S)), "LEFT"), ports=2)
    assert run.epoch(rows(kind, [one, different], c1=["a", "b"]), None, watermark_us=0) == []
    assert [(row[1], row[3]) for row in run.epoch(None, rows(kind, [other], c1=["r"]))] == [
        ("a", "r")
    ]
    unmatched = [(row[1], row[3]) for row in run.epoch(watermark_us=END_OF_INPUT_US)]
    assert unmatched == [("b", None)]


@pytest.mark.parametrize("kind, one, other, different", EQUAL, ids=IDS[: len(EQUAL)])
@pytest.mark.parametrize("ttl_us", [None, 1_000_000])
def test_regular_join_takes_equal_keys_as_one(
    kind: Any, one: Any, other: Any, different: Any, ttl_us: int | None
) -> None:
    join = RegularJoin(
        JoinCondition((kind,), (False,)), ((kind, S), (kind, S)), "INNER", True, None, ttl_us
    )
    run = Harness(join, ports=2)

    def side(key: Any, text: str, weight: int) -> pa.Table:
        return rows(kind, [key], c1=[text], **{WEIGHT: [weight]})

    assert run.epoch(side(one, "l", 1), side(different, "x", 1)) == []
    pairs = run.epoch(None, side(other, "r", 1))
    assert [(row[1], row[3], row[4]) for row in pairs] == [("l", "r", "+I")]
    retracted = run.epoch(side(one, "l", -1), None)
    assert [(row[1], row[3], row[4]) for row in retracted] == [("l", "r", "-D")]


# Small merges

MERGE_SCHEMA = pa.schema([("pane", L), ("hash", L), ("k0", L), ("rows", L), ("top", L)])
MERGE_KEYS = ["pane", "k0"]
MERGES = [("hash", "min"), ("rows", "sum"), ("top", "max")]
NUMBERS = st.integers(-(2**63), 2**63 - 1)
MERGE_ROWS = st.tuples(st.sampled_from([0, 60]), NUMBERS, st.integers(-2, 2), NUMBERS, NUMBERS)


def small_merge() -> SmallMerge:
    plan = plan_small_merge(MERGE_SCHEMA, MERGE_KEYS, MERGES)
    assert plan is not None
    return plan


def merge_table(rows: list[tuple[int | None, ...]]) -> pa.Table:
    columns = [pa.array(column, L) for column in zip(*rows, strict=True)]
    return pa.table(columns, schema=MERGE_SCHEMA)


@settings(deadline=None)
@given(st.lists(st.lists(MERGE_ROWS, min_size=1, max_size=12), min_size=1, max_size=3))
def test_small_merge_equals_arrow_in_rows_and_order(parts: list[list[tuple[int, ...]]]) -> None:
    """Sums that overflow wrap around in the same way."""
    table = pa.concat_tables([merge_table(rows) for rows in parts])
    merged = small_merge().merge(table)
    assert merged is not None
    assert merged.equals(merge_rows(table, MERGE_KEYS, MERGES).select(MERGE_SCHEMA.names))


def test_small_merge_leaves_nulls_many_rows_and_other_types_to_arrow() -> None:
    row = (0, 1, 2, 3, 4)
    assert small_merge().merge(merge_table([row, (0, 1, 2, None, 4)])) is None
    assert small_merge().merge(merge_table([row] * (MAX_SMALL_ROWS + 1))) is None
    with_text = pa.schema([("k0", S), ("rows", L)])
    assert plan_small_merge(with_text, ["k0"], [("rows", "sum")]) is None
    assert plan_small_merge(MERGE_SCHEMA, MERGE_KEYS, [*MERGES[:2], ("top", "list")]) is None
