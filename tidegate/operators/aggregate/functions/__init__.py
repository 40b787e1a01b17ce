"""Aggregates, vectorised over groups.

An accumulator is a monoid: `lift` makes the state of a row, states of the same group are combined,
`evaluate` makes the result; any way to split the rows gives the same. A *plain* accumulator keeps a
fixed number of columns in the table of groups, which kernels of Arrow merge, or code of its own. A
*bag* accumulator needs the values themselves (DISTINCT, ranks, or most things when rows are
retracted): it reads a table of its own that counts how often each value is there, or that has them
in the order they came in. An aggregate is one class; what is to be known of it are its attributes.
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
    "BagAccumulator",
    "AggregateCall",
    "PlainAccumulator",
    "constants_from",
    "ignores_nulls",
    "make_accumulator",
]
