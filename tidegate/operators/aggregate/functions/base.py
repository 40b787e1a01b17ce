"""What an accumulator is. Facts about an aggregate are attributes of its class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from tidegate.errors import RunError, unsupported_error
from tidegate.operators.kernels.arrays import Column, Ints, reduce_groups
from tidegate.operators.kernels.keys import is_groupable


@dataclass(frozen=True)
class AggregateCall:
    """One aggregate of a query. Spark evaluates the arguments and says what type comes out.

    `constants` are the literals that follow the arguments (see `Accumulator.constants_from`).
    `filtered` says that the last argument is a boolean: rows where it is not true do not exist for
    this call. `retracts` says that rows can be retracted, `ordered` that the call has an ORDER BY.
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
    """Merges states of the same group and turns them into a result.

    `names` are those under which Spark knows the aggregate, its own first. Literals are read from
    argument `constants_from` on; None: all arguments are columns. `null_place` is the argument
    whose NULL makes a row not count, so that a filter can be folded into it; None where every row
    counts, and the filter is passed on as the last argument.
    """

    names: ClassVar[tuple[str, ...]] = ()
    constants_from: ClassVar[int | None] = None
    null_place: int | None = 0

    def __init__(self, call: AggregateCall) -> None:
        self.call = call

    @classmethod
    def ignores_nulls(cls, constants: Sequence[object]) -> bool:
        """Whether rows with a NULL argument do not count, so that SQL can fold a filter into it."""
        return True


class PlainAccumulator(Accumulator):
    """Keeps `fields` for every group; `merges` names the Arrow kernel that merges each.

    Without `merges` the accumulator has a `combine` of its own. NULL in all fields is the state of
    no rows.
    """

    # Values that are there several times count as one that is there once.
    idempotent: ClassVar[bool] = False
    # Only different values count, whether the call says DISTINCT or not.
    once: ClassVar[bool] = False
    # A row can be retracted from what is kept; else the values themselves must be.
    retractable: ClassVar[bool] = False
    # The order of arrival counts.
    in_order: ClassVar[bool] = False
    # What to write instead of DISTINCT, where Spark means something else by it.
    instead_of_distinct: ClassVar[str | None] = None
    # The result is rounded on the way, so that the order of values shows in its last bits.
    rounds: ClassVar[bool] = False

    fields: tuple[pa.DataType, ...]
    merges: tuple[str, ...] = ()

    @property
    def required(self) -> tuple[int, ...]:
        """The arguments whose NULL makes a row not count."""
        return () if self.null_place is None else (self.null_place,)

    def pre_aggregate(self, arguments: Sequence[Column], weights: Column | None) -> list[Column]:
        """The state of every row as if it were alone; retracted where its weight is −1."""
        raise NotImplementedError

    def combine(self, states: Sequence[Column], ids: Ints, groups: int) -> list[Column]:
        """Merge the states: row i belongs to group ids[i], rows are in the order they came in.

        A group without rows gets the state of no rows.
        """
        raise NotImplementedError

    def evaluate(self, states: Sequence[Column]) -> Column:
        """The result of every group."""
        raise NotImplementedError

    def partials(self, arguments: Sequence[str]) -> tuple[str, ...] | None:
        """Spark's aggregates over rows of a group from which `from_partials` makes their state.

        `arguments` is SQL. None: rows have to be lifted one by one.
        """
        return None

    def from_partials(self, columns: Sequence[Column]) -> list[Column]:
        """The states of groups from the columns that `partials` asks for: mostly these columns."""
        return list(columns)


class BagAccumulator(Accumulator):
    """Reads the values of a group, which have a table of their own.

    A row of it is a value with the number of times it is there; `merge` names the kernel that
    merges these numbers. `in_order` asks for values in the order of their first arrival; with
    `keeps_order` there is a row for every arrival instead. Rows with NULL in one of the `required`
    values are left out. `exactly` is the plain aggregate that, over different values, stands in
    where rows are retracted.
    """

    exactly: ClassVar[type[PlainAccumulator] | None] = None
    in_order = False
    keeps_order = False
    merge = "sum"

    @property
    def values(self) -> tuple[pa.DataType, ...]:
        return self.call.arguments

    @property
    def required(self) -> tuple[int, ...]:
        return tuple(range(len(self.values)))

    def pre_aggregate(
        self, arguments: Sequence[Column], ones: Column
    ) -> tuple[list[Column], Column]:
        """The values to remember, and the number of each: a weight, which is 1 or −1."""
        return list(arguments), ones

    def evaluate_bag(
        self, values: Sequence[Column], counts: Ints, ids: Ints, groups: int
    ) -> Column:
        """The result of every group, also of those without values; no count is below 1."""
        raise NotImplementedError

    def partial_keys(self, arguments: Sequence[str]) -> tuple[str, ...] | None:
        """SQL of the values, by which Spark can group as by further keys, counting rows."""
        return None


def overflow_error(call: AggregateCall) -> RunError:
    """Spark stops a query whose sum does not fit; so do we, with the name of the sum."""
    return RunError(
        "TG-507",
        f"{call.text} overflows {call.result}",
        hint="cast the argument to a wider type, for example CAST(… AS DECIMAL(38, 0)).",
    )


def unsupported_call(call: AggregateCall, reason: str, hint: str | None = None) -> RunError:
    """A call that is rejected when the query is built, not when the first row comes."""
    return unsupported_error(f"{call.text} {reason}", hint)


def require_groupable(call: AggregateCall, why: str) -> None:
    """Reject arguments whose values cannot be told apart."""
    for kind in call.arguments:
        if not is_groupable(kind):
            hint = "use its parts, or to_json(…), as the argument."
            raise unsupported_call(call, f"is not supported: {why} {kind}", hint)


def require_no_weights(weights: Column | None) -> None:
    """What cannot retract a row is over the bag of values where rows retract."""
    assert weights is None, "rows that are retracted need the bag of values"


# ---- Vectorised steps that accumulators and tables of groups share.


def aggregate_rows(
    plain: PlainAccumulator, values: Sequence[Column], ids: Ints, groups: int
) -> Column:
    """The result of a plain accumulator over rows that are all here."""
    states = plain.pre_aggregate(values, None)
    if not plain.merges:
        return plain.evaluate(plain.combine(states, ids, groups))
    pairs = zip(states, plain.merges, strict=True)
    return plain.evaluate([reduce_groups(state, ids, groups, kernel) for state, kernel in pairs])
