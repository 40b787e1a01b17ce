"""OVER over any rows, in any epochs, tasks and restarts: what DuckDB says about them in batch.

TIDEGATE_EXAMPLES is the number of examples over the whole file (100), TIDEGATE_SEED where they
start; both are printed with `-s`.
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

from tests.operators.batch import same_value
from tests.operators.harness import Row, state_limits
from tests.operators.over_queries import (
    AGGREGATES,
    Item,
    OverQuery,
    end_value,
    last_values,
    nth,
    rank,
    shift,
    total,
)
from tidegate.operators.over import functions as over_states
from tidegate.operators.over.frames import Frame
from tidegate.operators.over.history import FrameReach
from tidegate.operators.watermark import END_US, WatermarkUpdate

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
def _say_the_seed() -> None:
    print(f"TIDEGATE_SEED={SEED} TIDEGATE_EXAMPLES={EXAMPLES}")


Epochs = list[tuple[list[list[list[Row]]], int, bool]]


@dataclass(frozen=True)
class Case:
    """A query; of every epoch its rows by task and batch, the watermark, and whether it ends in a
    restart."""

    query: OverQuery
    epochs: Epochs
    small: bool


OFFSETS = st.integers(-4, 4)


@st.composite
def frames(draw: st.DrawFn, by_rows: bool, whole: bool) -> Frame:
    """Frames of any kind; only `whole` partitions have one without an end."""
    start = draw(st.one_of(st.none(), OFFSETS))
    end = draw(st.one_of(st.none(), OFFSETS)) if whole else draw(OFFSETS)
    if start is not None and end is not None:
        start, end = min(start, end), max(start, end)
    return Frame(by_rows, start, end)


@st.composite
def items(draw: st.DrawFn, query_mode: str, sorts: int, by_value: bool) -> Item:
    """One function; a distance of values only where there is one column of numbers to order by."""
    whole = query_mode != "time"
    sort = draw(st.integers(0, sorts - 1))
    column = draw(st.integers(0, len(SAMPLES) - 1))
    rows = draw(st.integers(1, 3))
    kinds = ["rank", "lag", "lead", "last", "nth", "end", "total", "total", "total"]
    kind = draw(st.sampled_from(kinds))
    skips = draw(st.booleans())
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
        return nth(rows, column, skips, by_rows, sort)
    if kind == "end":
        name = draw(st.sampled_from(["first_value", "last_value"]))
        return end_value(name, column, skips, by_rows, sort)
    frame = draw(frames(False, whole)) if by_value and draw(st.booleans()) else by_rows
    if not by_value and draw(st.booleans()):
        # Peers need no distance.
        frame = Frame(False, draw(st.sampled_from([None, 0])), draw(st.sampled_from([0])))
    return total(draw(st.sampled_from(AGGREGATES)), frame, sort)


@st.composite
def cases(draw: st.DrawFn, mode: str) -> Case:
    by_time = mode == "time"
    # Along time there is one order, which begins with the time.
    sorted_by = st.lists(st.tuples(st.integers(0, len(SAMPLES) - 1), st.booleans()), max_size=2)
    sorts = draw(st.lists(sorted_by, min_size=1, max_size=1 if by_time else 2))
    by_value = by_time and not sorts[0]
    if not by_time and draw(st.booleans()):
        sorts, by_value = [[(0, draw(st.booleans()))]], True
    made = draw(st.lists(items(mode, len(sorts), by_value), min_size=1, max_size=4))
    retracts = mode == "changes" and draw(st.booleans())
    windowed = mode == "windows" or (by_time and draw(st.booleans()))
    query = OverQuery(
        tuple(made),
        tuple(tuple(sort) for sort in sorts),
        mode,
        draw(st.integers(2, 5)) if windowed else None,
        retracts,
        keeps_late=mode in ("time", "windows") and draw(st.booleans()),
    )
    if by_time and windowed and FrameReach.of(query.spec).rows_ahead:
        # Rows that wait for others are given out by the end of a window, which another mode does.
        query = OverQuery(query.items, query.sorts, mode, None, False, query.keeps_late)
    return Case(query, draw(epochs_of(retracts)), draw(st.booleans()))


@st.composite
def epochs_of(draw: st.DrawFn, retracts: bool) -> Epochs:
    cells = st.tuples(*map(st.sampled_from, SAMPLES))
    content = st.sampled_from(draw(st.lists(cells, min_size=1, max_size=6)))
    keys = st.sampled_from(draw(st.lists(st.sampled_from([None, "a", "b"]), min_size=1)))
    row = st.tuples(content, keys, st.integers(-3, 8), st.integers(0, 3), st.integers(0, 2))
    found: Epochs = []
    there: list[Row] = []
    number = 0
    for epoch in draw(st.lists(st.lists(row, max_size=8), max_size=6)):
        tasks: list[list[list[Row]]] = [[[], []], [[], []]]
        standing = list(there)
        for values, key, ts, task, goes in epoch:
            made = Row(ts, (key,), values, 1, number)
            if retracts and goes == 0 and standing:
                old = standing.pop(number % len(standing))
                there.remove(old)
                made = Row(old.ts, old.keys, old.values, -1, old.id)
            else:
                there.append(made)
                number += 1
            tasks[task // 2][task % 2].append(made)
        found.append((tasks, draw(st.integers(-4, 9)), draw(st.booleans())))
    return found


def examples(mode: str) -> Callable[[Any], Any]:
    limits = settings(
        max_examples=-(-EXAMPLES // PROPERTIES),
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    return lambda test: seed(SEED)(limits(given(cases(mode))(test)))


@contextmanager
def small_if(small: bool) -> Iterator[None]:
    """Small buckets, and frames that are made of blocks however short they are."""
    with ExitStack() as stack:
        stack.enter_context(state_limits(small))
        if small:
            stack.enter_context(
                patch.multiple(over_states, _SHORT_FRAME_ROWS=-1, _MAX_BATCH_ROWS=7)
            )
        yield


def rows_of(tasks: list[list[list[Row]]]) -> list[Row]:
    return [row for batches in tasks for batch in batches for row in batch]


def same(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    return all(same_value(a, b) for a, b in zip(one, other, strict=True))


def add(found: dict[int, tuple[Any, ...]], row: tuple[Any, ...]) -> None:
    assert row[0] not in found, "a row comes out once"
    found[row[0]] = row[3:]


def assert_said(found: dict[int, tuple[Any, ...]], wanted: dict[int, tuple[Any, ...]]) -> None:
    for id, results in found.items():
        assert same(results, wanted[id]), (id, results, wanted[id])


@examples("time")
def test_rows_come_out_once_with_what_batch_says(case: Case) -> None:
    query, reach = case.query, FrameReach.of(case.query.spec)
    run, late, before = query.harness(), 0, None
    on_time: list[Row] = []
    found: dict[int, tuple[Any, ...]] = {}
    with small_if(case.small):
        for tasks, mark, restarts in [*case.epochs, ([], END_US, False)]:
            epoch = run.epoch(tasks, [WatermarkUpdate(0, 0, mark)], now_us=1)
            new = rows_of(tasks)
            kept = [row for row in new if before is None or row.ts >= before]
            late += len(new) - len(kept)
            on_time += kept
            before = mark if before is None else max(before, mark)
            assert epoch.late_rows == late
            assert len(epoch.late) == (len(new) - len(kept)) * query.keeps_late
            for row in epoch.main:
                add(found, row)
            passed = {row.id for row in on_time if row.ts + reach.time_ahead < before}
            assert set(found) <= passed
            assert reach.rows_ahead or set(found) == passed
            if restarts:
                run.restart()
    assert set(found) == {row.id for row in on_time}
    assert_said(found, query.in_batch(on_time))
    assert run.stored_names() == []


@examples("windows")
def test_windows_say_once_what_batch_says(case: Case) -> None:
    query = case.query
    run, late, before = query.harness(), 0, None
    there: list[Row] = []
    with small_if(case.small):
        for tasks, mark, restarts in [*case.epochs, ([], END_US, False)]:
            epoch = run.epoch(tasks, [WatermarkUpdate(0, 0, mark)])
            new = rows_of(tasks)
            kept = [row for row in new if before is None or query.end_of(row) > before]
            late += len(new) - len(kept)
            there += kept
            before = mark if before is None else max(before, mark)
            closed = [row for row in there if query.end_of(row) <= before]
            there = [row for row in there if query.end_of(row) > before]
            found: dict[int, tuple[Any, ...]] = {}
            for row in epoch.main:
                add(found, row)
            wanted = query.in_batch(closed)
            assert set(found) == set(wanted)
            assert_said(found, wanted)
            assert epoch.late_rows == late
            if restarts:
                run.restart()
    assert run.stored_names() == []


@examples("end")
def test_the_end_says_what_batch_says(case: Case) -> None:
    run, there = case.query.harness(), []
    with small_if(case.small):
        for tasks, _, restarts in case.epochs:
            assert run.epoch(tasks).main == []
            there += rows_of(tasks)
            if restarts:
                run.restart()
        found: dict[int, tuple[Any, ...]] = {}
        for row in run.end().main:
            add(found, row)
    wanted = case.query.in_batch(there)
    assert set(found) == set(wanted)
    assert_said(found, wanted)


@examples("changes")
def test_changes_add_up_to_what_batch_says(case: Case) -> None:
    run = case.query.harness()
    there: list[Row] = []
    found: dict[int, tuple[Any, ...]] = {}
    with small_if(case.small):
        for tasks, _, restarts in case.epochs:
            epoch = run.epoch(tasks)
            new = rows_of(tasks)
            gone = {row.id for row in new if row.weight < 0}
            there = [*there, *(row for row in new if row.weight > 0)]
            there = [row for row in there if row.id not in gone]
            for *row, op in epoch.main:
                if op in ("-U", "-D"):
                    assert same(found.pop(row[0]), tuple(row[3:])), "what was there is retracted"
                else:
                    add(found, tuple(row))
            wanted = case.query.in_batch(sorted(there, key=lambda row: row.id))
            assert set(found) == set(wanted)
            assert_said(found, wanted)
            if restarts:
                run.restart()
