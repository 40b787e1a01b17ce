"""Nodes that the language knows and that cannot run yet; each has its line in `explain`."""

from __future__ import annotations

from tidegate.physical.kind import unbuilt
from tidegate.physical.words import names_of, text_of
from tidegate.plan import nodes as n


def _over(node: n.Over) -> str:
    return "Over " + ", ".join(text_of(function) for function in node.functions)


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


OVER = unbuilt(lambda node: "over", _over)
SORT = unbuilt(lambda node: "sort", _sort)
LIMIT = unbuilt(lambda node: "limit", _limit)
SET_OPERATION = unbuilt(lambda node: node.operation.lower(), _set_operation)
WINDOW = unbuilt(_window_name, _window)
SUBQUERY = unbuilt(lambda node: "subquery", lambda node: node.label())
