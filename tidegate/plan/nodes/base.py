"""What every node answers: its inputs and columns, what it promises, and what time means to it.

The answers here are those of a node that keeps rows of its input until the watermark passes them,
as far as there can be one answer; a kind of node says where it differs.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from sqlglot import exp

from tidegate.plan.nodes.fields import Field
from tidegate.plan.nodes.once import once
from tidegate.types import ChangelogKind, Span, format_duration

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
    def judges_lateness(self) -> bool:
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
    def reads_clock(self) -> bool:
        """Whether it depends on processing time, so that epochs must come without rows too."""
        return False

    def until_close(self, by_time: bool) -> Node:
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
    def kept_expressions(self) -> tuple[exp.Expr, ...] | None:
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
    if any(item.closes for item in node.fields):
        return "rows until the watermark passes them"
    return "all input, which is bounded" if node.bounded else "without bound"


def expiry(ttl_us: int | None) -> str:
    return "" if ttl_us is None else f" for {format_duration(ttl_us)} (state_ttl)"
