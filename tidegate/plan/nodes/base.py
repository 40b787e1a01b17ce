"""What every node answers: its inputs and columns, what it promises, and what time means to it.

The answers here are those of a node that keeps rows of its input until the watermark passes them,
as far as there can be one answer; a kind of node says where it differs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from tidegate.types import ChangelogKind, Span, format_duration

# ---- Columns of nodes, and what they mean to time.


class Role(Enum):
    """What a column means to time; everything but PLAIN is moved by the watermark."""

    PLAIN = "plain"
    TIME = "event time"
    WINDOW_START = "window start"
    WINDOW_END = "window end"


class WindowKind(Enum):
    TUMBLE = "TUMBLE"
    HOP = "HOP"
    SESSION = "SESSION"
    CUMULATE = "CUMULATE"


@dataclass(frozen=True)
class WindowSpec:
    """A window function with its sizes in microseconds; `slide_us` is the step of CUMULATE."""

    kind: WindowKind
    size_us: int
    slide_us: int
    offset_us: int = 0
    processing_time: bool = False

    def __post_init__(self) -> None:
        assert self.size_us > 0 and self.slide_us > 0, "windows have a length"

    def __str__(self) -> str:
        sizes = [format_duration(self.size_us)]
        if self.kind in (WindowKind.HOP, WindowKind.CUMULATE):
            sizes.insert(0, format_duration(self.slide_us))
        if self.offset_us:
            sizes.append(f"offset {format_duration(self.offset_us)}")
        clock = ", processing time" if self.processing_time else ""
        return f"{self.kind.value}({', '.join(sizes)}{clock})"


@dataclass(frozen=True)
class Field:
    """A column of a node's output."""

    id: str
    name: str
    type: str | None = None
    role: Role = Role.PLAIN
    window: WindowSpec | None = None
    volatile: bool = False
    nullable: bool = True

    def renamed(self, name: str) -> Field:
        return replace(self, name=name)

    @property
    def has_fixed_length_window(self) -> bool:
        """Whether it is an end of a window whose other end follows from it."""
        return self.window is not None and self.window.kind in (WindowKind.TUMBLE, WindowKind.HOP)

    @property
    def has_processing_time_window(self) -> bool:
        """Whether it belongs to a window of processing time."""
        return self.window is not None and self.window.processing_time

    @property
    def is_event_time(self) -> bool:
        """Whether it is the event time: rows come before the watermark passes its value.

        The start of a window is not: its rows may come until the watermark passes the end.
        """
        if self.has_processing_time_window:
            return False
        return self.role in (Role.TIME, Role.WINDOW_END)

    @property
    def closed_by_watermark(self) -> bool:
        """Whether the watermark says when no more rows with its value can come.

        The start of a session does not: the session may go on for as long as it likes.
        """
        if self.role is Role.WINDOW_START and self.window is not None:
            return self.window.kind is not WindowKind.SESSION
        return self.role is not Role.PLAIN

    def output_watermark_delay_us(self, fields: Sequence[Field]) -> int | None:
        """How much older other times of a row can be than this one, which lets it out.

        A row that waits for the end of its window still has its own time, which lies anywhere in
        that window. Whoever reads it by that time must not take it for late. None: nobody can tell.
        """
        if self.window is None:
            return 0
        if all(not item.is_event_time or item.window == self.window for item in fields):
            return 0
        return None if self.window.kind is WindowKind.SESSION else self.window.size_us


# ---- An answer that a node works out once and keeps.

if TYPE_CHECKING or sys.version_info >= (3, 12):
    from functools import cached_property as once
else:

    class once:  # noqa: N801
        """functools.cached_property as it is since Python 3.12: without locks.

        With a lock for each question two threads could wait for each other forever, as nodes ask
        the nodes below them.
        """

        def __init__(self, ask: Callable[[Any], Any]) -> None:
            self.ask = ask
            self.__doc__ = ask.__doc__

        def __set_name__(self, owner: type, name: str) -> None:
            self.name = name

        def __get__(self, node: Any, owner: type | None = None) -> Any:
            if node is None:
                return self
            answer = self.ask(node)
            node.__dict__[self.name] = answer
            return answer


__all__ = ["once"]


APPEND, UPSERT, CHANGELOG = ChangelogKind.APPEND, ChangelogKind.UPSERT, ChangelogKind.CHANGELOG

Key = tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Node:
    """A node has inputs and output fields; `span` is its place in the user's SQL."""

    fields: tuple[Field, ...]
    span: Span | None = field(default=None, kw_only=True)

    @property
    def inputs(self) -> tuple[Node, ...]:
        return ()

    def with_inputs(self, *inputs: Node) -> Node:
        """The same node over other inputs with the same fields."""
        assert len(inputs) == len(self.inputs), f"{self.label()} takes {len(self.inputs)} inputs"
        return self

    def label(self) -> str:
        """A short name for plan paths, such as Source(bids)."""
        return type(self).__name__

    def field(self, column_id: str) -> Field:
        return next(item for item in self.fields if item.id == column_id)

    # What it promises; worked out once, as nodes never change.

    @once
    def bounded(self) -> bool:
        """Whether its rows end."""
        return all(child.bounded for child in self.inputs)

    @once
    def has_watermark(self) -> bool:
        # An input that ends holds nothing back for good: the others' watermark counts.
        moving = [child for child in self.inputs if not child.bounded or child.has_watermark]
        return bool(moving) and all(child.has_watermark for child in moving)

    @once
    def changelog(self) -> ChangelogKind:
        """Whether rows are only added, replaced by key, or retracted."""
        return self.inputs[0].changelog if self.inputs else APPEND

    @once
    def key(self) -> Key | None:
        """The columns that tell its rows apart, if some do."""
        return self.inputs[0].key if self.inputs else None

    @once
    def state_bound(self) -> str | None:
        """What bounds its state, in words; None if it keeps none."""
        return rows_kept(self, None)

    # What time means to it

    @property
    def drops_late_rows(self) -> bool:
        """Whether the watermark makes rows too late for it."""
        return False

    def late_rows(self, port: int) -> Node:
        """The node whose columns late rows of an input have: as they were before windows."""
        return self.inputs[port]

    @once
    def is_final(self) -> bool:
        """Whether the watermark, or the end of the input, makes each of its rows final."""
        return self.bounded or (bool(self.inputs) and all(c.is_final for c in self.inputs))

    @property
    def needs_watermark(self) -> bool:
        """Whether it emits or forgets by the watermark, whatever the EMIT clause says."""
        return False

    @property
    def needs_processing_time(self) -> bool:
        """Whether it depends on processing time, so that epochs must come without rows too."""
        return False

    def with_emit_on_close(self, by_time: bool) -> Node:
        """The node for EMIT ON WINDOW CLOSE: rows that no operator closes are held below it.

        With `by_time` rows keep their event time, and wait for the watermark to pass it even
        without a window.
        """
        return self

    @property
    def only_drops_rows(self) -> bool:
        return False

    # How it runs

    @property
    def stateless(self) -> bool:
        """Whether Spark SQL alone can run it, epoch by epoch."""
        return False

    @property
    def state_expressions(self) -> tuple[exp.Expr, ...] | None:
        """The expressions whose values its state depends on; None if it hands rows on as they come.

        State also depends on the rows that come in.
        """
        return ()


@dataclass(frozen=True, eq=False)
class Unary(Node):
    """A node with one input."""

    input: Node = field(kw_only=True)

    @property
    def inputs(self) -> tuple[Node, ...]:
        return (self.input,)

    def with_inputs(self, *inputs: Node) -> Node:
        (new,) = inputs
        return replace(self, input=new)


def rows_kept(node: Node, ttl_us: int | None) -> str:
    """What bounds the rows that a node keeps: a time to live, the watermark or nothing."""
    if ttl_us is not None:
        return "rows" + expiry(ttl_us)
    if any(item.closed_by_watermark for item in node.fields):
        return "rows until the watermark passes them"
    return "all input, which is bounded" if node.bounded else "without bound"


def expiry(ttl_us: int | None) -> str:
    return "" if ttl_us is None else f" for {format_duration(ttl_us)} (state_ttl)"
