"""Upserts to changes: what stands is the last row of every key, however they come in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.operators.driving import Drive, L, Row, S, hash_of
from tidegate.columns import ARRIVAL_FILE, ARRIVAL_ROW, OP
from tidegate.operators.group_kernels import HASH
from tidegate.operators.normalize import Normalize

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


def upserts() -> Drive:
    return Drive(lambda: Normalize((S,), (S, L)), table)


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


@settings(deadline=None, max_examples=40)
@given(st.lists(st.lists(UPSERTS, max_size=6), max_size=25), st.integers(0, 5))
def test_what_stands_is_the_last_row_of_every_key(
    epochs: list[list[Upsert]], restart_every: int
) -> None:
    run, place = upserts(), 0
    expected: dict[str | None, int | None] = {}
    found: dict[str | None, int | None] = {}
    for number, epoch in enumerate(epochs):
        tasks: list[list[list[Row]]] = [[[], []], [[]]]
        for key, value, op in epoch:
            tasks[place % 2][0].append(Row(place, (key,), (value, op)))
            place += 1
            if op == "-D":
                expected.pop(key, None)
            elif op != "-U":
                expected[key] = value
        for key, value, op in run.epoch(tasks).main:
            if op in ("-U", "-D"):
                assert key in found and found.pop(key) == value, "what is retracted was there"
            else:
                assert key not in found
                found[key] = value
        assert found == expected
        if restart_every and number % restart_every == 0:
            run.restart()
