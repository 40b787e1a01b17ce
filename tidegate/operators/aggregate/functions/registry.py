"""From the name of an aggregate to its accumulator: a list of classes that say what they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tidegate.operators.aggregate.functions import extremes, moments, sketch
from tidegate.operators.aggregate.functions import extremes as ranks
from tidegate.operators.aggregate.functions import moments as regression
from tidegate.operators.aggregate.functions import moments as variance
from tidegate.operators.aggregate.functions import ordered as arrivals
from tidegate.operators.aggregate.functions import ordered as lists
from tidegate.operators.aggregate.functions import ordered as nth
from tidegate.operators.aggregate.functions import sums as numbers
from tidegate.operators.aggregate.functions.bags import OverBag
from tidegate.operators.aggregate.functions.base import (
    Accumulator,
    AggregateCall,
    BagAccumulator,
    PlainAccumulator,
    unsupported_call,
)

AGGREGATES: tuple[type[PlainAccumulator] | type[BagAccumulator], ...] = (
    numbers.Count,
    numbers.CountIf,
    numbers.Sum,
    numbers.Average,
    variance.StddevSample,
    variance.StddevPopulation,
    variance.VarianceSample,
    variance.VariancePopulation,
    moments.Skewness,
    moments.Kurtosis,
    regression.Correlation,
    regression.CovariancePopulation,
    regression.CovarianceSample,
    regression.RegrSlope,
    regression.RegrIntercept,
    regression.RegrR2,
    regression.RegrSxx,
    regression.RegrSyy,
    regression.RegrSxy,
    regression.RegrCount,
    regression.RegrAvgY,
    regression.RegrAvgX,
    extremes.Min,
    extremes.Max,
    extremes.BoolAnd,
    extremes.BoolOr,
    extremes.BitAnd,
    extremes.BitOr,
    extremes.BitXor,
    arrivals.First,
    arrivals.Last,
    arrivals.MinBy,
    arrivals.MaxBy,
    lists.CollectList,
    lists.CollectSet,
    lists.StringAgg,
    ranks.ApproxPercentile,
    ranks.Percentile,
    ranks.Median,
    ranks.Mode,
    sketch.ApproxCountDistinct,
)
FUNCTIONS = frozenset(name for aggregate in AGGREGATES for name in aggregate.names)
# What only functions with OVER are made of.
_OF_FRAMES = (nth.NthValue, nth.NthValueFromEnd)
_BY_NAME = {name: kind for kind in (*AGGREGATES, *_OF_FRAMES) for name in kind.names}


def make_accumulator(call: AggregateCall) -> Accumulator:
    """The accumulator of a call, or an error that says what is not supported."""
    kind = _BY_NAME.get(call.function)
    if kind is None:
        known = ", ".join(sorted(FUNCTIONS))
        raise unsupported_call(
            call, "is not supported on streams yet", f"aggregates that run: {known}."
        )
    if call.ordered:
        raise unsupported_call(call, "is not supported with an ORDER BY of its own")
    if call.filtered:
        call = replace(call, arguments=call.arguments[:-1])
    if issubclass(kind, PlainAccumulator):
        return _plain_or_over_bag(call, kind)
    if call.retracts and kind.exactly is not None:
        return OverBag(replace(call, distinct=True), kind.exactly)
    return kind(call)


def _plain_or_over_bag(call: AggregateCall, kind: type[PlainAccumulator]) -> Accumulator:
    if call.distinct and kind.instead_of_distinct is not None:
        hint = kind.instead_of_distinct
        raise unsupported_call(
            call, "with DISTINCT would not look at pairs, as the others do", hint
        )
    once = kind.once or (call.distinct and not kind.idempotent)
    if once or (call.retracts and not kind.retractable):
        return OverBag(call, kind)
    return kind(call)


def ignores_nulls(function: str, constants: Sequence[object] = ()) -> bool:
    """Whether rows with a NULL argument do not count, so that a filter can be folded into it."""
    kind = _BY_NAME.get(function)
    return kind is None or kind.ignores_nulls(constants)


def constants_from(function: str) -> int | None:
    """The first argument that is a literal and goes to `Call.constants`; None: all are columns."""
    kind = _BY_NAME.get(function)
    return None if kind is None else kind.constants_from
