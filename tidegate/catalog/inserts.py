"""INSERT against the source it writes: what can be said without evaluating the rows.

An INSERT in a text that also declares its target belongs to a script, which is run again and again
on one data directory: it happens once there. Any other one is a command, and happens every time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from sqlglot import exp

from tidegate.catalog.objects import Declared, LookupTable, Origin, Sink, Source, tables_in
from tidegate.columns import OP
from tidegate.errors import CatalogError, Place, did_you_mean
from tidegate.sql import statements as st
from tidegate.sql.dialect import DIALECT, own_span
from tidegate.types import Span


def insert_errors(statement: st.Insert, target: Declared, origin: Origin) -> Iterator[CatalogError]:
    """Everything wrong with an INSERT into this target."""

    def error(code: str, message: str, span: Span | None, hint: str) -> CatalogError:
        at = span or statement.target_span
        place = Place(origin.text, at.start, at.end, origin.file)
        return CatalogError(code, message, place=place, hint=hint)

    if not isinstance(target, Source | LookupTable) or not target.insertable:
        hint = "INSERT writes into sources and lookup tables with connector = 'memory'."
        if isinstance(target, Sink):
            hint = "a sink writes a stream: CREATE SINK … FROM my_stream WITH (…);"
        yield error("TG-211", f"rows cannot be inserted into {target.name}", None, hint)
        return
    columns = [column.name for column in target.stored_columns]
    columns += [OP] if target.carries_op else []
    known = {name.lower() for name in columns}
    for name in statement.columns:
        if name.lower() not in known:
            hint = did_you_mean(name, columns, f"columns of {target.name}")
            yield error("TG-301", f"{target.name} has no column {name}", None, hint)
    read = sorted(set(tables_in(statement.tree)))
    if read:
        message = f"INSERT takes rows as they are; it cannot read {', '.join(read)}"
        yield error("TG-103", message, None, f"CREATE STREAM … AS SELECT … FROM {read[0]};")
    wanted = list(statement.columns) or columns
    for row in _rows(statement.tree):
        width = len(row.expressions) if isinstance(row, exp.Tuple) else 1
        if width != len(wanted):
            message = f"a row of {width} values for {len(wanted)} columns of {target.name}"
            yield error("TG-309", message, own_span(row), f"the columns: {', '.join(wanted)}.")


def _rows(tree: exp.Expr) -> list[exp.Expr]:
    return list(tree.expressions) if isinstance(tree, exp.Values) else []


def script_identity(statement: st.Insert, script: st.Script) -> str | None:
    """What an INSERT of a script is known by: its text, and which one of that text it is.

    Blanks, comments, and upper and lower case do not matter. None for a command.
    """
    declared = {s.name.lower() for s in script.statements if isinstance(s, st.Declaration)}
    if statement.target.lower() not in declared:
        return None
    text = _plain(statement)
    before = [s for s in script.statements if s.span.start < statement.span.start]
    same = sum(isinstance(item, st.Insert) and _plain(item) == text for item in before)
    return f"{hashlib.sha256(text.encode()).hexdigest()[:24]}-{same}"


def _plain(statement: st.Insert) -> str:
    parts = (statement.text[t.start : t.end + 1] for t in DIALECT.tokenize(statement.text))
    return " ".join(part if any(q in part for q in "'\"`") else part.upper() for part in parts)
