"""Relational nodes: scans, filters, projections, EMIT, set operations, DISTINCT, and upserts."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from sqlglot import exp

from tidegate.catalog.objects import LookupTable, SideStream, Source
from tidegate.plan.nodes.aggregate import Hold
from tidegate.plan.nodes.base import (
    APPEND,
    CHANGELOG,
    UPSERT,
    Field,
    Key,
    Node,
    Role,
    Unary,
    cached_property,
    describe_retained_rows,
    ttl_suffix,
)
from tidegate.sql.statements import EmitClause, EmitMode
from tidegate.types import ChangelogKind


@dataclass(frozen=True, eq=False)
class Leaf(Node):
    """A node without inputs and without state."""

    @cached_property
    def state_bound(self) -> str | None:
        return None

    @property
    def stateless(self) -> bool:
        return True

    @property
    def state_expressions(self) -> tuple[exp.Expr, ...] | None:
        return None


@dataclass(frozen=True, eq=False)
class Scan(Leaf):
    """Reads a source."""

    source: Source = field(kw_only=True)

    def label(self) -> str:
        return f"Source({self.source.name})"

    @cached_property
    def bounded(self) -> bool:
        return self.source.bounded

    @cached_property
    def has_watermark(self) -> bool:
        return self.source.watermark is not None

    @cached_property
    def changelog(self) -> ChangelogKind:
        return self.source.changelog

    @cached_property
    def key(self) -> Key | None:
        names = {name.lower() for name in self.source.primary_key}
        return tuple(item.id for item in self.fields if item.name.lower() in names) or None

    def with_emit_on_close(self, by_event_time: bool) -> Node:
        if not by_event_time or self.source.watermark is None:
            return self
        name = self.source.watermark.column.lower()
        time_field = next(item for item in self.fields if item.name.lower() == name)
        return Hold(self.fields, input=self, spec=None, end_id=time_field.id, span=self.span)


@dataclass(frozen=True, eq=False)
class SideScan(Leaf):
    """Reads the dead letters of a declaration, or the late rows of a stream."""

    side: SideStream = field(kw_only=True)

    def label(self) -> str:
        return f"Stream({self.side.name})"

    @cached_property
    def bounded(self) -> bool:
        return False


@dataclass(frozen=True, eq=False)
class LookupScan(Leaf):
    """A lookup table. Only the right side of a lookup join can be one."""

    table: LookupTable = field(kw_only=True)

    def label(self) -> str:
        return f"LookupTable({self.table.name})"


@dataclass(frozen=True, eq=False)
class NoRows(Leaf):
    """A placeholder for a rejected input, or for one that is filled in later. It never runs."""


@dataclass(frozen=True, eq=False)
class StatelessNode(Unary):
    """A node that passes rows through."""

    @cached_property
    def state_bound(self) -> str | None:
        return None

    @property
    def stateless(self) -> bool:
        return True

    @property
    def state_expressions(self) -> tuple[exp.Expr, ...] | None:
        return None


@dataclass(frozen=True, eq=False)
class StreamReference(StatelessNode):
    """The plan of another stream, inlined where the query reads it."""

    name: str = field(kw_only=True)

    def label(self) -> str:
        return f"Stream({self.name})"


@dataclass(frozen=True, eq=False)
class Filter(StatelessNode):
    """WHERE, HAVING or QUALIFY."""

    condition: exp.Expr = field(kw_only=True)
    subqueries: tuple[Node, ...] = field(default=(), kw_only=True)

    @property
    def stateless(self) -> bool:
        return not self.subqueries

    @property
    def only_drops_rows(self) -> bool:
        return True

    def with_emit_on_close(self, by_event_time: bool) -> Node:
        """Filter before holding rows: dropped rows neither wait nor count as late."""
        input_node = self.input.with_emit_on_close(by_event_time)
        if isinstance(input_node, Hold):
            return replace(input_node, input=self.with_inputs(input_node.input))
        return self.with_inputs(input_node)


@dataclass(frozen=True, eq=False)
class Project(StatelessNode):
    """Computes each output field from the input; `expressions` line up with `fields`."""

    expressions: tuple[exp.Expr, ...] = field(kw_only=True)
    subqueries: tuple[Node, ...] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        assert len(self.fields) == len(self.expressions), "one expression per field"

    @property
    def stateless(self) -> bool:
        return not self.subqueries

    @cached_property
    def key(self) -> Key | None:
        """The key of the input, if the projection passes on its columns or what determines them."""
        input_key = self.input.key
        if input_key is None:
            return None
        output_ids: dict[str, str] = {}
        for item, expression in zip(self.fields, self.expressions, strict=True):
            bare = expression.unnest()
            if isinstance(bare, exp.Column):
                output_ids.setdefault(bare.name, item.id)
        selected = [self.input.field(column) for column in input_key if column in output_ids]
        dropped = [self.input.field(column) for column in input_key if column not in output_ids]
        if not all(_is_determined_by(item, selected, dropped) for item in dropped):
            return None
        return tuple(output_ids[item.id] for item in selected)

    def with_emit_on_close(self, by_event_time: bool) -> Node:
        return self.with_inputs(self.input.with_emit_on_close(by_event_time))


def _is_determined_by(item: Field, selected: list[Field], dropped: list[Field]) -> bool:
    """Return whether the selected columns of a key determine one that was dropped.

    One end of a window of fixed length determines the other; window_time and window_end determine
    each other. If a key contains two windows of the same shape, they could be confused, so nothing
    is determined.
    """
    same_window = [other for other in selected if other.window == item.window]
    roles = [other.role for other in (*selected, *dropped) if other.window == item.window]
    if item.window is None or not same_window or len(set(roles)) < len(roles):
        return False
    ends = (Role.WINDOW_END, Role.TIME)
    return item.has_fixed_length_window or (
        item.role in ends and any(other.role in ends for other in same_window)
    )


@dataclass(frozen=True, eq=False)
class Explode(StatelessNode):
    """LATERAL VIEW: repeats every input row for each row of a generator function."""

    generator: exp.Expr = field(kw_only=True)
    outer: bool = field(default=False, kw_only=True)
    generated: tuple[str, ...] = field(kw_only=True)
    # Whether the copies are those of GROUPING SETS.
    of_sets: bool = field(default=False, kw_only=True)
    # The column that identifies the set and its value in the first set, where rows are counted.
    first_set: tuple[str, int] | None = field(default=None, kw_only=True)

    @cached_property
    def key(self) -> Key | None:
        """The key is unknown: nothing identifies the rows of one array."""
        return None

    def with_emit_on_close(self, by_event_time: bool) -> Node:
        return self.with_inputs(self.input.with_emit_on_close(by_event_time))


@dataclass(frozen=True, eq=False)
class Emit(StatelessNode):
    """The root of a stream's plan: when it emits rows."""

    clause: EmitClause | None = field(kw_only=True)

    @cached_property
    def changelog(self) -> ChangelogKind:
        mode = self.clause.mode if self.clause is not None else EmitMode.DEFAULT
        if mode is EmitMode.CHANGES:
            return CHANGELOG
        if mode in (EmitMode.UPDATE, EmitMode.EVERY) and self.input.key is not None:
            return UPSERT
        return self.input.changelog


def _find_hold(node: Node) -> Hold | None:
    """Return the Hold below stateless nodes, if there is one."""
    while node.stateless and len(node.inputs) == 1:
        (node,) = node.inputs
    return node if isinstance(node, Hold) else None


def _common_end(fields: tuple[Field, ...], holds: list[Hold | None]) -> Field | None:
    """Return the column until which all rows wait, if they wait for the same window or time."""
    first = holds[0]
    if first is None or any(hold is None or hold.spec != first.spec for hold in holds):
        return None
    role = Role.TIME if first.spec is None else Role.WINDOW_END
    candidates = (item for item in fields if item.role is role and item.window == first.spec)
    return next(candidates, None)


@dataclass(frozen=True, eq=False)
class SetOperation(Node):
    """UNION [ALL], INTERSECT, EXCEPT; columns line up by position."""

    members: tuple[Node, ...] = field(kw_only=True)
    operation: str = field(kw_only=True)
    all: bool = field(kw_only=True)
    ttl_us: int | None = field(default=None, kw_only=True)

    @property
    def inputs(self) -> tuple[Node, ...]:
        return self.members

    def with_inputs(self, *inputs: Node) -> Node:
        return replace(self, members=tuple(inputs))

    def label(self) -> str:
        return f"{self.operation.title()}{'All' if self.all else ''}"

    @property
    def union_all(self) -> bool:
        """Whether it only concatenates the rows of its members."""
        return self.operation == "UNION" and self.all

    @cached_property
    def changelog(self) -> ChangelogKind:
        appends = all(child.changelog is APPEND for child in self.members)
        adds_only = self.operation == "UNION" or self.bounded
        return APPEND if appends and adds_only else CHANGELOG

    @cached_property
    def key(self) -> Key | None:
        return None

    @cached_property
    def state_bound(self) -> str | None:
        return None if self.union_all else describe_retained_rows(self, self.ttl_us)

    @property
    def needs_watermark(self) -> bool:
        bounded = self.union_all or self.ttl_us is not None
        return not bounded and any(item.closed_by_watermark for item in self.fields)

    def with_emit_on_close(self, by_event_time: bool) -> Node:
        """Hold the union instead of each member if all members wait for the same column."""
        if not self.union_all:
            return self
        members = [member.with_emit_on_close(by_event_time) for member in self.members]
        holds = [_find_hold(member) for member in members]
        end = _common_end(self.fields, holds)
        if end is None:
            return self.with_inputs(*members)
        spec = end.window
        return Hold(self.fields, input=self, spec=spec, end_id=end.id, span=self.span)

    @property
    def stateless(self) -> bool:
        return self.union_all


@dataclass(frozen=True, eq=False)
class Sort(Unary):
    """ORDER BY over bounded input; over a stream, ORDER BY with LIMIT becomes TopN."""

    order: tuple[exp.Expr, ...] = field(kw_only=True)


@dataclass(frozen=True, eq=False)
class Limit(Unary):
    """LIMIT and OFFSET over bounded input."""

    count: exp.Expr | None = field(kw_only=True)
    offset: exp.Expr | None = field(default=None, kw_only=True)
    # The row number, for a top-N with OFFSET.
    rank: Field | None = field(default=None, kw_only=True)


@dataclass(frozen=True, eq=False)
class Distinct(Unary):
    """Emits each distinct row once: at once, or `at_close` when the watermark passes its time."""

    ttl_us: int | None = field(default=None, kw_only=True)
    at_close: bool = field(default=False, kw_only=True)

    @property
    def has_time(self) -> bool:
        """Whether the watermark determines when no more rows equal to one can arrive."""
        return any(item.closed_by_watermark for item in self.fields)

    @property
    def timed(self) -> bool:
        """Whether the watermark removes rows from the state, rather than a time to live."""
        return self.has_time and (self.ttl_us is None or self.at_close)

    @property
    def by_processing_time(self) -> bool:
        return any(item.has_processing_time_window for item in self.fields)

    @cached_property
    def changelog(self) -> ChangelogKind:
        return APPEND if self.input.changelog is APPEND else CHANGELOG

    @cached_property
    def key(self) -> Key | None:
        """The key of the input, if rows are never retracted."""
        return self.input.key if self.input.changelog is APPEND else None

    @cached_property
    def state_bound(self) -> str | None:
        return describe_retained_rows(self, self.ttl_us)

    @property
    def drops_late_rows(self) -> bool:
        return self.timed and not self.by_processing_time

    @cached_property
    def is_final(self) -> bool:
        return self.at_close or self.bounded or self.input.is_final

    @property
    def needs_watermark(self) -> bool:
        return self.ttl_us is None and self.has_time

    def with_emit_on_close(self, by_event_time: bool) -> Node:
        if self.has_time:
            return replace(self, at_close=True)
        return self.with_inputs(self.input.with_emit_on_close(by_event_time))


@dataclass(frozen=True, eq=False)
class Normalize(Unary):
    """Turns upserts into a changelog by remembering the last row of each key."""

    key: Key = field(kw_only=True)
    # How long deleted keys are remembered; None: forever.
    ttl_us: int | None = field(default=None, kw_only=True)

    @cached_property
    def changelog(self) -> ChangelogKind:
        return CHANGELOG

    @cached_property
    def state_bound(self) -> str | None:
        return "the last row of each key, and tombstones of deleted keys" + ttl_suffix(self.ttl_us)
