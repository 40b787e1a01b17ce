"""`tidegate query`: ask a data directory, also while another process is using it. No Spark."""

from __future__ import annotations

import sys

from tidegate.cli import data
from tidegate.cli.formats import Format, formatted
from tidegate.cli.screen import cells, open_screen
from tidegate.errors import RunError
from tidegate.queries.asking import ask
from tidegate.queries.readable import stored_readable
from tidegate.queries.result import QueryResult
from tidegate.runtime.directory import DataDirectory


def query(path: str, sql: str, kind: Format | None) -> int:
    """Print what a query finds."""
    data.require(path)
    directory = DataDirectory(path)
    known = stored_readable(directory)
    if not known:
        raise RunError(
            "TG-802",
            f"{path} keeps no rows that can be queried",
            hint="CREATE MATERIALIZED VIEW my_view AS SELECT …; in the script that runs there.",
        )
    text = sys.stdin.read() if sql == "-" else sql
    show_rows(ask(directory, known, text), kind)
    return 0


def show_rows(result: QueryResult, kind: Format | None, title: str = "") -> None:
    """The rows of a result; as a table unless something else is wanted."""
    columns, rows = cells(result.to_arrow())
    if kind is None or kind is Format.TABLE:
        open_screen().table(title, columns, rows)
        return
    out = formatted(kind, columns, rows)
    if out:
        print(out)
