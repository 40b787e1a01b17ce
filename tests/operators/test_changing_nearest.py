"""ASOF joins by any value, as they change: against DuckDB in batch after every epoch."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from tests.operators.harness import D, L, S, hash_of, rows_of, state_limits
from tidegate.columns import ARRIVAL_FILE, ARRIVAL_ROW, HASH, WEIGHT
from tidegate.errors import TidegateError
from tidegate.operators.join.asof import BACKWARD, FORWARD, NEAREST, AsofBounds
from tidegate.operators.join.asof_updating import VALUE, UpdatingAsofJoin
from tidegate.operators.kernels.matching import JoinCondition
from tidegate.operators.runner import Runner
from tidegate.operators.watermark import END_US, Origin, WatermarkUpdate
from tidegate.state.memory import MemoryStore

EXAMPLES = int(os.environ.get("TIDEGATE_EXAMPLES", "200"))
SEED = int(os.environ.get("TIDEGATE_SEED", "20261115"))

# A side, a key, a value, a number that tells rows apart, and a weight.
Change = tuple[int, str | None, Any, int, int]


def make(nearest: AsofBounds, how: str, value: pa.DataType = L, **more: Any) -> UpdatingAsofJoin:
    matching = JoinCondition((S,), (False,))
    return UpdatingAsofJoin(matching, nearest, value, ((S, value, L), (S, value, L)), how, **more)


@dataclass
class Harness:
    join: UpdatingAsofJoin
    store: MemoryStore = field(default_factory=MemoryStore)
    arrived: int = 0
    unknown: int = 0

    def table(self, rows: list[Change]) -> pa.Table:
        keys = [row[1] for row in rows]
        values = pa.array([row[2] for row in rows], self.join.value)
        first, self.arrived = self.arrived, self.arrived + len(rows)
        return pa.table(
            {
                HASH: pa.array([hash_of((key,)) for key in keys], L),
                VALUE: values,
                "k0": pa.array(keys, S),
                "c0": pa.array(keys, S),
                "c1": values,
                "c2": pa.array([row[3] for row in rows], L),
                WEIGHT: pa.array([row[4] for row in rows], L),
                ARRIVAL_FILE: pa.array([""] * len(rows), S),
                ARRIVAL_ROW: pa.array(range(first, self.arrived), L),
            }
        )

    def epoch(self, rows: list[Change], mark: int | None = None, now: int = 1) -> list[Any]:
        runner = Runner(9, self.join, ((Origin(0),), (Origin(1),)))
        parts = [self.table([row for row in rows if row[0] == port]) for port in (0, 1)]
        inputs = [[self.join.pre_aggregate(port, part)] for port, part in enumerate(parts) if True]
        updates = [WatermarkUpdate(port, 0, mark) for port in (0, 1) if mark is not None]
        result = runner.run(self.store.backend(1, 0), inputs, updates, now)
        self.unknown = result.report.get("unknown", 0)
        out = []
        for table in result.output.main:
            assert table.schema.equals(self.join.output)
            out += rows_of(table)
        return out

    def restart(self) -> None:
        self.store = MemoryStore.restore(self.store.snapshot())


GE, LE = AsofBounds(BACKWARD, 0, None), AsofBounds(FORWARD, None, 0)


def test_a_nearer_row_corrects_what_was_said() -> None:
    run = Harness(make(GE, "LEFT"))
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
    run.epoch([(1, "a", 3, 2, -1)])
    assert run.unknown == 1


def test_of_equal_values_the_last_that_came_counts() -> None:
    run = Harness(make(LE, "INNER"))
    run.epoch([(0, "a", 5, 1, 1), (1, "a", 7, 1, 1), (1, "a", 7, 2, 1), (1, "a", 7, 3, 1)])
    assert run.epoch([(1, "a", 7, 3, -1)]) == [
        ("a", 5, 1, "a", 7, 3, "-D"),
        ("a", 5, 1, "a", 7, 2, "+I"),
    ]


def test_null_is_near_to_nothing() -> None:
    rows: list[Change] = [
        (0, "a", None, 1, 1),
        (0, None, 5, 2, 1),
        (1, "a", None, 3, 1),
        (1, None, 5, 4, 1),
    ]
    assert Harness(make(GE, "INNER")).epoch(rows) == []
    found = Harness(make(GE, "LEFT")).epoch(rows)
    assert {row[3:] for row in found} == {(None, None, None, "+I")}


def test_bounded_inputs_are_joined_once_at_their_end() -> None:
    run = Harness(make(GE, "LEFT", at_end=True, with_op=False))
    assert run.epoch([(0, "a", 5, 1, 1), (0, "a", 5, 1, 1)], 3) == []
    assert run.epoch([(1, "a", 3, 2, 1), (1, "a", 4, 3, 1)], 3) == []
    assert run.epoch([(1, "a", 4, 3, -1)], END_US) == [("a", 5, 1, "a", 3, 2)] * 2
    assert run.epoch([], END_US) == []


def test_a_key_is_forgotten_after_its_time_to_live() -> None:
    run = Harness(make(GE, "LEFT", ttl_us=10))
    run.epoch([(0, "a", 5, 1, 1)], now=1)
    assert run.epoch([(1, "a", 3, 2, 1)], now=11) == []
    assert run.epoch([(0, "a", 5, 3, 1)], now=15) == [("a", 5, 3, "a", 3, 2, "+I")]


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
def test_any_value_that_has_an_order_will_do(kind: pa.DataType, values: tuple[Any, ...]) -> None:
    run = Harness(make(GE, "INNER", kind))
    rows: list[Change] = [(0, "a", value, place, 1) for place, value in enumerate(values)]
    rows += [(1, "a", value, place, 1) for place, value in enumerate(values)]
    found = run.epoch(rows)
    assert sorted((row[2], row[5]) for row in found) == [(0, 0), (1, 1), (2, 2)]


def test_what_has_no_distance_has_no_nearest() -> None:
    with pytest.raises(TidegateError, match="an ASOF join with a distance"):
        make(AsofBounds(NEAREST, None, None), "LEFT", S)
    with pytest.raises(TidegateError, match="not supported"):
        make(GE, "LEFT", pa.list_(L))


def test_the_distance_of_large_numbers_does_not_run_over() -> None:
    run = Harness(make(AsofBounds(NEAREST, None, None), "INNER"))
    out = run.epoch([(0, "a", 2**62, 1, 1), (1, "a", -(2**63), 2, 1), (1, "a", 2**63 - 1, 3, 1)])
    assert [row[5] for row in out] == [3]


_connection = duckdb.connect(config={"threads": 1})
SIGNS = {
    ">=": AsofBounds(BACKWARD, 0, None),
    ">": AsofBounds(BACKWARD, 0, None, lower_open=True),
    "<=": AsofBounds(FORWARD, None, 0),
    "<": AsofBounds(FORWARD, None, 0, upper_open=True),
}


@st.composite
def changes(draw: st.DrawFn) -> list[Change]:
    """Rows that are added and some of them retracted; of a key every value of the right once."""
    made: list[Change] = []
    there: list[Change] = []
    for number in range(draw(st.integers(0, 30))):
        if there and draw(st.integers(0, 3)) == 0:
            gone = there.pop(draw(st.integers(0, len(there) - 1)))
            made.append((*gone[:4], -1))
            continue
        side, key = draw(st.sampled_from([0, 1])), draw(st.sampled_from(["a", "b", None]))
        value = draw(st.one_of(st.none(), st.integers(-6, 6)))
        if side == 1 and any(row[:3] == (side, key, value) for row in there):
            continue
        row = (side, key, value, number, 1)
        there.append(row)
        made.append(row)
    return made


@seed(SEED)
@settings(deadline=None, max_examples=EXAMPLES, database=None)
@given(
    changes(),
    st.lists(st.integers(0, 30), max_size=8),
    st.sampled_from(sorted(SIGNS)),
    st.sampled_from(["INNER", "LEFT"]),
    st.sampled_from([L, D]),
    st.booleans(),
)
def test_after_every_epoch_it_equals_duckdb(
    rows: list[Change], cuts: list[int], sign: str, how: str, kind: pa.DataType, small: bool
) -> None:
    run = Harness(make(SIGNS[sign], how, kind))
    result: Counter[tuple[Any, ...]] = Counter()
    standing: Counter[tuple[Any, ...]] = Counter()
    places = [0, *sorted(cut for cut in cuts if cut < len(rows)), len(rows)]
    with state_limits(small):
        for begin, end in itertools.pairwise(places):
            for *row, op in run.epoch(rows[begin:end]):
                result[tuple(row)] += 1 if op == "+I" else -1
            assert min(result.values(), default=0) >= 0
            for row in rows[begin:end]:
                standing[row[:4]] += row[4]
            run.restart()
            assert +result == _duckdb(list((+standing).elements()), sign, how, kind)
    assert run.unknown == 0


def _duckdb(rows: list[tuple[Any, ...]], sign: str, how: str, kind: pa.DataType) -> Counter[Any]:
    for name, side in (("l", 0), ("r", 1)):
        own = [row for row in rows if row[0] == side]
        columns = [pa.array([row[i + 1] for row in own], t) for i, t in enumerate((S, kind, L))]
        _connection.register(name, pa.table(columns, names=["k", "t", "n"]))
    sql = f"SELECT l.*, r.* FROM l ASOF {how} JOIN r ON l.k = r.k AND l.t {sign} r.t"
    return Counter(_connection.execute(sql).fetchall())
