"""Operator state that is restored continues as if it had not been interrupted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.operators.harness import D, Harness, L, Query, Row, S, call, harness_of
from tidegate.operators.aggregate.groups import WindowPanes
from tidegate.state.memory import MemoryStore

SUM = Query((), (L,), (call("sum", L, L),), ((0,),), (None,), mode="early")
AVG = Query((S,), (D,), (call("avg", D, D),), ((0,),), (None,), mode="early")
WINDOWS = replace(SUM, panes=WindowPanes("TUMBLE", 10, 10), mode="close")


def after_restart(query: Query, first: list[Row], second: list[Row]) -> Harness:
    run = harness_of(query)
    run.rows(first, 0)
    run.restart()
    run.rows(second, 0)
    return run


def test_sum_continues_after_a_restart() -> None:
    run = after_restart(SUM, [Row(0, (), (10,)), Row(0, (), (20,))], [Row(0, (), (30,))])
    assert run.epochs[-1].rows == [(30, "-U"), (60, "+U")]


def test_averages_by_key_continue_after_a_restart() -> None:
    first = [Row(0, ("a",), (1.0,)), Row(0, ("b",), (5.0,)), Row(0, (None,), (2.0,))]
    run = after_restart(AVG, first, [Row(0, ("a",), (2.0,)), Row(0, (None,), (4.0,))])
    averages = {row[0]: row[1] for row in run.epochs[-1].rows if row[-1] == "+U"}
    assert averages == {"a": 1.5, None: 3.0}


def test_open_window_continues_after_a_restart() -> None:
    run = after_restart(WINDOWS, [Row(1, (), (1,))], [Row(2, (), (2,))])
    assert run.rows([], 10).rows == [(0, 10, 3)]


def test_several_windows_continue_after_a_restart() -> None:
    first = [Row(1, (), (1,)), Row(11, (), (10,)), Row(-5, (), (100,))]
    run = after_restart(WINDOWS, first, [Row(12, (), (2,)), Row(25, (), (7,))])
    assert run.rows([], 20).rows == [(0, 10, 1), (10, 20, 12)]
    assert run.epochs[0].rows == [(-10, 0, 100)]
    run.restart()
    assert run.end().rows == [(20, 30, 7)]


def test_empty_state_can_be_restored() -> None:
    run = harness_of(WINDOWS)
    run.store = MemoryStore.restore(MemoryStore().snapshot())
    run.rows([Row(1, (), (1,))], 0)
    assert run.end().rows == [(0, 10, 1)]
    assert {report["discarded"] for report in run.epochs[-1].reports} == {0}


def test_state_of_another_query_is_discarded() -> None:
    """The watermark is kept."""
    run = harness_of(WINDOWS)
    run.rows([Row(1, (), (1,))], 5)
    changed = replace(WINDOWS, panes=WindowPanes("TUMBLE", 20, 20))
    run.make, run.table = changed.operator, changed.table
    run.restart()
    epoch = run.rows([Row(2, (), (2,)), Row(3, (), (4,))])
    assert (epoch.watermark, {report["discarded"] for report in epoch.reports}) == (5, {1})
    assert run.end().rows == [(0, 20, 6)]


def test_closed_windows_leave_no_state() -> None:
    for query in (WINDOWS, replace(WINDOWS, panes=None, gap_us=10), replace(WINDOWS, mode="early")):
        run = harness_of(query)
        run.rows([Row(1, (), (1,))], 0)
        assert run.stored_names() != []
        run.end()
        assert run.stored_names() == []


QUERIES = [
    SUM,
    AVG,
    WINDOWS,
    replace(AVG, panes=WindowPanes("HOP", 7, 3), mode="close", lateness_us=4),
    replace(AVG, panes=WindowPanes("CUMULATE", 6, 2), every_us=2),
    replace(AVG, gap_us=3),
    replace(AVG, gap_us=3, mode="close"),
]
BATCHES = st.lists(
    st.lists(st.tuples(st.integers(-9, 30), st.sampled_from("abc"), st.integers(0, 9)), max_size=5),
    max_size=20,
)


def outputs(run: Harness, batches: list[list[tuple[int, str, int]]], restart: bool) -> list[Any]:
    key_count = 1 if run.runner.operator.shuffle_schemas[0][0].get_field_index("k0") >= 0 else 0
    for number, batch in enumerate(batches):
        rows = [Row(ts, (key,) * key_count, (value,)) for ts, key, value in batch]
        watermark_us = max((row.ts for row in rows), default=0) - 5
        run.rows(rows, watermark_us if rows else None, now_us=number)
        if restart:
            run.restart()
    run.end()
    return [(epoch.rows, epoch.reports, epoch.update) for epoch in run.epochs]


@pytest.mark.parametrize("query", QUERIES, ids=range(len(QUERIES)))
@settings(deadline=None, max_examples=15)
@given(batches=BATCHES)
def test_restarts_change_neither_output_nor_state(
    query: Query, batches: list[list[tuple[int, str, int]]]
) -> None:
    uninterrupted, restarted = harness_of(query), harness_of(query)
    assert outputs(uninterrupted, batches, False) == outputs(restarted, batches, True)
    assert uninterrupted.store.snapshot() == restarted.store.snapshot()
