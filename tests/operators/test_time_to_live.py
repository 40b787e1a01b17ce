"""Time to live by example: unknown retractions, pending changes, joins."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import pyarrow as pa

from tests.operators.harness import D, L, Query, Row, S, call, harness_of
from tests.operators.test_regular_join import Harness as JoinHarness
from tests.operators.test_regular_join import make_join
from tidegate.columns import BEFORE
from tidegate.operators.operator import KeyGroupState, Tables
from tidegate.operators.store import sorted_runs

A, B = Row(0, ("a",)), Row(0, ("b",))
RETRACTION = Row(0, ("a",), weight=-1)


def test_retraction_of_an_expired_row_is_dropped_and_counted() -> None:
    run = harness_of(Query((S,), mode="early", ttl_us=10, retracts=True), key_groups=1)
    assert run.rows([A], now_us=1).rows == [("a", 1, "+I")]
    assert run.rows([], now_us=100).rows == []
    assert run.rows([RETRACTION], now_us=101).rows == []
    assert run.stored_names() == [], "the retraction is not stored"
    assert run.epochs[-1].reports[0]["unknown_retractions"] == 1
    assert run.rows([A], now_us=102).rows == [("a", 1, "+I")]
    assert run.rows([A], now_us=103).rows == [("a", 1, "-U"), ("a", 2, "+U")]


def test_join_retracts_only_pairs_that_it_has_emitted() -> None:
    run = JoinHarness(make_join("INNER", retracts=True, ttl_us=10))
    assert run.epoch([[(("a", 0, 1), 1)], []], now_us=1) == []
    assert run.epoch([[], []], now_us=100) == []
    assert run.epoch([[], [(("a", 0, 2), 1)]], now_us=101) == []
    assert run.epoch([[(("a", 0, 1), -1)], []], now_us=102) == []
    assert sum(report["unknown_retractions"] for report in run.reports) == 1
    assert run.epoch([[(("a", 0, 1), 1)], []], now_us=103) == [("a", 0, 1, "a", 0, 2, "+I")]


def test_pending_row_extends_the_time_to_live_of_its_group() -> None:
    run = harness_of(Query((S,), mode="early", ttl_us=30, every_us=10), key_groups=1)
    assert run.rows([A, A], now_us=1).rows == [("a", 2, "+I")]
    run.rows([B], now_us=12)
    run.rows([B], now_us=23)
    assert run.rows([B], now_us=28).rows == []
    assert run.rows([A], now_us=29).rows == []
    assert run.rows([B], now_us=32).rows == []
    run.restart()
    changes = run.rows([B], now_us=40).rows
    assert sorted(changes) == [
        ("a", 2, "-U"),
        ("a", 3, "+U"),
        ("b", 2, "-U"),
        ("b", 5, "+U"),
    ]


def test_aggregate_without_keys_does_not_expire() -> None:
    run = harness_of(Query(mode="early", ttl_us=10), key_groups=1)
    run.rows([Row(0)], now_us=1)
    assert run.rows([Row(0)], now_us=100).rows == [(1, "-U"), (2, "+U")]


def test_rows_of_an_ordered_aggregate_keep_their_order() -> None:
    calls = (call("collect_list", L, pa.list_(L)),)
    query = Query((S,), (L,), calls, ((0,),), (None,), None, None, "early", ttl_us=10)
    run = harness_of(replace(query, retracts=True), key_groups=1)

    def rows(*values: int, weight: int = 1) -> list[Row]:
        return [Row(0, ("a",), (value,), weight) for value in values]

    run.rows(rows(1, 2, 1), now_us=1)
    assert run.rows(rows(1, weight=-1), now_us=2).rows[-1] == ("a", [1, 2], "+U")
    run.restart()
    assert run.rows(rows(7, 1, weight=-1), now_us=3).rows[-1] == ("a", [2], "+U")
    assert run.epochs[-1].reports[0]["unknown_retractions"] == 1


def test_pending_changes_are_emitted_before_their_group_expires() -> None:
    run = harness_of(Query((S,), mode="early", ttl_us=5, every_us=100), key_groups=1)
    run.rows([A], now_us=1)
    assert run.rows([A], now_us=2).rows == []
    assert run.rows([A], now_us=7).rows == [("a", 1, "-U"), ("a", 2, "+U")]
    assert run.rows([], now_us=101).rows == [("a", 1, "+I")] and run.stored_names() == []


def test_emit_every_does_not_rewrite_the_pending_changes() -> None:
    run = harness_of(Query((L,), mode="early", every_us=1_000), key_groups=1)
    run.rows([Row(0, (-1,))], now_us=0)
    run.rows([Row(0, (number,)) for number in range(20_000)], now_us=1)
    rows_written = 0
    put = KeyGroupState.put

    def counting_put(self: KeyGroupState, name: str, key: bytes, tables: Tables) -> int:
        nonlocal rows_written
        rows_written += sum(table.num_rows for table in tables)
        return put(self, name, key, tables)

    with patch.object(KeyGroupState, "put", counting_put):
        for number in range(60):
            assert run.rows([Row(0, (number,))], now_us=2 + number).rows == []
    assert rows_written < 20_000, "sixty epochs rewrite the pending changes at most once"
    assert len(run.rows([], now_us=1_000).rows) == 20_000


def test_sum_is_retracted_with_the_emitted_value() -> None:
    """1e16 + 1 + 1 and 1 + 1 + 1e16 are different doubles."""
    calls = (call("sum", D, D), call("var_pop", D, D))
    columns = {"values": (D,), "calls": calls, "arguments": ((0,), (0,)), "filters": (None, None)}
    query = Query((S,), **columns, mode="early", ttl_us=10, retracts=True)
    run, changes = harness_of(query, key_groups=1), []
    with patch.multiple(sorted_runs, _FANOUT=100, _SMALL_RUN_ROWS=0):
        for values in ([(1e16, 1), (1.0, 1), (1.0, 1)], [(1e16, -1)], [(1e16, 1)], [(5.0, 1)]):
            rows = [Row(0, ("a",), (value,), weight) for value, weight in values]
            changes += run.rows(rows, now_us=1).rows
    current: list[float] = []
    for _, *results, op in changes:
        if op == BEFORE:
            assert results == current
        current = results
    assert len(changes) == 7
