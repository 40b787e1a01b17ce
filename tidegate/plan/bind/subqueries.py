"""Subqueries as joins: IN and EXISTS as semi and anti joins, scalar subqueries as outer joins."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from sqlglot import exp

from tidegate.errors import pluralize
from tidegate.plan import nodes as n
from tidegate.plan.bind.joins import JoinClauses, build_join
from tidegate.plan.bind.scope import (
    BindingContext,
    column,
    copy_with_new_ids,
    fields_by_id,
    referenced_ids,
    rename_columns,
)
from tidegate.sql import expressions as ex
from tidegate.sql.dialect import own_span, to_sql

# The metadata key of an expression for the number of its bound subquery.
SUBQUERY_NUMBER = "subquery"

# The predicate of a join with the value of a scalar subquery.
SCALAR_SUBQUERY = "scalar subquery"


@dataclass(frozen=True)
class Predicate:
    """An IN or EXISTS with a subquery; `operands` are the left side of IN, None for EXISTS."""

    tree: exp.Expr
    negated: bool
    operands: tuple[exp.Expr, ...] | None
    query: exp.Expr
    bound: n.Node

    @property
    def words(self) -> str:
        word = "EXISTS" if self.operands is None else "IN"
        return f"NOT {word}" if self.negated else word


def find_subqueries(tree: exp.Expr, bound: Mapping[int, n.Node]) -> list[n.Node]:
    """Return the bound subqueries in an expression."""
    return [
        bound[part.meta[SUBQUERY_NUMBER]] for part in tree.walk() if SUBQUERY_NUMBER in part.meta
    ]


def reject_subqueries(context: BindingContext, tree: exp.Expr, position: str) -> None:
    """Report subqueries in an expression; they are only supported in conditions and columns."""
    for part in ex.walk_outside_subqueries(tree):
        if not isinstance(part, exp.Query):
            continue
        span = own_span(part.unnest())
        query = to_sql(part.unnest()) if span is None else context.text[span.start : span.end]
        hint = (
            "compute it in FROM, and use its column here: FROM (SELECT *, "
            f"({query.removeprefix('(').removesuffix(')')}) AS m FROM …)"
        )
        if isinstance(part.parent, exp.In | exp.Exists):
            hint = (
                "use a left join and check for a match: FROM … LEFT JOIN (SELECT DISTINCT k AS "
                "match_k FROM …) ON k = match_k, then match_k IS NOT NULL"
            )
        needed = [] if context.ttl_us is not None else ["WITH (state_ttl = '1 day') before AS"]
        needed += ["EMIT CHANGES at the end"] if context.emit is None else []
        hint += f"; also add {' and '.join(needed)}." if needed else "."
        context.report("TG-103", f"a subquery is not allowed {position}", part, hint)


def parse_predicate(condition: exp.Expr, bound: Mapping[int, n.Node]) -> Predicate | None:
    """Return a condition that is [NOT] IN or EXISTS with a subquery; None for others."""
    tree, negated = condition.unnest(), False
    while isinstance(tree, exp.Not):
        tree, negated = tree.this.unnest(), not negated
    if SUBQUERY_NUMBER not in tree.meta or isinstance(tree, exp.Query):
        return None
    query = bound[tree.meta[SUBQUERY_NUMBER]]
    if isinstance(tree, exp.Exists):
        return Predicate(condition, negated, None, tree.this, query)
    left = tree.this.unnest()
    operands = tuple(left.expressions) if isinstance(left, exp.Tuple) else (left,)
    if any(part.find(exp.Query) for part in operands):
        return None
    return Predicate(condition, negated, operands, tree.args["query"], query)


def join_predicate(
    context: BindingContext,
    node: n.Node,
    predicate: Predicate,
    time: str | None,
    unused: frozenset[str],
) -> n.Node:
    """Return the rows for which a predicate holds; `time` is their event time, for hints."""
    right, conditions = _pull_up(_relevant_rows(predicate), {item.id for item in node.fields})
    if not _check_supported(context, right, predicate):
        return node
    if predicate.operands is not None:
        values, columns = len(predicate.operands), len(predicate.bound.fields)
        if values != columns:
            context.report(
                "TG-308",
                f"IN compares {pluralize(values, 'value')} with a subquery that returns "
                f"{pluralize(columns, 'column')}",
                predicate.query,
                "select one column for each value on the left.",
            )
            return node
        if predicate.negated and not _check_nulls(context, node, right, predicate):
            return node
    else:
        right = _project_needed(right, conditions)

    def join(left: n.Node, other: n.Node, conditions: list[exp.Expr]) -> n.Node:
        parts = _join_input(left, other, predicate, conditions, time)
        return build_join(context, replace(parts, unused=unused))

    if predicate.operands is None:
        return join(node, right, conditions)
    pairs = zip(predicate.operands, right.fields, strict=False)
    equal = [exp.EQ(this=left.copy(), expression=column(item)) for left, item in pairs]
    joined = join(node, right, [*conditions, *equal])
    if not predicate.negated:
        return joined
    return _not_in_with_nulls(context, node, joined, right, conditions, predicate.operands[0], join)


def _join_input(
    left: n.Node, right: n.Node, predicate: Predicate, conditions: list[exp.Expr], time: str | None
) -> JoinClauses:
    return JoinClauses(
        left,
        right,
        "ANTI" if predicate.negated else "SEMI",
        False,
        ex.conjunction(conditions),
        None,
        None,
        own_span(predicate.query),
        (time, _subquery_time_name(predicate.query, right)),
        predicate=predicate.words,
    )


def _not_in_with_nulls(
    context: BindingContext,
    node: n.Node,
    joined: n.Node,
    right: n.Node,
    conditions: list[exp.Expr],
    operand: exp.Expr,
    join: Callable[[n.Node, n.Node, list[exp.Expr]], n.Node],
) -> n.Node:
    """Add the anti joins for NULLs in NOT IN.

    NOT IN is never true if one of the values is NULL. For a NULL operand it is only true if the
    subquery returns no rows.
    """
    if not _is_never_null(column(right.fields[0]), right):
        copied, ids = copy_with_new_ids(context, right)
        is_null = exp.Is(this=column(copied.fields[0]), expression=exp.null())
        copied = n.Filter(copied.fields, input=copied, condition=is_null, span=right.span)
        joined = join(joined, copied, [rename_columns(piece, ids) for piece in conditions])
    if not _is_never_null(operand, node):
        copied, ids = copy_with_new_ids(context, right)
        is_null = exp.Is(this=operand.copy(), expression=exp.null())
        copied_conditions = [rename_columns(piece, ids) for piece in conditions]
        joined = join(joined, copied, [*copied_conditions, is_null])
    return joined


def _relevant_rows(predicate: Predicate) -> n.Node:
    """Return the plan of a subquery without nodes that only reorder or deduplicate rows."""
    node = predicate.bound
    while isinstance(node, n.Distinct | n.Sort) or (
        predicate.operands is None and _keeps_existence(node)
    ):
        node = node.inputs[0]
    return node


def _keeps_existence(node: n.Node) -> bool:
    """Return whether the output of a node has a row if its input has one."""
    if isinstance(node, n.Project):
        return True
    if not isinstance(node, n.Limit) or node.offset is not None:
        return False
    return node.count is not None and node.count.is_int and int(node.count.name) > 0


def _pull_up(node: n.Node, outer: set[str]) -> tuple[n.Node, list[exp.Expr]]:
    """Return a plan without its conditions on outer columns, and these conditions."""
    if isinstance(node, n.Filter) and not node.subqueries:
        input_node, outer_conditions = _pull_up(node.input, outer)
        pieces = ex.conjuncts(node.condition)
        condition = ex.conjunction([piece for piece in pieces if not referenced_ids(piece) & outer])
        outer_conditions += [piece for piece in pieces if referenced_ids(piece) & outer]
        if condition is None:
            return input_node, outer_conditions
        node = replace(node, fields=input_node.fields, input=input_node, condition=condition)
        return node, outer_conditions
    if isinstance(node, n.Project):
        input_node, outer_conditions = _pull_up(node.input, outer)
        needed = set().union(*(referenced_ids(piece) for piece in outer_conditions))
        output_ids = {item.id for item in node.fields}
        # The start of a window bounds a join in time only together with the window end.
        added = tuple(
            item
            for item in input_node.fields
            if item.id not in output_ids and (item.id in needed or (needed and item.is_event_time))
        )
        expressions = node.expressions + tuple(column(item) for item in added)
        fields = node.fields + added
        node = replace(node, fields=fields, input=input_node, expressions=expressions)
        return node, outer_conditions
    return node, []


def _project_needed(node: n.Node, conditions: list[exp.Expr]) -> n.Node:
    """Select the columns of an EXISTS that its conditions on outer columns use."""
    needed = set().union(*(referenced_ids(piece) for piece in conditions))
    fields = tuple(
        item for item in node.fields if item.id in needed or (needed and item.is_event_time)
    )
    if not fields:
        return node
    expressions = tuple(column(item) for item in fields)
    return n.Project(fields, input=node, expressions=expressions, span=node.span)


def _check_supported(context: BindingContext, node: n.Node, predicate: Predicate) -> bool:
    """Report subqueries that cannot become a join."""
    message, hint = "", "write it as a join in FROM."
    if outer_columns(node):
        message = f"this {predicate.words} refers to outer columns outside of its WHERE clause"
        hint = "compare outer columns in WHERE of the subquery, outside of GROUP BY and UNION."
    elif predicate.operands is None and _returns_row_without_input(predicate.bound):
        message = f"the subquery of this {predicate.words} returns a row even without input"
        hint = "remove the aggregate: EXISTS (SELECT 1 FROM … WHERE …)."
    if not message:
        return True
    context.report("TG-410", message, predicate.query, hint)
    return False


def _returns_row_without_input(node: n.Node) -> bool:
    """Return whether a plan may return a row for empty input, as an aggregate without keys does."""
    if isinstance(node, n.Aggregate) and not node.keys:
        return True
    if isinstance(node, n.Join):
        left, right = map(_returns_row_without_input, (node.left, node.right))
        others = {"INNER": left and right, "RIGHT": right, "FULL": left or right}
        return others.get(node.how, left)
    return any(map(_returns_row_without_input, node.inputs))


def _check_nulls(
    context: BindingContext, node: n.Node, right: n.Node, predicate: Predicate
) -> bool:
    """Report NOT IN with several operands if one may be NULL: the result would differ per value."""
    assert predicate.operands is not None, "NOT IN has a left side"
    if len(predicate.operands) == 1:
        return True
    for operand in predicate.operands:
        if not _is_never_null(operand, node):
            return _report_null(context, predicate, to_sql(_with_column_names(operand, node)))
    for item in right.fields[: len(predicate.operands)]:
        if not _is_never_null(column(item), right):
            return _report_null(context, predicate, item.name)
    return True


def _report_null(context: BindingContext, predicate: Predicate, operand: str) -> bool:
    context.report(
        "TG-410",
        f"{operand} may be NULL, and with a NULL on either side NOT IN is never true",
        predicate.tree,
        f"use NOT EXISTS (SELECT 1 FROM … WHERE … = {operand}), which ignores NULLs; or add "
        f"{operand} IS NOT NULL on its side, or declare it NOT NULL.",
    )
    return False


def _with_column_names(tree: exp.Expr, node: n.Node) -> exp.Expr:
    names = {item.id: item.name for item in node.fields}

    def swap(part: exp.Expr) -> exp.Expr:
        return exp.column(names.get(part.name, part.name)) if isinstance(part, exp.Column) else part

    return tree.copy().transform(swap)


def _is_never_null(tree: exp.Expr, node: n.Node) -> bool:
    """Return whether an expression is never NULL, by declaration or by a condition below."""
    tree = tree.unnest()
    if isinstance(tree, exp.Literal):
        return True
    item = fields_by_id(node.fields).get(tree.name) if isinstance(tree, exp.Column) else None
    if item is not None and not item.nullable:
        return True
    if isinstance(node, n.Filter):
        return tree in _not_null_columns(node.condition) or _is_never_null(tree, node.input)
    if isinstance(node, n.Join) and node.how in ("SEMI", "ANTI"):
        return _is_never_null(tree, node.left)
    if isinstance(node, n.Project) and item is not None:
        return _is_never_null(node.expressions[node.fields.index(item)], node.input)
    return False


def _not_null_columns(condition: exp.Expr) -> list[exp.Expr]:
    """Return the expressions for which a condition requires IS NOT NULL."""
    columns = []
    for tree in ex.conjuncts(condition):
        inner = tree.this.unnest() if isinstance(tree, exp.Not) else None
        if isinstance(inner, exp.Is) and isinstance(inner.expression, exp.Null):
            columns.append(inner.this.unnest())
    return columns


def _subquery_time_name(query: exp.Expr, right: n.Node) -> str | None:
    """Return the event time of a subquery over one table as it is written in SQL."""
    select = query.unnest()
    if not isinstance(select, exp.Select) or select.args.get("group") or select.args.get("joins"):
        return None
    node, source = right, select.args.get("from_")
    while isinstance(node, n.Project | n.Filter):
        node = node.input
    times = [item.name for item in node.fields if item.is_event_time]
    return f"{source.this.alias_or_name}.{times[0]}" if times and source is not None else None


def outer_columns(node: n.Node) -> set[str]:
    """Return the columns that a plan refers to and none of its nodes provides."""
    outer: set[str] = set()
    for part in n.walk(node):
        input_ids = {name for child in part.inputs for name in fields_by_id(child.fields)}
        referenced = set().union(*(referenced_ids(tree) for tree in _expressions_of(part)))
        outer |= referenced - input_ids
    return outer


def _expressions_of(node: n.Node) -> Iterator[exp.Expr]:
    for part in fields(node):
        yield from _find_trees(getattr(node, part.name))


def _find_trees(value: Any) -> Iterator[exp.Expr]:
    if isinstance(value, exp.Expr):
        yield value
    elif isinstance(value, n.KeyPair):
        yield from (value.left, value.right)
    elif isinstance(value, tuple):
        for part in value:
            yield from _find_trees(part)


# ---- Scalar subqueries, and EXISTS of one: joins with the only row of an aggregate without keys
#
# The aggregate emits no row before it has input. Until then its values are those over zero rows:
# counts are 0, all others are NULL.

_COUNTS = frozenset({"COUNT", "COUNT_IF", "APPROX_COUNT_DISTINCT", "REGR_COUNT"})
# Over zero rows these are empty lists, neither NULL nor 0.
_LISTS = frozenset({"COLLECT_LIST", "COLLECT_SET", "ARRAY_AGG"})


def join_scalar_subqueries(
    context: BindingContext, node: n.Node, trees: Sequence[exp.Expr], bound: Mapping[int, n.Node]
) -> tuple[n.Node, list[exp.Expr]]:
    """Join the values of scalar subqueries, and return expressions that read them.

    A subquery that is not a value of one aggregate remains and is rejected later.
    """
    values: dict[int, exp.Expr] = {}
    for tree in trees:
        for part in list(tree.walk()):
            number = part.meta.get(SUBQUERY_NUMBER)
            if number is None or number in values or not isinstance(part, exp.Query):
                continue
            projection = _single_value(bound[number])
            if projection is None or (bound[number].bounded and node.bounded):
                continue
            node = _join_row(context, node, projection.input, bound[number], SCALAR_SUBQUERY)
            assert isinstance(projection.input, n.Aggregate), "the projection reads an Aggregate"
            values[number] = exp.paren(
                _with_empty_value(projection.expressions[0], projection.input)
            )
    return node, [_substitute_subqueries(tree, values) for tree in trees] if values else list(trees)


def join_exists_of_aggregate(
    context: BindingContext, node: n.Node, predicate: Predicate
) -> n.Node | None:
    """Replace EXISTS over the row of an aggregate by a join and a filter; None for others."""
    conditions: list[exp.Expr] = []
    rows = predicate.bound
    while isinstance(rows, n.Filter | n.Project | n.Sort | n.Distinct):
        if isinstance(rows, n.Filter | n.Project) and rows.subqueries:
            return None
        if isinstance(rows, n.Filter):
            conditions.append(rows.condition)
        elif isinstance(rows, n.Project):
            pairs = zip(rows.fields, rows.expressions, strict=True)
            values = {item.id: exp.paren(tree) for item, tree in pairs}
            conditions = [_substitute_columns(tree, values) for tree in conditions]
        rows = rows.input
    condition = ex.conjunction(conditions)
    if predicate.operands is not None or condition is None or not _is_single_row(rows):
        return None
    assert isinstance(rows, n.Aggregate), "the rows are those of an Aggregate"
    if not referenced_ids(condition) <= {item.id for item in (*node.fields, *rows.fields)}:
        return None
    condition = _with_empty_value(condition, rows)
    if predicate.negated:
        condition = exp.not_(exp.func("COALESCE", condition, exp.false()))
    node = _join_row(context, node, rows, predicate.bound, predicate.words)
    return n.Filter(node.fields, input=node, condition=condition, span=own_span(predicate.tree))


def _single_value(query: n.Node) -> n.Project | None:
    """Return the projection of a query with one row and one column and without outer columns."""
    if not isinstance(query, n.Project) or len(query.fields) != 1 or query.subqueries:
        return None
    return query if _is_single_row(query.input) and not outer_columns(query) else None


def _is_single_row(node: n.Node) -> bool:
    """Return whether a node is an aggregate without keys whose values over zero rows are known."""
    if not isinstance(node, n.Aggregate) or node.keys or outer_columns(node):
        return False
    return not {_function_name(call) for call in node.aggregates} & _LISTS


def _function_name(call: exp.Expr) -> str:
    while isinstance(call, exp.Filter | exp.WithinGroup | exp.IgnoreNulls | exp.RespectNulls):
        call = call.this
    return ex.call_name(call) or ""


def _join_row(
    context: BindingContext, node: n.Node, value: n.Node, query: n.Node, words: str
) -> n.Node:
    parts = JoinClauses(node, value, "LEFT", False, None, None, None, query.span, predicate=words)
    return build_join(context, parts)


def _with_empty_value(tree: exp.Expr, aggregate: n.Aggregate) -> exp.Expr:
    """Return an expression over an aggregate with the values over zero rows if it has no row."""
    pairs = zip(aggregate.fields, aggregate.aggregates, strict=True)
    counts = [item for item, call in pairs if _function_name(call) in _COUNTS]
    zero = exp.Literal.number(0)
    return _substitute_columns(
        tree, {item.id: exp.func("COALESCE", column(item), zero) for item in counts}
    )


def _substitute_columns(tree: exp.Expr, values: Mapping[str, exp.Expr]) -> exp.Expr:
    """Replace columns of an expression by values."""

    def swap(part: exp.Expr) -> exp.Expr:
        value = values.get(part.name) if isinstance(part, exp.Column) else None
        return part if value is None else value.copy()

    return tree.copy().transform(swap)


def _substitute_subqueries(tree: exp.Expr, values: Mapping[int, exp.Expr]) -> exp.Expr:
    def swap(part: exp.Expr) -> exp.Expr:
        value = (
            values.get(part.meta.get(SUBQUERY_NUMBER, -1)) if isinstance(part, exp.Query) else None
        )
        return part if value is None else value.copy()

    return tree.copy().transform(swap)
