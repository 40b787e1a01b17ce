"""Finds matches of a row pattern: the rows of a partition one by one, with steps back.

A pattern is a program. A step takes a row for a variable, or forks: the way that the pattern likes
better is tried first, the other one when that has failed. So the first match that is found at a row
is the one that SQL means. A way that needs a row which may still come makes the answer wait, unless
a way that comes before it has led to a match.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from functools import cached_property
from typing import Any, Protocol

from tidegate.errors import RunError

# ---- Conditions over several rows, value by value, as Spark computes them in ANSI mode.
#
# What needs one row only is a column that Spark has computed; this is the rest of a condition: it
# compares such columns of different rows, and adds, subtracts, multiplies and divides them. Times,
# dates and intervals are whole numbers here. NaN equals NaN and is above all numbers, as in Spark.

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


# No sensible search at one row takes so many steps.
MOST_STEPS = 20_000_000


@dataclass(frozen=True)
class Take:
    """A row for a variable, then another step."""

    variable: int
    then: int


@dataclass(frozen=True)
class Fork:
    """A step to go on with, and another one to try if that fails."""

    first: int
    second: int


@dataclass(frozen=True)
class Accept:
    """A match is complete."""


Step = Take | Fork | Accept


@dataclass(frozen=True)
class Seen:
    """A value of another row: of the rows of a group of variables the one `offset` away from the
    last or the first, and from there `back` rows back; `missing` is read if there is no row."""

    value: int
    group: int
    last: bool = True
    offset: int = 0
    back: int = 0
    missing: int | None = None


@dataclass(frozen=True)
class Here:
    """A value of the row that is looked at, or of one `back` rows before it."""

    value: int
    back: int = 0
    missing: int | None = None


@dataclass(frozen=True)
class Running:
    """An aggregate over the rows of a group so far: count, sum, avg, min or max of a value.

    `zero` is what a sum begins with; its type is that of the sum.
    """

    function: str
    group: int
    value: int | None = None
    zero: Any = 0
    doubles: bool = False
    bits: int = 0


@dataclass(frozen=True)
class CompiledCondition:
    """What must be true of a row to be taken for a variable."""

    test: Scalar
    parts: tuple[Seen | Here | Running, ...]


@dataclass(frozen=True)
class Program:
    """`groups` are sets of variables whose rows are looked at together."""

    steps: tuple[Step, ...]
    start: int
    conditions: tuple[CompiledCondition | None, ...]
    groups: tuple[frozenset[int], ...]
    within_us: int | None = None

    @cached_property
    def values(self) -> tuple[int, ...]:
        """The values that conditions read."""
        parts = [p for c in self.conditions if c is not None for p in c.parts]
        found = {part.value for part in parts if part.value is not None}
        found |= {p.missing for p in parts if not isinstance(p, Running) and p.missing is not None}
        return tuple(sorted(found))

    @cached_property
    def running(self) -> tuple[Running, ...]:
        parts = [p for c in self.conditions if c is not None for p in c.parts]
        return tuple(dict.fromkeys(part for part in parts if isinstance(part, Running)))

    @cached_property
    def is_local(self) -> bool:
        """Whether no condition depends on what earlier rows were taken for."""
        parts = (p for c in self.conditions if c is not None for p in c.parts)
        return all(isinstance(part, Here) for part in parts)


@dataclass(frozen=True)
class PatternMatch:
    """A match: its first row, and the variable that each of its rows is taken for."""

    first: int
    variables: tuple[int, ...]

    @property
    def end(self) -> int:
        return self.first + len(self.variables)

    def rows(self, group: frozenset[int]) -> list[int]:
        return [self.first + i for i, v in enumerate(self.variables) if v in group]


WAITS = "waits"


class Search:
    """Rows in order, by partition; `columns` are the values that conditions read, by number."""

    def __init__(
        self, program: Program, columns: dict[int, list[Any]], times: Sequence[int]
    ) -> None:
        self.program = program
        self.columns = columns
        self.times = times
        self.begin = 0
        # The rows taken so far: their variables, their places by group, and running aggregates.
        self.taken: list[int] = []
        self.members: list[list[int]] = [[] for _ in program.groups]
        self.states: list[list[Any]] = [[] for _ in program.running]
        self.tests = [self._test(condition) for condition in program.conditions]
        self.groups_of = [
            [g for g, group in enumerate(program.groups) if v in group]
            for v, _ in enumerate(program.conditions)
        ]
        self.running_of = [
            [r for r, item in enumerate(program.running) if v in program.groups[item.group]]
            for v, _ in enumerate(program.conditions)
        ]

    def at(self, first: int, begin: int, stop: int, complete: bool) -> PatternMatch | str | None:
        """The match that begins at a row; a partition has the rows from `begin` to `stop`.

        `complete`: no row that comes later can be in it. WAITS: that is not known yet.
        """
        self.begin = begin
        self._back_to(0)
        found = self._run(first, stop, complete)
        return PatternMatch(first, tuple(self.taken)) if found is True else found

    def _run(self, first: int, stop: int, complete: bool) -> Any:
        steps, times, within = self.program.steps, self.times, self.program.within_us
        limit = None if within is None else times[first] + within
        failed: set[tuple[int, int]] | None = set() if self.program.is_local else None
        ways, left = [(self.program.start, first)], MOST_STEPS
        while ways:
            step, row = ways.pop()
            self._back_to(row - first)
            while True:
                left -= 1
                if left < 0:
                    raise _too_long()
                now = steps[step]
                if isinstance(now, Fork):
                    ways.append((now.second, row))
                    step = now.first
                    continue
                if isinstance(now, Accept):
                    return True
                if failed is not None:
                    if (step, row) in failed:
                        break
                    failed.add((step, row))
                if row == stop:
                    if not complete:
                        return WAITS
                    break
                if limit is not None and times[row] >= limit:
                    break
                if not self._takes(now.variable, row):
                    break
                step, row = now.then, row + 1
        return None

    # Rows that are taken

    def _takes(self, variable: int, row: int) -> bool:
        """Take a row for a variable if its condition holds; it sees the row as taken."""
        self.taken.append(variable)
        for group in self.groups_of[variable]:
            self.members[group].append(row)
        for number in self.running_of[variable]:
            self._advance(number, row)
        test = self.tests[variable]
        return test is None or test(row)

    def _back_to(self, count: int) -> None:
        """Give rows back until so many are left."""
        while len(self.taken) > count:
            variable = self.taken.pop()
            for group in self.groups_of[variable]:
                self.members[group].pop()
            for number in self.running_of[variable]:
                self.states[number].pop()

    def _test(self, condition: CompiledCondition | None) -> Callable[[int], bool] | None:
        if condition is None:
            return None
        reads = [self._reader(part) for part in condition.parts]
        test = condition.test
        return lambda row: test.of([read(row) for read in reads]) is True

    # Values

    def _reader(self, part: Seen | Here | Running) -> Callable[[int], Any]:
        if isinstance(part, Running):
            number = self.program.running.index(part)
            return lambda row: self._total(number)
        values = self.columns[part.value]
        if isinstance(part, Here):
            here = part
            if not here.back:
                return lambda row: values[row]
            return lambda row: self._value(here, row - here.back, row)
        there = part
        return lambda row: self._value(there, self._place(there), row)

    def _place(self, part: Seen) -> int:
        return place_in(self.members[part.group], part.last, part.offset, part.back)

    def _value(self, part: Seen | Here, place: int, row: int) -> Any:
        if place >= self.begin:
            return self.columns[part.value][place]
        return None if part.missing is None else self.columns[part.missing][row]

    # Running aggregates: a state for each row of the group that is taken

    def _advance(self, number: int, row: int) -> None:
        item, states = self.program.running[number], self.states[number]
        count, total = states[-1] if states else (0, None)
        value = 1 if item.value is None else self.columns[item.value][row]
        if value is not None:
            count += 1
            total = _added(item, total, value)
        states.append((count, total))

    def _total(self, number: int) -> Any:
        item, states = self.program.running[number], self.states[number]
        count, total = states[-1] if states else (0, None)
        if item.function == "count":
            return count
        if item.function == "avg":
            return None if total is None else float(total) / count
        if item.bits and total is not None and not -(2**63) <= total < 2**63:
            raise RunError(
                "TG-507",
                "a sum in a condition of MATCH_RECOGNIZE overflows BIGINT",
                hint="cast the argument: sum(CAST(x AS DOUBLE)).",
            )
        return total


def place_in(rows: Sequence[int], last: bool, offset: int, back: int) -> int:
    """The row that a navigation leads to; −1 if there is none."""
    if offset >= len(rows):
        return -1
    return (rows[-1 - offset] if last else rows[offset]) - back


def _added(item: Running, total: Any, value: Any) -> Any:
    if item.function in ("sum", "avg"):
        return exact_sum(item.zero if total is None else total, value)
    if item.function == "count" or total is None:
        return value
    one, other = (ordered(total), ordered(value)) if item.doubles else (total, value)
    less = other < one if item.function == "min" else other > one
    return value if less else total


def _too_long() -> RunError:
    return RunError(
        "TG-503",
        f"MATCH_RECOGNIZE has tried {MOST_STEPS:,} ways to match the rows that follow one row",
        hint="let the conditions of neighbouring variables exclude each other, or make WITHIN "
        "shorter.",
    )
