"""What statements such as SHOW and DESCRIBE give back."""

from __future__ import annotations

import html
from collections.abc import Iterable
from dataclasses import astuple, dataclass, field
from typing import Any

from tidegate.catalog.catalog import Catalog
from tidegate.catalog.objects import Column, Declared, Function, SideStream, Sink, Source, Stream
from tidegate.checkpoint.checkpoints import Restored
from tidegate.checkpoint.inspect import COLUMNS, Checkpoint
from tidegate.observe.html import html_table
from tidegate.sql.statements import ObjectKind


@dataclass(frozen=True)
class Result:
    """A small table, or a text."""

    title: str
    columns: tuple[str, ...] = ()
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    text: str | None = None

    @classmethod
    def of_text(cls, text: str) -> Result:
        return cls("", text=text)

    def to_pylist(self) -> list[dict[str, Any]]:
        """The rows as dicts."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]

    def to_pandas(self) -> Any:
        import pandas

        return pandas.DataFrame(self.rows, columns=list(self.columns))

    def __str__(self) -> str:
        if self.text is not None:
            return self.text
        lines = ["\t".join(self.columns), *("\t".join(map(str, row)) for row in self.rows)]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        if self.text is not None:
            return f"<pre>{html.escape(self.text)}</pre>"
        return html_table(list(self.columns), self.to_pylist(), self.title)


def listing(catalog: Catalog, what: str) -> Result:
    """SHOW SOURCES | STREAMS | SINKS | LOOKUP TABLES | FUNCTIONS."""
    kind = ObjectKind(what.removesuffix("S"))
    rows = [(item.name, _summary(item)) for item in catalog.listed(kind)]
    return Result(what.lower(), ("name", "what"), list(rows))


def _summary(item: Declared) -> str:
    if isinstance(item, Stream):
        kind = item.plan.changelog.value
        return f"materialized view ({kind})" if item.materialized else f"{kind} stream"
    if isinstance(item, SideStream):
        return f"{item.holds.value} of {item.parent}"
    if isinstance(item, Sink):
        return f"{item.connector}, from {item.source}"
    if isinstance(item, Function):
        return f"{item.signature}{_language(item)}"
    return str(getattr(item, "connector", ""))


def _language(item: Function) -> str:
    if item.python is None:
        return ""
    return ", Python" if item.python.deterministic else ", Python, not deterministic"


def checkpoint_listing(checkpoints: Iterable[Checkpoint]) -> Result:
    """SHOW CHECKPOINTS."""
    return Result("checkpoints", COLUMNS, [astuple(item) for item in checkpoints])


def describe(item: Declared) -> Result:
    """DESCRIBE: the columns of what can be read, the options of a sink."""
    if isinstance(item, Sink):
        return Result(item.name, ("option", "value"), list(item.options.shown()))
    if isinstance(item, Stream):
        rows = [
            (f.name, f.type or "?", f.role.value if f.role.value != "plain" else "")
            for f in item.plan.fields
        ]
        return Result(item.name, ("column", "type", "meaning"), rows)
    if isinstance(item, Function):
        taken = [(p.name, p.type or "any", "parameter") for p in item.parameters]
        given = [("", item.returns or "of the expression", f"result{_language(item)}")]
        return Result(item.name, ("column", "type", "meaning"), [*taken, *given])
    columns: tuple[Column, ...] = getattr(item, "columns", ())
    rows = [(column.name, column.type or "?", _meaning(item, column)) for column in columns]
    return Result(item.name, ("column", "type", "meaning"), rows)


def _meaning(item: Declared, column: Column) -> str:
    facts = []
    time = item.watermark if isinstance(item, Source) else None
    if time is not None and time.column.lower() == column.name.lower():
        facts.append("event time")
    key = {name.lower() for name in getattr(item, "primary_key", ())}
    if column.name.lower() in key:
        facts.append("primary key")
    if column.not_null:
        facts.append("not null")
    if column.computed is not None:
        facts.append("computed")
    return ", ".join(facts)


def restored_text(item: Restored) -> str:
    """What RESTORE has done to a pipeline."""
    return (
        f"{item.pipeline} is back at epoch {item.chosen.epoch}, and goes on with epoch "
        f"{item.begun.epoch + 1} in generation {item.begun.generation}"
    )


def print_rows(stream: str, epoch: int, rows: Any) -> None:
    """What console sinks do outside of the command line."""
    print(f"-- {stream}, epoch {epoch}")
    for row in rows.to_pylist():
        print(", ".join(f"{key}={value}" for key, value in row.items()))
