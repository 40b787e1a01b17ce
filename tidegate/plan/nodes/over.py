"""Window functions (OVER), and top-N with deduplication."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum

from sqlglot import exp

from tidegate.plan.nodes.base import (
    APPEND,
    CHANGELOG,
    Field,
    Key,
    Node,
    Role,
    Unary,
    cached_property,
    ttl_suffix,
)
from tidegate.sql import expressions as ex
from tidegate.types import (
    RANK_FUNCTIONS,
    WHOLE_PARTITION_FUNCTIONS,
    ChangelogKind,
    format_duration_us,
)

FRAMELESS_FUNCTIONS = RANK_FUNCTIONS | WHOLE_PARTITION_FUNCTIONS | {"LAG", "LEAD"}


@dataclass(frozen=True)
class FrameBound:
    """An end of a frame relative to the current row: rows, or a distance in the order.

    `value` is in microseconds for intervals and None for UNBOUNDED. `is_constant` is False if the
    bound is not a constant.
    """

    value: int | float | None
    is_interval: bool = False
    is_constant: bool = True


@dataclass(frozen=True)
class WindowFunction:
    """One window function: its name, the call without OVER, its order and its frame."""

    name: str
    call: exp.Expr
    window: exp.Expr
    ignores_nulls: bool
    # None if the function has no frame.
    by_rows: bool | None
    start: FrameBound
    end: FrameBound

    @property
    def order(self) -> tuple[exp.Expr, ...]:
        order = self.window.args.get("order")
        return tuple(order.expressions) if order is not None else ()

    @property
    def partition(self) -> tuple[exp.Expr, ...]:
        return tuple(self.window.args.get("partition_by") or ())

    @property
    def shift(self) -> int | None:
        """The offset of LAG (negative) or LEAD (positive); None if it is not constant."""
        parts = self.call.expressions
        rows = whole_number(parts[1]) if len(parts) > 1 else 1
        return None if rows is None else (-rows if self.name == "LAG" else rows)

    @property
    def needs_whole_partition(self) -> bool:
        """Whether the value of a row depends on all rows of its partition."""
        if self.name in WHOLE_PARTITION_FUNCTIONS:
            return True
        if self.name in ("LAG", "LEAD"):
            return self.ignores_nulls and (self.shift or 0) > 0
        return self.by_rows is not None and self.end.value is None

    @property
    def rows_ahead(self) -> int:
        """The number of following rows that a value needs."""
        if self.name in ("LAG", "LEAD"):
            return max(self.shift or 0, 0)
        return max(int(self.end.value or 0), 0) if self.by_rows else 0

    @property
    def rows_back(self) -> int:
        """The number of preceding rows that a value needs."""
        if self.name in ("LAG", "LEAD"):
            return 0 if self.ignores_nulls else max(-(self.shift or 0), 0)
        return max(-int(self.start.value or 0), 0) if self.by_rows else 0

    @property
    def time_ahead_us(self) -> int:
        """The distance from a row to the watermark at which its value is final."""
        return max(int(self.end.value or 0), 0) if self.by_rows is False else 0

    @property
    def time_back_us(self) -> int:
        """The distance in event time from a row back to the start of its frame."""
        return max(-int(self.start.value or 0), 0) if self.by_rows is False else 0

    @property
    def is_running(self) -> bool:
        """Whether a value depends on all rows since the first of the partition."""
        if self.name in ("LAG", "LEAD"):
            return self.ignores_nulls
        return self.by_rows is None or self.start.value is None


def parse_window_function(window: exp.Expr) -> WindowFunction:
    """Return the function, order and frame of a call with OVER."""
    call, ignores_nulls = window.this, False
    while isinstance(call, exp.Filter | exp.IgnoreNulls | exp.RespectNulls):
        ignores_nulls = ignores_nulls or isinstance(call, exp.IgnoreNulls)
        call = call.this
    name = ex.call_name(call) or ""
    spec, has_order = window.args.get("spec"), window.args.get("order") is not None
    if name in FRAMELESS_FUNCTIONS:
        return WindowFunction(
            name, call, window, ignores_nulls, None, FrameBound(None), FrameBound(0)
        )
    if spec is None:
        # Peers of the current row are in the frame.
        end = FrameBound(0 if has_order else None)
        return WindowFunction(name, call, window, ignores_nulls, False, FrameBound(None), end)
    start, end = _bound(spec, "start"), _bound(spec, "end")
    by_rows = str(spec.args.get("kind")).upper() == "ROWS"
    return WindowFunction(name, call, window, ignores_nulls, by_rows, start, end)


def _bound(spec: exp.Expr, end: str) -> FrameBound:
    value, direction = spec.args.get(end), str(spec.args.get(f"{end}_side") or "").upper()
    if value is None or value == "CURRENT ROW":
        return FrameBound(0)
    if value == "UNBOUNDED":
        return FrameBound(None)
    sign = -1 if direction == "PRECEDING" else 1
    micros = ex.interval_micros(value)
    if micros is not None:
        return FrameBound(sign * micros, True)
    number = _number(value)
    return FrameBound(0, is_constant=False) if number is None else FrameBound(sign * number)


def whole_number(tree: exp.Expr) -> int | None:
    """Return the value of an integer literal; None for other expressions."""
    number = _number(tree)
    return number if isinstance(number, int) else None


def _number(tree: exp.Expr) -> int | float | None:
    tree = tree.unnest()
    if isinstance(tree, exp.Neg):
        inner = _number(tree.this)
        return None if inner is None else -inner
    if not isinstance(tree, exp.Literal) or tree.is_string:
        return None
    return int(tree.name) if tree.is_int else float(tree.name)


class OverMode(Enum):
    """When rows are emitted.

    TIME: when the watermark passes them. WINDOW: when their window closes. END: at the end of the
    input. CHANGES: at once, with retractions later.
    """

    TIME = "along time"
    WINDOW = "window"
    END = "end"
    CHANGES = "changes"


@dataclass(frozen=True, eq=False)
class Over(Unary):
    """Window functions with one PARTITION BY: the fields of the input, then one per function."""

    functions: tuple[exp.Expr, ...] = field(kw_only=True)
    ttl_us: int | None = field(default=None, kw_only=True)

    @cached_property
    def window_functions(self) -> tuple[WindowFunction, ...]:
        return tuple(parse_window_function(function) for function in self.functions)

    @property
    def partition(self) -> tuple[exp.Expr, ...]:
        """The common PARTITION BY of the functions."""
        return self.window_functions[0].partition

    @cached_property
    def mode(self) -> OverMode:
        if self.input.changelog is not APPEND:
            return OverMode.CHANGES
        if self._is_final_at_watermark:
            return OverMode.TIME
        if self.closing_field is not None:
            return OverMode.WINDOW
        return OverMode.END if self.input.bounded else OverMode.CHANGES

    @property
    def _is_final_at_watermark(self) -> bool:
        order = self.window_functions[0].order
        if any(function.order != order for function in self.window_functions):
            return False
        waits = self.closing_field is not None and self.rows_ahead > 0
        return not waits and all(
            is_final_at_watermark(function, self.input.fields) for function in self.window_functions
        )

    @property
    def time_field(self) -> Field | None:
        """The event time by which rows are ordered."""
        return leading_event_time(self.window_functions[0], self.input.fields)

    @property
    def closing_field(self) -> Field | None:
        """The column of the partition that determines when it is complete."""
        return find_closing_field(self.partition, self.input.fields)

    @property
    def rows_ahead(self) -> int:
        return max(function.rows_ahead for function in self.window_functions)

    @property
    def time_ahead_us(self) -> int:
        return max(function.time_ahead_us for function in self.window_functions)

    @cached_property
    def changelog(self) -> ChangelogKind:
        return CHANGELOG if self.mode is OverMode.CHANGES else APPEND

    @cached_property
    def key(self) -> Key | None:
        """The key of the input.

        Rows that replace each other must be in the same partition, so that they are emitted in
        order.
        """
        below = self.input.key
        if below is None or self.mode is not OverMode.CHANGES:
            return below
        names = {part.name for part in self.partition if isinstance(part, exp.Column)}
        return below if len(names) == len(self.partition) and names <= set(below) else None

    @cached_property
    def state_bound(self) -> str | None:
        if self.mode is OverMode.TIME:
            return f"rows until the watermark passes {self._awaited_text}; {self._retained_text}"
        if self.closing_field is not None:
            return "the rows of each window until it closes"
        if self.mode is OverMode.END:
            return "all input, which is bounded"
        return "the rows of each partition" + ttl_suffix(self.ttl_us)

    @property
    def _awaited_text(self) -> str:
        rows, time_us = self.rows_ahead, self.time_ahead_us
        parts = [f"the next {_rows(rows)}"] if rows else []
        parts += [f"{format_duration_us(time_us)} behind them"] if time_us else []
        return " and ".join(["them", *parts])

    @property
    def _retained_text(self) -> str:
        """The rows that later rows can still read, for `explain`."""
        rows = max(function.rows_back for function in self.window_functions)
        time_us = max(function.time_back_us for function in self.window_functions)
        parts = [f"the last {_rows(rows)}"] if rows else []
        parts += [f"rows of the last {format_duration_us(time_us)}"] if time_us else []
        parts += (
            ["one state"] if any(function.is_running for function in self.window_functions) else []
        )
        if not parts:
            return "nothing after that"
        ends = " until its window closes" if self.closing_field is not None else ""
        return f"{' and '.join(parts)} per partition" + (ends or ttl_suffix(self.ttl_us))

    @property
    def drops_late_rows(self) -> bool:
        return self.mode in (OverMode.TIME, OverMode.WINDOW) or (
            self.mode is OverMode.CHANGES and self.closing_field is not None
        )

    @cached_property
    def is_final(self) -> bool:
        return self.mode is not OverMode.CHANGES

    @property
    def needs_watermark(self) -> bool:
        return self.drops_late_rows

    def with_emit_on_close(self, by_event_time: bool) -> Node:
        """Return this node. It emits final rows if its input does, so only the input changes."""
        if self.input.changelog is APPEND:
            return self
        return self.with_inputs(self.input.with_emit_on_close(by_event_time))

    @property
    def state_expressions(self) -> tuple[exp.Expr, ...] | None:
        return self.functions


def _rows(count: int) -> str:
    return "row" if count == 1 else f"{count} rows"


def leading_event_time(function: WindowFunction, fields: tuple[Field, ...]) -> Field | None:
    """Return the event time by which a function is ordered first, if it is ascending."""
    key = function.order[0] if function.order else None
    column = key.this if isinstance(key, exp.Ordered) else key
    descending = isinstance(key, exp.Ordered) and bool(key.args.get("desc"))
    if descending or not isinstance(column, exp.Column):
        return None
    return next((item for item in fields if item.id == column.name and item.is_event_time), None)


def is_final_at_watermark(function: WindowFunction, fields: tuple[Field, ...]) -> bool:
    """Return whether the watermark makes the value of a function final."""
    return leading_event_time(function, fields) is not None and not function.needs_whole_partition


def find_closing_field(partition: tuple[exp.Expr, ...], fields: tuple[Field, ...]) -> Field | None:
    """Return the window column of a partition that determines when it is complete."""
    names = {part.name for part in partition if isinstance(part, exp.Column)}
    candidates = [item for item in fields if item.id in names and item.closed_by_watermark]
    windows = [item for item in candidates if item.window is not None]
    ends = [item for item in windows if item.role is not Role.WINDOW_START]
    return next(iter([*ends, *windows]), None)


def keep_one_event_time(fields: tuple[Field, ...], function: WindowFunction) -> tuple[Field, ...]:
    """Return the fields of rows that wait for the event time of a function.

    Other event times become plain columns: they may be older, so operators above would drop rows as
    late.
    """
    time = leading_event_time(function, fields)
    return tuple(
        replace(item, role=Role.PLAIN)
        if item.role is Role.TIME and item.window is None and item is not time
        else item
        for item in fields
    )


def drop_event_times(fields: tuple[Field, ...]) -> tuple[Field, ...]:
    """Return the fields of rows that may be emitted long after the watermark passed them."""
    return tuple(
        item if item.role is Role.PLAIN else replace(item, role=Role.PLAIN, window=None)
        for item in fields
    )


@dataclass(frozen=True, eq=False)
class TopN(Unary):
    """The first rows of each partition; a `limit` of None keeps all of them, sorted."""

    partition: tuple[exp.Expr, ...] = field(kw_only=True)
    order: tuple[exp.Expr, ...] = field(kw_only=True)
    limit: exp.Expr | None = field(kw_only=True)
    function: str = field(default="ROW_NUMBER", kw_only=True)
    rank_id: str | None = field(default=None, kw_only=True)
    windowed: bool = field(default=False, kw_only=True)
    ttl_us: int | None = field(default=None, kw_only=True)
    # EMIT ON WINDOW CLOSE: rows wait until the watermark passes them.
    at_close: bool = field(default=False, kw_only=True)
    # Without an order: keep the last rows to arrive instead of the first.
    latest: bool = field(default=False, kw_only=True)

    @property
    def keeps_one_row(self) -> bool:
        """Whether one row of each partition is emitted, ignoring ties."""
        one = isinstance(self.limit, exp.Literal) and self.limit.name == "1"
        return one and self.function == "ROW_NUMBER"

    @property
    def first_by_time(self) -> Field | None:
        """The event time by which the first row of a partition is chosen, if there is one."""
        key = self.order[0] if self.order and self.keeps_one_row else None
        if not isinstance(key, exp.Ordered) or key.args.get("desc"):
            return None
        matches = [item for item in self.input.fields if item.id == key.this.name]
        is_event_time = isinstance(key.this, exp.Column) and matches and matches[0].is_event_time
        return matches[0] if is_event_time else None

    @property
    def closing_key(self) -> Field | None:
        """The column of the partition that determines when it gets no more rows."""
        names = [part.name for part in self.partition if isinstance(part, exp.Column)]
        candidates = [
            item for item in self.input.fields if item.id in names and item.closed_by_watermark
        ]
        if self.at_close and not self.windowed:
            # Rows with other event times may arrive after the first row was emitted.
            return self.first_by_time if self.first_by_time in candidates else None
        ends = [item for item in candidates if item.is_event_time]
        windows = [
            item for item in candidates if item.window and not item.has_processing_time_window
        ]
        return next(iter([*ends, *windows]), None)

    @cached_property
    def deduplicates(self) -> bool:
        """Whether the first row of each partition is emitted once and never retracted.

        In order of arrival it is emitted at once, unless it waits for the end of a window. In order
        of event time it is emitted when the watermark passes it, if the query waits for that.
        """
        below = self.input
        if below.changelog is not APPEND or below.bounded or not self.keeps_one_row:
            return False
        if self.at_close:
            return not self.windowed and self.first_by_time is not None
        by_arrival = not self.order and not self.latest
        return by_arrival and not (self.windowed and self.closing_key is None)

    @cached_property
    def changelog(self) -> ChangelogKind:
        below = self.input
        by_window = self.windowed and below.changelog is APPEND
        return APPEND if below.bounded or self.deduplicates or by_window else CHANGELOG

    @cached_property
    def key(self) -> Key | None:
        one = self.function == "ROW_NUMBER" and self.limit is not None and self.limit.name == "1"
        columns = [part.name for part in self.partition if isinstance(part, exp.Column)]
        return tuple(columns) if one and len(columns) == len(self.partition) else None

    @cached_property
    def state_bound(self) -> str | None:
        """A description of what bounds the state.

        Rows beyond the limit are kept if they can move up: when others are retracted, or if the
        limit is a column.
        """
        if self.deduplicates:
            until = ", until the watermark closes them" if self.closing_key is not None else ""
            return "the keys that were emitted" + (until or ttl_suffix(self.ttl_us))
        constant_limit = self.limit is not None and not self.limit.find(exp.Column)
        rows = "the first rows" if constant_limit and self.input.changelog is APPEND else "the rows"
        if self.windowed:
            return f"{rows} of each window until it closes"
        return f"{rows} of each partition" + ttl_suffix(self.ttl_us)

    @property
    def drops_late_rows(self) -> bool:
        closes = self.deduplicates and self.closing_key is not None
        return self.windowed or self.at_close or closes

    @cached_property
    def is_final(self) -> bool:
        return self.at_close if self.deduplicates else self.windowed or self.bounded

    @property
    def needs_watermark(self) -> bool:
        return self.drops_late_rows

    def with_emit_on_close(self, by_event_time: bool) -> Node:
        return replace(self, at_close=self.windowed or self.first_by_time is not None)

    @property
    def state_expressions(self) -> tuple[exp.Expr, ...] | None:
        limit = (self.limit,) if self.limit is not None else ()
        return (*self.partition, *self.order, *limit)
