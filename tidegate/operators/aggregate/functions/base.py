"""What an accumulator is. Facts about an aggregate are attributes of its class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.errors import RunError, unsupported_error
from tidegate.operators.kernels.keys import Column, Ids, Mask, as_array, groupable


@dataclass(frozen=True)
class Call:
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

    def __init__(self, call: Call) -> None:
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

    def combine(self, states: Sequence[Column], ids: Ids, groups: int) -> list[Column]:
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

    def evaluate_bag(self, values: Sequence[Column], counts: Ids, ids: Ids, groups: int) -> Column:
        """The result of every group, also of those without values; no count is below 1."""
        raise NotImplementedError

    def partial_keys(self, arguments: Sequence[str]) -> tuple[str, ...] | None:
        """SQL of the values, by which Spark can group as by further keys, counting rows."""
        return None


def overflow(call: Call) -> RunError:
    """Spark stops a query whose sum does not fit; so do we, with the name of the sum."""
    return RunError(
        "TG-507",
        f"{call.text} overflows {call.result}",
        hint="cast the argument to a wider type, for example CAST(… AS DECIMAL(38, 0)).",
    )


def unsupported(call: Call, reason: str, hint: str | None = None) -> RunError:
    """A call that is rejected when the query is built, not when the first row comes."""
    return unsupported_error(f"{call.text} {reason}", hint)


def require_groupable(call: Call, why: str) -> None:
    """Reject arguments whose values cannot be told apart."""
    for kind in call.arguments:
        if not groupable(kind):
            hint = "use its parts, or to_json(…), as the argument."
            raise unsupported(call, f"is not supported: {why} {kind}", hint)


def require_no_weights(weights: Column | None) -> None:
    """What cannot retract a row is over the bag of values where rows retract."""
    assert weights is None, "rows that are retracted need the bag of values"


# ---- Vectorised steps that accumulators and tables of groups share.

Doubles = npt.NDArray[np.float64]


def to_ints(column: Column) -> Ids:
    """An integer column as numbers, NULL as 0."""
    filled = as_array(pc.fill_null(column, 0) if column.null_count else column)
    ints: Ids = filled.to_numpy(zero_copy_only=False)
    return ints


def to_flags(column: Column) -> Mask:
    """A boolean column, NULL as false."""
    flags: Mask = as_array(pc.fill_null(column, False)).to_numpy(zero_copy_only=False)
    return flags


def to_doubles(column: Column) -> Doubles:
    """A column of numbers, dates or intervals as doubles, NULL as 0."""
    kind = column.type
    if pa.types.is_decimal(kind):
        # Arrow's own cast is off by a bit where the text is not.
        column = pc.cast(pc.cast(column, pa.string()), pa.float64())
    elif pa.types.is_date32(kind):
        column = pc.cast(pc.cast(column, pa.int32()), pa.float64())
    elif pa.types.is_temporal(kind):
        column = pc.cast(pc.cast(column, pa.int64()), pa.float64())
    elif not pa.types.is_float64(kind):
        # A BIGINT beyond 2⁵³ is rounded, as Spark does it.
        column = pc.cast(column, pa.float64(), safe=False)
    filled = as_array(pc.fill_null(column, 0.0) if column.null_count else column)
    doubles: Doubles = filled.to_numpy(zero_copy_only=False)
    return doubles


def first_places(ids: Ids, groups: int, candidates: Mask) -> Ids:
    """The first candidate of every group, or −1. Of equal indices numpy keeps the last write."""
    rows = np.flatnonzero(candidates)[::-1]
    places = np.full(groups, -1, np.int64)
    places[ids[rows]] = rows
    return places


def last_places(ids: Ids, groups: int, candidates: Mask) -> Ids:
    """The last candidate of every group, or −1."""
    rows = np.flatnonzero(candidates)
    places = np.full(groups, -1, np.int64)
    places[ids[rows]] = rows
    return places


def take_or_null(column: Column, places: Ids) -> pa.Array:
    """The values at some places, NULL where the place is −1."""
    return as_array(column).take(pa.array(places, mask=places < 0))


def where(column: Column, there: Mask) -> Column:
    """A column of any type with NULL where nothing is there."""
    if there.all():
        return column
    return take_or_null(column, np.where(there, np.arange(len(there)), -1))


def with_nulls(values: npt.NDArray[np.generic], there: Mask, kind: pa.DataType) -> pa.Array:
    """An array that is NULL where nothing is there."""
    array = pa.array(values) if there.all() else pa.array(values, mask=~there)
    return array if array.type == kind else array.cast(kind)


def reduce_by(column: Column, ids: Ids, groups: int, kernel: str) -> pa.Array:
    """One value per group, merged by a kernel of Arrow; NULL for a group without rows."""
    table = pa.table([pa.array(ids), column], names=["id", "x"])
    merged = table.group_by("id", use_threads=False).aggregate([("x", kernel)])
    places = np.full(groups, -1, np.int64)
    places[merged.column(0).to_numpy()] = np.arange(merged.num_rows)
    return take_or_null(merged.column(1), places)


def int_sums(column: Column, ids: Ids, groups: int) -> Ids:
    """The sum of an integer column per group, NULL as 0."""
    sums = np.zeros(groups, np.int64)
    values = to_ints(column)
    if values.any():
        np.add.at(sums, ids, values)
    return sums


def aggregate(plain: PlainAccumulator, values: Sequence[Column], ids: Ids, groups: int) -> Column:
    """The result of a plain accumulator over rows that are all here."""
    states = plain.pre_aggregate(values, None)
    if not plain.merges:
        return plain.evaluate(plain.combine(states, ids, groups))
    pairs = zip(states, plain.merges, strict=True)
    return plain.evaluate([reduce_by(state, ids, groups, kernel) for state, kernel in pairs])
