"""Finds calls of user functions in Python, which Spark may call for every row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from sqlglot import exp

from tidegate.plan import nodes as n
from tidegate.sql import expressions as ex


def stage_calls_udf(node: n.Node, leaves: set[n.Node]) -> bool:
    """Return whether a stage calls a user function; its leaves are not part of it."""
    if node in leaves:
        return False
    if node_calls_udf(node):
        return True
    return any(stage_calls_udf(child, leaves) for child in node.inputs)


def node_calls_udf(node: n.Node) -> bool:
    """Return whether an expression of this node calls a user function."""
    return any(expression_calls_udf(tree) for tree in _trees(node))


def expression_calls_udf(tree: exp.Expr) -> bool:
    """Return whether an expression calls a user function."""
    spark_functions = ex.spark_functions()
    return any(name not in spark_functions for name, _ in ex.calls(tree))


def _trees(node: n.Node) -> Iterator[exp.Expr]:
    for item in fields(node):
        value = getattr(node, item.name)
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, exp.Expr):
                yield part
