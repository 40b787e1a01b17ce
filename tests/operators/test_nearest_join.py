"""Temporal and ASOF joins by event time: against a model and DuckDB, however rows come in."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from tests.operators.harness import D, L, S, hash_of, rows_of, state_limits
from tests.operators.nearest_model import Fact, Model, Version
from tidegate.columns import ARRIVAL_FILE, ARRIVAL_ROW, HASH, PANE, WEIGHT
from tidegate.operators.join.asof import ALIVE, BACKWARD, FORWARD, NEAREST, AsofBounds, AsofJoin
from tidegate.operators.kernels import keys as hashing
from tidegate.operators.kernels.matching import JoinCondition
from tidegate.operators.late_rows import LateRows
from tidegate.operators.operator import Tables
from tidegate.operators.runner import Runner
from tidegate.operators.watermark import END_US, Origin, WatermarkUpdate
from tidegate.state.memory import MemoryStore

EXAMPLES = int(os.environ.get("TIDEGATE_EXAMPLES", "200"))
SEED = int(os.environ.get("TIDEGATE_SEED", "20261115"))
AS_OF = AsofBounds(BACKWARD, 0, None)


def make(nearest: AsofBounds, how: str = "LEFT", **more: Any) -> AsofJoin:
    more = {"versions": True, **more}
    return AsofJoin(JoinCondition((S,), (False,)), nearest, ((S, L, L), (S, L, L)), how, **more)


@dataclass
class Harness:
    """A join with its state; rows get a number each, in the order in which they arrive."""

    join: AsofJoin
    output_delay_us: int = 0
    key_groups: int = 2
    store: MemoryStore = field(default_factory=MemoryStore)
    update: WatermarkUpdate | None = None
    late: int = 0
    rows: int = 0
    late_rows: list[dict[str, Any]] = field(default_factory=list)

    def table(self, port: int, rows: Sequence[Fact | Version]) -> pa.Table:
        count = len(rows)
        keys, times = [row.key for row in rows], [row.at for row in rows]
        alive = [getattr(row, "alive", True) for row in rows]
        return pa.table(
            {
                PANE: pa.array(times, L),
                HASH: pa.array([hash_of((key,)) for key in keys], L),
                "k0": pa.array(keys, S),
                "c0": pa.array(keys, S),
                "c1": pa.array(times, L),
                "c2": pa.array([row.number for row in rows], L),
                ALIVE: pa.array(alive, pa.bool_()),
                WEIGHT: pa.array([1] * count, L),
                ARRIVAL_FILE: pa.array([""] * count, S),
                ARRIVAL_ROW: pa.array([row.number for row in rows], L),
            }
        )

    def restart(self) -> None:
        self.store = MemoryStore.restore(self.store.snapshot())

    def epoch(
        self,
        facts: Sequence[Fact],
        versions: Sequence[Version],
        marks: Sequence[int | None] = (None, None),
    ) -> list[tuple[Any, ...]]:
        tables = [self.table(0, facts), self.table(1, versions)]
        return self.step(tables, marks)

    def step(self, tables: list[pa.Table], marks: Sequence[int | None]) -> list[tuple[Any, ...]]:
        runner = Runner(9, self.join, ((Origin(0),), (Origin(1),)), False, self.output_delay_us)
        updates = [
            WatermarkUpdate(port, 0, mark) for port, mark in enumerate(marks) if mark is not None
        ]
        lifted = [
            self.join.pre_aggregate(p, table) if table.num_rows else None
            for p, table in enumerate(tables)
        ]
        given_out: list[tuple[Any, ...]] = []
        self.late = self.rows = 0
        for key_group in range(self.key_groups):
            inputs: list[list[Tables]] = [
                [] if part is None else [_cut(part, key_group, self.key_groups)] for part in lifted
            ]
            result = runner.run(self.store.backend(1, key_group), inputs, updates, None)
            for out in result.output.main:
                assert out.schema.equals(self.join.output)
                given_out += rows_of(out)
            for out in result.output.late:
                assert out.schema.equals(self.join.late)
                self.late_rows += out.to_pylist()
            self.late += result.report["late_rows"]
            self.rows += result.report["rows"]
            self.update = result.update
        return given_out


def _cut(tables: Tables, key_group: int, key_groups: int) -> Tables:
    owner = np.mod(tables[0].column(HASH).to_numpy(), key_groups)
    return (tables[0].filter(pa.array(owner == key_group)),)


def test_a_row_sees_the_version_of_its_time_once_the_watermark_has_passed_it() -> None:
    run = Harness(make(AS_OF))
    versions = [Version("a", 1, 1), Version("a", 5, 2), Version("a", 5, 3), Version("a", 9, 4)]
    assert run.epoch([Fact("a", 5, 1), Fact("b", 5, 2)], versions, (5, 5)) == []
    run.restart()
    assert Counter(run.epoch([], [], (6, 6))) == Counter(
        [("a", 5, 1, "a", 5, 3), ("b", 5, 2, None, None, None)]
    )
    assert run.epoch([Fact("a", 7, 3), Fact("a", 9, 4)], [], (20, 20)) == [
        ("a", 7, 3, "a", 5, 3),
        ("a", 9, 4, "a", 9, 4),
    ]
    assert run.rows == 1, "of what is past, the newest version"


def test_a_delete_leaves_no_version_from_its_time_on() -> None:
    versions = [Version("a", 1, 1), Version("a", 5, 2, alive=False), Version("a", 8, 3)]
    facts = [Fact("a", at, at) for at in (4, 5, 7, 8)]
    found = Harness(make(AS_OF)).epoch(facts, versions, (9, 9))
    assert [row[-1] for row in sorted(found)] == [1, None, None, 3]
    inner = Harness(make(AS_OF, "INNER")).epoch(facts, versions, (9, 9))
    assert [row[1] for row in sorted(inner)] == [4, 8]


def test_a_tombstone_is_remembered_for_versions_that_come_later() -> None:
    run = Harness(make(AS_OF))
    run.epoch([], [Version("a", 1, 1), Version("a", 5, 2, alive=False)], (10, 10))
    assert run.epoch([], [Version("a", 3, 3)], (10, 10)) == []
    assert run.late == 1
    assert run.epoch([Fact("a", 12, 1)], [], (20, 20)) == [("a", 12, 1, None, None, None)]


def test_a_late_version_counts_for_rows_that_can_still_see_it() -> None:
    run = Harness(make(AS_OF))
    run.epoch([Fact("a", 9, 1)], [Version("a", 3, 1)], (10, 10))
    assert run.epoch([Fact("a", 11, 2)], [Version("a", 7, 2)], (20, 20)) == [
        ("a", 11, 2, "a", 7, 2)
    ]
    assert run.late == 0
    run.epoch([], [Version("a", 6, 3)], (20, 20))
    assert run.late == 1, "nobody sees it behind the version of 7"


def test_late_rows_are_kept_if_asked() -> None:
    keepers = tuple(
        LateRows(f"join ({side})", pa.schema([]), (S, L, L)) for side in ("left", "right")
    )
    run = Harness(make(AS_OF, late_rows=keepers))
    run.epoch([], [Version("a", 8, 1)], (10, 10))
    run.epoch([Fact("a", 9, 1)], [Version("a", 7, 2)], (10, 10))
    shown = [tuple(row[name] for name in ("l1", "l2", "late_operator")) for row in run.late_rows]
    assert sorted(shown) == [(7, 2, "join (right)"), (9, 1, "join (left)")]


def test_a_row_that_looks_on_waits_for_a_final_row_or_the_end_of_its_reach() -> None:
    on = AsofBounds(FORWARD, -5, 0)
    run = Harness(make(on, versions=False))
    facts = [Fact("a", 3, 1), Fact("b", 3, 2), Fact(None, 3, 3)]
    assert run.epoch(facts, [Version("a", 6, 1)], (6, 6)) == [(None, 3, 3, None, None, None)]
    run.restart()
    late = [Version("a", 4, 2), Version("a", 5, 3)]
    assert run.epoch([], late, (8, 8)) == [("a", 3, 1, "a", 4, 2)]
    assert run.late == 1, "a late row counts where a row still waits for it"
    assert run.epoch([], [], (9, 9)) == [("b", 3, 2, None, None, None)]
    assert run.rows == 0


def test_the_nearest_row_may_lie_on_either_side() -> None:
    run = Harness(make(AsofBounds(NEAREST, None, None), versions=False))
    versions = [Version("a", 0, 1), Version("a", 10, 2)]
    facts = [Fact("a", 4, 1), Fact("a", 5, 2), Fact("a", 6, 3), Fact("a", 10, 4)]
    found = run.epoch(facts, versions, (11, 11))
    assert [row[-1] for row in sorted(found)] == [1, 1, 2, 2]


def test_nothing_is_kept_that_is_out_of_reach() -> None:
    run = Harness(make(AsofBounds(BACKWARD, 0, 5), versions=False))
    for at in range(0, 100, 2):
        run.epoch([], [Version(f"k{at}", at, at)], (at, at))
    assert run.rows <= 6


def test_a_row_of_the_left_that_is_retracted_in_time_never_was() -> None:
    run = Harness(make(AS_OF, retracts=True, with_op=True))
    kept, gone = Fact("a", 5, 1), Fact("a", 5, 2)
    run.step([run.table(0, [kept, kept, gone]), run.table(1, [Version("a", 1, 1)])], (5, 5))
    minus = run.table(0, [gone]).set_column(7, WEIGHT, pa.array([-1], L))
    out = run.step([minus, run.table(1, [])], (6, 6))
    assert out == [("a", 5, 1, "a", 1, 1, "+I")] * 2


def test_keys_that_are_equal_in_sql_are_one_key() -> None:
    """0.0 and −0.0 are equal, and so are all NaN."""
    join = AsofJoin(JoinCondition((D,), (False,)), AS_OF, ((D,), (D,)), "LEFT")
    store = MemoryStore()
    nan = float("nan")

    def table(keys: list[float | None], at: int) -> pa.Table:
        count = len(keys)
        columns = {
            PANE: pa.array([at] * count, L),
            HASH: pa.array([0] * count, L),
            "k0": pa.array(keys, D),
            "c0": pa.array(keys, D),
            ARRIVAL_FILE: pa.array([""] * count, S),
            ARRIVAL_ROW: pa.array(range(count), L),
        }
        made = pa.table(columns)
        hashes = hashing.hash_rows([join.pre_aggregate(0, made)[0].column("k0")], count)
        return made.set_column(1, HASH, pa.array(hashes))

    inputs = [
        [join.pre_aggregate(0, table([0.0, nan, None], 5))],
        [join.pre_aggregate(1, table([-0.0, nan, None], 1))],
    ]
    runner = Runner(9, join, ((Origin(0),), (Origin(1),)))
    result = runner.run(
        store.backend(1, 0), inputs, [WatermarkUpdate(0, 0, 9), WatermarkUpdate(1, 0, 9)], None
    )
    assert [str(row) for row in rows_of(result.output.main[0])] == [
        "(0.0, -0.0)",
        "(nan, nan)",
        "(None, None)",
    ]


BOUNDS = st.one_of(st.none(), st.integers(0, 9))


@st.composite
def asof_condition(draw: st.DrawFn) -> AsofBounds:
    direction = draw(st.sampled_from([BACKWARD, BACKWARD, FORWARD, NEAREST]))
    reach = draw(BOUNDS)
    if direction == BACKWARD:
        lower = draw(st.sampled_from([0, 0, 1, 3, -2]))
        first = draw(st.integers(0, 5)) == 0
        upper = None if reach is None or first else lower + reach
        return AsofBounds(direction, lower, upper, first=first)
    if direction == FORWARD:
        upper = draw(st.sampled_from([0, 0, -1, -3, 2]))
        return AsofBounds(direction, None if reach is None else upper - reach, upper)
    other = draw(BOUNDS)
    return AsofBounds(direction, None if reach is None else -reach, other)


ROWS = st.tuples(
    st.sampled_from([0, 1]),
    st.sampled_from(["a", "b", "é", None]),
    st.integers(-9, 9),
    st.integers(0, 4).map(bool),
)


@st.composite
def scenarios(draw: st.DrawFn) -> dict[str, Any]:
    """Rows that drift forward, cut into epochs at random, with a watermark that may be slow."""
    rows = draw(st.lists(ROWS, max_size=50))
    drift = draw(st.integers(0, 3))
    return {
        "rows": [(s, k, at + place * drift, up) for place, (s, k, at, up) in enumerate(rows)],
        "cuts": draw(st.lists(st.integers(0, 50), max_size=20)),
        "delays": draw(st.tuples(st.integers(0, 12), st.integers(0, 12))),
        "nearest": draw(asof_condition()),
        "how": draw(st.sampled_from(["INNER", "LEFT"])),
        "restart_every": draw(st.integers(0, 4)),
        "small": draw(st.booleans()),
    }


def _epochs(rows: list[Any], cuts: list[int]) -> list[list[Any]]:
    places = [0, *sorted(cut for cut in cuts if cut < len(rows)), len(rows)]
    return [rows[a:b] for a, b in itertools.pairwise(places)]


@seed(SEED)
@settings(deadline=None, max_examples=EXAMPLES, database=None)
@given(scenarios())
def test_it_does_what_the_model_does(case: dict[str, Any]) -> None:
    with state_limits(case["small"]):
        _does_what_the_model_does(case)


def _does_what_the_model_does(case: dict[str, Any]) -> None:
    nearest, versions = case["nearest"], case["nearest"].direction == BACKWARD
    bounded = nearest.lower is not None
    run = Harness(
        make(nearest, case["how"], versions=versions),
        max(0, -nearest.lower) if bounded else 0,
    )
    model = Model(nearest, case["how"])
    high: list[int | None] = [None, None]
    mark: int | None = None
    number = 0
    for count, epoch in enumerate([*_epochs(case["rows"], case["cuts"]), None]):
        facts: list[Fact] = []
        coming: list[Version] = []
        for side, key, at, alive in epoch or []:
            number += 1
            if side == 0:
                facts.append(Fact(key, at, number))
            else:
                coming.append(Version(key, at, number, alive or not versions))
        for side, rows in enumerate((facts, coming)):
            times = [row.at - case["delays"][side] for row in rows]
            high[side] = max([t for t in (*times, high[side]) if t is not None], default=None)
        high = high if epoch is not None else [END_US, END_US]
        before = mark
        if None not in high:
            mark = max(min(high), mark if mark is not None else -999)  # type: ignore[type-var]
        if case["restart_every"] and count % case["restart_every"] == 0:
            run.restart()
        promised = run.update.watermark_us if run.update is not None else None
        out = run.epoch(facts, coming, high)
        expected = model.epoch(facts, coming, before, mark)
        assert Counter(out) == Counter(_shown(pair) for pair in expected)
        assert run.late == model.late
        if promised is not None and bounded:
            # Whoever reads this downstream must not take it for late.
            assert all(row[1] >= promised for row in out)
    assert run.epoch([], [], (END_US, END_US)) == []


def _shown(pair: tuple[Fact, Version | None]) -> tuple[Any, ...]:
    fact, version = pair
    return (*fact, *(version[:3] if version is not None else (None, None, None)))


_connection = duckdb.connect(config={"threads": 1})
SIGNS = {">=": (BACKWARD, 0), ">": (BACKWARD, 1), "<=": (FORWARD, 0), "<": (FORWARD, -1)}


@seed(SEED)
@settings(deadline=None, max_examples=EXAMPLES, database=None)
@given(
    st.lists(ROWS, max_size=50),
    st.lists(st.integers(0, 50), max_size=20),
    st.sampled_from(sorted(SIGNS)),
    st.sampled_from(["INNER", "LEFT"]),
    st.integers(0, 3),
)
def test_it_equals_the_asof_join_of_duckdb(
    rows: list[tuple[int, str | None, int, bool]], cuts: list[int], sign: str, how: str, every: int
) -> None:
    """In batch, as far as nothing is late; which of equal times counts, DuckDB leaves open."""
    direction, bound = SIGNS[sign]
    backward = direction == BACKWARD
    nearest = AsofBounds(direction, bound if backward else None, None if backward else bound)
    run = Harness(make(nearest, how, versions=False))
    out: list[tuple[Any, ...]] = []
    sides: tuple[list[Fact], list[Version]] = ([], [])
    for count, epoch in enumerate(_epochs(list(enumerate(rows)), cuts)):
        facts = [Fact(key, at, n) for n, (side, key, at, _) in epoch if side == 0]
        coming = [Version(key, at, n) for n, (side, key, at, _) in epoch if side == 1]
        sides[0].extend(facts)
        sides[1].extend(coming)
        out += run.epoch(facts, coming, (-9, -9))
        if every and count % every == 0:
            run.restart()
    out += run.epoch([], [], (END_US, END_US))
    for name, side in zip(("l", "r"), sides, strict=True):
        columns = [pa.array([row[i] for row in side], kind) for i, kind in enumerate((S, L, L))]
        _connection.register(name, pa.table(columns, names=["k", "t", "n"]))
    sql = f"SELECT l.n, r.t FROM l ASOF {how} JOIN r ON l.k = r.k AND l.t {sign} r.t"
    expected = Counter(_connection.execute(sql).fetchall())
    assert run.late == 0
    assert Counter((row[2], row[4]) for row in out) == expected


@pytest.mark.parametrize("direction", [BACKWARD, FORWARD, NEAREST])
def test_the_same_state_gives_the_same_rows_again(direction: str) -> None:
    """A replayed epoch must not differ."""
    nearest = AsofBounds(
        direction, 0 if direction == BACKWARD else None, 0 if direction == FORWARD else None
    )
    run = Harness(make(nearest, versions=False))
    run.epoch([Fact("a", 3, 1)], [Version("a", 2, 1), Version("a", 6, 2)], (1, 1))
    snapshot = run.store.snapshot()
    first = run.epoch([Fact("a", 4, 2)], [Version("a", 5, 3)], (8, 8))
    run.store = MemoryStore.restore(snapshot)
    assert run.epoch([Fact("a", 4, 2)], [Version("a", 5, 3)], (8, 8)) == first != []
