"""Words for what state means; nothing here prints an object as a library would.

Operators say what they mean with them, and `fingerprint` puts it together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlglot import exp

from tidegate.plan import nodes as n
from tidegate.sql.statements import Emit


class Words:
    """Writes expressions; a column is known by the number of its node and its place there."""

    def __init__(self) -> None:
        self.columns: dict[str, str] = {}

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


def emit_words(emit: Emit | None) -> list[str]:
    """When rows come out."""
    if emit is None:
        return ["emit=default"]
    words = [f"emit={emit.mode.name.lower()}"]
    words += [f"lateness={emit.lateness_us}"] if emit.lateness_us else []
    return words


def ttl_words(node: Any) -> list[str]:
    """Whether rows are stamped; how long they live may change."""
    return ["ttl"] if node.ttl_us is not None else []


def window_words(spec: n.WindowSpec) -> str:
    """Its kind and sizes in microseconds."""
    clock = "clock" if spec.processing_time else "event"
    return f"{spec.kind.name.lower()}({spec.size_us} {spec.slide_us} {spec.offset_us} {clock})"
