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
    sql_type: str


class _Untranslatable(Exception):
    def __init__(self, message: str, tree: exp.Expr) -> None:
        super().__init__(message)
        self.tree = tree


_UNSUPPORTED = "is not supported in a condition across rows"


def known_type(name: str | None) -> str:
    """Return the type by its name here; `?` if it is unknown."""
    text = (name or UNKNOWN).upper().replace(" ", "")
    if text in (*_PLAIN, *_FLOATING) or _DECIMAL.fullmatch(text):
        return text
    if text.startswith(_INTERVAL) and text.endswith(("DAY", "HOUR", "MINUTE", "SECOND")):
        return _INTERVAL
    return UNKNOWN


def scalar_of(variable: str, tree: exp.Expr, sql_types: Sequence[str]) -> ConditionExpression:
    """Translate a condition over parts of these types; raise Unrunnable if it cannot run."""
    try:
        condition = _scalar(tree, sql_types)
        if condition.sql_type not in ("BOOLEAN", UNKNOWN):
            raise _Untranslatable(
                f"the condition is of type {condition.sql_type}, not BOOLEAN", tree
            )
    except _Untranslatable as error:
        message = f"DEFINE {variable}: {error}"
        raise Unrunnable(Rejection(message, _HINT, own_span(error.tree))) from None
    return condition.scalar


def _scalar(tree: exp.Expr, sql_types: Sequence[str]) -> TypedCondition:
    tree = tree.unnest()
    if isinstance(tree, exp.Column):
        position = int(tree.name[1:])
        return TypedCondition(InputValue(position), sql_types[position])
    for expression_type, translate in _TRANSLATORS.items():
        if isinstance(tree, expression_type):
            return translate(tree, sql_types)
    what = (ex.call_name(tree) or type(tree).__name__).lower()
    raise _Untranslatable(f"{what} {_UNSUPPORTED}", tree)


def _literal(tree: exp.Expr, sql_types: Sequence[str]) -> TypedCondition:
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


def _compare(tree: exp.Expr, sql_types: Sequence[str]) -> TypedCondition:
    return _comparison(_COMPARISONS[type(tree)], tree.this, tree.expression, tree, sql_types)


def _comparison(
    sign: str, left: exp.Expr, right: exp.Expr, tree: exp.Expr, sql_types: Sequence[str]
) -> TypedCondition:
    one, other, doubles = _to_common_type(_scalar(left, sql_types), _scalar(right, sql_types), tree)
    return TypedCondition(Compare(sign, one, other, doubles), "BOOLEAN")


def _to_common_type(
    one: TypedCondition, other: TypedCondition, tree: exp.Expr
) -> tuple[ConditionExpression, ConditionExpression, bool]:
    """Return two values in the type in which Spark compares them, and whether that is double."""
    pair = (one.sql_type, other.sql_type)
    whole = all(sql_type in _INTEGERS for sql_type in pair)
    if (
        UNKNOWN in pair
        or whole
        or (one.sql_type == other.sql_type and one.sql_type in (*_PLAIN, _INTERVAL))
    ):
        return one.scalar, other.scalar, False
    if any(sql_type in _FLOATING for sql_type in pair):
        if pair == ("FLOAT", "FLOAT"):
            return one.scalar, other.scalar, True
        return _as_double(one, other, tree), _as_double(other, one, tree), True
    if all(_is_exact(sql_type) for sql_type in pair):
        (first, scale), (second, more) = _digits(one.sql_type), _digits(other.sql_type)
        if max(first - scale, second - more) + max(scale, more) <= _MAX_PRECISION:
            return one.scalar, other.scalar, False
    raise _unlike(one, other, tree)


def _unlike(one: TypedCondition, other: TypedCondition, tree: exp.Expr) -> _Untranslatable:
    return _Untranslatable(
        f"a condition across rows cannot combine {one.sql_type} and {other.sql_type} "
        "exactly as Spark does",
        tree,
    )


def _is_exact(sql_type: str) -> bool:
    return sql_type in _INTEGERS or _DECIMAL.fullmatch(sql_type) is not None


def _digits(sql_type: str) -> tuple[int, int]:
    """Return precision and scale."""
    match = _DECIMAL.fullmatch(sql_type)
    return (int(match.group(1)), int(match.group(2))) if match else (_DIGITS[sql_type], 0)


def _as_double(value: TypedCondition, other: TypedCondition, tree: exp.Expr) -> ConditionExpression:
    """Convert a number that is combined with a double; Spark computes FLOAT in other ways."""
    pair = (value.sql_type, other.sql_type)
    if "DOUBLE" in pair and (value.sql_type in _FLOATING or _is_exact(value.sql_type)):
        return _double(value)
    raise _unlike(value, other, tree)


def _double(value: TypedCondition) -> ConditionExpression:
    if isinstance(value.scalar, Constant):
        return Constant(float(value.scalar.value))
    return value.scalar if value.sql_type in (*_FLOATING, UNKNOWN) else AsDouble(value.scalar)


def _arithmetic(tree: exp.Expr, sql_types: Sequence[str]) -> TypedCondition:
    sign = _ARITHMETIC[type(tree)]
    one, other = _scalar(tree.this, sql_types), _scalar(tree.expression, sql_types)
    pair = (one.sql_type, other.sql_type)
    if UNKNOWN in pair:
        return TypedCondition(Calculate(sign, one.scalar, other.scalar), UNKNOWN)
    if all(sql_type in _INTEGERS for sql_type in pair):
        sql_type = max(pair, key=_INTEGERS.index)
        return TypedCondition(Calculate(sign, one.scalar, other.scalar, _BITS[sql_type]), sql_type)
    if any(sql_type in _FLOATING for sql_type in pair):
        left, right = _as_double(one, other, tree), _as_double(other, one, tree)
        return TypedCondition(Calculate(sign, left, right), "DOUBLE")
    if all(_is_exact(sql_type) for sql_type in pair):
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
    (first, scale), (second, more) = _digits(one.sql_type), _digits(other.sql_type)
    if sign == "*":
        digits, result_scale = first + second + 1, scale + more
    else:
        result_scale = max(scale, more)
        digits = max(first - scale, second - more) + result_scale + 1
    if digits > _MAX_PRECISION:
        raise _unlike(one, other, tree)
    scalar = Calculate(sign, one.scalar, other.scalar, decimals=True)
    return TypedCondition(scalar, f"DECIMAL({digits},{result_scale})")


def _divided(tree: exp.Expr, sql_types: Sequence[str]) -> TypedCondition:
    one, other = _scalar(tree.this, sql_types), _scalar(tree.expression, sql_types)
    pair = (one.sql_type, other.sql_type)
    numbers = (*_INTEGERS, "DOUBLE", UNKNOWN)
    whole = all(sql_type in numbers for sql_type in pair)
    if whole or ("DOUBLE" in pair and all(_is_exact(k) or k in _FLOATING for k in pair)):
        return TypedCondition(Divide(_double(one), _double(other)), "DOUBLE")
    raise _unlike(one, other, tree)


def _negated(tree: exp.Expr, sql_types: Sequence[str]) -> TypedCondition:
    value = _scalar(tree.this, sql_types)
    if isinstance(value.scalar, Constant) and value.sql_type != "STRING":
        return TypedCondition(Constant(-value.scalar.value), value.sql_type)
    if value.sql_type in _INTEGERS or value.sql_type == UNKNOWN:
        bits = _BITS.get(value.sql_type, 0)
        return TypedCondition(Calculate("-", Constant(0), value.scalar, bits), value.sql_type)
    if value.sql_type == "DOUBLE":
        return TypedCondition(Calculate("*", Constant(-1.0), value.scalar), value.sql_type)
    raise _Untranslatable(f"the negation of {value.sql_type} {_UNSUPPORTED}", tree)


def _logical(
    connective: type[And] | type[Or],
) -> Callable[[exp.Expr, Sequence[str]], TypedCondition]:
    def translate(tree: exp.Expr, sql_types: Sequence[str]) -> TypedCondition:
        parts = [_condition(part, sql_types) for part in (tree.this, tree.expression)]
        return TypedCondition(connective(*parts), "BOOLEAN")

    return translate


def _condition(tree: exp.Expr, sql_types: Sequence[str]) -> ConditionExpression:
    condition = _scalar(tree, sql_types)
    if condition.sql_type not in ("BOOLEAN", UNKNOWN):
        raise _Untranslatable(f"a condition is of type {condition.sql_type}, not BOOLEAN", tree)
    return condition.scalar


def _not(tree: exp.Expr, sql_types: Sequence[str]) -> TypedCondition:
    return TypedCondition(Not(_condition(tree.this, sql_types)), "BOOLEAN")


def _is_null(tree: exp.Expr, sql_types: Sequence[str]) -> TypedCondition:
    if not isinstance(tree.expression, exp.Null):
        raise _Untranslatable(f"IS without NULL {_UNSUPPORTED}", tree)
    return TypedCondition(IsNull(_scalar(tree.this, sql_types).scalar), "BOOLEAN")


def _null_safe_equal(tree: exp.Expr, sql_types: Sequence[str]) -> TypedCondition:
    """Compare with `<=>`: true if both values are NULL."""
    one, other, doubles = _to_common_type(
        _scalar(tree.this, sql_types), _scalar(tree.expression, sql_types), tree
    )
    both = And(IsNull(one), IsNull(other))
    same: ConditionExpression = Coalesce((Compare("=", one, other, doubles), both))
    return TypedCondition(Not(same) if isinstance(tree, exp.NullSafeNEQ) else same, "BOOLEAN")


def _between(tree: exp.Expr, sql_types: Sequence[str]) -> TypedCondition:
    if tree.args.get("symmetric"):
        raise _Untranslatable(f"BETWEEN SYMMETRIC {_UNSUPPORTED}", tree)
    above = _comparison(">=", tree.this, tree.args["low"], tree, sql_types)
    below = _comparison("<=", tree.this, tree.args["high"], tree, sql_types)
    return TypedCondition(And(above.scalar, below.scalar), "BOOLEAN")


def _in_list(tree: exp.Expr, sql_types: Sequence[str]) -> TypedCondition:
    """Translate IN; all values are compared as doubles if one of them is a double."""
    values = [_scalar(part, sql_types) for part in (tree.this, *tree.expressions)]
    if len(values) < 2:
        raise _Untranslatable("IN across rows needs a list of values", tree)
    if any(value.sql_type == "DOUBLE" for value in values):
        values = [
            TypedCondition(_double(v), "DOUBLE") if _is_exact(v.sql_type) else v for v in values
        ]
    result: ConditionExpression | None = None
    for value in values[1:]:
        one, other, doubles = _to_common_type(values[0], value, tree)
        same = Compare("=", one, other, doubles)
        result = same if result is None else Or(result, same)
    assert result is not None, "there is a value to compare with"
    return TypedCondition(result, "BOOLEAN")


def _cast(tree: exp.Expr, sql_types: Sequence[str]) -> TypedCondition:
    value, sql_type = _scalar(tree.this, sql_types), to_sql(tree.args["to"]).upper()
    is_number = _is_exact(value.sql_type) or value.sql_type in (*_FLOATING, UNKNOWN)
    if sql_type != "DOUBLE" or not is_number:
        raise _Untranslatable(f"a cast to {sql_type} {_UNSUPPORTED}", tree)
    return TypedCondition(_double(value), "DOUBLE")


def _call(tree: exp.Expr, sql_types: Sequence[str]) -> TypedCondition:
    name = ex.call_name(tree)
    parts = [_scalar(part, sql_types) for part in tree.expressions]
    part_types = {part.sql_type for part in parts}
    if name == "ABS" and len(parts) == 1:
        sql_type = parts[0].sql_type
        if _is_exact(sql_type) or sql_type in ("DOUBLE", UNKNOWN):
            return TypedCondition(Absolute(parts[0].scalar, _BITS.get(sql_type, 0)), sql_type)
    if name == "COALESCE" and parts and len(part_types - {UNKNOWN}) <= 1:
        return TypedCondition(
            Coalesce(tuple(part.scalar for part in parts)), max(part_types, key=_is_known)
        )
    raise _Untranslatable(f"{str(name).lower()} {_UNSUPPORTED}", tree)


def _is_known(sql_type: str) -> bool:
    return sql_type != UNKNOWN


_TRANSLATORS: dict[type[exp.Expr], Callable[[exp.Expr, Sequence[str]], TypedCondition]] = {
    exp.Literal: _literal,
    exp.Boolean: lambda tree, sql_types: TypedCondition(Constant(bool(tree.this)), "BOOLEAN"),
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
