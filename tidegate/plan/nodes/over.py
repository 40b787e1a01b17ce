"""Window functions."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum

from sqlglot import exp

from tidegate.plan.nodes.base import APPEND, CHANGELOG, Key, Node, Unary, expiry
from tidegate.plan.nodes.fields import Field, Role
from tidegate.plan.nodes.frames import Looks, looks_of
from tidegate.plan.nodes.once import once
from tidegate.types import ChangelogKind, format_duration


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
    def looks(self) -> tuple[Looks, ...]:
        return tuple(looks_of(function) for function in self.functions)

    @property
    def partition(self) -> tuple[exp.Expr, ...]:
        """By what its functions partition: all by the same."""
        return self.looks[0].partition

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
        first = self.looks[0].order
        if any(looks.order != first for looks in self.looks):
            return False
        waits = self.closing_field is not None and self.rows_ahead > 0
        return not waits and all(follows_time(looks, self.input.fields) for looks in self.looks)

    @property
    def time_field(self) -> Field | None:
        """The event time by which rows are ordered."""
        return time_of(self.looks[0], self.input.fields)

    @property
    def closing_field(self) -> Field | None:
        """The column of the partition that says when it is complete."""
        return closing_field(self.partition, self.input.fields)

    @property
    def rows_ahead(self) -> int:
        return max(looks.rows_ahead for looks in self.looks)

    @property
    def time_ahead_us(self) -> int:
        return max(looks.time_ahead_us for looks in self.looks)

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
        back = max(looks.rows_back for looks in self.looks)
        time = max(looks.time_back_us for looks in self.looks)
        parts = [f"the last {_rows(back)}"] if back else []
        parts += [f"rows of the last {format_duration(time)}"] if time else []
        parts += ["one state"] if any(looks.runs_on for looks in self.looks) else []
        if not parts:
            return "nothing after that"
        ends = " until its window closes" if self.closing_field is not None else ""
        return f"{' and '.join(parts)} per partition" + (ends or expiry(self.ttl_us))

    @property
    def judges_lateness(self) -> bool:
        return self.mode in (OverMode.TIME, OverMode.WINDOW) or (
            self.mode is OverMode.CHANGES and self.closing_field is not None
        )

    @once
    def is_final(self) -> bool:
        return self.mode is not OverMode.CHANGES

    @property
    def needs_watermark(self) -> bool:
        return self.judges_lateness

    @property
    def reads_clock(self) -> bool:
        return self.ttl_us is not None

    def until_close(self, by_time: bool) -> Node:
        """Rows wait here anyway; what changes below may become final there."""
        if self.input.changelog is APPEND:
            return self
        return self.with_inputs(self.input.until_close(by_time))

    @property
    def kept_expressions(self) -> tuple[exp.Expr, ...] | None:
        return self.functions


def _rows(count: int) -> str:
    return "row" if count == 1 else f"{count} rows"


def time_of(looks: Looks, fields: tuple[Field, ...]) -> Field | None:
    """The event time by which a function is ordered first, upwards."""
    first = looks.order[0] if looks.order else None
    target = first.this if isinstance(first, exp.Ordered) else first
    down = isinstance(first, exp.Ordered) and bool(first.args.get("desc"))
    if down or not isinstance(target, exp.Column):
        return None
    return next((item for item in fields if item.id == target.name and item.on_time), None)


def follows_time(looks: Looks, fields: tuple[Field, ...]) -> bool:
    """Whether the watermark makes what a function says about a row final."""
    return time_of(looks, fields) is not None and not looks.needs_whole_partition


def closing_field(partition: tuple[exp.Expr, ...], fields: tuple[Field, ...]) -> Field | None:
    names = {part.name for part in partition if isinstance(part, exp.Column)}
    found = [item for item in fields if item.id in names and item.closes]
    closing = [item for item in found if item.window is not None]
    ends = [item for item in closing if item.role is not Role.WINDOW_START]
    return next(iter([*ends, *closing]), None)


def with_one_time(fields: tuple[Field, ...], looks: Looks) -> tuple[Field, ...]:
    """Columns of rows that wait for one event time: another one may be older, and would be late."""
    time = time_of(looks, fields)
    return tuple(
        replace(item, role=Role.PLAIN)
        if item.role is Role.TIME and item.window is None and item is not time
        else item
        for item in fields
    )


def without_time(fields: tuple[Field, ...]) -> tuple[Field, ...]:
    """Columns of rows that come out after the watermark has passed them, however long after."""
    return tuple(
        item if item.role is Role.PLAIN else replace(item, role=Role.PLAIN, window=None)
        for item in fields
    )
