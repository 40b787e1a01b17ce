"""Statements about checkpoints: what can be wrong with them without looking at the data."""

from __future__ import annotations

from collections.abc import Iterator

from tidegate.catalog.objects import Origin
from tidegate.catalog.options import OptionReader, Options, OptionSpec, OptionType
from tidegate.errors import CatalogError, Place
from tidegate.names import unsafe
from tidegate.sql import statements as st

RESTORE_OPTIONS: tuple[OptionSpec, ...] = (
    OptionSpec(
        "sinks",
        OptionType.TEXT,
        "what becomes of rows from after the checkpoint in sinks that cannot forget them; with "
        "keep they stay, and will be there twice",
        choices=("keep",),
    ),
    OptionSpec(
        "pipeline", OptionType.TEXT, "the pipeline that goes back; all by default", check=unsafe
    ),
)

CheckpointStatement = st.Checkpoint | st.DropCheckpoint | st.Restore


def unsafe_checkpoint_name(name: str) -> str | None:
    """Why a text cannot be the name of a checkpoint; None if it can."""
    if name.isdigit():
        return "a number is an epoch"
    return unsafe(name)


def restore_options(statement: st.Restore, origin: Origin) -> tuple[Options, list[CatalogError]]:
    reader = OptionReader(RESTORE_OPTIONS, "RESTORE", origin.text, origin.file)
    return reader.read(statement.options, statement.span)


def checkpoint_errors(statement: CheckpointStatement, origin: Origin) -> Iterator[CatalogError]:
    """Everything that is wrong with such a statement."""
    if isinstance(statement, st.Restore):
        yield from restore_options(statement, origin)[1]
    name, span = statement.name, statement.name_span
    wrong = unsafe_checkpoint_name(name) if name is not None else None
    if wrong is not None and span is not None:
        yield CatalogError(
            "TG-210",
            f"{name!r} cannot be the name of a checkpoint: {wrong}",
            place=Place(origin.text, span.start, span.end, origin.file),
            hint="a name is made of letters, digits, _ and -, for example 'before-upgrade'; an "
            "epoch is written without quotes.",
        )
