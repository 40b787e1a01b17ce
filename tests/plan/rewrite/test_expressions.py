"""Facts about expressions that decide whether rules may move them."""

from __future__ import annotations

import pytest
import sqlglot
from sqlglot import exp

from tidegate.plan import nodes as n
from tidegate.plan.rewrite.expressions import (
    are_interchangeable,
    can_fail,
    is_deterministic,
    rejects_nulls,
    split_conjuncts,
    substitute,
)
from tidegate.sql.dialect import DIALECT, to_sql

FIELDS = {
    name: n.Field(name, name, kind)
    for name, kind in (
        ("i", "INT"),
        ("l", "BIGINT"),
        ("d", "DOUBLE"),
        ("m", "DECIMAL(10,2)"),
        ("s", "STRING"),
        ("t", "TIMESTAMP"),
        ("flag", "BOOLEAN"),
        ("unknown", None),
    )
}
FIELDS["closes"] = n.Field("closes", "closes", None, n.Role.WINDOW_END)


def parsed(text: str) -> exp.Expr:
    """Return an expression as the binder does, with function names in upper case."""
    tree = sqlglot.parse_one(f"SELECT {text}", dialect=DIALECT).expressions[0]
    for call in tree.find_all(exp.Anonymous):
        call.set("this", call.name.upper())
    return tree


@pytest.mark.parametrize(
    "text",
    [
        "i = 5",
        "i < l AND NOT d >= 1.5",
        "s = 'a' OR s IS NULL",
        "s IN ('a', 'b')",
        "i BETWEEN 1 AND 10",
        "i = -1",
        "m = m",
        "t > TIMESTAMP '2024-01-01 10:00:00'",
        "closes <= t",
        "s LIKE 'a%'",
        "upper(s) = 'A'",
        "length(s) > 3",
        "coalesce(i, 0) = 0",
        "coalesce(s, 'none') <> 'none'",
        "CAST(i AS STRING) = '5'",
        "try_cast(s AS INT) = 5",
        "i <=> NULL",
        "flag",
        "isnotnull(unknown)",
        "unknown IS NULL",
    ],
)
def test_expression_cannot_fail(text: str) -> None:
    assert not can_fail(parsed(text), FIELDS)


@pytest.mark.parametrize(
    "text",
    [
        "10 / i > 1",
        "i + 1 > 5",
        "d / d > 1",
        "i % 2 = 0",
        "CAST(s AS INT) = 5",
        "s = 5",
        "i = '5'",
        "s IN (1, 2)",
        "m = 5",
        "i = 12345678901234567890",
        "unknown = 5",
        "unknown = unknown",
        "t > '2024-01-01'",
        "t > TIMESTAMP '2024-99-01 10:00:00'",
        "t > CAST(s AS TIMESTAMP)",
        "s LIKE 'a\\\\'",
        "coalesce(s, 0) = 0",
        "element_at(array(1), i) = 1",
        "my_function(i) = 1",
        "CASE WHEN i <> 0 THEN 10 / i END > 1",
        "missing = 1",
    ],
)
def test_expression_may_fail(text: str) -> None:
    assert can_fail(parsed(text), FIELDS)


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("upper(s) = 'A'", True),
        ("timestampadd(HOUR, 1, t) > t", True),
        ("rand() < 0.5", False),
        ("t < now()", False),
        ("t < current_timestamp", False),
        ("i > unix_timestamp()", False),
        ("unix_timestamp(t) > 5", True),
        ("my_function(i) = 1", False),
        ("i IN (SELECT 1)", False),
    ],
)
def test_is_deterministic(text: str, same: bool) -> None:
    assert is_deterministic(parsed(text)) is same


@pytest.mark.parametrize(
    ("text", "rejects"),
    [
        ("i > 5", True),
        ("5 = i", True),
        ("i IN (1, 2)", True),
        ("i BETWEEN 1 AND 2", True),
        ("i IS NOT NULL", True),
        ("i > 5 OR s = 'a'", True),
        ("i > 5 AND other = 1", True),
        ("i > 5 OR other = 1", False),
        ("i IS NULL", False),
        ("i <=> 5", False),
        ("coalesce(i, 7) > 5", False),
        ("NOT (i > 5)", False),
        ("other = 1", False),
    ],
)
def test_rejects_nulls(text: str, rejects: bool) -> None:
    assert rejects_nulls(parsed(text), {"i", "s"}) is rejects


def test_split_conjuncts_keeps_order_and_between() -> None:
    conjuncts = split_conjuncts(parsed("(a > 1 AND b BETWEEN 1 AND 2) AND (c = 1 OR d = 2)"))
    assert [to_sql(piece) for piece in conjuncts] == [
        "a > 1",
        "b BETWEEN 1 AND 2",
        "c = 1 OR d = 2",
    ]


def test_substitute_adds_parentheses() -> None:
    moved = substitute(parsed("a * 2 > 5"), {"a": parsed("x + 1")})
    assert moved is not None and to_sql(moved) == "(x + 1) * 2 > 5"


def test_substitute_rejects_capture_by_a_lambda() -> None:
    tree = parsed("exists(tags, x -> x = a)")
    mapping = {"tags": parsed("tags"), "a": parsed("x")}
    assert substitute(tree, mapping) is None
    mapping["a"] = parsed("y")
    assert substitute(tree, mapping) is not None


def test_substitute_needs_every_column() -> None:
    assert substitute(parsed("a > b"), {"a": parsed("x")}) is None


def test_only_equal_types_without_negative_zero_are_interchangeable() -> None:
    assert are_interchangeable(FIELDS["l"], FIELDS["l"])
    assert not are_interchangeable(FIELDS["l"], FIELDS["i"])
    assert not are_interchangeable(FIELDS["d"], FIELDS["d"]), (
        "-0.0 equals 0.0 but is printed differently"
    )
    assert not are_interchangeable(FIELDS["unknown"], FIELDS["unknown"])
