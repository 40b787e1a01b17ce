"""Run a SELECT in DuckDB over Arrow tables, without access to files or the network."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidegate.catalog.objects import Declared, LookupTable, Sink, tables_in
from tidegate.errors import Location, RunError, did_you_mean
from tidegate.observe.rendering import html_table
from tidegate.queries.snapshot import StoredTable, snapshot
from tidegate.runtime.directory import DataDirectory

if TYPE_CHECKING:
    import duckdb

_LINE = re.compile(r"\n\n?LINE (\d+): (.*)\n( *)(\^+)", re.DOTALL)
_KIND = re.compile(r"^[A-Za-z ]*Error: ")
# The part of an error message that suggests a name.
_CANDIDATES = re.compile(r'\n(?:Candidate bindings|Did you mean)[^\n]*"(?P<name>[^"\n]+)"[^\n]*')


def tables_of(sql: str, file: str | None = None) -> set[str]:
    """Return the tables that a query reads; raise an error if it is not exactly one SELECT."""
    import duckdb

    with _connect() as connection, _translate_errors(sql, file):
        statements = connection.extract_statements(sql)
        if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
            raise RunError(
                "TG-801",
                "a query is exactly one SELECT statement",
                location=Location(sql, 0, len(sql.strip()), file),
                hint="SELECT … FROM my_view WHERE …;",
            )
        return _table_names(connection, sql)


def _table_names(connection: duckdb.DuckDBPyConnection, sql: str) -> set[str]:
    """Return the tables of a query. Use sqlglot if DuckDB fails because the columns are unknown."""
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


def run_sql(sql: str, tables: Mapping[str, pa.Table], file: str | None = None) -> pa.Table:
    """Run a query over tables by name."""
    import duckdb

    with _connect() as connection:
        for name, table in tables.items():
            connection.register(name, table)
        for setting in ("enable_external_access = false", "lock_configuration = true"):
            connection.execute(f"SET {setting}")
        with _translate_errors(sql, file):
            try:
                return _arrow_table(connection.sql(sql))
            except duckdb.Error:
                # The error of this call contains the location.
                connection.execute(sql)
                raise


def _arrow_table(relation: duckdb.DuckDBPyRelation) -> pa.Table:
    """Return a result as Arrow; HUGEINT columns become BIGINT if all values fit."""
    import pyarrow as pa

    table = relation.to_arrow_table()
    for index, kind in enumerate(relation.types):
        if str(kind) == "HUGEINT":
            with suppress(pa.ArrowInvalid):
                column = table.column(index).cast(pa.int64())
                table = table.set_column(index, table.column_names[index], column)
    return table


@contextmanager
def _connect() -> Iterator[duckdb.DuckDBPyConnection]:
    import duckdb

    settings = ("autoinstall_known_extensions", "autoload_known_extensions")
    connection = duckdb.connect(":memory:", config=dict.fromkeys(settings, "false"))
    try:
        connection.execute("SET TimeZone = 'UTC'")
        # An unknown table name must not resolve to a Python variable.
        connection.execute("SET python_enable_replacements = false")
        yield connection
    finally:
        connection.close()


@contextmanager
def _translate_errors(sql: str, file: str | None) -> Iterator[None]:
    """Translate errors of DuckDB to TG-801 with the location in the query."""
    import duckdb

    try:
        yield
    except duckdb.Error as error:
        raise _error(str(error), sql, file) from None


def _error(message: str, sql: str, file: str | None) -> RunError:
    caret = _LINE.search(message)
    location = _location(caret, sql, file) if caret is not None else None
    text = message[: caret.start()] if caret is not None else message
    candidate = _CANDIDATES.search(text)
    hint = "queries run in DuckDB and use its SQL dialect."
    if "syntax error" in text:
        hint += ' Put names that are DuckDB keywords in double quotes: SELECT "at" FROM …'
    if candidate is not None:
        text = text[: candidate.start()]
        hint = f"did you mean {candidate.group('name')}?"
    reason = _KIND.sub("", text).strip().rstrip("!.").split("\n")[0]
    return RunError("TG-801", reason[:1].lower() + reason[1:], location=location, hint=hint)


def _location(caret: re.Match[str], sql: str, file: str | None) -> Location | None:
    """Return the location of DuckDB's caret. DuckDB shows only a part of a long line."""
    lines = sql.split("\n")
    number, shown, indent, width = int(caret[1]), caret[2], len(caret[3]), len(caret[4])
    if number > len(lines):
        return None
    part = shown.removeprefix("...").removesuffix("...")
    at = lines[number - 1].find(part)
    if at < 0:
        return None
    column = at + indent - len(f"LINE {number}: ") - (3 if shown.startswith("...") else 0)
    start = sum(len(line) + 1 for line in lines[: number - 1]) + max(column, 0)
    return Location(sql, start, start + width, file)


# Rows that the text and HTML representations of a result show.
_SHOWN = 20


@dataclass(frozen=True, eq=False)
class QueryResult:
    """The result of a query. Iterate over it to get the rows as dicts.

    `epochs` contains the epoch of each pipeline that the result shows.
    """

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
        """Return the rows as dicts."""
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
        """Format the first rows as an HTML table for notebooks."""
        return html_table(self.columns, self._first(), self._count())

    def _first(self) -> list[dict[str, Any]]:
        return list(self.table.slice(0, _SHOWN).to_pylist())

    def _count(self) -> str:
        count = "1 row" if len(self) == 1 else f"{len(self):,} rows"
        shown = f", first {_SHOWN} shown" if len(self) > _SHOWN else ""
        epochs = ", ".join(f"{name} at epoch {epoch}" for name, epoch in self.epochs.items())
        return count + shown + (f"; {epochs}" if epochs else "")


# Returns why a declared object cannot be queried, and a hint; None if the name is not declared.
ExplainMissing = Callable[[str], tuple[str, str] | None]


def run_query(
    directory: DataDirectory,
    streams: Mapping[str, StoredTable],
    sql: str,
    file: str | None = None,
    explain_missing: ExplainMissing = lambda name: None,
) -> QueryResult:
    """Run a query over the streams whose rows are stored."""
    sql = sql.rstrip().removesuffix(";")
    names = sorted(tables_of(sql, file))
    for name in names:
        if name.lower() not in streams:
            raise _unknown(name, sql, file, streams, explain_missing)
    sources = {name: streams[name.lower()] for name in names}
    current = snapshot(directory, list(dict.fromkeys(sources.values())))
    tables = {name: current.tables[item.name] for name, item in sources.items()}
    return QueryResult(run_sql(sql, tables, file), current.epochs)


def _unknown(
    name: str,
    sql: str,
    file: str | None,
    streams: Mapping[str, StoredTable],
    explain_missing: ExplainMissing,
) -> RunError:
    at = re.search(rf"\b{re.escape(name)}\b", sql)
    location = Location(sql, at.start(), at.end(), file) if at is not None else None
    reason = explain_missing(name)
    if reason is not None:
        return RunError("TG-802", reason[0], location=location, hint=reason[1])
    hint = did_you_mean(name, streams, "streams with stored rows")
    return RunError("TG-201", f"unknown stream {name}", location=location, hint=hint)


def explain_not_stored(declared: Declared) -> tuple[str, str]:
    """Return why a declared object cannot be queried, and a hint."""
    name, kind = declared.name, declared.kind.value.lower()
    if isinstance(declared, Sink):
        return (
            f"{name} is a sink with the connector {declared.connector}; only memory sinks store "
            "rows for queries",
            f"CREATE MATERIALIZED VIEW {declared.stream}_now AS SELECT * FROM {declared.stream};",
        )
    if isinstance(declared, LookupTable):
        return f"{name} is a {kind}: its rows are in another system", "query that system."
    return (
        f"the rows of {kind} {name} are not stored, so they cannot be queried",
        f"CREATE MATERIALIZED VIEW {name}_now AS SELECT * FROM {name}; and query that; or show "
        f"new rows: \\peek {name} in the shell, db.peek('{name}') in Python.",
    )


def last_rows(directory: DataDirectory, item: StoredTable, rows: int) -> QueryResult:
    """Return the latest stored rows of a stream."""
    current = snapshot(directory, [item])
    table = current.tables[item.name]
    return QueryResult(table.slice(max(table.num_rows - rows, 0)), current.epochs)
