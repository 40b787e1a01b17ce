"""A SQL file as it is, made testable: rows come from the case, and nothing is written."""

from __future__ import annotations

import re

from tidegate.catalog.catalog import Catalog
from tidegate.catalog.connector import SOURCE_OPTIONS
from tidegate.catalog.objects import Source
from tidegate.compile.compiler import Compiler
from tidegate.connectors.registry import CONNECTORS
from tidegate.errors import ScriptError
from tidegate.sql import statements as st

_KEPT = {option.name for option in SOURCE_OPTIONS} - {"connector"}
_WITH = re.compile(r"\bWITH\s*\($", re.IGNORECASE)


def testable(text: str, file: str) -> str:
    """The declarations of a file: its sources take rows of the case, its sinks are left out."""
    compiled = Compiler(CONNECTORS, resolve_environment=False).compile(text, file)
    if compiled.errors:
        raise ScriptError(compiled.errors)
    parts = []
    for statement in compiled.script.statements:
        if isinstance(statement, st.CreateSource):
            parts.append(_source(statement, compiled.script.text, compiled.catalog))
        elif isinstance(statement, st.CreateStream | st.CreateLookupTable | st.Set | st.Drop):
            parts.append(statement.text)
    return ";\n\n".join(parts) + ";\n"


def _source(statement: st.CreateSource, script: str, catalog: Catalog) -> str:
    """The same columns, key and watermark, on the connector memory."""
    head = script[statement.span.start : statement.options[0].span.start].rstrip()
    head = _WITH.sub("", head).rstrip()
    if not statement.columns:
        source = catalog.get(statement.name)
        assert isinstance(source, Source), "it was declared"
        columns = ", ".join(f"`{column.name}` {column.type}" for column in source.columns)
        head = f"CREATE SOURCE `{statement.name}` ({columns})"
    options = {"connector": "'memory'"}
    if statement.watermark is not None:
        # The time of a case is its own: it may lie after that of the clock.
        options["max_future"] = "'off'"
    for option in statement.options:
        if option.name.lower() in _KEPT:
            span = option.value_span
            options[option.name.lower()] = script[span.start : span.end]
    given = ", ".join(f"{name} = {value}" for name, value in options.items())
    # A comment may end the line before.
    return f"{head}\nWITH ({given})"
