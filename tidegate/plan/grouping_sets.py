"""GROUPING SETS, ROLLUP and CUBE: every row once per set, with the keys that are not in it NULL."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

from sqlglot import exp

from tidegate.plan import nodes as n
from tidegate.plan.scope import Context, by_id, column, derived_field

# Every row is copied once per set, so a CUBE of many columns could fill the memory.
MOST_SETS = 1024
_SETS = (exp.Rollup, exp.Cube, exp.GroupingSets)


@dataclass(frozen=True)
class Expanded:
    """The rows of a GROUP BY with several sets.

    `copies` has the column that stands for each key which is not in every set; `id` tells the set.
    """

    node: n.Explode
    copies: dict[int, n.Field]
    added: tuple[n.Field, ...]

    @property
    def id(self) -> n.Field:
        return self.added[0]


def written_sets(group: exp.Group) -> list[list[exp.Expr]] | None:
    """What each set groups by, as written; None if there is only the one."""
    several = any(isinstance(part, _SETS) for part in group.expressions)
    for word, kind in (("rollup", exp.Rollup), ("cube", exp.Cube), ("grouping_sets", None)):
        clauses = group.args.get(word)
        if not clauses:
            continue
        if kind is None:
            # GROUP BY a, b GROUPING SETS (…): the columns in front only say the order.
            return _sets_of(clauses[0])
        return _sets_of(kind(expressions=clauses[0].expressions or group.expressions))
    if not several:
        return None
    parts = [_sets_of(part) for part in group.expressions]
    return [list(itertools.chain(*chosen)) for chosen in itertools.product(*parts)]


def written_order(group: exp.Group) -> list[exp.Expr]:
    """The grouping expressions from left to right, which is what grouping_id() counts."""
    clauses = [part for word in ("rollup", "cube", "grouping_sets") for part in _args(group, word)]
    found: list[exp.Expr] = []
    for part in [*group.expressions, *clauses]:
        found += itertools.chain(*_sets_of(part)) if isinstance(part, _SETS) else [part]
    return found


def _args(group: exp.Group, word: str) -> list[exp.Expr]:
    return list(group.args.get(word) or [])


def _sets_of(part: exp.Expr) -> list[list[exp.Expr]]:
    if isinstance(part, exp.GroupingSets):
        sets: list[list[exp.Expr]] = []
        for inner in part.expressions:
            sets += _sets_of(inner) if isinstance(inner, _SETS) else [_members(inner)]
        return sets
    if isinstance(part, exp.Rollup):
        steps = [_members(inner) for inner in part.expressions]
        return [list(itertools.chain(*steps[:end])) for end in range(len(steps), -1, -1)]
    if isinstance(part, exp.Cube):
        steps = [_members(inner) for inner in part.expressions]
        chosen = itertools.product((True, False), repeat=len(steps))
        return [list(itertools.chain(*itertools.compress(steps, taken))) for taken in chosen]
    return [[part]]


def _members(part: exp.Expr) -> list[exp.Expr]:
    return list(part.expressions) if isinstance(part, exp.Tuple) else [part.unnest()]


def count_of_sets(group: exp.Group) -> int:
    """How many sets there are, without writing them down."""
    clauses = [part for word in ("rollup", "cube", "grouping_sets") for part in _args(group, word)]
    count = 1
    for part in [*group.expressions, *clauses]:
        columns = part.expressions or group.expressions
        if isinstance(part, exp.Cube):
            count *= 2 ** len(columns)
        elif isinstance(part, exp.Rollup):
            count *= len(columns) + 1
    return count


def expand(context: Context, node: n.Node, order: list[exp.Expr], sets: list[set[int]]) -> Expanded:
    """Every row once per set; `sets` are places in `order`, the grouping expressions."""
    fields = by_id(node.fields)
    varying = [i for i, _ in enumerate(order) if any(i not in chosen for chosen in sets)]
    copies = {i: _copy_of(context, order[i], fields) for i in varying}
    numbers = [grouping_number(chosen, len(order)) for chosen in sets]
    added = [_hidden(context, "grouping_id", "BIGINT")]
    if len(set(numbers)) < len(numbers):
        # A set that is written twice gives its groups twice.
        added.append(_hidden(context, "grouping_set", "INT"))
    rows = []
    for place, chosen in enumerate(sets):
        cells = [order[i].copy() if i in chosen else _no_value(order[i]) for i in varying]
        cells.append(exp.cast(exp.Literal.number(numbers[place]), "BIGINT"))
        cells.append(exp.Literal.number(place))
        rows.append(_struct(cells[: len(varying) + len(added)]))
    generated = (*copies.values(), *added)
    generator = _call("INLINE", [_call("ARRAY", rows)])
    exploded = n.Explode(
        node.fields + generated,
        input=node,
        generator=generator,
        generated=tuple(item.id for item in generated),
        of_sets=True,
        first_set=(added[-1].id, 0 if len(added) > 1 else numbers[0]),
        span=node.span,
    )
    return Expanded(exploded, copies, tuple(added))


def grouping_number(chosen: set[int], width: int) -> int:
    """One bit per grouping expression, the first one the highest: 1 where it is not in the set."""
    return sum(1 << (width - 1 - place) for place in range(width) if place not in chosen)


def grouping_bit(item: n.Field, place: int, width: int) -> exp.Expr:
    """grouping(x): whether the expression at a place is not in the set of a row."""
    shifted = _call("SHIFTRIGHT", [column(item), exp.Literal.number(width - 1 - place)])
    one = exp.BitwiseAnd(this=shifted, expression=exp.Literal.number(1))
    return exp.cast(exp.Paren(this=one), "TINYINT")


def grouping_number_of(bits: list[exp.Expr]) -> exp.Expr:
    """grouping_id(x, y): one bit for each expression that is asked about, the first the highest."""
    number: exp.Expr = exp.cast(bits[0], "BIGINT")
    for bit in bits[1:]:
        doubled = exp.Mul(this=number, expression=exp.Literal.number(2))
        number = exp.Paren(this=exp.Add(this=doubled, expression=bit))
    return number


def _copy_of(context: Context, tree: exp.Expr, fields: dict[str, n.Field]) -> n.Field:
    bare = tree.unnest()
    known = fields.get(bare.name) if isinstance(bare, exp.Column) else None
    item = derived_field(context, known.name if known is not None else "key", tree, fields)
    return replace(item, role=n.Role.PLAIN, window=None, nullable=True)


def _hidden(context: Context, name: str, kind: str) -> n.Field:
    return n.Field(context.fresh(name), name, kind, nullable=False)


def _no_value(tree: exp.Expr) -> exp.Expr:
    """NULL of the type that an expression has, which only Spark knows."""
    return exp.Case(ifs=[exp.If(this=exp.false(), true=tree.copy())])


def _struct(cells: list[exp.Expr]) -> exp.Expr:
    named = [[exp.Literal.string(f"c{place}"), cell] for place, cell in enumerate(cells)]
    return _call("NAMED_STRUCT", list(itertools.chain(*named)))


def _call(name: str, parts: list[exp.Expr]) -> exp.Expr:
    return exp.Anonymous(this=name, expressions=parts)
