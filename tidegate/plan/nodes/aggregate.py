"""Window functions, GROUP BY, and rows that are held until their window closes."""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlglot import exp

from tidegate.plan.nodes.base import (
    APPEND,
    CHANGELOG,
    Field,
    Key,
    Node,
    Role,
    Unary,
    WindowKind,
    WindowSpec,
    cached_property,
    ttl_suffix,
)
from tidegate.sql.statements import EmitClause as EmitClause
from tidegate.sql.statements import EmitMode
from tidegate.types import ChangelogKind, format_duration_us


@dataclass(frozen=True, eq=False)
class Window(Unary):
    """Assigns rows to windows: adds window_start, window_end and window_time."""

    spec: WindowSpec = field(kw_only=True)
    time: exp.Expr = field(kw_only=True)
    time_id: str | None = field(kw_only=True)
    # In GROUP BY. Sessions are then per key: the aggregate builds them from one window per row.
    grouped: bool = field(default=False, kw_only=True)

    @property
    def holds_sessions(self) -> bool:
        """Whether this node itself holds rows until their session ends."""
        return self.spec.kind is WindowKind.SESSION and not self.grouped

    def label(self) -> str:
        return f"Window({self.spec})"

    @cached_property
    def key(self) -> Key | None:
        """The key of the input and the window end: a row may be in several windows."""
        below = self.input.key
        return None if below is None else (*below, self.fields[-2].id)

    @cached_property
    def state_bound(self) -> str | None:
        return "rows of open sessions" if self.holds_sessions else None

    @property
    def drops_late_rows(self) -> bool:
        return self.holds_sessions

    @cached_property
    def is_final(self) -> bool:
        return True

    def with_emit_on_close(self, by_event_time: bool) -> Node:
        if self.holds_sessions:
            return self
        end = self.fields[-2]
        assert end.role is Role.WINDOW_END, "a window adds its start, end and time"
        return Hold(self.fields, input=self, spec=self.spec, end_id=end.id, span=self.span)

    @property
    def stateless(self) -> bool:
        return self.grouped or not (self.holds_sessions or self.spec.processing_time)

    @property
    def state_expressions(self) -> tuple[exp.Expr, ...] | None:
        return None


@dataclass(frozen=True, eq=False)
class Hold(Unary):
    """Holds rows until their window closes: EMIT ON WINDOW CLOSE without aggregates.

    Rows without a window wait until the watermark passes their event time.
    """

    spec: WindowSpec | None = field(kw_only=True)
    end_id: str = field(kw_only=True)

    @cached_property
    def state_bound(self) -> str | None:
        return f"rows until {'their window closes' if self.spec else 'the watermark passes them'}"

    @property
    def drops_late_rows(self) -> bool:
        return True

    def late_rows(self, port: int) -> Node:
        """Return the rows before they were assigned to a window."""
        rows = self.input
        while rows.only_drops_rows:
            (rows,) = rows.inputs
        return rows.input if isinstance(rows, Window) else rows

    @cached_property
    def is_final(self) -> bool:
        return True


@dataclass(frozen=True, eq=False)
class Aggregate(Unary):
    """GROUP BY. The fields are the `keys`, then the `aggregates`."""

    keys: tuple[exp.Expr, ...] = field(kw_only=True)
    aggregates: tuple[exp.Expr, ...] = field(kw_only=True)
    window: WindowSpec | None = field(kw_only=True)
    emit: EmitClause | None = field(default=None, kw_only=True)
    ttl_us: int | None = field(default=None, kw_only=True)
    # Without keys: emit the aggregates of zero rows before the first row arrives.
    emits_initial_row: bool = field(default=False, kw_only=True)

    @property
    def key_fields(self) -> tuple[Field, ...]:
        return self.fields[: len(self.keys)]

    @property
    def grouped_window(self) -> Window | None:
        """The window of the GROUP BY clause, if the aggregate applies it itself."""
        below = self.input
        return below if isinstance(below, Window) and below.grouped else None

    @property
    def merges_sessions(self) -> bool:
        """Whether the aggregate merges rows into sessions per key."""
        window = self.grouped_window
        return window is not None and window.spec.kind is WindowKind.SESSION

    @property
    def windowed(self) -> bool:
        """Whether the watermark closes the groups."""
        return any(item.closed_by_watermark for item in self.key_fields)

    @property
    def by_processing_time(self) -> bool:
        """Whether the windows are processing-time windows."""
        return self.window is not None and self.window.processing_time

    @property
    def lateness_us(self) -> int:
        """The time for which closed windows may be corrected."""
        return (self.emit.lateness_us or 0) if self.emit is not None else 0

    @cached_property
    def changelog(self) -> ChangelogKind:
        mode = self.emit.mode if self.emit is not None else EmitMode.DEFAULT
        if self.input.bounded and mode is EmitMode.DEFAULT:
            return APPEND
        if mode in (EmitMode.UPDATE, EmitMode.CHANGES, EmitMode.EVERY):
            return CHANGELOG
        return CHANGELOG if self.lateness_us or not self.windowed else APPEND

    @cached_property
    def key(self) -> Key | None:
        return tuple(item.id for item in self.key_fields)

    @cached_property
    def state_bound(self) -> str | None:
        below = self.input
        closes = below.has_watermark or below.bounded or self.by_processing_time
        if not self.windowed or not closes:
            return "one entry per group" + ttl_suffix(self.ttl_us)
        unit = "key and open session" if self.merges_sessions else "group and open window"
        text = f"one entry per {unit}"
        if not self.by_processing_time and not below.has_watermark:
            return f"{text}, until the input ends"
        text += f", until the {'clock' if self.by_processing_time else 'watermark'} passes its end"
        return text + (f" + {format_duration_us(self.lateness_us)}" if self.lateness_us else "")

    @property
    def drops_late_rows(self) -> bool:
        return self.windowed and not self.by_processing_time

    def late_rows(self, port: int) -> Node:
        return self.grouped_window.input if self.grouped_window is not None else self.input

    @cached_property
    def is_final(self) -> bool:
        return self.windowed or self.bounded

    @property
    def closing_key(self) -> Field | None:
        """The key that determines when the watermark closes a group."""
        if self.grouped_window is not None:
            return self.grouped_window.fields[-2]
        candidates = [item for item in self.key_fields if item.closed_by_watermark]
        for role in (Role.WINDOW_END, Role.TIME, Role.WINDOW_START):
            for item in reversed(candidates) if role is Role.TIME else candidates:
                if item.role is role and (role is not Role.WINDOW_START or item.window is not None):
                    return item
        return None

    @property
    def state_expressions(self) -> tuple[exp.Expr, ...] | None:
        return (*self.keys, *self.aggregates)
