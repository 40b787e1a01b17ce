"""What matches give out: values of single rows, and aggregates over the rows of variables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.operators.accumulators import Call
from tidegate.operators.accumulators.kernels import take_or_null
from tidegate.operators.group_kernels import HASH, PANE, Groups, GroupSpec
from tidegate.operators.match_search import Found, place_in
from tidegate.operators.ordering import Ints

BOOL = pa.bool_()


@dataclass(frozen=True)
class Taken:
    """The value of one row, found as in `match_search.Seen`."""

    value: int
    type: pa.DataType
    variables: frozenset[int]
    last: bool = True
    offset: int = 0
    back: int = 0


@dataclass(frozen=True)
class Totalled:
    """An aggregate of values over the rows of some variables; `call` is as the query has it."""

    call: Call
    values: tuple[int, ...]
    variables: frozenset[int]

    @property
    def type(self) -> pa.DataType:
        return self.call.result

    @cached_property
    def limited(self) -> Call:
        """The call over all rows of a match, of which those of the variables count."""
        own, call = self.call, self.call
        arguments = own.arguments[:-1] if own.filtered else own.arguments
        return Call(
            call.function,
            call.text,
            (*arguments, BOOL),
            call.result,
            call.distinct,
            True,
            call.constants,
        )


@dataclass(frozen=True)
class Results:
    """The measures of a query."""

    measures: tuple[Taken | Totalled, ...]

    @cached_property
    def totals(self) -> tuple[Totalled, ...]:
        return tuple(item for item in self.measures if isinstance(item, Totalled))

    @cached_property
    def groups(self) -> Groups:
        return Groups(GroupSpec((), tuple(item.limited for item in self.totals)))

    def columns(
        self, rows: pa.Table, matches: Sequence[Found], begins: Sequence[int]
    ) -> list[pa.Array | pa.ChunkedArray]:
        """A column a measure; `begins` says where the partition of each match begins."""
        totals = iter(self._totals(rows, matches)) if self.totals else iter(())
        found = []
        for item in self.measures:
            if isinstance(item, Totalled):
                found.append(next(totals))
            else:
                places = self._places(item, matches, begins)
                found.append(take_or_null(rows.column(f"v{item.value}"), places))
        return found

    def _places(self, item: Taken, matches: Sequence[Found], begins: Sequence[int]) -> Ints:
        places = np.full(len(matches), -1, np.int64)
        for number, match in enumerate(matches):
            at = place_in(match.rows(item.variables), item.last, item.offset, item.back)
            places[number] = at if at >= begins[number] else -1
        return places

    def _totals(self, rows: pa.Table, matches: Sequence[Found]) -> list[pa.ChunkedArray]:
        sizes = [len(match.variables) for match in matches]
        numbers = np.repeat(np.arange(len(matches)), sizes)
        places = np.concatenate([np.arange(match.first, match.end) for match in matches])
        variables = np.concatenate([np.asarray(match.variables) for match in matches])
        table = self._arguments(rows.take(pa.array(places)), variables)
        table = table.append_column(PANE, pa.array(numbers, pa.int64()))
        zeros = np.zeros(len(numbers), np.int64)
        answers = self.groups.evaluate(self.groups.lift(table.append_column(HASH, pa.array(zeros))))
        order = pa.array(np.argsort(answers.column(PANE).to_numpy()))
        return [answers.column(f"r{index}").take(order) for index, _ in enumerate(self.totals)]

    def _arguments(self, rows: pa.Table, variables: Ints) -> pa.Table:
        columns: dict[str, pa.Array | pa.ChunkedArray] = {}
        for index, item in enumerate(self.totals):
            own = [rows.column(f"v{value}") for value in item.values]
            counts: pa.Array | pa.ChunkedArray = pa.array(np.isin(variables, list(item.variables)))
            if item.call.filtered:
                *own, asked = own
                counts = pc.and_(asked, counts)
            for place, column in enumerate([*own, counts]):
                columns[f"a{index}_{place}"] = column
        return pa.table(columns)
