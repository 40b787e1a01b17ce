"""DuckDB answers: one SELECT over Arrow tables, with no way out to files or the network."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidegate.catalog.objects import Declared, LookupTable, Sink, tables_in
from tidegate.errors import Location, RunError, did_you_mean
from tidegate.observe.status import html_table
from tidegate.queries.snapshot import Readable, snapshot
from tidegate.runtime.directory import DataDirectory

if TYPE_CHECKING:
    import duckdb

_LINE = re.compile(r"\n\n?LINE (\d+): (.*)\n( *)(\^+)", re.DOTALL)
_KIND = re.compile(r"^[A-Za-z ]*Error: ")
# What its messages call things of its own.
_CANDIDATES = re.compile(r'\n(?:Candidate bindings|Did you mean)[^\n]*"(?P<name>[^"\n]+)"[^\n]*')


def tables_of(sql: str, file: str | None = None) -> set[str]:
    """The tables that a query reads; rejected if it is not one SELECT."""
    import duckdb

    with _connected() as connection, _blamed(sql, file):
        statements = connection.extract_statements(sql)
        if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
            raise RunError(
                "TG-801",
                "one query at a time, and nothing but a query, can be answered",
                location=Location(sql, 0, len(sql.strip()), file),
                hint="SELECT … FROM my_view WHERE …;",
            )
        return _names(connection, sql)


def _names(connection: duckdb.DuckDBPyConnection, sql: str) -> set[str]:
    """DuckDB looks for columns at the same time, and there are none yet: then sqlglot is asked."""
    import duckdb
    import sqlglot

    try:
        return set(connection.get_table_names(sql))
    except duckdb.Error:
        try:
            return set(tables_in(sqlglot.parse_one(sql, dialect="duckdb")))
        except sqlglot.errors.SqlglotError:
            pass
        raise


def answer(sql: str, tables: Mapping[str, pa.Table], file: str | None = None) -> pa.Table:
    """The result of a query over tables by name."""
    import duckdb

    with _connected() as connection:
        for name, table in tables.items():
            connection.register(name, table)
        for setting in ("enable_external_access = false", "lock_configuration = true"):
            connection.execute(f"SET {setting}")
        with _blamed(sql, file):
            try:
                return _result(connection.sql(sql))
            except duckdb.Error:
                # Asked this way it also says where.
                connection.execute(sql)
                raise


def _result(found: duckdb.DuckDBPyRelation) -> pa.Table:
    """Arrow has no integer as long as those that DuckDB adds up to: most are shorter."""
    import pyarrow as pa

    table = found.to_arrow_table()
    for location, kind in enumerate(found.types):
        if str(kind) == "HUGEINT":
            with suppress(pa.ArrowInvalid):
                short = table.column(location).cast(pa.int64())
                table = table.set_column(location, table.column_names[location], short)
    return table


@contextmanager
def _connected() -> Iterator[duckdb.DuckDBPyConnection]:
    import duckdb

    settings = ("autoinstall_known_extensions", "autoload_known_extensions")
    connection = duckdb.connect(":memory:", config=dict.fromkeys(settings, "false"))
    try:
        connection.execute("SET TimeZone = 'UTC'")
        # A name that is no table must not find a variable of the program.
        connection.execute("SET python_enable_replacements = false")
        yield connection
    finally:
        connection.close()


@contextmanager
def _blamed(sql: str, file: str | None) -> Iterator[None]:
    """DuckDB's errors as ours, with the place in the query."""
    import duckdb

    try:
        yield
    except duckdb.Error as error:
        raise _error(str(error), sql, file) from None


def _error(message: str, sql: str, file: str | None) -> RunError:
    found = _LINE.search(message)
    location = _location(found, sql, file) if found is not None else None
    text = message[: found.start()] if found is not None else message
    candidate = _CANDIDATES.search(text)
    hint = "queries are answered by DuckDB, in its SQL."
    if "syntax error" in text:
        hint += ' A name that is a keyword there stands in double quotes: SELECT "at" FROM …'
    if candidate is not None:
        text = text[: candidate.start()]
        hint = f"did you mean {candidate.group('name')}?"
    said = _KIND.sub("", text).strip().rstrip("!.").split("\n")[0]
    return RunError("TG-801", said[:1].lower() + said[1:], location=location, hint=hint)


def _location(found: re.Match[str], sql: str, file: str | None) -> Location | None:
    """Where DuckDB's caret stands; of a long line it shows a part, between dots."""
    lines = sql.split("\n")
    number, shown, blank, caret = int(found[1]), found[2], len(found[3]), len(found[4])
    if number > len(lines):
        return None
    part = shown.removeprefix("...").removesuffix("...")
    at = lines[number - 1].find(part)
    if at < 0:
        return None
    column = at + blank - len(f"LINE {number}: ") - (3 if shown.startswith("...") else 0)
    start = sum(len(line) + 1 for line in lines[: number - 1]) + max(column, 0)
    return Location(sql, start, start + caret, file)


# ---- What a query gives back: Arrow, and whatever people want to make of it.

# So many rows are shown; all of them are there.
_SHOWN = 20


@dataclass(frozen=True, eq=False)
class QueryResult:
    """The rows of a query, as of one epoch of each pipeline."""

    table: pa.Table
    epochs: Mapping[str, int] = field(default_factory=dict)

    @property
    def columns(self) -> list[str]:
        return list(self.table.column_names)

    def to_arrow(self) -> pa.Table:
        return self.table

    def to_pandas(self) -> Any:
        return self.table.to_pandas()

    def to_polars(self) -> Any:
        import polars

        return polars.from_arrow(self.table)

    def to_pylist(self) -> list[dict[str, Any]]:
        """The rows as dicts."""
        return list(self.table.to_pylist())

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.table.__arrow_c_stream__(requested_schema)

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for batch in self.table.to_batches():
            yield from batch.to_pylist()

    def __repr__(self) -> str:
        lines = ["\t".join(self.columns)]
        lines += ["\t".join(map(str, row.values())) for row in self._first()]
        return "\n".join([*lines, f"({self._count()})"])

    def _repr_html_(self) -> str:
        """A table for notebooks."""
        return html_table(self.columns, self._first(), self._count())

    def _first(self) -> list[dict[str, Any]]:
        return list(self.table.slice(0, _SHOWN).to_pylist())

    def _count(self) -> str:
        count = "1 row" if len(self) == 1 else f"{len(self):,} rows"
        shown = f", the first {_SHOWN} are shown" if len(self) > _SHOWN else ""
        epochs = ", ".join(f"{name} at epoch {epoch}" for name, epoch in self.epochs.items())
        return count + shown + (f"; {epochs}" if epochs else "")


# ---- A query from its text to its result.

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
    location = Location(sql, at.start(), at.end(), file) if at is not None else None
    rejected = other(name)
    if rejected is not None:
        return RunError("TG-802", rejected[0], location=location, hint=rejected[1])
    hint = did_you_mean(name, known, "streams whose rows are kept")
    return RunError("TG-201", f"there is no stream {name} to query", location=location, hint=hint)


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
