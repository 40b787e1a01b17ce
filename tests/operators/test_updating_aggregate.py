"""Updating aggregates by example: EMIT EVERY, windows, results at the end of the input."""

from __future__ import annotations

from dataclasses import replace

from tests.operators.harness import SECOND, D, Query, Row, call, harness_of
from tidegate.operators.aggregate.groups import WindowPanes
from tidegate.operators.watermark import END_OF_INPUT_US

EARLY = Query(panes=WindowPanes("TUMBLE", 10, 10), mode="early")


def test_emit_every_emits_the_pending_changes_of_a_window_that_closes() -> None:
    run = harness_of(replace(EARLY, every_us=SECOND), key_groups=1)
    assert run.rows([Row(1), Row(2)], 0, now_us=0).rows == [(0, 10, 2, "+I")]
    assert run.rows([Row(3)], 0, now_us=1).rows == []
    assert run.rows([Row(4)], 10, now_us=2).rows == [(0, 10, 2, "-U"), (0, 10, 4, "+U")]
    assert run.stored_names() == []


def test_windows_are_deleted_by_the_watermark_and_not_by_the_time_to_live() -> None:
    run = harness_of(replace(EARLY, ttl_us=5), key_groups=1)
    assert run.rows([Row(1)], 0, now_us=1000).rows == [(0, 10, 1, "+I")]
    assert run.rows([Row(2)], 0, now_us=1100).rows == [(0, 10, 1, "-U"), (0, 10, 2, "+U")]
    run.rows([], 10, now_us=1100)
    assert run.stored_names() == []


def test_retracted_doubles_are_identical_to_the_emitted_ones() -> None:
    query = Query((), (D,), (call("stddev_samp", D, D),), ((0,),), (None,), mode="early")
    run = harness_of(query, key_groups=1)
    current: list[float] = []
    for number in range(40):
        changes = run.rows([Row(0, (), (0.1 * number**2,))], number).rows
        assert [value for value, op in changes if op == "-U"] == current
        current = [value for value, op in changes if op in ("+U", "+I")]


def test_row_in_the_last_epoch_is_emitted_once() -> None:
    """The result over no rows is not emitted as well."""
    run = harness_of(Query(mode="early"), key_groups=1)
    run.rows([])
    assert run.rows([Row(0)], END_OF_INPUT_US).rows == [(1, "+I")]
