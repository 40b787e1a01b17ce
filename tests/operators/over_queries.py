"""Window functions for the operators and for DuckDB, over the rows of a test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa

from tests.operators.batch import VALUES, Choice
from tests.operators.harness import D, Harness, L, Row, S, hash_of, normalize_keys
from tidegate.columns import ARRIVAL_FILE, ARRIVAL_ROW, HASH, OP, STORE_TIME
from tidegate.operators.aggregate.functions import AggregateCall
from tidegate.operators.kernels.keys import canonicalize
from tidegate.operators.kernels.ordering import Ordering
from tidegate.operators.late_rows import LateRowFormat
from tidegate.operators.operator import Operator
from tidegate.operators.over.frames import Frame
from tidegate.operators.over.functions import OverFunction, OverSpec, PartitionWindowFunctions
from tidegate.operators.over.history import ENDS
from tidegate.operators.over.streaming import OverOperator
from tidegate.operators.top_n.updating import UpdatingTopN
from tidegate.operators.top_n.window import WindowTopN

# The types of the values of a row.
TYPES = VALUES
_connection = duckdb.connect(config={"threads": 1})


@dataclass(frozen=True)
class FunctionCase:
    """A window function; `columns` are the values it reads, `condition` the filter.

    `sql` is the call in DuckDB. `by_arrival`: rows that are equal in the order are ordered by their
    arrival.
    """

    function: OverFunction
    sql: str
    columns: tuple[int, ...] = ()
    condition: int | None = None
    by_arrival: bool = False

    def argument(self, row: Row, number: int) -> Any:
        if self.condition is not None and row.values[self.condition] is not True:
            return None
        if number >= len(self.columns):
            return 7 if self.function.default else 1
        return row.values[self.columns[number]]


def rank(name: str, sort: int = 0, buckets: int = 0) -> FunctionCase:
    kind = D if name in ("PERCENT_RANK", "CUME_DIST") else pa.int32()
    sql = f"{name}({buckets or ''})"
    by_arrival = name in ("ROW_NUMBER", "NTILE")
    return FunctionCase(OverFunction(name, kind, sort, buckets=buckets), sql, by_arrival=by_arrival)


def shift(name: str, rows: int, column: int, default: bool = False, sort: int = 0) -> FunctionCase:
    """Return lag or lead; only the first column can have a default."""
    default = default and column == 0
    default_sql = ", 7" if default else ""
    offset = -rows if name == "lag" else rows
    kind = TYPES[column]
    function = OverFunction(name.upper(), kind, sort, offset, default, argument=kind)
    return FunctionCase(
        function, f"{name}(v{column}, {rows}{default_sql})", (column,), by_arrival=True
    )


def last_values(rows: int, column: int, sort: int = 0) -> FunctionCase:
    """Return lag(x, n) IGNORE NULLS."""
    kind = TYPES[column]
    call = AggregateCall("lag", "lag", (kind,), kind, constants=(rows, True))
    function = OverFunction("LAG", kind, sort, frame=Frame(True, None, -1), call=call)
    return FunctionCase(
        function, f"lag(v{column}, {rows} IGNORE NULLS)", (column,), by_arrival=True
    )


def nth(rows: int, column: int, ignore_nulls: bool, frame: Frame, sort: int = 0) -> FunctionCase:
    kind = TYPES[column]
    call = AggregateCall("nth_value", "nth", (kind,), kind, constants=(rows, ignore_nulls))
    sql = f"nth_value(v{column}, {rows}{' IGNORE NULLS' if ignore_nulls else ''})"
    return FunctionCase(
        OverFunction("NTH_VALUE", kind, sort, frame=frame, call=call), sql, (column,), None, True
    )


def end_value(
    name: str, column: int, ignore_nulls: bool, frame: Frame, sort: int = 0
) -> FunctionCase:
    kind = TYPES[column]
    call = AggregateCall(name, name, (kind,), kind, constants=(ignore_nulls,))
    sql = f"{name}(v{column}{' IGNORE NULLS' if ignore_nulls else ''})"
    return FunctionCase(
        OverFunction(name.upper(), kind, sort, frame=frame, call=call), sql, (column,), None, True
    )


def total(choice: Choice, frame: Frame, sort: int = 0) -> FunctionCase:
    """Return an aggregate over a frame."""
    call, columns, condition, sql = choice
    function = OverFunction("SUM", call.result, sort, frame=frame, call=call)
    return FunctionCase(function, sql, columns, condition)


@dataclass(frozen=True)
class OverQuery:
    """Window functions over rows with a time, one key and values.

    `sorts` are lists of (value, descending). If `mode` is time, each of them starts with the time.
    Otherwise a partition has all rows of a window, which has a size of `window`, or all rows.
    """

    functions: tuple[FunctionCase, ...]
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
            indices = [0] if self.by_time else []
            for value, descending in sort:
                indices.append(len(orders))
                orders.append(Ordering(TYPES[value], descending, not descending))
            sorts.append(tuple(indices))
        functions = tuple(item.function for item in self.functions)
        return OverSpec((S,), tuple(orders), tuple(sorts), functions, (L, L, S))

    def operator(self) -> Operator:
        late_rows = None
        if self.keeps_late:
            required = [f for f in self.table([]).schema if not f.name.startswith("l")]
            late_rows = LateRowFormat("over", pa.schema(required), (L, L))
        if self.by_time:
            return OverOperator(self.spec, self.window is not None, self.ttl_us, late_rows)
        partitions = PartitionWindowFunctions(self.spec)
        if self.mode == "windows":
            return WindowTopN(partitions, late_rows=late_rows, name="over")
        at_end = self.mode == "end"
        return UpdatingTopN(
            partitions,
            self.retracts,
            at_end=at_end,
            with_op=not at_end,
            ttl_us=self.ttl_us,
            name="over",
        )

    def end_of(self, row: Row) -> int:
        assert self.window is not None, "the query has windows"
        return row.ts - row.ts % self.window + self.window

    def pane(self, row: Row) -> int:
        if self.by_time:
            return row.ts + 1
        return self.end_of(row) if self.mode == "windows" else 0

    def table(self, rows: Sequence[Row]) -> pa.Table:
        columns: dict[str, Any] = {
            STORE_TIME: pa.array([self.pane(row) for row in rows], L),
            HASH: pa.array([hash_of(self.keys(row)) for row in rows], L),
            "k0": canonicalize(pa.array([row.keys[0] for row in rows], S)),
        }
        if self.by_time and self.window is not None:
            columns[ENDS] = pa.array([self.end_of(row) for row in rows], L)
            # The window is part of the key.
            columns["k0"] = pa.array([repr(self.keys(row)) for row in rows], S)
        orders = []
        if self.by_time:
            orders.append(pa.array([row.ts for row in rows], L))
        for value, _ in (part for sort in self.sorts for part in sort):
            orders.append(pa.array([row.values[value] for row in rows], TYPES[value]))
        columns |= {f"o{index}": column for index, column in enumerate(orders)}
        for index, item in enumerate(self.functions):
            for number, kind in enumerate(item.function.arguments):
                cells = [item.argument(row, number) for row in rows]
                columns[f"a{index}_{number}"] = pa.array(cells, kind)
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

    def in_batch(self, rows: Sequence[Row]) -> dict[int, tuple[Any, ...]]:
        """Return DuckDB's results for each row, by its id."""
        if not rows:
            return {}
        names = ["id", "ts", "k", "w", *(f"v{i}" for i, _ in enumerate(TYPES))]
        cells = [
            (row.id, row.ts, normalize_keys(row.keys)[0], self._window(row), *row.values)
            for row in rows
        ]
        kinds = (L, L, S, L, *TYPES)
        data = [pa.array([cell[i] for cell in cells], kind) for i, kind in enumerate(kinds)]
        _connection.register("input", pa.table(data, names=names))
        calls = ", ".join(self._over_sql(item) for item in self.functions)
        results = _connection.execute(f"SELECT id, {calls} FROM input").fetchall()
        return {row[0]: row[1:] for row in results}

    def _window(self, row: Row) -> int:
        return 0 if self.window is None else self.end_of(row)

    def _over_sql(self, item: FunctionCase) -> str:
        order = ["ts"] if self.by_time else []
        for value, descending in self.sorts[item.function.sort]:
            order.append(f"v{value} {'DESC NULLS LAST' if descending else 'ASC NULLS FIRST'}")
        frame = item.function.frame
        frame = frame if item.function.name != "LAG" else None
        if item.by_arrival or (frame is not None and frame.by_rows):
            order.append("id")
        by = f" ORDER BY {', '.join(order)}" if order else ""
        frame_sql = _frame_sql(frame) if frame is not None else ""
        return f"{item.sql} OVER (PARTITION BY k, w{by}{frame_sql})"


def _frame_sql(frame: Frame) -> str:
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
