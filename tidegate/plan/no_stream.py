"""What stands in FROM, or nothing, where a stream should."""

from __future__ import annotations

from sqlglot import exp

from tidegate.catalog import objects as cat
from tidegate.plan import nodes as n
from tidegate.plan.scope import Context


def report_lookup(context: Context, node: n.LookupScan) -> None:
    context.report(
        "TG-417",
        f"{node.table.name} is a lookup table: it is asked, not read",
        node.span,
        f"join a stream with it: FROM my_stream JOIN {node.table.name} ON …",
    )


def report_no_table(context: Context, select: exp.Select) -> None:
    source = next((item.name for item in context.catalog.of(cat.Source)), "my_source")
    context.report(
        "TG-103",
        "a SELECT without FROM is not supported on streams",
        select,
        f"add FROM {source}, or what else it reads; a constant needs no SELECT of its own: write "
        "it where it is used.",
    )


def report_values(context: Context, values: exp.Values) -> None:
    context.report(
        "TG-103",
        "VALUES is no stream: nothing says when its rows come",
        values,
        "put them into a source: CREATE SOURCE v (a INT) WITH (connector = 'memory'); INSERT "
        "INTO v VALUES (1); or, to join streams with them, into a lookup table.",
    )
