"""MATCH_RECOGNIZE: matches of a row pattern per partition, in the order of event time."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from sqlglot import exp

from tidegate.plan.nodes.base import APPEND, Field, Key, Node, Unary, cached_property, ttl_suffix
from tidegate.sql import match_recognize as pt
from tidegate.types import ChangelogKind, format_duration_us


@dataclass(frozen=True)
class Navigation:
    """The value of an expression on one row of a match.

    The row is `offset` rows away from the last (or first) row that is mapped to one of the
    variables (None: all variables), and from there `back` rows back in the partition. If there is
    no such row, the value is NULL, or the value of `missing` on any row.
    """

    value: exp.Expr
    variables: frozenset[str] | None = None
    last: bool = True
    offset: int = 0
    back: int = 0
    missing: exp.Expr | None = None

    @property
    def is_current(self) -> bool:
        """Whether a condition reads the current row, or one before it."""
        return self.variables is None and self.last and self.offset == 0

    @property
    def trees(self) -> tuple[exp.Expr, ...]:
        return (self.value,) if self.missing is None else (self.value, self.missing)


@dataclass(frozen=True)
class MatchAggregate:
    """An aggregate over the rows of some variables (None: all variables)."""

    call: exp.Expr
    variables: frozenset[str] | None = None

    @property
    def trees(self) -> tuple[exp.Expr, ...]:
        return (self.call,)


@dataclass(frozen=True)
class DefineCondition:
    """A DEFINE condition: an expression over `?0`, `?1`, …, which stand for its `parts`."""

    variable: str
    tree: exp.Expr
    parts: tuple[Navigation | MatchAggregate, ...]

    @property
    def trees(self) -> tuple[exp.Expr, ...]:
        return tuple(tree for part in self.parts for tree in part.trees)


class SkipTo(Enum):
    """Where the next match may start."""

    PAST_LAST_ROW = "past last row"
    NEXT_ROW = "to next row"
    FIRST = "to first"
    LAST = "to last"


@dataclass(frozen=True)
class Skip:
    """AFTER MATCH SKIP; `variables` are those of TO FIRST and TO LAST."""

    to: SkipTo = SkipTo.PAST_LAST_ROW
    variables: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return " ".join([self.to.value, *sorted(self.variables)])


@dataclass(frozen=True, eq=False)
class Match(Unary):
    """One row per match: the fields of the partition, then one field per measure."""

    partition: tuple[exp.Expr, ...] = field(kw_only=True)
    order: tuple[exp.Expr, ...] = field(kw_only=True)
    time_id: str = field(kw_only=True)
    pattern: pt.Pattern = field(kw_only=True)
    conditions: tuple[DefineCondition, ...] = field(kw_only=True)
    measures: tuple[Navigation | MatchAggregate, ...] = field(kw_only=True)
    skip: Skip = field(default=Skip(), kw_only=True)
    within_us: int | None = field(default=None, kw_only=True)
    ttl_us: int | None = field(default=None, kw_only=True)

    @property
    def key_fields(self) -> tuple[Field, ...]:
        return self.fields[: len(self.partition)]

    @property
    def time_field(self) -> Field:
        return self.input.field(self.time_id)

    @cached_property
    def max_rows(self) -> int | None:
        """The maximum number of rows of a match; None if the pattern has no maximum."""
        return pt.max_length(self.pattern)

    @cached_property
    def rows_back(self) -> int:
        """The number of rows before its first row that a match can read."""
        depths = [0]
        for condition in self.conditions:
            first_index = pt.first_position(self.pattern, frozenset([condition.variable]))
            for part in condition.parts:
                if isinstance(part, Navigation):
                    rows_before = (first_index or 0) if part.is_current else 0
                    depths.append(part.back - rows_before)
        depths += [part.back for part in self.measures if isinstance(part, Navigation)]
        return max(depths)

    @cached_property
    def changelog(self) -> ChangelogKind:
        return APPEND

    @cached_property
    def key(self) -> Key | None:
        return None

    @cached_property
    def state_bound(self) -> str | None:
        parts = []
        if self.within_us is not None:
            parts.append(f"rows of open matches for {format_duration_us(self.within_us)} (WITHIN)")
        elif self.max_rows is not None:
            parts.append(f"the last {_rows(self.max_rows)} per partition" + ttl_suffix(self.ttl_us))
        elif self.ttl_us is not None:
            parts.append("rows of open matches" + ttl_suffix(self.ttl_us))
        else:
            bound = "until the end" if self.input.bounded else "without bound"
            parts.append(f"rows of open matches {bound}")
        if self.rows_back:
            parts.append(f"the {_rows(self.rows_back)} before them" + ttl_suffix(self.ttl_us))
        return f"rows until the watermark passes them; {', '.join(parts)}"

    @property
    def drops_late_rows(self) -> bool:
        return True

    @cached_property
    def is_final(self) -> bool:
        return True

    @property
    def needs_watermark(self) -> bool:
        return True

    def with_emit_on_close(self, by_event_time: bool) -> Node:
        """Return this node. It emits final rows if its input does, so only the input changes."""
        if self.input.changelog is APPEND:
            return self
        return self.with_inputs(self.input.with_emit_on_close(by_event_time))

    @property
    def state_expressions(self) -> tuple[exp.Expr, ...] | None:
        trees = [tree for condition in self.conditions for tree in condition.trees]
        trees += [tree for part in self.measures for tree in part.trees]
        return (*self.partition, *self.order, *trees)


def has_bounded_delay(pattern: pt.Pattern, within_us: int | None) -> bool:
    """Return whether the delay between the last row of a match and its output is bounded.

    WITHIN bounds it. Without WITHIN it is bounded if all matches have the same number of rows,
    because a match is then complete with its last row.
    """
    return within_us is not None or pt.max_length(pattern) == pt.min_length(pattern)


def _rows(count: int) -> str:
    return "row" if count == 1 else f"{count} rows"
