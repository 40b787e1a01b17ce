"""Format a logical plan as a tree: what each node does, keeps in state and emits."""

from __future__ import annotations

from tidegate.physical.expressions import names_of, text_of
from tidegate.physical.join import describe as describe_join
from tidegate.physical.registry import kind_of
from tidegate.plan import nodes as n
from tidegate.sql.expressions import with_declared_names
from tidegate.sql.statements import EmitMode
from tidegate.types import format_duration_us


def explain(plan: n.Emit, name: str | None = None) -> str:
    """Format a plan as a tree, with the properties of the stream on top."""
    head = f"stream {name}" if name else "query"
    properties = [
        f"output: {plan.changelog.value}"
        + (_key_text(plan) if plan.changelog.value != "append" else ""),
        "input: " + ("bounded" if plan.bounded else "unbounded"),
        "watermark: " + ("yes" if plan.has_watermark else "no"),
    ]
    lines = [head, *(f"  {part}" for part in properties), ""]
    lines += _draw(plan, "", "")
    return with_declared_names("\n".join(lines))


def _key_text(plan: n.Emit) -> str:
    if plan.key is None:
        return ""
    if not plan.key:
        return ", a single row"
    return " by " + ", ".join(plan.field(column).name for column in plan.key)


def _draw(node: n.Node, first: str, rest: str) -> list[str]:
    lines = [first + describe(node)]
    branch = bool(node.inputs)
    for detail in _details(node):
        lines.append(f"{rest}{'│ ' if branch else '  '}  {detail}")
    children = list(node.inputs)
    for index, child in enumerate(children):
        last = index == len(children) - 1
        lines += _draw(child, rest + ("└─ " if last else "├─ "), rest + ("   " if last else "│  "))
    return lines


def _details(node: n.Node) -> list[str]:
    details = []
    if node.state_bound is not None:
        details.append(f"state: {node.state_bound}")
    if not node.stateless:
        details.append(f"operator: {kind_of(node).name(node)}")
    if node.changelog.value != "append" and not isinstance(node, n.Emit):
        kinds = [child.changelog for child in node.inputs]
        if node.changelog not in kinds:
            details.append(f"output: {node.changelog.value}")
    return details


def describe(node: n.Node) -> str:
    """Describe a node in one line; stateful nodes describe themselves."""
    if not node.stateless:
        return kind_of(node).describe(node)
    method = _DESCRIPTIONS.get(type(node))
    return method(node) if method is not None else node.label()


def _scan(node: n.Node) -> str:
    assert isinstance(node, n.Scan)
    source = node.source
    facts = [source.connector, "bounded" if source.bounded else "unbounded"]
    if source.watermark is not None:
        delay = format_duration_us(source.watermark.delay_us)
        facts.append(f"watermark {source.watermark.column} - {delay}")
    if source.primary_key:
        facts.append(f"key {', '.join(source.primary_key)}")
    read = f": {names_of(node.fields)}" if len(node.fields) < len(source.columns) else ""
    return f"Source {source.name} [{', '.join(facts)}]{read}"


def _project(node: n.Node) -> str:
    assert isinstance(node, n.Project)
    parts = []
    for item, expression in zip(node.fields, node.expressions, strict=True):
        text = text_of(expression)
        parts.append(text if text == item.name else f"{text} AS {item.name}")
    return f"Project {', '.join(parts)}"


def _filter(node: n.Node) -> str:
    assert isinstance(node, n.Filter)
    return f"Filter {text_of(node.condition)}"


def _window(node: n.Node) -> str:
    assert isinstance(node, n.Window)
    return f"Window {node.spec} on {text_of(node.time)}"


def _emit(node: n.Node) -> str:
    assert isinstance(node, n.Emit)
    if node.clause is None:
        return f"Emit {names_of(node.fields)}"
    parts = [node.clause.mode.value.title().replace("Emit ", "").lower()]
    if node.clause.mode is EmitMode.DEFAULT:
        parts = []
    if node.clause.every_us is not None:
        parts[0] += f" {format_duration_us(node.clause.every_us)}"
    if node.clause.lateness_us:
        parts.append(f"allow lateness {format_duration_us(node.clause.lateness_us)}")
    if node.clause.late_to:
        parts.append(f"late rows to {node.clause.late_to}")
    return f"Emit {', '.join(parts)}: {names_of(node.fields)}"


def _lookup(node: n.Node) -> str:
    assert isinstance(node, n.LookupScan)
    return f"Lookup table {node.table.name} [{node.table.connector}]"


def _join(node: n.Node) -> str:
    assert isinstance(node, n.Join)
    return describe_join(node)


def _stream_reference(node: n.Node) -> str:
    assert isinstance(node, n.StreamReference)
    return f"Stream {node.name}"


def _side(node: n.Node) -> str:
    assert isinstance(node, n.SideScan)
    return f"Stream {node.side.name} [{node.side.side_kind.value} of {node.side.parent}]"


def _explode(node: n.Node) -> str:
    assert isinstance(node, n.Explode)
    added = ", ".join(node.field(column).name for column in node.generated)
    return f"Explode {'outer ' if node.outer else ''}{text_of(node.generator)} AS {added}"


def _set_operation(node: n.Node) -> str:
    assert isinstance(node, n.SetOperation)
    return f"{node.operation.title()}{' all' if node.all else ''} {names_of(node.fields)}"


_DESCRIPTIONS = {
    n.Scan: _scan,
    n.SideScan: _side,
    n.LookupScan: _lookup,
    n.Join: _join,
    n.StreamReference: _stream_reference,
    n.Project: _project,
    n.Filter: _filter,
    n.Explode: _explode,
    n.Window: _window,
    n.SetOperation: _set_operation,
    n.Emit: _emit,
}
