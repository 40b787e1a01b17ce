"""OVER equals DuckDB's batch results for any rows, split into epochs and tasks, and restarts.

TIDEGATE_EXAMPLES is the number of examples of the whole file (100), TIDEGATE_SEED the seed of
hypothesis; both are printed with `-s`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from tests.operators.batch import CHOICES, same_value
from tests.operators.harness import Row, state_limits
from tests.operators.over_queries import (
    FunctionCase,
    OverQuery,
    end_value,
    last_values,
    nth,
    rank,
    shift,
    total,
)
from tidegate.operators.over import functions as over_functions
from tidegate.operators.over.frames import Frame
from tidegate.operators.over.history import FrameReach
from tidegate.operators.watermark import END_OF_INPUT_US, WatermarkUpdate

EXAMPLES = int(os.environ.get("TIDEGATE_EXAMPLES", "100"))
SEED = int(os.environ.get("TIDEGATE_SEED", "20261116"))
PROPERTIES = 4
NAN = float("nan")
SAMPLES: tuple[list[Any], ...] = (
    [None, -3, 0, 2, 2**40],
    [None, -0.0, 0.1, 2.5, -1e9, NAN, math.inf],
    [None, Decimal("-10.00"), Decimal("9.50")],
    [None, "", "a", "é"],
    [None, False, True],
    [None, date(1969, 12, 31), date(2024, 2, 29)],
)


@pytest.fixture(scope="module", autouse=True)
def _print_seed() -> None:
    print(f"TIDEGATE_SEED={SEED} TIDEGATE_EXAMPLES={EXAMPLES}")


Epochs = list[tuple[list[list[list[Row]]], int, bool]]


@dataclass(frozen=True)
class Case:
    """A query and its epochs: rows by task and batch, the watermark, whether a restart follows."""

    query: OverQuery
    epochs: Epochs
    small: bool


OFFSETS = st.integers(-4, 4)


@st.composite
def frames(draw: st.DrawFn, by_rows: bool, whole: bool) -> Frame:
    """Draw frames; only those of `whole` partitions can be unbounded at the end."""
    start = draw(st.one_of(st.none(), OFFSETS))
    end = draw(st.one_of(st.none(), OFFSETS)) if whole else draw(OFFSETS)
    if start is not None and end is not None:
        start, end = min(start, end), max(start, end)
    return Frame(by_rows, start, end)


@st.composite
def functions(draw: st.DrawFn, query_mode: str, sorts: int, by_value: bool) -> FunctionCase:
    """Draw a function; RANGE offsets need a single numeric ORDER BY column (`by_value`)."""
    whole = query_mode != "time"
    sort = draw(st.integers(0, sorts - 1))
    column = draw(st.integers(0, len(SAMPLES) - 1))
    rows = draw(st.integers(1, 3))
    kinds = ["rank", "lag", "lead", "last", "nth", "end", "total", "total", "total"]
    kind = draw(st.sampled_from(kinds))
    ignore_nulls = draw(st.booleans())
    by_rows = draw(frames(True, whole))
    if kind == "rank":
        names = ["ROW_NUMBER", "RANK", "DENSE_RANK"]
        names += ["PERCENT_RANK", "CUME_DIST", "NTILE"] if whole else []
        name = draw(st.sampled_from(names))
        return rank(name, sort, rows if name == "NTILE" else 0)
    if kind in ("lag", "lead"):
        return shift(kind, draw(st.integers(0, 3)), column, draw(st.booleans()), sort)
    if kind == "last":
        return last_values(rows, column, sort)
    if kind == "nth":
        return nth(rows, column, ignore_nulls, by_rows, sort)
    if kind == "end":
        name = draw(st.sampled_from(["first_value", "last_value"]))
        return end_value(name, column, ignore_nulls, by_rows, sort)
    frame = draw(frames(False, whole)) if by_value and draw(st.booleans()) else by_rows
    if not by_value and draw(st.booleans()):
        # RANGE over peers does not need numbers.
        frame = Frame(False, draw(st.sampled_from([None, 0])), draw(st.sampled_from([0])))
    return total(draw(st.sampled_from(CHOICES)), frame, sort)


@st.composite
def cases(draw: st.DrawFn, mode: str) -> Case:
    by_time = mode == "time"
    # Along time there is one ORDER BY, which starts with the time.
    columns = st.lists(st.tuples(st.integers(0, len(SAMPLES) - 1), st.booleans()), max_size=2)
    sorts = draw(st.lists(columns, min_size=1, max_size=1 if by_time else 2))
    by_value = by_time and not sorts[0]
    if not by_time and draw(st.booleans()):
        sorts, by_value = [[(0, draw(st.booleans()))]], True
    drawn = draw(st.lists(functions(mode, len(sorts), by_value), min_size=1, max_size=4))
    retracts = mode == "changes" and draw(st.booleans())
    windowed = mode == "windows" or (by_time and draw(st.booleans()))
    query = OverQuery(
        tuple(drawn),
        tuple(tuple(sort) for sort in sorts),
        mode,
        draw(st.integers(2, 5)) if windowed else None,
        retracts,
        keeps_late=mode in ("time", "windows") and draw(st.booleans()),
    )
    if by_time and windowed and FrameReach.from_spec(query.spec).rows_ahead:
        # The end of a window emits rows that wait for following rows, which is another mode.
        query = OverQuery(query.functions, query.sorts, mode, None, False, query.keeps_late)
    return Case(query, draw(epochs_of(retracts)), draw(st.booleans()))


@st.composite
def epochs_of(draw: st.DrawFn, retracts: bool) -> Epochs:
    cells = st.tuples(*map(st.sampled_from, SAMPLES))
    content = st.sampled_from(draw(st.lists(cells, min_size=1, max_size=6)))
    keys = st.sampled_from(draw(st.lists(st.sampled_from([None, "a", "b"]), min_size=1)))
    rows = st.tuples(content, keys, st.integers(-3, 8), st.integers(0, 3), st.integers(0, 2))
    epochs: Epochs = []
    existing: list[Row] = []
    number = 0
    for epoch in draw(st.lists(st.lists(rows, max_size=8), max_size=6)):
        tasks: list[list[list[Row]]] = [[[], []], [[], []]]
        retractable = list(existing)
        for values, key, ts, task, choice in epoch:
            row = Row(ts, (key,), values, 1, number)
            if retracts and choice == 0 and retractable:
                old = retractable.pop(number % len(retractable))
                existing.remove(old)
                row = Row(old.ts, old.keys, old.values, -1, old.id)
            else:
                existing.append(row)
                number += 1
            tasks[task // 2][task % 2].append(row)
        epochs.append((tasks, draw(st.integers(-4, 9)), draw(st.booleans())))
    return epochs


def examples(mode: str) -> Callable[[Any], Any]:
    limits = settings(
        max_examples=-(-EXAMPLES // PROPERTIES),
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    return lambda test: seed(SEED)(limits(given(cases(mode))(test)))


@contextmanager
def small_limits(small: bool) -> Iterator[None]:
    """Make buckets small, and combine frames of any length from blocks."""
    with ExitStack() as stack:
        stack.enter_context(state_limits(small))
        if small:
            stack.enter_context(
                patch.multiple(over_functions, _SHORT_FRAME_ROWS=-1, _MAX_BATCH_ROWS=7)
            )
        yield


def rows_of(tasks: list[list[list[Row]]]) -> list[Row]:
    return [row for batches in tasks for batch in batches for row in batch]


def same_cells(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    return all(same_value(a, b) for a, b in zip(one, other, strict=True))


def add_result(results: dict[int, tuple[Any, ...]], row: tuple[Any, ...]) -> None:
    """Add an emitted row to the results by id."""
    assert row[0] not in results, "each row is emitted once"
    results[row[0]] = row[3:]


def assert_results(
    results: dict[int, tuple[Any, ...]], expected: dict[int, tuple[Any, ...]]
) -> None:
    for id, cells in results.items():
        assert same_cells(cells, expected[id]), (id, cells, expected[id])


@examples("time")
def test_emits_each_row_once_with_the_batch_results(case: Case) -> None:
    query, reach = case.query, FrameReach.from_spec(case.query.spec)
    run, late, watermark = query.harness(), 0, None
    on_time: list[Row] = []
    results: dict[int, tuple[Any, ...]] = {}
    with small_limits(case.small):
        for tasks, update_us, restarts in [*case.epochs, ([], END_OF_INPUT_US, False)]:
            epoch = run.epoch(tasks, [WatermarkUpdate(0, 0, update_us)], now_us=1)
            new = rows_of(tasks)
            accepted = [row for row in new if watermark is None or row.ts >= watermark]
            late += len(new) - len(accepted)
            on_time += accepted
            watermark = update_us if watermark is None else max(watermark, update_us)
            assert epoch.late_rows == late
            assert len(epoch.late) == (len(new) - len(accepted)) * query.keeps_late
            for row in epoch.rows:
                add_result(results, row)
            passed = {row.id for row in on_time if row.ts + reach.time_ahead < watermark}
            assert set(results) <= passed
            assert reach.rows_ahead or set(results) == passed
            if restarts:
                run.restart()
    assert set(results) == {row.id for row in on_time}
    assert_results(results, query.in_batch(on_time))
    assert run.stored_names() == []


@examples("windows")
def test_emits_the_batch_results_of_each_window_once(case: Case) -> None:
    query = case.query
    run, late, watermark = query.harness(), 0, None
    open_rows: list[Row] = []
    with small_limits(case.small):
        for tasks, update_us, restarts in [*case.epochs, ([], END_OF_INPUT_US, False)]:
            epoch = run.epoch(tasks, [WatermarkUpdate(0, 0, update_us)])
            new = rows_of(tasks)
            accepted = [row for row in new if watermark is None or query.end_of(row) > watermark]
            late += len(new) - len(accepted)
            watermark = update_us if watermark is None else max(watermark, update_us)
            closed = [row for row in open_rows + accepted if query.end_of(row) <= watermark]
            open_rows = [row for row in open_rows + accepted if query.end_of(row) > watermark]
            results: dict[int, tuple[Any, ...]] = {}
            for row in epoch.rows:
                add_result(results, row)
            expected = query.in_batch(closed)
            assert set(results) == set(expected)
            assert_results(results, expected)
            assert epoch.late_rows == late
            if restarts:
                run.restart()
    assert run.stored_names() == []


@examples("end")
def test_results_at_the_end_equal_the_batch_results(case: Case) -> None:
    run, rows = case.query.harness(), []
    with small_limits(case.small):
        for tasks, _, restarts in case.epochs:
            assert run.epoch(tasks).rows == []
            rows += rows_of(tasks)
            if restarts:
                run.restart()
        results: dict[int, tuple[Any, ...]] = {}
        for row in run.end().rows:
            add_result(results, row)
    expected = case.query.in_batch(rows)
    assert set(results) == set(expected)
    assert_results(results, expected)


@examples("changes")
def test_materialized_changes_equal_the_batch_results_after_every_epoch(case: Case) -> None:
    run = case.query.harness()
    rows: list[Row] = []
    results: dict[int, tuple[Any, ...]] = {}
    with small_limits(case.small):
        for tasks, _, restarts in case.epochs:
            epoch = run.epoch(tasks)
            new = rows_of(tasks)
            retracted = {row.id for row in new if row.weight < 0}
            rows = [*rows, *(row for row in new if row.weight > 0)]
            rows = [row for row in rows if row.id not in retracted]
            for *row, op in epoch.rows:
                if op in ("-U", "-D"):
                    assert same_cells(results.pop(row[0]), tuple(row[3:])), (
                        "only emitted rows are retracted"
                    )
                else:
                    add_result(results, tuple(row))
            expected = case.query.in_batch(sorted(rows, key=lambda row: row.id))
            assert set(results) == set(expected)
            assert_results(results, expected)
            if restarts:
                run.restart()
