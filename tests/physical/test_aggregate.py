"""The plan of a GROUP BY: its calls, and the delay of its output watermark."""

from __future__ import annotations

import pytest

from tests.support.compiling import accepted
from tidegate.physical.aggregate import AggregatePlan, output_watermark_delay_us, plan_aggregate
from tidegate.physical.operator_kind import Unrunnable
from tidegate.plan import nodes as n


def plans_of(query: str) -> list[AggregatePlan]:
    """Return the aggregates of a query, outer ones first."""
    return [
        plan_aggregate(node) for node in n.walk(accepted(query)) if isinstance(node, n.Aggregate)
    ]


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
def test_literals_of_a_call_are_constants(
    call: str, function: str, arguments: int, constants: tuple[object, ...]
) -> None:
    (plan,) = plans_of(f"SELECT {call} AS x FROM bids EMIT CHANGES")
    (planned,) = plan.calls
    assert (planned.function, len(planned.arguments), planned.constants) == (
        function,
        arguments,
        constants,
    )


def test_argument_that_must_be_constant_is_rejected_otherwise() -> None:
    with pytest.raises(Unrunnable, match="must be a constant"):
        plans_of("SELECT approx_percentile(price, price / 10) AS x FROM bids EMIT CHANGES")


@pytest.mark.parametrize(
    ("window", "emit", "delay_us"),
    [
        ("TUMBLE(ts, INTERVAL '1' MINUTE)", "", 0),
        ("TUMBLE(ts, INTERVAL '1' MINUTE)", "ALLOW LATENESS INTERVAL '3' SECOND", 3_000_000),
        ("SESSION(ts, INTERVAL '1' MINUTE)", "", 1),
        ("SESSION(ts, INTERVAL '1' MINUTE)", "ALLOW LATENESS INTERVAL '3' SECOND", 3_000_001),
    ],
)
def test_output_watermark_is_delayed_by_lateness_and_for_sessions(
    window: str, emit: str, delay_us: int
) -> None:
    query = f"SELECT window_end, count(*) AS n FROM bids GROUP BY {window} EMIT ON WINDOW CLOSE"
    (plan,) = plans_of(f"{query} {emit}")
    assert output_watermark_delay_us(plan.node) == delay_us
