"""Fingerprints of operators: a text that changes only when the meaning of their state changes.

It covers the operator and everything below it, down to the sources, field by field. Names that a
query gives to columns are not part of it, and neither are positions in the SQL. The text does not
depend on how libraries print objects, because an upgrade must not change it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidegate.physical.canonical import CanonicalWriter, canonical_emit, canonical_window
from tidegate.physical.registry import kind_of
from tidegate.plan import nodes as n


def canonical(node: n.Node) -> str:
    """Return one line for each node below, inputs first, and for the node itself."""
    writer = _Writer()
    writer.write(node)
    return "\n".join(writer.lines)


class _Writer:
    """Numbers nodes in the order of visits."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.words = CanonicalWriter()

    def write(self, node: n.Node) -> int:
        """Write the line of a node and return its number."""
        if isinstance(node, n.Inlined):
            return self.write(node.input)
        inputs = [self.write(child) for child in node.inputs]
        canonical_form = _STEPS.get(type(node)) or kind_of(node).canonical_form
        words = canonical_form(node, self.words)
        number = len(self.lines)
        head = " ".join([str(number), type(node).__name__.lower(), *map(str, inputs)])
        types = ",".join(item.type or "?" for item in node.fields)
        self.lines.append(f"{head} {' '.join(words)} -> {types}".replace("  ", " "))
        input_ids = {item.id for child in node.inputs for item in child.fields}
        for position, item in enumerate(node.fields):
            if item.id not in input_ids:
                self.words.columns[item.id] = f"{number}.{self._name(node, item, position)}"
        return number

    def _name(self, node: n.Node, item: n.Field, position: int) -> str:
        return item.name.lower() if isinstance(node, n.Scan | n.SideScan) else str(position)


def _scan(node: n.Scan, to: CanonicalWriter) -> list[str]:
    source = node.source
    computed = {c.name.lower(): c.computed for c in source.columns if c.computed is not None}
    metadata = {c.name.lower(): c.metadata for c in source.columns if c.metadata is not None}
    columns = []
    for item in node.fields:
        tree = computed.get(item.name.lower())
        definition = f":={to.text(tree)}" if tree is not None else ""
        definition += f"@{metadata[item.name.lower()]}" if item.name.lower() in metadata else ""
        columns.append(item.name.lower() + definition)
    words = [source.name.lower(), f"[{' '.join(columns)}]"]
    words += [f"time={source.watermark.column.lower()}"] if source.watermark else []
    words += [f"key={','.join(source.primary_key).lower()}"] if source.primary_key else []
    return words


def _side(node: n.SideScan, to: CanonicalWriter) -> list[str]:
    meaning = [f"({node.side.canonical_form})"] if node.side.canonical_form else []
    return [node.side.name.lower(), *meaning]


def _lookup(node: n.LookupScan, to: CanonicalWriter) -> list[str]:
    return [node.table.name.lower(), f"[{' '.join(item.name.lower() for item in node.fields)}]"]


def _filter(node: n.Filter, to: CanonicalWriter) -> list[str]:
    return [to.text(node.condition)]


def _project(node: n.Project, to: CanonicalWriter) -> list[str]:
    return [to.texts(node.expressions)]


def _explode(node: n.Explode, to: CanonicalWriter) -> list[str]:
    return [to.text(node.generator), *(["outer"] if node.outer else [])]


def _window(node: n.Window, to: CanonicalWriter) -> list[str]:
    time = [] if node.spec.processing_time else [to.text(node.time)]
    return [canonical_window(node.spec), *time, *(["grouped"] if node.grouped else [])]


def _set_operation(node: n.SetOperation, to: CanonicalWriter) -> list[str]:
    return [node.operation.lower(), *(["all"] if node.all else [])]


def _emit(node: n.Emit, to: CanonicalWriter) -> list[str]:
    return canonical_emit(node.clause)


# Stateful nodes define their own canonical form.
_STEPS: dict[type[n.Node], Callable[[Any, CanonicalWriter], list[str]]] = {
    n.Scan: _scan,
    n.SideScan: _side,
    n.LookupScan: _lookup,
    n.Filter: _filter,
    n.Project: _project,
    n.Explode: _explode,
    n.Window: _window,
    n.SetOperation: _set_operation,
    n.Emit: _emit,
}
