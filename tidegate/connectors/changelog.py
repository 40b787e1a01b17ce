"""The rows that stand after changes: rows added, replaced by key, or retracted.

Rows are chosen by DuckDB, which compares all types, and taken from the Arrow table they stand in,
so that nothing changes its type on the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidegate.columns import OP
from tidegate.errors import RunError
from tidegate.types import ChangelogKind

if TYPE_CHECKING:
    import pyarrow as pa

_AT = "_tg_at"
_ADDS = "('+I', '+U')"


def standing(changes: pa.Table, kind: ChangelogKind, key: Sequence[str]) -> pa.Table:
    """The rows that are left after all changes since the first, in the order they came."""
    rows = folded(changes, kind, key, complete=True)
    return rows.drop_columns([OP]) if OP in rows.column_names else rows


def folded(
    changes: pa.Table, kind: ChangelogKind, key: Sequence[str], complete: bool = False
) -> pa.Table:
    """Fewer changes with the same effect; `complete`: there were none before these."""
    if kind is ChangelogKind.APPEND or not changes.num_rows or OP not in changes.column_names:
        # Without _op an upsert stream only ever sets rows; a table of them needs its key.
        if kind is not ChangelogKind.UPSERT or not changes.num_rows:
            return changes
        return changes.take(_last_of_keys(changes, key))
    if kind is ChangelogKind.UPSERT:
        return _folded_upserts(changes, key, complete)
    return _folded_changes(changes, complete)


def _folded_upserts(changes: pa.Table, key: Sequence[str], complete: bool) -> pa.Table:
    import pyarrow.compute as pc

    # The new row of a key says all: the old one is no news.
    said = changes.filter(pc.not_equal(changes.column(OP), "-U"))
    if not said.num_rows:
        return said
    last = said.take(_last_of_keys(said, key))
    return last.filter(pc.not_equal(last.column(OP), "-D")) if complete else last


def _last_of_keys(rows: pa.Table, key: Sequence[str]) -> list[int]:
    """Where the last row of each key stands."""
    found = _ask(rows.select(list(key)), "SELECT max({at}) AS place, 1 AS number {grouped}")
    return sorted(found.column("place").to_pylist())


def _folded_changes(changes: pa.Table, complete: bool) -> pa.Table:
    """What is left of each row once the same row, added and retracted, is cancelled out."""
    import pyarrow as pa

    columns = [name for name in changes.column_names if name != OP]
    signed = changes.select([*columns, OP])
    found = _ask(
        signed,
        "SELECT min({at}) AS place, sum(CASE WHEN {last} IN " + _ADDS + " THEN 1 ELSE -1 END)"
        "::BIGINT AS number {grouped} HAVING number <> 0",
        grouped=len(columns),
    )
    pairs = sorted(zip(found["place"].to_pylist(), found["number"].to_pylist(), strict=True))
    if complete and any(number < 0 for _, number in pairs):
        raise RunError(
            "TG-605",
            "the rows that were kept of a changelog retract a row that is not among them",
            hint="start the stream over: run once with --on-change restart.",
        )
    places = [place for place, number in pairs for _ in range(abs(number))]
    ops = ["+I" if number > 0 else "-D" for _, number in pairs for _ in range(abs(number))]
    at = changes.column_names.index(OP)
    taken = changes.take(pa.array(places, pa.int64()))
    return taken.set_column(at, OP, pa.array(ops, pa.string()))


def _ask(rows: pa.Table, sql: str, grouped: int | None = None) -> pa.Table:
    """Ask DuckDB about rows; columns go by their places, since a name may hold anything."""
    import duckdb
    import numpy as np
    import pyarrow as pa

    count = rows.num_columns if grouped is None else grouped
    names = [f"c{place}" for place in range(rows.num_columns)]
    table = rows.rename_columns(names).append_column(_AT, pa.array(np.arange(rows.num_rows)))
    keys = ", ".join(names[:count])
    by = f"FROM changes GROUP BY {keys}" if keys else "FROM changes"
    connection = duckdb.connect(":memory:")
    try:
        connection.execute("SET python_enable_replacements = false")
        connection.register("changes", table)
        last = names[-1] if names else ""
        text = sql.format(at=_AT, last=last, grouped=by)
        return connection.sql(text).to_arrow_table()
    finally:
        connection.close()
