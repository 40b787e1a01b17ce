"""Expressions and columns as people read them."""

from __future__ import annotations

from sqlglot import exp

from tidegate.plan import nodes as n
from tidegate.sql.dialect import to_sql


def text_of(tree: exp.Expr) -> str:
    """SQL without the quotes that ids need."""
    return to_sql(tree).replace("`", "")


def names_of(fields: tuple[n.Field, ...]) -> str:
    return ", ".join(item.name for item in fields)


def in_words(tree: exp.Expr, node: n.Node) -> str:
    """An expression with the names that the query gives to the columns of a node."""
    names = {item.id: item.name for item in node.fields}

    def named(part: exp.Expr) -> exp.Expr:
        if isinstance(part, exp.Column) and part.name in names:
            return exp.column(exp.to_identifier(names[part.name], quoted=True))
        return part

    return text_of(tree.copy().transform(named))
