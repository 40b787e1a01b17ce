"""Upserts to changes: what stands is the last row of every key, however they come in."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.operators.harness import Harness, L, Row, S, hash_of
from tidegate.columns import ARRIVAL_FILE, ARRIVAL_ROW, HASH, OP
from tidegate.operators.normalize import NormalizeOperator

EXAMPLES = int(os.environ.get("TIDEGATE_EXAMPLES", "150"))
LIMITS = settings(deadline=None, max_examples=-(-EXAMPLES // 3))
# The time of a row is the place where it stood; its values are a number and what it does.
Upsert = tuple[str | None, int | None, str]
KEYS = st.sampled_from(["a", "b", "é", "", None])
UPSERTS = st.tuples(KEYS, st.sampled_from([None, 1, 2]), st.sampled_from(["+I", "+U", "-U", "-D"]))


def table(rows: Sequence[Row]) -> pa.Table:
    columns: dict[str, tuple[pa.DataType, list[Any]]] = {
        HASH: (L, [hash_of(row.keys) for row in rows]),
        "k0": (S, [row.keys[0] for row in rows]),
        "c0": (S, [row.keys[0] for row in rows]),
        "c1": (L, [row.values[0] for row in rows]),
        OP: (S, [row.values[1] for row in rows]),
        ARRIVAL_FILE: (S, [f"{row.ts // 3:05}" for row in rows]),
        ARRIVAL_ROW: (L, [row.ts % 3 for row in rows]),
    }
    return pa.table({name: pa.array(values, kind) for name, (kind, values) in columns.items()})


def upserts(ttl_us: int | None = None) -> Harness:
    return Harness(lambda: NormalizeOperator((S,), (S, L), ttl_us=ttl_us), table)


def test_an_upsert_tells_what_was_there() -> None:
    run = upserts()
    assert run.rows([Row(0, ("a",), (1, "+U"))]).main == [("a", 1, "+I")]
    assert run.rows([Row(1, ("a",), (1, "+U"))]).main == []
    changed = run.rows([Row(3, ("a",), (9, "+I")), Row(2, ("a",), (8, "+I"))])
    assert changed.main == [("a", 1, "-U"), ("a", 9, "+U")]
    assert run.rows([Row(4, ("a",), (None, "-D")), Row(5, ("b",), (0, "-D"))]).main == [
        ("a", 9, "-D")
    ]
    assert run.rows([Row(6, ("a",), (9, "+U"))]).main == [("a", 9, "+I")]


def test_the_last_row_is_the_one_that_stood_last_in_whatever_epoch_it_came() -> None:
    """Files of the same moment may come in any order."""
    run = upserts()
    assert run.rows([Row(4, ("a",), (5, "+U")), Row(9, ("b",), (1, "+U"))]).main == [
        ("a", 5, "+I"),
        ("b", 1, "+I"),
    ]
    assert run.rows([Row(3, ("a",), (4, "+U")), Row(8, ("b",), (0, "-D"))]).main == []
    run.restart()
    assert run.rows([Row(0, ("a",), (1, "+U")), Row(7, ("a",), (7, "+U"))]).main == [
        ("a", 5, "-U"),
        ("a", 7, "+U"),
    ]


def test_what_stood_before_a_delete_does_not_come_back() -> None:
    run = upserts()
    run.rows([Row(3, ("a",), (5, "+U"))])
    assert run.rows([Row(5, ("a",), (None, "-D"))]).main == [("a", 5, "-D")]
    run.restart()
    assert run.rows([Row(4, ("a",), (7, "+U"))]).main == []
    assert run.rows([Row(6, ("a",), (8, "+U"))]).main == [("a", 8, "+I")]


def test_a_delete_is_forgotten_after_its_time_to_live() -> None:
    run = upserts(ttl_us=10)
    run.rows([Row(3, ("a",), (5, "+U"))], now_us=0)
    run.rows([Row(5, ("a",), (None, "-D"))], now_us=1)
    assert run.rows([Row(4, ("a",), (7, "+U"))], now_us=10).main == []
    assert run.rows([Row(4, ("a",), (7, "+U"))], now_us=11).main == [("a", 7, "+I")]


Standing = dict[str | None, int | None]


def played(found: Standing, changes: list[tuple[Any, ...]]) -> None:
    """What stands after these changes."""
    for key, value, op in changes:
        if op in ("-U", "-D"):
            assert key in found and found.pop(key) == value, "what is retracted was there"
        else:
            assert key not in found
            found[key] = value


@LIMITS
@given(st.lists(st.lists(UPSERTS, max_size=6), max_size=25), st.integers(0, 5))
def test_what_stands_is_the_last_row_of_every_key(
    epochs: list[list[Upsert]], restart_every: int
) -> None:
    run, place = upserts(), 0
    expected: Standing = {}
    found: Standing = {}
    for number, epoch in enumerate(epochs):
        tasks: list[list[list[Row]]] = [[[], []], [[]]]
        for key, value, op in epoch:
            tasks[place % 2][0].append(Row(place, (key,), (value, op)))
            place += 1
            if op == "-D":
                expected.pop(key, None)
            elif op != "-U":
                expected[key] = value
        played(found, run.epoch(tasks).main)
        assert found == expected
        if restart_every and number % restart_every == 0:
            run.restart()


@LIMITS
@given(
    st.lists(UPSERTS, max_size=40),
    st.randoms(use_true_random=False),
    st.integers(1, 8),
    st.integers(0, 3),
)
def test_rows_in_any_order_of_epochs_leave_the_last_one_of_every_key(
    rows: list[Upsert], dice: Any, epochs: int, restart_every: int
) -> None:
    """Also a delete: what stood before it does not come back, in whatever epoch it comes."""
    placed = [Row(place, (key,), (value, op)) for place, (key, value, op) in enumerate(rows)]
    expected: Standing = {}
    for key, value, op in rows:
        if op == "-D":
            expected.pop(key, None)
        elif op != "-U":
            expected[key] = value
    dice.shuffle(placed)
    run = upserts()
    found: Standing = {}
    for number in range(epochs):
        played(found, run.epoch([[placed[number::epochs]]]).main)
        if restart_every and number % restart_every == 0:
            run.restart()
    assert found == expected


# A row, and how long after the one before it comes; its epoch is that of its moment.
TIMED = st.tuples(st.integers(0, 30), KEYS, st.integers(0, 9), st.sampled_from(["+U", "+U", "-D"]))


@LIMITS
@given(
    st.lists(st.tuples(st.integers(0, 15), st.lists(TIMED, max_size=5)), max_size=30),
    st.integers(0, 3),
)
def test_with_a_time_to_live_deletes_are_forgotten_and_rows_are_not(
    epochs: list[tuple[int, list[tuple[int, str | None, int, str]]]], restart_every: int
) -> None:
    run, now = upserts(ttl_us=10), 0
    # By key: where its last row stood, its value or None for a delete, and when that came.
    model: dict[str | None, tuple[int, int | None, int]] = {}
    found: Standing = {}
    for number, (pause, rows) in enumerate(epochs):
        now += pause
        model = {k: m for k, m in model.items() if m[1] is not None or m[2] + 10 > now}
        for place, key, value, op in sorted(rows, key=lambda row: row[0]):
            if key not in model or model[key][0] <= place:
                model[key] = (place, value if op == "+U" else None, now)
        given_rows = [Row(place, (key,), (value, op)) for place, key, value, op in rows]
        played(found, run.epoch([[given_rows]], now_us=now).main)
        assert found == {k: value for k, (_, value, _) in model.items() if value is not None}
        if restart_every and number % restart_every == 0:
            run.restart()
