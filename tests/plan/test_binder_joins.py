"""Binding joins: kinds, time bounds and conditions."""

from __future__ import annotations

import pytest
from sqlglot import exp

from tests.support.compiling import accepted, find
from tidegate.plan import nodes as n
from tidegate.plan.rewrite.optimizer import optimize
from tidegate.sql import expressions as ex
from tidegate.sql.dialect import to_sql

MINUTE = "INTERVAL '1' MINUTE"
SOON = "b.ts BETWEEN a.ts AND a.ts + INTERVAL '1' MINUTE"


@pytest.mark.parametrize(
    ("condition", "lower", "upper"),
    [
        (
            "a.ts BETWEEN b.ts - INTERVAL '1' SECOND AND b.ts + INTERVAL '2' SECOND",
            -1_000_000,
            2_000_000,
        ),
        (
            "b.ts BETWEEN a.ts - INTERVAL '1' SECOND AND a.ts + INTERVAL '2' SECOND",
            -2_000_000,
            1_000_000,
        ),
        ("a.ts > b.ts AND a.ts < b.ts + INTERVAL '1' SECOND", 1, 999_999),
        ("a.ts - INTERVAL '1' SECOND <= b.ts AND b.ts <= a.ts", 0, 1_000_000),
        ("a.ts = b.ts", 0, 0),
        ("a.ts + INTERVAL '1' SECOND = b.ts - INTERVAL '1' SECOND", -2_000_000, -2_000_000),
        (
            "a.ts BETWEEN b.ts AND b.ts + INTERVAL '9' SECOND AND a.ts <= b.ts + INTERVAL '1' SECOND",
            0,
            1_000_000,
        ),
    ],
)
def test_interval_join_bounds(condition: str, lower: int, upper: int) -> None:
    plan = accepted(
        f"SELECT a.price FROM bids AS a JOIN asks AS b ON a.auction = b.auction AND {condition}"
    )
    join = find(plan, n.Join)
    assert isinstance(join, n.Join)
    assert join.kind is n.JoinKind.INTERVAL
    assert join.bounds is not None
    assert (join.bounds.lower_us, join.bounds.upper_us) == (lower, upper)
    assert join.residual is None


def test_window_start_bounds_a_join_by_the_window_end() -> None:
    plan = accepted(
        f"SELECT a.price FROM asks AS a JOIN TUMBLE(bids, ts, {MINUTE}) AS w "
        "ON a.ts >= w.window_start AND a.ts < w.window_end"
    )
    join = find(plan, n.Join)
    assert isinstance(join, n.Join)
    assert join.bounds is not None
    assert join.right.field(join.bounds.right_id).role is n.Role.WINDOW_END
    assert (join.bounds.lower_us, join.bounds.upper_us) == (-60_000_000, -1)


@pytest.mark.parametrize(
    ("tables", "kind"),
    [
        (f"bids AS a JOIN asks AS b ON {SOON}", n.JoinKind.INTERVAL),
        (f"bids AS a, asks AS b WHERE {SOON}", n.JoinKind.INTERVAL),
        ("bids AS a JOIN asks AS b ON a.auction = b.auction", n.JoinKind.REGULAR),
        (
            f"bids AS a LEFT JOIN asks AS b ON a.auction = b.auction WHERE {SOON}",
            n.JoinKind.REGULAR,
        ),
        (
            f"TUMBLE(bids, ts, {MINUTE}) AS a JOIN TUMBLE(asks, ts, {MINUTE}) AS b "
            "ON a.window_end = b.window_end",
            n.JoinKind.WINDOW,
        ),
        (
            f"SESSION(bids, ts, {MINUTE}) AS a JOIN SESSION(asks, ts, {MINUTE}) AS b "
            "ON a.window_end = b.window_end AND a.window_start = b.window_start",
            n.JoinKind.WINDOW,
        ),
        ("bids AS a JOIN customers AS b ON a.bidder = b.id", n.JoinKind.LOOKUP),
        (
            "bids AS a JOIN rates FOR SYSTEM_TIME AS OF a.ts AS b ON a.channel = b.currency",
            n.JoinKind.TEMPORAL,
        ),
        (
            "bids AS a ASOF JOIN asks AS b ON a.auction = b.auction AND a.ts >= b.ts",
            n.JoinKind.ASOF,
        ),
    ],
)
def test_join_kind_follows_from_tables_and_condition(tables: str, kind: n.JoinKind) -> None:
    join = find(accepted(f"SELECT 1 AS one FROM {tables}", "state_ttl = '1 h'"), n.Join)
    assert isinstance(join, n.Join)
    assert join.kind is kind


@pytest.mark.parametrize(
    "query",
    [
        "SELECT price FROM bids WHERE rand() BETWEEN 0.25 AND 0.75",
        "SELECT price FROM bids WHERE price > 1 AND (rand() * price) BETWEEN 1 AND auction",
        "SELECT price FROM bids WHERE rand() BETWEEN price AND auction AND channel = 'web'",
    ],
)
def test_random_operand_of_between_is_evaluated_once(query: str) -> None:
    plan = accepted(query)
    for shown in (plan, optimize(plan)):
        (condition,) = [node.condition for node in n.walk(shown) if isinstance(node, n.Filter)]
        assert [name for name, _ in ex.calls(condition)] == ["RAND"]


def test_between_of_columns_is_split_into_two_bounds() -> None:
    pieces = ex.conjuncts(exp.column("price").between(exp.column("low"), exp.column("high")))
    assert [to_sql(piece) for piece in pieces] == ["price >= low", "price <= high"]
