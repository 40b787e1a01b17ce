"""Aggregate calls, their input rows and their results, for tests of aggregate functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.columns import HASH, PANE, WEIGHT
from tidegate.operators.aggregate.functions import AggregateCall
from tidegate.operators.aggregate.groups import Aggregator, GroupSpec

L, D, S, B = pa.int64(), pa.float64(), pa.string(), pa.bool_()
DEC = pa.decimal128(10, 2)
INTERVAL = pa.duration("us")
NAN, INF = float("nan"), float("inf")


def call_of(
    function: str, kinds: Sequence[pa.DataType], result: pa.DataType, **options: Any
) -> AggregateCall:
    return AggregateCall(function, f"{function}(x)", tuple(kinds), result, **options)


def input_rows(
    keys: Sequence[Any], columns: dict[str, pa.Array], weights: Sequence[int] | None = None
) -> pa.Table:
    """Return rows as an operator receives them: pane, hash, key, arguments, weight."""
    zeros = pa.array(np.zeros(len(keys), np.int64))
    table = {PANE: zeros, HASH: zeros, "k0": pa.array(keys, L), **columns}
    if weights is not None:
        table[WEIGHT] = pa.array(weights, L)
    return pa.table(table)


def results_by_key(
    call: AggregateCall,
    columns: Sequence[Sequence[Any]],
    keys: Sequence[int],
    weights: Sequence[int] | None = None,
) -> dict[int, Any]:
    """Return the results of a call over these argument columns."""
    aggregator = Aggregator(GroupSpec((L,), (call,), retracts=weights is not None))
    arguments = {
        f"a0_{number}": pa.array(values, kind)
        for number, (values, kind) in enumerate(zip(columns, call.arguments, strict=True))
    }
    result = aggregator.evaluate(aggregator.pre_aggregate(input_rows(keys, arguments, weights)))
    assert result.column("r0").type == call.result
    return dict(zip(result["k0"].to_pylist(), result["r0"].to_pylist(), strict=True))


def same_result(left: Any, right: Any) -> bool:
    """Compare results: NaN equals NaN, and doubles may differ by rounding."""
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same_result, left, right))
    if isinstance(left, float) and isinstance(right, float):
        if math.isnan(left) or math.isnan(right):
            return math.isnan(left) and math.isnan(right)
        return math.isclose(left, right, rel_tol=1e-9, abs_tol=1e-6)
    return type(left) is type(right) and left == right
