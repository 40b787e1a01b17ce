"""Where rows come from."""

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
    expiry,
    once,
    rows_kept,
)
from tidegate.sql.statements import EmitClause as EmitClause
from tidegate.sql.statements import EmitMode
from tidegate.types import ChangelogKind


@dataclass(frozen=True, eq=False)
class Leaf(Node):
    """A node without inputs; it keeps nothing."""

    @once
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

    @once
    def bounded(self) -> bool:
        return self.source.bounded

    @once
    def has_watermark(self) -> bool:
        return self.source.watermark is not None

    @once
    def changelog(self) -> ChangelogKind:
        return self.source.changelog

    @once
    def key(self) -> Key | None:
        names = {name.lower() for name in self.source.primary_key}
        return tuple(item.id for item in self.fields if item.name.lower() in names) or None

    def with_emit_on_close(self, by_time: bool) -> Node:
        if not by_time or self.source.watermark is None:
            return self
        name = self.source.watermark.column.lower()
        time = next(item for item in self.fields if item.name.lower() == name)
        return Hold(self.fields, input=self, spec=None, end_id=time.id, span=self.span)


@dataclass(frozen=True, eq=False)
class SideScan(Leaf):
    """Reads the dead letters or late rows that belong to another declaration."""

    side: SideStream = field(kw_only=True)

    def label(self) -> str:
        return f"Stream({self.side.name})"

    @once
    def bounded(self) -> bool:
        return False


@dataclass(frozen=True, eq=False)
class LookupScan(Leaf):
    """A lookup table; only the right side of a lookup join can be one."""

    table: LookupTable = field(kw_only=True)

    def label(self) -> str:
        return f"LookupTable({self.table.name})"


@dataclass(frozen=True, eq=False)
class NoRows(Leaf):
    """Stands where something was rejected, or is put in later. It never runs."""


# ---- Steps that look at one row at a time and keep nothing.


@dataclass(frozen=True, eq=False)
class StatelessNode(Unary):
    """A node that hands rows on as they come."""

    @once
    def state_bound(self) -> str | None:
        return None

    @property
    def stateless(self) -> bool:
        return True

    @property
    def state_expressions(self) -> tuple[exp.Expr, ...] | None:
        return None


@dataclass(frozen=True, eq=False)
class Inlined(StatelessNode):
    """Another stream, put in place of its name."""

    name: str = field(kw_only=True)

    def label(self) -> str:
        return f"Stream({self.name})"


@dataclass(frozen=True, eq=False)
class Filter(StatelessNode):
    condition: exp.Expr = field(kw_only=True)
    subqueries: tuple[Node, ...] = field(default=(), kw_only=True)

    @property
    def stateless(self) -> bool:
        return not self.subqueries

    @property
    def only_drops_rows(self) -> bool:
        return True

    def with_emit_on_close(self, by_time: bool) -> Node:
        """A row that is dropped does not wait, and is not late."""
        below = self.input.with_emit_on_close(by_time)
        if isinstance(below, Hold):
            return replace(below, input=self.with_inputs(below.input))
        return self.with_inputs(below)


@dataclass(frozen=True, eq=False)
class Project(StatelessNode):
    """Computes each output field from the input; `expressions` line up with `fields`."""

    expressions: tuple[exp.Expr, ...] = field(kw_only=True)
    subqueries: tuple[Node, ...] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        assert len(self.fields) == len(self.expressions), "one expression a field"

    @property
    def stateless(self) -> bool:
        return not self.subqueries

    @once
    def key(self) -> Key | None:
        """A key survives a projection if all its columns are kept as they are."""
        below = self.input.key
        if below is None:
            return None
        kept: dict[str, str] = {}
        for item, expression in zip(self.fields, self.expressions, strict=True):
            bare = expression.unnest()
            if isinstance(bare, exp.Column):
                kept.setdefault(bare.name, item.id)
        held = [self.input.field(column) for column in below if column in kept]
        lost = [self.input.field(column) for column in below if column not in kept]
        if not all(_told_by(item, held, lost) for item in lost):
            return None
        return tuple(kept[item.id] for item in held)

    def with_emit_on_close(self, by_time: bool) -> Node:
        return self.with_inputs(self.input.with_emit_on_close(by_time))


def _told_by(item: Field, held: list[Field], lost: list[Field]) -> bool:
    """Whether the columns of a key that are held tell one that was dropped.

    One end of a window of fixed length tells the other; window_time and window_end tell each other.
    Two windows of the same shape in one key could be taken for each other, so they tell nothing.
    """
    same = [other for other in held if other.window == item.window]
    roles = [other.role for other in (*held, *lost) if other.window == item.window]
    if item.window is None or not same or len(set(roles)) < len(roles):
        return False
    ends = (Role.WINDOW_END, Role.TIME)
    return item.has_fixed_length_window or (
        item.role in ends and any(other.role in ends for other in same)
    )


@dataclass(frozen=True, eq=False)
class Explode(StatelessNode):
    """LATERAL VIEW: every input row once per row of a generator function."""

    generator: exp.Expr = field(kw_only=True)
    outer: bool = field(default=False, kw_only=True)
    generated: tuple[str, ...] = field(kw_only=True)
    # Whether it copies rows for the sets of a GROUP BY.
    of_sets: bool = field(default=False, kw_only=True)
    # The column that tells the sets apart, and its value in the first: a row is counted there.
    first_set: tuple[str, int] | None = field(default=None, kw_only=True)

    @once
    def key(self) -> Key | None:
        """Nothing tells the rows of one array apart."""
        return None

    def with_emit_on_close(self, by_time: bool) -> Node:
        return self.with_inputs(self.input.with_emit_on_close(by_time))


@dataclass(frozen=True, eq=False)
class Emit(StatelessNode):
    """The root of a stream: when its rows come out."""

    clause: EmitClause | None = field(kw_only=True)

    @once
    def changelog(self) -> ChangelogKind:
        mode = self.clause.mode if self.clause is not None else EmitMode.DEFAULT
        if mode is EmitMode.CHANGES:
            return CHANGELOG
        if mode in (EmitMode.UPDATE, EmitMode.EVERY) and self.input.key is not None:
            return UPSERT
        return self.input.changelog


# ---- UNION, INTERSECT, EXCEPT.


def _hold_of(node: Node) -> Hold | None:
    """What its rows wait in, if they wait for nothing but the watermark."""
    while node.stateless and len(node.inputs) == 1:
        (node,) = node.inputs
    return node if isinstance(node, Hold) else None


def _end_for_all(fields: tuple[Field, ...], held: list[Hold | None]) -> Field | None:
    """The column that says until when rows wait, if all wait for the same kind of moment."""
    first = held[0]
    if first is None or any(hold is None or hold.spec != first.spec for hold in held):
        return None
    role = Role.TIME if first.spec is None else Role.WINDOW_END
    found = (item for item in fields if item.role is role and item.window == first.spec)
    return next(found, None)


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
        """Whether it only puts the rows of its members together."""
        return self.operation == "UNION" and self.all

    @once
    def changelog(self) -> ChangelogKind:
        append = all(child.changelog is APPEND for child in self.members)
        final = self.operation == "UNION" or self.bounded
        return APPEND if append and final else CHANGELOG

    @once
    def key(self) -> Key | None:
        return None

    @once
    def state_bound(self) -> str | None:
        return None if self.union_all else rows_kept(self, self.ttl_us)

    @property
    def needs_watermark(self) -> bool:
        bounded = self.union_all or self.ttl_us is not None
        return not bounded and any(item.closed_by_watermark for item in self.fields)

    @property
    def needs_processing_time(self) -> bool:
        return self.ttl_us is not None

    def with_emit_on_close(self, by_time: bool) -> Node:
        """Rows of all members wait for the smallest of their watermarks, where they tell a time."""
        if not self.union_all:
            return self
        members = [member.with_emit_on_close(by_time) for member in self.members]
        held = [_hold_of(member) for member in members]
        end = _end_for_all(self.fields, held)
        if end is None:
            return self.with_inputs(*members)
        spec = end.window
        return Hold(self.fields, input=self, spec=spec, end_id=end.id, span=self.span)

    @property
    def stateless(self) -> bool:
        return self.union_all


# ---- ORDER BY and LIMIT that stand by themselves: only input that ends can have them.


@dataclass(frozen=True, eq=False)
class Sort(Unary):
    order: tuple[exp.Expr, ...] = field(kw_only=True)


@dataclass(frozen=True, eq=False)
class Limit(Unary):
    count: exp.Expr | None = field(kw_only=True)
    offset: exp.Expr | None = field(default=None, kw_only=True)
    # The number of a row in its order, for the top n that an OFFSET cuts.
    rank: Field | None = field(default=None, kw_only=True)


# ---- SELECT DISTINCT.


@dataclass(frozen=True, eq=False)
class Distinct(Unary):
    """Each row once, as soon as it comes; `at_close`: when the watermark has passed its time."""

    ttl_us: int | None = field(default=None, kw_only=True)
    at_close: bool = field(default=False, kw_only=True)

    @property
    def has_time(self) -> bool:
        """Whether the watermark says when no more rows equal to one can come."""
        return any(item.closed_by_watermark for item in self.fields)

    @property
    def timed(self) -> bool:
        """Whether the watermark says when a row is forgotten; else a time to live, or nothing."""
        return self.has_time and (self.ttl_us is None or self.at_close)

    @property
    def by_processing_time(self) -> bool:
        return any(item.has_processing_time_window for item in self.fields)

    @once
    def changelog(self) -> ChangelogKind:
        return APPEND if self.input.changelog is APPEND else CHANGELOG

    @once
    def key(self) -> Key | None:
        """Where the old row of a key goes and the new one comes, no key tells which stays."""
        return self.input.key if self.input.changelog is APPEND else None

    @once
    def state_bound(self) -> str | None:
        return rows_kept(self, self.ttl_us)

    @property
    def drops_late_rows(self) -> bool:
        return self.timed and not self.by_processing_time

    @once
    def is_final(self) -> bool:
        return self.at_close or self.bounded or self.input.is_final

    @property
    def needs_watermark(self) -> bool:
        return self.ttl_us is None and self.has_time

    @property
    def needs_processing_time(self) -> bool:
        return self.ttl_us is not None or self.by_processing_time

    def with_emit_on_close(self, by_time: bool) -> Node:
        if self.has_time:
            return replace(self, at_close=True)
        return self.with_inputs(self.input.with_emit_on_close(by_time))


# ---- Upserts to changes.


@dataclass(frozen=True, eq=False)
class Normalize(Unary):
    """Turns upserts into a changelog by remembering the last row of each key."""

    key: Key = field(kw_only=True)
    # How long it is known that a key was deleted; without it, for good.
    ttl_us: int | None = field(default=None, kw_only=True)

    @once
    def changelog(self) -> ChangelogKind:
        return CHANGELOG

    @once
    def state_bound(self) -> str | None:
        return "the last row of each key, and where deleted ones stood" + expiry(self.ttl_us)
