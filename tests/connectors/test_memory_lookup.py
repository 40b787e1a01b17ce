"""Inserted and deleted rows of memory lookup tables, without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from tests.support.compiling import compile_text
from tidegate.catalog.objects import LookupTable
from tidegate.connectors.base import LookupContext
from tidegate.connectors.memory.connector import open_inserts
from tidegate.connectors.memory.table import InsertedRows
from tidegate.errors import RunError
from tidegate.spark import inserted_rows as rows_module

COLUMNS = pa.schema([("id", pa.int64()), ("Name", pa.string()), ("_op", pa.string())])


def declared(options: str, key: str = "") -> LookupTable:
    text = (
        f"CREATE LOOKUP TABLE t (id BIGINT, Name STRING{key}) WITH (connector = 'memory'{options});"
    )
    table = compile_text(text).catalog.get("t")
    assert isinstance(table, LookupTable)
    return table


def rows_after(folder: Path, table: LookupTable, *changes: list[tuple[str, int, str]]) -> list[Any]:
    """Return the rows of the table after each insert."""
    uri = folder.as_uri()
    content = InsertedRows(LookupContext(table, uri, uri))
    versions = []
    for part in changes:
        rows = [{"_op": op, "id": number, "Name": name} for op, number, name in part]
        open_inserts(uri).append(pa.Table.from_pylist(rows, COLUMNS))
        remaining = content.rows(cast(Any, None))
        assert remaining.column_names == ["id", "Name"]
        versions.append([tuple(row.values()) for row in remaining.to_pylist()])
    return versions


def test_row_is_replaced_and_deleted_by_key(tmp_path: Path) -> None:
    table = declared(", changelog = true", ", PRIMARY KEY (ID)")
    assert rows_after(
        tmp_path,
        table,
        [("+I", 1, "a"), ("+I", 2, "b")],
        [("-U", 1, "a"), ("+U", 1, "c")],
        [("-D", 1, "whatever"), ("-D", 7, "x")],
        [("+I", 1, "d")],
    ) == [[(1, "a"), (2, "b")], [(2, "b"), (1, "c")], [(2, "b")], [(2, "b"), (1, "d")]]


def test_without_a_key_one_equal_row_is_deleted(tmp_path: Path) -> None:
    table = declared(", changelog = true")
    assert rows_after(
        tmp_path,
        table,
        [("+I", 1, "a"), ("+I", 1, "a"), ("+I", 1, "b")],
        [("-D", 1, "a"), ("-D", 9, "z")],
        [("-D", 1, "a"), ("-D", 1, "a")],
        [("+I", 1, "a")],
    ) == [[(1, "a"), (1, "a"), (1, "b")], [(1, "a"), (1, "b")], [(1, "b")], [(1, "b"), (1, "a")]]


@pytest.mark.parametrize("op", ["-X", None])
def test_rejects_invalid_values_of_op(op: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    # Parsing Spark types needs Java.
    monkeypatch.setattr(rows_module, "arrow_schema", lambda source: COLUMNS)
    with pytest.raises(RunError, match=r"_op is one of \+I, -U, \+U, -D, not"):
        rows_module.to_table(declared(", changelog = true"), [{"id": 1, "Name": "a", "_op": op}])
