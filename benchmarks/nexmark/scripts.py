"""Scripts of the queries with other sources and sinks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from benchmarks.nexmark import query
from tidegate.connectors.generator.nexmark import TABLES

_STATEMENT = re.compile(r"^(?=CREATE )", re.MULTILINE)
_SOURCE = re.compile(r"CREATE SOURCE (\w+)")
WATERMARK = "WATERMARK FOR date_time AS date_time - INTERVAL '4' SECOND"
# The number of rows in the lookup table of q13.
SIDE_KEYS = 10_000


class Events(Protocol):
    """A place from which a query reads its events."""

    def declaration(self, table: str) -> str:
        """Return the CREATE SOURCE statement of a table."""


@dataclass(frozen=True)
class Generated:
    """Events that the generator source produces while the query runs."""

    rows: int

    def declaration(self, table: str) -> str:
        return (
            f"CREATE SOURCE {table} ({WATERMARK}) WITH (connector = 'generator', "
            f"kind = 'nexmark', table = '{table}', rows = {self.rows});"
        )


@dataclass(frozen=True)
class Stored:
    """Events in Parquet files: `folder` contains one directory per table."""

    folder: Path
    files_per_epoch: int | None = None

    def declaration(self, table: str) -> str:
        columns = ", ".join(f"{name} {kind}" for name, kind in TABLES[table].columns)
        limit = f", files_per_epoch = {self.files_per_epoch}" if self.files_per_epoch else ""
        return (
            f"CREATE SOURCE {table} ({columns}, {WATERMARK}) WITH (connector = 'files', "
            f"path = '{quoted(self.folder / table)}', max_future = 'off'{limit});"
        )


def tables(name: str) -> list[str]:
    """Return the tables that a query reads."""
    return _SOURCE.findall(query(name))


def needs_side_input(name: str) -> bool:
    """Return whether a query reads the lookup table `side_input`."""
    return "CREATE LOOKUP TABLE side_input" in query(name)


def script(name: str, events: Events, sink: str, folder: Path) -> str:
    """Return the script of a query with these sources and this sink; a files sink uses `folder`."""
    statements = [part for part in _STATEMENT.split(query(name)) if part.startswith("CREATE ")]
    own = [part for part in statements if not part.startswith(("CREATE SOURCE", "CREATE SINK"))]
    sources = [events.declaration(table) for table in tables(name)]
    return "\n".join([*sources, *own, _sink(name, sink, folder)])


def _sink(name: str, sink: str, folder: Path) -> str:
    options = f"connector = '{sink}'"
    if sink == "files":
        options += f", path = '{quoted(folder / name)}'"
        options += ", changelog = 'column'" if _emits_changes(name) else ""
        options += ", partition_by = 'day, minute'" if name == "q10" else ""
    return f"CREATE SINK {name}_out FROM {name} WITH ({options});"


def _emits_changes(name: str) -> bool:
    return "EMIT CHANGES" in query(name)


def quoted(path: Path) -> str:
    """Escape a path for a string literal in SQL."""
    return str(path).replace("\\", "\\\\").replace("'", "\\'")
