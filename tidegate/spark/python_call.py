"""Call a Python function in tasks: check its results and report its exceptions."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.errors import RunError

_SHOWN = 300


def checked(
    name: str, call: Callable[..., Any], scalar: bool, kind: pa.DataType, declared: str
) -> Callable[..., Any]:
    """Return the function over arrays with checked results; `declared` is the SQL type."""

    def called(*arrays: Any) -> Any:
        try:
            result = [call(*row) for row in _rows(arrays)] if scalar else call(*arrays)
        except Exception as error:
            raise _failed(name, call, error) from error
        if scalar:
            return _made(name, result, kind, declared)
        return _fitting(name, result, len(arrays[0]), kind, declared)

    return called


def of_rows_only(called: Callable[..., Any], kind: pa.DataType) -> Callable[..., Any]:
    """Return the function for the rows selected by a first array; others are NULL.

    Spark calls Python for every row below it, whatever CASE says.
    """

    def of_rows(live: Any, *arrays: Any) -> Any:
        mask = pc.fill_null(live, False)
        rows = mask.true_count
        if rows == len(mask):
            return called(*arrays)
        if rows == 0:
            return pa.nulls(len(mask), kind)
        result = called(*(array.filter(mask) for array in arrays))
        positions = pc.subtract(pc.cumulative_sum(pc.cast(mask, pa.int64())), 1)
        return result.take(pc.if_else(mask, positions, pa.scalar(None, pa.int64())))

    return of_rows


def _rows(arrays: tuple[Any, ...]) -> Any:
    return zip(*(array.to_pylist() for array in arrays), strict=True)


def _made(name: str, values: list[Any], kind: pa.DataType, declared: str) -> pa.Array:
    try:
        return pa.array(values, type=kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise RunError(
            "TG-510",
            f"the function {name} gave a value that is no {declared}: {_error_text(error)}",
            hint=f"return a value of {declared} or None, or declare another type.",
        ) from error


def _fitting(name: str, value: Any, rows: int, kind: pa.DataType, declared: str) -> pa.Array:
    """Return the result of a function if it has a value of the declared type for each row."""
    result = value.combine_chunks() if isinstance(value, pa.ChunkedArray) else value
    if not isinstance(result, pa.Array):
        raise RunError(
            "TG-510",
            f"the function {name} gave a {type(value).__name__}, not an Arrow array",
            hint="it gets pyarrow arrays and returns one; a function of single values is declared "
            "with scalar=True.",
        )
    if len(result) != rows:
        raise RunError(
            "TG-510",
            f"the function {name} gave {len(result)} values for {rows} rows",
            hint="return an array with one value for each row, in their order.",
        )
    if result.type == kind:
        return result
    if not _is_spelling(result.type, kind):
        raise RunError(
            "TG-510",
            f"the function {name} gave {result.type}, and is declared to give {declared}",
            hint=f"cast what it returns to {kind}, or declare the type that it gives.",
        )
    return result.cast(kind)


def _is_spelling(actual: pa.DataType, declared: pa.DataType) -> bool:
    """Return True if one type is a variant of the other: of strings, binaries or nested types."""
    same = [_is_text, _is_bytes, pa.types.is_nested]
    return pa.types.is_null(actual) or any(is_one(actual) and is_one(declared) for is_one in same)


def _is_text(kind: pa.DataType) -> bool:
    return str(kind) in ("string", "large_string", "string_view")


def _is_bytes(kind: pa.DataType) -> bool:
    return str(kind) in ("binary", "large_binary", "binary_view")


def _failed(name: str, call: Callable[..., Any], error: Exception) -> RunError:
    where = _line(call, error)
    return RunError(
        "TG-510",
        f"the function {name} failed: {type(error).__name__}: {_error_text(error)}{where}",
        hint="no data was lost; fix the function and restart. NULL is passed as None.",
    )


def _error_text(error: Exception) -> str:
    """Return the message of an error on one line."""
    text = " ".join(str(error).split())
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def _line(call: Callable[..., Any], error: Exception) -> str:
    """Return the line of the function that failed."""
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
