"""Base classes of aggregate functions: plain accumulators, and accumulators that read bags.

The properties of a function, such as whether it is retractable, are attributes of its class.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from tidegate.errors import RunError, unsupported_error
from tidegate.operators.kernels.arrays import (
    Column,
    Ints,
    Mask,
    as_array,
    first_rows,
    reduce_groups,
)
from tidegate.operators.kernels.keys import (
    canonicalize,
    dense_ranks,
    group_ids,
    is_groupable,
    merge_rows,
    unify_nan,
)


@dataclass(frozen=True)
class AggregateCall:
    """One aggregate call of a query. Spark evaluates the arguments and determines the result type.

    `text` is the call as the user wrote it. `constants` are the literals that follow the arguments
    (see `Accumulator.constants_from`). With `filtered`, the last argument is the condition of the
    FILTER clause, and the call ignores rows for which it is not true. With `retracts`, rows can be
    retracted; with `ordered`, the call has an ORDER BY.
    """

    function: str
    text: str
    arguments: tuple[pa.DataType, ...]
    result: pa.DataType
    distinct: bool = False
    filtered: bool = False
    constants: tuple[Any, ...] = ()
    retracts: bool = False
    ordered: bool = False


class Accumulator:
    """An aggregate function, for one call.

    `names` are its names in Spark, the canonical one first. Arguments from `constants_from` on are
    literals; None if all arguments are columns.

    Rows are ignored if the argument with the index `null_argument` is NULL. A FILTER condition can
    then be folded into this argument. If `null_argument` is None, every row counts, and the
    condition is passed as the last argument.
    """

    names: ClassVar[tuple[str, ...]] = ()
    constants_from: ClassVar[int | None] = None
    null_argument: int | None = 0

    def __init__(self, call: AggregateCall) -> None:
        self.call = call

    @classmethod
    def ignores_nulls(cls, constants: Sequence[object]) -> bool:
        """Return whether NULL arguments are ignored, so that SQL can fold FILTER into them."""
        return True


class PlainAccumulator(Accumulator):
    """An aggregate function that keeps a fixed number of columns per group.

    The columns have the types `state_types`, and `merge_kernels` are the Arrow kernels that merge
    them. Without `merge_kernels` the class implements `combine`. The state of a group without rows
    is NULL in all columns.
    """

    # True if repeated values do not change the result.
    idempotent: ClassVar[bool] = False
    # True if only distinct values count, with or without DISTINCT in the call.
    always_distinct: ClassVar[bool] = False
    # True if a row can be retracted from the state. Otherwise the values must be kept.
    retractable: ClassVar[bool] = False
    # True if the result depends on the order of arrival.
    order_sensitive: ClassVar[bool] = False
    # The hint for DISTINCT, if Spark's meaning of it is not supported.
    distinct_hint: ClassVar[str | None] = None
    # True if intermediate results are rounded, so that the last bits depend on the order of values.
    rounds: ClassVar[bool] = False

    state_types: tuple[pa.DataType, ...]
    merge_kernels: tuple[str, ...] = ()

    @property
    def required_arguments(self) -> tuple[int, ...]:
        """The arguments that must not be NULL for a row to count."""
        return () if self.null_argument is None else (self.null_argument,)

    def pre_aggregate(self, arguments: Sequence[Column], weights: Column | None) -> list[Column]:
        """Return the state of every single row; a weight of −1 retracts it."""
        raise NotImplementedError

    def combine(self, states: Sequence[Column], ids: Ints, groups: int) -> list[Column]:
        """Merge states by group. State i belongs to group `ids[i]`; states are in arrival order.

        A group without states gets the state of a group without rows.
        """
        raise NotImplementedError

    def evaluate(self, states: Sequence[Column]) -> Column:
        """Return the result of every group."""
        raise NotImplementedError

    def partial_sql(self, arguments: Sequence[str]) -> tuple[str, ...] | None:
        """Return Spark SQL aggregates from which `from_partials` computes the state of a group.

        `arguments` are SQL expressions. None if Spark cannot pre-aggregate rows for this function;
        `pre_aggregate` then does.
        """
        return None

    def from_partials(self, columns: Sequence[Column]) -> list[Column]:
        """Return states from the columns of `partial_sql`; by default they are the states."""
        return list(columns)


class BagAccumulator(Accumulator):
    """An aggregate function that reads all values of a group from a separate table.

    A row of that table is a value and its count; `count_kernel` merges the counts. With
    `order_sensitive` the values are in order of their first arrival; with `keeps_order` every
    arrival is a separate row. Rows with NULL in a required value are omitted.
    """

    # The plain aggregate over distinct values that replaces this one if rows can be retracted.
    exact_form: ClassVar[type[PlainAccumulator] | None] = None
    order_sensitive = False
    keeps_order = False
    count_kernel = "sum"

    @property
    def values(self) -> tuple[pa.DataType, ...]:
        """The types of the values."""
        return self.call.arguments

    @property
    def required_arguments(self) -> tuple[int, ...]:
        """The values that must not be NULL for a row to count."""
        return tuple(range(len(self.values)))

    def pre_aggregate(
        self, arguments: Sequence[Column], ones: Column
    ) -> tuple[list[Column], Column]:
        """Return the value of every row and its count: the weight of the row, 1 or −1."""
        return list(arguments), ones

    def evaluate_bag(
        self, values: Sequence[Column], counts: Ints, ids: Ints, groups: int
    ) -> Column:
        """Return the result of every group, also of groups without values; counts are positive."""
        raise NotImplementedError


def aggregate_rows(
    plain: PlainAccumulator, values: Sequence[Column], ids: Ints, groups: int
) -> Column:
    """Return the results of a plain accumulator over all rows of the groups."""
    states = plain.pre_aggregate(values, None)
    if not plain.merge_kernels:
        return plain.evaluate(plain.combine(states, ids, groups))
    pairs = zip(states, plain.merge_kernels, strict=True)
    return plain.evaluate([reduce_groups(state, ids, groups, kernel) for state, kernel in pairs])


def overflow_error(call: AggregateCall) -> RunError:
    """Return the error for a sum that overflows its type. Spark fails the query too."""
    return RunError(
        "TG-507",
        f"{call.text} overflows {call.result}",
        hint="cast the argument to a wider type, for example CAST(… AS DECIMAL(38, 0)).",
    )


def unsupported_call(call: AggregateCall, reason: str, hint: str | None = None) -> RunError:
    """Return the error for a call that cannot run. It is raised when the operator is built."""
    return unsupported_error(f"{call.text} {reason}", hint)


def require_groupable(call: AggregateCall, reason: str) -> None:
    """Reject argument types whose values cannot be compared for equality."""
    for data_type in call.arguments:
        if not is_groupable(data_type):
            hint = "use its parts, or to_json(…), as the argument."
            raise unsupported_call(call, f"is not supported: {reason} {data_type}", hint)


def require_no_weights(weights: Column | None) -> None:
    """Check that no rows are retracted from an accumulator that is not retractable."""
    assert weights is None, "retractions need the values of the group"


# ---- Bags: DISTINCT, and plain aggregates that cannot retract a row


class BagBackedAccumulator(BagAccumulator):
    """Computes a plain aggregate from the values of a group."""

    def __init__(self, call: AggregateCall, plain: type[PlainAccumulator]) -> None:
        super().__init__(call)
        is_set = call.distinct or plain.always_distinct
        reason = "DISTINCT needs" if is_set else "rows are retracted, which needs"
        require_groupable(call, f"{reason} to compare values of")
        self.plain = plain(replace(call, distinct=False, filtered=False))
        self.null_argument = self.plain.null_argument
        # Whether repeated values are dropped before the plain aggregate sees them.
        self.drops_repetitions = (is_set and not plain.idempotent) or (
            plain.idempotent and not plain.order_sensitive
        )
        self.order_sensitive = plain.order_sensitive
        # Without retractions, the order of first arrivals is sufficient.
        self.keeps_order = plain.order_sensitive and call.retracts
        # DISTINCT treats 0.0 and -0.0 as equal; a retraction must match the sign of its row.
        self.normalize = canonicalize if is_set and not self.keeps_order else unify_nan

    @property
    def required_arguments(self) -> tuple[int, ...]:
        return self.plain.required_arguments

    def pre_aggregate(
        self, arguments: Sequence[Column], ones: Column
    ) -> tuple[list[Column], Column]:
        return [self.normalize(argument) for argument in arguments], ones

    def evaluate_bag(
        self, values: Sequence[Column], counts: Ints, ids: Ints, groups: int
    ) -> Column:
        if self.drops_repetitions and self.keeps_order:
            values = [canonicalize(value) for value in values]
            rows = np.flatnonzero(_first_occurrences(values, ids))
        elif self.drops_repetitions:
            rows = np.arange(len(ids))
        else:
            rows = np.repeat(np.arange(len(ids)), counts)
        if self.plain.rounds:
            # Sorted, so that the result depends only on the values and not on their order.
            rows = rows[np.lexsort([dense_ranks(value)[rows] for value in reversed(values)])]
        columns = [as_array(value).take(pa.array(rows)) for value in values]
        return aggregate_rows(self.plain, columns, ids[rows], groups)


def _first_occurrences(values: Sequence[Column], ids: Ints) -> Mask:
    """Return the rows whose values do not occur earlier in their group."""
    names = ["id", *(f"v{index}" for index, _ in enumerate(values))]
    row_ids, count = group_ids(pa.table([pa.array(ids), *values], names=names), names)
    result = np.zeros(len(ids), np.bool_)
    result[first_rows(row_ids, count, np.ones(len(ids), np.bool_))] = True
    return result


def combine_counts(
    table: pa.Table, keys: list[str], names: tuple[str, str], bag: BagAccumulator
) -> pa.Table:
    """Merge equal values and their counts; `names` are the columns of hashes and counts.

    Values with a count of 0 are dropped.
    """
    if table.num_rows == 0:
        return table
    schema, merges = table.schema, [(names[0], "min"), (names[1], bag.count_kernel)]
    if bag.order_sensitive:
        table = table.append_column("_row", pa.array(np.arange(table.num_rows)))
        merges.append(("_row", "min"))
    merged = merge_rows(table, keys, merges)
    if bag.order_sensitive:
        # Arrow returns groups in no defined order.
        merged = merged.take(pa.array(np.argsort(merged.column("_row").to_numpy())))
    result = pa.table([merged.column(name) for name in schema.names], schema=schema)
    counts = result.column(names[1]).to_numpy()
    return result if counts.min() > 0 else result.filter(pa.array(counts != 0))
