"""Updating ASOF joins: after every epoch the materialized changelog equals DuckDB's ASOF join."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from tests.operators.harness import D, L, S, hash_of, state_limits
from tests.operators.join_harness import JoinHarness, batch_query, split_at
from tidegate.columns import ARRIVAL_FILE, ARRIVAL_ROW, HASH, WEIGHT
from tidegate.errors import TidegateError
from tidegate.operators.join.asof import BACKWARD, FORWARD, NEAREST, AsofBounds
from tidegate.operators.join.asof_updating import VALUE, UpdatingAsofJoin
from tidegate.operators.kernels.join_condition import JoinCondition
from tidegate.operators.watermark import END_OF_INPUT_US

EXAMPLES = int(os.environ.get("TIDEGATE_EXAMPLES", "200"))
SEED = int(os.environ.get("TIDEGATE_SEED", "20261115"))

# A side, a key, a value, a number that identifies the row, and a weight.
Change = tuple[int, str | None, Any, int, int]


def make_join(
    bounds: AsofBounds, how: str, value: pa.DataType = L, **options: Any
) -> UpdatingAsofJoin:
    condition = JoinCondition((S,), (False,))
    columns = ((S, value, L), (S, value, L))
    return UpdatingAsofJoin(condition, bounds, value, columns, how, **options)


class Harness(JoinHarness):
    """Rows arrive in the order in which they are passed."""

    join: UpdatingAsofJoin

    def __init__(self, join: UpdatingAsofJoin) -> None:
        super().__init__(join, key_groups=1)
        self.arrived = 0

    def table(self, changes: Sequence[Change]) -> pa.Table:
        keys = [change[1] for change in changes]
        values = pa.array([change[2] for change in changes], self.join.value)
        first, self.arrived = self.arrived, self.arrived + len(changes)
        return pa.table(
            {
                HASH: pa.array([hash_of((key,)) for key in keys], L),
                VALUE: values,
                "k0": pa.array(keys, S),
                "c0": pa.array(keys, S),
                "c1": values,
                "c2": pa.array([change[3] for change in changes], L),
                WEIGHT: pa.array([change[4] for change in changes], L),
                ARRIVAL_FILE: pa.array([""] * len(changes), S),
                ARRIVAL_ROW: pa.array(range(first, self.arrived), L),
            }
        )

    def epoch(
        self, changes: Sequence[Change], watermark_us: int | None = None, now_us: int = 1
    ) -> list[tuple[Any, ...]]:
        tables = [self.table([c for c in changes if c[0] == port]) for port in (0, 1)]
        return self.step(tables, (watermark_us, watermark_us), now_us)


GE, LE = AsofBounds(BACKWARD, 0, None), AsofBounds(FORWARD, None, 0)


def test_emits_a_retraction_pair_when_the_match_changes() -> None:
    run = Harness(make_join(GE, "LEFT"))
    assert run.epoch([(0, "a", 5, 1, 1)]) == [("a", 5, 1, None, None, None, "+I")]
    run.restart()
    assert run.epoch([(1, "a", 3, 2, 1)]) == [
        ("a", 5, 1, None, None, None, "-D"),
        ("a", 5, 1, "a", 3, 2, "+I"),
    ]
    assert run.epoch([(1, "a", 1, 3, 1), (1, "b", 5, 4, 1)]) == []
    assert run.epoch([(1, "a", 3, 2, -1)]) == [
        ("a", 5, 1, "a", 3, 2, "-D"),
        ("a", 5, 1, "a", 1, 3, "+I"),
    ]


def test_counts_retractions_of_unknown_rows() -> None:
    run = Harness(make_join(GE, "LEFT"))
    assert run.epoch([(0, "a", 5, 1, 1), (1, "a", 3, 2, -1)]) == [
        ("a", 5, 1, None, None, None, "+I")
    ]
    assert run.total("unknown_retractions") == 1


def test_last_arrival_matches_among_equal_values() -> None:
    run = Harness(make_join(LE, "INNER"))
    run.epoch([(0, "a", 5, 1, 1), (1, "a", 7, 1, 1), (1, "a", 7, 2, 1), (1, "a", 7, 3, 1)])
    assert run.epoch([(1, "a", 7, 3, -1)]) == [
        ("a", 5, 1, "a", 7, 3, "-D"),
        ("a", 5, 1, "a", 7, 2, "+I"),
    ]


def test_null_matches_nothing() -> None:
    rows: list[Change] = [
        (0, "a", None, 1, 1),
        (0, None, 5, 2, 1),
        (1, "a", None, 3, 1),
        (1, None, 5, 4, 1),
    ]
    assert Harness(make_join(GE, "INNER")).epoch(rows) == []
    outer = Harness(make_join(GE, "LEFT")).epoch(rows)
    assert {row[3:] for row in outer} == {(None, None, None, "+I")}


def test_bounded_inputs_emit_their_join_once_at_the_end() -> None:
    run = Harness(make_join(GE, "LEFT", at_end=True, with_op=False))
    assert run.epoch([(0, "a", 5, 1, 1), (0, "a", 5, 1, 1)], 3) == []
    assert run.epoch([(1, "a", 3, 2, 1), (1, "a", 4, 3, 1)], 3) == []
    assert run.epoch([(1, "a", 4, 3, -1)], END_OF_INPUT_US) == [("a", 5, 1, "a", 3, 2)] * 2
    assert run.epoch([], END_OF_INPUT_US) == []


def test_time_to_live_drops_a_key() -> None:
    run = Harness(make_join(GE, "LEFT", ttl_us=10))
    run.epoch([(0, "a", 5, 1, 1)], now_us=1)
    assert run.epoch([(1, "a", 3, 2, 1)], now_us=11) == []
    assert run.epoch([(0, "a", 5, 3, 1)], now_us=15) == [("a", 5, 3, "a", 3, 2, "+I")]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.string(), ("a", "b", "c")),
        (pa.decimal128(38, 2), (1, 2, 3)),
        (pa.date32(), (1, 2, 3)),
        (pa.float64(), (-1.0, 0.0, float("nan"))),
        (pa.int64(), (-(2**63), 0, 2**63 - 1)),
    ],
)
def test_matches_values_of_any_type_with_an_order(
    kind: pa.DataType, values: tuple[Any, ...]
) -> None:
    run = Harness(make_join(GE, "INNER", kind))
    rows: list[Change] = [(0, "a", value, index, 1) for index, value in enumerate(values)]
    rows += [(1, "a", value, index, 1) for index, value in enumerate(values)]
    result = run.epoch(rows)
    assert sorted((row[2], row[5]) for row in result) == [(0, 0), (1, 1), (2, 2)]


def test_rejects_types_without_a_distance_or_an_order() -> None:
    with pytest.raises(TidegateError, match="an ASOF join with a distance"):
        make_join(AsofBounds(NEAREST, None, None), "LEFT", S)
    with pytest.raises(TidegateError, match="not supported"):
        make_join(GE, "LEFT", pa.list_(L))


def test_distance_of_large_numbers_does_not_overflow() -> None:
    run = Harness(make_join(AsofBounds(NEAREST, None, None), "INNER"))
    rows = run.epoch([(0, "a", 2**62, 1, 1), (1, "a", -(2**63), 2, 1), (1, "a", 2**63 - 1, 3, 1)])
    assert [row[5] for row in rows] == [3]


SIGNS = {
    ">=": AsofBounds(BACKWARD, 0, None),
    ">": AsofBounds(BACKWARD, 0, None, lower_open=True),
    "<=": AsofBounds(FORWARD, None, 0),
    "<": AsofBounds(FORWARD, None, 0, upper_open=True),
}


@st.composite
def changelogs(draw: st.DrawFn) -> list[Change]:
    """Draw rows and retractions of existing rows; right values are unique per key."""
    changes: list[Change] = []
    existing: list[Change] = []
    for number in range(draw(st.integers(0, 30))):
        if existing and draw(st.integers(0, 3)) == 0:
            retracted = existing.pop(draw(st.integers(0, len(existing) - 1)))
            changes.append((*retracted[:4], -1))
            continue
        side, key = draw(st.sampled_from([0, 1])), draw(st.sampled_from(["a", "b", None]))
        value = draw(st.one_of(st.none(), st.integers(-6, 6)))
        if side == 1 and any(change[:3] == (side, key, value) for change in existing):
            continue
        change = (side, key, value, number, 1)
        existing.append(change)
        changes.append(change)
    return changes


@seed(SEED)
@settings(deadline=None, max_examples=EXAMPLES, database=None)
@given(
    changelogs(),
    st.lists(st.integers(0, 30), max_size=8),
    st.sampled_from(sorted(SIGNS)),
    st.sampled_from(["INNER", "LEFT"]),
    st.sampled_from([L, D]),
    st.booleans(),
)
def test_equals_the_asof_join_of_duckdb_after_every_epoch(
    changes: list[Change], cuts: list[int], sign: str, how: str, kind: pa.DataType, small: bool
) -> None:
    run = Harness(make_join(SIGNS[sign], how, kind))
    sql = f"SELECT l.*, r.* FROM l ASOF {how} JOIN r ON l.k = r.k AND l.t {sign} r.t"
    result: Counter[tuple[Any, ...]] = Counter()
    rows: Counter[tuple[Any, ...]] = Counter()
    with state_limits(small):
        for epoch in split_at(changes, cuts):
            for *row, op in run.epoch(epoch):
                result[tuple(row)] += 1 if op == "+I" else -1
            assert min(result.values(), default=0) >= 0
            for change in epoch:
                rows[change[:4]] += change[4]
            run.restart()
            current = list((+rows).elements())
            sides = [[row[1:] for row in current if row[0] == side] for side in (0, 1)]
            assert +result == batch_query(sides, sql, kind)
    assert run.total("unknown_retractions") == 0
