"""Equivalent operators, of which one can step for several streams."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.support.compiling import accepted, compile_with_sources, plan_of, typed
from tidegate.operators.operator import NO_LIMITS, Limits
from tidegate.physical.planner import OperatorPlan, plan_physical
from tidegate.plan.rewrite.optimizer import optimize
from tidegate.runtime.frames import is_equivalent, is_shareable, walk_plans

MINUTE = "INTERVAL '1' MINUTE"
COUNT = f"SELECT auction, count(*) AS n FROM bids GROUP BY auction, TUMBLE(ts, {MINUTE})"
FIRST = "SELECT DISTINCT auction, bidder, ts FROM bids"
KEYED = "SELECT auction, count(*) AS n FROM bids GROUP BY auction EMIT CHANGES"
JOIN = (
    "SELECT b.price, a.seller FROM bids AS b JOIN asks AS a "
    f"ON a.auction = b.auction AND a.ts BETWEEN b.ts AND b.ts + {MINUTE}"
)


def last_operators(
    *queries: str, limits: Sequence[Limits] = (), keeps_late: bool = False
) -> list[OperatorPlan]:
    """Return the last operator of each query, which has only sources below it."""
    script = "".join(f"CREATE STREAM s{i} {_stream_body(q)};" for i, q in enumerate(queries))
    compiled = compile_with_sources(script)
    assert not compiled.errors, [error.render() for error in compiled.errors]
    plans = [typed(optimize(plan_of(compiled, f"s{i}"))) for i, _ in enumerate(queries)]
    bounds = limits or [NO_LIMITS] * len(plans)
    pairs = zip(plans, bounds, strict=True)
    return [plan_physical("s", plan, bound, keeps_late).operators[-1] for plan, bound in pairs]


def _stream_body(query: str) -> str:
    return query if query.startswith("WITH") else f"AS {query}"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (COUNT, f"SELECT n * 2 AS m, auction AS a FROM ({COUNT}) WHERE n > 3"),
        (FIRST, f"SELECT bidder, count(*) AS n FROM ({FIRST}) GROUP BY bidder, TUMBLE(ts, {MINUTE})"),
        (FIRST, f"SELECT a.bidder FROM asks AS b JOIN ({FIRST}) AS a ON a.auction = b.auction "
         f"AND a.ts BETWEEN b.ts AND b.ts + {MINUTE}"),
        (JOIN, f"SELECT seller AS x, price AS y FROM ({JOIN})"),
        (KEYED, f"SELECT auction, n + 1 AS n FROM ({KEYED[:-13]}) EMIT CHANGES"),
    ],
)  # fmt: skip
def test_operators_are_equivalent_whatever_is_above_them(first: str, second: str) -> None:
    one, other = last_operators(first, second)
    assert is_shareable(one) and is_shareable(other)
    assert is_equivalent(one, other) and is_equivalent(other, one)


@pytest.mark.parametrize(
    "other",
    [
        COUNT.replace("bids", "asks"),
        COUNT.replace("count(*)", "sum(price)"),
        COUNT.replace("'1'", "'2'"),
        COUNT.replace("FROM bids", "FROM bids WHERE price > 3"),
        f"{COUNT} EMIT ON WINDOW CLOSE ALLOW LATENESS {MINUTE}",
        f"{COUNT} EMIT CHANGES",
    ],
)
def test_operators_are_not_equivalent_if_something_in_or_below_differs(other: str) -> None:
    assert not is_equivalent(*last_operators(COUNT, other))


def test_limits_and_time_to_live_must_be_equal() -> None:
    day, days = (f"WITH (state_ttl = '{ttl}') AS {KEYED}" for ttl in ("1 day", "2 days"))
    first, same, other = last_operators(day, day, days)
    assert is_equivalent(first, same)
    assert first.canonical_form == other.canonical_form and not is_equivalent(first, other)
    free, bounded = last_operators(KEYED, KEYED, limits=(NO_LIMITS, Limits(5, 10)))
    assert free.canonical_form == bounded.canonical_form and not is_equivalent(free, bounded)


def test_operators_with_late_rows_or_lookups_are_not_shareable() -> None:
    late = f"{COUNT} EMIT ON WINDOW CLOSE LATE DATA TO late_rows"
    (without_late_rows,), (with_late_rows,) = (
        last_operators(late),
        last_operators(late, keeps_late=True),
    )
    assert is_shareable(without_late_rows) and not is_shareable(with_late_rows)
    (lookup,) = last_operators(
        "SELECT c.name, count(*) AS n FROM bids AS b JOIN customers AS c ON b.bidder = c.id "
        f"GROUP BY c.name, TUMBLE(b.ts, {MINUTE})"
    )
    assert not is_shareable(lookup)


def test_walk_plans_yields_all_operators_and_leaves() -> None:
    query = f"SELECT bidder, count(*) AS n FROM ({FIRST}) GROUP BY bidder, TUMBLE(ts, {MINUTE})"
    top, distinct = plan_physical("s", typed(accepted(query)), NO_LIMITS).operators
    (port,) = distinct.ports
    assert list(walk_plans(top)) == [top, distinct, *port.leaves]
