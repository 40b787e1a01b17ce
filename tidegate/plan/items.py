"""The SELECT list: stars, aliases, and names for what has none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sqlglot import exp

from tidegate.errors import did_you_mean
from tidegate.plan.scope import Context, Resolver, Scope, column
from tidegate.sql.dialect import to_sql


@dataclass(frozen=True)
class Item:
    """One output column: its name and its expression, resolved."""

    name: str
    expression: exp.Expr


def select_items(
    trees: list[exp.Expr], scope: Scope, resolver: Callable[[dict[str, exp.Expr]], Resolver]
) -> list[Item]:
    """The SELECT list with stars expanded; later items may use earlier aliases."""
    items: list[Item] = []
    aliases: dict[str, exp.Expr] = {}
    if not trees:
        resolver({}).context.report("TG-101", "SELECT needs a column", None, "SELECT * FROM …")
    for tree in trees:
        resolving = resolver(aliases)
        star = tree if isinstance(tree, exp.Star) else None
        if isinstance(tree, exp.Column) and isinstance(tree.this, exp.Star):
            star = tree.this
        if star is not None:
            items += _star(tree, star, scope, resolving.context)
            continue
        _refuse_extras(tree, resolving.context)
        expression = resolving.resolve(tree.unalias())
        items.append(Item(tree.alias_or_name or to_sql(tree), expression))
        if isinstance(tree, exp.Alias):
            aliases[tree.alias.lower()] = expression
    return items


def _refuse_extras(tree: exp.Expr, context: Context) -> None:
    if isinstance(tree, exp.QueryTransform):
        message = "TRANSFORM … USING runs programs of its own, which is not supported"
        context.report("TG-103", message, tree, "register a function on the SparkSession.")
    if isinstance(tree, exp.Aliases):
        hint = "use LATERAL VIEW explode(…) t AS key, value."
        context.report("TG-103", "several aliases for one expression", tree, hint)


def _star(tree: exp.Expr, star: exp.Star, scope: Scope, context: Context) -> list[Item]:
    if star.args.get("replace") or star.args.get("rename"):
        hint = "write the columns."
        context.report("TG-103", "* REPLACE and * RENAME are not supported", tree, hint)
    table = tree.args.get("table") if isinstance(tree, exp.Column) else None
    relations = scope.relations
    if table is not None:
        relation = scope.named(table.name)
        if relation is None:
            names = [item.alias for item in relations if item.alias]
            hint = did_you_mean(table.name, names, "tables of this query")
            message = f"{table.name}.*: there is no table {table.name}"
            context.report("TG-301", message, tree, hint)
            return []
        relations = [relation]
    merged = {} if table is not None else scope.merged
    items = [Item(name, expression.copy()) for name, expression in merged.items()]
    for relation in relations:
        for item in relation.fields:
            if item.name.lower() not in merged:
                items.append(Item(item.name, column(item, tree)))
    return _without(items, tree, star, context)


def _without(items: list[Item], tree: exp.Expr, star: exp.Star, context: Context) -> list[Item]:
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
