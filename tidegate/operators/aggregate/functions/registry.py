"""The list of aggregate functions, and the accumulator of a call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tidegate.operators.aggregate.functions import (
    min_max,
    moments,
    ordered,
    percentiles,
    sketch,
    sums,
)
from tidegate.operators.aggregate.functions.base import (
    Accumulator,
    AggregateCall,
    BagAccumulator,
    BagBackedAccumulator,
    PlainAccumulator,
    unsupported_call,
)

AGGREGATES: tuple[type[PlainAccumulator] | type[BagAccumulator], ...] = (
    sums.Count,
    sums.CountIf,
    sums.Sum,
    sums.Average,
    moments.StddevSample,
    moments.StddevPopulation,
    moments.VarianceSample,
    moments.VariancePopulation,
    moments.Skewness,
    moments.Kurtosis,
    moments.Correlation,
    moments.CovariancePopulation,
    moments.CovarianceSample,
    moments.RegrSlope,
    moments.RegrIntercept,
    moments.RegrR2,
    moments.RegrSxx,
    moments.RegrSyy,
    moments.RegrSxy,
    moments.RegrCount,
    moments.RegrAvgY,
    moments.RegrAvgX,
    min_max.Min,
    min_max.Max,
    min_max.BoolAnd,
    min_max.BoolOr,
    min_max.BitAnd,
    min_max.BitOr,
    min_max.BitXor,
    ordered.First,
    ordered.Last,
    ordered.MinBy,
    ordered.MaxBy,
    ordered.CollectList,
    ordered.CollectSet,
    ordered.StringAgg,
    percentiles.ApproxPercentile,
    percentiles.Percentile,
    percentiles.Median,
    percentiles.Mode,
    sketch.ApproxCountDistinct,
)
FUNCTIONS = frozenset(name for aggregate in AGGREGATES for name in aggregate.names)
# Functions that exist with OVER only.
_WINDOW_FUNCTIONS = (ordered.NthValue, ordered.NthValueFromEnd)
_BY_NAME = {name: kind for kind in (*AGGREGATES, *_WINDOW_FUNCTIONS) for name in kind.names}


def make_accumulator(call: AggregateCall) -> Accumulator:
    """Return the accumulator of a call, or raise an error if the call is not supported."""
    kind = _BY_NAME.get(call.function)
    if kind is None:
        supported = ", ".join(sorted(FUNCTIONS))
        hint = f"supported aggregates: {supported}."
        raise unsupported_call(call, "is not supported on streams yet", hint)
    if call.ordered:
        raise unsupported_call(call, "is not supported with ORDER BY inside the call")
    if call.filtered:
        call = replace(call, arguments=call.arguments[:-1])
    if issubclass(kind, PlainAccumulator):
        return _plain_or_bag_backed(call, kind)
    if call.retracts and kind.exact_form is not None:
        return BagBackedAccumulator(replace(call, distinct=True), kind.exact_form)
    return kind(call)


def _plain_or_bag_backed(call: AggregateCall, kind: type[PlainAccumulator]) -> Accumulator:
    if call.distinct and kind.distinct_hint is not None:
        reason = (
            "is not supported with DISTINCT: Spark removes duplicates of one column, not of pairs"
        )
        raise unsupported_call(call, reason, kind.distinct_hint)
    is_set = kind.always_distinct or (call.distinct and not kind.idempotent)
    if is_set or (call.retracts and not kind.retractable):
        return BagBackedAccumulator(call, kind)
    return kind(call)


def ignores_nulls(function: str, constants: Sequence[object] = ()) -> bool:
    """Return whether rows with a NULL argument do not count, so that a FILTER can be folded in."""
    kind = _BY_NAME.get(function)
    return kind is None or kind.ignores_nulls(constants)


def constants_from(function: str) -> int | None:
    """Return the first argument that is a literal; None if all arguments are columns."""
    kind = _BY_NAME.get(function)
    return None if kind is None else kind.constants_from
