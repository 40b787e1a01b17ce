"""Backtracking search for the match of a row pattern that starts at a row.

A pattern is compiled to a program. A step matches a row with a variable, or forks: the search tries
the preferred alternative first, and the other one if that fails. So the first match is the
preferred match of the SQL standard. If an alternative needs a row that may still arrive, the search
is undecided, unless a preferred alternative has already led to a match.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from functools import cached_property
from typing import Any, Protocol

from tidegate.errors import RunError

# ---- Conditions over several rows, evaluated value by value like Spark's ANSI mode
#
# Expressions over a single row are columns that Spark has computed. The rest of a condition
# compares such columns of different rows, and adds, subtracts, multiplies and divides them. Times,
# dates and intervals are integers. NaN equals NaN and is larger than all numbers, as in Spark.

Inputs = Sequence[Any]
# More digits than any product of two decimals has, so nothing is rounded.
_EXACT = Context(prec=80)


class ConditionExpression(Protocol):
    """An expression over the inputs of a condition; None is NULL."""

    def evaluate(self, inputs: Inputs) -> Any: ...


@dataclass(frozen=True)
class InputValue:
    """One input of a condition."""

    index: int

    def evaluate(self, inputs: Inputs) -> Any:
        return inputs[self.index]


@dataclass(frozen=True)
class Constant:
    """A literal."""

    value: Any

    def evaluate(self, inputs: Inputs) -> Any:
        return self.value


@dataclass(frozen=True)
class AsDouble:
    """The conversion of an integer or a decimal to a double."""

    input: ConditionExpression

    def evaluate(self, inputs: Inputs) -> Any:
        value = self.input.evaluate(inputs)
        return None if value is None else float(value)


def double_order(value: Any) -> Any:
    """Return a sort key for doubles in which NaN is larger than all numbers."""
    return (1, 0.0) if value != value else (0, value)


def exact_sum(total: Any, value: Any) -> Any:
    """Return a sum that is not rounded, except for doubles."""
    return _EXACT.add(total, value) if isinstance(value, Decimal) else total + value


_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True)
class Compare:
    """A comparison of two values; `doubles` orders NaN."""

    sign: str
    left: ConditionExpression
    right: ConditionExpression
    doubles: bool = False

    def evaluate(self, inputs: Inputs) -> Any:
        left, right = self.left.evaluate(inputs), self.right.evaluate(inputs)
        if left is None or right is None:
            return None
        if self.doubles:
            left, right = double_order(left), double_order(right)
        return _COMPARISONS[self.sign](left, right)


@dataclass(frozen=True)
class And:
    left: ConditionExpression
    right: ConditionExpression

    def evaluate(self, inputs: Inputs) -> Any:
        left = self.left.evaluate(inputs)
        if left is False:
            return False
        right = self.right.evaluate(inputs)
        return right if left is True or right is False else None


@dataclass(frozen=True)
class Or:
    left: ConditionExpression
    right: ConditionExpression

    def evaluate(self, inputs: Inputs) -> Any:
        left = self.left.evaluate(inputs)
        if left is True:
            return True
        right = self.right.evaluate(inputs)
        return right if left is False or right is True else None


@dataclass(frozen=True)
class Not:
    input: ConditionExpression

    def evaluate(self, inputs: Inputs) -> Any:
        value = self.input.evaluate(inputs)
        return None if value is None else not value


@dataclass(frozen=True)
class IsNull:
    input: ConditionExpression

    def evaluate(self, inputs: Inputs) -> Any:
        return self.input.evaluate(inputs) is None


@dataclass(frozen=True)
class Coalesce:
    inputs: tuple[ConditionExpression, ...]

    def evaluate(self, inputs: Inputs) -> Any:
        for item in self.inputs:
            value = item.evaluate(inputs)
            if value is not None:
                return value
        return None


@dataclass(frozen=True)
class Calculate:
    """+, − or × of two integers of some bits, two decimals, or two doubles (0 bits)."""

    sign: str
    left: ConditionExpression
    right: ConditionExpression
    bits: int = 0
    decimals: bool = False

    def evaluate(self, inputs: Inputs) -> Any:
        left, right = self.left.evaluate(inputs), self.right.evaluate(inputs)
        if left is None or right is None:
            return None
        if self.decimals:
            return _DECIMAL_OPERATIONS[self.sign](left, right)
        value = _OPERATIONS[self.sign](left, right)
        if self.bits and not -(1 << self.bits - 1) <= value < 1 << self.bits - 1:
            raise _condition_error(f"{left} {self.sign} {right} overflows {self.bits} bits")
        return value


_OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
}
_DECIMAL_OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "+": _EXACT.add,
    "-": _EXACT.subtract,
    "*": _EXACT.multiply,
}


@dataclass(frozen=True)
class Divide:
    """The quotient of two doubles."""

    left: ConditionExpression
    right: ConditionExpression

    def evaluate(self, inputs: Inputs) -> Any:
        left, right = self.left.evaluate(inputs), self.right.evaluate(inputs)
        if left is None or right is None:
            return None
        if right == 0:
            raise _condition_error(f"{left} / {right} is a division by zero")
        return left / right


@dataclass(frozen=True)
class Absolute:
    """The absolute value of a number; `bits` are those of an integer."""

    input: ConditionExpression
    bits: int = 0

    def evaluate(self, inputs: Inputs) -> Any:
        value = self.input.evaluate(inputs)
        if value is None:
            return None
        if self.bits and value == -(1 << self.bits - 1):
            raise _condition_error(f"abs({value}) overflows {self.bits} bits")
        # Unlike abs(), copy_abs does not round decimals.
        return value.copy_abs() if hasattr(value, "copy_abs") else abs(value)


def _condition_error(reason: str) -> RunError:
    return RunError(
        "TG-503",
        f"a condition of MATCH_RECOGNIZE failed: {reason}",
        hint="guard it: DEFINE B AS A.x <> 0 AND B.x / A.x > 2; or cast: CAST(x AS DOUBLE).",
    )


# ---- Programs

# A search that starts at one row fails after this many steps.
MAX_STEPS = 20_000_000


@dataclass(frozen=True)
class Take:
    """Match a row with a variable, then continue with another step."""

    variable: int
    next_step: int


@dataclass(frozen=True)
class Fork:
    """Continue with the first step; if it fails, with the second."""

    first: int
    second: int


@dataclass(frozen=True)
class Accept:
    """The match is complete."""


Step = Take | Fork | Accept


@dataclass(frozen=True)
class NavigatedValue:
    """A value of another row: FIRST or LAST with an offset, then PREV by `back` rows.

    FIRST and LAST refer to the rows of the variables in `group`. If the row does not exist, the
    value `missing` of the current row is used.
    """

    value: int
    group: int
    last: bool = True
    offset: int = 0
    back: int = 0
    missing: int | None = None


@dataclass(frozen=True)
class CurrentValue:
    """A value of the current row, or of the row `back` rows before it."""

    value: int
    back: int = 0
    missing: int | None = None


@dataclass(frozen=True)
class RunningAggregate:
    """An aggregate over the rows of a group so far: count, sum, avg, min or max of a value.

    `zero` is the initial value of a sum and has its type.
    """

    function: str
    group: int
    value: int | None = None
    zero: Any = 0
    doubles: bool = False
    bits: int = 0


ConditionInput = NavigatedValue | CurrentValue | RunningAggregate


@dataclass(frozen=True)
class CompiledCondition:
    """The condition of a variable: an expression over its inputs."""

    test: ConditionExpression
    inputs: tuple[ConditionInput, ...]


@dataclass(frozen=True)
class Program:
    """A compiled pattern. `conditions` are by variable; `groups` are sets of variables (SUBSET)."""

    steps: tuple[Step, ...]
    start: int
    conditions: tuple[CompiledCondition | None, ...]
    groups: tuple[frozenset[int], ...]
    within_us: int | None = None

    @property
    def _inputs(self) -> list[ConditionInput]:
        return [item for c in self.conditions if c is not None for item in c.inputs]

    @cached_property
    def values(self) -> tuple[int, ...]:
        """The numbers of the values that conditions read."""
        values = {item.value for item in self._inputs if item.value is not None}
        for item in self._inputs:
            if not isinstance(item, RunningAggregate) and item.missing is not None:
                values.add(item.missing)
        return tuple(sorted(values))

    @cached_property
    def running(self) -> tuple[RunningAggregate, ...]:
        """The aggregates that conditions read."""
        aggregates = [item for item in self._inputs if isinstance(item, RunningAggregate)]
        return tuple(dict.fromkeys(aggregates))

    @cached_property
    def is_local(self) -> bool:
        """Whether no condition depends on the variables of earlier rows."""
        return all(isinstance(item, CurrentValue) for item in self._inputs)


@dataclass(frozen=True)
class PatternMatch:
    """A match: its first row, and the variable of each of its rows."""

    first: int
    variables: tuple[int, ...]

    @property
    def end(self) -> int:
        return self.first + len(self.variables)

    def rows(self, group: frozenset[int]) -> list[int]:
        """Return the rows of some variables."""
        return [self.first + i for i, v in enumerate(self.variables) if v in group]


# ---- The search

# The result depends on rows that have not arrived.
UNDECIDED = "undecided"


class Search:
    """Searches sorted rows. `columns` has the values that conditions read, by number."""

    def __init__(
        self, program: Program, columns: dict[int, list[Any]], times: Sequence[int]
    ) -> None:
        self.program = program
        self.columns = columns
        self.times = times
        self.partition_start = 0
        # The rows matched so far: their variables, the rows by group, and running aggregates.
        self.matched_variables: list[int] = []
        self.rows_by_group: list[list[int]] = [[] for _ in program.groups]
        self.states: list[list[Any]] = [[] for _ in program.running]
        self.tests = [self._compile_test(condition) for condition in program.conditions]
        self.groups_of = [
            [g for g, group in enumerate(program.groups) if v in group]
            for v, _ in enumerate(program.conditions)
        ]
        self.running_of = [
            [r for r, item in enumerate(program.running) if v in program.groups[item.group]]
            for v, _ in enumerate(program.conditions)
        ]

    def match_at(
        self, first: int, partition_start: int, stop: int, complete: bool
    ) -> PatternMatch | str | None:
        """Return the match that starts at row `first`, None, or UNDECIDED.

        The partition has the rows from `partition_start` to before `stop`. If `complete`, no row
        that arrives later can be in the match.
        """
        self.partition_start = partition_start
        self._backtrack(0)
        result = self._run(first, stop, complete)
        return PatternMatch(first, tuple(self.matched_variables)) if result is True else result

    def _run(self, first: int, stop: int, complete: bool) -> Any:
        steps, times, within_us = self.program.steps, self.times, self.program.within_us
        limit_us = None if within_us is None else times[first] + within_us
        # If conditions are local, a step that failed at a row fails there on all paths.
        failed: set[tuple[int, int]] | None = set() if self.program.is_local else None
        alternatives, steps_left = [(self.program.start, first)], MAX_STEPS
        while alternatives:
            step, row = alternatives.pop()
            self._backtrack(row - first)
            while True:
                steps_left -= 1
                if steps_left < 0:
                    raise _too_many_steps()
                current = steps[step]
                if isinstance(current, Fork):
                    alternatives.append((current.second, row))
                    step = current.first
                    continue
                if isinstance(current, Accept):
                    return True
                if failed is not None:
                    if (step, row) in failed:
                        break
                    failed.add((step, row))
                if row == stop:
                    if not complete:
                        return UNDECIDED
                    break
                if limit_us is not None and times[row] >= limit_us:
                    break
                if not self._take(current.variable, row):
                    break
                step, row = current.next_step, row + 1
        return None

    def _take(self, variable: int, row: int) -> bool:
        """Match a row with a variable and return whether the condition holds.

        The condition reads the match including this row.
        """
        self.matched_variables.append(variable)
        for group in self.groups_of[variable]:
            self.rows_by_group[group].append(row)
        for number in self.running_of[variable]:
            self._advance(number, row)
        test = self.tests[variable]
        return test is None or test(row)

    def _backtrack(self, count: int) -> None:
        """Remove rows from the match until `count` rows are left."""
        while len(self.matched_variables) > count:
            variable = self.matched_variables.pop()
            for group in self.groups_of[variable]:
                self.rows_by_group[group].pop()
            for number in self.running_of[variable]:
                self.states[number].pop()

    def _compile_test(self, condition: CompiledCondition | None) -> Callable[[int], bool] | None:
        if condition is None:
            return None
        readers = [self._compile_reader(item) for item in condition.inputs]
        test = condition.test
        return lambda row: test.evaluate([read(row) for read in readers]) is True

    def _compile_reader(self, item: ConditionInput) -> Callable[[int], Any]:
        if isinstance(item, RunningAggregate):
            number = self.program.running.index(item)
            return lambda row: self._aggregate(number)
        values = self.columns[item.value]
        if isinstance(item, CurrentValue):
            current = item
            if not current.back:
                return lambda row: values[row]
            return lambda row: self._value(current, row - current.back, row)
        other = item
        return lambda row: self._value(
            other,
            navigate(self.rows_by_group[other.group], other.last, other.offset, other.back),
            row,
        )

    def _value(self, item: NavigatedValue | CurrentValue, target: int, row: int) -> Any:
        if target >= self.partition_start:
            return self.columns[item.value][target]
        return None if item.missing is None else self.columns[item.missing][row]

    def _advance(self, number: int, row: int) -> None:
        """Add a row to a running aggregate. It has a state per row of its group, to backtrack."""
        aggregate, states = self.program.running[number], self.states[number]
        count, total = states[-1] if states else (0, None)
        value = 1 if aggregate.value is None else self.columns[aggregate.value][row]
        if value is not None:
            count += 1
            total = _add_value(aggregate, total, value)
        states.append((count, total))

    def _aggregate(self, number: int) -> Any:
        aggregate, states = self.program.running[number], self.states[number]
        count, total = states[-1] if states else (0, None)
        if aggregate.function == "count":
            return count
        if aggregate.function == "avg":
            return None if total is None else float(total) / count
        if aggregate.bits and total is not None and not -(2**63) <= total < 2**63:
            raise RunError(
                "TG-507",
                "a sum in a condition of MATCH_RECOGNIZE overflows BIGINT",
                hint="cast the argument: sum(CAST(x AS DOUBLE)).",
            )
        return total


def navigate(rows: Sequence[int], last: bool, offset: int, back: int) -> int:
    """Return the row that FIRST or LAST with PREV selects; negative if it does not exist."""
    if offset >= len(rows):
        return -1
    return (rows[-1 - offset] if last else rows[offset]) - back


def _add_value(aggregate: RunningAggregate, total: Any, value: Any) -> Any:
    if aggregate.function in ("sum", "avg"):
        return exact_sum(aggregate.zero if total is None else total, value)
    if aggregate.function == "count" or total is None:
        return value
    old, new = (double_order(total), double_order(value)) if aggregate.doubles else (total, value)
    replaces = new < old if aggregate.function == "min" else new > old
    return value if replaces else total


def _too_many_steps() -> RunError:
    return RunError(
        "TG-503",
        f"MATCH_RECOGNIZE needs more than {MAX_STEPS:,} steps to match the rows that follow one "
        "row",
        hint="make the conditions of adjacent variables exclude each other, or make WITHIN "
        "shorter.",
    )
