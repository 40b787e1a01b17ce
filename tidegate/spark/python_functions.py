"""Python functions in Spark: their registration in a session, and their calls in tasks.

Python workers import this module: it must not load the parser.
"""

from __future__ import annotations

import sys
import sysconfig
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from py4j.protocol import Py4JError
from pyspark import cloudpickle as untyped_cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as untyped_functions
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tidegate.errors import RunError

if TYPE_CHECKING:
    from tidegate.catalog.objects import Function


cloudpickle: Any = untyped_cloudpickle
# The type stubs of these functions are out of date.
F: Any = untyped_functions


def register(spark: SparkSession, function: Function) -> None:
    """Make a function known to this session, and to those that are cloned from it later."""
    from tidegate.sql.expressions import name_for_selected_rows

    assert function.python is not None and function.returns is not None, "it is Python"
    code = function.python
    schema = StructType.fromDDL(f"c {function.returns}")
    assert isinstance(schema, StructType), "a column is a struct"
    kind = to_arrow_schema(schema, timezone="UTC").field(0).type
    called = with_checks(function.name, code.call, code.scalar, kind, function.returns)
    for name, implementation in (
        (function.registered_name, called),
        (name_for_selected_rows(function.registered_name), for_selected_rows(called, kind)),
    ):
        with warnings.catch_warnings():
            # Spark warns about missing type hints, which variadic functions cannot have.
            warnings.simplefilter("ignore", UserWarning)
            udf = F.arrow_udf(implementation, schema.fields[0].dataType, F.ArrowUDFType.SCALAR)
        udf = udf if code.deterministic else udf.asNondeterministic()
        with _pickled_by_value(code.call):
            spark.udf.register(name, udf)


def unregister(spark: SparkSession, names: Iterable[str]) -> None:
    """Remove a function from the session, unless the session has ended."""
    from tidegate.sql.expressions import name_for_selected_rows

    with suppress(PySparkException, Py4JError, AttributeError, ConnectionError):
        for name in names:
            spark.sql(f"DROP TEMPORARY FUNCTION IF EXISTS {name}")
            spark.sql(f"DROP TEMPORARY FUNCTION IF EXISTS {name_for_selected_rows(name)}")


@contextmanager
def _pickled_by_value(call: Any) -> Iterator[None]:
    """Pickle the module of a function by value, unless it is installed in workers too."""
    module = sys.modules.get(getattr(call, "__module__", None) or "")
    file = getattr(module, "__file__", None)
    installed = [sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")]
    is_local = file is not None and not any(file.startswith(path) for path in installed)
    if (
        module is None
        or not is_local
        or module.__name__ in cloudpickle.list_registry_pickle_by_value()
    ):
        yield
        return
    cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(module)


# ---- Calls of Python functions in tasks: check results and report exceptions


MAX_MESSAGE_LENGTH = 300


def with_checks(
    name: str, call: Callable[..., Any], is_scalar: bool, kind: pa.DataType, declared: str
) -> Callable[..., Any]:
    """Return the function over arrays, with checks of its results.

    `kind` is the declared type in Arrow, `declared` the same type in SQL.
    """

    def checked_call(*arrays: Any) -> Any:
        try:
            result = [call(*row) for row in _rows(arrays)] if is_scalar else call(*arrays)
        except Exception as error:
            raise _call_error(name, call, error) from error
        if is_scalar:
            return _to_array(name, result, kind, declared)
        return _check_array(name, result, len(arrays[0]), kind, declared)

    return checked_call


def for_selected_rows(checked_call: Callable[..., Any], kind: pa.DataType) -> Callable[..., Any]:
    """Return the function for the rows that its first argument selects; other results are NULL.

    Spark evaluates Python functions for all rows, even if they are in a branch of CASE.
    """

    def call_selected(selected: Any, *arrays: Any) -> Any:
        mask = pc.fill_null(selected, False)
        rows = mask.true_count
        if rows == len(mask):
            return checked_call(*arrays)
        if rows == 0:
            return pa.nulls(len(mask), kind)
        result = checked_call(*(array.filter(mask) for array in arrays))
        positions = pc.subtract(pc.cumulative_sum(pc.cast(mask, pa.int64())), 1)
        return result.take(pc.if_else(mask, positions, pa.scalar(None, pa.int64())))

    return call_selected


def _rows(arrays: tuple[Any, ...]) -> Any:
    return zip(*(array.to_pylist() for array in arrays), strict=True)


def _to_array(name: str, values: list[Any], kind: pa.DataType, declared: str) -> pa.Array:
    try:
        return pa.array(values, type=kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise RunError(
            "TG-510",
            f"the function {name} returned a value that is not a {declared}: {_error_text(error)}",
            hint=f"return a {declared} or None, or declare another type.",
        ) from error


def _check_array(name: str, value: Any, rows: int, kind: pa.DataType, declared: str) -> pa.Array:
    """Check that the result of a function has a value of the declared type for each row."""
    result = value.combine_chunks() if isinstance(value, pa.ChunkedArray) else value
    if not isinstance(result, pa.Array):
        raise RunError(
            "TG-510",
            f"the function {name} returned a {type(value).__name__}, not an Arrow array",
            hint="return a pyarrow array; or declare the function with scalar=True to call it with "
            "single values.",
        )
    if len(result) != rows:
        raise RunError(
            "TG-510",
            f"the function {name} returned {len(result)} values for {rows} rows",
            hint="return an array with one value per row, in the order of the rows.",
        )
    if result.type == kind:
        return result
    if not _is_variant(result.type, kind):
        raise RunError(
            "TG-510",
            f"the function {name} returned {result.type}, but its declared type is {declared}",
            hint=f"cast the result to {kind}, or declare the type that the function returns.",
        )
    return result.cast(kind)


def _is_variant(actual: pa.DataType, declared: pa.DataType) -> bool:
    """Return whether both types are strings, binaries or nested, or the actual one is NULL."""
    families = [_is_text, _is_bytes, pa.types.is_nested]
    return pa.types.is_null(actual) or any(
        is_member(actual) and is_member(declared) for is_member in families
    )


def _is_text(kind: pa.DataType) -> bool:
    return str(kind) in ("string", "large_string", "string_view")


def _is_bytes(kind: pa.DataType) -> bool:
    return str(kind) in ("binary", "large_binary", "binary_view")


def _call_error(name: str, call: Callable[..., Any], error: Exception) -> RunError:
    line = _failed_line(call, error)
    return RunError(
        "TG-510",
        f"the function {name} failed: {type(error).__name__}: {_error_text(error)}{line}",
        hint="no data was lost; fix the function and restart. NULL is passed as None.",
    )


def _error_text(error: Exception) -> str:
    """Return the message of an error on one line."""
    text = " ".join(str(error).split())
    return text if len(text) <= MAX_MESSAGE_LENGTH else text[:MAX_MESSAGE_LENGTH] + "…"


def _failed_line(call: Callable[..., Any], error: Exception) -> str:
    """Return the file and the line of the function that raised the error."""
    code = getattr(call, "__code__", None)
    frames = traceback.extract_tb(error.__traceback__)
    function_frames = [
        frame for frame in frames if code is not None and frame.filename == code.co_filename
    ]
    return (
        f" ({Path(function_frames[-1].filename).name}, line {function_frames[-1].lineno})"
        if function_frames
        else ""
    )
