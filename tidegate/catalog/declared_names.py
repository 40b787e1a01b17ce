"""The names a declaration gives: its own, and those of the streams it brings along."""

from __future__ import annotations

from collections.abc import Iterable

from tidegate.catalog.objects import Declared, SideStream
from tidegate.errors import CatalogError, Place
from tidegate.names import unsafe
from tidegate.sql import statements as st
from tidegate.types import Span


def side_names(statement: st.Declaration) -> list[str]:
    """The streams a declaration brings along: dead letters, late rows of a stream."""
    if not isinstance(statement, st.CreateSource | st.CreateStream):
        return []
    found = [item.value for item in statement.options if item.name.lower() == "dead_letters"]
    if isinstance(statement, st.CreateStream) and statement.query.emit is not None:
        late_to = statement.query.emit.late_to
        found += [late_to] if late_to is not None else []
    return found


def names_of(script: st.Script) -> dict[str, st.Declaration]:
    """By name, in lower case: what a script declares, and the streams that come with it."""
    found: dict[str, st.Declaration] = {}
    for statement in script.statements:
        if isinstance(statement, st.Declaration):
            found.setdefault(statement.name.lower(), statement)
    for statement in list(found.values()):
        for name in side_names(statement):
            found.setdefault(name.lower(), statement)
    return found


def unsafe_names(created: Iterable[Declared]) -> list[CatalogError]:
    """Names are also folders of the data directory, and must stay inside of it."""
    return [
        CatalogError(
            "TG-210",
            f"{item.name!r} cannot be a name: {reason}",
            place=_name_place(item),
            hint="a name is made of letters, digits, _ and -, for example my_stream.",
        )
        for item in created
        if (reason := unsafe(item.name)) is not None
    ]


def _name_place(item: Declared) -> Place:
    span = _side_span(item) if isinstance(item, SideStream) else item.statement.name_span
    return Place(item.origin.text, span.start, span.end, item.origin.file)


def _side_span(item: SideStream) -> Span:
    """Where the name of dead letters or late rows stands."""
    statement = item.statement
    emit = statement.query.emit if isinstance(statement, st.CreateStream) else None
    if item.is_late and emit is not None and emit.late_to_span is not None:
        return emit.late_to_span
    spans = [item.value_span for item in statement.options if item.name.lower() == "dead_letters"]
    return spans[0] if spans else statement.name_span
