"""Joins: what kind a join is follows from its sides and its condition."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sqlglot import exp

from tidegate.plan.nearness import Match, Sides, match_of
from tidegate.plan.nodes import (
    BACKWARD,
    Field,
    Join,
    JoinKind,
    KeyPair,
    LookupScan,
    Nearness,
    Node,
    Project,
    Role,
    TimeBounds,
    WindowKind,
)
from tidegate.plan.outer_joins import Matched
from tidegate.plan.scope import Context, by_id, column, referenced
from tidegate.plan.windows import is_processing_time
from tidegate.sql import expressions as ex
from tidegate.types import Span

_FLIPPED: dict[type[exp.Expr], type[exp.Expr]] = {
    exp.LT: exp.GT,
    exp.LTE: exp.GTE,
    exp.GT: exp.LT,
    exp.GTE: exp.LTE,
    exp.EQ: exp.EQ,
}


@dataclass(frozen=True)
class JoinInput:
    """The parts of a join before its kind is known."""

    left: Node
    right: Node
    how: str
    asof: bool
    condition: exp.Expr | None
    match: exp.Expr | None
    as_of: exp.Expr | None
    span: Span | None
    times: tuple[str | None, str | None] = (None, None)
    # ASOF NEAREST, and the TOLERANCE of an ASOF join.
    nearest: bool = False
    tolerance: exp.Expr | None = None
    predicate: str | None = None
    # Columns that the query names nowhere.
    unused: frozenset[str] = frozenset()


def build_join(context: Context, parts: JoinInput) -> Node:
    """Classify a join by its sides and condition; what no operator can match is rewritten."""
    join, residual = _classified(context, parts)
    both = [piece for piece in residual if _of_both(piece, join)]
    if not both or join.how == "INNER" or not _bounded(join):
        return join
    parts = replace(parts, left=_lean(parts.left, parts), right=_lean(parts.right, parts))
    join, _ = _classified(context, parts)
    base = [piece for piece in ex.conjuncts(parts.condition) if piece not in both]

    def joined(left: Node, right: Node, how: str, conditions: list[exp.Expr]) -> Node:
        condition = ex.conjunction(conditions)
        return build_join(
            context, replace(parts, left=left, right=right, how=how, condition=condition)
        )

    return Matched(context, join, base, both, joined).node()


def _lean(node: Node, parts: JoinInput) -> Node:
    """The node without columns that nobody asks for, which would only be compared in vain."""
    asked = referenced(parts.condition) if parts.condition is not None else set()
    idle = parts.unused - asked
    kept = tuple(item for item in node.fields if item.id not in idle or item.role is not Role.PLAIN)
    if len(kept) == len(node.fields):
        return node
    return Project(kept, input=node, expressions=tuple(column(item) for item in kept))


def _of_both(piece: exp.Expr, join: Join) -> bool:
    ids = referenced(piece)
    return not any(ids <= {item.id for item in side.fields} for side in join.inputs)


def _bounded(join: Join) -> bool:
    """Whether it can run: one without a bound is left as it is, to be refused."""
    if join.kind is JoinKind.REGULAR:
        return join.ttl_us is not None or all(side.bounded for side in join.inputs)
    return join.kind in (JoinKind.INTERVAL, JoinKind.WINDOW)


def _classified(context: Context, parts: JoinInput) -> tuple[Join, list[exp.Expr]]:
    """The join, and the parts of its condition that are neither keys nor bounds of time."""
    pieces = ex.conjuncts(parts.condition)
    near = _match(parts, pieces)
    pieces = list(near.rest)
    left_ids = {item.id for item in parts.left.fields}
    right_ids = {item.id for item in parts.right.fields}
    pairs: list[KeyPair] = []
    rest: list[exp.Expr] = []
    for piece in pieces:
        pair = _key_pair(piece, left_ids, right_ids)
        if pair is not None:
            pairs.append(pair)
        else:
            rest.append(piece)
    if isinstance(parts.right, LookupScan) and not pairs:
        pairs, rest = _constant_pairs(rest, right_ids)
    bounds, residual = _time_bounds(parts, pairs, rest)
    kind = _kind(context, parts, pairs, bounds)
    if kind is not JoinKind.INTERVAL:
        bounds, residual = None, rest
    as_of = parts.as_of
    as_of_id = as_of.name if isinstance(as_of, exp.Column) else None
    join = Join(
        (),
        left=parts.left,
        right=parts.right,
        how=parts.how,
        kind=kind,
        condition=ex.conjunction([*near.asked]) if parts.asof else parts.condition,
        equal=tuple(pairs),
        bounds=bounds,
        residual=ex.conjunction(residual),
        as_of=as_of,
        as_of_id=as_of_id,
        match=near.condition,
        nearness=near.nearness,
        ttl_us=context.ttl_us,
        times=parts.times,
        predicate=parts.predicate,
        span=parts.span,
    )
    return replace(join, fields=_output(parts, join)), residual


def _match(parts: JoinInput, pieces: list[exp.Expr]) -> Match:
    """Which row of the right counts, and the parts of ON that say something else."""
    if parts.asof:
        sides = Sides.of(parts.left.fields, parts.right.fields)
        return match_of(sides, parts.match, pieces, parts.nearest, parts.tolerance)
    times = [item for item in parts.right.fields if item.role is Role.TIME]
    if not isinstance(parts.as_of, exp.Column) or not times:
        return Match(None, parts.match, tuple(pieces), tuple(pieces))
    # A version counts from its time on.
    nearness = Nearness(parts.as_of, column(times[0]), BACKWARD, lower=0)
    return Match(nearness, None, tuple(pieces), tuple(pieces))


def _key_pair(piece: exp.Expr, left_ids: set[str], right_ids: set[str]) -> KeyPair | None:
    """An equality with one side of the join on each side of the sign."""
    if not isinstance(piece, exp.EQ | exp.NullSafeEQ):
        return None
    one, other = piece.left, piece.right
    one_ids, other_ids = referenced(one), referenced(other)
    if not one_ids or not other_ids:
        return None
    null_safe = isinstance(piece, exp.NullSafeEQ)
    if one_ids <= left_ids and other_ids <= right_ids:
        return KeyPair(one, other, null_safe)
    if one_ids <= right_ids and other_ids <= left_ids:
        return KeyPair(other, one, null_safe)
    return None


def _constant_pairs(
    pieces: list[exp.Expr], right_ids: set[str]
) -> tuple[list[KeyPair], list[exp.Expr]]:
    """Columns of a lookup table that are compared with constants: all rows ask for the same."""
    pairs: list[KeyPair] = []
    rest: list[exp.Expr] = []
    for piece in pieces:
        sides = (piece.left, piece.right) if isinstance(piece, exp.EQ) else ()
        asked = [side for side in sides if isinstance(side, exp.Column) and side.name in right_ids]
        given = [side for side in sides if not referenced(side) and ex.repeatable(side)]
        if asked and given:
            pairs.append(KeyPair(given[0], asked[0], False))
        else:
            rest.append(piece)
    return pairs, rest


def _linear(node: exp.Expr, fields: dict[str, Field]) -> tuple[Field, int] | None:
    """A time column plus a constant: (column, microseconds)."""
    node = node.unnest()
    if isinstance(node, exp.Column):
        return _time_column(fields.get(node.name), fields)
    if isinstance(node, exp.Add | exp.Sub):
        inner, offset = _linear(node.left, fields), ex.interval_micros(node.right)
        if inner is None and isinstance(node, exp.Add):
            inner, offset = _linear(node.right, fields), ex.interval_micros(node.left)
        if inner is None or offset is None:
            return None
        sign = 1 if isinstance(node, exp.Add) else -1
        return inner[0], inner[1] + sign * offset
    return None


def _time_column(item: Field | None, fields: dict[str, Field]) -> tuple[Field, int] | None:
    """An event time as it is; the start of a window as its end minus its length."""
    if item is None or item.on_time:
        return (item, 0) if item is not None else None
    if item.role is not Role.WINDOW_START or item.window is None or not item.fixed_length:
        return None
    ends = [
        other
        for other in fields.values()
        if other.role is Role.WINDOW_END and other.window == item.window and other.on_time
    ]
    return (ends[0], -item.window.size_us) if len(ends) == 1 else None


def _bound(piece: exp.Expr, left: dict[str, Field], right: dict[str, Field]) -> TimeBounds | None:
    """What one comparison says about left time − right time."""
    if type(piece) not in _FLIPPED:
        return None
    one, other, operator = piece.args["this"], piece.args["expression"], type(piece)
    mine, theirs = _linear(one, left), _linear(other, right)
    if mine is None or theirs is None:
        mine, theirs = _linear(other, left), _linear(one, right)
        operator = _FLIPPED[operator]
    if mine is None or theirs is None:
        return None
    limit = theirs[1] - mine[1]
    lower = upper = None
    if operator in (exp.GTE, exp.GT, exp.EQ):
        lower = limit + (1 if operator is exp.GT else 0)
    if operator in (exp.LTE, exp.LT, exp.EQ):
        upper = limit - (1 if operator is exp.LT else 0)
    return TimeBounds(mine[0].id, theirs[0].id, lower, upper)


def _time_bounds(
    parts: JoinInput, pairs: list[KeyPair], rest: list[exp.Expr]
) -> tuple[TimeBounds | None, list[exp.Expr]]:
    """The bounds of the first pair of time columns that has both, and what they leave over."""
    left, right = by_id(parts.left.fields), by_id(parts.right.fields)
    found: dict[tuple[str, str], TimeBounds] = {}
    used: dict[tuple[str, str], list[exp.Expr]] = {}
    equalities: list[exp.Expr] = [exp.EQ(this=pair.left, expression=pair.right) for pair in pairs]
    for piece in equalities + rest:
        bound = _bound(piece, left, right)
        if bound is None:
            continue
        pair = (bound.left_id, bound.right_id)
        known = found.get(pair, TimeBounds(*pair, None, None))
        found[pair] = replace(
            known,
            lower_us=max(_known(known.lower_us, bound.lower_us), default=None),
            upper_us=min(_known(known.upper_us, bound.upper_us), default=None),
        )
        used.setdefault(pair, []).append(piece)
    for pair, bounds in found.items():
        if bounds.lower_us is not None and bounds.upper_us is not None:
            taken = {id(piece) for piece in used[pair]}
            return bounds, [piece for piece in rest if id(piece) not in taken]
    return None, rest


def _known(*limits: int | None) -> list[int]:
    return [limit for limit in limits if limit is not None]


def _kind(
    context: Context, parts: JoinInput, pairs: list[KeyPair], bounds: TimeBounds | None
) -> JoinKind:
    if parts.asof:
        return JoinKind.ASOF
    if isinstance(parts.right, LookupScan):
        return JoinKind.LOOKUP
    if parts.as_of is not None:
        return JoinKind.LOOKUP if is_processing_time(parts.as_of) else JoinKind.TEMPORAL
    if _same_window(parts, pairs):
        return JoinKind.WINDOW
    return JoinKind.INTERVAL if bounds is not None else JoinKind.REGULAR


def _same_window(parts: JoinInput, pairs: list[KeyPair]) -> bool:
    """Whether the keys say that both rows are of the same window."""
    left, right = by_id(parts.left.fields), by_id(parts.right.fields)
    roles = set()
    kind = None
    for pair in pairs:
        one = left.get(pair.left.name) if isinstance(pair.left, exp.Column) else None
        other = right.get(pair.right.name) if isinstance(pair.right, exp.Column) else None
        if one is None or other is None or one.role is not other.role:
            continue
        if one.role in (Role.WINDOW_START, Role.WINDOW_END) and one.window == other.window:
            roles.add(one.role)
            kind = one.window.kind if one.window else None
    if kind in (WindowKind.SESSION, WindowKind.CUMULATE):
        return len(roles) == 2
    return bool(roles)


def _output(parts: JoinInput, join: Join) -> tuple[Field, ...]:
    """The fields of a join: outer sides become nullable, and time survives where it can."""
    left_nullable = parts.how in ("RIGHT", "FULL")
    right_nullable = parts.how in ("LEFT", "FULL")
    left_time = join.kind is not JoinKind.REGULAR
    if join.kind is JoinKind.ASOF:
        # A row that may wait for ever for a match comes out at any time after its own.
        left_time = join.by_watermark and join.nearness is not None and join.nearness.ends
    right_time = join.kind in (JoinKind.INTERVAL, JoinKind.WINDOW)
    left = tuple(_side(item, left_nullable, left_time) for item in parts.left.fields)
    if parts.how in ("SEMI", "ANTI"):
        return left
    return left + tuple(_side(item, right_nullable, right_time) for item in parts.right.fields)


def _side(item: Field, nullable: bool, keeps_time: bool) -> Field:
    if nullable or not keeps_time:
        item = replace(item, role=Role.PLAIN, window=None)
    return replace(item, nullable=item.nullable or nullable)
