"""CHECKPOINT, DROP CHECKPOINT and RESTORE: their options and errors."""

from __future__ import annotations

from collections.abc import Iterator

from tidegate.catalog.catalog import name_problem
from tidegate.catalog.objects import ScriptText
from tidegate.catalog.options import OptionReader, Options, OptionSpec, OptionType
from tidegate.errors import CatalogError, Location
from tidegate.sql import statements as st

RESTORE_OPTIONS: tuple[OptionSpec, ...] = (
    OptionSpec(
        "sinks",
        OptionType.TEXT,
        "let sinks that cannot roll back keep the rows of later epochs; rows that are read again "
        "are then written twice; default: such sinks reject the RESTORE",
        choices=("keep",),
    ),
    OptionSpec(
        "pipeline",
        OptionType.TEXT,
        "name of the pipeline to restore; default: all",
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
