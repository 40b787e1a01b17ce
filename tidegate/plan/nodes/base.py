"""The base class of logical nodes, their fields, and window specifications.

`Node` declares what every node reports: inputs and columns, properties of its output (changelog
kind, key, watermark, bound of its state), and how it uses event time and processing time. Its
defaults suit a node that keeps input rows until the watermark passes them; subclasses override what
differs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from tidegate.types import ChangelogKind, Span, format_duration_us


class Role(Enum):
    """The meaning of a column for event time; the watermark bounds all but PLAIN columns."""

    PLAIN = "plain"
    TIME = "event time"
    WINDOW_START = "window start"
    WINDOW_END = "window end"


class WindowKind(Enum):
    """The window functions."""

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
        sizes = [format_duration_us(self.size_us)]
        if self.kind in (WindowKind.HOP, WindowKind.CUMULATE):
            sizes.insert(0, format_duration_us(self.slide_us))
        if self.offset_us:
            sizes.append(f"offset {format_duration_us(self.offset_us)}")
        clock = ", processing time" if self.processing_time else ""
        return f"{self.kind.value}({', '.join(sizes)}{clock})"


@dataclass(frozen=True)
class Field:
    """An output column of a node."""

    id: str
    name: str
    type: str | None = None
    role: Role = Role.PLAIN
    window: WindowSpec | None = None
    volatile: bool = False
    nullable: bool = True

    def with_name(self, name: str) -> Field:
        return replace(self, name=name)

    @property
    def has_fixed_length_window(self) -> bool:
        """Whether the other end of the window can be computed from this column."""
        return self.window is not None and self.window.kind in (WindowKind.TUMBLE, WindowKind.HOP)

    @property
    def has_processing_time_window(self) -> bool:
        """Whether the column belongs to a processing-time window."""
        return self.window is not None and self.window.processing_time

    @property
    def is_event_time(self) -> bool:
        """Whether the column is an event time: rows arrive before the watermark passes it.

        The start of a window is not: its rows may arrive until the watermark passes the end.
        """
        if self.has_processing_time_window:
            return False
        return self.role in (Role.TIME, Role.WINDOW_END)

    @property
    def closed_by_watermark(self) -> bool:
        """Whether the watermark determines when no more rows with this value can arrive.

        It does not for the start of a session, because a session may be extended without limit.
        """
        if self.role is Role.WINDOW_START and self.window is not None:
            return self.window.kind is not WindowKind.SESSION
        return self.role is not Role.PLAIN

    def output_watermark_delay_us(self, fields: Sequence[Field]) -> int | None:
        """Return how much older than this column the other event times of an emitted row can be.

        A row that waits for the end of its window keeps its own event time, which lies anywhere in
        that window. Operators that read it by that time must not drop it as late. None if there is
        no bound.
        """
        if self.window is None:
            return 0
        if all(not item.is_event_time or item.window == self.window for item in fields):
            return 0
        return None if self.window.kind is WindowKind.SESSION else self.window.size_us


if TYPE_CHECKING or sys.version_info >= (3, 12):
    from functools import cached_property as cached_property
else:

    class cached_property:  # noqa: N801
        """functools.cached_property without a lock, as it is since Python 3.12.

        The lock of Python 3.11 is per property. A property of a node reads other properties of
        its inputs, so two threads could deadlock.
        """

        def __init__(self, compute: Callable[[Any], Any]) -> None:
            self.compute = compute
            self.__doc__ = compute.__doc__

        def __set_name__(self, owner: type, name: str) -> None:
            self.name = name

        def __get__(self, node: Any, owner: type | None = None) -> Any:
            if node is None:
                return self
            value = self.compute(node)
            node.__dict__[self.name] = value
            return value


APPEND, UPSERT, CHANGELOG = ChangelogKind.APPEND, ChangelogKind.UPSERT, ChangelogKind.CHANGELOG

Key = tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Node:
    """A node of a logical plan; `span` is its location in the user's SQL."""

    fields: tuple[Field, ...]
    span: Span | None = field(default=None, kw_only=True)

    @property
    def inputs(self) -> tuple[Node, ...]:
        return ()

    def with_inputs(self, *inputs: Node) -> Node:
        """Return the node over other inputs with the same fields."""
        assert len(inputs) == len(self.inputs), f"{self.label()} takes {len(self.inputs)} inputs"
        return self

    def label(self) -> str:
        """Return a short name for plan paths, such as Source(bids)."""
        return type(self).__name__

    def field(self, column_id: str) -> Field:
        """Return the output field with an id."""
        return next(item for item in self.fields if item.id == column_id)

    # Properties of the output

    @cached_property
    def bounded(self) -> bool:
        """Whether the output ends."""
        return all(child.bounded for child in self.inputs)

    @cached_property
    def has_watermark(self) -> bool:
        """Whether the output has a watermark."""
        # A bounded input without a watermark does not hold back the watermark of the others.
        inputs = [child for child in self.inputs if not child.bounded or child.has_watermark]
        return bool(inputs) and all(child.has_watermark for child in inputs)

    @cached_property
    def changelog(self) -> ChangelogKind:
        """Whether the output only adds rows, replaces them by key, or retracts them."""
        return self.inputs[0].changelog if self.inputs else APPEND

    @cached_property
    def key(self) -> Key | None:
        """The columns that identify an output row, if there are such columns."""
        return self.inputs[0].key if self.inputs else None

    @cached_property
    def state_bound(self) -> str | None:
        """A description of what bounds the state; None for a stateless node."""
        return describe_retained_rows(self, None)

    # Event time and processing time

    @property
    def drops_late_rows(self) -> bool:
        """Whether the node drops rows that are behind the watermark."""
        return False

    def late_rows(self, port: int) -> Node:
        """Return the node with the columns of late rows of an input, without window columns."""
        return self.inputs[port]

    @cached_property
    def is_final(self) -> bool:
        """Whether every emitted row is final, by the watermark or the end of input."""
        return self.bounded or (bool(self.inputs) and all(c.is_final for c in self.inputs))

    @property
    def needs_watermark(self) -> bool:
        """Whether the node needs a watermark, regardless of the EMIT clause."""
        return False

    def with_emit_on_close(self, by_event_time: bool) -> Node:
        """Return this subtree for EMIT ON WINDOW CLOSE.

        Operators that can emit final results only do so. Other rows are held until the watermark
        closes their window. With `by_event_time`, rows without a window are held until the
        watermark passes their event time.
        """
        return self

    @property
    def only_drops_rows(self) -> bool:
        """Whether the output is a subset of the input rows, with the same columns."""
        return False

    # Execution

    @property
    def stateless(self) -> bool:
        """Whether Spark SQL alone can run the node, epoch by epoch."""
        return False

    @property
    def state_expressions(self) -> tuple[exp.Expr, ...] | None:
        """The expressions on which the state depends, in addition to the input rows.

        None for a node that passes rows through.
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


def describe_retained_rows(node: Node, ttl_us: int | None) -> str:
    """Describe what bounds the rows that a node keeps: TTL, the watermark, or nothing."""
    if ttl_us is not None:
        return "rows" + ttl_suffix(ttl_us)
    if any(item.closed_by_watermark for item in node.fields):
        return "rows until the watermark passes them"
    return "all input, which is bounded" if node.bounded else "without bound"


def ttl_suffix(ttl_us: int | None) -> str:
    """Return the time to live as the end of a description, or an empty string."""
    return "" if ttl_us is None else f" for {format_duration_us(ttl_us)} (state_ttl)"
