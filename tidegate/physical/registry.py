"""The registry of stateful nodes and their operators."""

from __future__ import annotations

from tidegate.physical import aggregate, distinct, hold, join, match, normalize, over, top_n
from tidegate.physical import asof as nearest_join
from tidegate.physical.canonical_form import CanonicalWriter
from tidegate.physical.expressions import names_of, text_of
from tidegate.physical.operator_kind import OperatorKind, unsupported
from tidegate.physical.stage_sql import SqlWriter
from tidegate.plan import nodes as n
from tidegate.sql.dialect import to_sql

# ---- Nodes that the language has but that cannot run yet; each has a line in `explain`.


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


SORT = unsupported(lambda node: "sort", _sort, _sort_meaning, _sort_sql)
LIMIT = unsupported(lambda node: "limit", _limit, _limit_meaning, _limit_sql)
SET_OPERATION = unsupported(lambda node: node.operation.lower(), _set_operation)
WINDOW = unsupported(_window_name, _window)
SUBQUERY = unsupported(lambda node: "subquery", lambda node: node.label())


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
