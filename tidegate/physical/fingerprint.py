"""What the state of an operator means, as a text that only changes when the meaning does.

It covers the operator and everything below it, down to the sources, field by field. Names that a
query gives to columns are not part of it, and neither are places in the SQL. Nothing here prints an
object as a library would: an upgrade must not change the text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sqlglot import exp

from tidegate.plan import nodes as n
from tidegate.plan.properties import deduplicates
from tidegate.sql.statements import Emit


def canonical(node: n.Node) -> str:
    """One line per node below and of the node itself, inputs first."""
    writer = _Writer()
    writer.write(node)
    return "\n".join(writer.lines)


class _Writer:
    """Numbers nodes as it meets them; a column is known by its node and place."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.columns: dict[str, str] = {}

    def write(self, node: n.Node) -> int:
        """The number of the line of a node."""
        if isinstance(node, n.Inlined):
            return self.write(node.input)
        inputs = [self.write(child) for child in node.inputs]
        words = _FACTS[type(node)](node, self)
        number = len(self.lines)
        head = " ".join([str(number), type(node).__name__.lower(), *map(str, inputs)])
        types = ",".join(item.type or "?" for item in node.fields)
        self.lines.append(f"{head} {' '.join(words)} -> {types}".replace("  ", " "))
        known = {item.id for child in node.inputs for item in child.fields}
        for place, item in enumerate(node.fields):
            if item.id not in known:
                self.columns[item.id] = f"{number}.{self._name(node, item, place)}"
        return number

    def _name(self, node: n.Node, item: n.Field, place: int) -> str:
        return item.name.lower() if isinstance(node, n.Scan | n.SideScan) else str(place)

    def text(self, value: Any) -> str:
        """An expression as nested lists: its kind, then what it is made of."""
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
    """What an expression is made of, by name; what is not said is left out."""
    said = ((key, tree.args[key]) for key in sorted(tree.args))
    return [
        (key, part) for key, part in said if part is not None and part is not False and part != []
    ]


def _emit_words(emit: Emit | None) -> list[str]:
    if emit is None:
        return ["emit=default"]
    words = [f"emit={emit.mode.name.lower()}"]
    words += [f"lateness={emit.lateness_us}"] if emit.lateness_us else []
    return words


def _ttl(node: Any) -> list[str]:
    """Whether rows are stamped; how long they live may change."""
    return ["ttl"] if node.ttl_us is not None else []


def _scan(node: n.Scan, to: _Writer) -> list[str]:
    source = node.source
    computed = {c.name.lower(): c.computed for c in source.columns if c.computed is not None}
    columns = []
    for item in node.fields:
        tree = computed.get(item.name.lower())
        made = f":={to.text(tree)}" if tree is not None else ""
        columns.append(item.name.lower() + made)
    words = [source.name.lower(), f"[{' '.join(columns)}]"]
    words += [f"time={source.watermark.column.lower()}"] if source.watermark else []
    words += [f"key={','.join(source.primary_key).lower()}"] if source.primary_key else []
    return words


def _side(node: n.SideScan, to: _Writer) -> list[str]:
    return [node.side.name.lower()]


def _lookup(node: n.LookupScan, to: _Writer) -> list[str]:
    return [node.table.name.lower(), f"[{' '.join(item.name.lower() for item in node.fields)}]"]


def _values(node: n.Values, to: _Writer) -> list[str]:
    return [to.text([list(row) for row in node.rows])]


def _filter(node: n.Filter, to: _Writer) -> list[str]:
    return [to.text(node.condition)]


def _project(node: n.Project, to: _Writer) -> list[str]:
    return [to.texts(node.expressions)]


def _explode(node: n.Explode, to: _Writer) -> list[str]:
    return [to.text(node.generator), *(["outer"] if node.outer else [])]


def _spec(spec: n.WindowSpec) -> str:
    clock = "clock" if spec.processing_time else "event"
    return f"{spec.kind.name.lower()}({spec.size_us} {spec.slide_us} {spec.offset_us} {clock})"


def _window(node: n.Window, to: _Writer) -> list[str]:
    time = [] if node.spec.processing_time else [to.text(node.time)]
    return [_spec(node.spec), *time, *(["grouped"] if node.grouped else [])]


def _hold(node: n.Hold, to: _Writer) -> list[str]:
    return [to.columns[node.end_id], *([_spec(node.spec)] if node.spec else [])]


def _aggregate(node: n.Aggregate, to: _Writer) -> list[str]:
    parts = [f"keys={to.texts(node.keys)}", f"calls={to.texts(node.aggregates)}"]
    return [*parts, *_emit_words(node.emit), *_ttl(node)]


def _join(node: n.Join, to: _Writer) -> list[str]:
    words = [node.how.lower(), node.kind.value]
    for pair in node.equal:
        same = "<=>" if pair.null_safe else "="
        words.append(f"{to.text(pair.left)}{same}{to.text(pair.right)}")
    if node.bounds is not None:
        times = f"{to.columns[node.bounds.left_id]} {to.columns[node.bounds.right_id]}"
        words.append(f"bounds({times} {node.bounds.lower_us} {node.bounds.upper_us})")
    for name, tree in (("where", node.residual), ("as_of", node.as_of), ("match", node.match)):
        words += [f"{name}={to.text(tree)}"] if tree is not None else []
    return [*words, *(["at_close"] if node.at_close else []), *_ttl(node)]


def _over(node: n.Over, to: _Writer) -> list[str]:
    return [to.texts(node.functions), *_ttl(node)]


def _top_n(node: n.TopN, to: _Writer) -> list[str]:
    words = [node.function.lower(), f"by={to.texts(node.partition)}"]
    words += [f"order={to.texts(node.order)}", f"limit={to.text(node.limit)}"]
    words += ["ranked"] if node.rank_id is not None else []
    if deduplicates(node):
        words.append("first_at_close" if node.at_close else "first_by_arrival")
    return [*words, *(["windowed"] if node.windowed else []), *_ttl(node)]


def _distinct(node: n.Distinct, to: _Writer) -> list[str]:
    return [*(["at_close"] if node.at_close else []), *_ttl(node)]


def _sort(node: n.Sort, to: _Writer) -> list[str]:
    return [to.texts(node.order)]


def _limit(node: n.Limit, to: _Writer) -> list[str]:
    return [to.text(node.count), to.text(node.offset)]


def _set_operation(node: n.SetOperation, to: _Writer) -> list[str]:
    return [node.operation.lower(), *(["all"] if node.all else [])]


def _normalize(node: n.Normalize, to: _Writer) -> list[str]:
    return [f"key={','.join(to.columns[column] for column in node.key)}"]


def _emit(node: n.Emit, to: _Writer) -> list[str]:
    return _emit_words(node.clause)


_FACTS: dict[type[n.Node], Callable[[Any, _Writer], list[str]]] = {
    n.Scan: _scan,
    n.SideScan: _side,
    n.LookupScan: _lookup,
    n.Values: _values,
    n.Filter: _filter,
    n.Project: _project,
    n.Explode: _explode,
    n.Window: _window,
    n.Hold: _hold,
    n.Aggregate: _aggregate,
    n.Join: _join,
    n.Over: _over,
    n.TopN: _top_n,
    n.Distinct: _distinct,
    n.Sort: _sort,
    n.Limit: _limit,
    n.SetOperation: _set_operation,
    n.Normalize: _normalize,
    n.Emit: _emit,
}
