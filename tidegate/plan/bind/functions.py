"""User-defined functions: their calls are inlined.

The expression of an SQL function becomes part of the query, so all rules for expressions apply to
it. A Python function remains a call, by the name under which Spark has registered it. The module
also normalizes special syntax of built-in functions.
"""

from __future__ import annotations

from sqlglot import exp

from tidegate.catalog.objects import Function, Parameter
from tidegate.plan.nodes.over import FRAMELESS_FUNCTIONS
from tidegate.sql import expressions as ex
from tidegate.sql.dialect import DIALECT, own_span
from tidegate.types import RANK_FUNCTIONS, Span

# The metadata key of an inlined call, for the name of the function.
CALLED_FUNCTION = "called"

# Code, message, location and hint.
Problem = tuple[str, str, exp.Expr | Span | None, str]


def find_misuse(
    call: exp.Anonymous, function: Function, arguments: list[exp.Expr]
) -> Problem | None:
    """Return the code, message, location and hint for an invalid call; None if it is valid."""
    expected, count = len(function.parameters), len(arguments)
    hint = f"it is declared as {function.signature}."
    unsupported = (exp.Star, exp.Distinct, exp.Kwarg, exp.PropertyEQ, exp.Alias)
    for argument in arguments:
        if isinstance(argument, unsupported):
            message = f"{function.name} takes values, one for each parameter"
            return "TG-314", message, call, hint
    if expected != count:
        argument_text = "1 argument" if expected == 1 else f"{expected} arguments"
        message = (
            f"{function.name} takes {argument_text}, but {count} {'was' if count == 1 else 'were'}"
        )
        return "TG-314", f"{message} given", call, hint
    for parameter, argument in zip(function.parameters, arguments, strict=True):
        if ex.is_random(argument) and _is_repeated(function, parameter):
            message = (
                f"{function.name} uses its argument {parameter.name} more than once, and a random "
                "argument would have another value each time"
            )
            return "TG-103", message, call, "compute it in a subquery: FROM (SELECT …, … AS r …)."
    return None


def _is_repeated(function: Function, parameter: Parameter) -> bool:
    """Return whether a function evaluates a parameter several times, also in a lambda."""
    if function.body is None:
        return False
    uses = [part for part in function.body.find_all(exp.Column) if _refers_to(part, parameter)]
    return len(uses) > 1 or any(part.find_ancestor(exp.Lambda) for part in uses)


def _refers_to(part: exp.Column, parameter: Parameter) -> bool:
    return bool(part.name.lower() == parameter.name.lower())


def inline_call(call: exp.Anonymous, function: Function, arguments: list[exp.Expr]) -> exp.Expr:
    """Return the expression of a call; arguments and result have the declared types."""
    arguments_by_name = {
        parameter.name.lower(): _cast(argument, parameter.type)
        for parameter, argument in zip(function.parameters, arguments, strict=True)
    }
    span = own_span(call)
    if function.body is None:
        result: exp.Expr = exp.Anonymous(
            this=function.registered_name, expressions=list(arguments_by_name.values())
        )
    else:
        body = _relocate(function.body.copy(), span)
        _rename_captured_parameters(body, arguments)
        enclosed = exp.Paren(this=body)
        for part in list(enclosed.find_all(exp.Column)):
            part.replace(arguments_by_name[part.name.lower()].copy())
        result = enclosed if function.returns is None else _cast(enclosed.this, function.returns)
    if span is not None:
        result.meta["span"] = (span.start, span.end)
    result.meta[CALLED_FUNCTION] = function.name
    return result


def _cast(tree: exp.Expr, type_name: str | None) -> exp.Expr:
    if type_name is None:
        return tree
    to = exp.DataType.build(type_name, dialect=DIALECT)
    if type(tree) is exp.Cast and tree.to == to:
        return tree
    cast = exp.Cast(this=tree, to=to)
    span = own_span(tree)
    if span is not None:
        cast.meta["span"] = (span.start, span.end)
    return cast


def _relocate(body: exp.Expr, span: Span | None) -> exp.Expr:
    """Set the location of all parts of a body to that of the call."""
    for part in body.walk():
        for key in ("start", "end", "line", "col", "span"):
            part.meta.pop(key, None)
        if span is not None:
            part.meta["span"] = (span.start, span.end)
    return body


def _rename_captured_parameters(body: exp.Expr, arguments: list[exp.Expr]) -> None:
    """Rename lambda parameters of a body that would capture names in the arguments."""
    argument_names = {
        part.name.lower() for tree in arguments for part in tree.find_all(exp.Identifier)
    }
    used_names = argument_names | {part.name.lower() for part in body.find_all(exp.Identifier)}
    for lambda_ in list(body.find_all(exp.Lambda)):
        for parameter in list(lambda_.expressions):
            old = new = parameter.name.lower()
            if old not in argument_names:
                continue
            while new in used_names:
                new += "_"
            used_names.add(new)
            rename_parameter(lambda_.this, old, new)
            parameter.replace(exp.to_identifier(new, quoted=True))


def rename_parameter(tree: exp.Expr, old: str, new: str) -> None:
    """Rename a parameter in the body of its lambda, except where an inner lambda hides it."""
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


# ---- Special syntax of built-in functions

# The metadata key of an ORDER BY that starts with the last row to arrive.
NEWEST_FIRST = "newest"
# Functions that count peers. Rows in order of arrival have none.
_PEER_FUNCTIONS = frozenset({"PERCENT_RANK", "CUME_DIST"})


def order_by_arrival(window: exp.Window) -> exp.Window:
    """Rewrite OVER (… ORDER BY PROCTIME()), the order of arrival, which has no peers."""
    order = window.args.get("order")
    parts = order.expressions if order is not None else []
    if len(parts) != 1 or ex.call_name(parts[0].this) != "PROCTIME":
        return window
    name, descending = _function_name(window), bool(parts[0].args.get("desc"))
    is_rank = name in RANK_FUNCTIONS
    if name in _PEER_FUNCTIONS or (descending and not is_rank) or _has_range_offset(window):
        return window
    window = window.copy()
    constant = exp.Ordered(this=exp.Null(), desc=descending)
    constant.meta[NEWEST_FIRST] = descending
    window.set("order", exp.Order(expressions=[constant]))
    if is_rank:
        window.set("this", exp.Anonymous(this="ROW_NUMBER"))
        if not descending:
            window.set("order", None)
    elif name not in FRAMELESS_FUNCTIONS:
        window.set("spec", _as_rows_frame(window.args.get("spec")))
    return window


def arrival_order_problem(window: exp.Window) -> tuple[str, str]:
    """Return the rule that an OVER with ORDER BY PROCTIME() violates, and a hint."""
    keys = window.args["order"].expressions
    name = _function_name(window).lower()
    hint = "write OVER (… ORDER BY PROCTIME() ROWS BETWEEN 9 PRECEDING AND CURRENT ROW)."
    if len(keys) > 1:
        return "ORDER BY PROCTIME() cannot be combined with other keys", hint
    if name.upper() in _PEER_FUNCTIONS:
        message = f"{name} counts rows with equal keys, and rows in order of arrival have none"
        return message, "use row_number(), or order by the event time within windows."
    if _has_range_offset(window):
        return "ORDER BY PROCTIME() needs a frame in ROWS, not in RANGE", hint
    return f"{name} cannot be in descending order of arrival; only ranks can", hint


def orders_by_processing_time(window: exp.Window) -> bool:
    """Return whether ORDER BY contains PROCTIME()."""
    order = window.args.get("order")
    keys = order.expressions if order is not None else []
    return any(ex.call_name(key.this) == "PROCTIME" for key in keys)


def _function_name(window: exp.Window) -> str:
    call = window.this
    while isinstance(call, exp.Filter | exp.IgnoreNulls | exp.RespectNulls):
        call = call.this
    return ex.call_name(call) or ""


def _has_range_offset(window: exp.Window) -> bool:
    """Return whether a frame bound is a distance in time or in a number, not in rows."""
    spec = window.args.get("spec")
    if spec is None or str(spec.args.get("kind")).upper() == "ROWS":
        return False
    bounds = (spec.args.get("start"), spec.args.get("end"))
    return any(bound not in (None, "UNBOUNDED", "CURRENT ROW") for bound in bounds)


def _as_rows_frame(spec: exp.Expr | None) -> exp.Expr:
    """Return a frame as ROWS: without peers both have the same rows."""
    if spec is None:
        spec = exp.WindowSpec(start="UNBOUNDED", start_side="PRECEDING", end="CURRENT ROW")
    spec = spec.copy()
    spec.set("kind", "ROWS")
    return spec


def resolve_unit(node: exp.Expr) -> exp.Expr:
    """Treat HOUR in timestampadd(HOUR, 1, ts) as a unit, not as a column."""
    if ex.call_name(node) not in ex.UNIT_FUNCTIONS or len(node.expressions) != 3:
        return node
    unit = node.expressions[0]
    if not isinstance(unit, exp.Column) or unit.name.upper() not in ex.UNITS:
        return node
    result = node.copy()
    result.expressions[0].replace(exp.Var(this=unit.name.upper()))
    return result


def _is_column(part: exp.Expr) -> bool:
    return isinstance(part, exp.Column) and not isinstance(part.this, exp.Star)


def name_struct_fields(node: exp.Expr) -> exp.Expr:
    """Name the fields of struct(a) after its columns, independent of their ids."""
    if ex.call_name(node) != "STRUCT":
        return node
    result = node.copy()
    parts = [
        exp.alias_(part, part.name, quoted=True) if _is_column(part) else part
        for part in node.expressions
    ]
    result.set("expressions", parts)
    return result
