"""Sessions by example: gaps, merging, lateness, state."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.operators.harness import MINUTE, Epoch, Query, Row, S, harness_of
from tests.operators.test_windows import at
from tidegate.operators.aggregate.groups import Panes
from tidegate.operators.watermark import END_US

GAP = 15 * MINUTE
SESSIONS = Query(gap_us=GAP)


def times(text: str, key: str | None = None) -> list[Row]:
    return [Row(at(part), () if key is None else (key,)) for part in text.split()]


def test_session_window_merge_on_close_gap() -> None:
    run = harness_of(SESSIONS)
    run.rows(times("10:00 10:02 10:04 10:30 10:31"), at("10:00"))
    expected = [(at("10:00"), at("10:19"), 3), (at("10:30"), at("10:46"), 2)]
    assert sorted(run.end().main) == expected


def test_rows_exactly_a_gap_apart_are_one_session() -> None:
    run = harness_of(SESSIONS)
    run.rows([*times("10:00 10:15"), Row(at("10:30") + 1)], at("10:00"))
    assert [count for _, _, count in sorted(run.end().main)] == [2, 1]


VARIANTS = [
    Query(gap_us=2),
    Query(gap_us=2, retracts=True),
    Query(gap_us=2, mode="early"),
    Query(gap_us=2, mode="early", retracts=True),
    Query(gap_us=2, lateness_us=3),
    Query(gap_us=2, lateness_us=3, retracts=True),
]


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("query", VARIANTS)
def test_a_row_at_the_watermark_joins_the_session_that_ends_there(
    query: Query, restarts: bool
) -> None:
    run = harness_of(query, key_groups=1)
    for row, mark in ((38, 38), (45, 40), (40, 40)):
        run.rows([Row(row)], mark)
        if restarts:
            run.restart()
    run.end()
    assert _left(run.epochs, query) == [(38, 42, 2), (45, 47, 1)]
    assert run.epochs[-1].late_rows == 0


def _left(epochs: list[Epoch], query: Query) -> list[tuple[Any, ...]]:
    """Return the rows that stand after all changes."""
    standing: list[tuple[Any, ...]] = []
    for row in (row for epoch in epochs for row in epoch.main):
        if query.with_op and row[-1] in ("-U", "-D"):
            standing.remove(row[:-1])
        else:
            standing.append(row[:-1] if query.with_op else row)
    return sorted(standing)


@pytest.mark.parametrize("retracts", [False, True])
def test_a_session_closes_when_the_watermark_has_passed_its_end(retracts: bool) -> None:
    run = harness_of(Query(gap_us=2, retracts=retracts), key_groups=1)
    assert run.rows([Row(38)], 40).main == []
    assert run.rows([], 41).main == [(38, 40, 1)]
    assert run.stored_names() == []


@pytest.mark.parametrize("retracts", [False, True])
def test_a_row_is_late_when_the_watermark_has_passed_the_end_of_its_session(retracts: bool) -> None:
    run = harness_of(
        Query(gap_us=2, lateness_us=3, retracts=retracts, keeps_late=True), key_groups=1
    )
    run.rows([], 45)
    assert run.rows([Row(40)], 45).late_rows == 0, "it ends at 42, which is kept at 45"
    assert run.rows([Row(39)], 46).late_rows == 0, "it joins the session that is kept"
    assert run.stored_names() == []
    assert run.rows([Row(40)], 46).late_rows == 1
    (late,) = run.epochs[-1].late
    ends = [late[name].microsecond for name in ("late_window_start", "late_window_end")]
    assert ends == [40, 42]


@pytest.mark.parametrize("query", VARIANTS)
def test_no_session_is_late_for_a_window_over_sessions(query: Query) -> None:
    """The watermark that is handed on is held back, as a session that ends there may still come."""
    sessions = harness_of(query, key_groups=1, output_delay_us=query.lateness_us + 1)
    windows = Query(panes=Panes("TUMBLE", 1, 1), lateness_us=0, retracts=query.with_op)
    above = harness_of(windows, key_groups=1)
    for row, mark in ((38, 38), (45, 40), (45, 42), (43, 44), (48, 47), (60, 60)):
        epoch = sessions.rows([Row(row)], mark)
        rows = [_result(result, query) for result in epoch.main]
        assert epoch.watermark == mark - query.lateness_us - 1
        above.rows(rows, epoch.watermark)
    above.rows([_result(result, query) for result in sessions.end().main], END_US)
    assert above.epochs[-1].late_rows == 0
    found = sorted(row for epoch in above.epochs for row in epoch.main)
    assert found == [(39, 40, 1), (46, 47, 1), (49, 50, 1), (61, 62, 1)]


def _result(row: tuple[Any, ...], query: Query) -> Row:
    """Return a session as a row of the next operator: its event time is `window_time`."""
    retracts = query.with_op and row[-1] in ("-U", "-D")
    return Row(row[1] - 1, weight=-1 if retracts else 1)


def test_a_late_10_12_makes_one_session_of_two() -> None:
    for lateness, mark in ((0, at("10:15")), (MINUTE, at("10:15") + 1)):
        run = harness_of(Query(gap_us=GAP, lateness_us=lateness))
        run.rows(times("10:00 10:20"), mark)
        fired = [(at("10:00"), at("10:15"), 1)] if lateness else []
        assert run.epochs[0].main == [(*row, "+I") for row in fired]
        assert run.rows(times("10:12"), mark).main == [(*row, "-D") for row in fired]
        assert [row[:3] for row in run.end().main] == [(at("10:00"), at("10:35"), 3)]


def test_sessions_are_per_key() -> None:
    run = harness_of(Query((S,), gap_us=GAP))
    run.rows([*times("10:00 10:10", "a"), *times("10:12 11:00", "b")], at("10:00"))
    expected = [
        ("a", at("10:00"), at("10:25"), 2),
        ("b", at("10:12"), at("10:27"), 1),
        ("b", at("11:00"), at("11:15"), 1),
    ]
    assert sorted(run.end().main) == expected


@pytest.mark.parametrize("lateness", [0, MINUTE])
def test_the_state_of_a_session_goes_when_end_and_lateness_have_passed(lateness: int) -> None:
    run = harness_of(Query(gap_us=GAP, lateness_us=lateness))
    run.rows(times("10:00"), at("10:00"))
    run.rows([], at("10:15") + lateness)
    assert run.stored_names() != []
    run.rows([], at("10:15") + lateness + 1)
    assert run.stored_names() == []


def test_a_session_grows_over_many_epochs_and_comes_out_once() -> None:
    run = harness_of(SESSIONS)
    for minute in range(0, 60, 2):
        assert run.rows(times(f"10:{minute:02}"), at(f"10:{minute:02}")).main == []
        run.restart()
    assert run.rows([], at("11:13")).main == []
    assert run.rows([], at("11:13") + 1).main == [(at("10:00"), at("11:13"), 30)]


def test_a_late_row_is_saved_by_a_session_that_is_kept_or_by_its_own_epoch() -> None:
    run = harness_of(Query(gap_us=GAP, keeps_late=True))
    run.rows(times("10:00 10:20"), at("10:34"))
    assert run.rows(times("10:08"), at("10:34")).late_rows == 0, "it touches 10:20"
    assert run.rows(times("09:40 09:50"), at("10:34")).late_rows == 2
    assert len(run.epochs[-1].late) == 2
    gone = [(at("10:00"), at("10:15"), 1)]
    assert (run.epochs[0].main, run.rows([], at("11:20")).main) == (
        gone,
        [(at("10:08"), at("10:35"), 2)],
    )
    assert run.rows(times("11:00 11:10"), at("11:20")).late_rows == 2, "11:10 saves 11:00"
    assert run.rows(times("10:40"), at("11:20")).late_rows == 3


def test_a_retracted_row_splits_its_session() -> None:
    run = harness_of(Query(gap_us=GAP, lateness_us=MINUTE, retracts=True), key_groups=1)
    passed = at("10:35") + 1
    run.rows(times("10:00 10:10 10:20"), passed)
    assert run.epochs[0].main == [(at("10:00"), at("10:35"), 3, "+I")]
    run.restart()
    gone = [replace(row, weight=-1) for row in times("10:10")]
    assert run.rows(gone, passed).main == [
        (at("10:00"), at("10:35"), 3, "-D"),
        (at("10:00"), at("10:15"), 1, "+I"),
        (at("10:20"), at("10:35"), 1, "+I"),
    ]
    assert run.rows([], passed + MINUTE).main == [] and run.stored_names() == []
    assert run.rows(gone, passed + MINUTE).late_rows == 1


def test_a_session_whose_rows_are_all_retracted_was_never_there() -> None:
    run = harness_of(Query(gap_us=GAP, retracts=True), key_groups=1)
    run.rows(times("10:00"), at("10:00"))
    run.rows([replace(row, weight=-1) for row in times("10:00")], at("10:01"))
    assert run.end().main == [] and run.stored_names() == []
