"""Binds joins. The kind of a join follows from its inputs and its condition.

Start reading at `build_join`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from tidegate.plan import nodes as n
from tidegate.plan.bind.scope import (
    BindingContext,
    column,
    copy_with_new_ids,
    fields_by_id,
    referenced_ids,
    rename_columns,
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

# ---- ASOF joins: MATCH_CONDITION, and the largest distance of two rows

Number = int | float
_MIRRORED: dict[type[exp.Expr], type[exp.Expr]] = {
    exp.LT: exp.GT,
    exp.LTE: exp.GTE,
    exp.GT: exp.LT,
    exp.GTE: exp.LTE,
    exp.EQ: exp.EQ,
}


@dataclass(frozen=True)
class Comparison:
    """left − right compared with a number.

    `is_direct` if left and right are on different sides of the operator, rather than in a
    difference.
    """

    left: exp.Expr
    right: exp.Expr
    operator: type[exp.Expr]
    distance: Number
    is_direct: bool = True

    def same_sides(self, other: Comparison) -> bool:
        return self.left == other.left and self.right == other.right


@dataclass(frozen=True)
class AsofMatch:
    """The condition of an ASOF or temporal join, split into its parts.

    `condition` is the comparison that selects the nearest row. `other_conditions` are all others,
    for type checks; `residual` are those of them that do not bound the distance.
    """

    asof_condition: AsofCondition | None
    condition: exp.Expr | None
    residual: tuple[exp.Expr, ...]
    other_conditions: tuple[exp.Expr, ...]


@dataclass(frozen=True)
class JoinSides:
    """The column ids of both sides of a join."""

    left: frozenset[str]
    right: frozenset[str]

    @classmethod
    def from_fields(cls, left: Sequence[Field], right: Sequence[Field]) -> JoinSides:
        return cls(frozenset(i.id for i in left), frozenset(i.id for i in right))

    def is_left(self, tree: exp.Expr) -> bool:
        ids = referenced_ids(tree)
        return bool(ids) and ids <= self.left

    def is_right(self, tree: exp.Expr) -> bool:
        ids = referenced_ids(tree)
        return bool(ids) and ids <= self.right

    def comparisons(self, condition: exp.Expr) -> list[Comparison]:
        """Return the comparisons of left − right with a constant that a condition contains."""
        if type(condition) not in _MIRRORED:
            return []
        first, second = condition.args["this"], condition.args["expression"]
        operator = type(condition)
        sides = ((first, second, operator), (second, first, _MIRRORED[operator]))
        for left, right, comparison in sides:
            if self.is_left(left) and self.is_right(right):
                left_base, left_offset = _split_constant(left)
                right_base, right_offset = _split_constant(right)
                distance = right_offset - left_offset
                return [Comparison(left_base, right_base, comparison, distance)]
            limit = _constant(right)
            if limit is not None:
                return self._from_difference(left, comparison, limit)
        return []

    def _from_difference(
        self, tree: exp.Expr, operator: type[exp.Expr], limit: Number
    ) -> list[Comparison]:
        """Return the comparisons of `l - r <= c`, `r - l <= c` and `abs(l - r) <= c`."""
        tree = tree.unnest()
        if ex.call_name(tree) == "ABS" and len(tree.expressions) == 1:
            if operator not in (exp.LT, exp.LTE):
                return []
            inner = tree.expressions[0]
            upper_bounds = self._from_difference(inner, operator, limit)
            return upper_bounds + self._from_difference(inner, _MIRRORED[operator], -limit)
        if not isinstance(tree, exp.Sub):
            return []
        if self.is_left(tree.left) and self.is_right(tree.right):
            return [Comparison(tree.left.unnest(), tree.right.unnest(), operator, limit, False)]
        if self.is_right(tree.left) and self.is_left(tree.right):
            mirrored = _MIRRORED[operator]
            return [Comparison(tree.right.unnest(), tree.left.unnest(), mirrored, -limit, False)]
        return []


def find_asof_condition(
    sides: JoinSides,
    match: exp.Expr | None,
    on: list[exp.Expr],
    nearest: bool,
    tolerance: exp.Expr | None,
) -> AsofMatch:
    """Find the comparison that selects the nearest row, and the bounds of the distance."""
    match_conditions = ex.conjuncts(match)
    choice = _find_comparison(sides, match_conditions if match is not None else on, nearest)
    if choice is None:
        return AsofMatch(None, match, (*on,), (*on,))
    piece, comparison = choice
    asof_condition = _initial_condition(comparison)
    other_conditions = [other for other in (*match_conditions, *on) if other is not piece]
    residual = []
    for other in other_conditions:
        comparisons = sides.comparisons(other)
        are_bounds = [c.same_sides(comparison) and c.operator is not exp.EQ for c in comparisons]
        if comparisons and all(are_bounds):
            for bound in comparisons:
                asof_condition = _narrow(asof_condition, bound)
        else:
            residual.append(other)
    if tolerance is not None:
        asof_condition = _apply_tolerance(asof_condition, tolerance)
        distance = exp.Sub(this=comparison.left.copy(), expression=comparison.right.copy())
        other_conditions.append(exp.LTE(this=distance, expression=tolerance.copy()))
    return AsofMatch(asof_condition, piece, tuple(residual), tuple(other_conditions))


def _find_comparison(
    sides: JoinSides, pieces: list[exp.Expr], nearest: bool
) -> tuple[exp.Expr, Comparison] | None:
    """Return the comparison that selects the nearest row, preferably one without an offset."""
    operators = (exp.EQ,) if nearest else (exp.GT, exp.GTE, exp.LT, exp.LTE)
    candidates = [
        (piece, comparison)
        for piece in pieces
        for comparison in sides.comparisons(piece)
        if comparison.operator in operators and comparison.is_direct
    ]
    return min(candidates, key=lambda pair: pair[1].distance != 0) if candidates else None


def _initial_condition(comparison: Comparison) -> AsofCondition:
    if comparison.operator is exp.EQ:
        return AsofCondition(comparison.left, comparison.right, NEAREST)
    backward = comparison.operator in (exp.GT, exp.GTE)
    direction = BACKWARD if backward else FORWARD
    return _narrow(AsofCondition(comparison.left, comparison.right, direction), comparison)


def _narrow(condition: AsofCondition, comparison: Comparison) -> AsofCondition:
    """Restrict a condition by another bound."""
    limit, is_open = comparison.distance, comparison.operator in (exp.GT, exp.LT)
    if comparison.operator in (exp.GT, exp.GTE):
        if condition.lower is None or (limit, is_open) > (condition.lower, condition.lower_open):
            return replace(condition, lower=limit, lower_open=is_open)
        return condition
    if condition.upper is None or (limit, not is_open) < (
        condition.upper,
        not condition.upper_open,
    ):
        return replace(condition, upper=limit, upper_open=is_open)
    return condition


def _apply_tolerance(condition: AsofCondition, tolerance: exp.Expr) -> AsofCondition:
    limit = _constant(tolerance)
    if limit is None:
        return condition
    if condition.direction != FORWARD:
        condition = _narrow(condition, Comparison(condition.left, condition.right, exp.LTE, limit))
    if condition.direction != BACKWARD:
        condition = _narrow(condition, Comparison(condition.left, condition.right, exp.GTE, -limit))
    return condition


def _split_constant(tree: exp.Expr) -> tuple[exp.Expr, Number]:
    """Split an expression into another one plus a constant."""
    tree = tree.unnest()
    if isinstance(tree, exp.Add | exp.Sub):
        constant, inner = _constant(tree.right), tree.left
        if constant is None and isinstance(tree, exp.Add):
            constant, inner = _constant(tree.left), tree.right
        if constant is not None:
            base, offset = _split_constant(inner)
            return base, offset + (constant if isinstance(tree, exp.Add) else -constant)
    return tree, 0


def _constant(tree: exp.Expr) -> Number | None:
    """Return the value of a number, or of an interval in microseconds."""
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


def parse_asof_options(context: BindingContext, join: exp.Join) -> tuple[bool, exp.Expr | None]:
    """Return NEAREST and TOLERANCE of a join; report clauses that are not allowed."""
    asof = (join.args.get("method") or "").upper() == "ASOF"
    match, tolerance = join.args.get("match_condition"), join.meta.get("tolerance")
    if not asof and match is not None:
        message = "MATCH_CONDITION is only allowed in an ASOF join"
        context.report("TG-103", message, match, "write ASOF JOIN, or use ON.")
    if asof and (join.args.get("kind") or "").upper() == "CROSS":
        hint = "use ASOF JOIN or ASOF LEFT JOIN."
        context.report("TG-103", "ASOF CROSS JOIN does not exist", join, hint)
    if tolerance is not None and _constant(tolerance) is None:
        context.report(
            "TG-105",
            "TOLERANCE must be a constant: a number, or an interval without months",
            tolerance,
            "write TOLERANCE INTERVAL '5' SECOND.",
        )
    return bool(join.args.get("hint")), tolerance


# ---- Outer, semi and anti joins with conditions that are neither keys nor time bounds
#
# Join operators match rows by keys and time. Spark evaluates the rest of the condition for each
# pair, so a row may have candidates of which none satisfies it. To find such rows, rows with
# candidates are joined with the remaining pairs by all columns. Equal rows have equal matches, so
# it does not matter which of them is joined. All these joins read the same inputs within the same
# bounds, so they agree on which rows are late.

_NESTED_TYPES = ("MAP", "ARRAY", "STRUCT")
# A part of a value of a type, after its name.
_PARTS = {"MAP": "['a']", "ARRAY": "[0]", "STRUCT": ".a"}
# Builds a join from left, right, how and conditions.
BuildJoin = Callable[[n.Node, n.Node, str, list[exp.Expr]], n.Node]


@dataclass(frozen=True)
class ConditionalJoin:
    """A join by `base`, of whose pairs only those count for which `residual` holds."""

    context: BindingContext
    join: n.Join
    base: list[exp.Expr]
    residual: list[exp.Expr]
    build: BuildJoin

    def node(self) -> n.Node:
        """Return the plan of the join."""
        how, left, right = self.join.how, self.join.left, self.join.right
        if not self._check_comparable():
            return self.join
        if how == "SEMI":
            matched = self.build(left, right, "SEMI", self.base)
            return self._join_by_all_columns(matched, left, right, "SEMI")
        if how == "ANTI":
            return self._union(
                self.build(left, right, "ANTI", self.base), self._rows_without_match(left, right)
            )
        members = [self._plan_outer()]
        if how in ("LEFT", "FULL"):
            members.append(self._pad_with_nulls(self._rows_without_match(left, right), before=0))
        if how in ("RIGHT", "FULL"):
            members.append(
                self._pad_with_nulls(self._rows_without_match(right, left), before=len(left.fields))
            )
        return self._union(*members)

    def _check_comparable(self) -> bool:
        """Report columns of types by which rows cannot be joined."""
        sides = {"LEFT": [0], "RIGHT": [1], "FULL": [0, 1]}.get(self.join.how, [0])
        fields = [item for side in sides for item in self.join.inputs[side].fields]
        nested = [item for item in fields if (item.type or "").upper().startswith(_NESTED_TYPES)]
        if nested:
            type_name = (nested[0].type or "").split("<")[0].upper()
            part = f"{nested[0].name}{_PARTS.get(type_name, '')}"
            self.context.report(
                "TG-103",
                f"a {self.join.how} join with this condition compares entire rows, but "
                f"{nested[0].name} has type {type_name}, which cannot be compared",
                self.residual[0],
                f"do not select {nested[0].name} from this join, or select a field of it in a "
                f"subquery: FROM (SELECT …, {part} AS x FROM …).",
            )
        return not nested

    def _plan_outer(self) -> n.Node:
        """Return matching pairs, and rows without a candidate by keys and time."""
        how = self.join.how
        left, left_marker = self._add_match_marker(self.join.left, how in ("RIGHT", "FULL"))
        right, right_marker = self._add_match_marker(self.join.right, how in ("LEFT", "FULL"))
        pairs = self.build(left, right, how, self.base)
        unmatched: list[exp.Expr] = [
            exp.Is(this=column(marker), expression=exp.null())
            for marker in (left_marker, right_marker)
            if marker is not None
        ]
        condition = exp.or_(*unmatched, ex.conjunction(self.residual), copy=True)
        rows = n.Filter(pairs.fields, input=pairs, condition=condition, span=self.join.span)
        return self._select_columns(rows, self.join.fields)

    def _add_match_marker(self, node: n.Node, is_needed: bool) -> tuple[n.Node, n.Field | None]:
        """Add a column that is never NULL, to detect rows without a candidate."""
        if not is_needed:
            return node, None
        marker = n.Field(self.context.new_id("matched"), "matched", "BOOLEAN", nullable=False)
        expressions = (*(column(item) for item in node.fields), exp.true())
        return n.Project((*node.fields, marker), input=node, expressions=expressions), marker

    def _rows_without_match(self, side: n.Node, other: n.Node) -> n.Node:
        """Return the rows of a side that have candidates but no match."""
        rows, ids = copy_with_new_ids(self.context, side)
        other_rows, other_ids = copy_with_new_ids(self.context, other)
        base = [rename_columns(piece, {**ids, **other_ids}) for piece in self.base]
        matched = self.build(rows, other_rows, "SEMI", base)
        return self._join_by_all_columns(matched, side, other, "ANTI")

    def _join_by_all_columns(self, rows: n.Node, side: n.Node, other: n.Node, how: str) -> n.Node:
        """Join rows of a side with its matching rows, by all columns of that side."""
        copied, ids = copy_with_new_ids(self.context, side)
        other_copied, other_ids = copy_with_new_ids(self.context, other)
        all_ids = {**ids, **other_ids}
        pairs = self.build(
            copied, other_copied, "INNER", [rename_columns(p, all_ids) for p in self.base]
        )
        condition = ex.conjunction([rename_columns(piece, all_ids) for piece in self.residual])
        assert condition is not None, "there are residual conditions"
        matches = n.Filter(pairs.fields, input=pairs, condition=condition, span=self.join.span)
        matching_rows = self._select_columns(matches, copied.fields)
        equalities: list[exp.Expr] = [
            exp.NullSafeEQ(this=column(left), expression=column(right))
            for left, right in zip(rows.fields, matching_rows.fields, strict=True)
        ]
        return self.build(rows, matching_rows, how, equalities)

    def _select_columns(self, node: n.Node, columns: tuple[n.Field, ...]) -> n.Node:
        input_fields = fields_by_id(node.fields)
        fields = tuple(input_fields[item.id] for item in columns)
        expressions = tuple(column(item) for item in fields)
        return n.Project(fields, input=node, expressions=expressions, span=self.join.span)

    def _pad_with_nulls(self, node: n.Node, before: int) -> n.Node:
        """Return rows of one side as rows of the join, with NULL for the other side."""
        fields: list[n.Field] = []
        expressions: list[exp.Expr] = []
        for index, item in enumerate(self.join.fields):
            side_index = index - before
            if 0 <= side_index < len(node.fields):
                fields.append(node.fields[side_index])
                expressions.append(column(node.fields[side_index]))
            else:
                plain = replace(item, role=n.Role.PLAIN, window=None, nullable=True)
                fields.append(replace(plain, id=self.context.new_id(item.name)))
                null = exp.null()
                expressions.append(exp.cast(null, item.type) if item.type else null)
        return n.Project(
            tuple(fields), input=node, expressions=tuple(expressions), span=self.join.span
        )

    def _union(self, *members: n.Node) -> n.Node:
        return n.SetOperation(
            self.join.fields, members=members, operation="UNION", all=True, span=self.join.span
        )


@dataclass(frozen=True)
class JoinClauses:
    """The inputs and clauses of a join before its kind is determined."""

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
    # The names of both sides in the query, for hints.
    aliases: tuple[str, str] | None = None
    # Columns that the query does not reference.
    unused: frozenset[str] = frozenset()


def build_join(context: BindingContext, parts: JoinClauses) -> Node:
    """Determine the kind of a join; rewrite conditions that no operator can evaluate."""
    join, residual = _classify(context, parts)
    mixed = [piece for piece in residual if _uses_both_sides(piece, join)]
    if not mixed or join.how == "INNER" or not _has_bounded_state(join):
        return join
    parts = replace(
        parts, left=_without_unused(parts.left, parts), right=_without_unused(parts.right, parts)
    )
    join, _ = _classify(context, parts)
    base = [piece for piece in ex.conjuncts(parts.condition) if piece not in mixed]

    def joined(left: Node, right: Node, how: str, conditions: list[exp.Expr]) -> Node:
        condition = ex.conjunction(conditions)
        return build_join(
            context, replace(parts, left=left, right=right, how=how, condition=condition)
        )

    return ConditionalJoin(context, join, base, mixed, joined).node()


def _without_unused(node: Node, parts: JoinClauses) -> Node:
    """Drop unreferenced columns, so that they are not compared."""
    used = referenced_ids(parts.condition) if parts.condition is not None else set()
    unused = parts.unused - used
    fields = tuple(
        item for item in node.fields if item.id not in unused or item.role is not Role.PLAIN
    )
    if len(fields) == len(node.fields):
        return node
    return Project(fields, input=node, expressions=tuple(column(item) for item in fields))


def _uses_both_sides(piece: exp.Expr, join: Join) -> bool:
    ids = referenced_ids(piece)
    return not any(ids <= {item.id for item in side.fields} for side in join.inputs)


def _has_bounded_state(join: Join) -> bool:
    """Return whether a join can run; joins without a bound are rejected later."""
    if join.kind is JoinKind.REGULAR:
        return join.ttl_us is not None or all(side.bounded for side in join.inputs)
    return join.kind in (JoinKind.INTERVAL, JoinKind.WINDOW)


def _classify(context: BindingContext, parts: JoinClauses) -> tuple[Join, list[exp.Expr]]:
    """Return the join, and the parts of its condition that are neither keys nor time bounds."""
    pieces = ex.conjuncts(parts.condition)
    asof_match = _find_match(parts, pieces)
    pieces = list(asof_match.residual)
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
    kind = _join_kind(parts, pairs, bounds)
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
        condition=ex.conjunction([*asof_match.other_conditions]) if parts.asof else parts.condition,
        key_pairs=tuple(pairs),
        bounds=bounds,
        residual=ex.conjunction(residual),
        as_of=as_of,
        as_of_id=as_of_id,
        match=asof_match.condition,
        asof_condition=asof_match.asof_condition,
        ttl_us=context.ttl_us,
        times=parts.times,
        predicate=parts.predicate,
        aliases=parts.aliases,
        span=parts.span,
    )
    return replace(join, fields=_output_fields(parts, join)), residual


def _find_match(parts: JoinClauses, pieces: list[exp.Expr]) -> AsofMatch:
    """Return the condition that selects the right row, and the other parts of ON."""
    if parts.asof:
        sides = JoinSides.from_fields(parts.left.fields, parts.right.fields)
        return find_asof_condition(sides, parts.match, pieces, parts.nearest, parts.tolerance)
    times = [item for item in parts.right.fields if item.role is Role.TIME]
    if not isinstance(parts.as_of, exp.Column) or not times:
        return AsofMatch(None, parts.match, tuple(pieces), tuple(pieces))
    # A version is valid from its event time.
    asof_condition = AsofCondition(parts.as_of, column(times[0]), BACKWARD, lower=0)
    return AsofMatch(asof_condition, None, tuple(pieces), tuple(pieces))


def _key_pair(piece: exp.Expr, left_ids: set[str], right_ids: set[str]) -> KeyPair | None:
    """Return an equality of one expression per side as a key."""
    if not isinstance(piece, exp.EQ | exp.NullSafeEQ):
        return None
    first, second = piece.left, piece.right
    first_ids, second_ids = referenced_ids(first), referenced_ids(second)
    if not first_ids or not second_ids:
        return None
    null_safe = isinstance(piece, exp.NullSafeEQ)
    if first_ids <= left_ids and second_ids <= right_ids:
        return KeyPair(first, second, null_safe)
    if first_ids <= right_ids and second_ids <= left_ids:
        return KeyPair(second, first, null_safe)
    return None


def _constant_pairs(
    pieces: list[exp.Expr], right_ids: set[str]
) -> tuple[list[KeyPair], list[exp.Expr]]:
    """Return columns of a lookup table that are compared with constants as keys."""
    pairs: list[KeyPair] = []
    rest: list[exp.Expr] = []
    for piece in pieces:
        sides = (piece.left, piece.right) if isinstance(piece, exp.EQ) else ()
        columns = [
            side for side in sides if isinstance(side, exp.Column) and side.name in right_ids
        ]
        constants = [side for side in sides if not referenced_ids(side) and ex.is_repeatable(side)]
        if columns and constants:
            pairs.append(KeyPair(constants[0], columns[0], False))
        else:
            rest.append(piece)
    return pairs, rest


def _time_and_offset(node: exp.Expr, fields: dict[str, Field]) -> tuple[Field, int] | None:
    """Return the column and the offset in microseconds of an event time plus a constant."""
    node = node.unnest()
    if isinstance(node, exp.Column):
        return _event_time_of(fields.get(node.name), fields)
    if isinstance(node, exp.Add | exp.Sub):
        inner, offset = _time_and_offset(node.left, fields), ex.interval_micros(node.right)
        if inner is None and isinstance(node, exp.Add):
            inner, offset = _time_and_offset(node.right, fields), ex.interval_micros(node.left)
        if inner is None or offset is None:
            return None
        sign = 1 if isinstance(node, exp.Add) else -1
        return inner[0], inner[1] + sign * offset
    return None


def _event_time_of(item: Field | None, fields: dict[str, Field]) -> tuple[Field, int] | None:
    """Return an event time as it is, and a window start as the window end minus its size."""
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


def time_bound(
    piece: exp.Expr, left: dict[str, Field], right: dict[str, Field]
) -> TimeBounds | None:
    """Return the bounds of left time − right time in one comparison."""
    if type(piece) not in _MIRRORED:
        return None
    left_tree, right_tree, operator = piece.args["this"], piece.args["expression"], type(piece)
    left_time, right_time = _time_and_offset(left_tree, left), _time_and_offset(right_tree, right)
    if left_time is None or right_time is None:
        left_time, right_time = (
            _time_and_offset(right_tree, left),
            _time_and_offset(left_tree, right),
        )
        operator = _MIRRORED[operator]
    if left_time is None or right_time is None:
        return None
    limit = right_time[1] - left_time[1]
    lower = upper = None
    if operator in (exp.GTE, exp.GT, exp.EQ):
        lower = limit + (1 if operator is exp.GT else 0)
    if operator in (exp.LTE, exp.LT, exp.EQ):
        upper = limit - (1 if operator is exp.LT else 0)
    return TimeBounds(left_time[0].id, right_time[0].id, lower, upper)


def _time_bounds(
    parts: JoinClauses, pairs: list[KeyPair], rest: list[exp.Expr]
) -> tuple[TimeBounds | None, list[exp.Expr]]:
    """Return the first pair of time columns with both bounds, and the remaining conditions."""
    left, right = fields_by_id(parts.left.fields), fields_by_id(parts.right.fields)
    bounds_by_columns: dict[tuple[str, str], TimeBounds] = {}
    pieces_by_columns: dict[tuple[str, str], list[exp.Expr]] = {}
    equalities: list[exp.Expr] = [exp.EQ(this=pair.left, expression=pair.right) for pair in pairs]
    for piece in equalities + rest:
        bound = time_bound(piece, left, right)
        if bound is None:
            continue
        pair = (bound.left_id, bound.right_id)
        previous = bounds_by_columns.get(pair, TimeBounds(*pair, None, None))
        bounds_by_columns[pair] = replace(
            previous,
            lower_us=max(_limits(previous.lower_us, bound.lower_us), default=None),
            upper_us=min(_limits(previous.upper_us, bound.upper_us), default=None),
        )
        pieces_by_columns.setdefault(pair, []).append(piece)
    for pair, bounds in bounds_by_columns.items():
        if bounds.lower_us is not None and bounds.upper_us is not None:
            used = {id(piece) for piece in pieces_by_columns[pair]}
            return bounds, [piece for piece in rest if id(piece) not in used]
    return None, rest


def _limits(*limits: int | None) -> list[int]:
    return [limit for limit in limits if limit is not None]


def _join_kind(parts: JoinClauses, pairs: list[KeyPair], bounds: TimeBounds | None) -> JoinKind:
    if parts.asof:
        return JoinKind.ASOF
    if isinstance(parts.right, LookupScan):
        return JoinKind.LOOKUP
    if parts.as_of is not None:
        return JoinKind.LOOKUP if is_processing_time(parts.as_of) else JoinKind.TEMPORAL
    if _same_window(parts, pairs):
        return JoinKind.WINDOW
    return JoinKind.INTERVAL if bounds is not None else JoinKind.REGULAR


def _same_window(parts: JoinClauses, pairs: list[KeyPair]) -> bool:
    """Return whether the keys require that both rows are in the same window."""
    left, right = fields_by_id(parts.left.fields), fields_by_id(parts.right.fields)
    roles = set()
    kind = None
    for pair in pairs:
        left_field = left.get(pair.left.name) if isinstance(pair.left, exp.Column) else None
        right_field = right.get(pair.right.name) if isinstance(pair.right, exp.Column) else None
        if left_field is None or right_field is None or left_field.role is not right_field.role:
            continue
        if (
            left_field.role in (Role.WINDOW_START, Role.WINDOW_END)
            and left_field.window == right_field.window
        ):
            roles.add(left_field.role)
            kind = left_field.window.kind if left_field.window else None
    if kind in (WindowKind.SESSION, WindowKind.CUMULATE):
        return len(roles) == 2
    return bool(roles)


def _output_fields(parts: JoinClauses, join: Join) -> tuple[Field, ...]:
    """Return the fields of a join: outer sides are nullable, and event times remain if they can."""
    left_nullable = parts.how in ("RIGHT", "FULL")
    right_nullable = parts.how in ("LEFT", "FULL")
    left_time = join.kind is not JoinKind.REGULAR
    if join.kind is JoinKind.ASOF:
        # A row that may wait forever for a match is emitted at any time after its event time.
        left_time = (
            join.by_watermark and join.asof_condition is not None and join.asof_condition.is_bounded
        )
    right_time = join.kind in (JoinKind.INTERVAL, JoinKind.WINDOW)
    left = tuple(_output_field(item, left_nullable, left_time) for item in parts.left.fields)
    if parts.how in ("SEMI", "ANTI"):
        return left
    return left + tuple(
        _output_field(item, right_nullable, right_time) for item in parts.right.fields
    )


def _output_field(item: Field, nullable: bool, keeps_time: bool) -> Field:
    if nullable or not keeps_time:
        item = replace(item, role=Role.PLAIN, window=None)
    return replace(item, nullable=item.nullable or nullable)
