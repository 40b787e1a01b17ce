"""Sessions by example: gaps, merging, lateness, state."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.operators.driving import MINUTE, Query, Row, S, drive
from tests.operators.test_windows import at

GAP = 15 * MINUTE
SESSIONS = Query(gap_us=GAP)


def times(text: str, key: str | None = None) -> list[Row]:
    return [Row(at(part), () if key is None else (key,)) for part in text.split()]


def test_session_window_merge_on_close_gap() -> None:
    run = drive(SESSIONS)
    run.rows(times("10:00 10:02 10:04 10:30 10:31"), at("10:00"))
    expected = [(at("10:00"), at("10:19"), 3), (at("10:30"), at("10:46"), 2)]
    assert sorted(run.end().main) == expected


def test_rows_exactly_a_gap_apart_are_one_session() -> None:
    run = drive(SESSIONS)
    run.rows([*times("10:00 10:15"), Row(at("10:30") + 1)], at("10:00"))
    assert [count for _, _, count in sorted(run.end().main)] == [2, 1]


def test_a_late_10_12_makes_one_session_of_two() -> None:
    for lateness, mark in ((0, "10:14"), (MINUTE, "10:15")):
        run = drive(Query(gap_us=GAP, lateness_us=lateness))
        run.rows(times("10:00 10:20"), at(mark))
        fired = [(at("10:00"), at("10:15"), 1)] if lateness else []
        assert run.epochs[0].main == [(*row, "+I") for row in fired]
        assert run.rows(times("10:12"), at(mark)).main == [(*row, "-D") for row in fired]
        assert [row[:3] for row in run.end().main] == [(at("10:00"), at("10:35"), 3)]


def test_sessions_are_per_key() -> None:
    run = drive(Query((S,), gap_us=GAP))
    run.rows([*times("10:00 10:10", "a"), *times("10:12 11:00", "b")], at("10:00"))
    expected = [
        ("a", at("10:00"), at("10:25"), 2),
        ("b", at("10:12"), at("10:27"), 1),
        ("b", at("11:00"), at("11:15"), 1),
    ]
    assert sorted(run.end().main) == expected


@pytest.mark.parametrize("lateness", [0, MINUTE])
def test_the_state_of_a_session_goes_when_end_and_lateness_have_passed(lateness: int) -> None:
    run = drive(Query(gap_us=GAP, lateness_us=lateness))
    run.rows(times("10:00"), at("10:00"))
    run.rows([], at("10:15") + lateness - 1)
    assert run.kept() != []
    run.rows([], at("10:15") + lateness)
    assert run.kept() == []


def test_a_session_grows_over_many_epochs_and_comes_out_once() -> None:
    run = drive(SESSIONS)
    for minute in range(0, 60, 2):
        assert run.rows(times(f"10:{minute:02}"), at(f"10:{minute:02}")).main == []
        run.restart()
    assert run.rows([], at("11:13") - 1).main == []
    assert run.rows([], at("11:13")).main == [(at("10:00"), at("11:13"), 30)]


def test_a_late_row_is_saved_by_a_session_that_is_kept_or_by_its_own_epoch() -> None:
    run = drive(Query(gap_us=GAP, keeps_late=True))
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
    run = drive(Query(gap_us=GAP, lateness_us=MINUTE, retracts=True), key_groups=1)
    run.rows(times("10:00 10:10 10:20"), at("10:35"))
    assert run.epochs[0].main == [(at("10:00"), at("10:35"), 3, "+I")]
    run.restart()
    gone = [replace(row, weight=-1) for row in times("10:10")]
    assert run.rows(gone, at("10:35")).main == [
        (at("10:00"), at("10:35"), 3, "-D"),
        (at("10:00"), at("10:15"), 1, "+I"),
        (at("10:20"), at("10:35"), 1, "+I"),
    ]
    assert run.rows([], at("10:36")).main == [] and run.kept() == []
    assert run.rows(gone, at("10:36")).late_rows == 1


def test_a_session_whose_rows_are_all_retracted_was_never_there() -> None:
    run = drive(Query(gap_us=GAP, retracts=True), key_groups=1)
    run.rows(times("10:00"), at("10:00"))
    run.rows([replace(row, weight=-1) for row in times("10:00")], at("10:01"))
    assert run.end().main == [] and run.kept() == []
