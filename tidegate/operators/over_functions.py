"""Functions with OVER: what each says about a row, given the rows of its partition in order."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.errors import not_built
from tidegate.operators.accumulators import Call
from tidegate.operators.accumulators.kernels import take_or_null
from tidegate.operators.contract import Tables
from tidegate.operators.keys import as_array
from tidegate.operators.ordering import Ints, Ordering, check_partitions, codes
from tidegate.operators.over_frames import Frame, Placed, bounds, has_distance, placed, values_of
from tidegate.operators.over_states import FrameGroup, rounds

RANKS = frozenset({"ROW_NUMBER", "RANK", "DENSE_RANK"})
# These depend on how many rows a partition has.
RANKS_OF_ALL = frozenset({"PERCENT_RANK", "CUME_DIST", "NTILE"})


@dataclass(frozen=True)
class Function:
    """One function: a rank, the value of the row `shift` rows on, or an aggregate of a frame.

    Its arguments are the columns `a{i}_0`, …, where i is its number; `default` says that the last
    of them is what a row gets for which there is no value. `sort` is the number of its order.
    """

    name: str
    result: pa.DataType
    sort: int = 0
    shift: int | None = None
    default: bool = False
    buckets: int = 0
    frame: Frame | None = None
    call: Call | None = None
    argument: pa.DataType | None = None

    @property
    def is_rank(self) -> bool:
        return self.name in RANKS or self.name in RANKS_OF_ALL

    @property
    def arguments(self) -> tuple[pa.DataType, ...]:
        """The types of its columns."""
        own = (self.argument,) if self.argument is not None else ()
        own = self.call.arguments if self.call is not None else own
        return (*own, self.result) if self.default else own


@dataclass(frozen=True)
class OverSpec:
    """The functions of one node: they share their partitions.

    Columns are `k0`, … (keys), `o0`, … (what is ordered by), `a0_0`, … (arguments) and `c0`, … (the
    row as it goes on). `sorts` are the orders, each a list of columns to order by.
    """

    keys: tuple[pa.DataType, ...]
    orders: tuple[Ordering, ...]
    sorts: tuple[tuple[int, ...], ...]
    functions: tuple[Function, ...]
    columns: tuple[pa.DataType, ...]

    def __post_init__(self) -> None:
        check_partitions(self.keys, self.orders)
        for function in self.functions:
            self._check_range(function)

    def _check_range(self, function: Function) -> None:
        frame = function.frame
        if frame is None or frame.by_rows or not (frame.start or frame.end):
            return
        kind = self.orders[self.sorts[function.sort][0]].type
        if not has_distance(kind):
            hint = "cast the column of ORDER BY, for example to DOUBLE, or use ROWS."
            raise not_built(f"RANGE with a distance is not supported over {kind}", hint)

    @property
    def key_fields(self) -> list[pa.Field]:
        return [pa.field(f"k{index}", kind) for index, kind in enumerate(self.keys)]

    @property
    def order_fields(self) -> list[pa.Field]:
        return [pa.field(f"o{index}", item.type) for index, item in enumerate(self.orders)]

    @property
    def argument_fields(self) -> list[pa.Field]:
        return [
            pa.field(f"a{index}_{place}", kind)
            for index, function in enumerate(self.functions)
            for place, kind in enumerate(function.arguments)
        ]

    @property
    def column_fields(self) -> list[pa.Field]:
        return [pa.field(f"c{index}", kind) for index, kind in enumerate(self.columns)]

    @property
    def row(self) -> pa.Schema:
        """What a row of the result is."""
        kinds = [*self.columns, *(function.result for function in self.functions)]
        return pa.schema([pa.field(f"c{index}", kind) for index, kind in enumerate(kinds)])

    @cached_property
    def frame_groups(self) -> tuple[FrameGroup, ...]:
        """The aggregates by frame and order; those that round apart from the others."""
        found: dict[tuple[int, Frame, bool], list[int]] = {}
        for index, function in enumerate(self.functions):
            if function.call is not None:
                assert function.frame is not None, "an aggregate has a frame"
                key = (function.sort, function.frame, rounds(function.call))
                found.setdefault(key, []).append(index)
        groups = []
        for (sort, frame, inexact), members in found.items():
            calls = [self.functions[index].call for index in members]
            known = tuple(call for call in calls if call is not None)
            groups.append(FrameGroup(sort, frame, inexact, tuple(members), known))
        return tuple(groups)

    # Rows in order

    def place(self, rows: pa.Table, partitions: Ints, sort: int, arrival: Ints) -> Placed:
        by = [codes(rows.column(f"o{o}"), self.orders[o]) for o in self.sorts[sort]]
        return placed(partitions, by, arrival)

    def frame(self, frame: Frame, rows: pa.Table, at: Placed, sort: int) -> tuple[Ints, Ints]:
        """Where the frames of rows begin and end, which are in order."""
        values = None
        if not frame.by_rows and (frame.start or frame.end):
            first = self.sorts[sort][0]
            values = values_of(rows.column(f"o{first}"), self.orders[first])
        return bounds(frame, at, values)

    # What functions say

    def in_whole_partitions(self, rows: pa.Table, partitions: Ints, arrival: Ints) -> pa.Table:
        """The rows with a column for each function; all rows of their partitions are there."""
        results: list[pa.Array | None] = [None] * len(self.functions)
        for sort, _ in enumerate(self.sorts):
            at = self.place(rows, partitions, sort, arrival)
            ordered = rows.take(pa.array(at.order))
            back = np.empty(at.rows, np.int64)
            back[at.order] = at.places
            for index, found in self.evaluate(ordered, at, sort).items():
                results[index] = found.take(pa.array(back))
        for index, result in enumerate(results, len(self.columns)):
            rows = rows.append_column(f"c{index}", result)
        return rows

    def evaluate(self, rows: pa.Table, at: Placed, sort: int) -> dict[int, pa.Array]:
        """The results of the functions of an order, by place."""
        found: dict[int, pa.Array] = {}
        for index, function in enumerate(self.functions):
            if function.sort == sort and function.call is None:
                result = (
                    ranked(function, at) if function.is_rank else shifted(index, function, rows, at)
                )
                found[index] = result
        for group in self.frame_groups:
            if group.sort == sort:
                starts, ends = self.frame(group.frame, rows, at, sort)
                states = group.states(rows, starts, ends, None, at.begins)
                found |= self.results(group, states, rows)
        return found

    def results(self, group: FrameGroup, states: Tables, rows: pa.Table) -> dict[int, pa.Array]:
        """The results of aggregates, one for each of these rows."""
        found = {}
        for index, result in zip(group.functions, group.results(states), strict=True):
            function = self.functions[index]
            if function.default:
                # Only a value that is not NULL is found, so that NULL says that there is none.
                other = rows.column(f"a{index}_{len(function.arguments) - 1}")
                result = as_array(pc.coalesce(result, as_array(other)))
            found[index] = result
        return found


def ranked(
    function: Function, at: Placed, before: Ints | None = None, groups_before: Ints | None = None
) -> pa.Array:
    """The rank of each row; `before` it there were so many rows and groups of peers."""
    nothing = np.zeros(at.rows, np.int64)
    before = nothing if before is None else before
    name, rows = function.name, at.places - at.begins
    if name == "ROW_NUMBER":
        found: np.ndarray = rows + 1 + before
    elif name == "RANK":
        found = at.first_peers - at.begins + 1 + before
    elif name == "DENSE_RANK":
        found = at.dense + 1 + (nothing if groups_before is None else groups_before)
    else:
        found = _of_all(function, at)
    return pa.array(found).cast(function.result)


def _of_all(function: Function, at: Placed) -> np.ndarray:
    size, rows = at.ends - at.begins, at.places - at.begins
    if function.name == "PERCENT_RANK":
        return np.asarray((at.first_peers - at.begins) / np.maximum(size - 1, 1))
    if function.name == "CUME_DIST":
        return np.asarray((at.after_peers - at.begins) / size)
    # The first buckets have one row more where rows are left over.
    small, large = size // function.buckets, size % function.buckets
    edge = large * (small + 1)
    behind = large + (rows - edge) // np.maximum(small, 1)
    return np.asarray(np.where(rows < edge, rows // (small + 1), behind) + 1)


def shifted(index: int, function: Function, rows: pa.Table, at: Placed) -> pa.Array:
    """lag and lead: the value of another row of the partition."""
    assert function.shift is not None, "it looks at another row"
    places = at.places + function.shift
    there = (places >= at.begins) & (places < at.ends)
    found = take_or_null(rows.column(f"a{index}_0"), np.where(there, places, -1))
    found = found if found.type == function.result else found.cast(function.result)
    if function.default and not there.all():
        other = as_array(rows.column(f"a{index}_1"))
        count = len(found)
        pick = np.where(there, np.arange(count), np.arange(count) + count)
        found = pa.concat_arrays([found, other]).take(pa.array(pick))
    return found
