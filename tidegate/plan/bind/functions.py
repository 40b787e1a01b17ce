"""Calls of functions of the user's own: what they stand for is written in their place.

An expression of SQL becomes part of the query, so that all that holds for expressions holds for it.
A function of Python stays a call, by the name under which Spark knows it.
"""

from __future__ import annotations

from sqlglot import exp

from tidegate.catalog.objects import Function, Parameter
from tidegate.plan.nodes.over import FRAMELESS_FUNCTIONS
from tidegate.sql import expressions as ex
from tidegate.sql.dialect import DIALECT, own_span
from tidegate.types import Span

# Marks what a call was written out to; the name of the function.
CALLED_FUNCTION = "called"

Wrong = tuple[str, str, exp.Expr | Span | None, str]


def misused(call: exp.Anonymous, function: Function, arguments: list[exp.Expr]) -> Wrong | None:
    """What is wrong with a call: code, message, place and hint."""
    taken, given = len(function.parameters), len(arguments)
    hint = f"it is declared as {function.signature}."
    odd = (exp.Star, exp.Distinct, exp.Kwarg, exp.PropertyEQ, exp.Alias)
    for argument in arguments:
        if isinstance(argument, odd):
            message = f"{function.name} takes values, one for each parameter"
            return "TG-314", message, call, hint
    if taken != given:
        arguments_ = "1 argument" if taken == 1 else f"{taken} arguments"
        message = f"{function.name} takes {arguments_}, and {given} {'is' if given == 1 else 'are'}"
        return "TG-314", f"{message} given", call, hint
    for parameter, argument in zip(function.parameters, arguments, strict=True):
        if ex.is_random(argument) and _is_repeated(function, parameter):
            message = (
                f"the argument {parameter.name} of {function.name} is random, and would be drawn "
                "again where it is used again"
            )
            return "TG-103", message, call, "compute it in a subquery: FROM (SELECT …, … AS r …)."
    return None


def _is_repeated(function: Function, parameter: Parameter) -> bool:
    """Whether an expression uses a parameter several times: in a lambda, for every element."""
    if function.body is None:
        return False
    uses = [part for part in function.body.find_all(exp.Column) if _is(part, parameter)]
    return len(uses) > 1 or any(part.find_ancestor(exp.Lambda) for part in uses)


def _is(part: exp.Column, parameter: Parameter) -> bool:
    return bool(part.name.lower() == parameter.name.lower())


def written_out(call: exp.Anonymous, function: Function, arguments: list[exp.Expr]) -> exp.Expr:
    """The expression that a call stands for; arguments and result have the declared types."""
    cast = {
        parameter.name.lower(): _cast(argument, parameter.type)
        for parameter, argument in zip(function.parameters, arguments, strict=True)
    }
    span = own_span(call)
    if function.body is None:
        made: exp.Expr = exp.Anonymous(this=function.registered, expressions=list(cast.values()))
    else:
        body = _placed(function.body.copy(), span)
        _keep_apart(body, arguments)
        whole = exp.Paren(this=body)
        for part in list(whole.find_all(exp.Column)):
            part.replace(cast[part.name.lower()].copy())
        made = whole if function.returns is None else _cast(whole.this, function.returns)
    if span is not None:
        made.meta["span"] = (span.start, span.end)
    made.meta[CALLED_FUNCTION] = function.name
    return made


def _cast(tree: exp.Expr, kind: str | None) -> exp.Expr:
    if kind is None:
        return tree
    to = exp.DataType.build(kind, dialect=DIALECT)
    if type(tree) is exp.Cast and tree.to == to:
        return tree
    made = exp.Cast(this=tree, to=to)
    span = own_span(tree)
    if span is not None:
        made.meta["span"] = (span.start, span.end)
    return made


def _placed(body: exp.Expr, span: Span | None) -> exp.Expr:
    """The body as if it stood where it is called: its own text may be another one."""
    for part in body.walk():
        for key in ("start", "end", "line", "col", "span"):
            part.meta.pop(key, None)
        if span is not None:
            part.meta["span"] = (span.start, span.end)
    return body


def _keep_apart(body: exp.Expr, arguments: list[exp.Expr]) -> None:
    """Parameters of lambdas in the body get other names than what the arguments speak of."""
    names = {part.name.lower() for tree in arguments for part in tree.find_all(exp.Identifier)}
    used = names | {part.name.lower() for part in body.find_all(exp.Identifier)}
    for found in list(body.find_all(exp.Lambda)):
        for parameter in list(found.expressions):
            old = new = parameter.name.lower()
            if old not in names:
                continue
            while new in used:
                new += "_"
            used.add(new)
            rename_parameter(found.this, old, new)
            parameter.replace(exp.to_identifier(new, quoted=True))


def rename_parameter(tree: exp.Expr, old: str, new: str) -> None:
    """Rename a parameter in the body of its lambda, but not where another one hides it."""
    if isinstance(tree, exp.Lambda) and old in {part.name.lower() for part in tree.expressions}:
        return
    if isinstance(tree, exp.Identifier):
        if tree.name.lower() == old:
            tree.set("this", new)
            tree.set("quoted", True)
        return
    if isinstance(tree, exp.Column | exp.DataType):
        return
    for child in list(tree.iter_expressions()):
        is_name = isinstance(child, exp.Identifier) and child.arg_key in ("alias", "expression")
        if not (is_name and isinstance(tree, exp.Alias | exp.Dot)):
            rename_parameter(child, old, new)


# ---- Calls that are written in a way of their own, as plain ones.

# Marks an ORDER BY that begins with the row that came last.
NEWEST_FIRST = "newest"
# They ask how many rows are equal in order, which rows that arrive never are.
_OF_PEERS = frozenset({"PERCENT_RANK", "CUME_DIST"})


def by_arrival(window: exp.Window) -> exp.Window:
    """OVER (… ORDER BY PROCTIME()) is the order in which rows arrive: no two are equal in it."""
    order = window.args.get("order")
    parts = order.expressions if order is not None else []
    if len(parts) != 1 or ex.call_name(parts[0].this) != "PROCTIME":
        return window
    name, backwards = _function(window), bool(parts[0].args.get("desc"))
    ranks = name in ex.RANK_FUNCTIONS
    if name in _OF_PEERS or (backwards and not ranks) or _by_distance(window):
        return window
    window = window.copy()
    constant = exp.Ordered(this=exp.Null(), desc=backwards)
    constant.meta[NEWEST_FIRST] = backwards
    window.set("order", exp.Order(expressions=[constant]))
    if ranks:
        window.set("this", exp.Anonymous(this="ROW_NUMBER"))
        if not backwards:
            window.set("order", None)
    elif name not in FRAMELESS_FUNCTIONS:
        window.set("spec", _of_rows(window.args.get("spec")))
    return window


def orders_by_processing_time(window: exp.Window) -> bool:
    """Whether PROCTIME() stands in its ORDER BY."""
    order = window.args.get("order")
    parts = order.expressions if order is not None else []
    return any(ex.call_name(part.this) == "PROCTIME" for part in parts)


def _function(window: exp.Window) -> str:
    call = window.this
    while isinstance(call, exp.Filter | exp.IgnoreNulls | exp.RespectNulls):
        call = call.this
    return ex.call_name(call) or ""


def _by_distance(window: exp.Window) -> bool:
    """Whether a frame reaches a time or a number back or ahead, not rows."""
    spec = window.args.get("spec")
    if spec is None or str(spec.args.get("kind")).upper() == "ROWS":
        return False
    bounds = (spec.args.get("start"), spec.args.get("end"))
    return any(bound not in (None, "UNBOUNDED", "CURRENT ROW") for bound in bounds)


def _of_rows(spec: exp.Expr | None) -> exp.Expr:
    """The frame of a row without the rows that are equal to it in the order: there are none."""
    if spec is None:
        spec = exp.WindowSpec(start="UNBOUNDED", start_side="PRECEDING", end="CURRENT ROW")
    spec = spec.copy()
    spec.set("kind", "ROWS")
    return spec


def with_unit(node: exp.Expr) -> exp.Expr:
    """timestampadd(HOUR, 1, ts): HOUR is a word, not a column."""
    if ex.call_name(node) not in ex.UNIT_FUNCTIONS or len(node.expressions) != 3:
        return node
    unit = node.expressions[0]
    if not isinstance(unit, exp.Column) or unit.name.upper() not in ex.UNITS:
        return node
    result = node.copy()
    result.expressions[0].replace(exp.Var(this=unit.name.upper()))
    return result


def _is_named(part: exp.Expr) -> bool:
    return isinstance(part, exp.Column) and not isinstance(part.this, exp.Star)


def with_names(node: exp.Expr) -> exp.Expr:
    """struct(a) has a field a, whatever the id of that column is."""
    if ex.call_name(node) != "STRUCT":
        return node
    named = node.copy()
    parts = [
        exp.alias_(part, part.name, quoted=True) if _is_named(part) else part
        for part in node.expressions
    ]
    named.set("expressions", parts)
    return named
