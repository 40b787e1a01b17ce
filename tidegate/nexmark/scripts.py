"""The scripts of queries over other sources and into other sinks than their own."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tidegate.connectors.generator.nexmark import TABLES
from tidegate.nexmark import query

_STATEMENT = re.compile(r"^(?=CREATE )", re.MULTILINE)
_SOURCE = re.compile(r"CREATE SOURCE (\w+)")
WATERMARK = "WATERMARK FOR date_time AS date_time - INTERVAL '4' SECOND"
# What q13 looks up: so many keys, each with a text.
SIDE_KEYS = 10_000


@dataclass(frozen=True)
class Generated:
    """Events that are made while a query runs."""

    rows: int

    def declaration(self, table: str) -> str:
        return (
            f"CREATE SOURCE {table} ({WATERMARK}) WITH (connector = 'generator', "
            f"kind = 'nexmark', table = '{table}', rows = {self.rows});"
        )


@dataclass(frozen=True)
class Stored:
    """Events in parquet files: a folder of each table in `folder`."""

    folder: Path
    files_per_epoch: int | None = None

    def declaration(self, table: str) -> str:
        columns = ", ".join(f"{name} {kind}" for name, kind in TABLES[table].columns)
        limit = f", files_per_epoch = {self.files_per_epoch}" if self.files_per_epoch else ""
        return (
            f"CREATE SOURCE {table} ({columns}, {WATERMARK}) WITH (connector = 'files', "
            f"path = '{quoted(self.folder / table)}', max_future = 'off'{limit});"
        )


class Events(Protocol):
    """Where the events of tables are."""

    def declaration(self, table: str) -> str:
        """The source of a table."""


def tables(name: str) -> list[str]:
    """The tables that a query reads."""
    return _SOURCE.findall(query(name))


def needs_side_input(name: str) -> bool:
    """Whether a query looks something up."""
    return "CREATE LOOKUP TABLE side_input" in query(name)


def script(name: str, events: Events, sink: str, folder: Path) -> str:
    """A query over these events, into a sink of that kind; `folder` is for files."""
    statements = [part for part in _STATEMENT.split(query(name)) if part.startswith("CREATE ")]
    own = [part for part in statements if not part.startswith(("CREATE SOURCE", "CREATE SINK"))]
    sources = [events.declaration(table) for table in tables(name)]
    return "\n".join([*sources, *own, _sink(name, sink, folder)])


def _sink(name: str, sink: str, folder: Path) -> str:
    options = f"connector = '{sink}'"
    if sink == "files":
        options += f", path = '{quoted(folder / name)}'"
        options += ", changelog = 'column'" if _tells_changes(name) else ""
        options += ", partition_by = 'day, minute'" if name == "q10" else ""
    return f"CREATE SINK {name}_out FROM {name} WITH ({options});"


def _tells_changes(name: str) -> bool:
    return "EMIT CHANGES" in query(name)


def quoted(path: Path) -> str:
    """A path inside a text of SQL."""
    return str(path).replace("\\", "\\\\").replace("'", "\\'")
