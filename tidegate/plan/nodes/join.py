"""Join nodes. The kind of a join follows from how its condition bounds it in time."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum

from sqlglot import exp

from tidegate.plan.nodes.base import APPEND, CHANGELOG, Key, Node, cached_property, ttl_suffix
from tidegate.plan.nodes.relational import LookupScan, Project
from tidegate.types import ChangelogKind, format_duration_us

BACKWARD, FORWARD, NEAREST = "backward", "forward", "nearest"


class JoinKind(Enum):
    """How a join is bounded. The kind determines the operator that runs it."""

    INTERVAL = "interval"
    WINDOW = "window"
    TEMPORAL = "temporal"
    ASOF = "asof"
    LOOKUP = "lookup"
    REGULAR = "regular"


@dataclass(frozen=True)
class TimeBounds:
    """left time − right time lies in [lower, upper]; None is unbounded."""

    left_id: str
    right_id: str
    lower_us: int | None
    upper_us: int | None


@dataclass(frozen=True, eq=False)
class AsofCondition:
    """Which right row matches: left − right lies in [lower, upper]; an open end is exclusive.

    Of the right rows in these bounds, BACKWARD takes the largest, FORWARD the smallest, and NEAREST
    the closest. With `only_first_version` only the first right row of a key can match. Times
    are in microseconds.
    """

    left: exp.Expr
    right: exp.Expr
    direction: str
    lower: int | float | None = None
    upper: int | float | None = None
    lower_open: bool = False
    upper_open: bool = False
    only_first_version: bool = False

    @property
    def is_bounded(self) -> bool:
        """Whether the watermark determines when no closer right row can arrive."""
        return self.lower is not None


@dataclass(frozen=True, eq=False)
class KeyPair:
    """left = right in a join condition; `null_safe` if NULLs are equal to each other."""

    left: exp.Expr
    right: exp.Expr
    null_safe: bool = False


@dataclass(frozen=True, eq=False)
class Join(Node):
    """A join; `key_pairs` are its keys, `residual` is what remains of the condition."""

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
    # Which right row matches in a temporal or ASOF join.
    asof_condition: AsofCondition | None = field(default=None, kw_only=True)
    # Whether the right rows are versions of keys (`semantics.versions_of`).
    versioned: bool = field(default=False, kw_only=True)
    # The right column that is false for a tombstone: from then on the key has no version.
    validity_id: str | None = field(default=None, kw_only=True)
    ttl_us: int | None = field(default=None, kw_only=True)
    # EMIT ON WINDOW CLOSE: pairs wait until the watermark passes them.
    at_close: bool = field(default=False, kw_only=True)
    # The event times of both sides as written in SQL, for hints.
    times: tuple[str | None, str | None] = field(default=(None, None), kw_only=True)
    # The SQL predicate that became this join, such as IN or NOT EXISTS; None for a JOIN clause.
    predicate: str | None = field(default=None, kw_only=True)
    # The names of both sides in the query, for hints.
    aliases: tuple[str, str] | None = field(default=None, kw_only=True)

    @property
    def inputs(self) -> tuple[Node, ...]:
        return (self.left, self.right)

    def with_inputs(self, *inputs: Node) -> Node:
        left, right = inputs
        return replace(self, left=left, right=right)

    @property
    def timed(self) -> bool:
        """Whether a temporal or ASOF join compares event times."""
        condition = self.asof_condition
        return condition is not None and all(
            isinstance(tree, exp.Column)
            and any(item.id == tree.name and item.is_event_time for item in side.fields)
            for tree, side in zip((condition.left, condition.right), self.inputs, strict=True)
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
    def _is_bounded_by_time(self) -> bool:
        """Whether time bounds determine when its rows are dropped from the state."""
        return self.by_watermark or self.kind in (JoinKind.INTERVAL, JoinKind.WINDOW)

    @property
    def _keeps_left_rows(self) -> bool:
        """Whether a left row is emitted with the right row that matches it, and no other."""
        return self.kind in (JoinKind.LOOKUP, JoinKind.TEMPORAL, JoinKind.ASOF)

    @cached_property
    def bounded(self) -> bool:
        return self.left.bounded and (self.kind is JoinKind.LOOKUP or self.right.bounded)

    @cached_property
    def has_watermark(self) -> bool:
        return self.left.has_watermark if self.kind is JoinKind.LOOKUP else super().has_watermark

    @cached_property
    def changelog(self) -> ChangelogKind:
        bounded = all(side.bounded for side in self.inputs)
        if self.kind is JoinKind.ASOF and not self.by_watermark and not bounded:
            # A nearer row may arrive later; the previous match is then retracted.
            return CHANGELOG
        if self._keeps_left_rows:
            return self.left.changelog
        if any(side.changelog is not APPEND for side in self.inputs):
            return CHANGELOG
        # An unmatched row may get a match later; it is then retracted.
        outer = self.how not in ("INNER", "SEMI")
        return CHANGELOG if self.kind is JoinKind.REGULAR and outer and not bounded else APPEND

    @cached_property
    def key(self) -> Key | None:
        if self.kind is JoinKind.LOOKUP and not self._is_unique_lookup:
            return None
        return self.left.key if self._keeps_left_rows else None

    @property
    def lookup_keys(self) -> tuple[KeyPair, ...]:
        """The keys by which a lookup table is read: the first for each of its columns."""
        keys: dict[str, KeyPair] = {}
        columns = {item.id for item in self.right.fields}
        for pair in self.key_pairs:
            is_column = isinstance(pair.right, exp.Column) and pair.right.name in columns
            if is_column and not pair.null_safe:
                keys.setdefault(pair.right.name, pair)
        return tuple(keys.values())

    @property
    def _is_unique_lookup(self) -> bool:
        """Whether a lookup returns at most one row, because it uses the primary key."""
        if not isinstance(self.right, LookupScan):
            return False
        names = {item.id: item.name.lower() for item in self.right.fields}
        looked_up = {names[pair.right.name] for pair in self.lookup_keys}
        primary_key = {name.lower() for name in self.right.table.primary_key}
        return bool(primary_key) and primary_key <= looked_up

    @cached_property
    def state_bound(self) -> str | None:
        if self.kind is JoinKind.INTERVAL and self.bounds is not None:
            left_us, right_us = self._retention_us(self.bounds)
            return (
                f"left rows for {format_duration_us(left_us)}, right rows for "
                f"{format_duration_us(right_us)} of event time"
            )
        if self.kind is JoinKind.LOOKUP:
            return None
        texts = {
            JoinKind.WINDOW: "rows of both sides until their window closes",
            JoinKind.TEMPORAL: "rows until the watermark passes them, and versions a later row can "
            "still see",
        }
        if self.kind in texts:
            return texts[self.kind]
        if self.kind is JoinKind.ASOF and self.by_watermark:
            if self.asof_condition is not None and not self.asof_condition.is_bounded:
                return "rows until their match is final, which may be never"
            return "rows until the watermark passes them, and the candidates they can still match"
        if self.ttl_us is not None:
            return "rows of both sides" + ttl_suffix(self.ttl_us)
        return "all input, which is bounded" if self.bounded else "without bound"

    def _retention_us(self, bounds: TimeBounds) -> tuple[int, int]:
        """Return how long the rows of each side are kept.

        They are kept while they can match. If rows may be retracted, they are also kept while a
        retraction can change whether a row of the other side has matches.
        """
        assert bounds.lower_us is not None and bounds.upper_us is not None, (
            "an interval join has both bounds"
        )
        left_us, right_us = max(0, -bounds.lower_us), max(0, bounds.upper_us)
        if all(side.changelog is APPEND for side in self.inputs):
            return left_us, right_us
        needs_right = self.how in ("LEFT", "FULL", "SEMI", "ANTI")
        needs_left = self.how in ("RIGHT", "FULL")
        both = left_us + right_us
        return both if needs_left else left_us, both if needs_right else right_us

    @property
    def drops_late_rows(self) -> bool:
        return self._is_bounded_by_time

    def late_rows(self, port: int) -> Node:
        """Return the rows of an input without the tombstone column, which is not the user's."""
        rows = self.inputs[port]
        fields = tuple(item for item in rows.fields if item.id != self.validity_id)
        if len(fields) == len(rows.fields):
            return rows
        names = (exp.to_identifier(item.id, quoted=True) for item in fields)
        return Project(
            fields, input=rows, expressions=tuple(exp.Column(this=name) for name in names)
        )

    @cached_property
    def is_final(self) -> bool:
        if self.kind is JoinKind.LOOKUP:
            return self.left.is_final
        return self._is_bounded_by_time or super().is_final

    @property
    def needs_watermark(self) -> bool:
        is_final_asof = self.kind is JoinKind.ASOF and self.by_watermark
        return is_final_asof or self.kind in (JoinKind.WINDOW, JoinKind.INTERVAL)

    def with_emit_on_close(self, by_event_time: bool) -> Node:
        if self.kind is JoinKind.LOOKUP:
            return replace(self, left=self.left.with_emit_on_close(by_event_time))
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
