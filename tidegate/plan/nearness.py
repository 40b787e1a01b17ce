"""What an ASOF join means by near: its MATCH_CONDITION, and how far apart two rows may be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from tidegate.plan.nodes import BACKWARD, FORWARD, NEAREST, Field, Nearness
from tidegate.plan.scope import Context, referenced
from tidegate.sql import expressions as ex

Number = int | float
_FLIPPED: dict[type[exp.Expr], type[exp.Expr]] = {
    exp.LT: exp.GT,
    exp.LTE: exp.GTE,
    exp.GT: exp.LT,
    exp.GTE: exp.LTE,
    exp.EQ: exp.EQ,
}


@dataclass(frozen=True)
class Comparison:
    """left − right compared with a number; `plain`: the sides stand on both sides of the sign."""

    left: exp.Expr
    right: exp.Expr
    sign: type[exp.Expr]
    apart: Number
    plain: bool = True

    def same_sides(self, other: Comparison) -> bool:
        return self.left == other.left and self.right == other.right


@dataclass(frozen=True)
class Match:
    """What is near, the condition that says so, and the parts of ON that say something else.

    `asked` is everything that is asked beside that condition, for Spark to find fault with.
    """

    nearness: Nearness | None
    condition: exp.Expr | None
    rest: tuple[exp.Expr, ...]
    asked: tuple[exp.Expr, ...]


@dataclass(frozen=True)
class Sides:
    """The columns of both sides of a join."""

    left: frozenset[str]
    right: frozenset[str]

    @classmethod
    def of(cls, left: Sequence[Field], right: Sequence[Field]) -> Sides:
        return cls(frozenset(i.id for i in left), frozenset(i.id for i in right))

    def is_left(self, tree: exp.Expr) -> bool:
        ids = referenced(tree)
        return bool(ids) and ids <= self.left

    def is_right(self, tree: exp.Expr) -> bool:
        ids = referenced(tree)
        return bool(ids) and ids <= self.right

    def comparisons(self, piece: exp.Expr) -> list[Comparison]:
        """What a part of a condition says about how far apart both sides are."""
        if type(piece) not in _FLIPPED:
            return []
        one, other, sign = piece.args["this"], piece.args["expression"], type(piece)
        for a, b, way in ((one, other, sign), (other, one, _FLIPPED[sign])):
            if self.is_left(a) and self.is_right(b):
                (left, plus), (right, minus) = _shifted(a), _shifted(b)
                return [Comparison(left, right, way, minus - plus)]
            limit = _constant(b)
            if limit is not None:
                return self._from_difference(a, way, limit)
        return []

    def _from_difference(
        self, tree: exp.Expr, sign: type[exp.Expr], limit: Number
    ) -> list[Comparison]:
        """`l - r <= c`, `r - l <= c` and `abs(l - r) <= c`."""
        tree = tree.unnest()
        if ex.call_name(tree) == "ABS" and len(tree.expressions) == 1:
            if sign not in (exp.LT, exp.LTE):
                return []
            inner = tree.expressions[0]
            below = self._from_difference(inner, sign, limit)
            return below + self._from_difference(inner, _FLIPPED[sign], -limit)
        if not isinstance(tree, exp.Sub):
            return []
        if self.is_left(tree.left) and self.is_right(tree.right):
            return [Comparison(tree.left.unnest(), tree.right.unnest(), sign, limit, False)]
        if self.is_right(tree.left) and self.is_left(tree.right):
            way = _FLIPPED[sign]
            return [Comparison(tree.right.unnest(), tree.left.unnest(), way, -limit, False)]
        return []


def match_of(
    sides: Sides,
    match: exp.Expr | None,
    on: list[exp.Expr],
    nearest: bool,
    tolerance: exp.Expr | None,
) -> Match:
    """Find the comparison that picks the nearest row, and all that bounds the distance."""
    own = ex.conjuncts(match)
    chosen = _chosen(sides, own if match is not None else on, nearest)
    if chosen is None:
        return Match(None, match, (*on,), (*on,))
    piece, comparison = chosen
    nearness = _begun(comparison)
    asked = [other for other in (*own, *on) if other is not piece]
    rest = []
    for other in asked:
        found = sides.comparisons(other)
        fits = [c.same_sides(comparison) and c.sign is not exp.EQ for c in found]
        if found and all(fits):
            for bound in found:
                nearness = _bounded(nearness, bound)
        else:
            rest.append(other)
    if tolerance is not None:
        nearness = _within(nearness, tolerance)
        apart = exp.Sub(this=comparison.left.copy(), expression=comparison.right.copy())
        asked.append(exp.LTE(this=apart, expression=tolerance.copy()))
    return Match(nearness, piece, tuple(rest), tuple(asked))


def _chosen(
    sides: Sides, pieces: list[exp.Expr], nearest: bool
) -> tuple[exp.Expr, Comparison] | None:
    """The comparison of both sides; one with a distance in it rather bounds another."""
    wanted = (exp.EQ,) if nearest else (exp.GT, exp.GTE, exp.LT, exp.LTE)
    found = [
        (piece, comparison)
        for piece in pieces
        for comparison in sides.comparisons(piece)
        if comparison.sign in wanted and comparison.plain
    ]
    return min(found, key=lambda pair: pair[1].apart != 0) if found else None


def _begun(found: Comparison) -> Nearness:
    if found.sign is exp.EQ:
        return Nearness(found.left, found.right, NEAREST)
    backward = found.sign in (exp.GT, exp.GTE)
    direction = BACKWARD if backward else FORWARD
    return _bounded(Nearness(found.left, found.right, direction), found)


def _bounded(near: Nearness, found: Comparison) -> Nearness:
    """Two rows are no further apart than both say."""
    limit, is_open = found.apart, found.sign in (exp.GT, exp.LT)
    if found.sign in (exp.GT, exp.GTE):
        if near.lower is None or (limit, is_open) > (near.lower, near.lower_open):
            return replace(near, lower=limit, lower_open=is_open)
        return near
    if near.upper is None or (limit, not is_open) < (near.upper, not near.upper_open):
        return replace(near, upper=limit, upper_open=is_open)
    return near


def _within(near: Nearness, tolerance: exp.Expr) -> Nearness:
    limit = _constant(tolerance)
    if limit is None:
        return near
    if near.direction != FORWARD:
        near = _bounded(near, Comparison(near.left, near.right, exp.LTE, limit))
    if near.direction != BACKWARD:
        near = _bounded(near, Comparison(near.left, near.right, exp.GTE, -limit))
    return near


def _shifted(tree: exp.Expr) -> tuple[exp.Expr, Number]:
    """An expression as another one plus a constant."""
    tree = tree.unnest()
    if isinstance(tree, exp.Add | exp.Sub):
        shift, inner = _constant(tree.right), tree.left
        if shift is None and isinstance(tree, exp.Add):
            shift, inner = _constant(tree.left), tree.right
        if shift is not None:
            base, more = _shifted(inner)
            return base, more + (shift if isinstance(tree, exp.Add) else -shift)
    return tree, 0


def _constant(tree: exp.Expr) -> Number | None:
    """An interval in microseconds, or a number."""
    micros = ex.interval_micros(tree)
    if micros is not None:
        return micros
    tree = tree.unnest()
    if isinstance(tree, exp.Neg):
        inner = _constant(tree.this)
        return None if inner is None else -inner
    if not isinstance(tree, exp.Literal) or tree.is_string:
        return None
    try:
        return int(tree.name) if tree.is_int else float(tree.name)
    except ValueError:
        return None


def written_nearness(context: Context, join: exp.Join) -> tuple[bool, exp.Expr | None]:
    """NEAREST and TOLERANCE as a join has them; what no join can have is refused."""
    asof = (join.args.get("method") or "").upper() == "ASOF"
    match, tolerance = join.args.get("match_condition"), join.meta.get("tolerance")
    if not asof and match is not None:
        message = "MATCH_CONDITION belongs to an ASOF join"
        context.report("TG-103", message, match, "write ASOF JOIN, or use ON.")
    if asof and (join.args.get("kind") or "").upper() == "CROSS":
        hint = "use ASOF JOIN or ASOF LEFT JOIN."
        context.report("TG-103", "an ASOF CROSS join is not defined", join, hint)
    if tolerance is not None and _constant(tolerance) is None:
        context.report(
            "TG-105",
            "TOLERANCE must be a constant interval of fixed length, or a number",
            tolerance,
            "TOLERANCE INTERVAL '5' SECOND",
        )
    return bool(join.args.get("hint")), tolerance
