"""Any split of any input into epochs, tasks and key groups, any restarts: what comes out is what
DuckDB says in batch about the rows that were not late, and exactly the others are late.

TIDEGATE_EXAMPLES is the number of examples over the whole file (500), TIDEGATE_SEED where they
start; both are printed with `-s`. A long run: TIDEGATE_EXAMPLES=20000 pytest -s <this file>.
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

from tests.operators.batch import Results, assert_same, expected, same_value
from tests.operators.harness import Harness, Query, Row, normalize_keys, state_limits
from tests.operators.model import Verdict, judge
from tests.operators.scenarios import Scenario, scenarios
from tidegate.columns import AFTER, BEFORE, DELETE, INSERT
from tidegate.operators.watermark import Origin, WatermarkUpdate

EXAMPLES = int(os.environ.get("TIDEGATE_EXAMPLES", "500"))
SEED = int(os.environ.get("TIDEGATE_SEED", "20261115"))
PROPERTIES = 7
FIXED = ("TUMBLE", "HOP", "CUMULATE", "DUE")
WINDOWS = (*FIXED, "SESSION")


@pytest.fixture(scope="module", autouse=True)
def _say_the_seed() -> None:
    print(f"TIDEGATE_SEED={SEED} TIDEGATE_EXAMPLES={EXAMPLES}")


def examples(strategy: st.SearchStrategy[Scenario]) -> Callable[[Any], Any]:
    """A property over its share of the examples."""

    def decorate(test: Any) -> Any:
        limits = settings(
            max_examples=-(-EXAMPLES // PROPERTIES),
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        return seed(SEED)(limits(given(strategy)(test)))

    return decorate


def run(case: Scenario) -> Harness:
    origins = tuple(Origin(origin) for origin in case.origins)
    harness = Harness(case.query.operator, case.query.table, case.key_groups, origins)
    with state_limits(case.small):
        for place, step in enumerate(case.steps):
            tasks: list[list[list[Row]]] = [[[], []] for _ in range(3)]
            for row, (task, number) in zip(step.rows, case.tasks[place], strict=True):
                tasks[task][number].append(row)
            updates = [WatermarkUpdate(origin, 0, mark) for origin, mark in case.task_marks[place]]
            harness.epoch(tasks, updates, case.times[place])
            if case.restarts[place]:
                harness.restart()
    return harness


def keyed(query: Query, row: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The key of a result, its window, and what it says."""
    cut = len(query.keys) + (2 if query.windowed else 0)
    return normalize_keys(row[:cut]), row[cut:]


def once(query: Query, harness: Harness) -> Results:
    """What an append-only output says; no group twice."""
    found: Results = {}
    for epoch in harness.epochs:
        for row in epoch.main:
            key, results = keyed(query, row)
            assert key not in found, f"{key} came out twice"
            found[key] = results
    return found


def standing(query: Query, epochs: list[Any]) -> Results:
    """What a changelog has left; what it retracts was there, and pairs follow each other."""
    found: Results = {}
    for epoch in epochs:
        pending: tuple[Any, ...] | None = None
        for *row, op in epoch.main:
            key, results = keyed(query, tuple(row))
            assert (op == AFTER) == (pending is not None), "-U and +U come as a pair"
            if op in (BEFORE, DELETE):
                assert key in found, f"{op} {key} was not there"
                assert exactly(found.pop(key), results), f"{op} {key} {results} was not there"
            else:
                assert key not in found, f"{op} {key} is there already"
                assert op in (INSERT, AFTER) and (pending in (None, key)), (op, pending)
                found[key] = results
            pending = key if op == BEFORE else None
        assert pending is None
    return found


def exactly(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    return all(map(same_value, one, other))


def check_late(case: Scenario, harness: Harness, verdict: Verdict) -> None:
    """All that is late is counted, and nothing else; kept, if somebody wants it."""
    counted = harness.epochs[-1].late_rows
    if case.query.keeps_late:
        # Of rows that are alike any may be the one that a retraction has taken with it.
        known = {row.id: repr(replace(row, id=0)) for step in case.steps for row in step.rows}
        found = Counter(known[row["l0"]] for epoch in harness.epochs for row in epoch.late)
        assert found == Counter(known[row.id] for row in verdict.late)
    else:
        assert not any(epoch.late for epoch in harness.epochs)
    assert counted == len(verdict.late)


def check_pace(case: Scenario, harness: Harness, verdict: Verdict, exact: bool) -> None:
    """Windows come out when the watermark reaches their end; first results not a moment later.

    Sessions come out when it has passed their end.
    """
    place = len(case.query.keys) + 1
    passed = 0 if case.query.gap_us is None else 1
    for number, epoch in enumerate(harness.epochs):
        before, after = verdict.before[number], verdict.after[number]
        assert epoch.watermark == after
        for row in epoch.main:
            closes = row[place] + passed
            assert after is not None and closes <= after, "nothing before its time"
            assert not exact or before is None or closes > before, "nothing after its time"


def check_empty(harness: Harness) -> None:
    assert harness.stored_names() == [], "nothing is kept after the end"


def wanted(case: Scenario, verdict: Verdict) -> Results:
    return expected(case.query, case.texts, verdict.placed)


@examples(scenarios("close", (*FIXED, "SESSION")))
def test_windows_come_out_once_and_right(case: Scenario) -> None:
    harness, verdict = run(case), judge(case.query, case.steps, case.origins)
    assert_same(once(case.query, harness), wanted(case, verdict))
    check_late(case, harness, verdict)
    check_pace(case, harness, verdict, exact=True)
    check_empty(harness)


@examples(scenarios("close", (*FIXED, "SESSION", "SESSION"), lateness=st.integers(1, 15)))
def test_late_rows_make_windows_fire_again(case: Scenario) -> None:
    harness, verdict = run(case), judge(case.query, case.steps, case.origins)
    assert_same(standing(case.query, harness.epochs), wanted(case, verdict))
    check_late(case, harness, verdict)
    check_pace(case, harness, verdict, exact=False)
    check_empty(harness)


@examples(scenarios("close", ("SESSION",)))
def test_sessions_come_out_once_and_right(case: Scenario) -> None:
    harness, verdict = run(case), judge(case.query, case.steps, case.origins)
    assert_same(once(case.query, harness), wanted(case, verdict))
    check_late(case, harness, verdict)
    check_pace(case, harness, verdict, exact=True)
    check_empty(harness)


@examples(scenarios("early", (*FIXED, "NONE", "SESSION"), lateness=st.integers(0, 9)))
def test_changes_add_up(case: Scenario) -> None:
    harness, verdict = run(case), judge(case.query, case.steps, case.origins)
    assert_same(standing(case.query, harness.epochs), wanted(case, verdict))
    if case.query.windowed:
        check_late(case, harness, verdict)
        check_empty(harness)


@examples(scenarios("end", ("NONE",)))
def test_a_bounded_input_comes_out_at_its_end(case: Scenario) -> None:
    harness, verdict = run(case), judge(case.query, case.steps, case.origins)
    assert_same(once(case.query, harness), wanted(case, verdict))
    assert not any(epoch.main for epoch in harness.epochs if epoch.watermark != 2**63 - 1)


@st.composite
def retracting(draw: st.DrawFn) -> Scenario:
    mode = draw(st.sampled_from(["close", "late", "early", "end"]))
    kinds = {"early": (*FIXED, "NONE", "SESSION"), "end": ("NONE",)}.get(mode, WINDOWS)
    lateness = st.integers(1, 15) if mode == "late" else None
    chosen = "close" if mode == "late" else mode
    return draw(scenarios(chosen, kinds, lateness=lateness, retracts=True))


@examples(scenarios("close", ("SESSION",), lateness=st.integers(0, 9), retracts=True))
def test_a_retracted_row_may_split_a_session(case: Scenario) -> None:
    harness, verdict = run(case), judge(case.query, case.steps, case.origins)
    changes = case.query.with_op
    found = standing(case.query, harness.epochs) if changes else once(case.query, harness)
    assert_same(found, wanted(case, verdict))
    check_late(case, harness, verdict)
    check_pace(case, harness, verdict, exact=False)
    check_empty(harness)


@examples(retracting())
def test_rows_that_are_retracted_leave_nothing(case: Scenario) -> None:
    harness, verdict = run(case), judge(case.query, case.steps, case.origins)
    changes = case.query.with_op
    found = standing(case.query, harness.epochs) if changes else once(case.query, harness)
    assert_same(found, wanted(case, verdict))
    if case.query.windowed:
        check_late(case, harness, verdict)
        check_empty(harness)
