"""Calls of aggregates: the function, the SQL of its arguments, and its constants."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlglot import exp

from tidegate.physical.refusal import Refusal, Unrunnable
from tidegate.physical.words import in_words, text_of
from tidegate.plan import nodes as n
from tidegate.sql import expressions as ex
from tidegate.sql.dialect import own_span, to_sql


@dataclass(frozen=True)
class CallPlan:
    """One aggregate; `text` is the call in the words of the query."""

    function: str
    text: str
    arguments: tuple[str, ...]
    constants: tuple[Any, ...]
    distinct: bool
    filter: str | None

    @property
    def folds_filter(self) -> bool:
        """Whether FILTER can be had by making the argument NULL."""
        from tidegate.operators.aggregate.functions import ignores_nulls

        return self.function == "count" or ignores_nulls(self.function, self.constants)

    @property
    def filtered(self) -> bool:
        """Whether the last argument says which rows count."""
        return self.filter is not None and not self.folds_filter

    @property
    def argument_sql(self) -> list[str]:
        """The arguments, with FILTER folded in or as one more of them."""
        if self.filter is None:
            return list(self.arguments)
        if not self.folds_filter:
            return [*self.arguments, f"coalesce({self.filter}, false)"]
        arguments = self.arguments or ("1",)
        return [f"CASE WHEN {self.filter} THEN {argument} END" for argument in arguments]


def plan_call(tree: exp.Expr, node: n.Node) -> CallPlan:
    """Take an aggregate call over the columns of a node apart."""
    from tidegate.operators.aggregate.functions import FUNCTIONS, constants_from

    text = in_words(tree, node)
    call, condition, constants = _unwrapped(tree)
    name = ex.call_name(call)
    assert name is not None, f"{text} is a call"
    function = name.lower()
    if function not in FUNCTIONS:
        known = ", ".join(sorted(FUNCTIONS))
        message = f"the aggregate {function} cannot run on streams yet"
        raise Unrunnable(Refusal(message, f"aggregates that run: {known}.", own_span(tree)))
    parts = list(call.expressions)
    distinct = bool(parts) and isinstance(parts[0], exp.Distinct)
    if distinct:
        parts = list(parts[0].expressions)
    first_constant = constants_from(function)
    arguments = []
    for place, part in enumerate(parts):
        if isinstance(part, exp.Star):
            continue
        known_value, value = _constant(part)
        if first_constant is None or place < first_constant:
            arguments.append(to_sql(part))
        elif known_value:
            constants.append(value)
        else:
            message = f"{text}: {text_of(part)} is not a constant, and such a call cannot run"
            hint = "write that argument as a literal."
            raise Unrunnable(Refusal(message, hint, own_span(tree)))
    if function == "count" and len(parts) == 1 and arguments and _constant(parts[0])[0]:
        # count(1) counts rows; count(NULL) counts none and is left as it is.
        arguments = [] if _constant(parts[0])[1] is not None and not distinct else arguments
    return CallPlan(function, text, tuple(arguments), tuple(constants), distinct, condition)


def _unwrapped(tree: exp.Expr) -> tuple[exp.Expr, str | None, list[Any]]:
    """The call inside of FILTER and IGNORE NULLS, and what these say."""
    condition: str | None = None
    constants: list[Any] = []
    whole = tree
    while isinstance(tree, exp.Filter | exp.IgnoreNulls | exp.RespectNulls | exp.WithinGroup):
        if isinstance(tree, exp.WithinGroup):
            message = f"{text_of(whole)}: WITHIN GROUP cannot run on streams yet"
            hint = "percentile(x, 0.5) and string_agg(x, ',') take no order."
            raise Unrunnable(Refusal(message, hint, own_span(whole)))
        if isinstance(tree, exp.Filter):
            condition = to_sql(tree.expression.this)
        else:
            constants.append(isinstance(tree, exp.IgnoreNulls))
        tree = tree.this
    return tree, condition, constants


def _constant(tree: exp.Expr) -> tuple[bool, Any]:
    """Whether an expression is a literal (or an array of them), and its value."""
    tree = tree.unnest()
    if isinstance(tree, exp.Literal):
        if tree.is_string:
            return True, tree.name
        return True, int(tree.name) if tree.is_int else float(tree.name)
    if isinstance(tree, exp.Boolean):
        return True, bool(tree.this)
    if isinstance(tree, exp.Neg):
        known, value = _constant(tree.this)
        return (True, -value) if known and isinstance(value, int | float) else (False, None)
    if isinstance(tree, exp.Null):
        return True, None
    if ex.call_name(tree) == "ARRAY":
        values = [_constant(part) for part in tree.expressions]
        return all(known for known, _ in values), tuple(value for _, value in values)
    return False, None
