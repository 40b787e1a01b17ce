"""Vectorized expressions: Arrow kernels that return what Spark returns, evaluated in the tasks.

Only types and functions for which the results are proven equal have kernels here. If a kernel
fails on a value, the epoch runs again with Spark SQL, which decides whether it is an error. Python
workers import this module: it must not load the parser.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.columns import SELECTED

# The value of an expression: an array, or a scalar if it is the same for all rows.
Value = Any


class VectorFailed(Exception):
    """A kernel failed on a value; Spark SQL has to decide what this means."""


class RecordFailed(VectorFailed):
    """A record that only Spark can decode."""


class Vector(Protocol):
    """An expression over the columns of a batch."""

    def evaluate(self, batch: pa.RecordBatch) -> Value:
        """Evaluate the expression for all rows of a batch."""


@dataclass(frozen=True)
class VectorColumn:
    """A column of the batch."""

    name: str

    def evaluate(self, batch: pa.RecordBatch) -> Value:
        return batch.column(self.name)


@dataclass(frozen=True)
class VectorConstant:
    """A literal."""

    value: Any
    type: pa.DataType

    def evaluate(self, batch: pa.RecordBatch) -> Value:
        return pa.scalar(self.value, self.type)


@dataclass(frozen=True)
class VectorCast:
    """A cast that cannot lose information."""

    input: Vector
    type: pa.DataType

    def evaluate(self, batch: pa.RecordBatch) -> Value:
        return self.input.evaluate(batch).cast(self.type)


@dataclass(frozen=True)
class VectorInList:
    """IN with a list of values, none of them NULL; the result for NULL is NULL."""

    input: Vector
    values: tuple[Any, ...]
    type: pa.DataType

    def evaluate(self, batch: pa.RecordBatch) -> Value:
        value = self.input.evaluate(batch)
        is_in = pc.is_in(value, value_set=pa.array(self.values, self.type))
        return pc.if_else(pc.is_null(value), pa.scalar(None, pa.bool_()), is_in)


@dataclass(frozen=True)
class VectorField:
    """A field of a struct; NULL if the struct is NULL."""

    input: Vector
    index: int

    def evaluate(self, batch: pa.RecordBatch) -> Value:
        return pc.struct_field(self.input.evaluate(batch), [self.index])


@dataclass(frozen=True)
class VectorCall:
    """A call of one of the kernels below, by name."""

    kernel: str
    inputs: tuple[Vector, ...]

    def evaluate(self, batch: pa.RecordBatch) -> Value:
        return _KERNELS[self.kernel](*(item.evaluate(batch) for item in self.inputs))


def _remainder(value: Value, divisor: Value) -> Value:
    """Return the remainder with the sign of the value, like Spark; division truncates."""
    return pc.subtract(value, pc.multiply(pc.divide(value, divisor), divisor))


def _floor(value: Value, offset: Value, size: Value) -> Value:
    """Return the start of the interval of a size that contains a number, also below zero."""
    excess = _remainder(pc.subtract_checked(value, offset), size)
    excess = pc.if_else(pc.less(excess, 0), pc.add(excess, size), excess)
    return pc.subtract_checked(value, excess)


def _case(*parts: Value) -> Value:
    """Return the value of the first true condition; parts alternate and end with ELSE."""
    *pairs, result = parts
    for condition, value in reversed(list(zip(pairs[::2], pairs[1::2], strict=True))):
        result = pc.if_else(pc.fill_null(condition, False), value, result)
    return result


_KERNELS: dict[str, Callable[..., Value]] = {
    "=": pc.equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
    "and": pc.and_kleene,
    "or": pc.or_kleene,
    "not": pc.invert,
    "is null": pc.is_null,
    "+": pc.add_checked,
    "-": pc.subtract_checked,
    "*": pc.multiply_checked,
    "negate": pc.negate_checked,
    "%": _remainder,
    "floor": _floor,
    "case": _case,
    "coalesce": pc.coalesce,
}


@dataclass(frozen=True)
class VectorStage:
    """A stage that tasks evaluate: its output columns and its filter conditions."""

    columns: tuple[tuple[str, Vector, pa.DataType], ...]
    conditions: tuple[Vector, ...] = ()

    def apply(self, batch: pa.RecordBatch, hidden: Sequence[str]) -> pa.RecordBatch:
        """Evaluate the stage; filtered rows stay, with SELECTED set to false.

        Hidden columns are passed through.
        """
        try:
            selected = self._selected(batch)
            arrays = [
                _as_array(v.evaluate(batch), batch.num_rows, data_type)
                for _, v, data_type in self.columns
            ]
        except (pa.ArrowException, ValueError) as error:
            raise VectorFailed(str(error)) from None
        names = [name for name, _, _ in self.columns]
        passed = [selected if name == SELECTED else batch.column(name) for name in hidden]
        return pa.record_batch([*arrays, *passed], names=[*names, *hidden])

    def _selected(self, batch: pa.RecordBatch) -> pa.Array:
        selected = batch.column(SELECTED)
        for condition in self.conditions:
            selected = pc.and_(selected, pc.fill_null(condition.evaluate(batch), False))
        return selected


def _as_array(value: Value, count: int, data_type: pa.DataType) -> pa.Array:
    array = pa.repeat(value, count) if isinstance(value, pa.Scalar) else value
    return array if array.type == data_type else array.cast(data_type)
