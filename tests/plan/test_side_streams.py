"""Side streams: which rows of a query can be late, and the columns of its late stream."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.support.compiling import accepted, compile_with_sources, plan_of, typed
from tidegate.catalog.objects import SideStream, Stream
from tidegate.operators.join.interval import IntervalJoin
from tidegate.operators.operator import NO_LIMITS
from tidegate.physical.operator_kind import Unrunnable
from tidegate.physical.planner import plan_physical, runner_of, typed_side_stream
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


def test_late_stream_of_one_operator_has_the_columns_of_its_input() -> None:
    late = late_of(f"SELECT count(*) AS n FROM asks {WINDOW} {LATE}")
    assert names(late) == ["auction", "seller", "price", "ts"]
    assert late.sources(late.inputs[0].rows) == (0, 1, 2, 3)


def test_late_stream_of_a_join_merges_columns_by_name() -> None:
    late = late_of(JOIN)
    assert names(late) == ["auction", "price", "ts", "seller"]
    left, right = late.inputs
    assert (left.port, right.port) == (0, 1)
    assert late.sources(left.rows) == (0, 1, 2, None)
    assert late.sources(right.rows) == (0, 2, 3, 1)


def test_two_aggregates_share_a_late_stream() -> None:
    late = late_of(
        f"SELECT count(*) AS n FROM (SELECT price, ts FROM bids) {WINDOW} UNION ALL "
        f"SELECT count(*) AS n FROM (SELECT seller, ts FROM asks) {WINDOW} {LATE}"
    )
    assert names(late) == ["price", "ts", "seller"]
    assert [late.sources(item.rows) for item in late.inputs] == [(0, 1, None), (None, 1, 0)]


def test_rows_are_late_at_the_first_operator_they_reach() -> None:
    """Rows of asks reach the outer aggregate first, rows of bids the inner one."""
    inner = "SELECT ts FROM bids GROUP BY ts"
    late = late_of(
        f"SELECT count(*) AS n FROM ({inner} UNION ALL SELECT ts FROM asks) {WINDOW} {LATE}"
    )
    assert len({id(item.operator) for item in late.inputs}) == 2
    inside, outside = late.inputs
    assert [item.name for item in outside.rows.fields] == ["ts"]
    assert late.sources(inside.rows) == tuple(range(8))
    assert [index for index in late.sources(outside.rows) if index is not None] == [0]


def test_outer_join_drops_late_rows_of_its_own_input_only() -> None:
    third = (
        "SELECT b.price FROM (SELECT auction, price, ts FROM bids) AS b "
        f"JOIN asks AS a ON a.auction = b.auction AND a.ts BETWEEN b.ts AND b.ts + {MINUTE} "
        "JOIN (SELECT auction, channel, ts FROM bids) AS c "
        f"ON c.auction = b.auction AND c.ts BETWEEN b.ts AND b.ts + {MINUTE} {LATE}"
    )
    late = late_of(third)
    assert [item.port for item in late.inputs] == [0, 1, 1]
    assert names(late) == ["auction", "price", "ts", "seller", "channel"]


def test_inlined_stream_drops_its_own_late_rows() -> None:
    below = f"CREATE STREAM below AS SELECT count(*) AS n, window_time AS at FROM bids {WINDOW};"
    query = f"SELECT sum(n) AS n FROM below GROUP BY TUMBLE(at, {MINUTE}) {LATE}"
    late = late_stream(plan_of(compile_with_sources(f"{below} CREATE STREAM s AS {query};"), "s"))
    assert names(late) == ["n", "at"]


def test_operator_emits_late_rows_with_the_columns_of_the_stream() -> None:
    plan = plan_physical("s", typed(accepted(JOIN)), NO_LIMITS, keeps_late=True)
    (join,) = (item.operator for item in plan.operators)
    assert isinstance(join, IntervalJoin) and join.late_rows is not None
    assert plan.late_schema is not None and plan.late_schema == join.late
    assert plan.late_schema.types[:4] == [
        pa.int64(),
        pa.int64(),
        pa.timestamp("us", "UTC"),
        pa.int64(),
    ]
    assert [side.column_indexes for side in join.late_rows] == [(0, 1, 2, None), (0, 2, 3, 1)]
    assert [side.operator for side in join.late_rows] == [
        "interval_join (left)",
        "interval_join (right)",
    ]


def test_two_operators_emit_late_rows_with_the_same_columns() -> None:
    query = (
        f"SELECT count(*) AS n FROM (SELECT price, ts FROM bids) {WINDOW} UNION ALL "
        f"SELECT count(*) AS n FROM (SELECT seller, ts FROM asks) {WINDOW} {LATE}"
    )
    plan = plan_physical("s", typed(accepted(query)), NO_LIMITS, keeps_late=True)
    assert len(plan.operators) == 2
    assert {item.operator.late for item in plan.operators} == {plan.late_schema}
    without_late_rows = plan_physical("s", typed(accepted(query)), NO_LIMITS)
    assert [item.operator.late for item in without_late_rows.operators] == [None, None]


def test_rejects_late_columns_with_different_types() -> None:
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
def test_fingerprint_does_not_depend_on_late_data_to(query: str) -> None:
    fingerprints = [
        [
            runner_of(item).fingerprint
            for item in plan_physical("s", typed(accepted(query)), NO_LIMITS, keeps_late).operators
        ]
        for keeps_late in (False, True)
    ]
    assert fingerprints[0] == fingerprints[1]


def side_of(query: str) -> SideStream:
    """Return the late stream of a query with types."""
    stream = compile_with_sources(f"CREATE STREAM s AS {query};").catalog.get("s")
    assert isinstance(stream, Stream)
    (side,) = late_row_streams(stream)
    return typed_side_stream(side, typed(accepted(query)).plan)


def test_late_stream_has_types_and_the_canonical_form_of_its_operators() -> None:
    query = f"SELECT count(*) AS n FROM (SELECT price + 1 AS p, ts FROM bids) {WINDOW} {LATE}"
    side = side_of(query)
    assert [(c.name, c.type) for c in side.columns[:2]] == [("p", "BIGINT"), ("ts", "TIMESTAMP")]
    assert side_of(query.replace("AS n", "AS number")).canonical_form == side.canonical_form
    assert side_of(query.replace("+ 1", "+ 2")).canonical_form != side.canonical_form
    lateness = "CLOSE ALLOW LATENESS INTERVAL '1' MINUTE"
    assert side_of(query.replace("CLOSE", lateness)).canonical_form != side.canonical_form
