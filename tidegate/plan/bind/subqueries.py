"""IN and EXISTS as semi and anti joins; conditions on outer columns are those of the join."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from sqlglot import exp

from tidegate.plan import nodes as n
from tidegate.plan.bind.joins import JoinInput, build_join
from tidegate.plan.bind.scope import (
    Context,
    column,
    copy_with_new_ids,
    fields_by_id,
    referenced_ids,
    with_names,
)
from tidegate.sql import expressions as ex
from tidegate.sql.dialect import own_span, to_sql

# Where a resolved expression says which bound subquery it stands for.
NUMBER = "subquery"


@dataclass(frozen=True)
class Predicate:
    """`operands` are on the left of IN, and None for EXISTS."""

    tree: exp.Expr
    negated: bool
    operands: tuple[exp.Expr, ...] | None
    query: exp.Expr
    bound: n.Node

    @property
    def words(self) -> str:
        word = "EXISTS" if self.operands is None else "IN"
        return f"NOT {word}" if self.negated else word


def subqueries_in(tree: exp.Expr, bound: Mapping[int, n.Node]) -> list[n.Node]:
    """The bound subqueries that an expression holds."""
    return [bound[part.meta[NUMBER]] for part in tree.walk() if NUMBER in part.meta]


def reject_subqueries(context: Context, tree: exp.Expr, place: str) -> None:
    """Only conditions and columns can wait for a subquery; an expression elsewhere cannot."""
    for part in ex.own_parts(tree):
        if not isinstance(part, exp.Query):
            continue
        hint = (
            "compute it in FROM, and use its column here: FROM (SELECT *, "
            f"({to_sql(part.unnest())}) AS m FROM …)."
        )
        if isinstance(part.parent, exp.In | exp.Exists):
            hint = (
                "join what it asks for, and look whether it is there: FROM … LEFT JOIN (SELECT "
                "DISTINCT k AS found FROM …) ON k = found, then found IS NOT NULL."
            )
        context.report("TG-103", f"a subquery cannot stand {place}", part, hint)


def as_predicate(condition: exp.Expr, bound: Mapping[int, n.Node]) -> Predicate | None:
    """[NOT] IN or EXISTS that stands alone; None for any other condition."""
    tree, negated = condition.unnest(), False
    while isinstance(tree, exp.Not):
        tree, negated = tree.this.unnest(), not negated
    if NUMBER not in tree.meta or isinstance(tree, exp.Query):
        return None
    query = bound[tree.meta[NUMBER]]
    if isinstance(tree, exp.Exists):
        return Predicate(condition, negated, None, tree.this, query)
    left = tree.this.unnest()
    operands = tuple(left.expressions) if isinstance(left, exp.Tuple) else (left,)
    if any(part.find(exp.Query) for part in operands):
        return None
    return Predicate(condition, negated, operands, tree.args["query"], query)


def semi_join(
    context: Context, node: n.Node, asked: Predicate, time: str | None, unused: frozenset[str]
) -> n.Node:
    """The rows of a node for which a predicate holds; `time` is their event time as written."""
    right, conditions = _pull_up(_asked_rows(asked), {item.id for item in node.fields})
    if not _stands_alone(context, right, asked):
        return node
    if asked.operands is not None:
        if len(asked.operands) != len(asked.bound.fields):
            context.report(
                "TG-308",
                f"{len(asked.operands)} values IN a subquery of {len(asked.bound.fields)} columns",
                asked.query,
                "select one column for each value on the left.",
            )
            return node
        if asked.negated and not _compares_values(context, node, right, asked):
            return node
    else:
        right = _needed(right, conditions)

    def join(left: n.Node, other: n.Node, found: list[exp.Expr]) -> n.Node:
        parts = _parts(left, other, asked, found, time)
        return build_join(context, replace(parts, unused=unused))

    if asked.operands is None:
        return join(node, right, conditions)
    pairs = zip(asked.operands, right.fields, strict=False)
    equal = [exp.EQ(this=left.copy(), expression=column(item)) for left, item in pairs]
    joined = join(node, right, [*conditions, *equal])
    if not asked.negated:
        return joined
    return _without_nulls(context, node, joined, right, conditions, asked.operands[0], join)


def _parts(
    left: n.Node, right: n.Node, asked: Predicate, conditions: list[exp.Expr], time: str | None
) -> JoinInput:
    return JoinInput(
        left,
        right,
        "ANTI" if asked.negated else "SEMI",
        False,
        ex.conjunction(conditions),
        None,
        None,
        own_span(asked.query),
        (time, _inner_time(asked.query, right)),
        predicate=asked.words,
    )


def _without_nulls(
    context: Context,
    node: n.Node,
    joined: n.Node,
    right: n.Node,
    conditions: list[exp.Expr],
    operand: exp.Expr,
    join: Callable[[n.Node, n.Node, list[exp.Expr]], n.Node],
) -> n.Node:
    """NOT IN where there may be NULLs: with one among the values it is never true, and of NULL it
    is only true where there are no values at all."""
    if not _never_null(column(right.fields[0]), right):
        other, names = copy_with_new_ids(context, right)
        absent = exp.Is(this=column(other.fields[0]), expression=exp.null())
        other = n.Filter(other.fields, input=other, condition=absent, span=right.span)
        joined = join(joined, other, [with_names(piece, names) for piece in conditions])
    if not _never_null(operand, node):
        other, names = copy_with_new_ids(context, right)
        absent = exp.Is(this=operand.copy(), expression=exp.null())
        found = [with_names(piece, names) for piece in conditions]
        joined = join(joined, other, [*found, absent])
    return joined


def _asked_rows(asked: Predicate) -> n.Node:
    """The rows that count: neither their order nor how often they are there matters."""
    node = asked.bound
    while isinstance(node, n.Distinct | n.Sort) or (asked.operands is None and _only_shapes(node)):
        node = node.inputs[0]
    return node


def _only_shapes(node: n.Node) -> bool:
    """Whether there is a row after a node if there is one before it."""
    if isinstance(node, n.Project):
        return True
    if not isinstance(node, n.Limit) or node.offset is not None:
        return False
    return node.count is not None and node.count.is_int and int(node.count.name) > 0


def _pull_up(node: n.Node, outer: set[str]) -> tuple[n.Node, list[exp.Expr]]:
    """The node without its conditions on outer columns, and those conditions."""
    if isinstance(node, n.Filter) and not node.subqueries:
        below, found = _pull_up(node.input, outer)
        pieces = ex.conjuncts(node.condition)
        condition = ex.conjunction([piece for piece in pieces if not referenced_ids(piece) & outer])
        found += [piece for piece in pieces if referenced_ids(piece) & outer]
        if condition is None:
            return below, found
        return replace(node, fields=below.fields, input=below, condition=condition), found
    if isinstance(node, n.Project):
        below, found = _pull_up(node.input, outer)
        wanted = set().union(*(referenced_ids(piece) for piece in found))
        there = {item.id for item in node.fields}
        # The start of a window is a bound of time only beside its end.
        also = tuple(
            item
            for item in below.fields
            if item.id not in there and (item.id in wanted or (wanted and item.is_event_time))
        )
        return replace(
            node,
            fields=node.fields + also,
            input=below,
            expressions=node.expressions + tuple(column(item) for item in also),
        ), found
    return node, []


def _needed(node: n.Node, conditions: list[exp.Expr]) -> n.Node:
    """The columns of an EXISTS that its conditions ask for; its own do not matter."""
    wanted = set().union(*(referenced_ids(piece) for piece in conditions))
    kept = tuple(
        item for item in node.fields if item.id in wanted or (wanted and item.is_event_time)
    )
    if not kept:
        return node
    expressions = tuple(column(item) for item in kept)
    return n.Project(kept, input=node, expressions=expressions, span=node.span)


def _stands_alone(context: Context, node: n.Node, asked: Predicate) -> bool:
    """Reject what no join can say: outer columns in other places, groups that are always there."""
    message, hint = "", "write it as a join in FROM."
    if loose_columns(node):
        message = (
            f"this {asked.words} refers to columns of the outer query in a place other than a "
            "condition of its WHERE"
        )
        hint = "compare outer columns in WHERE of the subquery, outside of GROUP BY and UNION."
    elif asked.operands is None and _always_there(asked.bound):
        message = f"the subquery of this {asked.words} has a row even where there is no input"
        hint = "leave the aggregate out: EXISTS (SELECT 1 FROM … WHERE …)."
    if not message:
        return True
    context.report("TG-410", message, asked.query, hint)
    return False


def _always_there(node: n.Node) -> bool:
    """Whether there may be a row where there is no input: there it comes with the first one."""
    if isinstance(node, n.Aggregate) and not node.keys:
        return True
    if isinstance(node, n.Join):
        left, right = map(_always_there, (node.left, node.right))
        others = {"INNER": left and right, "RIGHT": right, "FULL": left or right}
        return others.get(node.how, left)
    return any(map(_always_there, node.inputs))


def _compares_values(context: Context, node: n.Node, right: n.Node, asked: Predicate) -> bool:
    """Reject NOT IN of several values that may be NULL: what it means is another thing for each."""
    assert asked.operands is not None, "NOT IN has a left side"
    if len(asked.operands) == 1:
        return True
    for operand in asked.operands:
        if not _never_null(operand, node):
            return _report_null(context, asked, to_sql(_named(operand, node)))
    for item in right.fields[: len(asked.operands)]:
        if not _never_null(column(item), right):
            return _report_null(context, asked, item.name)
    return True


def _report_null(context: Context, asked: Predicate, what: str) -> bool:
    context.report(
        "TG-410",
        f"{what} may be NULL, and with a NULL on either side NOT IN is never true",
        asked.tree,
        f"NOT EXISTS (SELECT 1 FROM … WHERE … = {what}) leaves NULLs out; or add {what} IS NOT "
        "NULL on its side, or declare it NOT NULL.",
    )
    return False


def _named(tree: exp.Expr, node: n.Node) -> exp.Expr:
    names = {item.id: item.name for item in node.fields}

    def swap(part: exp.Expr) -> exp.Expr:
        return exp.column(names.get(part.name, part.name)) if isinstance(part, exp.Column) else part

    return tree.copy().transform(swap)


def _never_null(tree: exp.Expr, node: n.Node) -> bool:
    """Whether an expression over a node is not NULL, by declaration or by a condition below."""
    tree = tree.unnest()
    if isinstance(tree, exp.Literal):
        return True
    known = fields_by_id(node.fields).get(tree.name) if isinstance(tree, exp.Column) else None
    if known is not None and not known.nullable:
        return True
    if isinstance(node, n.Filter):
        return tree in _not_null_by(node.condition) or _never_null(tree, node.input)
    if isinstance(node, n.Join) and node.how in ("SEMI", "ANTI"):
        return _never_null(tree, node.left)
    if isinstance(node, n.Project) and known is not None:
        return _never_null(node.expressions[node.fields.index(known)], node.input)
    return False


def _not_null_by(condition: exp.Expr) -> list[exp.Expr]:
    """What a condition says IS NOT NULL of."""
    found = []
    for tree in ex.conjuncts(condition):
        inner = tree.this.unnest() if isinstance(tree, exp.Not) else None
        if isinstance(inner, exp.Is) and isinstance(inner.expression, exp.Null):
            found.append(inner.this.unnest())
    return found


def _inner_time(query: exp.Expr, right: n.Node) -> str | None:
    """The event time of a subquery of one table, as its WHERE would write it."""
    select = query.unnest()
    if not isinstance(select, exp.Select) or select.args.get("group") or select.args.get("joins"):
        return None
    node, source = right, select.args.get("from_")
    while isinstance(node, n.Project | n.Filter):
        node = node.input
    times = [item.name for item in node.fields if item.is_event_time]
    return f"{source.this.alias_or_name}.{times[0]}" if times and source is not None else None


def loose_columns(node: n.Node) -> set[str]:
    """The columns that a plan refers to and no node of it makes."""
    loose: set[str] = set()
    for part in n.walk(node):
        given = {name for child in part.inputs for name in fields_by_id(child.fields)}
        read = set().union(*(referenced_ids(tree) for tree in _expressions(part)))
        loose |= read - given
    return loose


def _expressions(node: n.Node) -> Iterator[exp.Expr]:
    for part in fields(node):
        yield from _trees(getattr(node, part.name))


def _trees(value: Any) -> Iterator[exp.Expr]:
    if isinstance(value, exp.Expr):
        yield value
    elif isinstance(value, n.KeyPair):
        yield from (value.left, value.right)
    elif isinstance(value, tuple):
        for part in value:
            yield from _trees(part)


# ---- Scalar subqueries, and EXISTS of one, as joins: the row of an aggregate without groups beside
# every row.
#
# Before the aggregate has seen a row there is none; it then means what it means over no rows at all:
# counts are 0, everything else is NULL.

_COUNTS = frozenset({"COUNT", "COUNT_IF", "APPROX_COUNT_DISTINCT", "REGR_COUNT"})
# Over no rows these are lists, neither NULL nor 0.
_LISTS = frozenset({"COLLECT_LIST", "COLLECT_SET", "ARRAY_AGG"})


def with_scalars(
    context: Context, node: n.Node, trees: Sequence[exp.Expr], bound: Mapping[int, n.Node]
) -> tuple[n.Node, list[exp.Expr]]:
    """The node beside the values of scalar subqueries, and the trees that read them there.

    A subquery that is not the value of one aggregate stays where it is, and is rejected later.
    """
    values: dict[int, exp.Expr] = {}
    for tree in trees:
        for part in list(tree.walk()):
            number = part.meta.get(NUMBER)
            if number is None or number in values or not isinstance(part, exp.Query):
                continue
            found = _one_value(bound[number])
            if found is None or (bound[number].bounded and node.bounded):
                continue
            node = _beside(context, node, found.input, bound[number], "scalar subquery")
            assert isinstance(found.input, n.Aggregate), "the value of one aggregate"
            values[number] = exp.paren(_over_nothing_too(found.expressions[0], found.input))
    return node, [_swapped(tree, values) for tree in trees] if values else list(trees)


def where_one_row(context: Context, node: n.Node, asked: Predicate) -> n.Node | None:
    """EXISTS of the row of an aggregate: where the conditions on it hold. None for any other."""
    conditions: list[exp.Expr] = []
    below = asked.bound
    while isinstance(below, n.Filter | n.Project | n.Sort | n.Distinct):
        if isinstance(below, n.Filter | n.Project) and below.subqueries:
            return None
        if isinstance(below, n.Filter):
            conditions.append(below.condition)
        elif isinstance(below, n.Project):
            pairs = zip(below.fields, below.expressions, strict=True)
            values = {item.id: exp.paren(tree) for item, tree in pairs}
            conditions = [_read(tree, values) for tree in conditions]
        below = below.input
    condition = ex.conjunction(conditions)
    if asked.operands is not None or condition is None or not _is_one_row(below):
        return None
    assert isinstance(below, n.Aggregate), "one row of an aggregate"
    if not referenced_ids(condition) <= {item.id for item in (*node.fields, *below.fields)}:
        return None
    condition = _over_nothing_too(condition, below)
    if asked.negated:
        condition = exp.not_(exp.func("COALESCE", condition, exp.false()))
    node = _beside(context, node, below, asked.bound, asked.words)
    return n.Filter(node.fields, input=node, condition=condition, span=own_span(asked.tree))


def _one_value(query: n.Node) -> n.Project | None:
    """The query, if it has one row and one column whatever it reads, and reads nothing outside."""
    if not isinstance(query, n.Project) or len(query.fields) != 1 or query.subqueries:
        return None
    return query if _is_one_row(query.input) and not loose_columns(query) else None


def _is_one_row(node: n.Node) -> bool:
    """Whether it is an aggregate without groups of which we know what it is over no rows."""
    if not isinstance(node, n.Aggregate) or node.keys or loose_columns(node):
        return False
    return not {_name(call) for call in node.aggregates} & _LISTS


def _name(call: exp.Expr) -> str:
    while isinstance(call, exp.Filter | exp.WithinGroup | exp.IgnoreNulls | exp.RespectNulls):
        call = call.this
    return ex.call_name(call) or ""


def _beside(context: Context, node: n.Node, value: n.Node, query: n.Node, words: str) -> n.Node:
    parts = JoinInput(node, value, "LEFT", False, None, None, None, query.span, predicate=words)
    return build_join(context, parts)


def _over_nothing_too(tree: exp.Expr, below: n.Aggregate) -> exp.Expr:
    """The expression over an aggregate; where there is no row of that, what it is without."""
    pairs = zip(below.fields, below.aggregates, strict=True)
    counts = [item for item, call in pairs if _name(call) in _COUNTS]
    zero = exp.Literal.number(0)
    return _read(tree, {item.id: exp.func("COALESCE", column(item), zero) for item in counts})


def _read(tree: exp.Expr, values: Mapping[str, exp.Expr]) -> exp.Expr:
    """The expression with values in the place of columns."""

    def swap(part: exp.Expr) -> exp.Expr:
        value = values.get(part.name) if isinstance(part, exp.Column) else None
        return part if value is None else value.copy()

    return tree.copy().transform(swap)


def _swapped(tree: exp.Expr, values: Mapping[int, exp.Expr]) -> exp.Expr:
    def swap(part: exp.Expr) -> exp.Expr:
        value = values.get(part.meta.get(NUMBER, -1)) if isinstance(part, exp.Query) else None
        return part if value is None else value.copy()

    return tree.copy().transform(swap)
