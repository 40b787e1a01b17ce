"""Computed columns of sources: expressions over the stored ones."""

from __future__ import annotations

from dataclasses import replace

from sqlglot import exp

from tidegate.catalog.objects import Column, Function, Source
from tidegate.plan.nodes import Field
from tidegate.plan.resolve import Resolver
from tidegate.plan.scope import Context, Relation, Scope
from tidegate.sql import expressions as ex
from tidegate.sql.expressions import is_python


def bound_computed(source: Source, context: Context) -> Source:
    """The source with the functions of its columns written out; `context.errors` has the rest."""
    stored = tuple(Field(c.name, c.name, c.type) for c in source.stored_columns)
    resolver = Resolver(context, Scope([Relation(source.name, stored)]))
    return replace(source, columns=tuple(_bound(c, resolver, context) for c in source.columns))


def _bound(column: Column, resolver: Resolver, context: Context) -> Column:
    if column.computed is None:
        return column
    resolved = resolver.resolve(column.computed)
    if not ex.is_scalar(resolved):
        context.report(
            "TG-305",
            f"the computed column {column.name} must be made of one row: no aggregate, OVER or "
            "explode",
            column.computed,
            "compute it in a stream over the source.",
        )
    if any(is_python(name) for name, _ in ex.calls(resolved)):
        # It would be called for records that cannot be read, too.
        context.report(
            "TG-103",
            f"the computed column {column.name} calls a function of Python, which sources cannot",
            column.computed,
            "call it in a stream over the source.",
        )
    return replace(
        column, computed=resolved if _calls_own(column.computed, context) else column.computed
    )


def _calls_own(tree: exp.Expr, context: Context) -> bool:
    return any(isinstance(context.catalog.get(name), Function) for name, _ in ex.calls(tree))
