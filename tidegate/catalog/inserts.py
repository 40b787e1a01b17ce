"""INSERT against the source it writes: what can be said without evaluating the rows."""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import exp

from tidegate.catalog.objects import Declared, Origin, Source, tables_in
from tidegate.columns import OP
from tidegate.errors import CatalogError, Place, did_you_mean
from tidegate.sql import statements as st
from tidegate.sql.dialect import own_span
from tidegate.types import Span


def insert_errors(statement: st.Insert, target: Declared, origin: Origin) -> Iterator[CatalogError]:
    """Everything wrong with an INSERT into this target."""

    def error(code: str, message: str, span: Span | None, hint: str) -> CatalogError:
        at = span or statement.target_span
        place = Place(origin.text, at.start, at.end, origin.file)
        return CatalogError(code, message, place=place, hint=hint)

    if not isinstance(target, Source) or not target.insertable:
        hint = "INSERT writes into sources with connector = 'memory'."
        yield error("TG-211", f"rows cannot be inserted into {target.name}", None, hint)
        return
    columns = [column.name for column in target.stored_columns]
    columns += [OP] if target.options["changelog"] else []
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
