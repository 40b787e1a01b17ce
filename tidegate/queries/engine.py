"""DuckDB answers: one SELECT over Arrow tables, with no way out to files or the network."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from tidegate.catalog.objects import tables_in
from tidegate.errors import Place, RunError

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

_LINE = re.compile(r"\n\n?LINE (\d+): (.*)\n( *)(\^+)", re.DOTALL)
_KIND = re.compile(r"^[A-Za-z ]*Error: ")
# What its messages call things of its own.
_CANDIDATES = re.compile(r'\n(?:Candidate bindings|Did you mean)[^\n]*"(?P<name>[^"\n]+)"[^\n]*')


def tables_of(sql: str, file: str | None = None) -> set[str]:
    """The tables that a query reads; refused if it is not one SELECT."""
    import duckdb

    with _connected() as connection, _blamed(sql, file):
        statements = connection.extract_statements(sql)
        if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
            raise RunError(
                "TG-801",
                "one query at a time, and nothing but a query, can be answered",
                place=Place(sql, 0, len(sql.strip()), file),
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
    for place, kind in enumerate(found.types):
        if str(kind) == "HUGEINT":
            with suppress(pa.ArrowInvalid):
                short = table.column(place).cast(pa.int64())
                table = table.set_column(place, table.column_names[place], short)
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
    place = _place(found, sql, file) if found is not None else None
    text = message[: found.start()] if found is not None else message
    candidate = _CANDIDATES.search(text)
    hint = "queries are answered by DuckDB, in its SQL."
    if "syntax error" in text:
        hint += ' A name that is a keyword there stands in double quotes: SELECT "at" FROM …'
    if candidate is not None:
        text = text[: candidate.start()]
        hint = f"did you mean {candidate.group('name')}?"
    said = _KIND.sub("", text).strip().rstrip("!.").split("\n")[0]
    return RunError("TG-801", said[:1].lower() + said[1:], place=place, hint=hint)


def _place(found: re.Match[str], sql: str, file: str | None) -> Place | None:
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
    return Place(sql, start, start + caret, file)
