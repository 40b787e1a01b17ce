"""Materializes and compacts changelogs: rows that are added, replaced by key, or retracted.

DuckDB only chooses the positions of the remaining rows, because it can compare all types. The rows
are then taken from the Arrow table, so that their types do not change.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidegate.columns import OP
from tidegate.errors import RunError
from tidegate.types import ChangelogKind

if TYPE_CHECKING:
    import pyarrow as pa

_POSITION = "_tg_position"
_ADDS = "('+I', '+U')"


def materialize(changes: pa.Table, kind: ChangelogKind, key: Sequence[str]) -> pa.Table:
    """Return the rows that exist after all changes, in the order in which they were added.

    `changes` must start with the first change of the stream.
    """
    rows = compact_changes(changes, kind, key, complete=True)
    return rows.drop_columns([OP]) if OP in rows.column_names else rows


def compact_changes(
    changes: pa.Table, kind: ChangelogKind, key: Sequence[str], complete: bool = False
) -> pa.Table:
    """Return fewer changes with the same effect.

    `complete` means that no changes precede these: then deletions of unknown rows are dropped, and
    retractions of unknown rows are an error.
    """
    if kind is ChangelogKind.APPEND or not changes.num_rows or OP not in changes.column_names:
        # An upsert stream without _op never deletes rows.
        if kind is not ChangelogKind.UPSERT or not changes.num_rows:
            return changes
        return changes.take(_last_of_keys(changes, key))
    if kind is ChangelogKind.UPSERT:
        return _compact_upserts(changes, key, complete)
    return _cancel_out(changes, complete)


def _compact_upserts(changes: pa.Table, key: Sequence[str], complete: bool) -> pa.Table:
    """Keep the last change of each key."""
    import pyarrow.compute as pc

    # A -U is followed by the +U of its key, which replaces the row.
    effective = changes.filter(pc.not_equal(changes.column(OP), "-U"))
    if not effective.num_rows:
        return effective
    last = effective.take(_last_of_keys(effective, key))
    return last.filter(pc.not_equal(last.column(OP), "-D")) if complete else last


def _last_of_keys(rows: pa.Table, key: Sequence[str]) -> list[int]:
    """Return the position of the last row of each key."""
    groups = _query(rows.select(list(key)), "SELECT max({at}) AS position, 1 AS number {grouped}")
    return sorted(groups.column("position").to_pylist())


def _cancel_out(changes: pa.Table, complete: bool) -> pa.Table:
    """Cancel additions and retractions of equal rows, and keep the rest as +I or -D."""
    import pyarrow as pa

    columns = [name for name in changes.column_names if name != OP]
    signed = changes.select([*columns, OP])
    groups = _query(
        signed,
        "SELECT min({at}) AS position, sum(CASE WHEN {last} IN " + _ADDS + " THEN 1 ELSE -1 END)"
        "::BIGINT AS number {grouped} HAVING number <> 0",
        grouped=len(columns),
    )
    pairs = sorted(zip(groups["position"].to_pylist(), groups["number"].to_pylist(), strict=True))
    if complete and any(number < 0 for _, number in pairs):
        raise RunError(
            "TG-605",
            "the stored changelog retracts a row that it does not contain",
            hint="start the stream over: run once with --on-change restart.",
        )
    positions = [position for position, number in pairs for _ in range(abs(number))]
    ops = ["+I" if number > 0 else "-D" for _, number in pairs for _ in range(abs(number))]
    op_column = changes.column_names.index(OP)
    remaining = changes.take(pa.array(positions, pa.int64()))
    return remaining.set_column(op_column, OP, pa.array(ops, pa.string()))


def _query(rows: pa.Table, sql: str, grouped: int | None = None) -> pa.Table:
    """Run an aggregation over rows in DuckDB, grouped by the first columns or by all.

    Columns are renamed to c0, c1, ..., because their names may contain any character.
    """
    import duckdb
    import numpy as np
    import pyarrow as pa

    count = rows.num_columns if grouped is None else grouped
    names = [f"c{number}" for number in range(rows.num_columns)]
    table = rows.rename_columns(names).append_column(_POSITION, pa.array(np.arange(rows.num_rows)))
    keys = ", ".join(names[:count])
    group_by = f"FROM changes GROUP BY {keys}" if keys else "FROM changes"
    connection = duckdb.connect(":memory:")
    try:
        connection.execute("SET python_enable_replacements = false")
        connection.register("changes", table)
        last = names[-1] if names else ""
        text = sql.format(at=_POSITION, last=last, grouped=group_by)
        return connection.sql(text).to_arrow_table()
    finally:
        connection.close()
