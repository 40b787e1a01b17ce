"""The epochs of a case, and the position of the restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tidegate.testing.case import Add, Case, CaseSource, EndOfInput, ExpectAll, Restart, Step
from tidegate.testing.runner import epochs_of

A = CaseSource("a", columns=(("n", "INT"),), rows=({"n": 1}, {"n": 2}, {"n": 3}))
B = CaseSource("b", columns=(("n", "INT"),), rows=({"n": 10},))
TABLE = CaseSource("k", "lookup", columns=(("n", "INT"),), rows=({"n": 7}, {"n": 8}))


def case(*sources: CaseSource, **fields: Any) -> Case:
    return Case("c", Path("c.yaml"), sources, query="SELECT 1", expected_rows=(), **fields)


def summary(steps: tuple[Step, ...]) -> list[Any]:
    """Return epochs as {source: numbers}, and other steps by name."""
    return [
        {name: [row["n"] for row in rows] for name, rows in step.rows}
        if isinstance(step, Add)
        else type(step).__name__
        for step in steps
    ]


def test_all_rows_are_one_epoch() -> None:
    assert summary(epochs_of(case(A, B))) == [{"a": [1, 2, 3], "b": [10]}, "EndOfInput"]
    assert summary(epochs_of(case(A, flush=False))) == [{"a": [1, 2, 3]}]


def test_per_row_alternates_between_sources() -> None:
    epochs = summary(epochs_of(case(A, B, watermark_model="per_row", flush=False)))
    assert epochs == [{"a": [1]}, {"b": [10]}, {"a": [2]}, {"a": [3]}]


def test_per_row_alternates_within_a_step() -> None:
    steps = (Add((("a", A.rows), ("b", B.rows))), ExpectAll(()), Add((("a", A.rows[:1]),)))
    epochs = summary(epochs_of(case(A, B, watermark_model="per_row", steps=steps, flush=False)))
    assert epochs == [{"a": [1]}, {"b": [10]}, {"a": [2]}, {"a": [3]}, "ExpectAll", {"a": [1]}]


def test_lookup_tables_are_filled_before_the_first_row() -> None:
    epochs = summary(epochs_of(case(A, TABLE, watermark_model="per_row", flush=False)))
    assert epochs == [{"k": [7, 8]}, {"a": [1]}, {"a": [2]}, {"a": [3]}]


def test_lookup_tables_that_steps_fill_start_empty() -> None:
    steps = (Add((("a", A.rows[:1]),)), Add((("k", TABLE.rows),)))
    assert summary(epochs_of(case(A, TABLE, steps=steps, flush=False))) == [
        {"a": [1]},
        {"k": [7, 8]},
    ]


def test_a_restart_splits_a_single_epoch_unless_a_step_adds_it() -> None:
    epochs = summary(epochs_of(case(A, B), restart=True))
    assert epochs == [{"a": [1], "b": []}, "Restart", {"a": [2, 3], "b": [10]}, "EndOfInput"]
    epochs = summary(epochs_of(case(A, steps=(Add((("a", A.rows),)),)), restart=True))
    assert epochs == [{"a": [1, 2, 3]}, "Restart", "EndOfInput"]


def test_a_restart_is_between_epochs() -> None:
    epochs = summary(epochs_of(case(A, B, watermark_model="per_row"), restart=True))
    assert epochs == [{"a": [1]}, {"b": [10]}, "Restart", {"a": [2]}, {"a": [3]}, "EndOfInput"]


@pytest.mark.parametrize("restart", [False, True])
def test_a_case_with_a_restart_does_not_get_another(restart: bool) -> None:
    steps = (Add((("a", A.rows[:1]),)), Restart(), Add((("a", A.rows[1:]),)), EndOfInput())
    assert epochs_of(case(A, steps=steps), restart) == steps
