"""stddev and variance, over samples and populations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from tidegate.operators.accumulators.base import (
    Call,
    Column,
    CombiningAccumulator,
    Ids,
    unsupported,
)
from tidegate.operators.accumulators.kernels import to_doubles, valid_mask


class Variance(CombiningAccumulator):
    """Keeps the number of values, their mean, and the squares of what they are off the mean.

    Means and squares are merged as Chan, Golub and LeVeque do it: no large squares are subtracted,
    so that values close together far from zero keep their digits.
    """

    fields = (pa.float64(), pa.float64(), pa.float64())

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        kind = call.arguments[0]
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or _is_decimal(kind)):
            hint = "cast the argument to a number, for example CAST(… AS DOUBLE)."
            raise unsupported(call, f"is not supported over {kind}", hint)
        self.is_sample = call.function.endswith("_samp")
        self.is_root = call.function.startswith("stddev")

    def lift(self, arguments: Sequence[Column], weights: Column | None) -> list[Column]:
        assert weights is None, "rows that are taken back need the bag of values"
        values = to_doubles(arguments[0])
        counts = valid_mask(arguments[0]).astype(np.float64)
        with np.errstate(invalid="ignore"):
            # Zero, or NaN for NaN and ∞, which have no variance.
            squares = values - values
        return [pa.array(counts), pa.array(values), pa.array(squares)]

    def combine(self, states: Sequence[Column], ids: Ids, groups: int) -> list[Column]:
        counts, means, squares = (to_doubles(state) for state in states)
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            total = np.bincount(ids, counts, groups)
            divisor = np.maximum(total, 1)
            mean = np.bincount(ids, counts * means, groups) / divisor
            off = means - mean[ids]
            # What rounding the mean left over, once more.
            rest = np.bincount(ids, counts * off, groups) / divisor
            spread = np.bincount(ids, squares + counts * off * off, groups) - total * rest * rest
        return [pa.array(total), pa.array(mean + rest), pa.array(np.maximum(spread, 0))]

    def evaluate(self, states: Sequence[Column]) -> Column:
        counts, squares = to_doubles(states[0]), to_doubles(states[2])
        freedom = counts - 1 if self.is_sample else counts
        result = squares / np.maximum(freedom, 1)
        return pa.array(np.sqrt(result) if self.is_root else result, mask=freedom <= 0)


def _is_decimal(kind: pa.DataType) -> bool:
    return bool(pa.types.is_decimal(kind))
