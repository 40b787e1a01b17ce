"""Window functions."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum

from sqlglot import exp

from tidegate.plan.nodes.base import APPEND, CHANGELOG, Field, Key, Node, Role, Unary, expiry, once
from tidegate.sql import expressions as ex
from tidegate.types import ChangelogKind, format_duration

# ---- What a function with OVER looks at: its order, its frame, and how far that reaches.

# Functions that depend on how many rows a partition has.
WHOLE_PARTITION_FUNCTIONS = frozenset({"NTILE", "PERCENT_RANK", "CUME_DIST"})
FRAMELESS_FUNCTIONS = ex.RANK_FUNCTIONS | WHOLE_PARTITION_FUNCTIONS | {"LAG", "LEAD"}


@dataclass(frozen=True)
class FrameBound:
    """An end of a frame, relative to the current row: `value` rows, numbers or microseconds on.

    None is without bound. `known` is False for what is not a constant.
    """

    value: int | float | None
    is_interval: bool = False
    is_constant: bool = True


@dataclass(frozen=True)
class WindowFunction:
    """One function: its name, the call without OVER, and where it looks."""

    name: str
    call: exp.Expr
    window: exp.Expr
    ignores_nulls: bool
    # None: the function has no frame.
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
        """By how many rows lag or lead look back (less than 0) or ahead; None: nobody can tell."""
        parts = self.call.expressions
        rows = whole_number(parts[1]) if len(parts) > 1 else 1
        return None if rows is None else (-rows if self.name == "LAG" else rows)

    @property
    def needs_whole_partition(self) -> bool:
        """Whether every row of a partition counts for each of them."""
        if self.name in WHOLE_PARTITION_FUNCTIONS:
            return True
        if self.name in ("LAG", "LEAD"):
            return self.ignores_nulls and (self.shift or 0) > 0
        return self.by_rows is not None and self.end.value is None

    @property
    def rows_ahead(self) -> int:
        """How many rows must be known behind a row."""
        if self.name in ("LAG", "LEAD"):
            return max(self.shift or 0, 0)
        return max(int(self.end.value or 0), 0) if self.by_rows else 0

    @property
    def rows_back(self) -> int:
        if self.name in ("LAG", "LEAD"):
            return 0 if self.ignores_nulls else max(-(self.shift or 0), 0)
        return max(-int(self.start.value or 0), 0) if self.by_rows else 0

    @property
    def time_ahead_us(self) -> int:
        """How far the watermark must be behind a row."""
        return max(int(self.end.value or 0), 0) if self.by_rows is False else 0

    @property
    def time_back_us(self) -> int:
        return max(-int(self.start.value or 0), 0) if self.by_rows is False else 0

    @property
    def is_running(self) -> bool:
        """Whether it sees all rows of its partition since the first."""
        if self.name in ("LAG", "LEAD"):
            return self.ignores_nulls
        return self.by_rows is None or self.start.value is None


def parse_window_function(window: exp.Expr) -> WindowFunction:
    call, ignores = window.this, False
    while isinstance(call, exp.Filter | exp.IgnoreNulls | exp.RespectNulls):
        ignores = ignores or isinstance(call, exp.IgnoreNulls)
        call = call.this
    name = ex.call_name(call) or ""
    spec, ordered = window.args.get("spec"), window.args.get("order") is not None
    if name in FRAMELESS_FUNCTIONS:
        return WindowFunction(name, call, window, ignores, None, FrameBound(None), FrameBound(0))
    if spec is None:
        # What is equal in order to the current row is in the frame.
        end = FrameBound(0 if ordered else None)
        return WindowFunction(name, call, window, ignores, False, FrameBound(None), end)
    start, end = _bound(spec, "start"), _bound(spec, "end")
    by_rows = str(spec.args.get("kind")).upper() == "ROWS"
    return WindowFunction(name, call, window, ignores, by_rows, start, end)


def _bound(spec: exp.Expr, which: str) -> FrameBound:
    value, side = spec.args.get(which), str(spec.args.get(f"{which}_side") or "").upper()
    if value is None or value == "CURRENT ROW":
        return FrameBound(0)
    if value == "UNBOUNDED":
        return FrameBound(None)
    sign = -1 if side == "PRECEDING" else 1
    micros = ex.interval_micros(value)
    if micros is not None:
        return FrameBound(sign * micros, True)
    number = _number(value)
    return FrameBound(0, is_constant=False) if number is None else FrameBound(sign * number)


def whole_number(tree: exp.Expr) -> int | None:
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
    """When rows come out: along event time, when their window closes, at the end of the input, or
    at once, to be corrected later."""

    TIME = "along time"
    WINDOW = "window"
    END = "end"
    CHANGES = "changes"


@dataclass(frozen=True, eq=False)
class Over(Unary):
    """Window functions of one partition: the input's fields, then one field a function."""

    functions: tuple[exp.Expr, ...] = field(kw_only=True)
    ttl_us: int | None = field(default=None, kw_only=True)

    @once
    def window_functions(self) -> tuple[WindowFunction, ...]:
        return tuple(parse_window_function(function) for function in self.functions)

    @property
    def partition(self) -> tuple[exp.Expr, ...]:
        """By what its functions partition: all by the same."""
        return self.window_functions[0].partition

    @once
    def mode(self) -> OverMode:
        if self.input.changelog is not APPEND:
            return OverMode.CHANGES
        if self._along_time:
            return OverMode.TIME
        if self.closing_field is not None:
            return OverMode.WINDOW
        return OverMode.END if self.input.bounded else OverMode.CHANGES

    @property
    def _along_time(self) -> bool:
        first = self.window_functions[0].order
        if any(looks.order != first for looks in self.window_functions):
            return False
        waits = self.closing_field is not None and self.rows_ahead > 0
        return not waits and all(
            is_final_at_watermark(looks, self.input.fields) for looks in self.window_functions
        )

    @property
    def time_field(self) -> Field | None:
        """The event time by which rows are ordered."""
        return leading_event_time(self.window_functions[0], self.input.fields)

    @property
    def closing_field(self) -> Field | None:
        """The column of the partition that says when it is complete."""
        return closing_field(self.partition, self.input.fields)

    @property
    def rows_ahead(self) -> int:
        return max(looks.rows_ahead for looks in self.window_functions)

    @property
    def time_ahead_us(self) -> int:
        return max(looks.time_ahead_us for looks in self.window_functions)

    @once
    def changelog(self) -> ChangelogKind:
        return CHANGELOG if self.mode is OverMode.CHANGES else APPEND

    @once
    def key(self) -> Key | None:
        """Rows that replace each other must be in one partition to come out in order."""
        below = self.input.key
        if below is None or self.mode is not OverMode.CHANGES:
            return below
        names = {part.name for part in self.partition if isinstance(part, exp.Column)}
        return below if len(names) == len(self.partition) and names <= set(below) else None

    @once
    def state_bound(self) -> str | None:
        if self.mode is OverMode.TIME:
            return f"rows until the watermark passes {self._awaited}; {self._kept}"
        if self.closing_field is not None:
            return "the rows of each window until it closes"
        if self.mode is OverMode.END:
            return "all input, which is bounded"
        return "the rows of each partition" + expiry(self.ttl_us)

    @property
    def _awaited(self) -> str:
        rows, time = self.rows_ahead, self.time_ahead_us
        behind = [f"the next {_rows(rows)}"] if rows else []
        behind += [f"{format_duration(time)} behind them"] if time else []
        return " and ".join(["them", *behind])

    @property
    def _kept(self) -> str:
        """What later rows can see."""
        back = max(looks.rows_back for looks in self.window_functions)
        time = max(looks.time_back_us for looks in self.window_functions)
        parts = [f"the last {_rows(back)}"] if back else []
        parts += [f"rows of the last {format_duration(time)}"] if time else []
        parts += ["one state"] if any(looks.is_running for looks in self.window_functions) else []
        if not parts:
            return "nothing after that"
        ends = " until its window closes" if self.closing_field is not None else ""
        return f"{' and '.join(parts)} per partition" + (ends or expiry(self.ttl_us))

    @property
    def drops_late_rows(self) -> bool:
        return self.mode in (OverMode.TIME, OverMode.WINDOW) or (
            self.mode is OverMode.CHANGES and self.closing_field is not None
        )

    @once
    def is_final(self) -> bool:
        return self.mode is not OverMode.CHANGES

    @property
    def needs_watermark(self) -> bool:
        return self.drops_late_rows

    @property
    def needs_processing_time(self) -> bool:
        return self.ttl_us is not None

    def with_emit_on_close(self, by_time: bool) -> Node:
        """Rows wait here anyway; what changes below may become final there."""
        if self.input.changelog is APPEND:
            return self
        return self.with_inputs(self.input.with_emit_on_close(by_time))

    @property
    def state_expressions(self) -> tuple[exp.Expr, ...] | None:
        return self.functions


def _rows(count: int) -> str:
    return "row" if count == 1 else f"{count} rows"


def leading_event_time(looks: WindowFunction, fields: tuple[Field, ...]) -> Field | None:
    """The event time by which a function is ordered first, upwards."""
    first = looks.order[0] if looks.order else None
    target = first.this if isinstance(first, exp.Ordered) else first
    down = isinstance(first, exp.Ordered) and bool(first.args.get("desc"))
    if down or not isinstance(target, exp.Column):
        return None
    return next((item for item in fields if item.id == target.name and item.is_event_time), None)


def is_final_at_watermark(looks: WindowFunction, fields: tuple[Field, ...]) -> bool:
    """Whether the watermark makes what a function says about a row final."""
    return leading_event_time(looks, fields) is not None and not looks.needs_whole_partition


def closing_field(partition: tuple[exp.Expr, ...], fields: tuple[Field, ...]) -> Field | None:
    names = {part.name for part in partition if isinstance(part, exp.Column)}
    found = [item for item in fields if item.id in names and item.closed_by_watermark]
    closing = [item for item in found if item.window is not None]
    ends = [item for item in closing if item.role is not Role.WINDOW_START]
    return next(iter([*ends, *closing]), None)


def keep_one_event_time(fields: tuple[Field, ...], looks: WindowFunction) -> tuple[Field, ...]:
    """Columns of rows that wait for one event time: another one may be older, and would be late."""
    time = leading_event_time(looks, fields)
    return tuple(
        replace(item, role=Role.PLAIN)
        if item.role is Role.TIME and item.window is None and item is not time
        else item
        for item in fields
    )


def drop_event_times(fields: tuple[Field, ...]) -> tuple[Field, ...]:
    """Columns of rows that come out after the watermark has passed them, however long after."""
    return tuple(
        item if item.role is Role.PLAIN else replace(item, role=Role.PLAIN, window=None)
        for item in fields
    )


# ---- Top-N, and the first row of each key.


@dataclass(frozen=True, eq=False)
class TopN(Unary):
    """The first rows of each partition; `limit` None keeps all of them, sorted."""

    partition: tuple[exp.Expr, ...] = field(kw_only=True)
    order: tuple[exp.Expr, ...] = field(kw_only=True)
    limit: exp.Expr | None = field(kw_only=True)
    function: str = field(default="ROW_NUMBER", kw_only=True)
    rank_id: str | None = field(default=None, kw_only=True)
    windowed: bool = field(default=False, kw_only=True)
    ttl_us: int | None = field(default=None, kw_only=True)
    # EMIT ON WINDOW CLOSE: rows wait until the watermark makes them final.
    at_close: bool = field(default=False, kw_only=True)
    # Without an order: of each partition the rows that came last, not those that came first.
    latest: bool = field(default=False, kw_only=True)

    @property
    def keeps_one(self) -> bool:
        """Whether one row of each partition comes out, whatever its peers."""
        one = isinstance(self.limit, exp.Literal) and self.limit.name == "1"
        return one and self.function == "ROW_NUMBER"

    @property
    def first_by_time(self) -> Field | None:
        """The event time by which the first row of a partition is kept, if it is by that."""
        first = self.order[0] if self.order and self.keeps_one else None
        if not isinstance(first, exp.Ordered) or first.args.get("desc"):
            return None
        found = [item for item in self.input.fields if item.id == first.this.name]
        timed = isinstance(first.this, exp.Column) and found and found[0].is_event_time
        return found[0] if timed else None

    @property
    def closing_key(self) -> Field | None:
        """The column of the partition that tells from when on no row of it can come."""
        names = [part.name for part in self.partition if isinstance(part, exp.Column)]
        found = [
            item for item in self.input.fields if item.id in names and item.closed_by_watermark
        ]
        if self.at_close and not self.windowed:
            # Rows of other times may come after the first one has.
            return self.first_by_time if self.first_by_time in found else None
        ends = [item for item in found if item.is_event_time]
        windows = [item for item in found if item.window and not item.has_processing_time_window]
        return next(iter([*ends, *windows]), None)

    @once
    def deduplicates(self) -> bool:
        """Whether the first row of each partition comes out once and stays.

        By arrival it does so at once, unless it is to wait for the end of a window; by event time
        when the watermark has passed it, if the query waits for that.
        """
        below = self.input
        if below.changelog is not APPEND or below.bounded or not self.keeps_one:
            return False
        if self.at_close:
            return not self.windowed and self.first_by_time is not None
        by_arrival = not self.order and not self.latest
        return by_arrival and not (self.windowed and self.closing_key is None)

    @once
    def changelog(self) -> ChangelogKind:
        below = self.input
        by_window = self.windowed and below.changelog is APPEND
        return APPEND if below.bounded or self.deduplicates or by_window else CHANGELOG

    @once
    def key(self) -> Key | None:
        one = self.function == "ROW_NUMBER" and self.limit is not None and self.limit.name == "1"
        columns = [part.name for part in self.partition if isinstance(part, exp.Column)]
        return tuple(columns) if one and len(columns) == len(self.partition) else None

    @once
    def state_bound(self) -> str | None:
        """Rows beyond the limit can move up if others are retracted or the limit is their own."""
        if self.deduplicates:
            until = ", until the watermark closes them" if self.closing_key is not None else ""
            return "the keys that came out" + (until or expiry(self.ttl_us))
        fixed = self.limit is not None and not self.limit.find(exp.Column)
        rows = "the first rows" if fixed and self.input.changelog is APPEND else "the rows"
        if self.windowed:
            return f"{rows} of each window until it closes"
        return f"{rows} of each partition" + expiry(self.ttl_us)

    @property
    def drops_late_rows(self) -> bool:
        closes = self.deduplicates and self.closing_key is not None
        return self.windowed or self.at_close or closes

    @once
    def is_final(self) -> bool:
        return self.at_close if self.deduplicates else self.windowed or self.bounded

    @property
    def needs_watermark(self) -> bool:
        return self.drops_late_rows

    @property
    def needs_processing_time(self) -> bool:
        return self.ttl_us is not None

    def with_emit_on_close(self, by_time: bool) -> Node:
        return replace(self, at_close=self.windowed or self.first_by_time is not None)

    @property
    def state_expressions(self) -> tuple[exp.Expr, ...] | None:
        limit = (self.limit,) if self.limit is not None else ()
        return (*self.partition, *self.order, *limit)
