"""CREATE FUNCTION: the expression of a function, over its parameters and nothing else."""

from __future__ import annotations

import re
from dataclasses import replace

from sqlglot import exp
from sqlglot.errors import SqlglotError

from tidegate.catalog.declare import Declarer
from tidegate.catalog.objects import Column, Function, Parameter, PythonCode, ScriptOrigin, Source
from tidegate.catalog.options import Options
from tidegate.catalog.python_functions import PYTHON_OPTIONS, load, parameter_problem, version_of
from tidegate.errors import CatalogError
from tidegate.plan.bind.functions import misused, written_out
from tidegate.plan.bind.resolve import Resolver, own_function
from tidegate.plan.bind.scope import Context, Relation, Scope
from tidegate.plan.nodes import Field
from tidegate.sql import expressions as ex
from tidegate.sql import statements as st
from tidegate.sql.dialect import DIALECT
from tidegate.sql.expressions import is_python

_BUILT_IN_HINT = "choose another name: a call of it would mean one thing here and another in Spark."


def bind_function(
    statement: st.CreateFunction, context: Context, declarer: Declarer
) -> Function | None:
    """The function that a statement declares; `context.errors` says why there is none."""
    check_function_name(statement, context)
    options, errors = declarer.options(PYTHON_OPTIONS, "a function", statement)
    context.errors += errors
    if statement.python is not None:
        return _python_function(statement, options, context, declarer.origin)
    assert statement.body is not None, "a function of SQL has an expression"
    body = _bound_body(statement, statement.body, context)
    parameters = tuple(Parameter(p.name, p.type) for p in statement.parameters)
    origin = declarer.origin
    return Function(
        statement.name, options, statement, origin, parameters, statement.returns, body=body
    )


def _bound_body(statement: st.CreateFunction, written: exp.Expr, context: Context) -> exp.Expr:
    """The expression over the parameters, which it all needs."""
    fields = tuple(Field(p.name, p.name, p.type) for p in statement.parameters)
    resolver = Resolver(context, Scope([Relation(statement.name, fields)]))
    body = resolver.resolve(written)
    if not ex.is_scalar(body):
        context.report(
            "TG-305",
            f"the function {statement.name} must be made of one row: no aggregate, OVER or explode",
            statement.definition_span,
            f"give it the result: {statement.name}(sum(x)).",
        )
    used = {part.name.lower() for part in body.find_all(exp.Column)}
    for parameter in statement.parameters:
        if parameter.name.lower() not in used and not context.errors:
            message = f"the parameter {parameter.name} of {statement.name} is not used"
            context.report("TG-210", message, parameter.span, "leave it out.")
    return body


def _python_function(
    statement: st.CreateFunction, options: Options, context: Context, origin: ScriptOrigin
) -> Function | None:
    """The function of a module that a statement names."""
    assert statement.python is not None, "it is a function of Python"
    if statement.returns is None:
        hint = "say what it gives: RETURNS BIGINT."
        context.report("TG-210", "a function of Python needs RETURNS", statement.name_span, hint)
        return None
    try:
        call = load(statement.python, origin.folder)
        code = PythonCode(
            call,
            version_of(call, options["version"]),
            bool(options["scalar"]),
            bool(options["deterministic"]),
        )
    except CatalogError as error:
        context.report(error.code, error.message, statement.definition_span, error.hint)
        return None
    parameters = tuple(Parameter(p.name, p.type) for p in statement.parameters)
    wrong = parameter_problem(statement.name, call, len(parameters))
    if wrong is not None:
        context.report("TG-210", wrong[0], statement.definition_span, wrong[1])
    return Function(
        statement.name, options, statement, origin, parameters, statement.returns, python=code
    )


def inline_calls(tree: exp.Expr, context: Context) -> exp.Expr:
    """An expression of no query with what its calls stand for."""

    def swapped(node: exp.Expr) -> exp.Expr:
        function = own_function(node, context)
        if function is None or not isinstance(node, exp.Anonymous):
            return node
        arguments = [inline_calls(part, context) for part in node.expressions]
        wrong = misused(node, function, arguments)
        if wrong is not None:
            context.report(*wrong)
            return node
        return written_out(node, function, arguments)

    return tree.transform(swapped)


def check_function_name(statement: st.CreateFunction, context: Context) -> None:
    """A function can be called by its name, and nothing else is."""
    name = statement.name
    built_in = ex.spark_functions() | ex.OWN_FUNCTIONS | ex.UNIT_FUNCTIONS
    if name.upper() in built_in | ex.SPARK_WINDOW_FUNCTIONS:
        message = f"{name.lower()} is a function of {_owner(name)} already"
        context.report("TG-202", message, statement.name_span, _BUILT_IN_HINT)
    elif re.fullmatch(r"[A-Za-z]\w*", name, re.ASCII) is None or not _is_callable(name):
        message = f"{name} cannot be the name of a function: calls of it could not be read"
        hint = "take letters, digits and _, and no word of SQL: my_function."
        context.report("TG-210", message, statement.name_span, hint)


def _owner(name: str) -> str:
    return "Tidegate" if name.upper() in ex.OWN_FUNCTIONS else "Spark"


def _is_callable(name: str) -> bool:
    """Whether name(1) is read as a call."""
    try:
        (tree,) = DIALECT.parse(f"SELECT {name}(1)")
    except SqlglotError:
        return False
    call = tree.expressions[0] if isinstance(tree, exp.Select) and tree.expressions else None
    return isinstance(call, exp.Anonymous) and ex.call_name(call) == name.upper()


# ---- Computed columns of sources: expressions over the stored ones.


def bind_computed_columns(source: Source, context: Context) -> Source:
    """The source with the functions of its columns written out; `context.errors` has the rest."""
    stored = tuple(Field(c.name, c.name, c.type) for c in source.stored_columns)
    resolver = Resolver(context, Scope([Relation(source.name, stored)]))
    return replace(source, columns=tuple(_bound(c, resolver, context) for c in source.columns))


def _bound(column: Column, resolver: Resolver, context: Context) -> Column:
    if column.computed is None:
        return column
    resolved = resolver.resolve(column.computed)
    if not ex.is_scalar(resolved):
        context.report(
            "TG-305",
            f"the computed column {column.name} must be made of one row: no aggregate, OVER or "
            "explode",
            column.computed,
            "compute it in a stream over the source.",
        )
    if any(is_python(name) for name, _ in ex.calls(resolved)):
        # It would be called for records that cannot be read, too.
        context.report(
            "TG-103",
            f"the computed column {column.name} calls a function of Python, which sources cannot",
            column.computed,
            "call it in a stream over the source.",
        )
    return replace(
        column, computed=resolved if _calls_own(column.computed, context) else column.computed
    )


def _calls_own(tree: exp.Expr, context: Context) -> bool:
    return any(isinstance(context.catalog.get(name), Function) for name, _ in ex.calls(tree))
