"""The canonical form of a plan: a text that changes only when the meaning of stored state changes.

It covers an operator and everything below it, down to the sources, field by field. Names that a
query gives to columns are not part of it, and neither are positions in the SQL. The text does not
depend on how libraries print objects, because an upgrade must not change it. Its hash is the
fingerprint of the operator (`OperatorRunner.fingerprint`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sqlglot import exp

from tidegate.plan import nodes as n
from tidegate.sql.statements import EmitClause


def canonical_form(node: n.Node) -> str:
    """Return one line for each node below, inputs first, and for the node itself."""
    writer = _PlanWriter()
    writer.write(node)
    return "\n".join(writer.lines)


class _PlanWriter:
    """Writes one line per node. Nodes are numbered in the order of visits."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.expressions = CanonicalWriter()

    def write(self, node: n.Node) -> int:
        """Write the line of a node and return its number."""
        # Operators import this module, so it cannot import them at the top.
        from tidegate.physical.registry import kind_of

        if isinstance(node, n.StreamReference):
            return self.write(node.input)
        inputs = [self.write(child) for child in node.inputs]
        describe = _STATELESS.get(type(node)) or kind_of(node).canonical_form
        words = describe(node, self.expressions)
        number = len(self.lines)
        head = " ".join([str(number), type(node).__name__.lower(), *map(str, inputs)])
        types = ",".join(item.type or "?" for item in node.fields)
        self.lines.append(f"{head} {' '.join(words)} -> {types}".replace("  ", " "))
        input_ids = {item.id for child in node.inputs for item in child.fields}
        for position, item in enumerate(node.fields):
            if item.id not in input_ids:
                self.expressions.columns[item.id] = f"{number}.{self._name(node, item, position)}"
        return number

    def _name(self, node: n.Node, item: n.Field, position: int) -> str:
        return item.name.lower() if isinstance(node, n.Scan | n.SideScan) else str(position)


class CanonicalWriter:
    """Writes expressions; a column is identified by its node's number and its position there."""

    def __init__(self) -> None:
        self.columns: dict[str, str] = {}

    def text(self, value: Any) -> str:
        """Return an expression as nested lists: its kind, then its arguments."""
        if isinstance(value, exp.Column):
            return self.columns.get(value.name, f"?{value.name}")
        if isinstance(value, exp.Paren):
            return self.text(value.this)
        if isinstance(value, exp.Literal):
            return f"'{value.name}'" if value.is_string else value.name
        if isinstance(value, exp.Expression):
            parts = [f"{key}={self.text(part)}" for key, part in _parts(value)]
            return f"({' '.join([value.key, *parts])})"
        if isinstance(value, list | tuple):
            return f"[{' '.join(self.text(part) for part in value)}]"
        return str(value.value if hasattr(value, "value") else value)

    def texts(self, trees: Sequence[exp.Expr]) -> str:
        return self.text(list(trees))


def _parts(tree: exp.Expr) -> list[tuple[str, Any]]:
    """Return the arguments of an expression by name, without unset ones."""
    arguments = ((key, tree.args[key]) for key in sorted(tree.args))
    return [
        (key, part)
        for key, part in arguments
        if part is not None and part is not False and part != []
    ]


def canonical_emit(emit: EmitClause | None) -> list[str]:
    """Return when rows are emitted."""
    if emit is None:
        return ["emit=default"]
    words = [f"emit={emit.mode.name.lower()}"]
    words += [f"lateness={emit.lateness_us}"] if emit.lateness_us else []
    return words


def canonical_ttl(node: Any) -> list[str]:
    """Return whether rows have a time stamp for the TTL; the TTL itself may change."""
    return ["ttl"] if node.ttl_us is not None else []


def canonical_window(spec: n.WindowSpec) -> str:
    """Return the kind of a window and its sizes in microseconds."""
    clock = "clock" if spec.processing_time else "event"
    return f"{spec.kind.name.lower()}({spec.size_us} {spec.slide_us} {spec.offset_us} {clock})"


# ---- Stateless nodes


def _scan(node: n.Scan, writer: CanonicalWriter) -> list[str]:
    source = node.source
    computed = {c.name.lower(): c.computed for c in source.columns if c.computed is not None}
    metadata = {c.name.lower(): c.metadata for c in source.columns if c.metadata is not None}
    columns = []
    for item in node.fields:
        tree = computed.get(item.name.lower())
        definition = f":={writer.text(tree)}" if tree is not None else ""
        definition += f"@{metadata[item.name.lower()]}" if item.name.lower() in metadata else ""
        columns.append(item.name.lower() + definition)
    words = [source.name.lower(), f"[{' '.join(columns)}]"]
    words += [f"time={source.watermark.column.lower()}"] if source.watermark else []
    words += [f"key={','.join(source.primary_key).lower()}"] if source.primary_key else []
    return words


def _side(node: n.SideScan, writer: CanonicalWriter) -> list[str]:
    meaning = [f"({node.side.canonical_form})"] if node.side.canonical_form else []
    return [node.side.name.lower(), *meaning]


def _lookup(node: n.LookupScan, writer: CanonicalWriter) -> list[str]:
    return [node.table.name.lower(), f"[{' '.join(item.name.lower() for item in node.fields)}]"]


def _filter(node: n.Filter, writer: CanonicalWriter) -> list[str]:
    return [writer.text(node.condition)]


def _project(node: n.Project, writer: CanonicalWriter) -> list[str]:
    return [writer.texts(node.expressions)]


def _explode(node: n.Explode, writer: CanonicalWriter) -> list[str]:
    return [writer.text(node.generator), *(["outer"] if node.outer else [])]


def _window(node: n.Window, writer: CanonicalWriter) -> list[str]:
    time = [] if node.spec.processing_time else [writer.text(node.time)]
    return [canonical_window(node.spec), *time, *(["grouped"] if node.grouped else [])]


def _set_operation(node: n.SetOperation, writer: CanonicalWriter) -> list[str]:
    return [node.operation.lower(), *(["all"] if node.all else [])]


def _emit(node: n.Emit, writer: CanonicalWriter) -> list[str]:
    return canonical_emit(node.clause)


# The canonical form of a stateful node is defined by its `OperatorKind`.
_STATELESS: dict[type[n.Node], Callable[[Any, CanonicalWriter], list[str]]] = {
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
