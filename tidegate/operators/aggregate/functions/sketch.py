"""approx_count_distinct: HyperLogLog, with one row per register."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.operators.aggregate.functions.base import (
    AggregateCall,
    BagAccumulator,
    require_groupable,
)
from tidegate.operators.aggregate.functions.sums import Count
from tidegate.operators.kernels.arrays import Column, Doubles, Ints, as_array
from tidegate.operators.kernels.keys import hash_rows

Hashes = npt.NDArray[np.uint64]
_BITS = 64


class ApproxCountDistinct(BagAccumulator):
    """Estimates the number of distinct values within a relative standard deviation.

    The hash of a value selects a register, which keeps the longest run of zeros. The estimator is
    Ertl's (2017), which needs no correction tables. Spark uses a different one, so its estimate for
    the same values differs, with the same accuracy.
    """

    names = ("approx_count_distinct",)
    constants_from = 1
    # Registers cannot retract, so with retractions values are counted exactly.
    exact_form = Count

    count_kernel = "max"
    values = (pa.int32(),)

    def __init__(self, call: AggregateCall) -> None:
        super().__init__(call)
        require_groupable(call, "it would compare values of")
        deviation = float(call.constants[0]) if call.constants else 0.05
        self.precision = max(4, math.ceil(2 * math.log2(1.106 / deviation)))

    def pre_aggregate(
        self, arguments: Sequence[Column], ones: Column
    ) -> tuple[list[Column], Column]:
        array = as_array(arguments[0])
        hashes = hash_rows([array], len(array)).view(np.uint64)
        registers = (hashes >> np.uint64(_BITS - self.precision)).astype(np.int32)
        # A one bit after the hash ends every run of zeros.
        rest = (hashes << np.uint64(self.precision)) | np.uint64(1 << (self.precision - 1))
        runs = _leading_zeros(rest) + 1
        null_mask = pc.is_null(array).to_numpy(zero_copy_only=False)
        return [pa.array(registers, mask=null_mask)], pa.array(runs)

    def evaluate_bag(
        self, values: Sequence[Column], counts: Ints, ids: Ints, groups: int
    ) -> Column:
        size, longest = 2**self.precision, _BITS - self.precision
        full = np.bincount(ids[counts > longest], minlength=groups)
        empty = size - np.bincount(ids, minlength=groups)
        inside = np.where(counts <= longest, 2.0**-counts, 0.0)
        spread = np.bincount(ids, inside, groups) + size * _sigma(empty / size)
        spread += size * _tau(1 - full / size) * 2.0**-longest
        with np.errstate(divide="ignore"):
            estimate = size * size / (2 * math.log(2)) / spread
        return pa.array(np.rint(estimate).astype(np.int64))


def _leading_zeros(bits: Hashes) -> Ints:
    """Count the zeros before the first one bit; no value is zero."""
    zeros = np.zeros(len(bits), np.int64)
    for width in (32, 16, 8, 4, 2, 1):
        small = bits < np.uint64(1 << (_BITS - width))
        zeros += small * width
        bits = np.where(small, bits << np.uint64(width), bits)
    return zeros


def _sigma(x: Doubles) -> Doubles:
    """Return x + Σ x^(2^k) 2^(k−1), the term of empty registers; infinite if all are empty."""
    total, power, factor = x.copy(), x.copy(), 1.0
    for _ in range(_BITS):
        power = power * power
        new_total = total + power * factor
        if np.array_equal(new_total, total):
            break
        total, factor = new_total, factor * 2
    return np.where(x >= 1, np.inf, total)


def _tau(x: Doubles) -> Doubles:
    """Return (1 − x − Σ (1 − x^(2^−k))² 2^(−k)) / 3, the term of full registers."""
    total, root, factor = 1 - x, x.copy(), 1.0
    for _ in range(_BITS):
        root = np.sqrt(root)
        factor /= 2
        new_total = total - (1 - root) ** 2 * factor
        if np.array_equal(new_total, total):
            break
        total = new_total
    return np.where((x == 0) | (x == 1), 0.0, total / 3)
