"""The changes of an epoch as one merge into a table of Delta Lake: replaced and deleted by key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidegate.columns import OP
from tidegate.connectors.delta_table import properties
from tidegate.connectors.standing import folded
from tidegate.types import ChangelogKind

if TYPE_CHECKING:
    from tidegate.connectors.delta_table import Column, Table
    from tidegate.connectors.protocols import StreamRows
    from tidegate.storage import Store

_SIGN = "_tg_sign"


def merge_changes(
    table: Table,
    columns: Sequence[Column],
    rows: StreamRows,
    staged: Store,
    names: Sequence[str],
    numbers: dict[str, int],
) -> None:
    """Make the changes of an epoch in one version of the table."""
    ours = {
        name.lower(): column.name for (name, _), column in zip(rows.columns, columns, strict=True)
    }
    keys = [ours[name.lower()] for name in rows.key or ()]
    tables = [pq.read_table(pa.BufferReader(staged.map(name))) for name in names]
    changes = net(pa.concat_tables(tables), rows.kind, keys)
    if not changes.num_rows:
        return
    nullable = {column.name for column in columns if not column.not_null}
    same = " AND ".join(_same(key, key in nullable) for key in keys)
    values = {_quoted(column.name): f"s.{_quoted(column.name)}" for column in columns}
    merger = table.loaded.merge(
        changes,
        same,
        source_alias="s",
        target_alias="t",
        commit_properties=properties(numbers),
    )
    (
        merger.when_matched_delete(f"s.{_SIGN} < 0")
        .when_matched_update(values)
        .when_not_matched_insert(values, f"s.{_SIGN} > 0")
        .execute()
    )
    table.look_again()


def net(changes: pa.Table, kind: ChangelogKind, keys: Sequence[str]) -> pa.Table:
    """One row per key: its new row, or a row of it that says that it has none any more.

    Tasks stage in any order: of a changelog a row that was given and retracted is none.
    """
    left = folded(changes, kind, keys)
    if OP not in left.column_names:
        return left.append_column(_SIGN, pa.array([1] * left.num_rows, pa.int32()))
    adds = pc.is_in(left.column(OP), pa.array(["+I", "+U"]))
    sign = pc.if_else(adds, pa.scalar(1, pa.int32()), pa.scalar(-1, pa.int32()))
    signed = left.drop_columns([OP]).append_column(_SIGN, sign)
    # A key that has a new row is not deleted: its row is the last of those that say something.
    order = pc.sort_indices(signed, sort_keys=[(_SIGN, "ascending")])
    return folded(signed.take(order), ChangelogKind.UPSERT, keys)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _same(key: str, nullable: bool) -> str:
    one, other = f"t.{_quoted(key)}", f"s.{_quoted(key)}"
    equal = f"{one} = {other}"
    return f"({equal} OR ({one} IS NULL AND {other} IS NULL))" if nullable else equal
