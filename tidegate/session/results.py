"""Results of statements such as SHOW and DESCRIBE."""

from __future__ import annotations

import html
from collections.abc import Iterable
from dataclasses import astuple, dataclass, field
from typing import Any, Protocol

from tidegate.catalog.catalog import Catalog
from tidegate.catalog.objects import Column, Declared, Function, SideStream, Sink, Source, Stream
from tidegate.catalog.settings import SETTINGS, Settings
from tidegate.checkpoint.checkpoints import COLUMNS, Checkpoint, Restored
from tidegate.observe.rendering import html_table
from tidegate.observe.status import State, StreamStatus
from tidegate.sql.statements import ObjectKind


@dataclass(frozen=True)
class Result:
    """The result of a statement: rows, or a message in `text`."""

    title: str
    columns: tuple[str, ...] = ()
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    text: str | None = None

    @classmethod
    def from_text(cls, text: str) -> Result:
        return cls("", text=text)

    def to_pylist(self) -> list[dict[str, Any]]:
        """Return the rows as dicts."""
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


class ShowSource(Protocol):
    """The parts of a session that SHOW reads."""

    catalog: Catalog
    settings: Settings

    def status(self) -> Iterable[StreamStatus]: ...
    def checkpoints(self) -> Iterable[Checkpoint]: ...


def execute_show(session: ShowSource, kind: str) -> Result:
    """Return the result of SHOW."""
    if kind == "CHECKPOINTS":
        return checkpoint_listing(session.checkpoints())
    if kind == "STATUS":
        return status_listing(session.status())
    if kind == "SETTINGS":
        return setting_listing(session.settings)
    return listing(session.catalog, kind)


def listing(catalog: Catalog, what: str) -> Result:
    """List the objects of a SHOW statement: SOURCES, STREAMS, …, FUNCTIONS or TABLES."""
    if what == "TABLES":
        readable = filter(None, map(catalog.get, catalog.readable_names()))
        rows = [(item.name, item.kind.value.lower(), _summary(item)) for item in readable]
        return Result("tables", ("name", "kind", "description"), list(rows))
    views = what == "MATERIALIZED VIEWS"
    kind = ObjectKind.STREAM if views else ObjectKind(what.removesuffix("S"))
    listed = [item for item in catalog.of_kind(kind) if not views or _is_view(item)]
    return Result(
        what.lower(), ("name", "description"), [(item.name, _summary(item)) for item in listed]
    )


def _is_view(item: Declared) -> bool:
    return isinstance(item, Stream) and item.materialized


def status_listing(statuses: Iterable[StreamStatus]) -> Result:
    """List the status of all running streams."""
    columns = (
        *("name", "state", "epoch", "rows_in", "rows_out", "late_rows", "dead_letters"),
        *("watermark", "state_bytes", "error"),
    )
    rows = [tuple(_plain(getattr(status, column)) for column in columns) for status in statuses]
    return Result("status", columns, rows)


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, State) else value


def setting_listing(settings: Settings) -> Result:
    """List the settings with their values and descriptions."""
    rows = [(spec.name, spec.format(settings[spec.name]), spec.description) for spec in SETTINGS]
    return Result("settings", ("name", "value", "description"), list(rows))


def _summary(item: Declared) -> str:
    if isinstance(item, Stream):
        kind = item.plan.changelog.value
        return f"materialized view ({kind})" if item.materialized else f"{kind} stream"
    if isinstance(item, SideStream):
        return f"{item.side_kind.value} of {item.parent}"
    if isinstance(item, Sink):
        return f"{item.connector}, from {item.stream}"
    if isinstance(item, Function):
        return f"{item.signature}{_language(item)}"
    return str(getattr(item, "connector", ""))


def _language(item: Function) -> str:
    if item.python is None:
        return ""
    return ", Python" if item.python.deterministic else ", Python, not deterministic"


def checkpoint_listing(checkpoints: Iterable[Checkpoint]) -> Result:
    """List the checkpoints."""
    return Result("checkpoints", COLUMNS, [astuple(item) for item in checkpoints])


def describe(item: Declared) -> Result:
    """Return the columns of a table, the parameters of a function, or the options of a sink."""
    if isinstance(item, Sink):
        return Result(item.name, ("option", "value"), list(item.options.masked_texts()))
    if isinstance(item, Stream):
        rows = [
            (f.name, f.type or "?", f.role.value if f.role.value != "plain" else "")
            for f in item.plan.fields
        ]
        return Result(item.name, ("column", "type", "meaning"), rows)
    if isinstance(item, Function):
        parameters = [(p.name, p.type or "any", "parameter") for p in item.parameters]
        result = [("", item.returns or "type of the expression", f"result{_language(item)}")]
        return Result(item.name, ("column", "type", "meaning"), [*parameters, *result])
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
    """Describe the effect of RESTORE on a pipeline."""
    return (
        f"{item.pipeline} was restored to epoch {item.checkpoint.epoch} and continues with epoch "
        f"{item.manifest.epoch + 1} in generation {item.manifest.generation}"
    )


def print_rows(stream: str, epoch: int, rows: Any) -> None:
    """Print the rows of a console sink; the default outside of the command line."""
    print(f"-- {stream}, epoch {epoch}")
    for row in rows.to_pylist():
        print(", ".join(f"{key}={value}" for key, value in row.items()))
