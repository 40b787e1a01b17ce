"""What is forgotten after its time to live is forgotten, by example."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import pyarrow as pa

from tests.operators.harness import D, L, Query, Row, S, call, harness_of
from tests.operators.test_regular_join import Harness as JoinHarness
from tests.operators.test_regular_join import make_join
from tidegate.columns import BEFORE
from tidegate.operators.operator import KeyGroupState, Tables
from tidegate.operators.store import sorted_runs as runs

A, B = Row(0, ("a",)), Row(0, ("b",))
GONE = Row(0, ("a",), weight=-1)


def test_a_retraction_of_a_forgotten_row_is_dropped_and_counted() -> None:
    run = harness_of(Query((S,), mode="early", ttl_us=10, retracts=True), key_groups=1)
    assert run.rows([A], now_us=1).main == [("a", 1, "+I")]
    assert run.rows([], now_us=100).main == []
    assert run.rows([GONE], now_us=101).main == []
    assert run.stored_names() == [], "nothing negative is kept"
    assert run.epochs[-1].reports[0]["unknown"] == 1
    assert run.rows([A], now_us=102).main == [("a", 1, "+I")]
    assert run.rows([A], now_us=103).main == [("a", 1, "-U"), ("a", 2, "+U")]


def test_a_join_retracts_only_pairs_that_it_gave_out() -> None:
    run = JoinHarness(make_join("INNER", retracts=True, ttl_us=10))
    assert run.epoch([[(("a", 0, 1), 1)], []], now_us=1) == []
    assert run.epoch([[], []], now_us=100) == []
    assert run.epoch([[], [(("a", 0, 2), 1)]], now_us=101) == []
    assert run.epoch([[(("a", 0, 1), -1)], []], now_us=102) == []
    assert sum(report["unknown"] for report in run.reports) == 1
    assert run.epoch([[(("a", 0, 1), 1)], []], now_us=103) == [("a", 0, 1, "a", 0, 2, "+I")]


def test_a_row_that_waits_keeps_its_group_alive() -> None:
    run = harness_of(Query((S,), mode="early", ttl_us=30, every_us=10), key_groups=1)
    assert run.rows([A, A], now_us=1).main == [("a", 2, "+I")]
    run.rows([B], now_us=12)
    run.rows([B], now_us=23)
    assert run.rows([B], now_us=28).main == []
    assert run.rows([A], now_us=29).main == []
    assert run.rows([B], now_us=32).main == []
    run.restart()
    found = run.rows([B], now_us=40).main
    assert sorted(found) == [
        ("a", 2, "-U"),
        ("a", 3, "+U"),
        ("b", 2, "-U"),
        ("b", 5, "+U"),
    ]


def test_without_keys_there_is_nothing_to_forget() -> None:
    run = harness_of(Query(mode="early", ttl_us=10), key_groups=1)
    run.rows([Row(0)], now_us=1)
    assert run.rows([Row(0)], now_us=100).main == [(1, "-U"), (2, "+U")]


def test_rows_that_are_kept_one_by_one_keep_their_order() -> None:
    calls = (call("collect_list", L, pa.list_(L)),)
    query = Query((S,), (L,), calls, ((0,),), (None,), None, None, "early", ttl_us=10)
    run = harness_of(replace(query, retracts=True), key_groups=1)

    def rows(*values: int, weight: int = 1) -> list[Row]:
        return [Row(0, ("a",), (value,), weight) for value in values]

    run.rows(rows(1, 2, 1), now_us=1)
    assert run.rows(rows(1, weight=-1), now_us=2).main[-1] == ("a", [1, 2], "+U")
    run.restart()
    assert run.rows(rows(7, 1, weight=-1), now_us=3).main[-1] == ("a", [2], "+U")
    assert run.epochs[-1].reports[0]["unknown"] == 1


def test_the_last_words_of_a_group_come_before_it_is_forgotten() -> None:
    run = harness_of(Query((S,), mode="early", ttl_us=5, every_us=100), key_groups=1)
    run.rows([A], now_us=1)
    assert run.rows([A], now_us=2).main == []
    assert run.rows([A], now_us=7).main == [("a", 1, "-U"), ("a", 2, "+U")]
    assert run.rows([], now_us=101).main == [("a", 1, "+I")] and run.stored_names() == []


def test_emit_every_moves_what_an_epoch_brings_and_not_all_that_waits() -> None:
    run = harness_of(Query((L,), mode="early", every_us=1_000), key_groups=1)
    run.rows([Row(0, (-1,))], now_us=0)
    run.rows([Row(0, (number,)) for number in range(20_000)], now_us=1)
    moved = 0
    put = KeyGroupState.put

    def counted(self: KeyGroupState, name: str, key: bytes, tables: Tables) -> int:
        nonlocal moved
        moved += sum(table.num_rows for table in tables)
        return put(self, name, key, tables)

    with patch.object(KeyGroupState, "put", counted):
        for number in range(60):
            assert run.rows([Row(0, (number,))], now_us=2 + number).main == []
    assert moved < 20_000, "all that waits was written once in sixty epochs, at most"
    assert len(run.rows([], now_us=1_000).main) == 20_000


def test_a_sum_is_retracted_as_it_was_told_whatever_order_rows_are_stored_in() -> None:
    """1e16 + 1 + 1 and 1 + 1 + 1e16 are not the same double."""
    calls = (call("sum", D, D), call("var_pop", D, D))
    given = {"values": (D,), "calls": calls, "arguments": ((0,), (0,)), "filters": (None, None)}
    query = Query((S,), **given, mode="early", ttl_us=10, retracts=True)
    run, told = harness_of(query, key_groups=1), []
    with patch.multiple(runs, _FANOUT=100, _SMALL_RUN_ROWS=0):
        for values in ([(1e16, 1), (1.0, 1), (1.0, 1)], [(1e16, -1)], [(1e16, 1)], [(5.0, 1)]):
            rows = [Row(0, ("a",), (value,), weight) for value, weight in values]
            told += run.rows(rows, now_us=1).main
    stands: list[tuple[float, ...]] = []
    for _, *results, op in told:
        if op == BEFORE:
            assert results == stands
        stands = results
    assert len(told) == 7
