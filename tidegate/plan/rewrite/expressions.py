"""Facts about expressions that decide whether a rule may move them.

Types are those of the plan's fields. If a type is unknown, the conservative answer is returned:
such an expression counts as one that can fail.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from sqlglot import exp

from tidegate.plan import nodes as n
from tidegate.plan.bind.scope import column, parenthesize, referenced_ids
from tidegate.sql import expressions as ex

Fields = Mapping[str, n.Field]

_NUMBER, _TEXT, _BOOLEAN, _TIMESTAMP = "number", "text", "BOOLEAN", "TIMESTAMP"
_WHOLE = ("TINYINT", "SMALLINT", "INT", "INTEGER", "BIGINT", "BYTE", "SHORT", "LONG")
_FLOATING = ("FLOAT", "REAL", "DOUBLE")
_NUMBERS = frozenset({*_WHOLE, *_FLOATING})
# Longer literals may be decimals without a common type that holds both.
_MAX_DIGITS = 15

_COMPARISONS = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE)
_ALL_COMPARISONS = (*_COMPARISONS, exp.NullSafeEQ, exp.NullSafeNEQ)
# Functions that cannot fail on strings, with the types of their results.
_TEXT_CALLS = {
    **dict.fromkeys(("UPPER", "LOWER", "LTRIM", "RTRIM", "REVERSE", "CONCAT"), _TEXT),
    **dict.fromkeys(("LENGTH", "CHAR_LENGTH"), _NUMBER),
    **dict.fromkeys(("STARTSWITH", "ENDSWITH", "CONTAINS"), _BOOLEAN),
}
# Functions that return one of their arguments, which must have the same type.
_CHOOSING_CALLS = frozenset({"COALESCE", "NVL", "IFNULL", "NULLIF"})
_NULL_CALLS = frozenset({"ISNULL", "ISNOTNULL"})


def split_conjuncts(condition: exp.Expr) -> list[exp.Expr]:
    """Split a condition at AND and keep each BETWEEN as it is."""
    bare = condition.unnest()
    if isinstance(bare, exp.And):
        return split_conjuncts(bare.left) + split_conjuncts(bare.right)
    return [bare]


def is_deterministic(tree: exp.Expr) -> bool:
    """Return whether an expression has the same value each time it is evaluated for a row."""
    return ex.is_repeatable(tree) and not tree.find(exp.Query)


def substitute(tree: exp.Expr, mapping: Mapping[str, exp.Expr]) -> exp.Expr | None:
    """Replace columns; None if one is not in the mapping or a lambda would capture one."""
    ids = referenced_ids(tree)
    if not ids <= set(mapping):
        return None
    inserted_ids = {name.lower() for item in ids for name in referenced_ids(mapping[item])}
    for inner in tree.find_all(exp.Lambda):
        if any(parameter.name.lower() in inserted_ids for parameter in inner.expressions):
            return None

    def swap(part: exp.Expr) -> exp.Expr:
        return parenthesize(mapping[part.name].copy()) if isinstance(part, exp.Column) else part

    if isinstance(tree, exp.Column):
        return mapping[tree.name].copy()
    return tree.copy().transform(swap)


def column_mapping(fields: tuple[n.Field, ...], others: tuple[n.Field, ...]) -> dict[str, exp.Expr]:
    """Map the ids of one list of fields to the columns of another, by position."""
    return {item.id: column(other) for item, other in zip(fields, others, strict=True)}


def is_trivial(tree: exp.Expr) -> bool:
    """Return whether evaluating an expression again costs nothing."""
    return isinstance(tree.unnest(), exp.Column | exp.Literal | exp.Boolean | exp.Null)


def are_interchangeable(one: n.Field, other: n.Field) -> bool:
    """Return whether equal values of two columns are identical; -0.0 and 0.0 are not."""
    type_name = _type_of(one)
    return type_name is not None and type_name == _type_of(other) and type_name not in _FLOATING


def rejects_nulls(tree: exp.Expr, ids: set[str]) -> bool:
    """Return whether a condition is never true if all of these columns are NULL."""
    tree = tree.unnest()

    def is_null_column(part: exp.Expr) -> bool:
        return isinstance(part.unnest(), exp.Column) and part.unnest().name in ids

    if isinstance(tree, exp.And):
        return rejects_nulls(tree.left, ids) or rejects_nulls(tree.right, ids)
    if isinstance(tree, exp.Or):
        return rejects_nulls(tree.left, ids) and rejects_nulls(tree.right, ids)
    if isinstance(tree, exp.Not):
        inner = tree.this.unnest()
        is_null = isinstance(inner, exp.Is) and isinstance(inner.expression, exp.Null)
        return is_null and is_null_column(inner.this)
    if isinstance(tree, (*_COMPARISONS, exp.Like)):
        return is_null_column(tree.left) or is_null_column(tree.right)
    if isinstance(tree, exp.In):
        return not tree.args.get("query") and is_null_column(tree.this)
    return isinstance(tree, exp.Between) and is_null_column(tree.this)


def can_fail(tree: exp.Expr, fields: Fields) -> bool:
    """Return whether an expression may fail on some row: a cast, a division, or an overflow."""
    return not _cannot_fail(tree.unnest(), fields)


def _cannot_fail(tree: exp.Expr, fields: Fields) -> bool:
    if isinstance(tree, exp.Literal | exp.Boolean | exp.Null):
        return True
    if isinstance(tree, exp.Column):
        return tree.name in fields
    if isinstance(tree, exp.And | exp.Or | exp.Not | exp.Paren | exp.Is):
        return all(_cannot_fail(part, fields) for part in tree.iter_expressions())
    if isinstance(tree, exp.Neg):
        return isinstance(tree.this, exp.Literal)
    if isinstance(tree, exp.Cast):
        return _cast_cannot_fail(tree, fields)
    if isinstance(tree, exp.Anonymous):
        return _call_cannot_fail(tree, fields)
    if isinstance(tree, exp.Like):
        literal = tree.right.unnest()
        plain = isinstance(literal, exp.Literal) and "\\" not in literal.name
        return plain and _are_comparable(list(tree.iter_expressions()), fields)
    if isinstance(tree, exp.In) and (tree.args.get("query") or tree.args.get("unnest")):
        return False
    if isinstance(tree, (*_ALL_COMPARISONS, exp.In, exp.Between)):
        return _are_comparable(list(tree.iter_expressions()), fields)
    return False


def _are_comparable(parts: list[exp.Expr], fields: Fields) -> bool:
    """Return whether parts cannot fail and can be compared without a cast."""
    kinds = {_kind(part.unnest(), fields) for part in parts} - {"null"}
    all_safe = all(_cannot_fail(part.unnest(), fields) for part in parts)
    return all_safe and None not in kinds and len(kinds) <= 1


def _cast_cannot_fail(tree: exp.Cast, fields: Fields) -> bool:
    """Allow TRY_CAST, casts to string, and casts of string literals that can be parsed."""
    target = _type_family(tree.to.sql(dialect="spark"))
    inner = tree.this.unnest()
    if target == _TEXT or tree.args.get("safe"):
        return _cannot_fail(inner, fields)
    if target not in (_TIMESTAMP, "DATE") or not isinstance(inner, exp.Literal):
        return False
    try:
        return bool(datetime.fromisoformat(inner.name))
    except ValueError:
        return False


def _call_cannot_fail(tree: exp.Anonymous, fields: Fields) -> bool:
    name, arguments = ex.call_name(tree), list(tree.expressions)
    if name in _NULL_CALLS:
        return all(_cannot_fail(part, fields) for part in arguments)
    if name in _CHOOSING_CALLS:
        return _are_comparable(arguments, fields)
    all_text = all(_kind(part.unnest(), fields) == _TEXT for part in arguments)
    return (
        name in _TEXT_CALLS and all_text and all(_cannot_fail(part, fields) for part in arguments)
    )


def _kind(tree: exp.Expr, fields: Fields) -> str | None:
    """Return the type family of an expression, if it is known."""
    if isinstance(tree, exp.Column):
        item = fields.get(tree.name)
        return _type_family(_type_of(item)) if item is not None else None
    if isinstance(tree, exp.Literal):
        if tree.is_string:
            return _TEXT
        return _NUMBER if len(tree.name) <= _MAX_DIGITS else None
    if isinstance(tree, exp.Neg):
        return _kind(tree.this, fields)
    if isinstance(tree, exp.Null):
        return "null"
    if isinstance(tree, exp.Cast):
        return _type_family(tree.to.sql(dialect="spark"))
    if isinstance(tree, exp.Boolean | exp.And | exp.Or | exp.Not | exp.Predicate):
        return _BOOLEAN
    name = ex.call_name(tree) or ""
    if name in _CHOOSING_CALLS:
        return _kind(tree.expressions[0].unnest(), fields)
    return _BOOLEAN if name in _NULL_CALLS else _TEXT_CALLS.get(name)


def _type_of(item: n.Field) -> str | None:
    """Return the type of a field. Columns with a role in event time are timestamps."""
    if item.type is None and item.role is not n.Role.PLAIN:
        return _TIMESTAMP
    return item.type.upper() if item.type is not None else None


def _type_family(type_name: str | None) -> str | None:
    """Return the family of a type. Comparing types of one family needs no cast that can fail."""
    if type_name is None:
        return None
    name = type_name.upper()
    if name in _NUMBERS:
        return _NUMBER
    return _TEXT if name == "STRING" else name
