"""explode in the SELECT list: the same as a LATERAL VIEW below the projection."""

from __future__ import annotations

from sqlglot import exp

from tidegate.plan import nodes as n
from tidegate.plan.scope import Context, by_id, column, volatile
from tidegate.plan.stars import Item
from tidegate.plan.subqueries import refuse_subqueries
from tidegate.sql import expressions as ex
from tidegate.sql.dialect import own_span

# Those that make one column of an array; others need names for what they make.
_OF_ONE_COLUMN = ("EXPLODE", "EXPLODE_OUTER")


def with_generators_below(
    context: Context, node: n.Node, items: list[Item], order: list[exp.Expr]
) -> tuple[n.Node, list[Item], list[exp.Expr]]:
    """The generator of a SELECT list as a node of its own, and columns in its place."""
    places = [place for place, item in enumerate(items) if ex.has_generator(item.expression)]
    if not places:
        return node, items, order
    first, *others = places
    generator = items[first].expression.unnest()
    name = ex.call_name(generator) or ""
    with_over = isinstance(node, n.Over)
    nested = any(ex.has_generator(part) for part in generator.expressions)
    if others or nested or with_over or name not in _OF_ONE_COLUMN:
        wrong = next((call for call, _ in ex.calls(generator) if call in ex.GENERATOR_FUNCTIONS))
        context.report(
            "TG-103",
            f"{wrong.lower()} in SELECT must be a column of its own, the only one that makes rows, "
            "and without OVER beside it",
            generator,
            f"FROM … LATERAL VIEW {wrong.lower()}(…) t AS {_names(wrong)}, then select these.",
        )
        return node, items, order
    refuse_subqueries(context, generator, f"inside {name.lower()}")
    made = n.Field(
        context.fresh(items[first].name),
        items[first].name,
        volatile=volatile(generator, by_id(node.fields)),
    )
    exploded = n.Explode(
        (*node.fields, made),
        input=node,
        generator=generator,
        generated=(made.id,),
        span=own_span(generator),
    )
    reference = column(made, generator)
    items = [Item(i.name, reference) if at == first else i for at, i in enumerate(items)]
    for key in order:
        if key.this.unnest() == generator:
            key.set("this", reference.copy())
    return exploded, items, order


def _names(generator: str) -> str:
    """Names for the columns that a generator makes."""
    return "pos, x" if generator.startswith("POSEXPLODE") else "x"
