"""Windows by example: assignment, closing, lateness, results, state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.operators.harness import (
    MINUTE,
    SECOND,
    D,
    Harness,
    L,
    Query,
    Row,
    S,
    call,
    harness_of,
    hash_of,
)
from tidegate.columns import HASH, PANE
from tidegate.errors import RunError
from tidegate.operators.aggregate.groups import OutputColumn, OutputLayout, WindowPanes
from tidegate.operators.aggregate.window import WindowAggregate
from tidegate.operators.hold import HoldOperator
from tidegate.operators.late_rows import TIMESTAMP
from tidegate.operators.operator import KeyGroupState, Limits, Operator

TUMBLE_5 = WindowPanes("TUMBLE", 5 * MINUTE, 5 * MINUTE)
HOP_10_5 = WindowPanes("HOP", 10 * MINUTE, 5 * MINUTE)
SUM = call("sum", L, L)
AVG = call("avg", D, D)


def time_of_day(text: str) -> int:
    """Return a time of day in microseconds, for example of 12:05."""
    hours, minutes, seconds = (int(part) for part in f"{text}:0".split(":")[:3])
    return (hours * 60 + minutes) * MINUTE + seconds * SECOND


def sum_by_key(panes: WindowPanes, **options: Any) -> Query:
    """Return SELECT k, window_start, window_end, sum(v)."""
    query = Query((S,), (L,), (SUM,), ((0,),), (None,), panes)
    return replace(query, **options)


# Assignment


def test_tumbling_windows_are_aligned() -> None:
    run = harness_of(Query(panes=TUMBLE_5))
    run.rows([Row(time_of_day("12:03:27")), Row(time_of_day("12:05")), Row(-1)])
    assert sorted(run.end().rows) == [
        (-5 * MINUTE, 0, 1),
        (time_of_day("12:00"), time_of_day("12:05"), 1),
        (time_of_day("12:05"), time_of_day("12:10"), 1),
    ]


def test_offset_shifts_windows() -> None:
    run = harness_of(Query(panes=replace(TUMBLE_5, offset_us=2 * MINUTE)))
    run.rows([Row(time_of_day("12:01:59")), Row(time_of_day("12:02"))])
    windows = [(start, end) for start, end, _ in sorted(run.end().rows)]
    assert windows == [
        (time_of_day("11:57"), time_of_day("12:02")),
        (time_of_day("12:02"), time_of_day("12:07")),
    ]


def test_row_is_in_several_hopping_windows() -> None:
    run = harness_of(Query(panes=HOP_10_5))
    assert run.rows([Row(time_of_day("12:07"))], time_of_day("12:07")).rows == []
    assert run.rows([], time_of_day("12:10")).rows == [
        (time_of_day("12:00"), time_of_day("12:10"), 1)
    ]
    assert run.rows([], time_of_day("12:15")).rows == [
        (time_of_day("12:05"), time_of_day("12:15"), 1)
    ]
    assert run.end().rows == []


def test_window_ends_of_a_hop_that_does_not_divide_its_size() -> None:
    panes = WindowPanes("HOP", 7, 3)
    assert panes.width_us == 1
    ends = {pane: panes.ends(np.array([pane])).tolist() for pane in (0, 2, 3, -1)}
    assert ends == {0: [1, 4, 7], 2: [4, 7], 3: [4, 7, 10], -1: [1, 4]}


def test_cumulating_windows_grow_until_their_size() -> None:
    run = harness_of(Query(panes=WindowPanes("CUMULATE", 6, 2)))
    run.rows([Row(0), Row(3), Row(4), Row(7)], 0)
    assert run.rows([], 4).rows == [(0, 2, 1), (0, 4, 2)]
    assert sorted(run.end().rows) == [(0, 6, 3), (6, 8, 1), (6, 10, 1), (6, 12, 1)]


def test_row_of_hopping_windows_is_stored_once() -> None:
    run = harness_of(Query(panes=WindowPanes("HOP", 100, 1)), key_groups=1)
    epoch = run.rows([Row(ts) for ts in range(50)], 0)
    assert epoch.reports[0]["rows"] == 50


# Closing and lateness


def test_window_is_emitted_once_when_the_watermark_passes_its_end() -> None:
    run = harness_of(Query(panes=TUMBLE_5))
    for number in range(50):
        rows = [Row(time_of_day("12:00") + (number * 10 + i) * SECOND // 2) for i in range(10)]
        assert run.rows(rows, rows[-1].ts - 30 * SECOND).rows == []
    assert run.rows([], time_of_day("12:05") - 1).rows == []
    assert run.rows([], time_of_day("12:05")).rows == [
        (time_of_day("12:00"), time_of_day("12:05"), 500)
    ]
    assert run.rows([], time_of_day("12:06")).rows == []
    assert run.stored_names() == []


def test_window_is_deleted_after_its_lateness() -> None:
    run = harness_of(Query(panes=TUMBLE_5, lateness_us=MINUTE))
    run.rows([Row(time_of_day("12:01"))], time_of_day("12:01"))
    assert run.rows([], time_of_day("12:05")).rows == [
        (time_of_day("12:00"), time_of_day("12:05"), 1, "+I")
    ]
    run.rows([], time_of_day("12:06") - 1)
    assert run.stored_names() != []
    run.rows([], time_of_day("12:06"))
    assert run.stored_names() == []


def test_late_row_within_lateness_updates_its_window() -> None:
    run = harness_of(sum_by_key(TUMBLE_5, lateness_us=MINUTE))
    run.rows(
        [Row(time_of_day("12:01"), ("a",), (100,)), Row(time_of_day("12:01"), ("b",), (7,))],
        time_of_day("12:05"),
    )
    window = (time_of_day("12:00"), time_of_day("12:05"))
    late = run.rows([Row(time_of_day("12:02"), ("a",), (1,))], time_of_day("12:05"))
    assert late.rows == [("a", *window, 100, "-U"), ("a", *window, 101, "+U")]
    new = run.rows([Row(time_of_day("12:02"), ("c",), (5,))], time_of_day("12:05"))
    assert (new.rows, new.late_rows) == ([("c", *window, 5, "+I")], 0)


@pytest.mark.parametrize("keeps_late", [False, True])
def test_row_beyond_lateness_is_counted_and_emitted_to_the_late_stream(keeps_late: bool) -> None:
    run = harness_of(sum_by_key(TUMBLE_5, lateness_us=MINUTE, keeps_late=keeps_late))
    run.rows([Row(time_of_day("12:01"), ("a",), (100,))], time_of_day("12:06"))
    epoch = run.rows([Row(time_of_day("12:02"), ("a",), (1,), id=3)], time_of_day("12:06"))
    assert (epoch.rows, epoch.late_rows) == ([], 1)
    assert [row["l0"] for row in epoch.late] == ([3] if keeps_late else [])
    if keeps_late:
        noon = datetime(1970, 1, 1, 12, tzinfo=UTC)
        assert epoch.late[0]["late_operator"] == "an_operator"
        assert epoch.late[0]["late_window_start"] == noon
        assert epoch.late[0]["late_window_end"] == noon.replace(minute=5)
        assert epoch.late[0]["late_watermark"] == noon.replace(minute=6)


def test_late_row_counts_in_its_hopping_windows_that_are_open() -> None:
    run = harness_of(Query(panes=HOP_10_5))
    run.rows([Row(time_of_day("12:06"))], time_of_day("12:10"))
    assert run.rows([Row(time_of_day("12:07"))], time_of_day("12:15")).rows == [
        (time_of_day("12:05"), time_of_day("12:15"), 2)
    ]
    assert run.epochs[-1].late_rows == 0


# Results


def test_sums_over_many_epochs_equal_a_batch() -> None:
    rows = [Row(n * 7919 % 900 * SECOND, (f"k{n % 5}",), (n * n,)) for n in range(300)]
    run = harness_of(sum_by_key(TUMBLE_5))
    for first in range(0, 300, 20):
        run.rows(rows[first : first + 20], 0)
    expected: dict[tuple[str, int], int] = {}
    for row in rows:
        key = (row.keys[0], row.ts // (5 * MINUTE))
        expected[key] = expected.get(key, 0) + row.values[0]
    actual = {(k, start // (5 * MINUTE)): total for k, start, _, total in run.end().rows}
    assert actual == expected


def test_averages_by_key_ignore_nulls() -> None:
    run = harness_of(Query((S,), (D,), (AVG,), ((0,),), (None,), TUMBLE_5))
    for value in (1.0, 2.0, None, 6.0):
        run.rows([Row(1, ("a",), (value,)), Row(2, ("b",), (None,)), Row(3, (None,), (4.0,))], 0)
    averages = {row[0]: row[-1] for row in run.end().rows}
    assert averages == {"a": 3.0, "b": None, None: 4.0}


def test_output_has_the_columns_of_the_layout() -> None:
    columns = (
        OutputColumn("result", 0, L),
        OutputColumn("end", 0, TIMESTAMP),
        OutputColumn("key", 0, S),
        OutputColumn("end", 0, TIMESTAMP, -1),
    )
    query = sum_by_key(TUMBLE_5)

    def operator() -> Operator:
        return WindowAggregate(query.spec, TUMBLE_5, OutputLayout(columns, TUMBLE_5))

    run = Harness(operator, query.table)
    run.rows([Row(time_of_day("12:03"), ("a",), (7,))])
    end = datetime(1970, 1, 1, 12, 5, tzinfo=UTC)
    last = datetime(1970, 1, 1, 12, 4, 59, 999_999, tzinfo=UTC)
    assert run.end().rows == [(7, end, "a", last)]
    assert operator().output == pa.schema(
        [("c0", L), ("c1", TIMESTAMP), ("c2", S), ("c3", TIMESTAMP)]
    )


def test_hold_emits_rows_when_their_window_closes() -> None:
    schema = pa.schema([("c0", S)])

    def table(rows: Sequence[Row]) -> pa.Table:
        panes = [row.ts - row.ts % 10 + 10 for row in rows]
        hashes = [hash_of((pane,)) for pane in panes]
        return pa.table({PANE: panes, HASH: hashes, "c0": [row.keys[0] for row in rows]})

    run = Harness(lambda: HoldOperator(schema), table)
    assert run.rows([Row(3, ("a",)), Row(15, ("b",)), Row(4, ("a",))], 0).rows == []
    run.restart()
    assert run.rows([Row(1, ("c",))], 10).rows == [("a",), ("a",), ("c",)]
    late = run.rows([Row(2, ("d",))], 10)
    assert (late.rows, late.late_rows) == ([], 1)
    assert (run.end().rows, run.stored_names()) == ([("b",)], [])


@pytest.mark.parametrize("mode", ["close", "early"])
def test_epoch_without_rows_changes_nothing(mode: str) -> None:
    for query in (Query(panes=TUMBLE_5, mode=mode), Query(gap_us=MINUTE, mode=mode)):
        run = harness_of(query)
        run.rows([Row(1)], 0)
        before = run.store.snapshot()
        assert run.rows([], 0).rows == []
        assert run.epoch().rows == []
        assert run.store.snapshot() == before


def test_too_many_groups_are_an_error_that_names_the_setting() -> None:
    run = harness_of(sum_by_key(TUMBLE_5, limits=Limits(100)), key_groups=1)
    run.rows([Row(1, (f"k{n}",), (1,)) for n in range(100)], 0)
    run.rows([Row(1, (f"k{n}",), (1,)) for n in range(100)], 0)
    with pytest.raises(RunError, match="101 groups in one key group; the limit is 100") as caught:
        run.rows([Row(1, ("one more",), (1,))], 0)
    assert (caught.value.code, "max_groups" in str(caught.value.hint)) == ("TG-508", True)


@pytest.mark.parametrize(
    "panes",
    [
        WindowPanes("TUMBLE", 60, 60),
        WindowPanes("HOP", 60, 20),
        WindowPanes("HOP", 60, 25),
        WindowPanes("CLOSING_TIME", 60, 60),
    ],
    ids=str,
)
def test_open_windows_are_not_read_until_one_closes(
    panes: WindowPanes, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = harness_of(sum_by_key(panes), key_groups=1)
    run.rows([Row(ts, ("a",), (1,)) for ts in range(180, 240)], 180)
    get, reads = KeyGroupState.get, []

    def recording_get(state: KeyGroupState, name: str, key: bytes, schemas: Any) -> Any:
        reads.append(name)
        return get(state, name, key, schemas)

    monkeypatch.setattr(KeyGroupState, "get", recording_get)
    ends = set(range(181, 300)) & set(panes.ends(np.arange(180, 240, panes.width_us)).tolist())
    if panes.kind == "CLOSING_TIME":
        ends = {240}
    for watermark_us in range(181, 300):
        reads.clear()
        closed = {row[2] for row in run.rows([], watermark_us).rows}
        assert (closed, bool(reads)) == ({watermark_us} & ends, watermark_us in ends), watermark_us


@pytest.mark.parametrize("mode", ["close", "early"])
def test_late_retraction_and_its_replacement_are_two_late_rows(mode: str) -> None:
    query = Query(panes=WindowPanes("TUMBLE", 10, 10), mode=mode, retracts=True)
    run = harness_of(query, key_groups=1)
    run.rows([Row(1)], 10)
    assert run.rows([Row(1, weight=-1), Row(2, weight=1)], 10).late_rows == 2
