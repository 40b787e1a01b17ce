"""Functions with OVER as an operator knows them and as DuckDB writes them, over rows of tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa

from tests.operators.batch import CHOICES, VALUES, Choice
from tests.operators.harness import B, D, Harness, L, Row, S, hash_of, normalize_keys
from tidegate.columns import ARRIVAL_FILE, ARRIVAL_ROW, HASH, OP, PANE
from tidegate.operators.aggregate.functions import AggregateCall
from tidegate.operators.kernels.keys import canonicalize
from tidegate.operators.kernels.ordering import Ordering
from tidegate.operators.late_rows import LateRows
from tidegate.operators.operator import Operator
from tidegate.operators.over.frames import Frame
from tidegate.operators.over.functions import OverFunction, OverSpec
from tidegate.operators.over.history import ENDS
from tidegate.operators.over.partitions import WholePartitions
from tidegate.operators.over.streaming import OverOperator
from tidegate.operators.top_n.updating import UpdatingTopN
from tidegate.operators.top_n.window import WindowTopN

# The columns of a row: the values that aggregates read; times are numbers.
TYPES = VALUES
_connection = duckdb.connect(config={"threads": 1})


@dataclass(frozen=True)
class Item:
    """A function; `columns` are the values it reads, `condition` the one that filters them.

    `sql` is the call as DuckDB has it; `by_arrival`: of rows that are equal in order the first one
    to come is the first.
    """

    function: OverFunction
    sql: str
    columns: tuple[int, ...] = ()
    condition: int | None = None
    by_arrival: bool = False

    def argument(self, row: Row, place: int) -> Any:
        if self.condition is not None and row.values[self.condition] is not True:
            return None
        if place >= len(self.columns):
            return 7 if self.function.default else 1
        return row.values[self.columns[place]]


def rank(name: str, sort: int = 0, buckets: int = 0) -> Item:
    kind = D if name in ("PERCENT_RANK", "CUME_DIST") else pa.int32()
    sql = f"{name}({buckets or ''})"
    by_arrival = name in ("ROW_NUMBER", "NTILE")
    return Item(OverFunction(name, kind, sort, buckets=buckets), sql, by_arrival=by_arrival)


def shift(name: str, rows: int, column: int, default: bool = False, sort: int = 0) -> Item:
    """lag and lead; a default is only there for the column of numbers."""
    default = default and column == 0
    other = ", 7" if default else ""
    by = -rows if name == "lag" else rows
    function = OverFunction(name.upper(), TYPES[column], sort, by, default, argument=TYPES[column])
    return Item(function, f"{name}(v{column}, {rows}{other})", (column,), by_arrival=True)


def last_values(rows: int, column: int, sort: int = 0) -> Item:
    """lag(x, n) IGNORE NULLS."""
    kind = TYPES[column]
    call = AggregateCall("lag", "lag", (kind,), kind, constants=(rows, True))
    function = OverFunction("LAG", kind, sort, frame=Frame(True, None, -1), call=call)
    return Item(function, f"lag(v{column}, {rows} IGNORE NULLS)", (column,), by_arrival=True)


def nth(rows: int, column: int, skips: bool, frame: Frame, sort: int = 0) -> Item:
    kind = TYPES[column]
    call = AggregateCall("nth_value", "nth", (kind,), kind, constants=(rows, skips))
    sql = f"nth_value(v{column}, {rows}{' IGNORE NULLS' if skips else ''})"
    return Item(
        OverFunction("NTH_VALUE", kind, sort, frame=frame, call=call), sql, (column,), None, True
    )


def end_value(name: str, column: int, skips: bool, frame: Frame, sort: int = 0) -> Item:
    kind = TYPES[column]
    call = AggregateCall(name, name, (kind,), kind, constants=(skips,))
    sql = f"{name}(v{column}{' IGNORE NULLS' if skips else ''})"
    return Item(
        OverFunction(name.upper(), kind, sort, frame=frame, call=call), sql, (column,), None, True
    )


def total(choice: Choice, frame: Frame, sort: int = 0) -> Item:
    """An aggregate of a frame."""
    call, columns, condition, sql = choice
    function = OverFunction("SUM", call.result, sort, frame=frame, call=call)
    return Item(function, sql, columns, condition)


AGGREGATES = CHOICES


@dataclass(frozen=True)
class OverQuery:
    """Rows have a time, one key of text and values; `sorts` are lists of (value, downwards).

    Along time (`mode` is time) each order begins with the time, which is the first column to
    order by. Else all rows of a window (of so many units) or of all times are one partition.
    """

    items: tuple[Item, ...]
    sorts: tuple[tuple[tuple[int, bool], ...], ...] = ((),)
    mode: str = "time"
    window: int | None = None
    retracts: bool = False
    keeps_late: bool = False
    ttl_us: int | None = None

    @property
    def by_time(self) -> bool:
        return self.mode == "time"

    @property
    def spec(self) -> OverSpec:
        orders = [Ordering(L)] if self.by_time else []
        sorts = []
        for sort in self.sorts:
            places = [0] if self.by_time else []
            for value, down in sort:
                places.append(len(orders))
                orders.append(Ordering(TYPES[value], down, not down))
            sorts.append(tuple(places))
        functions = tuple(item.function for item in self.items)
        return OverSpec((S,), tuple(orders), tuple(sorts), functions, (L, L, S))

    def operator(self) -> Operator:
        late = None
        if self.keeps_late:
            needed = [f for f in self.table([]).schema if not f.name.startswith("l")]
            late = LateRows("over", pa.schema(needed), (L, L))
        if self.by_time:
            return OverOperator(self.spec, self.window is not None, self.ttl_us, late)
        whole = WholePartitions(self.spec)
        if self.mode == "windows":
            return WindowTopN(whole, late_rows=late, name="over")
        ends = self.mode == "end"
        return UpdatingTopN(
            whole, self.retracts, at_end=ends, with_op=not ends, ttl_us=self.ttl_us, name="over"
        )

    def end_of(self, row: Row) -> int:
        assert self.window is not None, "it has windows"
        return row.ts - row.ts % self.window + self.window

    def pane(self, row: Row) -> int:
        if self.by_time:
            return row.ts + 1
        return self.end_of(row) if self.mode == "windows" else 0

    def table(self, rows: Sequence[Row]) -> pa.Table:
        columns: dict[str, Any] = {
            PANE: pa.array([self.pane(row) for row in rows], L),
            HASH: pa.array([hash_of(self.keys(row)) for row in rows], L),
            "k0": canonicalize(pa.array([row.keys[0] for row in rows], S)),
        }
        if self.by_time and self.window is not None:
            columns[ENDS] = pa.array([self.end_of(row) for row in rows], L)
            # The window is a part of the key.
            columns["k0"] = pa.array([repr(self.keys(row)) for row in rows], S)
        place = 0
        if self.by_time:
            columns["o0"], place = pa.array([row.ts for row in rows], L), 1
        for value, _ in (part for sort in self.sorts for part in sort):
            columns[f"o{place}"] = pa.array([row.values[value] for row in rows], TYPES[value])
            place += 1
        for index, item in enumerate(self.items):
            for place, kind in enumerate(item.function.arguments):
                cells = [item.argument(row, place) for row in rows]
                columns[f"a{index}_{place}"] = pa.array(cells, kind)
        columns["c0"] = pa.array([row.id for row in rows], L)
        columns["c1"] = pa.array([row.ts for row in rows], L)
        columns["c2"] = pa.array([row.keys[0] for row in rows], S)
        if self.retracts:
            columns[OP] = pa.array(["+I" if row.weight > 0 else "-D" for row in rows], S)
        columns[ARRIVAL_FILE] = pa.array([""] * len(rows), S)
        columns[ARRIVAL_ROW] = pa.array([row.id for row in rows], L)
        if self.keeps_late:
            columns["l0"], columns["l1"] = columns["c0"], columns["c1"]
        return pa.table(columns)

    def keys(self, row: Row) -> tuple[Any, ...]:
        window = (self.end_of(row),) if self.window is not None else ()
        return (*row.keys, *window)

    def harness(self, **options: Any) -> Harness:
        return Harness(self.operator, self.table, **options)

    # In batch

    def in_batch(self, rows: Sequence[Row]) -> dict[int, tuple[Any, ...]]:
        """What DuckDB says about each row, by its id."""
        if not rows:
            return {}
        names = ["id", "ts", "k", "w", *(f"v{i}" for i, _ in enumerate(TYPES))]
        cells = [
            (row.id, row.ts, normalize_keys(row.keys)[0], self._window(row), *row.values)
            for row in rows
        ]
        kinds = (L, L, S, L, *TYPES)
        data = [pa.array([cell[i] for cell in cells], kind) for i, kind in enumerate(kinds)]
        _connection.register("given", pa.table(data, names=names))
        texts = [self._over(item) for item in self.items]
        found = _connection.execute(f"SELECT id, {', '.join(texts)} FROM given").fetchall()
        return {row[0]: row[1:] for row in found}

    def _window(self, row: Row) -> int:
        return 0 if self.window is None else self.end_of(row)

    def _over(self, item: Item) -> str:
        order = ["ts"] if self.by_time else []
        for value, down in self.sorts[item.function.sort]:
            order.append(f"v{value} {'DESC NULLS LAST' if down else 'ASC NULLS FIRST'}")
        frame = item.function.frame
        framed = frame is not None and item.function.name != "LAG"
        if item.by_arrival or (framed and frame is not None and frame.by_rows):
            order.append("id")
        by = f" ORDER BY {', '.join(order)}" if order else ""
        text = _frame(frame) if framed and frame is not None else ""
        return f"{item.sql} OVER (PARTITION BY k, w{by}{text})"


def _frame(frame: Frame) -> str:
    kind = "ROWS" if frame.by_rows else "RANGE"
    return (
        f" {kind} BETWEEN {_bound(frame.start, 'PRECEDING')} AND {_bound(frame.end, 'FOLLOWING')}"
    )


def _bound(offset: Any, side: str) -> str:
    if offset is None:
        return f"UNBOUNDED {side}"
    if offset == 0:
        return "CURRENT ROW"
    return f"{abs(offset)} {'PRECEDING' if offset < 0 else 'FOLLOWING'}"


__all__ = ["AGGREGATES", "B", "Item", "OverQuery"]
