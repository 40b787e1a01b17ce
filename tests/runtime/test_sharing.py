"""Which operators do the same work, so that one can step for several streams."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.support.compiling import accepted, compile_with_sources, plan_of, typed
from tidegate.operators.operator import NO_LIMITS, Limits
from tidegate.physical.planner import OperatorPlan, plan_physical
from tidegate.plan.rewrite.optimizer import optimize
from tidegate.runtime.frames import below, is_equivalent, is_shareable

MINUTE = "INTERVAL '1' MINUTE"
COUNT = f"SELECT auction, count(*) AS n FROM bids GROUP BY auction, TUMBLE(ts, {MINUTE})"
FIRST = "SELECT DISTINCT auction, bidder, ts FROM bids"
KEYED = "SELECT auction, count(*) AS n FROM bids GROUP BY auction EMIT CHANGES"
JOIN = (
    "SELECT b.price, a.seller FROM bids AS b JOIN asks AS a "
    f"ON a.auction = b.auction AND a.ts BETWEEN b.ts AND b.ts + {MINUTE}"
)


def lowest(
    *queries: str, limits: Sequence[Limits] = (), keeps_late: bool = False
) -> list[OperatorPlan]:
    """The last operator of each query: nothing but sources stands below it."""
    script = "".join(f"CREATE STREAM s{i} {_declared(q)};" for i, q in enumerate(queries))
    compiled = compile_with_sources(script)
    assert not compiled.errors, [error.render() for error in compiled.errors]
    plans = [typed(optimize(plan_of(compiled, f"s{i}"))) for i, _ in enumerate(queries)]
    bounds = limits or [NO_LIMITS] * len(plans)
    pairs = zip(plans, bounds, strict=True)
    return [plan_physical("s", plan, bound, keeps_late).operators[-1] for plan, bound in pairs]


def _declared(query: str) -> str:
    return query if query.startswith("WITH") else f"AS {query}"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (COUNT, f"SELECT n * 2 AS m, auction AS a FROM ({COUNT}) WHERE n > 3"),
        (FIRST, f"SELECT bidder, count(*) AS n FROM ({FIRST}) GROUP BY bidder, TUMBLE(ts, {MINUTE})"),
        (FIRST, f"SELECT a.bidder FROM asks AS b JOIN ({FIRST}) AS a ON a.auction = b.auction "
         f"AND a.ts BETWEEN b.ts AND b.ts + {MINUTE}"),
        (JOIN, f"SELECT seller AS x, price AS y FROM ({JOIN})"),
        (KEYED, f"SELECT auction, n + 1 AS n FROM ({KEYED[:-13]}) EMIT CHANGES"),
    ],
)  # fmt: skip
def test_the_rest_of_a_query_does_not_matter(one: str, other: str) -> None:
    first, second = lowest(one, other)
    assert is_shareable(first) and is_shareable(second)
    assert is_equivalent(first, second) and is_equivalent(second, first)


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
def test_what_differs_in_or_below_an_operator_does(other: str) -> None:
    assert not is_equivalent(*lowest(COUNT, other))


def test_what_the_meaning_of_state_leaves_out_counts_too() -> None:
    day, days = (f"WITH (state_ttl = '{ttl}') AS {KEYED}" for ttl in ("1 day", "2 days"))
    one, same, other = lowest(day, day, days)
    assert is_equivalent(one, same)
    assert one.canonical_form == other.canonical_form and not is_equivalent(one, other)
    free, bounded = lowest(KEYED, KEYED, limits=(NO_LIMITS, Limits(5, 10)))
    assert free.canonical_form == bounded.canonical_form and not is_equivalent(free, bounded)


def test_late_rows_and_what_lookups_find_stay_with_their_stream() -> None:
    late = f"{COUNT} EMIT ON WINDOW CLOSE LATE DATA TO late_rows"
    (unwanted,), (wanted,) = lowest(late), lowest(late, keeps_late=True)
    assert is_shareable(unwanted) and not is_shareable(wanted)
    (looked_up,) = lowest(
        "SELECT c.name, count(*) AS n FROM bids AS b JOIN customers AS c ON b.bidder = c.id "
        f"GROUP BY c.name, TUMBLE(b.ts, {MINUTE})"
    )
    assert not is_shareable(looked_up)


def test_all_that_steps_with_an_operator_is_below_it() -> None:
    query = f"SELECT bidder, count(*) AS n FROM ({FIRST}) GROUP BY bidder, TUMBLE(ts, {MINUTE})"
    top, distinct = plan_physical("s", typed(accepted(query)), NO_LIMITS).operators
    (port,) = distinct.ports
    assert list(below(top)) == [top, distinct, *port.leaves]
