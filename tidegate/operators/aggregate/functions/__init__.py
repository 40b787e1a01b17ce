"""Aggregate functions, vectorized over groups.

An accumulator pre-aggregates rows into states, merges the states of a group, and evaluates the
result. The result is the same however the rows are divided into states. There are two kinds:

- a `PlainAccumulator` keeps a fixed number of columns per group, which are merged by Arrow kernels
  or by its own code;
- a `BagAccumulator` needs the values themselves, for example for DISTINCT, for percentiles, or to
  retract rows from an aggregate that cannot be inverted. The values of a group are its *bag*: a
  separate table with each value and its count, or with all values in order of arrival.

An aggregate function is one class, and its properties are class attributes. `base` defines the two
kinds, `registry` lists the classes. To add a function, write the class and add it to the list.

- `sums` (with count and avg), `min_max` (with bool_and and bit_and), `moments` (variance to
  regression), `percentiles` (with mode), `sketch` (approx_count_distinct)
- `ordered`: functions that depend on the order of arrival or of another column
"""

from __future__ import annotations

from tidegate.operators.aggregate.functions.base import (
    Accumulator,
    AggregateCall,
    BagAccumulator,
    PlainAccumulator,
)
from tidegate.operators.aggregate.functions.registry import (
    FUNCTIONS,
    constants_from,
    ignores_nulls,
    make_accumulator,
)

__all__ = [
    "FUNCTIONS",
    "Accumulator",
    "AggregateCall",
    "BagAccumulator",
    "PlainAccumulator",
    "constants_from",
    "ignores_nulls",
    "make_accumulator",
]
