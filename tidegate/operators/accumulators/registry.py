"""From the name of an aggregate to its accumulator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tidegate.operators.accumulators.arrivals import ExtremeBy, FirstOrLast, skips_nulls
from tidegate.operators.accumulators.bags import CountDistinct, OverBag, Reading
from tidegate.operators.accumulators.base import (
    Accumulator,
    BagAccumulator,
    Call,
    PlainAccumulator,
    groupable,
    unsupported,
)
from tidegate.operators.accumulators.extremes import AllOrAny, Bits, Extreme
from tidegate.operators.accumulators.lists import CollectList, JoinedText
from tidegate.operators.accumulators.numbers import Average, Count, CountIf, Sum
from tidegate.operators.accumulators.ranks import Mode, Percentile
from tidegate.operators.accumulators.sketch import ApproxCountDistinct
from tidegate.operators.accumulators.variance import Variance

# The names under which Spark knows the same aggregate.
ALIASES = {
    "mean": "avg",
    "every": "bool_and",
    "any": "bool_or",
    "some": "bool_or",
    "std": "stddev_samp",
    "stddev": "stddev_samp",
    "variance": "var_samp",
    "first_value": "first",
    "any_value": "first",
    "last_value": "last",
    "array_agg": "collect_list",
    "listagg": "string_agg",
    "percentile_approx": "approx_percentile",
}
PLAIN: dict[str, type[PlainAccumulator]] = {
    "count": Count,
    "count_if": CountIf,
    "sum": Sum,
    "avg": Average,
    "min": Extreme,
    "max": Extreme,
    "bool_and": AllOrAny,
    "bool_or": AllOrAny,
    "bit_and": Bits,
    "bit_or": Bits,
    "bit_xor": Bits,
    "stddev_samp": Variance,
    "stddev_pop": Variance,
    "var_samp": Variance,
    "var_pop": Variance,
    "first": FirstOrLast,
    "last": FirstOrLast,
    "min_by": ExtremeBy,
    "max_by": ExtremeBy,
    "collect_list": CollectList,
    "collect_set": CollectList,
    "string_agg": JoinedText,
}
# What needs the values themselves, whatever the call says.
BAGS: dict[str, type[BagAccumulator]] = {
    "approx_count_distinct": ApproxCountDistinct,
    "approx_percentile": Percentile,
    "percentile": Percentile,
    "median": Percentile,
    "mode": Mode,
}
# DISTINCT changes nothing for these.
IDEMPOTENT = frozenset(
    {"min", "max", "bool_and", "bool_or", "bit_and", "bit_or", "first", "last", "min_by", "max_by"}
)
# These can take a row back from what they keep.
RETRACTABLE = frozenset({"count", "count_if", "sum", "avg"})
IN_ORDER = frozenset(
    {"first", "last", "min_by", "max_by", "collect_list", "collect_set", "string_agg"}
)
# Literals are read from this argument on; the others only have columns.
_CONSTANTS_FROM = {
    "first": 1,
    "last": 1,
    "collect_list": 1,
    "string_agg": 1,
    "approx_count_distinct": 1,
    "approx_percentile": 1,
    "percentile": 1,
    "mode": 1,
    "min_by": 2,
    "max_by": 2,
}
FUNCTIONS = frozenset(PLAIN) | frozenset(BAGS) | frozenset(ALIASES)


def make(call: Call) -> Accumulator:
    """The accumulator of a call, or an error that says what is not supported."""
    function = ALIASES.get(call.function, call.function)
    if function not in FUNCTIONS:
        known = ", ".join(sorted(FUNCTIONS))
        raise unsupported(call, "is not supported on streams yet", f"aggregates that run: {known}.")
    if call.ordered:
        raise unsupported(call, "is not supported with an ORDER BY of its own")
    columns = call.arguments[:-1] if call.filtered else call.arguments
    call = replace(call, function=function, arguments=columns)
    if function == "count" and call.distinct:
        return CountDistinct(call)
    if function == "approx_count_distinct" and call.retracts:
        # Registers forget what they saw.
        return CountDistinct(call)
    if function in BAGS:
        return BAGS[function](call)
    return _plain_or_over_bag(call)


def _plain_or_over_bag(call: Call) -> Accumulator:
    function = call.function
    once = function == "collect_set" or (call.distinct and function not in IDEMPOTENT)
    if once or (call.retracts and function not in RETRACTABLE):
        # What does not care for repetitions need not see them.
        once = once or (function in IDEMPOTENT and function not in IN_ORDER)
        return OverBag(call, PLAIN[function], Reading(function in IN_ORDER, once))
    return PLAIN[function](call)


def ignores_nulls(function: str, constants: Sequence[object] = ()) -> bool:
    """Whether rows with a NULL argument do not count, so that a filter can be folded into it."""
    function = ALIASES.get(function, function)
    if function in ("first", "last"):
        return skips_nulls(constants, default=False)
    if function == "collect_list":
        return skips_nulls(constants, default=True)
    return function not in ("min_by", "max_by")


def constants_from(function: str) -> int | None:
    """The first argument that is a literal and goes to `Call.constants`; None: all are columns."""
    return _CONSTANTS_FROM.get(ALIASES.get(function, function))


__all__ = ["FUNCTIONS", "constants_from", "groupable", "ignores_nulls", "make", "unsupported"]
