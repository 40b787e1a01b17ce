"""The registry of stateful nodes and their operators."""

from __future__ import annotations

from sqlglot import exp

from tidegate.physical import aggregate, distinct, hold, join, match, normalize, over, top_n
from tidegate.physical import asof as nearest_join
from tidegate.physical.canonical_form import CanonicalWriter
from tidegate.physical.expressions import expression_text, names_of, text_of
from tidegate.physical.operator_kind import OperatorKind, Rejection, unsupported
from tidegate.physical.stage_sql import SqlWriter
from tidegate.plan import nodes as n
from tidegate.sql.dialect import to_sql

# ---- Nodes that the language has but that cannot run yet. `explain` shows them.


def _sort(node: n.Sort) -> str:
    return "Sort " + ", ".join(text_of(key) for key in node.order)


def _limit(node: n.Limit) -> str:
    count = text_of(node.count) if node.count is not None else "all"
    return f"Limit {count}" + (f" offset {text_of(node.offset)}" if node.offset else "")


def _set_operation(node: n.SetOperation) -> str:
    return f"{node.operation.title()}{' all' if node.all else ''} {names_of(node.fields)}"


def _window(node: n.Window) -> str:
    return f"Window {node.spec} on {text_of(node.time)}"


def _window_name(node: n.Window) -> str:
    return "processing_time_window" if node.spec.processing_time else "session_window"


def _sort_meaning(node: n.Sort, writer: CanonicalWriter) -> list[str]:
    return [writer.texts(node.order)]


def _sort_sql(node: n.Sort, writer: SqlWriter) -> str:
    keys = ", ".join(to_sql(key) for key in node.order)
    return f"SELECT {', '.join(writer.ids(node))} FROM {writer.child(node.input)} ORDER BY {keys}"


def _limit_meaning(node: n.Limit, writer: CanonicalWriter) -> list[str]:
    return [writer.text(node.count), writer.text(node.offset)]


def _limit_sql(node: n.Limit, writer: SqlWriter) -> str:
    text = f"SELECT {', '.join(writer.ids(node))} FROM {writer.child(node.input)}"
    text += f" LIMIT {to_sql(node.count)}" if node.count is not None else ""
    return text + (f" OFFSET {to_sql(node.offset)}" if node.offset is not None else "")


def _order_text(node: n.Sort) -> str:
    """Return the ORDER BY list. The binder has replaced expressions by columns: they become …"""
    texts = [expression_text(key, node.input) for key in node.order]
    return "…" if any("sort_key" in text for text in texts) else ", ".join(texts)


def _reject_sort(node: n.Sort) -> Rejection:
    return Rejection(
        "ORDER BY without a window is not supported: the rows of a stream have no order",
        "remove ORDER BY, and sort where the rows are read; or keep the first rows only: QUALIFY "
        f"row_number() OVER (ORDER BY {_order_text(node)}) <= 10.",
    )


def _reject_limit(node: n.Limit) -> Rejection:
    order = _order_text(node.input) if isinstance(node.input, n.Sort) else node.fields[0].name
    first, last = _limits(node)
    bounds = f"<= {last}" if first == 1 else f"BETWEEN {first} AND {last}"
    return Rejection(
        "LIMIT over bounded input is not supported",
        f"write QUALIFY row_number() OVER (ORDER BY {order}) {bounds} instead.",
    )


def _limits(node: n.Limit) -> tuple[int | str, int | str]:
    """Return the numbers of the first and the last row; … for a number that is not a literal."""
    numbers = [
        int(tree.name) if isinstance(tree, exp.Literal) and tree.is_int else None
        for tree in (node.offset or exp.Literal.number(0), node.count)
    ]
    offset, count = numbers
    first = "…" if offset is None else offset + 1
    return first, "…" if offset is None or count is None else offset + count


def _reject_set_operation(node: n.SetOperation) -> Rejection:
    return Rejection(
        f"{node.operation} of these queries is not supported",
        "use a subquery: SELECT DISTINCT … WHERE [NOT] EXISTS (SELECT 1 FROM … WHERE …).",
    )


def _reject_window(node: n.Window) -> Rejection:
    if node.spec.processing_time:
        return Rejection(
            "windows in processing time are supported only in GROUP BY",
            "write the window there: GROUP BY TUMBLE(PROCTIME(), INTERVAL '1' MINUTE).",
        )
    return Rejection(
        "this session window is not supported",
        "write the window in GROUP BY: GROUP BY SESSION(ts, INTERVAL '1' MINUTE).",
    )


def _reject_subquery(node: n.Node) -> Rejection:
    return Rejection("this subquery is not supported", "write it as a join.")


SORT = unsupported(lambda node: "sort", _sort, _reject_sort, _sort_meaning, _sort_sql)
LIMIT = unsupported(lambda node: "limit", _limit, _reject_limit, _limit_meaning, _limit_sql)
SET_OPERATION = unsupported(
    lambda node: node.operation.lower(), _set_operation, _reject_set_operation
)
WINDOW = unsupported(_window_name, _window, _reject_window)
SUBQUERY = unsupported(lambda node: "subquery", lambda node: node.label(), _reject_subquery)


_KINDS: dict[type[n.Node], OperatorKind] = {
    n.Aggregate: aggregate.KIND,
    n.Distinct: distinct.KIND,
    n.Hold: hold.KIND,
    n.Join: join.KIND,
    n.Match: match.KIND,
    n.Normalize: normalize.KIND,
    n.TopN: top_n.KIND,
    n.Over: over.KIND,
    n.Sort: SORT,
    n.Limit: LIMIT,
    n.SetOperation: SET_OPERATION,
    n.Window: WINDOW,
    n.Filter: SUBQUERY,
    n.Project: SUBQUERY,
}


def kind_of(node: n.Node) -> OperatorKind:
    """Return the operator kind of a stateful node."""
    if isinstance(node, n.Join) and node.kind in nearest_join.KINDS:
        return nearest_join.KIND
    return _KINDS[type(node)]
