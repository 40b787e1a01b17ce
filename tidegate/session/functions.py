"""Functions that are declared in Python, with `db.function`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tidegate.catalog.catalog import Catalog
from tidegate.catalog.objects import Function, Parameter, PythonCode, ScriptOrigin
from tidegate.catalog.options import Options
from tidegate.catalog.python_functions import misfit, parameter_names, version_of
from tidegate.errors import RunError, ScriptError, TidegateError
from tidegate.plan.bind.declarations import check_name
from tidegate.plan.bind.scope import Context
from tidegate.sql import statements as st
from tidegate.sql.parser import parse_script

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class PythonFunctions:
    """The functions that the Spark of a session knows, by the names it knows them by."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def on(self, spark: SparkSession, catalog: Catalog) -> SparkSession:
        """The session, which now knows those of a catalog."""
        for function in catalog.of(Function):
            if function.python is not None and function.registered not in self.names:
                from tidegate.spark.python_functions import register

                register(spark, function)
                self.names.add(function.registered)
        return spark

    def leave(self, spark: SparkSession | None) -> None:
        """Take them off again."""
        if spark is not None and self.names:
            from tidegate.spark.python_functions import unregister

            unregister(spark, self.names)
            self.names = set()


def python_declaration(
    name: str,
    call: Callable[..., Any],
    returns: str,
    arguments: Sequence[str] | None,
    code: dict[str, Any],
) -> Function:
    """The function as the catalog has it; `code` is what PythonCode holds besides the call."""
    if not callable(call):
        raise RunError(
            "TG-210",
            f"{name} is to be a function, and is a {type(call).__name__}",
            hint="db.function('fee', fee, returns='DOUBLE')",
        )
    parameters = _parameters(name, call, arguments)
    listed = ", ".join(f"{p.name} {p.type or 'STRING'}" for p in parameters)
    text = f"CREATE OR REPLACE FUNCTION {name}({listed}) RETURNS {returns} LANGUAGE PYTHON AS 'p:f'"
    statement = _read(text)
    wrong = misfit(name, call, len(parameters))
    if wrong is not None:
        raise RunError("TG-210", wrong[0], hint=wrong[1])
    version = version_of(call, code.pop("version"))
    options = Options({}, {}, set())
    statement = replace(statement, text="", python=None)
    return Function(
        statement.name,
        options,
        statement,
        ScriptOrigin(text, None),
        parameters,
        statement.returns,
        python=PythonCode(call, version, **code),
    )


def _parameters(
    name: str, call: Callable[..., Any], arguments: Sequence[str] | None
) -> tuple[Parameter, ...]:
    names = parameter_names(call)
    if arguments is None and names is None:
        raise RunError(
            "TG-210",
            f"the function {name} does not say how many arguments it takes",
            hint="say their types: db.function(…, arguments=['BIGINT', 'STRING']).",
        )
    if isinstance(arguments, str):
        raise RunError(
            "TG-210",
            f"the arguments of {name} are a list of types, not a text",
            hint=f"arguments=[{arguments!r}]",
        )
    if arguments is None:
        return tuple(Parameter(item, None) for item in names or ())
    if names is None or len(names) != len(arguments):
        names = [f"x{location}" for location, _ in enumerate(arguments, start=1)]
    return tuple(Parameter(*pair) for pair in zip(names, arguments, strict=True))


def _read(text: str) -> st.CreateFunction:
    """The declaration as SQL, so that names and types are those of SQL."""
    script = parse_script(text)
    errors = [error for error in script.errors if isinstance(error, TidegateError)]
    if not errors:
        (statement,) = script.statements
        assert isinstance(statement, st.CreateFunction), "a function is declared"
        context = Context(Catalog(), text, None, statement.name_span)
        check_name(statement, context)
        if not context.errors:
            return statement
        errors = context.errors
    raise ScriptError(errors)
