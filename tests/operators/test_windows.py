"""Windows by example: alignment, when they fire, what they say, when they go."""

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
from tidegate.operators.aggregate.groups import Layout, OutputColumn, Panes
from tidegate.operators.aggregate.window import WindowAggregate
from tidegate.operators.hold import HoldOperator
from tidegate.operators.late_rows import TIMESTAMP
from tidegate.operators.operator import KeyGroupState, Limits, Operator

TUMBLE_5 = Panes("TUMBLE", 5 * MINUTE, 5 * MINUTE)
HOP_10_5 = Panes("HOP", 10 * MINUTE, 5 * MINUTE)
SUM = call("sum", L, L)
AVG = call("avg", D, D)


def at(text: str) -> int:
    """The microseconds of a time of day."""
    hours, minutes, seconds = (int(part) for part in f"{text}:0".split(":")[:3])
    return (hours * 60 + minutes) * MINUTE + seconds * SECOND


def summing(panes: Panes, **options: Any) -> Query:
    """SELECT k, window_start, window_end, sum(v)."""
    query = Query((S,), (L,), (SUM,), ((0,),), (None,), panes)
    return replace(query, **options)


# Assignment


def test_tumbling_window_assignment_aligns_to_boundary() -> None:
    run = harness_of(Query(panes=TUMBLE_5))
    run.rows([Row(at("12:03:27")), Row(at("12:05")), Row(-1)])
    assert sorted(run.end().main) == [
        (-5 * MINUTE, 0, 1),
        (at("12:00"), at("12:05"), 1),
        (at("12:05"), at("12:10"), 1),
    ]


def test_an_offset_moves_the_boundary() -> None:
    run = harness_of(Query(panes=replace(TUMBLE_5, offset_us=2 * MINUTE)))
    run.rows([Row(at("12:01:59")), Row(at("12:02"))])
    windows = [(start, end) for start, end, _ in sorted(run.end().main)]
    assert windows == [(at("11:57"), at("12:02")), (at("12:02"), at("12:07"))]


def test_hopping_window_assignment_returns_multiple_windows() -> None:
    run = harness_of(Query(panes=HOP_10_5))
    assert run.rows([Row(at("12:07"))], at("12:07")).main == []
    assert run.rows([], at("12:10")).main == [(at("12:00"), at("12:10"), 1)]
    assert run.rows([], at("12:15")).main == [(at("12:05"), at("12:15"), 1)]
    assert run.end().main == []


def test_a_hop_that_does_not_divide_its_size() -> None:
    panes = Panes("HOP", 7, 3)
    assert panes.width_us == 1
    ends = {pane: panes.ends(np.array([pane])).tolist() for pane in (0, 2, 3, -1)}
    assert ends == {0: [1, 4, 7], 2: [4, 7], 3: [4, 7, 10], -1: [1, 4]}


def test_cumulating_windows_grow_until_their_size() -> None:
    run = harness_of(Query(panes=Panes("CUMULATE", 6, 2)))
    run.rows([Row(0), Row(3), Row(4), Row(7)], 0)
    assert run.rows([], 4).main == [(0, 2, 1), (0, 4, 2)]
    assert sorted(run.end().main) == [(0, 6, 3), (6, 8, 1), (6, 10, 1), (6, 12, 1)]


def test_each_row_of_a_hop_is_stored_once() -> None:
    run = harness_of(Query(panes=Panes("HOP", 100, 1)), key_groups=1)
    epoch = run.rows([Row(ts) for ts in range(50)], 0)
    assert epoch.reports[0]["rows"] == 50


# Firing


def test_a_window_fires_with_all_its_rows_once_and_not_before_its_end() -> None:
    run = harness_of(Query(panes=TUMBLE_5))
    for number in range(50):
        rows = [Row(at("12:00") + (number * 10 + i) * SECOND // 2) for i in range(10)]
        assert run.rows(rows, rows[-1].ts - 30 * SECOND).main == [], "rows only add up"
    assert run.rows([], at("12:05") - 1).main == []
    assert run.rows([], at("12:05")).main == [(at("12:00"), at("12:05"), 500)]
    assert run.rows([], at("12:06")).main == []
    assert run.stored_names() == []


def test_with_lateness_of_a_minute_a_window_is_evicted_at_12_06() -> None:
    run = harness_of(Query(panes=TUMBLE_5, lateness_us=MINUTE))
    run.rows([Row(at("12:01"))], at("12:01"))
    assert run.rows([], at("12:05")).main == [(at("12:00"), at("12:05"), 1, "+I")]
    run.rows([], at("12:06") - 1)
    assert run.stored_names() != []
    run.rows([], at("12:06"))
    assert run.stored_names() == []


def test_a_late_row_within_lateness_takes_back_100_and_gives_out_101() -> None:
    run = harness_of(summing(TUMBLE_5, lateness_us=MINUTE))
    run.rows([Row(at("12:01"), ("a",), (100,)), Row(at("12:01"), ("b",), (7,))], at("12:05"))
    window = (at("12:00"), at("12:05"))
    late = run.rows([Row(at("12:02"), ("a",), (1,))], at("12:05"))
    assert late.main == [("a", *window, 100, "-U"), ("a", *window, 101, "+U")]
    new = run.rows([Row(at("12:02"), ("c",), (5,))], at("12:05"))
    assert (new.main, new.late_rows) == ([("c", *window, 5, "+I")], 0)


@pytest.mark.parametrize("keeps_late", [False, True])
def test_late_data_after_window_close_is_dropped(keeps_late: bool) -> None:
    """Beyond the lateness: counted, and in the late stream if there is one."""
    run = harness_of(summing(TUMBLE_5, lateness_us=MINUTE, keeps_late=keeps_late))
    run.rows([Row(at("12:01"), ("a",), (100,))], at("12:06"))
    epoch = run.rows([Row(at("12:02"), ("a",), (1,), id=3)], at("12:06"))
    assert (epoch.main, epoch.late_rows) == ([], 1)
    assert [row["l0"] for row in epoch.late] == ([3] if keeps_late else [])
    if keeps_late:
        zero = datetime(1970, 1, 1, 12, tzinfo=UTC)
        assert epoch.late[0]["late_operator"] == "an_operator"
        assert epoch.late[0]["late_window_start"] == zero
        assert epoch.late[0]["late_window_end"] == zero.replace(minute=5)
        assert epoch.late[0]["late_watermark"] == zero.replace(minute=6)


def test_a_late_row_of_a_hop_counts_in_its_windows_that_are_open() -> None:
    run = harness_of(Query(panes=HOP_10_5))
    run.rows([Row(at("12:06"))], at("12:10"))
    assert run.rows([Row(at("12:07"))], at("12:15")).main == [(at("12:05"), at("12:15"), 2)]
    assert run.epochs[-1].late_rows == 0


# Results


def test_incremental_eowc_sum_matches_full_recompute() -> None:
    rows = [Row(n * 7919 % 900 * SECOND, (f"k{n % 5}",), (n * n,)) for n in range(300)]
    run = harness_of(summing(TUMBLE_5))
    for first in range(0, 300, 20):
        run.rows(rows[first : first + 20], 0)
    expected: dict[tuple[str, int], int] = {}
    for row in rows:
        key = (row.keys[0], row.ts // (5 * MINUTE))
        expected[key] = expected.get(key, 0) + row.values[0]
    found = {(k, start // (5 * MINUTE)): total for k, start, _, total in run.end().main}
    assert found == expected


def test_incremental_eowc_avg_multi_group() -> None:
    run = harness_of(Query((S,), (D,), (AVG,), ((0,),), (None,), TUMBLE_5))
    for value in (1.0, 2.0, None, 6.0):
        run.rows([Row(1, ("a",), (value,)), Row(2, ("b",), (None,)), Row(3, (None,), (4.0,))], 0)
    averages = {row[0]: row[-1] for row in run.end().main}
    assert averages == {"a": 3.0, "b": None, None: 4.0}


def test_window_close_emits_correct_schema() -> None:
    columns = (
        OutputColumn("result", 0, L),
        OutputColumn("due", 0, TIMESTAMP),
        OutputColumn("key", 0, S),
        OutputColumn("due", -1, TIMESTAMP),
    )
    query = summing(TUMBLE_5)

    def operator() -> Operator:
        return WindowAggregate(query.spec, TUMBLE_5, Layout(columns, TUMBLE_5))

    run = Harness(operator, query.table)
    run.rows([Row(at("12:03"), ("a",), (7,))])
    end = datetime(1970, 1, 1, 12, 5, tzinfo=UTC)
    last = datetime(1970, 1, 1, 12, 4, 59, 999_999, tzinfo=UTC)
    assert run.end().main == [(7, end, "a", last)]
    assert operator().output == pa.schema(
        [("c0", L), ("c1", TIMESTAMP), ("c2", S), ("c3", TIMESTAMP)]
    )


def test_non_aggregate_eowc_falls_back_to_raw_batches() -> None:
    """Without aggregates rows are kept as they are until their window closes."""
    schema = pa.schema([("c0", S)])

    def table(rows: Sequence[Row]) -> pa.Table:
        panes = [row.ts - row.ts % 10 + 10 for row in rows]
        hashes = [hash_of((pane,)) for pane in panes]
        return pa.table({PANE: panes, HASH: hashes, "c0": [row.keys[0] for row in rows]})

    run = Harness(lambda: HoldOperator(schema), table)
    assert run.rows([Row(3, ("a",)), Row(15, ("b",)), Row(4, ("a",))], 0).main == []
    run.restart()
    assert run.rows([Row(1, ("c",))], 10).main == [("a",), ("a",), ("c",)]
    late = run.rows([Row(2, ("d",))], 10)
    assert (late.main, late.late_rows) == ([], 1)
    assert (run.end().main, run.stored_names()) == ([("b",)], [])


@pytest.mark.parametrize("mode", ["close", "early"])
def test_empty_batch_update_is_noop(mode: str) -> None:
    for query in (Query(panes=TUMBLE_5, mode=mode), Query(gap_us=MINUTE, mode=mode)):
        run = harness_of(query)
        run.rows([Row(1)], 0)
        before = run.store.snapshot()
        assert run.rows([], 0).main == []
        assert run.epoch().main == []
        assert run.store.snapshot() == before


def test_a_cap_on_groups_is_an_error_that_says_what_to_do() -> None:
    run = harness_of(summing(TUMBLE_5, limits=Limits(100)), key_groups=1)
    run.rows([Row(1, (f"k{n}",), (1,)) for n in range(100)], 0)
    run.rows([Row(1, (f"k{n}",), (1,)) for n in range(100)], 0)
    with pytest.raises(RunError, match="101 groups in one key group; the limit is 100") as caught:
        run.rows([Row(1, ("one more",), (1,))], 0)
    assert (caught.value.code, "max_groups" in str(caught.value.hint)) == ("TG-508", True)


@pytest.mark.parametrize(
    "panes",
    [Panes("TUMBLE", 60, 60), Panes("HOP", 60, 20), Panes("HOP", 60, 25), Panes("DUE", 60, 60)],
    ids=str,
)
def test_an_open_window_is_not_read_while_time_passes(
    panes: Panes, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = harness_of(summing(panes), key_groups=1)
    run.rows([Row(at, ("a",), (1,)) for at in range(180, 240)], 180)
    get, read = KeyGroupState.get, []

    def counted(state: KeyGroupState, name: str, key: bytes, schemas: Any) -> Any:
        read.append(name)
        return get(state, name, key, schemas)

    monkeypatch.setattr(KeyGroupState, "get", counted)
    ends = set(range(181, 300)) & set(panes.ends(np.arange(180, 240, panes.width_us)).tolist())
    if panes.kind == "DUE":
        ends = {240}
    for mark in range(181, 300):
        read.clear()
        closed = {row[2] for row in run.rows([], mark).main}
        assert (closed, bool(read)) == ({mark} & ends, mark in ends), mark
