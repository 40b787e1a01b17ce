"""−0.0, 0.0 and NaN are one key in every operator, and so are nested values that are equal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.operators.harness import D, L, Query, S, rows_of
from tidegate.columns import ARRIVAL_FILE, ARRIVAL_ROW, HASH, OP, PANE, WEIGHT
from tidegate.operators.aggregate.groups import Panes
from tidegate.operators.join.interval import IntervalJoin
from tidegate.operators.join.regular import RegularJoin
from tidegate.operators.kernels.keys import (
    canonicalize,
    find_rows,
    group_ids,
    hash_rows,
    is_comparable,
    is_groupable,
    merge_rows,
    rows_identical,
)
from tidegate.operators.kernels.matching import JoinCondition
from tidegate.operators.kernels.ordering import Ordering
from tidegate.operators.kernels.weighted_rows import diff_results
from tidegate.operators.normalize import NormalizeOperator
from tidegate.operators.operator import Operator
from tidegate.operators.runner import Runner
from tidegate.operators.top_n.updating import UpdatingTopN
from tidegate.operators.top_n.window import Ranking
from tidegate.operators.watermark import END_US, Origin, WatermarkUpdate
from tidegate.state.memory import MemoryStore

NAN = float("nan")
STRUCT = pa.struct([("x", D), ("y", pa.list_(D))])
MAP = pa.map_(S, D)
# A type, two values that are equal, and one that is not.
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
    """An operator in one key group, restarted after every epoch; keys are hashed as they come."""

    def __init__(self, operator: Operator, ports: int = 1) -> None:
        self.operator, self.ports = operator, ports
        self.store = MemoryStore()

    def epoch(self, *tables: pa.Table | None, mark: int | None = None) -> list[tuple[Any, ...]]:
        origins = tuple((Origin(port),) for port in range(self.ports))
        updates = (
            [WatermarkUpdate(port, 0, mark) for port in range(self.ports)]
            if mark is not None
            else []
        )
        inputs = [
            [] if table is None else [self.operator.pre_aggregate(port, _hashed(table))]
            for port, table in enumerate(tables)
        ]
        inputs += [[] for _ in range(self.ports - len(inputs))]
        self.store = MemoryStore.restore(self.store.snapshot())
        result = Runner(1, self.operator, origins).run(
            self.store.backend(1, 0), inputs, updates, 1_000, key_group=0
        )
        return [row for table in result.output.main for row in rows_of(table)]


def _hashed(table: pa.Table) -> pa.Table:
    return table.append_column(HASH, pa.array(hash_rows([table.column("k0")], table.num_rows)))


def rows(kind: pa.DataType, keys: Sequence[Any], **columns: Sequence[Any]) -> pa.Table:
    key = pa.array(keys, kind)
    table = {PANE: pa.array([0] * len(keys), L), "k0": key, "c0": key}
    table |= {name: pa.array(values) for name, values in columns.items()}
    return pa.table(table)


# What is equal, and what is identical


def test_canonical_shows_zero_nan_and_sorted_maps() -> None:
    kind = pa.struct([("m", MAP), ("v", pa.list_(D))])
    values = [None, {"m": [("b", -0.0), ("a", None)], "v": None}, {"m": None, "v": [-0.0, None]}]
    array = pa.array([*values, *values], kind)
    expected = [
        None,
        {"m": [("a", None), ("b", 0.0)], "v": None},
        {"m": None, "v": [0.0, None]},
    ]
    for column in (array.slice(3), pa.chunked_array([array.slice(3, 1), array.slice(4)])):
        shown = canonicalize(column)
        assert shown.type == kind
        assert repr(shown.to_pylist()) == repr(expected)


@pytest.mark.parametrize("kind, one, other, apart", [*EQUAL, *MAPS], ids=IDS)
def test_equal_values_are_one_group(kind: Any, one: Any, other: Any, apart: Any) -> None:
    table = pa.table(
        {"k": canonicalize(pa.array([one, None, apart, other, None], kind)), "n": range(5)}
    )
    ids, count = group_ids(table, ["k"])
    assert ids[0] == ids[3] and count == (2 if apart is None else 3)
    merged = merge_rows(table, ["k"], [("n", "sum")])
    assert merged.schema.field("k").type == kind and merged.column_names == ["k", "n"]
    assert sorted(merged["n"].to_pylist()) == ([3, 7] if apart is None else [2, 3, 5])
    assert find_rows(table.slice(0, 1), table, ["k"]).tolist() == [0, -1, -1, 0, -1]
    assert len({*hash_rows([pa.array([one, other], kind)], 2).tolist()}) == 1


def test_a_row_is_identical_only_with_the_signs_of_its_zeros() -> None:
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


def same(value: Any) -> Any:
    """Equal values as Python values that are equal."""
    if isinstance(value, float):
        return "nan" if value != value else value + 0.0
    if isinstance(value, dict):
        return tuple(same(part) for _, part in sorted(value.items()))
    if isinstance(value, list):
        parts = [same(part) for part in value]
        is_map = bool(value) and isinstance(value[0], tuple)
        return ("list", *(sorted(parts, key=repr) if is_map else parts))
    return tuple(same(part) for part in value) if isinstance(value, tuple) else value


@settings(deadline=None, max_examples=150)
@given(st.lists(VALUES, max_size=12))
def test_groups_and_hashes_of_nested_values(values: list[Any]) -> None:
    kind = pa.struct([("m", pa.map_(S, pa.list_(D))), ("x", D)])
    column = pa.array(values, kind)
    ids, count = group_ids(pa.table({"k": canonicalize(column)}), ["k"])
    expected = [repr(same(value)) for value in values]
    assert count == len(set(expected))
    assert len(set(zip(ids.tolist(), expected, strict=True))) == count
    assert len(set(zip(hash_rows([column], len(values)).tolist(), expected, strict=True))) == count


def test_what_can_be_a_key() -> None:
    odd = pa.map_(STRUCT, L)
    assert (
        is_groupable(STRUCT)
        and is_groupable(MAP)
        and is_groupable(pa.list_(MAP))
        and is_groupable(pa.null())
    )
    assert not is_groupable(odd) and not is_groupable(pa.struct([("m", odd)]))
    assert is_comparable(STRUCT) and not is_comparable(MAP) and not is_comparable(pa.list_(MAP))


# Operators


@pytest.mark.parametrize("kind, one, other, apart", [*EQUAL, *MAPS], ids=IDS)
@pytest.mark.parametrize("ttl_us", [None, 1_000_000])
def test_group_by(kind: Any, one: Any, other: Any, apart: Any, ttl_us: int | None) -> None:
    run = Harness(Query(keys=(kind,), mode="early", ttl_us=ttl_us).operator())
    assert [row[1:] for row in run.epoch(rows(kind, [one, apart]))] == [(1, "+I"), (1, "+I")]
    changed = run.epoch(rows(kind, [other]))
    assert [row[1:] for row in changed] == [(1, "-U"), (2, "+U")]
    assert "-0.0" not in repr(changed)


@pytest.mark.parametrize("kind, one, other, apart", EQUAL, ids=IDS[: len(EQUAL)])
def test_distinct_over_changes(kind: Any, one: Any, other: Any, apart: Any) -> None:
    query = Query(keys=(kind,), calls=(), arguments=(), filters=(), mode="early", retracts=True)
    run = Harness(query.operator())

    def ops(keys: list[Any], weights: list[int]) -> list[str]:
        return [row[-1] for row in run.epoch(rows(kind, keys, **{WEIGHT: weights}))]

    assert ops([one], [1]) == ["+I"]
    assert ops([other], [1]) == []
    assert ops([one, apart], [-1, 1]) == ["+I"]
    assert ops([other], [-1]) == ["-D"]


@pytest.mark.parametrize("kind, one, other, apart", EQUAL, ids=IDS[: len(EQUAL)])
@pytest.mark.parametrize("gap_us", [None, 10])
def test_windows(kind: Any, one: Any, other: Any, apart: Any, gap_us: int | None) -> None:
    panes = Panes("TUMBLE", 100, 100) if gap_us is None else None
    run = Harness(Query(keys=(kind,), panes=panes, gap_us=gap_us).operator())
    assert run.epoch(rows(kind, [one, apart]), mark=0) == []
    assert run.epoch(rows(kind, [other]), mark=0) == []
    assert sorted(row[-1] for row in run.epoch(mark=END_US)) == [1, 2]


@pytest.mark.parametrize("kind, one, other, apart", EQUAL, ids=IDS[: len(EQUAL)])
def test_a_primary_key(kind: Any, one: Any, other: Any, apart: Any) -> None:
    run = Harness(NormalizeOperator((kind,), (kind, S)))
    place = 0

    def upsert(key: Any, value: str, op: str) -> list[tuple[Any, ...]]:
        nonlocal place
        place += 1
        table = rows(kind, [key], c1=[value], **{OP: [op], ARRIVAL_FILE: [""]})
        return run.epoch(table.append_column(ARRIVAL_ROW, pa.array([place])))

    assert [row[1:] for row in upsert(one, "a", "+U")] == [("a", "+I")]
    assert [row[1:] for row in upsert(apart, "z", "+U")] == [("z", "+I")]
    assert [row[1:] for row in upsert(other, "b", "+U")] == [("a", "-U"), ("b", "+U")]
    assert [row[1:] for row in upsert(one, "", "-D")] == [("b", "-D")]


def test_a_zero_that_changes_its_sign_is_a_change() -> None:
    """Else what is retracted later would not be what was sent."""
    before = pa.table({"k": ["a", "b"], "v": [0.0, NAN]})
    after = pa.table({"k": ["a", "b"], "v": [-0.0, -NAN]})
    told = diff_results(before, after, ["k"])
    assert repr(rows_of(told)) == "[('a', 0.0, '-U'), ('a', -0.0, '+U')]"


@pytest.mark.parametrize("kind, one, other, apart", EQUAL, ids=IDS[: len(EQUAL)])
@pytest.mark.parametrize("ttl_us", [None, 1_000_000])
def test_partition_by(kind: Any, one: Any, other: Any, apart: Any, ttl_us: int | None) -> None:
    run = Harness(UpdatingTopN(Ranking((kind,), (Ordering(L),), (kind, L), 1), ttl_us=ttl_us))
    place = 0

    def add(keys: list[Any], values: list[int]) -> list[tuple[Any, ...]]:
        nonlocal place
        places = [place + row for row, _ in enumerate(keys)]
        place += len(keys)
        named = {ARRIVAL_FILE: [""] * len(keys), ARRIVAL_ROW: places}
        return [row[1:] for row in run.epoch(rows(kind, keys, c1=values, o0=values, **named))]

    assert add([one, apart], [5, 7]) == [(5, "+I"), (7, "+I")]
    assert add([other, other], [6, 3]) == [(5, "-U"), (3, "+U")]


def test_of_rows_that_differ_in_the_sign_of_a_zero_the_retracted_one_goes() -> None:
    run = Harness(UpdatingTopN(Ranking((S,), (Ordering(L),), (S, D), 2), retracts=True))

    def add(values: list[float], op: str) -> list[tuple[Any, ...]]:
        named = {OP: [op] * len(values), ARRIVAL_FILE: [""] * len(values)}
        table = rows(S, ["a"] * len(values), c1=values, o0=[1] * len(values), **named)
        return run.epoch(table.append_column(ARRIVAL_ROW, pa.array(range(len(values)))))

    add([0.0, -0.0], "+I")
    assert repr(add([0.0], "-D")) == "[('a', 0.0, '-D')]"


@pytest.mark.parametrize("kind, one, other, apart", EQUAL, ids=IDS[: len(EQUAL)])
def test_a_join_by_time(kind: Any, one: Any, other: Any, apart: Any) -> None:
    matching = JoinCondition((kind,), (False,), -5, 5)
    run = Harness(IntervalJoin(matching, ((kind, S), (kind, S)), "LEFT"), ports=2)
    assert run.epoch(rows(kind, [one, apart], c1=["a", "b"]), None, mark=0) == []
    assert [(row[1], row[3]) for row in run.epoch(None, rows(kind, [other], c1=["r"]))] == [
        ("a", "r")
    ]
    lone = [(row[1], row[3]) for row in run.epoch(mark=END_US)]
    assert lone == [("b", None)]


@pytest.mark.parametrize("kind, one, other, apart", EQUAL, ids=IDS[: len(EQUAL)])
@pytest.mark.parametrize("ttl_us", [None, 1_000_000])
def test_a_join_of_changes(kind: Any, one: Any, other: Any, apart: Any, ttl_us: int | None) -> None:
    join = RegularJoin(
        JoinCondition((kind,), (False,)), ((kind, S), (kind, S)), "INNER", True, None, ttl_us
    )
    run = Harness(join, ports=2)

    def side(key: Any, text: str, weight: int) -> pa.Table:
        return rows(kind, [key], c1=[text], **{WEIGHT: [weight]})

    assert run.epoch(side(one, "l", 1), side(apart, "x", 1)) == []
    met = run.epoch(None, side(other, "r", 1))
    assert [(row[1], row[3], row[4]) for row in met] == [("l", "r", "+I")]
    gone = run.epoch(side(one, "l", -1), None)
    assert [(row[1], row[3], row[4]) for row in gone] == [("l", "r", "-D")]
