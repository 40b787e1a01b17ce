"""Any split of any input into epochs, tasks and key groups, any restarts: what comes out is what
DuckDB says in batch about the rows that were not late, and exactly the others are late.

TIDEGATE_EXAMPLES is the number of examples over the whole file (500), TIDEGATE_SEED where they
start; both are printed with `-s`. A long run: TIDEGATE_EXAMPLES=20000 pytest -s <this file>.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from tests.operators.batch import Results, assert_same, expected, same_value
from tests.operators.driving import Drive, Query, Row, same_keys
from tests.operators.model import Verdict, judge
from tests.operators.scenarios import Scenario, scenarios
from tidegate.columns import AFTER, BEFORE, DELETE, INSERT
from tidegate.operators import operator as contract
from tidegate.operators.store import time_buckets as segments
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


@contextmanager
def limits_of_state(small: bool) -> Iterator[None]:
    """Small ones make compaction and cuts of buckets happen within a few epochs."""
    if not small:
        yield
        return
    with (
        patch.object(segments, "_MAX_BUCKETS", 4),
        patch.object(segments, "_BUCKET_ROWS", 2),
        patch.object(segments, "_MAX_SEGMENTS", 3),
        patch.object(segments, "_FANOUT", 2),
        patch.object(contract, "INLINE_BYTES", 600),
        patch.object(contract, "HEADER_BYTES", 1_500),
    ):
        yield


def run(case: Scenario) -> Drive:
    origins = tuple(Origin(origin) for origin in case.origins)
    drive = Drive(case.query.operator, case.query.table, case.key_groups, origins)
    with limits_of_state(case.small):
        for place, step in enumerate(case.steps):
            tasks: list[list[list[Row]]] = [[[], []] for _ in range(3)]
            for row, (task, number) in zip(step.rows, case.tasks[place], strict=True):
                tasks[task][number].append(row)
            updates = [WatermarkUpdate(origin, 0, mark) for origin, mark in case.task_marks[place]]
            drive.epoch(tasks, updates, case.times[place])
            if case.restarts[place]:
                drive.restart()
    return drive


def keyed(query: Query, row: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The key of a result, its window, and what it says."""
    cut = len(query.keys) + (2 if query.windowed else 0)
    return same_keys(row[:cut]), row[cut:]


def once(query: Query, drive: Drive) -> Results:
    """What an append-only output says; no group twice."""
    found: Results = {}
    for epoch in drive.epochs:
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


def check_late(case: Scenario, drive: Drive, verdict: Verdict) -> None:
    """All that is late is counted, and nothing else; kept, if somebody wants it."""
    counted = drive.epochs[-1].late_rows
    if case.query.keeps_late:
        # Of rows that are alike any may be the one that a retraction has taken with it.
        known = {row.id: repr(replace(row, id=0)) for step in case.steps for row in step.rows}
        found = Counter(known[row["l0"]] for epoch in drive.epochs for row in epoch.late)
        assert found == Counter(known[row.id] for row in verdict.late)
    else:
        assert not any(epoch.late for epoch in drive.epochs)
    assert counted == len(verdict.late)


def check_pace(case: Scenario, drive: Drive, verdict: Verdict, exact: bool) -> None:
    """Windows come out when the watermark reaches their end; first results not a moment later.

    Sessions come out when it has passed their end.
    """
    place = len(case.query.keys) + 1
    passed = 0 if case.query.gap_us is None else 1
    for number, epoch in enumerate(drive.epochs):
        before, after = verdict.before[number], verdict.after[number]
        assert epoch.watermark == after
        for row in epoch.main:
            closes = row[place] + passed
            assert after is not None and closes <= after, "nothing before its time"
            assert not exact or before is None or closes > before, "nothing after its time"


def check_empty(drive: Drive) -> None:
    assert drive.kept() == [], "nothing is kept after the end"


def wanted(case: Scenario, verdict: Verdict) -> Results:
    return expected(case.query, case.texts, verdict.placed)


@examples(scenarios("close", (*FIXED, "SESSION")))
def test_windows_come_out_once_and_right(case: Scenario) -> None:
    drive, verdict = run(case), judge(case.query, case.steps, case.origins)
    assert_same(once(case.query, drive), wanted(case, verdict))
    check_late(case, drive, verdict)
    check_pace(case, drive, verdict, exact=True)
    check_empty(drive)


@examples(scenarios("close", (*FIXED, "SESSION", "SESSION"), lateness=st.integers(1, 15)))
def test_late_rows_make_windows_fire_again(case: Scenario) -> None:
    drive, verdict = run(case), judge(case.query, case.steps, case.origins)
    assert_same(standing(case.query, drive.epochs), wanted(case, verdict))
    check_late(case, drive, verdict)
    check_pace(case, drive, verdict, exact=False)
    check_empty(drive)


@examples(scenarios("close", ("SESSION",)))
def test_sessions_come_out_once_and_right(case: Scenario) -> None:
    drive, verdict = run(case), judge(case.query, case.steps, case.origins)
    assert_same(once(case.query, drive), wanted(case, verdict))
    check_late(case, drive, verdict)
    check_pace(case, drive, verdict, exact=True)
    check_empty(drive)


@examples(scenarios("early", (*FIXED, "NONE", "SESSION"), lateness=st.integers(0, 9)))
def test_changes_add_up(case: Scenario) -> None:
    drive, verdict = run(case), judge(case.query, case.steps, case.origins)
    assert_same(standing(case.query, drive.epochs), wanted(case, verdict))
    if case.query.windowed:
        check_late(case, drive, verdict)
        check_empty(drive)


@examples(scenarios("end", ("NONE",)))
def test_a_bounded_input_comes_out_at_its_end(case: Scenario) -> None:
    drive, verdict = run(case), judge(case.query, case.steps, case.origins)
    assert_same(once(case.query, drive), wanted(case, verdict))
    assert not any(epoch.main for epoch in drive.epochs if epoch.watermark != 2**63 - 1)


@st.composite
def retracting(draw: st.DrawFn) -> Scenario:
    mode = draw(st.sampled_from(["close", "late", "early", "end"]))
    kinds = {"early": (*FIXED, "NONE", "SESSION"), "end": ("NONE",)}.get(mode, WINDOWS)
    lateness = st.integers(1, 15) if mode == "late" else None
    chosen = "close" if mode == "late" else mode
    return draw(scenarios(chosen, kinds, lateness=lateness, retracts=True))


@examples(scenarios("close", ("SESSION",), lateness=st.integers(0, 9), retracts=True))
def test_a_retracted_row_may_split_a_session(case: Scenario) -> None:
    drive, verdict = run(case), judge(case.query, case.steps, case.origins)
    changes = case.query.with_op
    found = standing(case.query, drive.epochs) if changes else once(case.query, drive)
    assert_same(found, wanted(case, verdict))
    check_late(case, drive, verdict)
    check_pace(case, drive, verdict, exact=False)
    check_empty(drive)


@examples(retracting())
def test_rows_that_are_retracted_leave_nothing(case: Scenario) -> None:
    drive, verdict = run(case), judge(case.query, case.steps, case.origins)
    changes = case.query.with_op
    found = standing(case.query, drive.epochs) if changes else once(case.query, drive)
    assert_same(found, wanted(case, verdict))
    if case.query.windowed:
        check_late(case, drive, verdict)
        check_empty(drive)
