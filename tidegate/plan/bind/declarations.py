"""CREATE FUNCTION and computed columns: binding expressions that belong to no query."""

from __future__ import annotations

import re
from dataclasses import replace

from sqlglot import exp
from sqlglot.errors import SqlglotError

from tidegate.catalog.declare import DeclarationBuilder
from tidegate.catalog.objects import Column, Function, Parameter, PythonCode, ScriptText, Source
from tidegate.catalog.options import Options
from tidegate.catalog.python_functions import PYTHON_OPTIONS, load, parameter_problem, version_of
from tidegate.errors import CatalogError
from tidegate.plan.bind.functions import find_misuse, inline_call
from tidegate.plan.bind.resolve import Resolver, find_user_function
from tidegate.plan.bind.scope import BindingContext, Relation, Scope
from tidegate.plan.nodes import Field
from tidegate.sql import expressions as ex
from tidegate.sql import statements as st
from tidegate.sql.dialect import DIALECT
from tidegate.sql.expressions import is_python

_BUILT_IN_HINT = "choose another name: a call would be ambiguous between Tidegate and Spark."


def bind_function(
    statement: st.CreateFunction, context: BindingContext, declarer: DeclarationBuilder
) -> Function | None:
    """Return the function that a statement declares, or None after reporting errors."""
    check_function_name(statement, context)
    options, errors = declarer.options(PYTHON_OPTIONS, "a function", statement)
    context.errors += errors
    if statement.python is not None:
        return _bind_python_function(statement, options, context, declarer.script)
    assert statement.body is not None, "an SQL function has an expression"
    body = _bind_body(statement, statement.body, context)
    parameters = tuple(Parameter(p.name, p.type) for p in statement.parameters)
    script = declarer.script
    return Function(
        statement.name, options, statement, script, parameters, statement.returns, body=body
    )


def _bind_body(statement: st.CreateFunction, tree: exp.Expr, context: BindingContext) -> exp.Expr:
    """Bind the expression of an SQL function over its parameters, all of which it must use."""
    fields = tuple(Field(p.name, p.name, p.type) for p in statement.parameters)
    resolver = Resolver(context, Scope([Relation(statement.name, fields)]))
    body = resolver.resolve(tree)
    if not ex.is_scalar(body):
        context.report(
            "TG-305",
            f"function {statement.name} must be scalar: no aggregate, OVER or explode",
            statement.definition_span,
            f"pass the result to it: {statement.name}(sum(x)).",
        )
    used_names = {part.name.lower() for part in body.find_all(exp.Column)}
    for parameter in statement.parameters:
        if parameter.name.lower() not in used_names and not context.errors:
            message = f"the parameter {parameter.name} of {statement.name} is not used"
            context.report("TG-210", message, parameter.span, "remove it.")
    return body


def _bind_python_function(
    statement: st.CreateFunction, options: Options, context: BindingContext, script: ScriptText
) -> Function | None:
    """Load the Python function that a statement names."""
    assert statement.python is not None, "the statement declares a Python function"
    if statement.returns is None:
        hint = "declare the type of the result: RETURNS BIGINT."
        context.report("TG-210", "a Python function needs RETURNS", statement.name_span, hint)
        return None
    try:
        call = load(statement.python, script.folder)
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
    problem = parameter_problem(statement.name, call, len(parameters))
    if problem is not None:
        context.report("TG-210", problem[0], statement.definition_span, problem[1])
    return Function(
        statement.name, options, statement, script, parameters, statement.returns, python=code
    )


def inline_calls(tree: exp.Expr, context: BindingContext) -> exp.Expr:
    """Inline the calls of user-defined functions in an expression outside of a query."""

    def inline(node: exp.Expr) -> exp.Expr:
        function = find_user_function(node, context)
        if function is None or not isinstance(node, exp.Anonymous):
            return node
        arguments = [inline_calls(part, context) for part in node.expressions]
        problem = find_misuse(node, function, arguments)
        if problem is not None:
            context.report(*problem)
            return node
        return inline_call(node, function, arguments)

    return tree.transform(inline)


# Keywords of SQL that are also in the list of Spark's functions.
_KEYWORDS = frozenset({"AND", "BETWEEN", "CASE", "CAST", "IN", "LIKE", "NOT", "OR", "WHEN"})


def check_function_name(statement: st.CreateFunction, context: BindingContext) -> None:
    """Report a name that a call could not use, or that belongs to a built-in function."""
    name = statement.name
    built_in = ex.spark_functions() | ex.TIDEGATE_FUNCTIONS | ex.UNIT_FUNCTIONS
    if name.upper() in _KEYWORDS:
        message = f"{name.upper()} is a keyword"
        context.report("TG-202", message, statement.name_span, "choose another name.")
    elif name.upper() in built_in | ex.SPARK_WINDOW_FUNCTIONS:
        message = f"{name.lower()} is already a function of {_owner(name)}"
        context.report("TG-202", message, statement.name_span, _BUILT_IN_HINT)
    elif re.fullmatch(r"[A-Za-z]\w*", name, re.ASCII) is None or not _is_callable(name):
        message = f"{name} cannot be the name of a function: a call could not be parsed"
        hint = "use letters, digits and _, and no SQL keyword: my_function."
        context.report("TG-210", message, statement.name_span, hint)


def _owner(name: str) -> str:
    return "Tidegate" if name.upper() in ex.TIDEGATE_FUNCTIONS else "Spark"


def _is_callable(name: str) -> bool:
    """Return whether name(1) is parsed as a call."""
    try:
        (tree,) = DIALECT.parse(f"SELECT {name}(1)")
    except SqlglotError:
        return False
    call = tree.expressions[0] if isinstance(tree, exp.Select) and tree.expressions else None
    return isinstance(call, exp.Anonymous) and ex.call_name(call) == name.upper()


# ---- Computed columns of sources: expressions over the stored columns


def bind_computed_columns(source: Source, context: BindingContext) -> Source:
    """Return the source with calls in its computed columns inlined; report errors."""
    stored = tuple(Field(c.name, c.name, c.type) for c in source.stored_columns)
    resolver = Resolver(context, Scope([Relation(source.name, stored)]))
    return replace(
        source, columns=tuple(_bind_column(c, resolver, context) for c in source.columns)
    )


def _bind_column(column: Column, resolver: Resolver, context: BindingContext) -> Column:
    if column.computed is None:
        return column
    resolved = resolver.resolve(column.computed)
    if not ex.is_scalar(resolved):
        context.report(
            "TG-305",
            f"computed column {column.name} must be scalar: no aggregate, OVER or explode",
            column.computed,
            "compute it in a stream over the source.",
        )
    if any(is_python(name) for name, _ in ex.calls(resolved)):
        # It would also be called for malformed records.
        context.report(
            "TG-103",
            f"computed column {column.name} calls a Python function, which sources do not support",
            column.computed,
            "call it in a stream over the source.",
        )
    return replace(
        column,
        computed=resolved if _calls_user_function(column.computed, context) else column.computed,
    )


def _calls_user_function(tree: exp.Expr, context: BindingContext) -> bool:
    return any(isinstance(context.catalog.get(name), Function) for name, _ in ex.calls(tree))
