"""What the rules must know of an expression before they move it.

Types are those of the plan's fields. Where a type is not known the answer is the careful one: such
an expression counts as one that can fail.
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
# Longer numbers may be decimals that do not fit next to each other.
_MOST_DIGITS = 15

_COMPARISONS = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE)
_COMPARES = (*_COMPARISONS, exp.NullSafeEQ, exp.NullSafeNEQ)
# They take text and cannot fail on it; what they give.
_TEXT_CALLS = {
    **dict.fromkeys(("UPPER", "LOWER", "LTRIM", "RTRIM", "REVERSE", "CONCAT"), _TEXT),
    **dict.fromkeys(("LENGTH", "CHAR_LENGTH"), _NUMBER),
    **dict.fromkeys(("STARTSWITH", "ENDSWITH", "CONTAINS"), _BOOLEAN),
}
# They give one of their arguments, which must be of one type.
_CHOOSING_CALLS = frozenset({"COALESCE", "NVL", "IFNULL", "NULLIF"})
_NULL_CALLS = frozenset({"ISNULL", "ISNOTNULL"})


def pieces(condition: exp.Expr) -> list[exp.Expr]:
    """The parts of a condition that are joined by AND, each as it was written."""
    bare = condition.unnest()
    if isinstance(bare, exp.And):
        return pieces(bare.left) + pieces(bare.right)
    return [bare]


def is_deterministic(tree: exp.Expr) -> bool:
    """Whether it gives the same value for the same row, asked again or somewhere else."""
    return ex.repeatable(tree) and not tree.find(exp.Query)


def substitute(tree: exp.Expr, mapping: Mapping[str, exp.Expr]) -> exp.Expr | None:
    """The tree with columns replaced; None where a lambda would capture one, or one is missing."""
    used = referenced_ids(tree)
    if not used <= set(mapping):
        return None
    brought = {name.lower() for item in used for name in referenced_ids(mapping[item])}
    for inner in tree.find_all(exp.Lambda):
        if any(parameter.name.lower() in brought for parameter in inner.expressions):
            return None

    def swap(part: exp.Expr) -> exp.Expr:
        return parenthesize(mapping[part.name].copy()) if isinstance(part, exp.Column) else part

    if isinstance(tree, exp.Column):
        return mapping[tree.name].copy()
    return tree.copy().transform(swap)


def renaming(fields: tuple[n.Field, ...], others: tuple[n.Field, ...]) -> dict[str, exp.Expr]:
    """The columns of one list by the ids of another, by position."""
    return {item.id: column(other) for item, other in zip(fields, others, strict=True)}


def is_trivial(tree: exp.Expr) -> bool:
    """Whether computing it again costs nothing."""
    return isinstance(tree.unnest(), exp.Column | exp.Literal | exp.Boolean | exp.Null)


def same_in_both(one: n.Field, other: n.Field) -> bool:
    """Whether equal values of two columns cannot be told apart; -0.0 and 0.0 can."""
    kind = _type_of(one)
    return kind is not None and kind == _type_of(other) and kind not in _FLOATING


def rejects_nulls(tree: exp.Expr, ids: set[str]) -> bool:
    """Whether a condition is never true where these columns are all NULL."""
    tree = tree.unnest()

    def is_one(part: exp.Expr) -> bool:
        return isinstance(part.unnest(), exp.Column) and part.unnest().name in ids

    if isinstance(tree, exp.And):
        return rejects_nulls(tree.left, ids) or rejects_nulls(tree.right, ids)
    if isinstance(tree, exp.Or):
        return rejects_nulls(tree.left, ids) and rejects_nulls(tree.right, ids)
    if isinstance(tree, exp.Not):
        inner = tree.this.unnest()
        is_null = isinstance(inner, exp.Is) and isinstance(inner.expression, exp.Null)
        return is_null and is_one(inner.this)
    if isinstance(tree, (*_COMPARISONS, exp.Like)):
        return is_one(tree.left) or is_one(tree.right)
    if isinstance(tree, exp.In):
        return not tree.args.get("query") and is_one(tree.this)
    return isinstance(tree, exp.Between) and is_one(tree.this)


# Failing


def can_fail(tree: exp.Expr, fields: Fields) -> bool:
    """Whether it may stop on some row: a cast, a division, an overflow, or what is not known."""
    return not _safe(tree.unnest(), fields)


def _safe(tree: exp.Expr, fields: Fields) -> bool:
    if isinstance(tree, exp.Literal | exp.Boolean | exp.Null):
        return True
    if isinstance(tree, exp.Column):
        return tree.name in fields
    if isinstance(tree, exp.And | exp.Or | exp.Not | exp.Paren | exp.Is):
        return all(_safe(part, fields) for part in tree.iter_expressions())
    if isinstance(tree, exp.Neg):
        return isinstance(tree.this, exp.Literal)
    if isinstance(tree, exp.Cast):
        return _safe_cast(tree, fields)
    if isinstance(tree, exp.Anonymous):
        return _safe_call(tree, fields)
    if isinstance(tree, exp.Like):
        literal = tree.right.unnest()
        plain = isinstance(literal, exp.Literal) and "\\" not in literal.name
        return plain and _comparable(list(tree.iter_expressions()), fields)
    if isinstance(tree, exp.In) and (tree.args.get("query") or tree.args.get("unnest")):
        return False
    if isinstance(tree, (*_COMPARES, exp.In, exp.Between)):
        return _comparable(list(tree.iter_expressions()), fields)
    return False


def _comparable(parts: list[exp.Expr], fields: Fields) -> bool:
    """Whether parts are safe and of one kind, so that nothing must be cast to compare them."""
    kinds = {_kind(part.unnest(), fields) for part in parts} - {"null"}
    safe = all(_safe(part.unnest(), fields) for part in parts)
    return safe and None not in kinds and len(kinds) <= 1


def _safe_cast(tree: exp.Cast, fields: Fields) -> bool:
    """TRY_CAST and to text always; from text only where it is a constant that can be read."""
    target = _family(tree.to.sql(dialect="spark"))
    inner = tree.this.unnest()
    if target == _TEXT or tree.args.get("safe"):
        return _safe(inner, fields)
    if target not in (_TIMESTAMP, "DATE") or not isinstance(inner, exp.Literal):
        return False
    try:
        return bool(datetime.fromisoformat(inner.name))
    except ValueError:
        return False


def _safe_call(tree: exp.Anonymous, fields: Fields) -> bool:
    name, arguments = ex.call_name(tree), list(tree.expressions)
    if name in _NULL_CALLS:
        return all(_safe(part, fields) for part in arguments)
    if name in _CHOOSING_CALLS:
        return _comparable(arguments, fields)
    texts = all(_kind(part.unnest(), fields) == _TEXT for part in arguments)
    return name in _TEXT_CALLS and texts and all(_safe(part, fields) for part in arguments)


def _kind(tree: exp.Expr, fields: Fields) -> str | None:
    """What an expression can be compared with, where that is known."""
    if isinstance(tree, exp.Column):
        item = fields.get(tree.name)
        return _family(_type_of(item)) if item is not None else None
    if isinstance(tree, exp.Literal):
        if tree.is_string:
            return _TEXT
        return _NUMBER if len(tree.name) <= _MOST_DIGITS else None
    if isinstance(tree, exp.Neg):
        return _kind(tree.this, fields)
    if isinstance(tree, exp.Null):
        return "null"
    if isinstance(tree, exp.Cast):
        return _family(tree.to.sql(dialect="spark"))
    if isinstance(tree, exp.Boolean | exp.And | exp.Or | exp.Not | exp.Predicate):
        return _BOOLEAN
    name = ex.call_name(tree) or ""
    if name in _CHOOSING_CALLS:
        return _kind(tree.expressions[0].unnest(), fields)
    return _BOOLEAN if name in _NULL_CALLS else _TEXT_CALLS.get(name)


def _type_of(item: n.Field) -> str | None:
    """The type of a field; what has a role in time is a timestamp before Spark has said so."""
    if item.type is None and item.role is not n.Role.PLAIN:
        return _TIMESTAMP
    return item.type.upper() if item.type is not None else None


def _family(kind: str | None) -> str | None:
    """Types of one family are compared without a cast that could fail."""
    if kind is None:
        return None
    word = kind.upper()
    if word in _NUMBERS:
        return _NUMBER
    return _TEXT if word == "STRING" else word
