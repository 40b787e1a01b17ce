"""Stars: `*`, `t.*` and `s.*`, in the SELECT list and among the arguments of calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlglot import exp

from tidegate.errors import did_you_mean
from tidegate.plan.nodes import Field
from tidegate.plan.scope import Context, Relation, Scope, column, struct_path
from tidegate.sql import expressions as ex


@dataclass(frozen=True)
class Item:
    """One output column: its name and its expression, resolved."""

    name: str
    expression: exp.Expr


def is_star(tree: Any) -> bool:
    """Whether it is * or t.*."""
    return isinstance(tree, exp.Star) or (
        isinstance(tree, exp.Column) and isinstance(tree.this, exp.Star)
    )


def is_row_count(call: Any) -> bool:
    """Whether it is count(*), whose star stands for no column."""
    return (
        ex.call_name(call) == "COUNT"
        and len(call.expressions) == 1
        and isinstance(call.expressions[0], exp.Star)
    )


def star_items(tree: exp.Expr, scope: Scope, context: Context) -> list[Item]:
    """The columns that a star stands for."""
    star = tree.this if isinstance(tree, exp.Column) else tree
    if star.args.get("replace") or star.args.get("rename"):
        hint = "write the columns."
        context.report("TG-103", "* REPLACE and * RENAME are not supported", tree, hint)
    path = [part.name for part in tree.parts[:-1]] if isinstance(tree, exp.Column) else []
    if not path:
        items = [Item(name, merged.copy()) for name, merged in scope.merged.items()]
        for relation in scope.relations:
            known = [item for item in relation.fields if item.name.lower() not in scope.merged]
            items += _all_of(known, tree)
        return _without(items, tree, star, context)
    table = scope.named(path[0]) if len(path) == 1 else None
    found = _all_of(table.fields, tree) if table is not None else None
    if found is None:
        found = _fields_of_struct(path, tree, scope)
    if found is None:
        _report_unknown(path, tree, scope, context)
        return []
    return _without(found, tree, star, context)


def _all_of(fields: tuple[Field, ...] | list[Field], tree: exp.Expr) -> list[Item]:
    return [Item(item.name, column(item, tree)) for item in fields]


def _fields_of_struct(path: list[str], tree: exp.Expr, scope: Scope) -> list[Item] | None:
    """The fields of a column, if its type was declared and is a struct."""
    item = _column(path, scope)
    if item is None or item.type is None:
        return None
    kind = exp.DataType.build(item.type, dialect="spark", udt=True)
    if not kind.is_type(exp.DataType.Type.STRUCT):
        return None
    names = [part.name for part in kind.expressions]
    return [Item(name, struct_path(column(item, tree), [name])) for name in names]


def _column(path: list[str], scope: Scope) -> Field | None:
    relation: Relation | None = scope.named(path[0]) if len(path) > 1 else None
    fields = relation.fields if relation is not None else scope.fields
    found = [item for item in fields if item.name.lower() == path[-1].lower()]
    whole = len(path) == (2 if relation is not None else 1)
    return found[0] if whole and len(found) == 1 else None


def _report_unknown(path: list[str], tree: exp.Expr, scope: Scope, context: Context) -> None:
    name = ".".join(path)
    if _column(path, scope) is not None:
        message = f"{name}.*: {name} is a column, and not known to be a struct"
        context.report("TG-301", message, tree, f"write the fields: {name}.a, {name}.b.")
        return
    names = [item.alias for item in scope.relations if item.alias]
    hint = did_you_mean(path[0], names, "tables of this query")
    context.report("TG-301", f"{name}.*: there is no table {name}", tree, hint)


def _without(items: list[Item], tree: exp.Expr, star: exp.Expr, context: Context) -> list[Item]:
    """* EXCEPT (a, b)."""
    parts = star.args.get("except_") or star.args.get("except") or []
    for part in parts:
        if isinstance(part, exp.Dot) or (isinstance(part, exp.Column) and len(part.parts) > 1):
            hint = "write the fields that stay: named_struct('x', s.x) AS s."
            context.report("TG-103", "* EXCEPT of a field of a column", tree, hint)
    excluded = {part.name.lower() for part in parts}
    known = {item.name.lower() for item in items}
    for name in sorted(excluded - known):
        hint = did_you_mean(name, known, "columns")
        context.report("TG-301", f"* EXCEPT ({name}): there is no column {name}", tree, hint)
    return [item for item in items if item.name.lower() not in excluded]
