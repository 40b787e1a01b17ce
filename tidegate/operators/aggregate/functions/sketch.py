"""approx_count_distinct: HyperLogLog, its registers kept as rows."""

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
    """Counts different values within a relative standard deviation, in bounded space.

    A value's hash picks a register, which keeps the longest run of zeros it saw. The estimator is
    the one of Ertl (2017), which needs no tables of corrections from small to large numbers; it is
    not Spark's, whose estimate for the same values is another one of the same quality.
    """

    names = ("approx_count_distinct",)
    constants_from = 1
    # Registers forget what they saw, so where rows are retracted values are counted exactly.
    exactly = Count

    merge = "max"
    values = (pa.int32(),)

    def __init__(self, call: AggregateCall) -> None:
        super().__init__(call)
        require_groupable(call, "it would tell apart values of")
        deviation = float(call.constants[0]) if call.constants else 0.05
        self.precision = max(4, math.ceil(2 * math.log2(1.106 / deviation)))

    def pre_aggregate(
        self, arguments: Sequence[Column], ones: Column
    ) -> tuple[list[Column], Column]:
        array = as_array(arguments[0])
        hashes = hash_rows([array], len(array)).view(np.uint64)
        registers = (hashes >> np.uint64(_BITS - self.precision)).astype(np.int32)
        # A one behind the rest of the hash ends every run.
        rest = (hashes << np.uint64(self.precision)) | np.uint64(1 << (self.precision - 1))
        runs = _leading_zeros(rest) + 1
        missing = pc.is_null(array).to_numpy(zero_copy_only=False)
        return [pa.array(registers, mask=missing)], pa.array(runs)

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
    """Zeros before the first one; no value is zero."""
    zeros = np.zeros(len(bits), np.int64)
    for width in (32, 16, 8, 4, 2, 1):
        small = bits < np.uint64(1 << (_BITS - width))
        zeros += small * width
        bits = np.where(small, bits << np.uint64(width), bits)
    return zeros


def _sigma(x: Doubles) -> Doubles:
    """x + Σ x^(2^k) 2^(k−1): what empty registers say. Infinite for 1, nothing seen."""
    total, power, factor = x.copy(), x.copy(), 1.0
    for _ in range(_BITS):
        power = power * power
        grown = total + power * factor
        if np.array_equal(grown, total):
            break
        total, factor = grown, factor * 2
    return np.where(x >= 1, np.inf, total)


def _tau(x: Doubles) -> Doubles:
    """(1 − x − Σ (1 − x^(2^−k))² 2^(−k)) / 3: what full registers say."""
    total, root, factor = 1 - x, x.copy(), 1.0
    for _ in range(_BITS):
        root = np.sqrt(root)
        factor /= 2
        less = total - (1 - root) ** 2 * factor
        if np.array_equal(less, total):
            break
        total = less
    return np.where((x == 0) | (x == 1), 0.0, total / 3)
