"""Mistakes that were found by driving operators bare; each came back once as a small test."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.operators.harness import SECOND, D, Query, Row, call, harness_of
from tidegate.operators.aggregate.groups import Panes
from tidegate.operators.watermark import END_US

TUMBLE = Panes("TUMBLE", 10, 10)
EARLY = Query(panes=TUMBLE, mode="early")


def test_emit_every_keeps_a_closed_window_until_it_has_said_all() -> None:
    """The window went with the watermark while its last rows were still held back."""
    run = harness_of(replace(EARLY, every_us=SECOND), key_groups=1)
    assert run.rows([Row(1), Row(2)], 0, now_us=0).main == [(0, 10, 2, "+I")]
    assert run.rows([Row(3)], 0, now_us=1).main == []
    assert run.rows([Row(4)], 10, now_us=2).main == [(0, 10, 2, "-U"), (0, 10, 4, "+U")]
    assert run.stored_names() == []


def test_a_session_with_another_end_is_another_row() -> None:
    """An upsert by start and end would otherwise leave the session as it was before it grew."""
    run = harness_of(Query(gap_us=10, mode="early"), key_groups=1)
    assert run.rows([Row(0)], 0).main == [(0, 10, 1, "+I")]
    assert run.rows([Row(0)], 0).main == [(0, 10, 1, "-U"), (0, 10, 2, "+U")]
    assert run.rows([Row(5)], 0).main == [(0, 10, 2, "-D"), (0, 15, 3, "+I")]


def test_windows_go_with_the_watermark_whatever_the_time_to_live() -> None:
    run = harness_of(replace(EARLY, ttl_us=5), key_groups=1)
    assert run.rows([Row(1)], 0, now_us=1000).main == [(0, 10, 1, "+I")]
    assert run.rows([Row(2)], 0, now_us=1100).main == [(0, 10, 1, "-U"), (0, 10, 2, "+U")]
    run.rows([], 10, now_us=1100)
    assert run.stored_names() == []


def test_buckets_become_wider_after_a_restart() -> None:
    """What is read back from the index must go together with what was just written."""
    run = harness_of(Query(panes=Panes("TUMBLE", 1, 1)), key_groups=1)
    for first in (0, 100):
        run.rows([Row(first + number) for number in range(100)], -5)
        run.restart()
    assert sorted(run.end().main) == [(number, number + 1, 1) for number in range(200)]


@pytest.mark.parametrize("mode", ["close", "early"])
def test_a_pair_that_comes_too_late_is_two_rows(mode: str) -> None:
    """Weights add up to nothing where a row is retracted and added anew."""
    run = harness_of(Query(panes=TUMBLE, mode=mode, retracts=True), key_groups=1)
    run.rows([Row(1)], 10)
    assert run.rows([Row(1, weight=-1), Row(2, weight=1)], 10).late_rows == 2


def test_what_is_retracted_is_to_the_bit_what_came_out() -> None:
    query = Query((), (D,), (call("stddev_samp", D, D),), ((0,),), (None,), mode="early")
    run = harness_of(query, key_groups=1)
    last: list[float] = []
    for number in range(40):
        out = run.rows([Row(0, (), (0.1 * number**2,))], number).main
        assert [value for value, op in out if op == "-U"] == last
        last = [value for value, op in out if op in ("+U", "+I")]


def test_a_row_that_comes_with_the_end_is_told_once() -> None:
    """An aggregate without keys speaks at the end if it never did, and not if it does so now."""
    run = harness_of(Query(mode="early"), key_groups=1)
    run.rows([])
    assert run.rows([Row(0)], END_US).main == [(1, "+I")]
