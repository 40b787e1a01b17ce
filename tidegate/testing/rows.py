"""Rows of a case file, held against the columns of their source."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from tidegate.columns import OP, OPS
from tidegate.errors import did_you_mean
from tidegate.testing.case import CaseSource, Row
from tidegate.testing.fields import CaseError, Fields, read_json_lines


def fit_rows(file: Path, where: str, rows: Iterable[Row], source: CaseSource) -> tuple[Row, ...]:
    """The rows, once they fit the declared columns; an append-only source loses its +I."""
    return tuple(_fit(file, f"{where}[{i}]", row, source) for i, row in enumerate(rows))


def _fit(file: Path, where: str, row: Row, source: CaseSource) -> Row:
    names = [name for name, _ in source.columns]
    known = {name.lower() for name in names}
    for name in row:
        if name != OP and name.lower() not in known:
            hint = did_you_mean(name, names, "columns")
            raise CaseError(file, f"{where}.{name}", f"{source.name} has no such column", hint)
    if OP not in row:
        return row
    if row[OP] not in OPS:
        message = f"expected one of {', '.join(OPS)}, found {row[OP]}"
        raise CaseError(file, f"{where}.{OP}", message)
    if source.kind != "stream":
        return row
    if row[OP] != "+I":
        message = f"a source of kind {source.kind} takes only +I, found {row[OP]}"
        raise CaseError(file, f"{where}.{OP}", message, "kind: changelog takes signed rows.")
    return {name: value for name, value in row.items() if name != OP}


def rows_from(item: Fields, inline: str, file: str) -> tuple[Row, ...] | None:
    """Rows that stand in the case or in a file of their own; None if neither is given."""
    if item.has(inline) and item.has(file):
        raise item.error(inline, f"expected {inline} or {file}, found both")
    if item.has(file):
        return _rows_file(item, file)
    return item.rows(inline) if item.has(inline) else None


def _rows_file(item: Fields, field: str) -> tuple[Row, ...]:
    """JSON lines, beside the case or in a folder above it, or in the conformance folder."""
    name = item.text(field)
    folders = [*item.file.resolve().parents]
    if os.environ.get("TIDEGATE_CONFORMANCE_DIR"):
        folders.append(Path(os.environ["TIDEGATE_CONFORMANCE_DIR"]))
    for folder in folders:
        if (folder / name).is_file():
            return tuple(read_json_lines(folder / name))
    raise item.error(
        field,
        f"there is no file {name} beside the case or in a folder above it",
        "TIDEGATE_CONFORMANCE_DIR may name one more folder to look in.",
    )
