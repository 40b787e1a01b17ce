"""How rows become epochs, and where a restart goes."""

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


def short(steps: tuple[Step, ...]) -> list[Any]:
    """Epochs as {source: numbers}, other steps by name."""
    return [
        {name: [row["n"] for row in rows] for name, rows in step.rows}
        if isinstance(step, Add)
        else type(step).__name__
        for step in steps
    ]


def test_all_rows_are_one_epoch() -> None:
    assert short(epochs_of(case(A, B))) == [{"a": [1, 2, 3], "b": [10]}, "EndOfInput"]
    assert short(epochs_of(case(A, flush=False))) == [{"a": [1, 2, 3]}]


def test_per_row_takes_turns() -> None:
    found = short(epochs_of(case(A, B, watermark_model="per_row", flush=False)))
    assert found == [{"a": [1]}, {"b": [10]}, {"a": [2]}, {"a": [3]}]


def test_per_row_holds_within_a_step() -> None:
    steps = (Add((("a", A.rows), ("b", B.rows))), ExpectAll(()), Add((("a", A.rows[:1]),)))
    found = short(epochs_of(case(A, B, watermark_model="per_row", steps=steps, flush=False)))
    assert found == [{"a": [1]}, {"b": [10]}, {"a": [2]}, {"a": [3]}, "ExpectAll", {"a": [1]}]


def test_lookup_tables_are_full_before_the_first_row() -> None:
    found = short(epochs_of(case(A, TABLE, watermark_model="per_row", flush=False)))
    assert found == [{"k": [7, 8]}, {"a": [1]}, {"a": [2]}, {"a": [3]}]


def test_lookup_tables_that_steps_fill_start_empty() -> None:
    steps = (Add((("a", A.rows[:1]),)), Add((("k", TABLE.rows),)))
    assert short(epochs_of(case(A, TABLE, steps=steps, flush=False))) == [{"a": [1]}, {"k": [7, 8]}]


def test_a_restart_splits_a_single_epoch_unless_a_step_adds_it() -> None:
    cut = short(epochs_of(case(A, B), restart=True))
    assert cut == [{"a": [1], "b": []}, "Restart", {"a": [2, 3], "b": [10]}, "EndOfInput"]
    whole = short(epochs_of(case(A, steps=(Add((("a", A.rows),)),)), restart=True))
    assert whole == [{"a": [1, 2, 3]}, "Restart", "EndOfInput"]


def test_a_restart_goes_between_epochs() -> None:
    found = short(epochs_of(case(A, B, watermark_model="per_row"), restart=True))
    assert found == [{"a": [1]}, {"b": [10]}, "Restart", {"a": [2]}, {"a": [3]}, "EndOfInput"]


@pytest.mark.parametrize("restart", [False, True])
def test_a_case_with_a_restart_keeps_its_own(restart: bool) -> None:
    steps = (Add((("a", A.rows[:1]),)), Restart(), Add((("a", A.rows[1:]),)), EndOfInput())
    assert epochs_of(case(A, steps=steps), restart) == steps
