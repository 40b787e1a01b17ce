"""Functions that are not Spark's own: Python, which is called for every row that it can reach."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from sqlglot import exp

from tidegate.plan import nodes as n
from tidegate.sql import expressions as ex


def calls_user_functions(node: n.Node, leaves: set[n.Node]) -> bool:
    """Whether a stage calls a function that Spark does not have, above its leaves."""
    if node in leaves:
        return False
    if reads_user_functions(node):
        return True
    return any(calls_user_functions(child, leaves) for child in node.inputs)


def reads_user_functions(node: n.Node) -> bool:
    """Whether an expression of this node calls one."""
    return any(calls_user_function(tree) for tree in _trees(node))


def calls_user_function(tree: exp.Expr) -> bool:
    """Whether an expression calls one."""
    known = ex.spark_functions()
    return any(name not in known for name, _ in ex.calls(tree))


def _trees(node: n.Node) -> Iterator[exp.Expr]:
    for item in fields(node):
        value = getattr(node, item.name)
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, exp.Expr):
                yield part
