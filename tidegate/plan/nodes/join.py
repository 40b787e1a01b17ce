"""Joins: how they are bounded decides everything else."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum

from sqlglot import exp

from tidegate.plan.nodes.base import APPEND, CHANGELOG, Key, Node, expiry, once
from tidegate.plan.nodes.relational import LookupScan, Project
from tidegate.types import ChangelogKind, format_duration

BACKWARD, FORWARD, NEAREST = "backward", "forward", "nearest"


class JoinKind(Enum):
    """How a join is bounded, which decides the operator that runs it."""

    INTERVAL = "interval"
    WINDOW = "window"
    TEMPORAL = "temporal"
    ASOF = "asof"
    LOOKUP = "lookup"
    REGULAR = "regular"


@dataclass(frozen=True)
class TimeBounds:
    """left time − right time lies in [lower, upper]; None is open."""

    left_id: str
    right_id: str
    lower_us: int | None
    upper_us: int | None


@dataclass(frozen=True, eq=False)
class AsofCondition:
    """Which of the right rows counts: left − right lies in [lower, upper]; an open end is out.

    Backward is the largest of the right, forward the smallest, nearest the one least away. With
    `first` it is the first of the right, if that is in reach. Times are in microseconds.
    """

    left: exp.Expr
    right: exp.Expr
    direction: str
    lower: int | float | None = None
    upper: int | float | None = None
    lower_open: bool = False
    upper_open: bool = False
    first: bool = False

    @property
    def ends(self) -> bool:
        """Whether the watermark tells when nothing nearer can come, whatever has come."""
        return self.lower is not None


@dataclass(frozen=True, eq=False)
class KeyPair:
    """left = right in a join condition; null-safe if NULLs match each other."""

    left: exp.Expr
    right: exp.Expr
    null_safe: bool = False


@dataclass(frozen=True, eq=False)
class Join(Node):
    """A join; `equal` are its keys, `residual` is what is left of the condition."""

    left: Node = field(kw_only=True)
    right: Node = field(kw_only=True)
    how: str = field(kw_only=True)
    kind: JoinKind = field(kw_only=True)
    condition: exp.Expr | None = field(kw_only=True)
    key_pairs: tuple[KeyPair, ...] = field(default=(), kw_only=True)
    bounds: TimeBounds | None = field(default=None, kw_only=True)
    residual: exp.Expr | None = field(default=None, kw_only=True)
    as_of: exp.Expr | None = field(default=None, kw_only=True)
    as_of_id: str | None = field(default=None, kw_only=True)
    match: exp.Expr | None = field(default=None, kw_only=True)
    # Which row of the right counts in a temporal or ASOF join.
    asof_condition: AsofCondition | None = field(default=None, kw_only=True)
    # Whether the rows of the right are known to be versions of the keys.
    versioned: bool = field(default=False, kw_only=True)
    # The column of the right that says whether a version is one, or that there is none.
    validity_id: str | None = field(default=None, kw_only=True)
    ttl_us: int | None = field(default=None, kw_only=True)
    # Whether pairs wait until the watermark says that the row they belong to gets no more.
    at_close: bool = field(default=False, kw_only=True)
    # The event times of both sides as the query would write them, for hints.
    times: tuple[str | None, str | None] = field(default=(None, None), kw_only=True)
    # The words of the query that ask for it, if it is not written as a join: IN, NOT EXISTS.
    predicate: str | None = field(default=None, kw_only=True)

    @property
    def inputs(self) -> tuple[Node, ...]:
        return (self.left, self.right)

    def with_inputs(self, *inputs: Node) -> Node:
        left, right = inputs
        return replace(self, left=left, right=right)

    @property
    def timed(self) -> bool:
        """Whether a temporal or ASOF join compares event times."""
        near = self.asof_condition
        return near is not None and all(
            isinstance(tree, exp.Column)
            and any(item.id == tree.name and item.is_event_time for item in side.fields)
            for tree, side in zip((near.left, near.right), self.inputs, strict=True)
        )

    @property
    def by_watermark(self) -> bool:
        """Whether the watermark makes the rows of a temporal or ASOF join final."""
        if self.kind is JoinKind.ASOF:
            return self.timed and self.right.changelog is APPEND
        return self.kind is JoinKind.TEMPORAL

    def label(self) -> str:
        return f"Join({self.kind.value})"

    @property
    def _by_time(self) -> bool:
        """Whether bounds of time say when its rows are forgotten."""
        return self.by_watermark or self.kind in (JoinKind.INTERVAL, JoinKind.WINDOW)

    @property
    def _keeps_rows_of_left(self) -> bool:
        """Whether each row of the left comes out with what it finds on the right."""
        return self.kind in (JoinKind.LOOKUP, JoinKind.TEMPORAL, JoinKind.ASOF)

    @once
    def bounded(self) -> bool:
        return self.left.bounded and (self.kind is JoinKind.LOOKUP or self.right.bounded)

    @once
    def has_watermark(self) -> bool:
        return self.left.has_watermark if self.kind is JoinKind.LOOKUP else super().has_watermark

    @once
    def changelog(self) -> ChangelogKind:
        ends = all(side.bounded for side in self.inputs)
        if self.kind is JoinKind.ASOF and not self.by_watermark and not ends:
            # A nearer row may come later: the answer is then retracted.
            return CHANGELOG
        if self._keeps_rows_of_left:
            return self.left.changelog
        if any(side.changelog is not APPEND for side in self.inputs):
            return CHANGELOG
        # An outer row may get its match later: it is then retracted.
        outer = self.how not in ("INNER", "SEMI")
        return CHANGELOG if self.kind is JoinKind.REGULAR and outer and not ends else APPEND

    @once
    def key(self) -> Key | None:
        if self.kind is JoinKind.LOOKUP and not self._finds_one:
            return None
        return self.left.key if self._keeps_rows_of_left else None

    @property
    def lookup_keys(self) -> tuple[KeyPair, ...]:
        """The keys that a lookup table is asked by: one for each of its columns that has one."""
        found: dict[str, KeyPair] = {}
        columns = {item.id for item in self.right.fields}
        for pair in self.key_pairs:
            plain = isinstance(pair.right, exp.Column) and pair.right.name in columns
            if plain and not pair.null_safe:
                found.setdefault(pair.right.name, pair)
        return tuple(found.values())

    @property
    def _finds_one(self) -> bool:
        """Whether a lookup by these columns finds at most one row: they hold the primary key."""
        if not isinstance(self.right, LookupScan):
            return False
        names = {item.id: item.name.lower() for item in self.right.fields}
        asked = {names[pair.right.name] for pair in self.lookup_keys}
        key = {name.lower() for name in self.right.table.primary_key}
        return bool(key) and key <= asked

    @once
    def state_bound(self) -> str | None:
        if self.kind is JoinKind.INTERVAL and self.bounds is not None:
            left_us, right_us = self._kept_us(self.bounds)
            return (
                f"left rows for {format_duration(left_us)}, right rows for "
                f"{format_duration(right_us)} of event time"
            )
        if self.kind is JoinKind.LOOKUP:
            return None
        words = {
            JoinKind.WINDOW: "rows of both sides until their window closes",
            JoinKind.TEMPORAL: "rows until the watermark passes them, and versions a later row can "
            "still see",
        }
        if self.kind in words:
            return words[self.kind]
        if self.kind is JoinKind.ASOF and self.by_watermark:
            if self.asof_condition is not None and not self.asof_condition.ends:
                return "rows until the one that matches them is certain, which may be never"
            return "rows until the watermark passes them, and the candidates they can still match"
        if self.ttl_us is not None:
            return "rows of both sides" + expiry(self.ttl_us)
        return "all input, which is bounded" if self.bounded else "without bound"

    def _kept_us(self, bounds: TimeBounds) -> tuple[int, int]:
        """For how long rows of each side are kept: while they can match, and, where rows may be
        retracted, while one that is there by its matches may ask for them."""
        assert bounds.lower_us is not None and bounds.upper_us is not None, "it has both bounds"
        left_us, right_us = max(0, -bounds.lower_us), max(0, bounds.upper_us)
        if all(side.changelog is APPEND for side in self.inputs):
            return left_us, right_us
        asks_right = self.how in ("LEFT", "FULL", "SEMI", "ANTI")
        asks_left = self.how in ("RIGHT", "FULL")
        both = left_us + right_us
        return both if asks_left else left_us, both if asks_right else right_us

    @property
    def drops_late_rows(self) -> bool:
        return self._by_time

    def late_rows(self, port: int) -> Node:
        """Whether a version is one is no column of the user's."""
        rows = self.inputs[port]
        kept = tuple(item for item in rows.fields if item.id != self.validity_id)
        if len(kept) == len(rows.fields):
            return rows
        names = (exp.to_identifier(item.id, quoted=True) for item in kept)
        return Project(kept, input=rows, expressions=tuple(exp.Column(this=name) for name in names))

    @once
    def is_final(self) -> bool:
        if self.kind is JoinKind.LOOKUP:
            return self.left.is_final
        return self._by_time or super().is_final

    @property
    def needs_watermark(self) -> bool:
        timed = self.kind is JoinKind.ASOF and self.by_watermark
        return timed or self.kind in (JoinKind.WINDOW, JoinKind.INTERVAL)

    @property
    def needs_processing_time(self) -> bool:
        return self.ttl_us is not None and self.kind is not JoinKind.LOOKUP

    def with_emit_on_close(self, by_time: bool) -> Node:
        if self.kind is JoinKind.LOOKUP:
            return replace(self, left=self.left.with_emit_on_close(by_time))
        waits = self.kind in (JoinKind.INTERVAL, JoinKind.WINDOW)
        return replace(self, at_close=True) if waits else self

    @property
    def stateless(self) -> bool:
        return self.kind is JoinKind.LOOKUP

    @property
    def state_expressions(self) -> tuple[exp.Expr, ...] | None:
        if self.kind is JoinKind.LOOKUP:
            return None
        trees = (self.condition, self.match)
        return tuple(tree for tree in trees if tree is not None)
