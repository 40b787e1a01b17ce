"""Statements that declare nothing: INSERT, CHECKPOINT, DROP CHECKPOINT and RESTORE.

This module finds their errors without executing them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from sqlglot import exp

from tidegate.catalog.catalog import name_problem
from tidegate.catalog.objects import Declared, LookupTable, ScriptText, Sink, Source, tables_in
from tidegate.catalog.options import OptionReader, Options, OptionSpec, OptionType
from tidegate.columns import OP
from tidegate.errors import CatalogError, Location, did_you_mean
from tidegate.sql import statements as st
from tidegate.sql.dialect import DIALECT, own_span
from tidegate.types import Span

# ---- INSERT
#
# An INSERT in a script that also declares its target is executed once per data directory, because
# scripts are run repeatedly. Any other INSERT is a command and is executed every time.


def insert_errors(
    statement: st.Insert, target: Declared, script: ScriptText
) -> Iterator[CatalogError]:
    """Yield the errors of an INSERT that can be detected without evaluating its rows."""

    def error(code: str, message: str, span: Span | None, hint: str) -> CatalogError:
        span = span or statement.target_span
        location = Location(script.text, span.start, span.end, script.file)
        return CatalogError(code, message, location=location, hint=hint)

    if not isinstance(target, Source | LookupTable) or not target.insertable:
        hint = "INSERT writes into sources and lookup tables with connector = 'memory'."
        if isinstance(target, Sink):
            hint = "a sink writes a stream: CREATE SINK … FROM my_stream WITH (…);"
        yield error("TG-211", f"rows cannot be inserted into {target.name}", None, hint)
        return
    columns = [column.name for column in target.stored_columns]
    columns += [OP] if target.carries_op else []
    column_names = {name.lower() for name in columns}
    for name in statement.columns:
        if name.lower() not in column_names:
            hint = did_you_mean(name, columns, f"columns of {target.name}")
            yield error("TG-301", f"{target.name} has no column {name}", None, hint)
    tables = sorted(set(tables_in(statement.tree)))
    if tables:
        message = f"INSERT cannot read sources or streams: it reads {', '.join(tables)}"
        yield error("TG-103", message, None, f"CREATE STREAM … AS SELECT … FROM {tables[0]};")
    targets = list(statement.columns) or columns
    for row in _rows(statement.tree):
        width = len(row.expressions) if isinstance(row, exp.Tuple) else 1
        if width != len(targets):
            message = f"the row has {width} values, but {target.name} needs {len(targets)}"
            yield error("TG-309", message, own_span(row), f"columns: {', '.join(targets)}.")


def _rows(tree: exp.Expr) -> list[exp.Expr]:
    return list(tree.expressions) if isinstance(tree, exp.Values) else []


def insert_identity(statement: st.Insert, script: st.Script) -> str | None:
    """Return the identity of an INSERT in a script; None for a command.

    It is a hash of the text, and the position among equal texts. White space, comments and case
    do not matter.
    """
    declared = {s.name.lower() for s in script.statements if isinstance(s, st.Declaration)}
    if statement.target.lower() not in declared:
        return None
    text = _normalized_text(statement)
    before = [s for s in script.statements if s.span.start < statement.span.start]
    position = sum(
        isinstance(item, st.Insert) and _normalized_text(item) == text for item in before
    )
    return f"{hashlib.sha256(text.encode()).hexdigest()[:24]}-{position}"


def _normalized_text(statement: st.Insert) -> str:
    parts = (statement.text[t.start : t.end + 1] for t in DIALECT.tokenize(statement.text))
    return " ".join(part if any(q in part for q in "'\"`") else part.upper() for part in parts)


# ---- CHECKPOINT, DROP CHECKPOINT and RESTORE: their options and errors


RESTORE_OPTIONS: tuple[OptionSpec, ...] = (
    OptionSpec(
        "sinks",
        OptionType.TEXT,
        "sinks that cannot roll back keep the rows of later epochs, and rows that are read again "
        "are written twice; default: such sinks reject the RESTORE",
        choices=("keep",),
    ),
    OptionSpec(
        "pipeline",
        OptionType.TEXT,
        "name of the pipeline to restore; default: all",
        example="'main'",
        check=name_problem,
    ),
)

CheckpointStatement = st.CreateCheckpoint | st.DropCheckpoint | st.Restore


def checkpoint_name_problem(name: str) -> str | None:
    """Return why a text cannot be the name of a checkpoint, or None if it can."""
    if name.isdigit():
        return "numbers identify epochs"
    return name_problem(name)


def restore_options(
    statement: st.Restore, script: ScriptText
) -> tuple[Options, list[CatalogError]]:
    reader = OptionReader(RESTORE_OPTIONS, "RESTORE", script.text, script.file)
    return reader.read(statement.options, statement.span)


def checkpoint_errors(statement: CheckpointStatement, script: ScriptText) -> Iterator[CatalogError]:
    """Yield the errors of a statement about checkpoints."""
    if isinstance(statement, st.Restore):
        yield from restore_options(statement, script)[1]
    name, span = statement.name, statement.name_span
    reason = checkpoint_name_problem(name) if name is not None else None
    if reason is not None and span is not None:
        yield CatalogError(
            "TG-210",
            f"{name!r} cannot be the name of a checkpoint: {reason}",
            location=Location(script.text, span.start, span.end, script.file),
            hint="use letters, digits, _ and -, for example 'before-upgrade'; write an epoch "
            "without quotes.",
        )
