"""Expressions of stateful nodes: their text in the query, aggregate calls, and ORDER BY."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from tidegate.physical.operator_kind import Rejection, Unrunnable
from tidegate.plan import nodes as n
from tidegate.sql import expressions as ex
from tidegate.sql.dialect import own_span, to_sql

if TYPE_CHECKING:
    from tidegate.operators.kernels.ordering import Ordering
    from tidegate.physical.typed import Types


def text_of(tree: exp.Expr) -> str:
    """Return the SQL of an expression without the backquotes around column ids, for messages."""
    return to_sql(tree).replace("`", "")


def names_of(fields: tuple[n.Field, ...]) -> str:
    return ", ".join(item.name for item in fields)


def expression_text(tree: exp.Expr, node: n.Node) -> str:
    """Return an expression with the query's names for the columns of a node."""
    names = {item.id: item.name for item in node.fields}

    def named(part: exp.Expr) -> exp.Expr:
        if isinstance(part, exp.Column) and part.name in names:
            return exp.column(exp.to_identifier(names[part.name], quoted=True))
        return part

    return text_of(tree.copy().transform(named))


# ---- Aggregate calls


@dataclass(frozen=True)
class CallPlan:
    """An aggregate call, divided into function, SQL of the arguments, constants and FILTER."""

    function: str
    # The call with the column names of the query.
    text: str
    arguments: tuple[str, ...]
    constants: tuple[Any, ...]
    distinct: bool
    filter: str | None

    @property
    def folds_filter(self) -> bool:
        """Whether FILTER can be folded into the arguments: where it is false, they become NULL."""
        from tidegate.operators.aggregate.functions import ignores_nulls

        return self.function == "count" or ignores_nulls(self.function, self.constants)

    @property
    def filtered(self) -> bool:
        """Whether the last argument is the FILTER condition."""
        return self.filter is not None and not self.folds_filter

    @property
    def argument_sql(self) -> list[str]:
        """The SQL of the arguments, with FILTER folded into them or added as the last one."""
        if self.filter is None:
            return list(self.arguments)
        if not self.folds_filter:
            return [*self.arguments, f"coalesce({self.filter}, false)"]
        arguments = self.arguments or ("1",)
        return [f"CASE WHEN {self.filter} THEN {argument} END" for argument in arguments]


def plan_call(tree: exp.Expr, node: n.Node) -> CallPlan:
    """Split an aggregate call over the columns of a node into its parts."""
    from tidegate.operators.aggregate.functions import FUNCTIONS, constants_from

    text = expression_text(tree, node)
    call, condition, constants = _unwrapped(tree)
    name = ex.call_name(call)
    assert name is not None, f"{text} is a call"
    function = name.lower()
    if function not in FUNCTIONS:
        names = ", ".join(sorted(FUNCTIONS))
        message = f"the aggregate {function} is not supported yet"
        raise Unrunnable(Rejection(message, f"supported aggregates: {names}.", own_span(tree)))
    parts = list(call.expressions)
    distinct = bool(parts) and isinstance(parts[0], exp.Distinct)
    if distinct:
        parts = list(parts[0].expressions)
    first_constant = constants_from(function)
    arguments = []
    for position, part in enumerate(parts):
        if isinstance(part, exp.Star):
            continue
        is_constant, value = _constant(part)
        if first_constant is None or position < first_constant:
            arguments.append(to_sql(part))
        elif is_constant:
            constants.append(value)
        else:
            message = f"{text}: {text_of(part)} must be a constant"
            hint = "write a number or a string for it, such as percentile(x, 0.95)."
            if not function.endswith(("percentile", "percentile_approx")):
                hint = "write a number or a string for it."
            raise Unrunnable(Rejection(message, hint, own_span(tree)))
    if function == "count" and len(parts) == 1 and arguments and _constant(parts[0])[0]:
        # count(1) counts rows; count(NULL) counts none and is left as it is.
        arguments = [] if _constant(parts[0])[1] is not None and not distinct else arguments
    return CallPlan(function, text, tuple(arguments), tuple(constants), distinct, condition)


def _without_order(tree: exp.WithinGroup) -> str:
    """Suggest the aggregate without WITHIN GROUP."""
    name = (ex.call_name(tree.this) or "").upper()
    key = next(iter(tree.expression.expressions), None) if tree.expression is not None else None
    if name in ("PERCENTILE_CONT", "PERCENTILE_DISC") and isinstance(key, exp.Ordered):
        arguments = ", ".join(text_of(part) for part in tree.this.expressions)
        function = "percentile" if name == "PERCENTILE_CONT" else "approx_percentile"
        if not key.args.get("desc"):
            return f"write {function}({text_of(key.this)}, {arguments})."
    return "write percentile(x, 0.5), or string_agg(x, ','), which keeps the order of arrival."


def _unwrapped(tree: exp.Expr) -> tuple[exp.Expr, str | None, list[Any]]:
    """Return the call inside FILTER and IGNORE NULLS, with their condition and constants."""
    condition: str | None = None
    constants: list[Any] = []
    whole = tree
    while isinstance(tree, exp.Filter | exp.IgnoreNulls | exp.RespectNulls | exp.WithinGroup):
        if isinstance(tree, exp.WithinGroup):
            message = f"{text_of(whole)}: WITHIN GROUP is not supported yet"
            raise Unrunnable(Rejection(message, _without_order(tree), own_span(whole)))
        if isinstance(tree, exp.Filter):
            condition = to_sql(tree.expression.this)
        else:
            constants.append(isinstance(tree, exp.IgnoreNulls))
        tree = tree.this
    return tree, condition, constants


def _constant(tree: exp.Expr) -> tuple[bool, Any]:
    """Return whether an expression is a literal (or an array of them), and its value."""
    tree = tree.unnest()
    if isinstance(tree, exp.Literal):
        if tree.is_string:
            return True, tree.name
        return True, int(tree.name) if tree.is_int else float(tree.name)
    if isinstance(tree, exp.Boolean):
        return True, bool(tree.this)
    if isinstance(tree, exp.Neg):
        is_constant, value = _constant(tree.this)
        return (True, -value) if is_constant and isinstance(value, int | float) else (False, None)
    if isinstance(tree, exp.Null):
        return True, None
    if ex.call_name(tree) == "ARRAY":
        values = [_constant(part) for part in tree.expressions]
        return all(is_constant for is_constant, _ in values), tuple(value for _, value in values)
    return False, None


# ---- ORDER BY of top-N, OVER and MATCH_RECOGNIZE.


def ordered_by(part: exp.Expr) -> str:
    """Return the SQL of an ORDER BY expression."""
    return to_sql(part.this if isinstance(part, exp.Ordered) else part)


def ordering(part: exp.Expr, types: Types) -> Ordering:
    """Return the type, direction and NULL placement of an ORDER BY expression."""
    from tidegate.operators.kernels.ordering import Ordering

    data_type = types.of(ordered_by(part))
    if not isinstance(part, exp.Ordered):
        return Ordering(data_type)
    descending, first = bool(part.args.get("desc")), part.args.get("nulls_first")
    return Ordering(data_type, descending, not descending if first is None else bool(first))
