"""Interval and window joins: against DuckDB in batch, however rows come in."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from tests.operators.harness import L, S, hash_of, rows_of, state_limits
from tests.operators.joined import joined
from tidegate.columns import HASH, PANE
from tidegate.operators.join.interval import IntervalJoin
from tidegate.operators.kernels.matching import JoinCondition
from tidegate.operators.late_rows import LateRows
from tidegate.operators.operator import Tables
from tidegate.operators.runner import Runner
from tidegate.operators.watermark import END_US, Origin, WatermarkUpdate
from tidegate.state.memory import MemoryStore

EXAMPLES = int(os.environ.get("TIDEGATE_EXAMPLES", "200"))
SEED = int(os.environ.get("TIDEGATE_SEED", "20261115"))
HOWS = ("INNER", "LEFT", "RIGHT", "FULL", "SEMI", "ANTI")

# A side (0 or 1), a key, and a time.
JoinRow = tuple[int, str | None, int]


def make(how: str, lower: int, upper: int, safe: bool = False, **more: Any) -> IntervalJoin:
    matching = JoinCondition((S,), (safe,), lower, upper)
    return IntervalJoin(matching, ((S, L, L), (S, L, L)), how, **more)


@dataclass
class Harness:
    """A join with its state; rows get a number each, so that equal ones are told apart."""

    join: IntervalJoin
    output_delay_us: int = 0
    key_groups: int = 2
    numbered: int = 0
    store: MemoryStore = field(default_factory=MemoryStore)
    update: WatermarkUpdate | None = None
    late: int = 0
    late_rows: list[dict[str, Any]] = field(default_factory=list)

    def table(self, rows: Sequence[tuple[str | None, int, int]]) -> pa.Table:
        keys, times, numbers = (list(column) for column in zip(*rows, strict=True))
        return pa.table(
            {
                PANE: pa.array(times, L),
                HASH: pa.array([hash_of((key,)) for key in keys], L),
                "k0": pa.array(keys, S),
                "c0": pa.array(keys, S),
                "c1": pa.array(times, L),
                "c2": pa.array(numbers, L),
            }
        )

    def restart(self) -> None:
        self.store = MemoryStore.restore(self.store.snapshot())

    def epoch(
        self, sides: Sequence[Sequence[tuple[str | None, int, int]]], marks: Sequence[int | None]
    ) -> list[tuple[Any, ...]]:
        runner = Runner(9, self.join, ((Origin(0),), (Origin(1),)), False, self.output_delay_us)
        updates = [
            WatermarkUpdate(port, 0, mark) for port, mark in enumerate(marks) if mark is not None
        ]
        lifted = [
            self.join.pre_aggregate(p, self.table(rows)) if rows else None
            for p, rows in enumerate(sides)
        ]
        given: list[tuple[Any, ...]] = []
        self.late = 0
        for key_group in range(self.key_groups):
            inputs: list[list[Tables]] = [
                [] if part is None else [_cut(part, key_group, self.key_groups)] for part in lifted
            ]
            result = runner.run(self.store.backend(1, key_group), inputs, updates, None)
            for table in result.output.main:
                assert table.schema.equals(self.join.output)
                given += rows_of(table)
            for table in result.output.late:
                assert table.schema.equals(self.join.late)
                self.late_rows += table.to_pylist()
            self.late += result.report["late_rows"]
            self.update = result.update
        return given


def _cut(tables: Tables, key_group: int, key_groups: int) -> Tables:
    owner = np.mod(tables[0].column(HASH).to_numpy(), key_groups)
    return (tables[0].filter(pa.array(owner == key_group)),)


def test_a_pair_comes_out_when_it_is_complete_and_a_lone_row_when_it_stays_alone() -> None:
    run = Harness(make("LEFT", -5, 5))
    assert run.epoch([[("a", 5, 1), ("c", 5, 2)], []], [None, None]) == []
    assert run.epoch([[], [("a", 10, 3), ("b", 5, 4)]], [None, None]) == [("a", 5, 1, "a", 10, 3)]
    assert run.epoch([[], []], [10, 10]) == []
    assert run.epoch([[], []], [11, 30]) == [("c", 5, 2, None, None, None)]


def test_a_late_row_is_counted_and_matches_nothing() -> None:
    run = Harness(make("INNER", 0, 0))
    assert run.epoch([[("a", 5, 1)], []], [5, 5]) == []
    assert run.epoch([[], [("a", 5, 2)]], [6, 6]) == [("a", 5, 1, "a", 5, 2)]
    assert run.epoch([[], [("a", 5, 3)]], [6, 6]) == []
    assert run.late == 1


def keeping_late(join: IntervalJoin, **more: Any) -> IntervalJoin:
    """As a stream has it whose columns are those of both sides: a key, two times, two numbers."""
    wide, sources = (S, L, L, L, L), ((0, 1, None, 2, None), (0, None, 1, None, 2))
    left, right = (
        LateRows(f"join ({side})", pa.schema([]), join.columns[0], wide, sources[port])
        for port, side in enumerate(("left", "right"))
    )
    return replace(join, late_rows=(left, right), **more)


def test_late_rows_are_kept_with_the_columns_of_both_sides() -> None:
    run = Harness(keeping_late(make("INNER", 0, 0)))
    assert run.epoch([[("a", 5, 1)], []], [7, 7]) == []
    assert run.epoch([[("a", 6, 2), ("b", 9, 3)], [("a", 5, 4), ("b", 9, 5)]], [7, 7]) == [
        ("b", 9, 3, "b", 9, 5)
    ]
    own = ("l0", "l1", "l2", "l3", "l4", "late_operator", "late_window_end")
    assert [tuple(row[name] for name in own) for row in run.late_rows] == [
        ("a", 6, None, 2, None, "join (left)", None),
        ("a", None, 5, None, 4, "join (right)", None),
    ]
    assert run.late == 2
    assert {row["late_watermark"].microsecond for row in run.late_rows} == {7}


def test_a_late_row_of_a_window_says_which() -> None:
    """The time of a row is the end of its window, and a column has the start."""
    run = Harness(keeping_late(make("LEFT", 0, 0, close_delay_us=0), starts=("c2", "c2")))
    run.epoch([[("a", 10, 0)], [("a", 20, 10)]], [10, 10])
    run.epoch([[("a", 10, 3)], []], [10, 10])
    (row,) = run.late_rows
    window = (row["late_window_start"].microsecond, row["late_window_end"].microsecond)
    assert (window, row["l3"]) == ((3, 10), 3)


def test_null_matches_null_only_if_the_query_says_so() -> None:
    rows = ([(None, 1, 1)], [(None, 1, 2)])
    assert Harness(make("INNER", 0, 0)).epoch(rows, [9, 9]) == []
    safe = Harness(make("INNER", 0, 0, safe=True))
    assert safe.epoch(rows, [9, 9]) == [(None, 1, 1, None, 1, 2)]
    outer = Harness(make("FULL", 0, 0)).epoch(rows, [9, 9])
    assert Counter(outer) == Counter(
        [(None, 1, 1, None, None, None), (None, None, None, None, 1, 2)]
    )


def test_nothing_is_kept_of_what_can_no_longer_match() -> None:
    run = Harness(make("FULL", -3, 3))
    for at in range(0, 100, 2):
        run.epoch([[("a", at, at)], [("b", at, at)]], [at, at])
    kept = run.store.backend(1, 0), run.store.backend(1, 1)
    assert sum(len(list(backend.scan("segment_left"))) for backend in kept) == 0
    report = (
        Runner(9, run.join, ((Origin(0),), (Origin(1),))).run(kept[0], [[], []], [], None).report
    )
    assert report["rows"] <= 6


@pytest.mark.parametrize("how", HOWS)
def test_a_pair_waits_for_the_watermark_if_asked_to(how: str) -> None:
    run = Harness(make(how, -2, 2, at_close=True))
    assert run.epoch([[("a", 5, 1)], [("a", 4, 2)]], [5, 5]) == []
    run.restart()
    assert run.epoch([[], []], [7, 6]) == []
    expected = {"SEMI": [("a", 5, 1)], "ANTI": []}.get(how, [("a", 5, 1, "a", 4, 2)])
    assert run.epoch([[], []], [8, 8]) == expected


ROWS = st.tuples(
    st.sampled_from([0, 1]), st.sampled_from(["a", "b", "é", None]), st.integers(-9, 9)
)


@st.composite
def scenarios(draw: st.DrawFn) -> dict[str, Any]:
    """Rows that drift forward, cut into epochs at random, with a watermark that may be slow."""
    rows = draw(st.lists(ROWS, max_size=40))
    drift = draw(st.integers(0, 3))
    rows = [(side, key, at + place * drift) for place, (side, key, at) in enumerate(rows)]
    bounds = sorted(draw(st.tuples(st.integers(-8, 8), st.integers(-8, 8))))
    if draw(st.integers(0, 9)) == 0:
        bounds.reverse()
    return {
        "rows": rows,
        "cuts": draw(st.lists(st.integers(0, 40), max_size=20)),
        "delays": draw(st.tuples(st.integers(0, 12), st.integers(0, 12))),
        "bounds": draw(st.sampled_from([(0, 0), tuple(bounds)])),
        "how": draw(st.sampled_from(HOWS)),
        "step": draw(st.sampled_from([0, 1])),
        "at_close": draw(st.booleans()),
        "null_safe": draw(st.booleans()),
        "keeps_late": draw(st.booleans()),
        "restart_every": draw(st.integers(0, 4)),
        "small": draw(st.booleans()),
    }


@seed(SEED)
@settings(deadline=None, max_examples=EXAMPLES, database=None)
@given(scenarios())
def test_it_equals_a_batch_join_of_the_rows_in_time(case: dict[str, Any]) -> None:
    with state_limits(case["small"]):
        _equals_a_batch_join(case)


def _equals_a_batch_join(case: dict[str, Any]) -> None:
    lower, upper = case["bounds"]
    if case["step"] == 0:
        lower = upper = 0
    join = make(
        case["how"],
        lower,
        upper,
        close_delay_us=case["step"],
        at_close=case["at_close"],
        safe=case["null_safe"],
    )
    join = keeping_late(join) if case["keeps_late"] else join
    back = max(0, upper, -lower, upper - lower if case["at_close"] else 0)
    run = Harness(join, back)
    high: list[int | None] = [None, None]
    given_out: list[tuple[Any, ...]] = []
    in_time: list[list[tuple[str | None, int, int]]] = [[], []]
    mark: int | None = None
    number = 0
    late: list[int] = []
    for count, epoch in enumerate(_epochs(case["rows"], case["cuts"])):
        sides: list[list[tuple[str | None, int, int]]] = [[], []]
        for side, key, at in epoch:
            number += 1
            sides[side].append((key, at, number))
            if mark is None or at + case["step"] > mark:
                in_time[side].append((key, at, number))
            elif key is not None or case["null_safe"] or _tracked(case["how"], side):
                late.append(number)
        for side, delay in enumerate(case["delays"]):
            times = [row[1] - delay for row in sides[side]]
            known = [at for at in (*times, high[side]) if at is not None]
            high[side] = max(known, default=None)
        if case["restart_every"] and count % case["restart_every"] == 0:
            run.restart()
        before = run.update.watermark_us if run.update is not None else None
        out = run.epoch(sides, high)
        if before is not None:
            # Whoever reads this downstream must not take it for late.
            width = 1 if case["how"] in ("SEMI", "ANTI") else 2
            times = [row[1 + 3 * part] for row in out for part in range(width)]
            assert all(at is None or at + case["step"] > before for at in times)
        given_out += out
        if all(item is not None for item in high):
            mark = max(
                min(item for item in high if item is not None), mark if mark is not None else -999
            )
    assert run.late == len(late)
    if case["keeps_late"]:
        numbers = (row["l3"] if row["l3"] is not None else row["l4"] for row in run.late_rows)
        assert Counter(numbers) == Counter(late)
    given_out += run.epoch([[], []], [END_US, END_US])
    expected = joined(in_time, case["how"], (lower, upper), case["null_safe"])
    assert Counter(given_out) == expected
    assert run.epoch([[], []], [END_US, END_US]) == []


def _tracked(how: str, side: int) -> bool:
    return how in (("LEFT", "FULL", "SEMI", "ANTI") if side == 0 else ("RIGHT", "FULL"))


def _epochs(rows: list[JoinRow], cuts: list[int]) -> list[list[JoinRow]]:
    places = [0, *sorted(cut for cut in cuts if cut < len(rows)), len(rows)]
    return [rows[a:b] for a, b in itertools.pairwise(places)]
