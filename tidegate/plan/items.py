"""The SELECT list: stars, aliases, and names for what has none."""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import exp

from tidegate.plan.resolve import Resolver
from tidegate.plan.scope import Context, Scope
from tidegate.plan.stars import Item, is_star, star_items
from tidegate.sql.dialect import to_sql


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
        if is_star(tree):
            items += star_items(tree, scope, resolving.context)
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
