"""Joins: what kind a join is follows from its sides and its condition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from tidegate.plan import nodes as n
from tidegate.plan.bind.scope import (
    Context,
    column,
    copy_with_new_ids,
    fields_by_id,
    referenced_ids,
    with_names,
)
from tidegate.plan.bind.windows import is_processing_time
from tidegate.plan.nodes import (
    BACKWARD,
    FORWARD,
    NEAREST,
    AsofCondition,
    Field,
    Join,
    JoinKind,
    KeyPair,
    LookupScan,
    Node,
    Project,
    Role,
    TimeBounds,
    WindowKind,
)
from tidegate.sql import expressions as ex
from tidegate.types import Span

# ---- What an ASOF join means by near: its MATCH_CONDITION, and how far apart two rows may be.

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
class JoinMatch:
    """What is near, the condition that says so, and the parts of ON that say something else.

    `asked` is everything that is asked beside that condition, for Spark to find fault with.
    """

    asof_condition: AsofCondition | None
    condition: exp.Expr | None
    rest: tuple[exp.Expr, ...]
    asked: tuple[exp.Expr, ...]


@dataclass(frozen=True)
class JoinSides:
    """The columns of both sides of a join."""

    left: frozenset[str]
    right: frozenset[str]

    @classmethod
    def of(cls, left: Sequence[Field], right: Sequence[Field]) -> JoinSides:
        return cls(frozenset(i.id for i in left), frozenset(i.id for i in right))

    def is_left(self, tree: exp.Expr) -> bool:
        ids = referenced_ids(tree)
        return bool(ids) and ids <= self.left

    def is_right(self, tree: exp.Expr) -> bool:
        ids = referenced_ids(tree)
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
    sides: JoinSides,
    match: exp.Expr | None,
    on: list[exp.Expr],
    nearest: bool,
    tolerance: exp.Expr | None,
) -> JoinMatch:
    """Find the comparison that picks the nearest row, and all that bounds the distance."""
    own = ex.conjuncts(match)
    chosen = _chosen(sides, own if match is not None else on, nearest)
    if chosen is None:
        return JoinMatch(None, match, (*on,), (*on,))
    piece, comparison = chosen
    asof_condition = _begun(comparison)
    asked = [other for other in (*own, *on) if other is not piece]
    rest = []
    for other in asked:
        found = sides.comparisons(other)
        fits = [c.same_sides(comparison) and c.sign is not exp.EQ for c in found]
        if found and all(fits):
            for bound in found:
                asof_condition = _narrowed(asof_condition, bound)
        else:
            rest.append(other)
    if tolerance is not None:
        asof_condition = _within(asof_condition, tolerance)
        apart = exp.Sub(this=comparison.left.copy(), expression=comparison.right.copy())
        asked.append(exp.LTE(this=apart, expression=tolerance.copy()))
    return JoinMatch(asof_condition, piece, tuple(rest), tuple(asked))


def _chosen(
    sides: JoinSides, pieces: list[exp.Expr], nearest: bool
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


def _begun(found: Comparison) -> AsofCondition:
    if found.sign is exp.EQ:
        return AsofCondition(found.left, found.right, NEAREST)
    backward = found.sign in (exp.GT, exp.GTE)
    direction = BACKWARD if backward else FORWARD
    return _narrowed(AsofCondition(found.left, found.right, direction), found)


def _narrowed(near: AsofCondition, found: Comparison) -> AsofCondition:
    """Two rows are no further apart than both say."""
    limit, is_open = found.apart, found.sign in (exp.GT, exp.LT)
    if found.sign in (exp.GT, exp.GTE):
        if near.lower is None or (limit, is_open) > (near.lower, near.lower_open):
            return replace(near, lower=limit, lower_open=is_open)
        return near
    if near.upper is None or (limit, not is_open) < (near.upper, not near.upper_open):
        return replace(near, upper=limit, upper_open=is_open)
    return near


def _within(near: AsofCondition, tolerance: exp.Expr) -> AsofCondition:
    limit = _constant(tolerance)
    if limit is None:
        return near
    if near.direction != FORWARD:
        near = _narrowed(near, Comparison(near.left, near.right, exp.LTE, limit))
    if near.direction != BACKWARD:
        near = _narrowed(near, Comparison(near.left, near.right, exp.GTE, -limit))
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


def parse_asof_condition(context: Context, join: exp.Join) -> tuple[bool, exp.Expr | None]:
    """NEAREST and TOLERANCE as a join has them; what no join can have is rejected."""
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


# ---- Outer, semi and anti joins whose condition compares both sides in a way no operator knows.
#
# An operator matches rows by keys and times; what else the condition says, Spark tells of each pair.
# So a row may have matches and lose all of them. Those rows are found by joining the rows that have
# matches with the pairs that remain, by all columns: equal rows have equal matches, so it does not
# matter which of them is meant. Every join reads the same inputs within the same bounds, so that all
# of them agree on which rows are late.

_NESTED = ("MAP", "ARRAY", "STRUCT")
# Joins two nodes: left, right, how, conditions.
Joiner = Callable[[n.Node, n.Node, str, list[exp.Expr]], n.Node]


@dataclass(frozen=True)
class Matched:
    """A join by `base`, of whose pairs only those count for which `residual` holds."""

    context: Context
    join: n.Join
    base: list[exp.Expr]
    residual: list[exp.Expr]
    joined: Joiner

    def node(self) -> n.Node:
        how, left, right = self.join.how, self.join.left, self.join.right
        if not self._comparable():
            return self.join
        if how == "SEMI":
            found = self.joined(left, right, "SEMI", self.base)
            return self._by_all_columns(found, left, right, "SEMI")
        if how == "ANTI":
            return self._union(
                self.joined(left, right, "ANTI", self.base), self._rejected(left, right)
            )
        members = [self._outer()]
        if how in ("LEFT", "FULL"):
            members.append(self._padded(self._rejected(left, right), before=0))
        if how in ("RIGHT", "FULL"):
            members.append(self._padded(self._rejected(right, left), before=len(left.fields)))
        return self._union(*members)

    def _comparable(self) -> bool:
        kept = {"LEFT": [0], "RIGHT": [1], "FULL": [0, 1]}.get(self.join.how, [0])
        fields = [item for side in kept for item in self.join.inputs[side].fields]
        nested = [item for item in fields if (item.type or "").upper().startswith(_NESTED)]
        if nested:
            kind = (nested[0].type or "").split("<")[0].upper()
            self.context.report(
                "TG-103",
                f"a {self.join.how} join with this condition compares whole rows, and "
                f"{nested[0].name} is of type {kind}, by which rows cannot be joined",
                self.residual[0],
                f"do not select {nested[0].name} from this join, or select its parts from a "
                "subquery in FROM.",
            )
        return not nested

    def _outer(self) -> n.Node:
        """Pairs that count, and rows that have none by the keys and times alone."""
        how = self.join.how
        left, left_mark = self._marked(self.join.left, how in ("RIGHT", "FULL"))
        right, right_mark = self._marked(self.join.right, how in ("LEFT", "FULL"))
        joined = self.joined(left, right, how, self.base)
        alone: list[exp.Expr] = [
            exp.Is(this=column(mark), expression=exp.null())
            for mark in (left_mark, right_mark)
            if mark is not None
        ]
        condition = exp.or_(*alone, ex.conjunction(self.residual), copy=True)
        rows = n.Filter(joined.fields, input=joined, condition=condition, span=self.join.span)
        return self._picked(rows, self.join.fields)

    def _marked(self, node: n.Node, wanted: bool) -> tuple[n.Node, n.Field | None]:
        """The node with a column that is never NULL, so that a row without a match shows."""
        if not wanted:
            return node, None
        mark = n.Field(self.context.fresh("matched"), "matched", "BOOLEAN", nullable=False)
        expressions = (*(column(item) for item in node.fields), exp.true())
        return n.Project((*node.fields, mark), input=node, expressions=expressions), mark

    def _rejected(self, side: n.Node, other: n.Node) -> n.Node:
        """The rows of one side that have matches, none of which counts."""
        mine, names = copy_with_new_ids(self.context, side)
        theirs, more = copy_with_new_ids(self.context, other)
        base = [with_names(piece, {**names, **more}) for piece in self.base]
        found = self.joined(mine, theirs, "SEMI", base)
        return self._by_all_columns(found, side, other, "ANTI")

    def _by_all_columns(self, found: n.Node, side: n.Node, other: n.Node, how: str) -> n.Node:
        """Rows of one side, joined with the pairs that count by all columns of that side."""
        mine, names = copy_with_new_ids(self.context, side)
        theirs, more = copy_with_new_ids(self.context, other)
        both = {**names, **more}
        pairs = self.joined(mine, theirs, "INNER", [with_names(p, both) for p in self.base])
        condition = ex.conjunction([with_names(piece, both) for piece in self.residual])
        assert condition is not None, "there is something to ask of the pairs"
        counting = n.Filter(pairs.fields, input=pairs, condition=condition, span=self.join.span)
        rows = self._picked(counting, mine.fields)
        same: list[exp.Expr] = [
            exp.NullSafeEQ(this=column(one), expression=column(two))
            for one, two in zip(found.fields, rows.fields, strict=True)
        ]
        return self.joined(found, rows, how, same)

    def _picked(self, node: n.Node, wanted: tuple[n.Field, ...]) -> n.Node:
        known = fields_by_id(node.fields)
        fields = tuple(known[item.id] for item in wanted)
        expressions = tuple(column(item) for item in fields)
        return n.Project(fields, input=node, expressions=expressions, span=self.join.span)

    def _padded(self, node: n.Node, before: int) -> n.Node:
        """Rows of one side as rows of the join: the columns of the other side are NULL."""
        fields: list[n.Field] = []
        expressions: list[exp.Expr] = []
        for place, item in enumerate(self.join.fields):
            own = place - before
            if 0 <= own < len(node.fields):
                fields.append(node.fields[own])
                expressions.append(column(node.fields[own]))
            else:
                plain = replace(item, role=n.Role.PLAIN, window=None, nullable=True)
                fields.append(replace(plain, id=self.context.fresh(item.name)))
                nothing = exp.null()
                expressions.append(exp.cast(nothing, item.type) if item.type else nothing)
        return n.Project(
            tuple(fields), input=node, expressions=tuple(expressions), span=self.join.span
        )

    def _union(self, *members: n.Node) -> n.Node:
        return n.SetOperation(
            self.join.fields, members=members, operation="UNION", all=True, span=self.join.span
        )


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
    asked = referenced_ids(parts.condition) if parts.condition is not None else set()
    idle = parts.unused - asked
    kept = tuple(item for item in node.fields if item.id not in idle or item.role is not Role.PLAIN)
    if len(kept) == len(node.fields):
        return node
    return Project(kept, input=node, expressions=tuple(column(item) for item in kept))


def _of_both(piece: exp.Expr, join: Join) -> bool:
    ids = referenced_ids(piece)
    return not any(ids <= {item.id for item in side.fields} for side in join.inputs)


def _bounded(join: Join) -> bool:
    """Whether it can run: one without a bound is left as it is, to be rejected."""
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
        key_pairs=tuple(pairs),
        bounds=bounds,
        residual=ex.conjunction(residual),
        as_of=as_of,
        as_of_id=as_of_id,
        match=near.condition,
        asof_condition=near.asof_condition,
        ttl_us=context.ttl_us,
        times=parts.times,
        predicate=parts.predicate,
        span=parts.span,
    )
    return replace(join, fields=_output(parts, join)), residual


def _match(parts: JoinInput, pieces: list[exp.Expr]) -> JoinMatch:
    """Which row of the right counts, and the parts of ON that say something else."""
    if parts.asof:
        sides = JoinSides.of(parts.left.fields, parts.right.fields)
        return match_of(sides, parts.match, pieces, parts.nearest, parts.tolerance)
    times = [item for item in parts.right.fields if item.role is Role.TIME]
    if not isinstance(parts.as_of, exp.Column) or not times:
        return JoinMatch(None, parts.match, tuple(pieces), tuple(pieces))
    # A version counts from its time on.
    asof_condition = AsofCondition(parts.as_of, column(times[0]), BACKWARD, lower=0)
    return JoinMatch(asof_condition, None, tuple(pieces), tuple(pieces))


def _key_pair(piece: exp.Expr, left_ids: set[str], right_ids: set[str]) -> KeyPair | None:
    """An equality with one side of the join on each side of the sign."""
    if not isinstance(piece, exp.EQ | exp.NullSafeEQ):
        return None
    one, other = piece.left, piece.right
    one_ids, other_ids = referenced_ids(one), referenced_ids(other)
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
        given = [side for side in sides if not referenced_ids(side) and ex.repeatable(side)]
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
    if item is None or item.is_event_time:
        return (item, 0) if item is not None else None
    if (
        item.role is not Role.WINDOW_START
        or item.window is None
        or not item.has_fixed_length_window
    ):
        return None
    ends = [
        other
        for other in fields.values()
        if other.role is Role.WINDOW_END and other.window == item.window and other.is_event_time
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
    left, right = fields_by_id(parts.left.fields), fields_by_id(parts.right.fields)
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
    left, right = fields_by_id(parts.left.fields), fields_by_id(parts.right.fields)
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
        left_time = (
            join.by_watermark and join.asof_condition is not None and join.asof_condition.is_bounded
        )
    right_time = join.kind in (JoinKind.INTERVAL, JoinKind.WINDOW)
    left = tuple(_side(item, left_nullable, left_time) for item in parts.left.fields)
    if parts.how in ("SEMI", "ANTI"):
        return left
    return left + tuple(_side(item, right_nullable, right_time) for item in parts.right.fields)


def _side(item: Field, nullable: bool, keeps_time: bool) -> Field:
    if nullable or not keeps_time:
        item = replace(item, role=Role.PLAIN, window=None)
    return replace(item, nullable=item.nullable or nullable)
