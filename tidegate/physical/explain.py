"""A plan as a tree for people: what each step does, what it keeps, what comes out."""

from __future__ import annotations

from sqlglot import exp

from tidegate.physical.planner import is_stateless, operator_name
from tidegate.plan import nodes as n
from tidegate.plan.properties import properties
from tidegate.sql.dialect import to_sql
from tidegate.types import format_duration


def explain(plan: n.Emit, name: str | None = None) -> str:
    """The tree of a plan, with what the stream promises on top."""
    own = properties(plan)
    head = f"stream {name}" if name else "query"
    promise = [
        f"output: {own.changelog.value}"
        + (_key_text(plan) if own.changelog.value != "append" else ""),
        "input: " + ("bounded" if own.bounded else "unbounded"),
        "watermark: " + ("yes" if own.has_watermark else "none"),
    ]
    lines = [head, *(f"  {part}" for part in promise), ""]
    lines += _draw(plan, "", "")
    return "\n".join(lines)


def _key_text(plan: n.Emit) -> str:
    key = properties(plan).key
    if key is None:
        return ""
    if not key:
        return " of one row"
    return " by " + ", ".join(plan.field(column).name for column in key)


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
    own = properties(node)
    if own.state is not None:
        details.append(f"state: {own.state}")
    if not is_stateless(node) and not isinstance(node, n.LookupScan):
        details.append(f"operator: {operator_name(node)}")
    if own.changelog.value != "append" and not isinstance(node, n.Emit):
        below = [properties(child).changelog for child in node.inputs]
        if not below or own.changelog not in below:
            details.append(f"output: {own.changelog.value}")
    return details


def describe(node: n.Node) -> str:
    """One line for a node."""
    method = _DESCRIPTIONS.get(type(node))
    return method(node) if method is not None else node.label()


def _columns(fields: tuple[n.Field, ...]) -> str:
    return ", ".join(item.name for item in fields)


def _text(node: exp.Expr) -> str:
    """SQL without the quotes that ids need."""
    return to_sql(node).replace("`", "")


def _scan(node: n.Node) -> str:
    assert isinstance(node, n.Scan)
    source = node.source
    facts = [source.connector, "bounded" if source.bounded else "unbounded"]
    if source.watermark is not None:
        delay = format_duration(source.watermark.delay_us)
        facts.append(f"watermark {source.watermark.column} - {delay}")
    if source.primary_key:
        facts.append(f"key {', '.join(source.primary_key)}")
    read = f": {_columns(node.fields)}" if len(node.fields) < len(source.columns) else ""
    return f"Source {source.name} [{', '.join(facts)}]{read}"


def _project(node: n.Node) -> str:
    assert isinstance(node, n.Project)
    parts = []
    for item, expression in zip(node.fields, node.expressions, strict=True):
        text = _text(expression)
        parts.append(text if text == item.name else f"{text} AS {item.name}")
    return f"Project {', '.join(parts)}"


def _filter(node: n.Node) -> str:
    assert isinstance(node, n.Filter)
    return f"Filter {_text(node.condition)}"


def _window(node: n.Node) -> str:
    assert isinstance(node, n.Window)
    return f"Window {node.spec} on {_text(node.time)}"


def _hold(node: n.Node) -> str:
    assert isinstance(node, n.Hold)
    if node.spec is None:
        return f"Hold until the watermark passes {node.field(node.end_id).name}"
    return f"Hold until {node.spec} closes"


def _aggregate(node: n.Node) -> str:
    assert isinstance(node, n.Aggregate)
    keys = ", ".join(_text(key) for key in node.keys) or "()"
    calls = ", ".join(_text(call) for call in node.aggregates) or "none"
    return f"Aggregate by {keys}: {calls}"


def _join(node: n.Node) -> str:
    assert isinstance(node, n.Join)
    text = f"Join {node.how} {node.kind.value}"
    if node.equal:
        text += " on " + " AND ".join(
            f"{_text(p.left)} {'<=>' if p.null_safe else '='} {_text(p.right)}" for p in node.equal
        )
    if node.bounds is not None:
        lower = format_duration(node.bounds.lower_us or 0)
        upper = format_duration(node.bounds.upper_us or 0)
        text += f", {node.bounds.left_id} - {node.bounds.right_id} in [{lower}, {upper}]"
    if node.as_of is not None:
        text += f", as of {_text(node.as_of)}"
    if node.match is not None:
        text += f", nearest {_text(node.match)}"
    if node.residual is not None:
        text += f", where {_text(node.residual)}"
    return text


def _over(node: n.Node) -> str:
    assert isinstance(node, n.Over)
    return "Over " + ", ".join(_text(function) for function in node.functions)


def _top_n(node: n.Node) -> str:
    assert isinstance(node, n.TopN)
    limit = _text(node.limit) if node.limit is not None else "all"
    text = f"TopN {limit} by {node.function.lower()}"
    if node.partition:
        text += f" partition by {', '.join(_text(part) for part in node.partition)}"
    if node.order:
        text += f" order by {', '.join(_text(part) for part in node.order)}"
    return text


def _emit(node: n.Node) -> str:
    assert isinstance(node, n.Emit)
    if node.clause is None:
        return f"Emit {_columns(node.fields)}"
    text = node.clause.mode.value.title().replace("Emit ", "").lower()
    if node.clause.every_us is not None:
        text += f" {format_duration(node.clause.every_us)}"
    if node.clause.lateness_us:
        text += f", allow lateness {format_duration(node.clause.lateness_us)}"
    if node.clause.late_to:
        text += f", late rows to {node.clause.late_to}"
    return f"Emit {text}: {_columns(node.fields)}"


def _order(node: n.Node) -> str:
    assert isinstance(node, n.Sort)
    return "Sort " + ", ".join(_text(key) for key in node.order)


def _limit(node: n.Node) -> str:
    assert isinstance(node, n.Limit)
    count = _text(node.count) if node.count is not None else "all"
    return f"Limit {count}" + (f" offset {_text(node.offset)}" if node.offset is not None else "")


def _lookup(node: n.Node) -> str:
    assert isinstance(node, n.LookupScan)
    return f"Lookup table {node.table.name} [{node.table.connector}]"


def _inlined(node: n.Node) -> str:
    assert isinstance(node, n.Inlined)
    return f"Stream {node.name}"


def _side(node: n.Node) -> str:
    assert isinstance(node, n.SideScan)
    return f"Stream {node.side.name} [{node.side.reason} of {node.side.parent}]"


def _explode(node: n.Node) -> str:
    assert isinstance(node, n.Explode)
    added = ", ".join(node.field(column).name for column in node.generated)
    return f"Explode {'outer ' if node.outer else ''}{_text(node.generator)} AS {added}"


def _normalize(node: n.Node) -> str:
    assert isinstance(node, n.Normalize)
    return f"Normalize upserts by {', '.join(node.key)}"


def _distinct(node: n.Node) -> str:
    return f"Distinct {_columns(node.fields)}"


def _set_operation(node: n.Node) -> str:
    assert isinstance(node, n.SetOperation)
    return f"{node.operation.title()}{' all' if node.all else ''} {_columns(node.fields)}"


_DESCRIPTIONS = {
    n.Scan: _scan,
    n.SideScan: _side,
    n.LookupScan: _lookup,
    n.Inlined: _inlined,
    n.Project: _project,
    n.Filter: _filter,
    n.Explode: _explode,
    n.Window: _window,
    n.Hold: _hold,
    n.Aggregate: _aggregate,
    n.Join: _join,
    n.Over: _over,
    n.TopN: _top_n,
    n.Distinct: _distinct,
    n.Sort: _order,
    n.Limit: _limit,
    n.SetOperation: _set_operation,
    n.Normalize: _normalize,
    n.Emit: _emit,
}
