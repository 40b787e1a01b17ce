"""Conditions of DEFINE over several rows, as expressions that the operator evaluates.

Types and results equal Spark's. An expression that cannot be evaluated exactly is
rejected: arithmetic of FLOAT, division of decimals, and most functions. Before types are
determined, an unknown one (`?`) is accepted everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal

from sqlglot import exp

from tidegate.operators.match.search import (
    Absolute,
    And,
    AsDouble,
    Calculate,
    Coalesce,
    Compare,
    ConditionExpression,
    Constant,
    Divide,
    InputValue,
    IsNull,
    Not,
    Or,
)
from tidegate.physical.operator_kind import Rejection, Unrunnable
from tidegate.sql import expressions as ex
from tidegate.sql.dialect import own_span, to_sql

UNKNOWN = "?"
_BITS = {"TINYINT": 8, "SMALLINT": 16, "INT": 32, "BIGINT": 64}
_INTEGERS = tuple(_BITS)
# The digits of a whole number that is combined with a decimal.
_DIGITS = {"TINYINT": 3, "SMALLINT": 5, "INT": 10, "BIGINT": 20}
_DECIMAL = re.compile(r"DECIMAL\((\d+),(\d+)\)")
_MAX_PRECISION = 38
_INTERVAL = "INTERVAL"
_PLAIN = (*_INTEGERS, "STRING", "BOOLEAN", "DATE", "TIMESTAMP", "TIMESTAMP_NTZ", "BINARY")
_FLOATING = ("FLOAT", "DOUBLE")
_COMPARISONS: dict[type[exp.Expr], str] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}
_ARITHMETIC: dict[type[exp.Expr], str] = {exp.Add: "+", exp.Sub: "-", exp.Mul: "*"}
_HINT = (
    "put what needs one row into FIRST, LAST or PREV, as in PREV(lower(A.name)); across rows =, "
    "<>, <, >, BETWEEN, IN, IS NULL, AND, OR, NOT, +, -, *, /, abs, coalesce and CAST(… AS DOUBLE) "
    "run."
)


@dataclass(frozen=True)
class TypedCondition:
    """An expression with the name of its type; intervals of days to seconds are one type."""

    scalar: ConditionExpression
    kind: str


class _Untranslatable(Exception):
    def __init__(self, message: str, tree: exp.Expr) -> None:
        super().__init__(message)
        self.tree = tree


_UNSUPPORTED = "is not supported in a condition across rows"


def kind_named(name: str | None) -> str:
    """Return the type by its name here; `?` if it is unknown."""
    text = (name or UNKNOWN).upper().replace(" ", "")
    if text in (*_PLAIN, *_FLOATING) or _DECIMAL.fullmatch(text):
        return text
    if text.startswith(_INTERVAL) and text.endswith(("DAY", "HOUR", "MINUTE", "SECOND")):
        return _INTERVAL
    return UNKNOWN


def scalar_of(variable: str, tree: exp.Expr, kinds: Sequence[str]) -> ConditionExpression:
    """Translate a condition over parts of these types; raises Unrunnable."""
    try:
        condition = _scalar(tree, kinds)
        if condition.kind not in ("BOOLEAN", UNKNOWN):
            raise _Untranslatable(f"the condition is of type {condition.kind}, not BOOLEAN", tree)
    except _Untranslatable as error:
        message = f"DEFINE {variable}: {error}"
        raise Unrunnable(Rejection(message, _HINT, own_span(error.tree))) from None
    return condition.scalar


def _scalar(tree: exp.Expr, kinds: Sequence[str]) -> TypedCondition:
    tree = tree.unnest()
    if isinstance(tree, exp.Column):
        position = int(tree.name[1:])
        return TypedCondition(InputValue(position), kinds[position])
    for kind, translate in _TRANSLATED.items():
        if isinstance(tree, kind):
            return translate(tree, kinds)
    what = (ex.call_name(tree) or type(tree).__name__).lower()
    raise _Untranslatable(f"{what} {_UNSUPPORTED}", tree)


def _literal(tree: exp.Expr, kinds: Sequence[str]) -> TypedCondition:
    if tree.args.get("is_string"):
        return TypedCondition(Constant(tree.name), "STRING")
    if tree.name.isdecimal():
        number = int(tree.name)
        if number < 2**63:
            return TypedCondition(Constant(number), "INT" if number < 2**31 else "BIGINT")
    elif re.fullmatch(r"\d*\.\d+|\d+\.", tree.name):
        value = Decimal(tree.name)
        digits, scale = len(value.as_tuple().digits), max(0, -int(value.as_tuple().exponent))
        return TypedCondition(Constant(value), f"DECIMAL({max(digits, scale)},{scale})")
    raise _Untranslatable(f"the number {tree.name} {_UNSUPPORTED}", tree)


def _compare(tree: exp.Expr, kinds: Sequence[str]) -> TypedCondition:
    return _comparison(_COMPARISONS[type(tree)], tree.this, tree.expression, tree, kinds)


def _comparison(
    sign: str, left: exp.Expr, right: exp.Expr, tree: exp.Expr, kinds: Sequence[str]
) -> TypedCondition:
    one, other, doubles = _to_common_type(_scalar(left, kinds), _scalar(right, kinds), tree)
    return TypedCondition(Compare(sign, one, other, doubles), "BOOLEAN")


def _to_common_type(
    one: TypedCondition, other: TypedCondition, tree: exp.Expr
) -> tuple[ConditionExpression, ConditionExpression, bool]:
    """Return two values in the type in which Spark compares them, and whether that is double."""
    pair = (one.kind, other.kind)
    whole = all(kind in _INTEGERS for kind in pair)
    if UNKNOWN in pair or whole or (one.kind == other.kind and one.kind in (*_PLAIN, _INTERVAL)):
        return one.scalar, other.scalar, False
    if any(kind in _FLOATING for kind in pair):
        if pair == ("FLOAT", "FLOAT"):
            return one.scalar, other.scalar, True
        return _as_double(one, other, tree), _as_double(other, one, tree), True
    if all(_is_exact(kind) for kind in pair):
        (first, scale), (second, more) = _digits(one.kind), _digits(other.kind)
        if max(first - scale, second - more) + max(scale, more) <= _MAX_PRECISION:
            return one.scalar, other.scalar, False
    raise _unlike(one, other, tree)


def _unlike(one: TypedCondition, other: TypedCondition, tree: exp.Expr) -> _Untranslatable:
    return _Untranslatable(
        f"a condition across rows cannot combine {one.kind} and {other.kind} exactly as Spark does",
        tree,
    )


def _is_exact(kind: str) -> bool:
    return kind in _INTEGERS or _DECIMAL.fullmatch(kind) is not None


def _digits(kind: str) -> tuple[int, int]:
    """Return precision and scale."""
    match = _DECIMAL.fullmatch(kind)
    return (int(match.group(1)), int(match.group(2))) if match else (_DIGITS[kind], 0)


def _as_double(value: TypedCondition, other: TypedCondition, tree: exp.Expr) -> ConditionExpression:
    """Convert a number that is combined with a double; Spark computes FLOAT in other ways."""
    pair = (value.kind, other.kind)
    if "DOUBLE" in pair and (value.kind in _FLOATING or _is_exact(value.kind)):
        return _double(value)
    raise _unlike(value, other, tree)


def _double(value: TypedCondition) -> ConditionExpression:
    if isinstance(value.scalar, Constant):
        return Constant(float(value.scalar.value))
    return value.scalar if value.kind in (*_FLOATING, UNKNOWN) else AsDouble(value.scalar)


def _arithmetic(tree: exp.Expr, kinds: Sequence[str]) -> TypedCondition:
    sign = _ARITHMETIC[type(tree)]
    one, other = _scalar(tree.this, kinds), _scalar(tree.expression, kinds)
    pair = (one.kind, other.kind)
    if UNKNOWN in pair:
        return TypedCondition(Calculate(sign, one.scalar, other.scalar), UNKNOWN)
    if all(kind in _INTEGERS for kind in pair):
        kind = max(pair, key=_INTEGERS.index)
        return TypedCondition(Calculate(sign, one.scalar, other.scalar, _BITS[kind]), kind)
    if any(kind in _FLOATING for kind in pair):
        left, right = _as_double(one, other, tree), _as_double(other, one, tree)
        return TypedCondition(Calculate(sign, left, right), "DOUBLE")
    if all(_is_exact(kind) for kind in pair):
        return _of_decimals(sign, one, other, tree)
    times = {
        ("-", "TIMESTAMP", "TIMESTAMP"): _INTERVAL,
        ("-", "TIMESTAMP", _INTERVAL): "TIMESTAMP",
        ("+", "TIMESTAMP", _INTERVAL): "TIMESTAMP",
        ("-", _INTERVAL, _INTERVAL): _INTERVAL,
        ("+", _INTERVAL, _INTERVAL): _INTERVAL,
    }
    result_kind = times.get((sign, *pair))
    if result_kind is None:
        raise _unlike(one, other, tree)
    return TypedCondition(Calculate(sign, one.scalar, other.scalar, 64), result_kind)


def _of_decimals(
    sign: str, one: TypedCondition, other: TypedCondition, tree: exp.Expr
) -> TypedCondition:
    """Calculate with enough digits for every result; beyond 38 digits Spark would round."""
    (first, scale), (second, more) = _digits(one.kind), _digits(other.kind)
    if sign == "*":
        digits, result_scale = first + second + 1, scale + more
    else:
        result_scale = max(scale, more)
        digits = max(first - scale, second - more) + result_scale + 1
    if digits > _MAX_PRECISION:
        raise _unlike(one, other, tree)
    scalar = Calculate(sign, one.scalar, other.scalar, decimals=True)
    return TypedCondition(scalar, f"DECIMAL({digits},{result_scale})")


def _divided(tree: exp.Expr, kinds: Sequence[str]) -> TypedCondition:
    one, other = _scalar(tree.this, kinds), _scalar(tree.expression, kinds)
    pair = (one.kind, other.kind)
    numbers = (*_INTEGERS, "DOUBLE", UNKNOWN)
    whole = all(kind in numbers for kind in pair)
    if whole or ("DOUBLE" in pair and all(_is_exact(k) or k in _FLOATING for k in pair)):
        return TypedCondition(Divide(_double(one), _double(other)), "DOUBLE")
    raise _unlike(one, other, tree)


def _negated(tree: exp.Expr, kinds: Sequence[str]) -> TypedCondition:
    value = _scalar(tree.this, kinds)
    if isinstance(value.scalar, Constant) and value.kind != "STRING":
        return TypedCondition(Constant(-value.scalar.value), value.kind)
    if value.kind in _INTEGERS or value.kind == UNKNOWN:
        bits = _BITS.get(value.kind, 0)
        return TypedCondition(Calculate("-", Constant(0), value.scalar, bits), value.kind)
    if value.kind == "DOUBLE":
        return TypedCondition(Calculate("*", Constant(-1.0), value.scalar), value.kind)
    raise _Untranslatable(f"the negation of {value.kind} {_UNSUPPORTED}", tree)


def _logical(kind: type[And] | type[Or]) -> Callable[[exp.Expr, Sequence[str]], TypedCondition]:
    def translate(tree: exp.Expr, kinds: Sequence[str]) -> TypedCondition:
        parts = [_condition(part, kinds) for part in (tree.this, tree.expression)]
        return TypedCondition(kind(*parts), "BOOLEAN")

    return translate


def _condition(tree: exp.Expr, kinds: Sequence[str]) -> ConditionExpression:
    condition = _scalar(tree, kinds)
    if condition.kind not in ("BOOLEAN", UNKNOWN):
        raise _Untranslatable(f"a condition is of type {condition.kind}, not BOOLEAN", tree)
    return condition.scalar


def _not(tree: exp.Expr, kinds: Sequence[str]) -> TypedCondition:
    return TypedCondition(Not(_condition(tree.this, kinds)), "BOOLEAN")


def _is_null(tree: exp.Expr, kinds: Sequence[str]) -> TypedCondition:
    if not isinstance(tree.expression, exp.Null):
        raise _Untranslatable(f"IS without NULL {_UNSUPPORTED}", tree)
    return TypedCondition(IsNull(_scalar(tree.this, kinds).scalar), "BOOLEAN")


def _null_safe_equal(tree: exp.Expr, kinds: Sequence[str]) -> TypedCondition:
    """Compare with `<=>`: true if both values are NULL."""
    one, other, doubles = _to_common_type(
        _scalar(tree.this, kinds), _scalar(tree.expression, kinds), tree
    )
    both = And(IsNull(one), IsNull(other))
    same: ConditionExpression = Coalesce((Compare("=", one, other, doubles), both))
    return TypedCondition(Not(same) if isinstance(tree, exp.NullSafeNEQ) else same, "BOOLEAN")


def _between(tree: exp.Expr, kinds: Sequence[str]) -> TypedCondition:
    if tree.args.get("symmetric"):
        raise _Untranslatable(f"BETWEEN SYMMETRIC {_UNSUPPORTED}", tree)
    above = _comparison(">=", tree.this, tree.args["low"], tree, kinds)
    below = _comparison("<=", tree.this, tree.args["high"], tree, kinds)
    return TypedCondition(And(above.scalar, below.scalar), "BOOLEAN")


def _in_list(tree: exp.Expr, kinds: Sequence[str]) -> TypedCondition:
    """Translate IN; all values are compared as doubles if one of them is a double."""
    values = [_scalar(part, kinds) for part in (tree.this, *tree.expressions)]
    if len(values) < 2:
        raise _Untranslatable("IN across rows needs a list of values", tree)
    if any(value.kind == "DOUBLE" for value in values):
        values = [TypedCondition(_double(v), "DOUBLE") if _is_exact(v.kind) else v for v in values]
    result: ConditionExpression | None = None
    for value in values[1:]:
        one, other, doubles = _to_common_type(values[0], value, tree)
        same = Compare("=", one, other, doubles)
        result = same if result is None else Or(result, same)
    assert result is not None, "there is a value to compare with"
    return TypedCondition(result, "BOOLEAN")


def _cast(tree: exp.Expr, kinds: Sequence[str]) -> TypedCondition:
    value, kind = _scalar(tree.this, kinds), to_sql(tree.args["to"]).upper()
    is_number = _is_exact(value.kind) or value.kind in (*_FLOATING, UNKNOWN)
    if kind != "DOUBLE" or not is_number:
        raise _Untranslatable(f"a cast to {kind} {_UNSUPPORTED}", tree)
    return TypedCondition(_double(value), "DOUBLE")


def _call(tree: exp.Expr, kinds: Sequence[str]) -> TypedCondition:
    name = ex.call_name(tree)
    parts = [_scalar(part, kinds) for part in tree.expressions]
    part_kinds = {part.kind for part in parts}
    if name == "ABS" and len(parts) == 1:
        kind = parts[0].kind
        if _is_exact(kind) or kind in ("DOUBLE", UNKNOWN):
            return TypedCondition(Absolute(parts[0].scalar, _BITS.get(kind, 0)), kind)
    if name == "COALESCE" and parts and len(part_kinds - {UNKNOWN}) <= 1:
        return TypedCondition(
            Coalesce(tuple(part.scalar for part in parts)), max(part_kinds, key=_is_known)
        )
    raise _Untranslatable(f"{str(name).lower()} {_UNSUPPORTED}", tree)


def _is_known(kind: str) -> bool:
    return kind != UNKNOWN


_TRANSLATED: dict[type[exp.Expr], Callable[[exp.Expr, Sequence[str]], TypedCondition]] = {
    exp.Literal: _literal,
    exp.Boolean: lambda tree, kinds: TypedCondition(Constant(bool(tree.this)), "BOOLEAN"),
    **dict.fromkeys(_COMPARISONS, _compare),
    **dict.fromkeys(_ARITHMETIC, _arithmetic),
    exp.Div: _divided,
    exp.Neg: _negated,
    exp.And: _logical(And),
    exp.Or: _logical(Or),
    exp.Not: _not,
    exp.Is: _is_null,
    exp.NullSafeEQ: _null_safe_equal,
    exp.NullSafeNEQ: _null_safe_equal,
    exp.Between: _between,
    exp.In: _in_list,
    exp.Cast: _cast,
    exp.Anonymous: _call,
}
