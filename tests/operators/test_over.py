"""OVER along event time, by example: when rows are emitted, and what the state keeps."""

from __future__ import annotations

import itertools
from typing import Any

import pyarrow as pa
import pytest

from tests.operators.batch import COUNT
from tests.operators.harness import Harness, L, Row, S
from tests.operators.over_queries import (
    TYPES,
    OverQuery,
    last_values,
    nth,
    rank,
    shift,
    total,
)
from tidegate.errors import RunError
from tidegate.operators.aggregate.functions import AggregateCall
from tidegate.operators.kernels.ordering import Ordering
from tidegate.operators.operator import Limits
from tidegate.operators.over.frames import Frame
from tidegate.operators.over.functions import OverFunction, OverSpec
from tidegate.operators.over.streaming import OverOperator
from tidegate.operators.watermark import WatermarkUpdate

LAG = shift("lag", 1, 0)
LEAD = shift("lead", 1, 0)
RUNNING = total(COUNT, Frame(False, None, 0))
LAST_TEN = total(COUNT, Frame(False, -10, 0))
OTHER_VALUES = (None,) * (len(TYPES) - 1)


def row(ts: int, value: int | None, id: int, key: str = "a") -> Row:
    return Row(ts, (key,), (value, *OTHER_VALUES), 1, id)


def ids(rows: list[tuple[Any, ...]]) -> list[int]:
    return [row[0] for row in rows]


def stored_rows(run: Harness) -> int:
    return sum(int(report["rows"]) for report in run.epochs[-1].reports)


def test_emits_a_row_when_the_watermark_has_passed_it() -> None:
    run = OverQuery((LAG,)).harness()
    assert run.rows([row(5, 50, 0), row(3, 30, 1)], watermark_us=3).rows == []
    assert run.rows([row(4, 40, 2)], watermark_us=5).rows == [(1, 3, "a", None), (2, 4, "a", 30)]
    run.restart()
    assert run.rows([], watermark_us=6).rows == [(0, 5, "a", 40)]


def test_row_behind_the_previous_watermark_is_late() -> None:
    run = OverQuery((LAG,), keeps_late=True).harness()
    assert run.rows([row(5, 50, 0)], watermark_us=5).late == []
    epoch = run.rows([row(4, 40, 1), row(5, 51, 2)], watermark_us=9)
    assert [(late["l0"], late["l1"], late["late_operator"]) for late in epoch.late] == [
        (1, 4, "over")
    ]
    assert epoch.late_rows == 1
    assert ids(epoch.rows) == [0, 2]


def test_rows_with_the_same_time_are_ordered_by_arrival() -> None:
    run = OverQuery((LAG, rank("ROW_NUMBER"), rank("RANK"), RUNNING)).harness()
    epoch = run.epoch(
        [[[row(5, 1, 1)], [row(5, 0, 0)]], [[row(5, 2, 2)]]], [WatermarkUpdate(0, 0, 6)]
    )
    assert epoch.rows == [
        (0, 5, "a", None, 1, 1, 3),
        (1, 5, "a", 0, 2, 1, 3),
        (2, 5, "a", 1, 3, 1, 3),
    ]


def test_lead_waits_for_following_rows() -> None:
    run = OverQuery((LEAD,)).harness()
    assert run.rows([row(1, 10, 0), row(2, 20, 1, "b")], watermark_us=5).rows == []
    run.restart()
    assert run.rows([row(7, 70, 2)], watermark_us=8).rows == [(0, 1, "a", 70)]
    assert ids(run.end().rows) == [1, 2]


def test_frame_that_extends_in_time_waits_for_its_end() -> None:
    run = OverQuery((total(COUNT, Frame(False, 0, 3)),)).harness()
    assert run.rows([row(1, 0, 0), row(4, 0, 1), row(5, 0, 2)], watermark_us=4).rows == []
    assert run.rows([], watermark_us=5).rows == [(0, 1, "a", 2)]
    assert ids(run.rows([], watermark_us=8).rows) == [1]


def test_state_has_only_the_rows_that_later_rows_can_see() -> None:
    run = OverQuery((shift("lag", 2, 0), LAG)).harness()
    run.rows([row(second, second, second) for second in range(100)], watermark_us=100)
    # One partition and two of its rows.
    assert stored_rows(run) == 3


def test_rows_of_time_frames_expire_with_the_watermark() -> None:
    run = OverQuery((LAST_TEN,)).harness()
    run.rows([row(second, 0, second) for second in range(100)], watermark_us=100)
    assert stored_rows(run) == 11
    # A partition without new rows expires as well.
    run.rows([row(300, 0, 100, "b")], watermark_us=200)
    run.rows([], watermark_us=301)
    run.rows([row(400, 0, 101, "b")], watermark_us=401)
    assert stored_rows(run) == 2


def test_cumulative_frames_keep_a_state_instead_of_rows() -> None:
    run = OverQuery((RUNNING, nth(2, 0, False, Frame(True, None, 0)), last_values(1, 0))).harness()
    run.rows([row(second, second, second) for second in range(100)], watermark_us=100)
    assert stored_rows(run) == 1 + 1  # One row, because LAG does not see itself.
    assert run.rows([row(200, 7, 200)], watermark_us=201).rows == [(200, 200, "a", 101, 1, 99)]


def test_watermark_drops_partitions_of_closed_windows() -> None:
    run = OverQuery((RUNNING, LAG), window=10).harness()
    run.rows([row(1, 0, 0), row(12, 0, 1)], watermark_us=13)
    assert [report for report in run.epochs[-1].reports if report["rows"]]
    run.rows([row(25, 0, 2)], watermark_us=20)
    run.rows([], watermark_us=26)
    assert stored_rows(run) == 2


def test_rows_of_a_window_may_wait_past_its_end() -> None:
    query = OverQuery((rank("ROW_NUMBER"), total(COUNT, Frame(False, None, 4))), window=2)
    run = query.harness()
    assert run.rows([row(4, 0, 0), row(5, 0, 1)], watermark_us=9).rows == [(0, 4, "a", 1, 2)]
    assert run.rows([], watermark_us=10).rows == [(1, 5, "a", 2, 2)]
    assert stored_rows(run) == 0


def test_time_to_live_drops_a_partition_after_its_last_row() -> None:
    run = OverQuery((RUNNING,), ttl_us=50).harness()
    run.epoch([[[row(1, 0, 0), row(1, 0, 1, "b")]]], [WatermarkUpdate(0, 0, 2)], now_us=100)
    run.epoch([[[row(3, 0, 2)]]], [WatermarkUpdate(0, 0, 4)], now_us=140)
    epoch = run.epoch([[[row(5, 0, 3), row(5, 0, 4, "b")]]], [WatermarkUpdate(0, 0, 6)], now_us=160)
    assert sorted(epoch.rows) == [(3, 5, "a", 3), (4, 5, "b", 1)]


def test_float_sums_do_not_depend_on_the_split_into_epochs() -> None:
    item = total(
        (AggregateCall("sum", "sum(v1)", (TYPES[1],), TYPES[1]), (1,), None, "sum(v1)"),
        Frame(True, None, 0),
    )
    values = [0.1, 1e16, -1e16, 0.3, 0.7, -0.0] * 5
    rows = [Row(at, ("a",), (None, v, *OTHER_VALUES[1:]), 1, at) for at, v in enumerate(values)]
    results = []
    for size in (1, 4, len(rows)):
        run = OverQuery((item,)).harness()
        sums = []
        for first in range(0, len(rows), size):
            sums += run.rows(rows[first : first + size], watermark_us=first + size).rows
        results.append([each[-1] for each in sums])
    running = list(itertools.accumulate(values, initial=0.0))[1:]
    assert results == [running] * 3


def test_overflow_error_names_the_sum() -> None:
    big = AggregateCall("sum", "sum(v0)", (L,), L)
    run = OverQuery((total((big, (0,), None, "sum(v0)"), Frame(True, -1, 0)),)).harness()
    with pytest.raises(RunError, match=r"sum\(v0\) overflows"):
        run.rows([row(1, 2**63 - 1, 0), row(2, 1, 1)], watermark_us=5)


def test_state_above_the_limit_is_an_error() -> None:
    spec = OverQuery((RUNNING,)).spec
    run = Harness(
        lambda: OverOperator(spec, limits=Limits(max_groups=3)), OverQuery((RUNNING,)).table
    )
    with pytest.raises(RunError, match="operator over keeps"):
        run.rows([row(1, 0, number, f"k{number}") for number in range(20)], watermark_us=0)


def test_rejects_types_without_an_offset_or_an_order() -> None:
    call = AggregateCall("count", "count(*)", (), L)
    function = OverFunction("COUNT", L, frame=Frame(False, -1, 0), call=call)
    with pytest.raises(RunError, match="RANGE with an offset is not supported over string"):
        OverSpec((S,), (Ordering(S),), ((0,),), (function,), (S,))
    with pytest.raises(RunError, match="PARTITION BY is not supported over map"):
        OverSpec((pa.map_(S, S),), (), ((),), (), ())
    with pytest.raises(RunError, match="ORDER BY is not supported over list"):
        OverSpec((), (Ordering(pa.list_(L)),), ((0,),), (), ())
