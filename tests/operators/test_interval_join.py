"""Interval and window joins: equal to a batch join in DuckDB for any split into epochs."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from tests.operators.harness import L, S, hash_of, state_limits
from tests.operators.join_harness import HOWS, JoinHarness, JoinRow, batch_join, split_at
from tidegate.columns import HASH, STORE_TIME
from tidegate.operators.join.interval import IntervalJoin
from tidegate.operators.kernels.join_condition import TRACKS_MATCHES, JoinCondition
from tidegate.operators.late_rows import LateRowFormat
from tidegate.operators.runner import OperatorRunner
from tidegate.operators.watermark import END_OF_INPUT_US, Origin

EXAMPLES = int(os.environ.get("TIDEGATE_EXAMPLES", "200"))
SEED = int(os.environ.get("TIDEGATE_SEED", "20261115"))


def make_join(
    how: str, lower: int, upper: int, null_safe: bool = False, **options: Any
) -> IntervalJoin:
    condition = JoinCondition((S,), (null_safe,), lower, upper)
    return IntervalJoin(condition, ((S, L, L), (S, L, L)), how, **options)


class Harness(JoinHarness):
    """The value of a row is its number, which identifies it."""

    join: IntervalJoin

    def epoch(
        self, sides: Sequence[Sequence[JoinRow]], watermarks: Sequence[int | None] = (None, None)
    ) -> list[tuple[Any, ...]]:
        return self.step([join_table(rows) for rows in sides], watermarks)


def join_table(rows: Sequence[JoinRow]) -> pa.Table:
    keys, times, numbers = ([row[index] for row in rows] for index in range(3))
    return pa.table(
        {
            STORE_TIME: pa.array(times, L),
            HASH: pa.array([hash_of((key,)) for key in keys], L),
            "k0": pa.array(keys, S),
            "c0": pa.array(keys, S),
            "c1": pa.array(times, L),
            "c2": pa.array(numbers, L),
        }
    )


def with_late_rows(join: IntervalJoin, **options: Any) -> IntervalJoin:
    """Emit late rows to a stream with the columns of both sides: key, two times, two numbers."""
    stream, sources = (S, L, L, L, L), ((0, 1, None, 2, None), (0, None, 1, None, 2))
    left, right = (
        LateRowFormat(f"join ({side})", pa.schema([]), join.columns[0], stream, sources[port])
        for port, side in enumerate(("left", "right"))
    )
    return replace(join, late_rows=(left, right), **options)


def test_emits_pairs_when_complete_and_unmatched_rows_when_no_match_can_arrive() -> None:
    run = Harness(make_join("LEFT", -5, 5))
    assert run.epoch([[("a", 5, 1), ("c", 5, 2)], []]) == []
    assert run.epoch([[], [("a", 10, 3), ("b", 5, 4)]]) == [("a", 5, 1, "a", 10, 3)]
    assert run.epoch([[], []], [10, 10]) == []
    assert run.epoch([[], []], [11, 30]) == [("c", 5, 2, None, None, None)]


def test_counts_late_rows_and_does_not_match_them() -> None:
    run = Harness(make_join("INNER", 0, 0))
    assert run.epoch([[("a", 5, 1)], []], [5, 5]) == []
    assert run.epoch([[], [("a", 5, 2)]], [6, 6]) == [("a", 5, 1, "a", 5, 2)]
    assert run.epoch([[], [("a", 5, 3)]], [6, 6]) == []
    assert run.late == 1


def test_emits_late_rows_with_the_columns_of_both_sides() -> None:
    run = Harness(with_late_rows(make_join("INNER", 0, 0)))
    assert run.epoch([[("a", 5, 1)], []], [7, 7]) == []
    assert run.epoch([[("a", 6, 2), ("b", 9, 3)], [("a", 5, 4), ("b", 9, 5)]], [7, 7]) == [
        ("b", 9, 3, "b", 9, 5)
    ]
    names = ("l0", "l1", "l2", "l3", "l4", "late_operator", "late_window_end")
    assert [tuple(row[name] for name in names) for row in run.late_rows] == [
        ("a", 6, None, 2, None, "join (left)", None),
        ("a", None, 5, None, 4, "join (right)", None),
    ]
    assert run.late == 2
    assert {row["late_watermark"].microsecond for row in run.late_rows} == {7}


def test_late_row_of_a_window_has_the_bounds_of_its_window() -> None:
    """The time of a row is the end of its window, and a column has the start."""
    join = make_join("LEFT", 0, 0, close_delay_us=0)
    run = Harness(with_late_rows(join, starts=("c2", "c2")))
    run.epoch([[("a", 10, 0)], [("a", 20, 10)]], [10, 10])
    run.epoch([[("a", 10, 3)], []], [10, 10])
    (row,) = run.late_rows
    window = (row["late_window_start"].microsecond, row["late_window_end"].microsecond)
    assert (window, row["l3"]) == ((3, 10), 3)


def test_null_matches_null_only_if_null_safe() -> None:
    rows: list[list[JoinRow]] = [[(None, 1, 1)], [(None, 1, 2)]]
    assert Harness(make_join("INNER", 0, 0)).epoch(rows, [9, 9]) == []
    null_safe = Harness(make_join("INNER", 0, 0, null_safe=True))
    assert null_safe.epoch(rows, [9, 9]) == [(None, 1, 1, None, 1, 2)]
    outer = Harness(make_join("FULL", 0, 0)).epoch(rows, [9, 9])
    assert Counter(outer) == Counter(
        [(None, 1, 1, None, None, None), (None, None, None, None, 1, 2)]
    )


def test_drops_rows_that_cannot_match_anymore() -> None:
    run = Harness(make_join("FULL", -3, 3))
    for at in range(0, 100, 2):
        run.epoch([[("a", at, at)], [("b", at, at)]], [at, at])
    backends = run.store.backend(1, 0), run.store.backend(1, 1)
    assert sum(len(list(backend.scan("segment_left"))) for backend in backends) == 0
    runner = OperatorRunner(9, run.join, ((Origin(0),), (Origin(1),)))
    assert runner.run_epoch(backends[0], [[], []], [], None).report["rows"] <= 6


@pytest.mark.parametrize("how", HOWS)
def test_at_close_holds_pairs_until_the_watermark_makes_them_final(how: str) -> None:
    run = Harness(make_join(how, -2, 2, at_close=True))
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
    """Draw rows that advance in time, a split into epochs, and watermarks that may lag."""
    rows = draw(st.lists(ROWS, max_size=40))
    drift = draw(st.integers(0, 3))
    rows = [(side, key, at + index * drift) for index, (side, key, at) in enumerate(rows)]
    bounds = sorted(draw(st.tuples(st.integers(-8, 8), st.integers(-8, 8))))
    if draw(st.integers(0, 9)) == 0:
        bounds.reverse()
    return {
        "rows": rows,
        "cuts": draw(st.lists(st.integers(0, 40), max_size=20)),
        "delays": draw(st.tuples(st.integers(0, 12), st.integers(0, 12))),
        "bounds": draw(st.sampled_from([(0, 0), tuple(bounds)])),
        "how": draw(st.sampled_from(HOWS)),
        "close_delay_us": draw(st.sampled_from([0, 1])),
        "at_close": draw(st.booleans()),
        "null_safe": draw(st.booleans()),
        "keeps_late": draw(st.booleans()),
        "restart_every": draw(st.integers(0, 4)),
        "small": draw(st.booleans()),
    }


@seed(SEED)
@settings(deadline=None, max_examples=EXAMPLES, database=None)
@given(scenarios())
def test_equals_a_batch_join_of_the_rows_on_time(case: dict[str, Any]) -> None:
    with state_limits(case["small"]):
        check_equals_batch_join(case)


def check_equals_batch_join(case: dict[str, Any]) -> None:
    close_delay_us, how = case["close_delay_us"], case["how"]
    lower, upper = case["bounds"] if close_delay_us else (0, 0)
    join = make_join(
        how,
        lower,
        upper,
        close_delay_us=close_delay_us,
        at_close=case["at_close"],
        null_safe=case["null_safe"],
    )
    join = with_late_rows(join) if case["keeps_late"] else join
    run = Harness(join, max(0, upper, -lower, upper - lower if case["at_close"] else 0))
    watermarks: list[int | None] = [None, None]
    watermark: int | None = None
    emitted: list[tuple[Any, ...]] = []
    on_time: list[list[JoinRow]] = [[], []]
    late: list[int] = []
    number = 0
    for count, epoch in enumerate(split_at(case["rows"], case["cuts"])):
        sides: list[list[JoinRow]] = [[], []]
        for side, key, at in epoch:
            number += 1
            sides[side].append((key, at, number))
            if watermark is None or at + close_delay_us > watermark:
                on_time[side].append((key, at, number))
            elif key is not None or case["null_safe"] or TRACKS_MATCHES[how][side]:
                late.append(number)
        for side, delay in enumerate(case["delays"]):
            times = [row[1] - delay for row in sides[side]]
            times += [at for at in [watermarks[side]] if at is not None]
            watermarks[side] = max(times, default=None)
        if case["restart_every"] and count % case["restart_every"] == 0:
            run.restart()
        promised = run.update.watermark_us if run.update is not None else None
        results = run.epoch(sides, watermarks)
        if promised is not None:
            # A downstream operator must not take any result as late.
            width = 1 if how in ("SEMI", "ANTI") else 2
            result_times = [row[1 + 3 * side] for row in results for side in range(width)]
            assert all(at is None or at + close_delay_us > promised for at in result_times)
        emitted += results
        if None not in watermarks:
            lowest = min(item for item in watermarks if item is not None)
            watermark = lowest if watermark is None else max(lowest, watermark)
    assert run.late == len(late)
    if case["keeps_late"]:
        numbers = (row["l3"] if row["l3"] is not None else row["l4"] for row in run.late_rows)
        assert Counter(numbers) == Counter(late)
    emitted += run.epoch([[], []], [END_OF_INPUT_US, END_OF_INPUT_US])
    assert Counter(emitted) == batch_join(on_time, how, (lower, upper), case["null_safe"])
    assert run.epoch([[], []], [END_OF_INPUT_US, END_OF_INPUT_US]) == []
