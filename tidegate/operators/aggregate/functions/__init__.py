"""Aggregate functions, vectorized over groups.

An accumulator pre-aggregates rows into states, combines the states of a group, and evaluates the
result. States can be combined in any split of the rows. There are two kinds:

- a `PlainAccumulator` keeps a fixed number of columns per group, which Arrow kernels or its own
  code merge;
- a `BagAccumulator` needs the values themselves, for example for DISTINCT, percentiles, or to
  retract rows from an aggregate that cannot be inverted. It reads a separate table with the
  values of every group and how often each occurs, or in order of arrival.

An aggregate function is one class; facts about it are class attributes. `base` defines the two
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
