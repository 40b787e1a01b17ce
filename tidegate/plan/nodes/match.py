"""MATCH_RECOGNIZE: matches of a pattern in the rows of each partition, in the order of time."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from sqlglot import exp

from tidegate.plan.nodes.base import APPEND, Field, Key, Node, Unary, expiry, once
from tidegate.sql import match_recognize as pt
from tidegate.types import ChangelogKind, format_duration


@dataclass(frozen=True)
class Navigation:
    """The value that an expression has on one row of a match.

    Of the rows of some variables (None: all) the one `offset` away from the last or the first, and
    from there `back` rows back in the partition. Where there is no such row it is NULL, or what
    `missing` gives on any row.
    """

    value: exp.Expr
    variables: frozenset[str] | None = None
    last: bool = True
    offset: int = 0
    back: int = 0
    missing: exp.Expr | None = None

    @property
    def is_current(self) -> bool:
        """In a condition: whether it is about the row that is looked at, or one before it."""
        return self.variables is None and self.last and self.offset == 0

    @property
    def trees(self) -> tuple[exp.Expr, ...]:
        return (self.value,) if self.missing is None else (self.value, self.missing)


@dataclass(frozen=True)
class MatchAggregate:
    """An aggregate over the rows of some variables (None: all)."""

    call: exp.Expr
    variables: frozenset[str] | None = None

    @property
    def trees(self) -> tuple[exp.Expr, ...]:
        return (self.call,)


@dataclass(frozen=True)
class DefineCondition:
    """What DEFINE says of a variable: an expression over `?0`, `?1`, …, which are `parts`."""

    variable: str
    tree: exp.Expr
    parts: tuple[Navigation | MatchAggregate, ...]

    @property
    def trees(self) -> tuple[exp.Expr, ...]:
        return tuple(tree for part in self.parts for tree in part.trees)


class SkipTo(Enum):
    """Where the next match may begin."""

    PAST_LAST_ROW = "past last row"
    NEXT_ROW = "to next row"
    FIRST = "to first"
    LAST = "to last"


@dataclass(frozen=True)
class Skip:
    """`variables` are those of TO FIRST and TO LAST."""

    to: SkipTo = SkipTo.PAST_LAST_ROW
    variables: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return " ".join([self.to.value, *sorted(self.variables)])


@dataclass(frozen=True, eq=False)
class Match(Unary):
    """A row a match: first the fields of the partition, then one a measure."""

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

    @once
    def max_rows(self) -> int | None:
        """The most rows of a match, if the pattern says so."""
        return pt.longest(self.pattern)

    @once
    def rows_back(self) -> int:
        """How many rows before the first of a match its conditions and measures can see."""
        found = [0]
        for condition in self.conditions:
            places = pt.first_place(self.pattern, frozenset([condition.variable]))
            for part in condition.parts:
                if isinstance(part, Navigation):
                    before = (places or 0) if part.is_current else 0
                    found.append(part.back - before)
        found += [part.back for part in self.measures if isinstance(part, Navigation)]
        return max(found)

    @once
    def changelog(self) -> ChangelogKind:
        return APPEND

    @once
    def key(self) -> Key | None:
        return None

    @once
    def state_bound(self) -> str | None:
        kept = []
        if self.within_us is not None:
            kept.append(f"rows of open matches for {format_duration(self.within_us)} (WITHIN)")
        elif self.max_rows is not None:
            kept.append(f"the last {_rows(self.max_rows)} per partition" + expiry(self.ttl_us))
        elif self.ttl_us is not None:
            kept.append("rows of open matches" + expiry(self.ttl_us))
        else:
            bound = "until the end" if self.input.bounded else "without bound"
            kept.append(f"rows of open matches {bound}")
        if self.rows_back:
            kept.append(f"the {_rows(self.rows_back)} before them" + expiry(self.ttl_us))
        return f"rows until the watermark passes them; {', '.join(kept)}"

    @property
    def drops_late_rows(self) -> bool:
        return True

    @once
    def is_final(self) -> bool:
        return True

    @property
    def needs_watermark(self) -> bool:
        return True

    @property
    def needs_processing_time(self) -> bool:
        return self.ttl_us is not None

    def with_emit_on_close(self, by_time: bool) -> Node:
        """Rows wait here anyway; what changes below may become final there."""
        if self.input.changelog is APPEND:
            return self
        return self.with_inputs(self.input.with_emit_on_close(by_time))

    @property
    def state_expressions(self) -> tuple[exp.Expr, ...] | None:
        parts = [tree for condition in self.conditions for tree in condition.trees]
        parts += [tree for part in self.measures for tree in part.trees]
        return (*self.partition, *self.order, *parts)


def comes_on_time(pattern: pt.Pattern, within_us: int | None) -> bool:
    """Whether it is known how long after its last row a match can come out.

    Within a time that is so; without one, where every match has the same number of rows, it comes
    with the last of them.
    """
    return within_us is not None or pt.longest(pattern) == pt.shortest(pattern)


def _rows(count: int) -> str:
    return "row" if count == 1 else f"{count} rows"
