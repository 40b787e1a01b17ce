"""Which rows of a query can be late, and which columns its late stream has."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.support.compiling import accepted, compile_with_sources, plan_of, typed
from tidegate.catalog.objects import SideStream, Stream
from tidegate.operators.join.interval import IntervalJoin
from tidegate.operators.operator import NO_LIMITS
from tidegate.physical.operator_kind import Unrunnable
from tidegate.physical.planner import plan_physical, runner_of, typed_side
from tidegate.plan.side_streams import LateStream, late_row_streams, late_stream

MINUTE = "INTERVAL '1' MINUTE"
WINDOW = f"GROUP BY TUMBLE(ts, {MINUTE})"
LATE = "EMIT ON WINDOW CLOSE LATE DATA TO late_rows"
JOIN = (
    "SELECT b.price FROM (SELECT auction, price, ts FROM bids) AS b JOIN asks AS a "
    f"ON a.auction = b.auction AND a.ts BETWEEN b.ts AND b.ts + {MINUTE} {LATE}"
)


def late_of(query: str) -> LateStream:
    return late_stream(accepted(query))


def names(late: LateStream) -> list[str]:
    return [item.name for item in late.columns]


def test_one_operator_has_the_columns_of_its_input() -> None:
    late = late_of(f"SELECT count(*) AS n FROM asks {WINDOW} {LATE}")
    assert names(late) == ["auction", "seller", "price", "ts"]
    assert late.sources(late.inputs[0].rows) == (0, 1, 2, 3)


def test_a_join_has_the_columns_of_both_sides_and_a_common_name_once() -> None:
    late = late_of(JOIN)
    assert names(late) == ["auction", "price", "ts", "seller"]
    left, right = late.inputs
    assert (left.port, right.port) == (0, 1)
    assert late.sources(left.rows) == (0, 1, 2, None)
    assert late.sources(right.rows) == (0, 2, 3, 1)


def test_two_aggregates_side_by_side_share_a_late_stream() -> None:
    late = late_of(
        f"SELECT count(*) AS n FROM (SELECT price, ts FROM bids) {WINDOW} UNION ALL "
        f"SELECT count(*) AS n FROM (SELECT seller, ts FROM asks) {WINDOW} {LATE}"
    )
    assert names(late) == ["price", "ts", "seller"]
    assert [late.sources(item.rows) for item in late.inputs] == [(0, 1, None), (None, 1, 0)]


def test_rows_are_judged_where_they_come_in() -> None:
    """Rows of asks meet the outer windows first, those of bids the inner ones."""
    inner = "SELECT ts FROM bids GROUP BY ts"
    late = late_of(
        f"SELECT count(*) AS n FROM ({inner} UNION ALL SELECT ts FROM asks) {WINDOW} {LATE}"
    )
    assert len({id(item.operator) for item in late.inputs}) == 2
    inside, outside = late.inputs
    assert [item.name for item in outside.rows.fields] == ["ts"]
    assert late.sources(inside.rows) == tuple(range(8))
    assert [place for place in late.sources(outside.rows) if place is not None] == [0]


def test_a_join_over_a_join_judges_what_the_inner_one_has_not() -> None:
    third = (
        "SELECT b.price FROM (SELECT auction, price, ts FROM bids) AS b "
        f"JOIN asks AS a ON a.auction = b.auction AND a.ts BETWEEN b.ts AND b.ts + {MINUTE} "
        "JOIN (SELECT auction, channel, ts FROM bids) AS c "
        f"ON c.auction = b.auction AND c.ts BETWEEN b.ts AND b.ts + {MINUTE} {LATE}"
    )
    late = late_of(third)
    assert [item.port for item in late.inputs] == [0, 1, 1]
    assert names(late) == ["auction", "price", "ts", "seller", "channel"]


def test_a_stream_below_judges_its_own_rows() -> None:
    below = f"CREATE STREAM below AS SELECT count(*) AS n, window_time AS at FROM bids {WINDOW};"
    query = f"SELECT sum(n) AS n FROM below GROUP BY TUMBLE(at, {MINUTE}) {LATE}"
    late = late_stream(plan_of(compile_with_sources(f"{below} CREATE STREAM s AS {query};"), "s"))
    assert names(late) == ["n", "at"]


def test_the_operators_hand_out_the_columns_of_the_stream() -> None:
    plan = plan_physical("s", typed(accepted(JOIN)), NO_LIMITS, keeps_late=True)
    (join,) = (item.operator for item in plan.operators)
    assert isinstance(join, IntervalJoin) and join.late_rows is not None
    assert plan.late is not None and plan.late == join.late
    assert plan.late.types[:4] == [pa.int64(), pa.int64(), pa.timestamp("us", "UTC"), pa.int64()]
    assert [side.sources for side in join.late_rows] == [(0, 1, 2, None), (0, 2, 3, 1)]
    assert [side.operator for side in join.late_rows] == [
        "interval_join (left)",
        "interval_join (right)",
    ]


def test_two_operators_hand_out_the_same_columns() -> None:
    query = (
        f"SELECT count(*) AS n FROM (SELECT price, ts FROM bids) {WINDOW} UNION ALL "
        f"SELECT count(*) AS n FROM (SELECT seller, ts FROM asks) {WINDOW} {LATE}"
    )
    plan = plan_physical("s", typed(accepted(query)), NO_LIMITS, keeps_late=True)
    assert len(plan.operators) == 2
    assert {item.operator.late for item in plan.operators} == {plan.late}
    nobody = plan_physical("s", typed(accepted(query)), NO_LIMITS)
    assert [item.operator.late for item in nobody.operators] == [None, None]


def test_types_that_turn_out_to_differ_are_rejected() -> None:
    query = (
        f"SELECT count(*) AS n FROM (SELECT price + 1 AS x, ts FROM bids) {WINDOW} UNION ALL "
        f"SELECT count(*) AS n FROM (SELECT channel AS x, ts FROM bids) {WINDOW} {LATE}"
    )
    with pytest.raises(Unrunnable, match="columns x have the types BIGINT and STRING"):
        plan_physical("s", typed(accepted(query)), NO_LIMITS, keeps_late=True)


@pytest.mark.parametrize(
    "query",
    [
        JOIN,
        f"SELECT auction, count(DISTINCT price) AS n FROM bids {WINDOW}, auction {LATE}",
        f"SELECT auction, count(*) AS n FROM bids GROUP BY auction, SESSION(ts, {MINUTE}) {LATE}",
    ],
)
def test_the_state_is_the_same_whether_somebody_reads_late_rows_or_not(query: str) -> None:
    prints = [
        [
            runner_of(item).fingerprint
            for item in plan_physical("s", typed(accepted(query)), NO_LIMITS, keeps_late).operators
        ]
        for keeps_late in (False, True)
    ]
    assert prints[0] == prints[1]


def side_of(query: str) -> SideStream:
    """The late stream of a query, as it is once types are known."""
    stream = compile_with_sources(f"CREATE STREAM s AS {query};").catalog.get("s")
    assert isinstance(stream, Stream)
    (side,) = late_row_streams(stream)
    return typed_side(side, typed(accepted(query)).plan)


def test_a_late_stream_has_the_types_of_computed_columns_and_means_its_operators() -> None:
    query = f"SELECT count(*) AS n FROM (SELECT price + 1 AS p, ts FROM bids) {WINDOW} {LATE}"
    side = side_of(query)
    assert [(c.name, c.type) for c in side.columns[:2]] == [("p", "BIGINT"), ("ts", "TIMESTAMP")]
    assert side_of(query.replace("AS n", "AS number")).canonical_form == side.canonical_form
    assert side_of(query.replace("+ 1", "+ 2")).canonical_form != side.canonical_form
    lateness = "CLOSE ALLOW LATENESS INTERVAL '1' MINUTE"
    assert side_of(query.replace("CLOSE", lateness)).canonical_form != side.canonical_form
