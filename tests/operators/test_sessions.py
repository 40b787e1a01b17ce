"""Session windows by example: gaps, merging, lateness, retractions, state."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.operators.harness import MINUTE, Epoch, Query, Row, S, harness_of
from tests.operators.test_window import time_of_day
from tidegate.operators.aggregate.groups import WindowPanes
from tidegate.operators.watermark import END_OF_INPUT_US

GAP = 15 * MINUTE
SESSIONS = Query(gap_us=GAP)


def rows_at(text: str, key: str | None = None) -> list[Row]:
    """Return a row for each of these times of day."""
    return [Row(time_of_day(part), () if key is None else (key,)) for part in text.split()]


def test_rows_within_the_gap_are_one_session() -> None:
    run = harness_of(SESSIONS)
    run.rows(rows_at("10:00 10:02 10:04 10:30 10:31"), time_of_day("10:00"))
    expected = [
        (time_of_day("10:00"), time_of_day("10:19"), 3),
        (time_of_day("10:30"), time_of_day("10:46"), 2),
    ]
    assert sorted(run.end().rows) == expected


def test_rows_exactly_a_gap_apart_are_one_session() -> None:
    run = harness_of(SESSIONS)
    run.rows([*rows_at("10:00 10:15"), Row(time_of_day("10:30") + 1)], time_of_day("10:00"))
    assert [count for _, _, count in sorted(run.end().rows)] == [2, 1]


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
def test_row_at_the_watermark_joins_the_session_that_ends_there(
    query: Query, restarts: bool
) -> None:
    run = harness_of(query, key_groups=1)
    for ts, watermark_us in ((38, 38), (45, 40), (40, 40)):
        run.rows([Row(ts)], watermark_us)
        if restarts:
            run.restart()
    run.end()
    assert _final_rows(run.epochs, query) == [(38, 42, 2), (45, 47, 1)]
    assert run.epochs[-1].late_rows == 0


def _final_rows(epochs: list[Epoch], query: Query) -> list[tuple[Any, ...]]:
    """Return the rows that remain after all changes."""
    rows: list[tuple[Any, ...]] = []
    for row in (row for epoch in epochs for row in epoch.rows):
        if query.with_op and row[-1] in ("-U", "-D"):
            rows.remove(row[:-1])
        else:
            rows.append(row[:-1] if query.with_op else row)
    return sorted(rows)


@pytest.mark.parametrize("retracts", [False, True])
def test_session_closes_when_the_watermark_has_passed_its_end(retracts: bool) -> None:
    run = harness_of(Query(gap_us=2, retracts=retracts), key_groups=1)
    assert run.rows([Row(38)], 40).rows == []
    assert run.rows([], 41).rows == [(38, 40, 1)]
    assert run.stored_names() == []


@pytest.mark.parametrize("retracts", [False, True])
def test_row_is_late_when_the_watermark_has_passed_its_session(retracts: bool) -> None:
    run = harness_of(
        Query(gap_us=2, lateness_us=3, retracts=retracts, keeps_late=True), key_groups=1
    )
    run.rows([], 45)
    assert run.rows([Row(40)], 45).late_rows == 0, "its session ends at 42 and is kept until 45"
    assert run.rows([Row(39)], 46).late_rows == 0, "it joins the session that is still kept"
    assert run.stored_names() == []
    assert run.rows([Row(40)], 46).late_rows == 1
    (late,) = run.epochs[-1].late
    ends = [late[name].microsecond for name in ("late_window_start", "late_window_end")]
    assert ends == [40, 42]


@pytest.mark.parametrize("query", VARIANTS)
def test_no_session_is_late_for_a_window_over_sessions(query: Query) -> None:
    """The output watermark is delayed, because a session that ends there may still be emitted."""
    sessions = harness_of(query, key_groups=1, output_delay_us=query.lateness_us + 1)
    windows = Query(panes=WindowPanes("TUMBLE", 1, 1), lateness_us=0, retracts=query.with_op)
    downstream = harness_of(windows, key_groups=1)
    for ts, watermark_us in ((38, 38), (45, 40), (45, 42), (43, 44), (48, 47), (60, 60)):
        epoch = sessions.rows([Row(ts)], watermark_us)
        rows = [_to_input(result, query) for result in epoch.rows]
        assert epoch.watermark == watermark_us - query.lateness_us - 1
        downstream.rows(rows, epoch.watermark)
    downstream.rows([_to_input(result, query) for result in sessions.end().rows], END_OF_INPUT_US)
    assert downstream.epochs[-1].late_rows == 0
    results = sorted(row for epoch in downstream.epochs for row in epoch.rows)
    assert results == [(39, 40, 1), (46, 47, 1), (49, 50, 1), (61, 62, 1)]


def _to_input(row: tuple[Any, ...], query: Query) -> Row:
    """Return a session as an input row of the next operator; its event time is `window_time`."""
    retracts = query.with_op and row[-1] in ("-U", "-D")
    return Row(row[1] - 1, weight=-1 if retracts else 1)


def test_late_row_merges_two_sessions() -> None:
    for lateness, watermark_us in ((0, time_of_day("10:15")), (MINUTE, time_of_day("10:15") + 1)):
        run = harness_of(Query(gap_us=GAP, lateness_us=lateness))
        run.rows(rows_at("10:00 10:20"), watermark_us)
        emitted = [(time_of_day("10:00"), time_of_day("10:15"), 1)] if lateness else []
        assert run.epochs[0].rows == [(*row, "+I") for row in emitted]
        assert run.rows(rows_at("10:12"), watermark_us).rows == [(*row, "-D") for row in emitted]
        assert [row[:3] for row in run.end().rows] == [
            (time_of_day("10:00"), time_of_day("10:35"), 3)
        ]


def test_sessions_are_per_key() -> None:
    run = harness_of(Query((S,), gap_us=GAP))
    run.rows([*rows_at("10:00 10:10", "a"), *rows_at("10:12 11:00", "b")], time_of_day("10:00"))
    expected = [
        ("a", time_of_day("10:00"), time_of_day("10:25"), 2),
        ("b", time_of_day("10:12"), time_of_day("10:27"), 1),
        ("b", time_of_day("11:00"), time_of_day("11:15"), 1),
    ]
    assert sorted(run.end().rows) == expected


@pytest.mark.parametrize("lateness", [0, MINUTE])
def test_session_is_deleted_after_its_lateness(lateness: int) -> None:
    run = harness_of(Query(gap_us=GAP, lateness_us=lateness))
    run.rows(rows_at("10:00"), time_of_day("10:00"))
    run.rows([], time_of_day("10:15") + lateness)
    assert run.stored_names() != []
    run.rows([], time_of_day("10:15") + lateness + 1)
    assert run.stored_names() == []


def test_session_grows_over_many_epochs_and_is_emitted_once() -> None:
    run = harness_of(SESSIONS)
    for minute in range(0, 60, 2):
        assert run.rows(rows_at(f"10:{minute:02}"), time_of_day(f"10:{minute:02}")).rows == []
        run.restart()
    assert run.rows([], time_of_day("11:13")).rows == []
    assert run.rows([], time_of_day("11:13") + 1).rows == [
        (time_of_day("10:00"), time_of_day("11:13"), 30)
    ]


def test_old_row_is_not_late_if_it_joins_an_open_session() -> None:
    run = harness_of(Query(gap_us=GAP, keeps_late=True))
    run.rows(rows_at("10:00 10:20"), time_of_day("10:34"))
    assert run.rows(rows_at("10:08"), time_of_day("10:34")).late_rows == 0, "it touches 10:20"
    assert run.rows(rows_at("09:40 09:50"), time_of_day("10:34")).late_rows == 2
    assert len(run.epochs[-1].late) == 2
    emitted = [(time_of_day("10:00"), time_of_day("10:15"), 1)]
    assert (run.epochs[0].rows, run.rows([], time_of_day("11:20")).rows) == (
        emitted,
        [(time_of_day("10:08"), time_of_day("10:35"), 2)],
    )
    assert run.rows(rows_at("11:00 11:10"), time_of_day("11:20")).late_rows == 2, (
        "11:00 joins 11:10"
    )
    assert run.rows(rows_at("10:40"), time_of_day("11:20")).late_rows == 3


def test_retracting_a_row_splits_its_session() -> None:
    run = harness_of(Query(gap_us=GAP, lateness_us=MINUTE, retracts=True), key_groups=1)
    closing_time = time_of_day("10:35") + 1
    run.rows(rows_at("10:00 10:10 10:20"), closing_time)
    assert run.epochs[0].rows == [(time_of_day("10:00"), time_of_day("10:35"), 3, "+I")]
    run.restart()
    retractions = [replace(row, weight=-1) for row in rows_at("10:10")]
    assert run.rows(retractions, closing_time).rows == [
        (time_of_day("10:00"), time_of_day("10:35"), 3, "-D"),
        (time_of_day("10:00"), time_of_day("10:15"), 1, "+I"),
        (time_of_day("10:20"), time_of_day("10:35"), 1, "+I"),
    ]
    assert run.rows([], closing_time + MINUTE).rows == [] and run.stored_names() == []
    assert run.rows(retractions, closing_time + MINUTE).late_rows == 1


def test_session_whose_rows_are_all_retracted_is_not_emitted() -> None:
    run = harness_of(Query(gap_us=GAP, retracts=True), key_groups=1)
    run.rows(rows_at("10:00"), time_of_day("10:00"))
    run.rows([replace(row, weight=-1) for row in rows_at("10:00")], time_of_day("10:01"))
    assert run.end().rows == [] and run.stored_names() == []


def test_session_with_another_end_is_another_row() -> None:
    """A sink with start and end as its key would otherwise keep the session as it was."""
    run = harness_of(Query(gap_us=10, mode="early"), key_groups=1)
    assert run.rows([Row(0)], 0).rows == [(0, 10, 1, "+I")]
    assert run.rows([Row(0)], 0).rows == [(0, 10, 1, "-U"), (0, 10, 2, "+U")]
    assert run.rows([Row(5)], 0).rows == [(0, 10, 2, "-D"), (0, 15, 3, "+I")]
