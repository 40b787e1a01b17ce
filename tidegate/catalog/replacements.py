"""CREATE OR REPLACE and ALTER: what may take the place of what."""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.catalog.catalog import Catalog
from tidegate.catalog.declare import STREAM_OPTIONS
from tidegate.catalog.objects import (
    Declared,
    Origin,
    SideStream,
    Sink,
    Stream,
    functions_called,
    tables_in,
)
from tidegate.catalog.options import OptionReader
from tidegate.errors import CatalogError
from tidegate.sql import statements as st
from tidegate.sql.cursor import backticked
from tidegate.sql.dialect import text_literal
from tidegate.sql.parser import parse_script


def may_replace(statement: st.Declaration, existing: Declared) -> bool:
    """Whether a statement says that it replaces what has its name, and is of the same kind."""
    if isinstance(statement, st.CreateFunction):
        return statement.or_replace and existing.kind is st.ObjectKind.FUNCTION
    return isinstance(statement, st.CreateStream) and (
        statement.or_replace and isinstance(existing, Stream)
    )


def reads_back(
    statement: st.Declaration, existing: Declared, readers: Sequence[Declared], catalog: Catalog
) -> str | None:
    """What a replacement reads of the things that read it, or of itself."""
    names = {item.name.lower() for item in readers if not isinstance(item, Sink)}
    names.add(existing.name.lower())
    names |= {side.name.lower() for side in catalog.of(SideStream) if side.parent.lower() in names}
    read: list[str] = []
    if isinstance(statement, st.CreateStream):
        read += tables_in(statement.query.tree)
    elif isinstance(statement, st.CreateFunction):
        read += functions_called([statement.body])
    return next((name.lower() for name in read if name.lower() in names), None)


def altered(
    stream: Stream, statement: st.AlterStream, origin: Origin
) -> tuple[st.CreateStream | None, list[CatalogError]]:
    """The declaration of a stream with other options, and what is wrong with them."""
    reader = OptionReader(STREAM_OPTIONS, "a stream", origin.text, origin.file)
    _, errors = reader.read(statement.options, statement.name_span)
    if errors:
        return None, errors
    (declaration,) = parse_script(_altered_sql(stream, statement.options)).statements
    assert isinstance(declaration, st.CreateStream), "a stream stays one"
    return declaration, []


def _altered_sql(stream: Stream, options: Sequence[st.Option]) -> str:
    """The statement that declares a stream with other options."""
    statement = stream.statement
    assert isinstance(statement, st.CreateStream), "a stream was declared by CREATE STREAM"
    values = {option.name.lower(): option.value for option in (*statement.options, *options)}
    listed = ", ".join(f"{name} = {text_literal(value)}" for name, value in values.items())
    what = "MATERIALIZED VIEW" if statement.materialized else "STREAM"
    span, start = statement.query.span, statement.span.start
    query = statement.text[span.start - start : span.end - start]
    return f"CREATE {what} {backticked(statement.name)} WITH ({listed}) AS\n{query}"
