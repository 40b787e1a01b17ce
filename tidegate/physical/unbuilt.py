"""Nodes that the language knows and that cannot run yet; each has its line in `explain`."""

from __future__ import annotations

from tidegate.physical.kind import unbuilt
from tidegate.physical.meaning import Words
from tidegate.physical.stage_sql import SqlWriter
from tidegate.physical.words import names_of, text_of
from tidegate.plan import nodes as n
from tidegate.sql.dialect import to_sql


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


def _sort_meaning(node: n.Sort, to: Words) -> list[str]:
    return [to.texts(node.order)]


def _sort_sql(node: n.Sort, to: SqlWriter) -> str:
    keys = ", ".join(to_sql(key) for key in node.order)
    return f"SELECT {', '.join(to.ids(node))} FROM {to.child(node.input)} ORDER BY {keys}"


def _limit_meaning(node: n.Limit, to: Words) -> list[str]:
    return [to.text(node.count), to.text(node.offset)]


def _limit_sql(node: n.Limit, to: SqlWriter) -> str:
    text = f"SELECT {', '.join(to.ids(node))} FROM {to.child(node.input)}"
    text += f" LIMIT {to_sql(node.count)}" if node.count is not None else ""
    return text + (f" OFFSET {to_sql(node.offset)}" if node.offset is not None else "")


SORT = unbuilt(lambda node: "sort", _sort, _sort_meaning, _sort_sql)
LIMIT = unbuilt(lambda node: "limit", _limit, _limit_meaning, _limit_sql)
SET_OPERATION = unbuilt(lambda node: node.operation.lower(), _set_operation)
WINDOW = unbuilt(_window_name, _window)
SUBQUERY = unbuilt(lambda node: "subquery", lambda node: node.label())
