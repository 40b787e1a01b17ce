"""What an aggregate asks of its input, and what its state means."""

from __future__ import annotations

import pytest

from tests.compiling import accepted
from tidegate.errors import RunError
from tidegate.physical.aggregates import AggregatePlan, plan_aggregate
from tidegate.plan import nodes as n

MINUTE = "INTERVAL '1' MINUTE"


def planned(query: str) -> list[AggregatePlan]:
    """The aggregates of a query, the outer ones first."""
    return [
        plan_aggregate(node) for node in n.walk(accepted(query)) if isinstance(node, n.Aggregate)
    ]


def meaning(query: str) -> tuple[object, ...]:
    plan = planned(query)[0]
    return (plan.meaning, [call.text for call in plan.calls])


def test_state_of_other_keys_means_something_else() -> None:
    by = "SELECT count(*) AS n FROM bids GROUP BY {}, TUMBLE(ts, " + MINUTE + ")"
    assert meaning(by.format("auction")) != meaning(by.format("bidder"))
    assert meaning(by.format("auction")) == meaning(by.format("auction") + " EMIT ON WINDOW CLOSE")


def test_an_outer_aggregate_is_known_by_the_names_of_the_query() -> None:
    """A changed inner aggregate must not throw away the state of the outer one."""
    query = (
        "SELECT sum(r) AS total FROM (SELECT auction, {}(price) AS r FROM bids GROUP BY auction) "
        "AS t EMIT CHANGES"
    )
    assert meaning(query.format("sum")) == meaning(query.format("max"))
    assert meaning(query.format("sum"))[1] == ["SUM(r)"]


@pytest.mark.parametrize(
    ("call", "function", "arguments", "constants"),
    [
        ("count(*)", "count", 0, ()),
        ("count(1)", "count", 0, ()),
        ("count(price)", "count", 1, ()),
        ("approx_percentile(price, 0.5)", "approx_percentile", 1, (0.5,)),
        ("approx_percentile(price, array(0.1, 0.9))", "approx_percentile", 1, ((0.1, 0.9),)),
        ("first(price, true)", "first", 1, (True,)),
        ("max_by(price, 1)", "max_by", 2, ()),
        ("string_agg(channel, ';')", "string_agg", 1, (";",)),
    ],
)
def test_calls(call: str, function: str, arguments: int, constants: tuple[object, ...]) -> None:
    (plan,) = planned(f"SELECT {call} AS x FROM bids EMIT CHANGES")
    (found,) = plan.calls
    assert (found.function, len(found.arguments), found.constants) == (
        function,
        arguments,
        constants,
    )


def test_what_must_be_constant_is_refused_otherwise() -> None:
    with pytest.raises(RunError, match="is not a constant"):
        planned("SELECT approx_percentile(price, price / 10) AS x FROM bids EMIT CHANGES")
