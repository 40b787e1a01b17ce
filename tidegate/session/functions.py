"""Python functions that `db.function` registers for use in SQL."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tidegate.catalog.catalog import Catalog
from tidegate.catalog.objects import Function, Parameter, PythonCode, ScriptText
from tidegate.catalog.options import Options
from tidegate.catalog.python_functions import parameter_names, parameter_problem, version_of
from tidegate.errors import RunError, ScriptError, TidegateError
from tidegate.plan.bind.declarations import check_function_name
from tidegate.plan.bind.scope import BindingContext
from tidegate.sql import statements as st
from tidegate.sql.parser import parse_script

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class PythonFunctions:
    """The Python functions that are registered in a session's Spark, by their registered names."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def register(self, spark: SparkSession, catalog: Catalog) -> SparkSession:
        """Register the functions of a catalog with a SparkSession and return it."""
        for function in catalog.of_type(Function):
            if function.python is not None and function.registered_name not in self.names:
                from tidegate.spark.python_functions import register

                register(spark, function)
                self.names.add(function.registered_name)
        return spark

    def unregister(self, spark: SparkSession | None) -> None:
        """Unregister all functions."""
        if spark is not None and self.names:
            from tidegate.spark.python_functions import unregister

            unregister(spark, self.names)
            self.names = set()


def python_declaration(
    name: str,
    call: Callable[..., Any],
    returns: str,
    arguments: Sequence[str] | None,
    *,
    scalar: bool,
    deterministic: bool,
    version: str | None,
) -> Function:
    """Build the catalog's declaration of a Python function."""
    if not callable(call):
        raise RunError(
            "TG-210",
            f"{name} must be a function, not a {type(call).__name__}",
            hint="db.function('fee', fee, returns='DOUBLE')",
        )
    parameters = _parameters(name, call, arguments)
    listed = ", ".join(f"{p.name} {p.type or 'STRING'}" for p in parameters)
    text = f"CREATE OR REPLACE FUNCTION {name}({listed}) RETURNS {returns} LANGUAGE PYTHON AS 'p:f'"
    statement = _parse_declaration(text)
    problem = parameter_problem(name, call, len(parameters))
    if problem is not None:
        raise RunError("TG-210", problem[0], hint=problem[1])
    options = Options({}, {}, set())
    statement = replace(statement, text="", python=None)
    return Function(
        statement.name,
        options,
        statement,
        ScriptText(text, None),
        parameters,
        statement.returns,
        python=PythonCode(call, version_of(call, version), scalar, deterministic),
    )


def _parameters(
    name: str, call: Callable[..., Any], arguments: Sequence[str] | None
) -> tuple[Parameter, ...]:
    names = parameter_names(call)
    if arguments is None and names is None:
        raise RunError(
            "TG-210",
            f"the number of arguments of function {name} is unknown",
            hint="declare their types: db.function(…, arguments=['BIGINT', 'STRING']).",
        )
    if isinstance(arguments, str):
        raise RunError(
            "TG-210",
            f"the arguments of {name} must be a list of types, not a string",
            hint=f"arguments=[{arguments!r}]",
        )
    if arguments is None:
        return tuple(Parameter(item, None) for item in names or ())
    if names is None or len(names) != len(arguments):
        names = [f"x{number}" for number, _ in enumerate(arguments, start=1)]
    return tuple(Parameter(*pair) for pair in zip(names, arguments, strict=True))


def _parse_declaration(text: str) -> st.CreateFunction:
    """Parse the declaration as SQL, so that names and types follow the rules of SQL."""
    script = parse_script(text)
    errors = [error for error in script.errors if isinstance(error, TidegateError)]
    if not errors:
        (statement,) = script.statements
        assert isinstance(statement, st.CreateFunction), "the text is a CREATE FUNCTION statement"
        context = BindingContext(Catalog(), text, None, statement.name_span)
        check_function_name(statement, context)
        if not context.errors:
            return statement
        errors = context.errors
    raise ScriptError(errors)
