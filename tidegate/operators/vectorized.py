"""Expressions that tasks compute themselves, column by column: Arrow kernels that give what Spark
gives, for types and functions where that is so.

Where one fails on a value, the epoch is run again with Spark's SQL, which then has the last word.
Python workers import this module: it must not load the parser.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.columns import SELECTED

# What an expression comes to: an array, or a scalar where it is the same for all rows.
Value = Any


class VectorFailed(Exception):
    """A kernel failed on a value; only Spark can say what that means."""


class RecordFailed(VectorFailed):
    """A record that only Spark can decode."""


class Vector(Protocol):
    """An expression over the columns of a batch."""

    def of(self, batch: pa.RecordBatch) -> Value: ...


@dataclass(frozen=True)
class VectorColumn:
    name: str

    def of(self, batch: pa.RecordBatch) -> Value:
        return batch.column(self.name)


@dataclass(frozen=True)
class VectorConstant:
    value: Any
    type: pa.DataType

    def of(self, batch: pa.RecordBatch) -> Value:
        return pa.scalar(self.value, self.type)


@dataclass(frozen=True)
class Cast:
    input: Vector
    type: pa.DataType

    def of(self, batch: pa.RecordBatch) -> Value:
        return self.input.of(batch).cast(self.type)


@dataclass(frozen=True)
class OneOf:
    """IN with a list of values, none of them NULL; NULL is in no list, and not out of it either."""

    input: Vector
    values: tuple[Any, ...]
    type: pa.DataType

    def of(self, batch: pa.RecordBatch) -> Value:
        given = self.input.of(batch)
        found = pc.is_in(given, value_set=pa.array(self.values, self.type))
        return pc.if_else(pc.is_null(given), pa.scalar(None, pa.bool_()), found)


@dataclass(frozen=True)
class VectorCall:
    """A kernel by its name here."""

    kernel: str
    inputs: tuple[Vector, ...]

    def of(self, batch: pa.RecordBatch) -> Value:
        return _KERNELS[self.kernel](*(item.of(batch) for item in self.inputs))


def _remainder(value: Value, by: Value) -> Value:
    """With the sign of the value, as Spark has it; division cuts off towards zero."""
    return pc.subtract(value, pc.multiply(pc.divide(value, by), by))


def _floor(value: Value, offset: Value, size: Value) -> Value:
    """The start of the piece that a number lies in; right below zero too."""
    over = _remainder(pc.subtract_checked(value, offset), size)
    return pc.subtract_checked(value, pc.if_else(pc.less(over, 0), pc.add(over, size), over))


def _choice(*parts: Value) -> Value:
    """Conditions and values by turns, and what holds otherwise."""
    *pairs, otherwise = parts
    for condition, value in reversed(list(zip(pairs[::2], pairs[1::2], strict=True))):
        otherwise = pc.if_else(pc.fill_null(condition, False), value, otherwise)
    return otherwise


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
    "case": _choice,
    "coalesce": pc.coalesce,
}


@dataclass(frozen=True)
class VectorStage:
    """A stage that tasks compute: the columns it gives, and which rows stay on."""

    columns: tuple[tuple[str, Vector, pa.DataType], ...]
    conditions: tuple[Vector, ...] = ()

    def apply(self, batch: pa.RecordBatch, hidden: Sequence[str]) -> pa.RecordBatch:
        """The rows of the stage, with hidden columns as they came, but for those turned off."""
        try:
            live = self._live(batch)
            arrays = [_filled(v.of(batch), batch.num_rows, kind) for _, v, kind in self.columns]
        except (pa.ArrowException, ValueError) as error:
            raise VectorFailed(str(error)) from None
        names = [name for name, _, _ in self.columns]
        carried = [live if name == SELECTED else batch.column(name) for name in hidden]
        return pa.record_batch([*arrays, *carried], names=[*names, *hidden])

    def _live(self, batch: pa.RecordBatch) -> pa.Array:
        live = batch.column(SELECTED)
        for condition in self.conditions:
            held = pc.fill_null(condition.of(batch), False)
            live = pc.and_(live, held)
        return live


def _filled(value: Value, count: int, kind: pa.DataType) -> pa.Array:
    found = pa.repeat(value, count) if isinstance(value, pa.Scalar) else value
    return found if found.type == kind else found.cast(kind)
