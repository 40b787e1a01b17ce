"""Random GROUP BY queries return what DuckDB returns in batch over the rows that are not late.

The input is split at random into epochs, tasks and key groups, with restarts. A model in plain
Python decides which rows are late.

TIDEGATE_EXAMPLES is the number of examples over the whole file (500), TIDEGATE_SEED the seed; both
are printed with `-s`. A long run: TIDEGATE_EXAMPLES=20000 pytest -s <this file>.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from tests.operators.batch import Results, assert_same_results, batch_results, same_value
from tests.operators.harness import Harness, Query, Row, normalize_keys, state_limits
from tests.operators.scenarios import Scenario, scenarios
from tests.operators.window_model import ModelResult, run_model
from tidegate.columns import AFTER, BEFORE, DELETE, INSERT
from tidegate.operators.watermark import Origin, WatermarkUpdate

EXAMPLES = int(os.environ.get("TIDEGATE_EXAMPLES", "500"))
SEED = int(os.environ.get("TIDEGATE_SEED", "20261115"))
PROPERTIES = 7
FIXED = ("TUMBLE", "HOP", "CUMULATE", "CLOSING_TIME")
WINDOWS = (*FIXED, "SESSION")


@pytest.fixture(scope="module", autouse=True)
def _print_seed() -> None:
    print(f"TIDEGATE_SEED={SEED} TIDEGATE_EXAMPLES={EXAMPLES}")


def examples(strategy: st.SearchStrategy[Scenario]) -> Callable[[Any], Any]:
    """Return a decorator that runs a test with its part of the examples."""

    def decorate(test: Any) -> Any:
        limits = settings(
            max_examples=-(-EXAMPLES // PROPERTIES),
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        return seed(SEED)(limits(given(strategy)(test)))

    return decorate


def run_scenario(case: Scenario) -> Harness:
    origins = tuple(Origin(origin) for origin in case.origins)
    harness = Harness(case.query.operator, case.query.table, case.key_groups, origins)
    with state_limits(case.small):
        for number, step in enumerate(case.steps):
            tasks: list[list[list[Row]]] = [[[], []] for _ in range(3)]
            for row, (task, batch) in zip(step.rows, case.tasks[number], strict=True):
                tasks[task][batch].append(row)
            updates = [WatermarkUpdate(origin, 0, us) for origin, us in case.task_updates[number]]
            harness.epoch(tasks, updates, case.times[number])
            if case.restarts[number]:
                harness.restart()
    return harness


def split_row(query: Query, row: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Split an output row into keys with window, and results."""
    index = len(query.keys) + (2 if query.windowed else 0)
    return normalize_keys(row[:index]), row[index:]


def append_only_results(query: Query, harness: Harness) -> Results:
    """Return the results of an append-only output; every group is emitted once."""
    emitted: Results = {}
    for epoch in harness.epochs:
        for row in epoch.rows:
            key, results = split_row(query, row)
            assert key not in emitted, f"{key} is emitted twice"
            emitted[key] = results
    return emitted


def changelog_results(query: Query, epochs: list[Any]) -> Results:
    """Return the results after all changes; check that the changelog is consistent."""
    current: Results = {}
    for epoch in epochs:
        pending: tuple[Any, ...] | None = None
        for *row, op in epoch.rows:
            key, results = split_row(query, tuple(row))
            assert (op == AFTER) == (pending is not None), "-U and +U come as a pair"
            if op in (BEFORE, DELETE):
                assert key in current, f"{op} {key} does not exist"
                assert same_cells(current.pop(key), results), f"{op} {key} {results} does not exist"
            else:
                assert key not in current, f"{op} {key} exists already"
                assert op in (INSERT, AFTER) and (pending in (None, key)), (op, pending)
                current[key] = results
            pending = key if op == BEFORE else None
        assert pending is None
    return current


def final_results(query: Query, harness: Harness) -> Results:
    """Return the results after all epochs, from a changelog or an append-only output."""
    if query.with_op:
        return changelog_results(query, harness.epochs)
    return append_only_results(query, harness)


def same_cells(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    return all(map(same_value, one, other))


def check_late(case: Scenario, harness: Harness, model: ModelResult) -> None:
    """Check that exactly the late rows are counted and, with `keeps_late`, emitted."""
    counted = harness.epochs[-1].late_rows
    if case.query.keeps_late:
        # Rows are compared without their id: a retraction may remove any of identical rows.
        content = {row.id: repr(replace(row, id=0)) for step in case.steps for row in step.rows}
        emitted = Counter(content[row["l0"]] for epoch in harness.epochs for row in epoch.late)
        assert emitted == Counter(content[row.id] for row in model.late)
    else:
        assert not any(epoch.late for epoch in harness.epochs)
    assert counted == len(model.late)


def check_closing(case: Scenario, harness: Harness, model: ModelResult, exact: bool) -> None:
    """Check that windows are emitted when the watermark reaches their end, with `exact` at once.

    Sessions are emitted when the watermark has passed their end.
    """
    end_index = len(case.query.keys) + 1
    delay = 0 if case.query.gap_us is None else 1
    for number, epoch in enumerate(harness.epochs):
        previous_us, watermark_us = model.previous_watermarks[number], model.watermarks[number]
        assert epoch.watermark == watermark_us
        for row in epoch.rows:
            closing_time = row[end_index] + delay
            assert watermark_us is not None and closing_time <= watermark_us, "emitted early"
            if exact and previous_us is not None:
                assert closing_time > previous_us, "emitted late"


def check_empty(harness: Harness) -> None:
    assert harness.stored_names() == [], "the state is empty after the end"


def expected_results(case: Scenario, model: ModelResult) -> Results:
    return batch_results(case.query, case.texts, model.assigned)


@examples(scenarios("close", (*FIXED, "SESSION")))
def test_windows_are_emitted_once(case: Scenario) -> None:
    harness, model = run_scenario(case), run_model(case.query, case.steps, case.origins)
    assert_same_results(append_only_results(case.query, harness), expected_results(case, model))
    check_late(case, harness, model)
    check_closing(case, harness, model, exact=True)
    check_empty(harness)


@examples(scenarios("close", (*FIXED, "SESSION", "SESSION"), lateness=st.integers(1, 15)))
def test_late_rows_update_closed_windows(case: Scenario) -> None:
    harness, model = run_scenario(case), run_model(case.query, case.steps, case.origins)
    assert_same_results(
        changelog_results(case.query, harness.epochs), expected_results(case, model)
    )
    check_late(case, harness, model)
    check_closing(case, harness, model, exact=False)
    check_empty(harness)


@examples(scenarios("close", ("SESSION",)))
def test_sessions_are_emitted_once(case: Scenario) -> None:
    harness, model = run_scenario(case), run_model(case.query, case.steps, case.origins)
    assert_same_results(append_only_results(case.query, harness), expected_results(case, model))
    check_late(case, harness, model)
    check_closing(case, harness, model, exact=True)
    check_empty(harness)


@examples(scenarios("early", (*FIXED, "NONE", "SESSION"), lateness=st.integers(0, 9)))
def test_changelog_adds_up(case: Scenario) -> None:
    harness, model = run_scenario(case), run_model(case.query, case.steps, case.origins)
    assert_same_results(
        changelog_results(case.query, harness.epochs), expected_results(case, model)
    )
    if case.query.windowed:
        check_late(case, harness, model)
        check_empty(harness)


@examples(scenarios("end", ("NONE",)))
def test_bounded_input_is_emitted_at_its_end(case: Scenario) -> None:
    harness, model = run_scenario(case), run_model(case.query, case.steps, case.origins)
    assert_same_results(append_only_results(case.query, harness), expected_results(case, model))
    assert not any(epoch.rows for epoch in harness.epochs if epoch.watermark != 2**63 - 1)


@st.composite
def retracting(draw: st.DrawFn) -> Scenario:
    mode = draw(st.sampled_from(["close", "late", "early", "end"]))
    kinds = {"early": (*FIXED, "NONE", "SESSION"), "end": ("NONE",)}.get(mode, WINDOWS)
    lateness = st.integers(1, 15) if mode == "late" else None
    emit_mode = "close" if mode == "late" else mode
    return draw(scenarios(emit_mode, kinds, lateness=lateness, retracts=True))


@examples(scenarios("close", ("SESSION",), lateness=st.integers(0, 9), retracts=True))
def test_retractions_split_sessions(case: Scenario) -> None:
    harness, model = run_scenario(case), run_model(case.query, case.steps, case.origins)
    results = final_results(case.query, harness)
    assert_same_results(results, expected_results(case, model))
    check_late(case, harness, model)
    check_closing(case, harness, model, exact=False)
    check_empty(harness)


@examples(retracting())
def test_retracted_rows_do_not_count(case: Scenario) -> None:
    harness, model = run_scenario(case), run_model(case.query, case.steps, case.origins)
    results = final_results(case.query, harness)
    assert_same_results(results, expected_results(case, model))
    if case.query.windowed:
        check_late(case, harness, model)
        check_empty(harness)
