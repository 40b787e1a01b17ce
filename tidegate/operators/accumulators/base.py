"""What an accumulator is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.errors import RunError

Column: TypeAlias = pa.ChunkedArray | pa.Array
Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Call:
    """One aggregate of a query. Spark evaluates the arguments and says what type comes out.

    `constants` are the literals that follow the arguments (see `constants_from` in the registry).
    `filtered` says that the last argument is a boolean: rows where it is not true do not exist for
    this call. `retracts` says that rows can be taken back, `ordered` that the call has an ORDER BY.
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

    `null_place` is the argument whose NULL makes a row not count, so that a filter can be folded
    into it; None where every row counts, and the filter is passed on as the last argument.
    """

    null_place: int | None = 0

    def __init__(self, call: Call) -> None:
        self.call = call


class PlainAccumulator(Accumulator):
    """Keeps `fields` for every group; `merges` names the Arrow kernel that merges each.

    NULL in all of them is the state of no rows.
    """

    fields: tuple[pa.DataType, ...]
    merges: tuple[str, ...]

    def lift(self, arguments: Sequence[Column], weights: Column | None) -> list[Column]:
        """The state of every row as if it were alone; taken back where its weight is −1."""
        raise NotImplementedError

    def evaluate(self, states: Sequence[Column]) -> Column:
        """The result of every group."""
        raise NotImplementedError


class CombiningAccumulator(PlainAccumulator):
    """A plain accumulator whose states are merged by its own code, one column from several."""

    merges = ()

    def combine(self, states: Sequence[Column], ids: Ids, groups: int) -> list[Column]:
        """Merge the states: row i belongs to group ids[i], rows are in the order they came in.

        A group without rows gets the state of no rows.
        """
        raise NotImplementedError


class BagAccumulator(Accumulator):
    """Reads the values of a group, which have a table of their own.

    A row of it is a value with the number of times it is there; `merge` names the kernel that
    merges these numbers. `in_order` asks for values in the order of their first arrival; with
    `keeps_order` there is a row for every arrival instead. Rows with NULL in one of the `required`
    values are left out.
    """

    in_order = False
    keeps_order = False
    merge = "sum"

    @property
    def values(self) -> tuple[pa.DataType, ...]:
        return self.call.arguments

    @property
    def required(self) -> tuple[int, ...]:
        return tuple(range(len(self.values)))

    def lift(self, arguments: Sequence[Column], ones: Column) -> tuple[list[Column], Column]:
        """The values to remember, and the number of each: a weight, which is 1 or −1."""
        return list(arguments), ones

    def evaluate_bag(self, values: Sequence[Column], counts: Ids, ids: Ids, groups: int) -> Column:
        """The result of every group, also of those without values; no count is below 1."""
        raise NotImplementedError


def overflow(call: Call) -> RunError:
    """Spark stops a query whose sum does not fit; so do we, with the name of the sum."""
    return RunError(
        "TG-507",
        f"{call.text} overflows {call.result}",
        hint="cast the argument to a wider type, for example CAST(… AS DECIMAL(38, 0)).",
    )


def unsupported(call: Call, reason: str, hint: str | None = None) -> RunError:
    """A call that is refused when the query is built, not when the first row comes."""
    return RunError("TG-501", f"{call.text} {reason}", hint=hint)


def groupable(kind: pa.DataType) -> bool:
    """Whether values of a type can be keys of a group, or be told apart by DISTINCT."""
    return not (pa.types.is_nested(kind) or pa.types.is_null(kind))


def require_groupable(call: Call, why: str) -> None:
    """Refuse arguments whose values Arrow cannot tell apart."""
    for kind in call.arguments:
        if not groupable(kind):
            hint = "use its parts, or to_json(…), as the argument."
            raise unsupported(call, f"is not supported: {why} {kind}", hint)
