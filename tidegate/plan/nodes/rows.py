"""Steps that look at one row at a time and keep nothing."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from sqlglot import exp

from tidegate.plan.nodes.base import CHANGELOG, UPSERT, Key, Node, Unary
from tidegate.plan.nodes.fields import Field, Role
from tidegate.plan.nodes.once import once
from tidegate.plan.nodes.window import Hold
from tidegate.sql.statements import Emit as EmitClause
from tidegate.sql.statements import EmitMode
from tidegate.types import ChangelogKind


@dataclass(frozen=True, eq=False)
class Step(Unary):
    """A node that hands rows on as they come."""

    @once
    def state_bound(self) -> str | None:
        return None

    @property
    def stateless(self) -> bool:
        return True

    @property
    def kept_expressions(self) -> tuple[exp.Expr, ...] | None:
        return None


@dataclass(frozen=True, eq=False)
class Inlined(Step):
    """Another stream, put in place of its name."""

    name: str = field(kw_only=True)

    def label(self) -> str:
        return f"Stream({self.name})"


@dataclass(frozen=True, eq=False)
class Filter(Step):
    condition: exp.Expr = field(kw_only=True)
    subqueries: tuple[Node, ...] = field(default=(), kw_only=True)

    @property
    def stateless(self) -> bool:
        return not self.subqueries

    @property
    def only_drops_rows(self) -> bool:
        return True

    def until_close(self, by_time: bool) -> Node:
        """A row that is dropped does not wait, and is not late."""
        below = self.input.until_close(by_time)
        if isinstance(below, Hold):
            return replace(below, input=self.with_inputs(below.input))
        return self.with_inputs(below)


@dataclass(frozen=True, eq=False)
class Project(Step):
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

    def until_close(self, by_time: bool) -> Node:
        return self.with_inputs(self.input.until_close(by_time))


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
    return item.fixed_length or (item.role in ends and any(other.role in ends for other in same))


@dataclass(frozen=True, eq=False)
class Explode(Step):
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

    def until_close(self, by_time: bool) -> Node:
        return self.with_inputs(self.input.until_close(by_time))


@dataclass(frozen=True, eq=False)
class Emit(Step):
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
