"""Windows of event or processing time, and rows that wait for their end."""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlglot import exp

from tidegate.plan.nodes.base import Key, Node, Unary
from tidegate.plan.nodes.fields import Role, WindowKind, WindowSpec
from tidegate.plan.nodes.once import once


@dataclass(frozen=True, eq=False)
class Window(Unary):
    """Puts every row into its windows: adds window_start, window_end and window_time."""

    spec: WindowSpec = field(kw_only=True)
    time: exp.Expr = field(kw_only=True)
    time_id: str | None = field(kw_only=True)
    # In GROUP BY, sessions are per key: the aggregate makes them, from one window a row.
    grouped: bool = field(default=False, kw_only=True)

    @property
    def makes_sessions(self) -> bool:
        """Whether this node itself must wait for a session to end."""
        return self.spec.kind is WindowKind.SESSION and not self.grouped

    def label(self) -> str:
        return f"Window({self.spec})"

    @once
    def key(self) -> Key | None:
        """A row in several windows is told apart by their end."""
        below = self.input.key
        return None if below is None else (*below, self.fields[-2].id)

    @once
    def state_bound(self) -> str | None:
        return "rows of open sessions" if self.makes_sessions else None

    @property
    def judges_lateness(self) -> bool:
        return self.makes_sessions

    @once
    def is_final(self) -> bool:
        return True

    def until_close(self, by_time: bool) -> Node:
        if self.makes_sessions:
            return self
        end = self.fields[-2]
        assert end.role is Role.WINDOW_END, "a window adds its start, end and time"
        return Hold(self.fields, input=self, spec=self.spec, end_id=end.id, span=self.span)

    @property
    def stateless(self) -> bool:
        return self.grouped or not (self.makes_sessions or self.spec.processing_time)

    @property
    def kept_expressions(self) -> tuple[exp.Expr, ...] | None:
        return None


@dataclass(frozen=True, eq=False)
class Hold(Unary):
    """Keeps rows until their window closes: EMIT ON WINDOW CLOSE without aggregates.

    Rows without a window wait until the watermark has passed their event time.
    """

    spec: WindowSpec | None = field(kw_only=True)
    end_id: str = field(kw_only=True)

    @once
    def state_bound(self) -> str | None:
        return f"rows until {'their window closes' if self.spec else 'the watermark passes them'}"

    @property
    def judges_lateness(self) -> bool:
        return True

    def late_rows(self, port: int) -> Node:
        """Rows as they came: without the window that they were put into."""
        rows = self.input
        while rows.only_drops_rows:
            (rows,) = rows.inputs
        return rows.input if isinstance(rows, Window) else rows

    @once
    def is_final(self) -> bool:
        return True
