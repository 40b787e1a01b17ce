"""What statements such as SHOW and DESCRIBE give back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass, field
from typing import Any

from tidegate.catalog.catalog import Catalog
from tidegate.catalog.objects import Column, Declared, SideStream, Sink, Source, Stream
from tidegate.checkpoint.inspect import COLUMNS, Checkpoint
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


def listing(catalog: Catalog, what: str) -> Result:
    """SHOW SOURCES | STREAMS | SINKS | LOOKUP TABLES."""
    kind = ObjectKind(what.removesuffix("S"))
    rows = [(item.name, _summary(item)) for item in catalog.listed(kind)]
    return Result(what.lower(), ("name", "what"), list(rows))


def _summary(item: Declared) -> str:
    if isinstance(item, Stream):
        return f"{item.plan.changelog.value} stream"
    if isinstance(item, SideStream):
        return f"{item.holds.value} of {item.parent}"
    if isinstance(item, Sink):
        return f"{item.connector}, from {item.source}"
    return str(getattr(item, "connector", ""))


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
