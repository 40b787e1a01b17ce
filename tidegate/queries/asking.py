"""A query from its text to its result."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from tidegate.catalog.objects import Declared, LookupTable, Sink
from tidegate.errors import Place, RunError, did_you_mean
from tidegate.queries.engine import answer, tables_of
from tidegate.queries.readable import Readable
from tidegate.queries.result import QueryResult
from tidegate.queries.snapshot import snapshot
from tidegate.runtime.directory import DataDirectory

# What else is known by a name, and how to make it queryable.
Other = Callable[[str], tuple[str, str] | None]


def ask(
    directory: DataDirectory,
    known: Mapping[str, Readable],
    sql: str,
    file: str | None = None,
    other: Other = lambda name: None,
) -> QueryResult:
    """Answer a query over the streams whose rows are kept."""
    sql = sql.rstrip().removesuffix(";")
    names = sorted(tables_of(sql, file))
    for name in names:
        if name.lower() not in known:
            raise _unknown(name, sql, file, known, other)
    wanted = {name: known[name.lower()] for name in names}
    found = snapshot(directory, list(dict.fromkeys(wanted.values())))
    tables = {name: found.tables[item.name] for name, item in wanted.items()}
    return QueryResult(answer(sql, tables, file), found.epochs)


def _unknown(
    name: str, sql: str, file: str | None, known: Mapping[str, Readable], other: Other
) -> RunError:
    at = re.search(rf"\b{re.escape(name)}\b", sql)
    place = Place(sql, at.start(), at.end(), file) if at is not None else None
    refused = other(name)
    if refused is not None:
        return RunError("TG-802", refused[0], place=place, hint=refused[1])
    hint = did_you_mean(name, known, "streams whose rows are kept")
    return RunError("TG-201", f"there is no stream {name} to query", place=place, hint=hint)


def not_kept(declared: Declared) -> tuple[str, str]:
    """Why something that is declared cannot be queried, and what can."""
    name, kind = declared.name, declared.kind.value.lower()
    if isinstance(declared, Sink):
        return (
            f"{name} is a sink with the connector {declared.connector}, and only memory keeps rows "
            "to be queried",
            f"CREATE MATERIALIZED VIEW {declared.source}_now AS SELECT * FROM {declared.source};",
        )
    if isinstance(declared, LookupTable):
        return f"{name} is a {kind}: its rows are in another system", f"ask {name} there."
    return (
        f"the rows of the {kind} {name} are not kept, so they cannot be queried",
        f"CREATE MATERIALIZED VIEW {name}_now AS SELECT * FROM {name}; and ask that; or look at "
        f"rows as they come: \\peek {name} in the shell, db.peek('{name}') in Python.",
    )


def last_rows(directory: DataDirectory, item: Readable, rows: int) -> QueryResult:
    """The last rows of a stream whose rows are kept."""
    found = snapshot(directory, [item])
    table = found.tables[item.name]
    return QueryResult(table.slice(max(table.num_rows - rows, 0)), found.epochs)
