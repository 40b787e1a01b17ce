"""Conditions over several rows, value by value, as Spark computes them in ANSI mode.

What needs one row only is a column that Spark has computed; this is the rest of a condition: it
compares such columns of different rows, and adds, subtracts, multiplies and divides them. Times,
dates and intervals are whole numbers here. NaN equals NaN and is above all numbers, as in Spark.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any, Protocol

from tidegate.errors import RunError

Parts = Sequence[Any]
# As many digits as any product of two decimals has: nothing is rounded.
_EXACT = Context(prec=80)


class Scalar(Protocol):
    """An expression over the values of parts; None is NULL."""

    def of(self, parts: Parts) -> Any: ...


@dataclass(frozen=True)
class Part:
    place: int

    def of(self, parts: Parts) -> Any:
        return parts[self.place]


@dataclass(frozen=True)
class Constant:
    value: Any

    def of(self, parts: Parts) -> Any:
        return self.value


@dataclass(frozen=True)
class AsDouble:
    """A whole number or a decimal as a double."""

    input: Scalar

    def of(self, parts: Parts) -> Any:
        value = self.input.of(parts)
        return None if value is None else float(value)


def ordered(value: Any) -> Any:
    """What doubles are compared by: NaN is above all others."""
    return (1, 0.0) if value != value else (0, value)


def exact_sum(total: Any, value: Any) -> Any:
    """A sum that is not rounded, but for doubles."""
    return _EXACT.add(total, value) if isinstance(value, Decimal) else total + value


_COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True)
class Compare:
    sign: str
    left: Scalar
    right: Scalar
    doubles: bool = False

    def of(self, parts: Parts) -> Any:
        left, right = self.left.of(parts), self.right.of(parts)
        if left is None or right is None:
            return None
        if self.doubles:
            left, right = ordered(left), ordered(right)
        return _COMPARED[self.sign](left, right)


@dataclass(frozen=True)
class And:
    left: Scalar
    right: Scalar

    def of(self, parts: Parts) -> Any:
        left = self.left.of(parts)
        if left is False:
            return False
        right = self.right.of(parts)
        return right if left is True or right is False else None


@dataclass(frozen=True)
class Or:
    left: Scalar
    right: Scalar

    def of(self, parts: Parts) -> Any:
        left = self.left.of(parts)
        if left is True:
            return True
        right = self.right.of(parts)
        return right if left is False or right is True else None


@dataclass(frozen=True)
class Not:
    input: Scalar

    def of(self, parts: Parts) -> Any:
        value = self.input.of(parts)
        return None if value is None else not value


@dataclass(frozen=True)
class IsNull:
    input: Scalar

    def of(self, parts: Parts) -> Any:
        return self.input.of(parts) is None


@dataclass(frozen=True)
class Coalesce:
    inputs: tuple[Scalar, ...]

    def of(self, parts: Parts) -> Any:
        for item in self.inputs:
            value = item.of(parts)
            if value is not None:
                return value
        return None


@dataclass(frozen=True)
class Calculate:
    """+, − or × of two whole numbers with so many bits, two decimals, or two doubles (0 bits)."""

    sign: str
    left: Scalar
    right: Scalar
    bits: int = 0
    decimals: bool = False

    def of(self, parts: Parts) -> Any:
        left, right = self.left.of(parts), self.right.of(parts)
        if left is None or right is None:
            return None
        if self.decimals:
            return _DECIMALS[self.sign](left, right)
        value = _NUMBERS[self.sign](left, right)
        if self.bits and not -(1 << self.bits - 1) <= value < 1 << self.bits - 1:
            raise _failed(f"{left} {self.sign} {right} overflows {self.bits} bits")
        return value


_NUMBERS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
}
_DECIMALS: dict[str, Callable[[Any, Any], Any]] = {
    "+": _EXACT.add,
    "-": _EXACT.subtract,
    "*": _EXACT.multiply,
}


@dataclass(frozen=True)
class Divide:
    """One double by another."""

    left: Scalar
    right: Scalar

    def of(self, parts: Parts) -> Any:
        left, right = self.left.of(parts), self.right.of(parts)
        if left is None or right is None:
            return None
        if right == 0:
            raise _failed(f"{left} / {right} is a division by zero")
        return left / right


@dataclass(frozen=True)
class Absolute:
    """The absolute value of a number, of whole numbers with so many bits."""

    input: Scalar
    bits: int = 0

    def of(self, parts: Parts) -> Any:
        value = self.input.of(parts)
        if value is None:
            return None
        if self.bits and value == -(1 << self.bits - 1):
            raise _failed(f"abs({value}) overflows {self.bits} bits")
        # Unlike abs(), copy_abs does not round decimals.
        return value.copy_abs() if hasattr(value, "copy_abs") else abs(value)


def _failed(what: str) -> RunError:
    return RunError(
        "TG-503",
        f"a condition of MATCH_RECOGNIZE fails: {what}",
        hint="guard it: DEFINE B AS A.x <> 0 AND B.x / A.x > 2; or cast: CAST(x AS DOUBLE).",
    )
