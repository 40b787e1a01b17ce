"""Changelog normalization: the materialized changelog has the last row of every key."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.operators.harness import Harness, L, Row, S, hash_of
from tidegate.columns import ARRIVAL_FILE, ARRIVAL_ROW, HASH, OP
from tidegate.operators.normalize import NormalizeOperator

EXAMPLES = int(os.environ.get("TIDEGATE_EXAMPLES", "150"))
LIMITS = settings(deadline=None, max_examples=-(-EXAMPLES // 3))
# A key, a value, and the operation.
Upsert = tuple[str | None, int | None, str]
Result = dict[str | None, int | None]
KEYS = st.sampled_from(["a", "b", "é", "", None])
UPSERTS = st.tuples(KEYS, st.sampled_from([None, 1, 2]), st.sampled_from(["+I", "+U", "-U", "-D"]))


def table(rows: Sequence[Row]) -> pa.Table:
    """Return upserts; the time of a row is its input position, in files of three rows."""
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


def upsert(position: int, key: str | None, value: int | None, op: str = "+U") -> Row:
    return Row(position, (key,), (value, op))


def new_harness(ttl_us: int | None = None) -> Harness:
    return Harness(lambda: NormalizeOperator((S,), (S, L), ttl_us=ttl_us), table)


def test_emits_the_previous_row_with_an_update() -> None:
    run = new_harness()
    assert run.rows([upsert(0, "a", 1)]).rows == [("a", 1, "+I")]
    assert run.rows([upsert(1, "a", 1)]).rows == []
    changed = run.rows([upsert(3, "a", 9, "+I"), upsert(2, "a", 8, "+I")])
    assert changed.rows == [("a", 1, "-U"), ("a", 9, "+U")]
    deleted = run.rows([upsert(4, "a", None, "-D"), upsert(5, "b", 0, "-D")])
    assert deleted.rows == [("a", 9, "-D")]
    assert run.rows([upsert(6, "a", 9)]).rows == [("a", 9, "+I")]


def test_ignores_rows_before_the_stored_input_position() -> None:
    """Files may be read out of order."""
    run = new_harness()
    assert run.rows([upsert(4, "a", 5), upsert(9, "b", 1)]).rows == [
        ("a", 5, "+I"),
        ("b", 1, "+I"),
    ]
    assert run.rows([upsert(3, "a", 4), upsert(8, "b", 0, "-D")]).rows == []
    run.restart()
    assert run.rows([upsert(0, "a", 1), upsert(7, "a", 7)]).rows == [
        ("a", 5, "-U"),
        ("a", 7, "+U"),
    ]


def test_row_before_a_delete_does_not_bring_its_key_back() -> None:
    run = new_harness()
    run.rows([upsert(3, "a", 5)])
    assert run.rows([upsert(5, "a", None, "-D")]).rows == [("a", 5, "-D")]
    run.restart()
    assert run.rows([upsert(4, "a", 7)]).rows == []
    assert run.rows([upsert(6, "a", 8)]).rows == [("a", 8, "+I")]


def test_tombstone_expires_after_the_time_to_live() -> None:
    run = new_harness(ttl_us=10)
    run.rows([upsert(3, "a", 5)], now_us=0)
    run.rows([upsert(5, "a", None, "-D")], now_us=1)
    assert run.rows([upsert(4, "a", 7)], now_us=10).rows == []
    assert run.rows([upsert(4, "a", 7)], now_us=11).rows == [("a", 7, "+I")]


def apply_changes(result: Result, changes: Iterable[tuple[Any, ...]]) -> None:
    """Apply a changelog with retractions to its materialization."""
    for key, value, op in changes:
        if op in ("-U", "-D"):
            assert key in result and result.pop(key) == value, "only emitted rows are retracted"
        else:
            assert key not in result
            result[key] = value


def apply_upserts(result: Result, upserts: Iterable[Upsert]) -> None:
    for key, value, op in upserts:
        if op == "-D":
            result.pop(key, None)
        elif op != "-U":
            result[key] = value


@LIMITS
@given(st.lists(st.lists(UPSERTS, max_size=6), max_size=25), st.integers(0, 5))
def test_result_is_the_last_row_of_every_key_after_every_epoch(
    epochs: list[list[Upsert]], restart_every: int
) -> None:
    run, position = new_harness(), 0
    expected: Result = {}
    result: Result = {}
    for number, epoch in enumerate(epochs):
        tasks: list[list[list[Row]]] = [[[], []], [[]]]
        for item in epoch:
            tasks[position % 2][0].append(upsert(position, *item))
            position += 1
        apply_upserts(expected, epoch)
        apply_changes(result, run.epoch(tasks).rows)
        assert result == expected
        if restart_every and number % restart_every == 0:
            run.restart()


@LIMITS
@given(
    st.lists(UPSERTS, max_size=40),
    st.randoms(use_true_random=False),
    st.integers(1, 8),
    st.integers(0, 3),
)
def test_result_does_not_depend_on_the_order_in_which_rows_are_read(
    upserts: list[Upsert], random: Any, epochs: int, restart_every: int
) -> None:
    expected: Result = {}
    apply_upserts(expected, upserts)
    rows = [upsert(position, *item) for position, item in enumerate(upserts)]
    random.shuffle(rows)
    run = new_harness()
    result: Result = {}
    for number in range(epochs):
        apply_changes(result, run.epoch([[rows[number::epochs]]]).rows)
        if restart_every and number % restart_every == 0:
            run.restart()
    assert result == expected


# An input position, a key, a value, and the operation.
POSITIONED = st.tuples(
    st.integers(0, 30), KEYS, st.integers(0, 9), st.sampled_from(["+U", "+U", "-D"])
)


@LIMITS
@given(
    st.lists(st.tuples(st.integers(0, 15), st.lists(POSITIONED, max_size=5)), max_size=30),
    st.integers(0, 3),
)
def test_time_to_live_expires_tombstones_but_not_rows(
    epochs: list[tuple[int, list[tuple[int, str | None, int, str]]]], restart_every: int
) -> None:
    run, now_us = new_harness(ttl_us=10), 0
    # By key: the position of its last row, its value (None for a delete), and its time.
    model: dict[str | None, tuple[int, int | None, int]] = {}
    result: Result = {}
    for number, (pause, drawn) in enumerate(epochs):
        now_us += pause
        model = {k: m for k, m in model.items() if m[1] is not None or m[2] + 10 > now_us}
        for position, key, value, op in sorted(drawn, key=lambda row: row[0]):
            if key not in model or model[key][0] <= position:
                model[key] = (position, value if op == "+U" else None, now_us)
        rows = [upsert(*item) for item in drawn]
        apply_changes(result, run.epoch([[rows]], now_us=now_us).rows)
        assert result == {k: value for k, (_, value, _) in model.items() if value is not None}
        if restart_every and number % restart_every == 0:
            run.restart()
