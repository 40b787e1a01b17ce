"""Conversion of inserted Python rows to the table of a source, without Spark."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from tests.support.compiling import compile_text
from tidegate.catalog.objects import Source
from tidegate.errors import RunError
from tidegate.spark import inserted_rows as module

AT = datetime(2026, 1, 1, 10, tzinfo=UTC)
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("price", pa.decimal128(10, 2)),
        ("at", pa.timestamp("us", "UTC")),
    ]
)
ROWS: list[dict[str, Any]] = [
    {"id": 1, "name": "a", "price": "1.50", "at": "2026-01-01T10:00:00"},
    {"id": 2, "name": None, "price": None, "at": None},
]
WANTED = [
    {"id": 1, "name": "a", "price": Decimal("1.50"), "at": AT},
    {"id": 2, "name": None, "price": None, "at": None},
]


class ArrowStream:
    """Arrow data that only has the C stream interface."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return pa.Table.from_pylist(ROWS).__arrow_c_stream__(requested_schema)


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> Source:
    text = "CREATE SOURCE s (id BIGINT, name STRING, price DECIMAL(10, 2), at TIMESTAMP) WITH (connector = 'memory');"
    declared = compile_text(text).catalog.get("s")
    assert isinstance(declared, Source)
    # Spark's type parser needs Java.
    monkeypatch.setattr(module, "arrow_schema", lambda source: SCHEMA)
    return declared


@pytest.mark.parametrize(
    "rows",
    [
        ROWS,
        pd.DataFrame(ROWS),
        pl.DataFrame(ROWS),
        pl.DataFrame(ROWS).with_columns(pl.col("at").str.to_datetime(time_zone="UTC")),
        ArrowStream(),
        pa.Table.from_pylist(ROWS),
        pa.RecordBatch.from_pylist(ROWS),
        pa.Table.from_pylist(ROWS).cast(pa.schema([("id", pa.int32()), *((n, pa.string_view()) for n in ("name", "price", "at"))])),
        (row for row in ROWS),
        [tuple(row.values()) for row in ROWS],
    ],
    ids=["dicts", "pandas", "polars", "polars times", "c stream", "arrow", "batch", "views", "generator", "tuples"],
)  # fmt: skip
def test_converts_all_kinds_of_rows_to_the_same_table(source: Source, rows: Any) -> None:
    assert module.to_table(source, rows).to_pylist() == WANTED


@pytest.mark.parametrize("rows", [pl.LazyFrame(ROWS), 7, "text", None])
def test_rejects_values_that_are_not_rows(source: Source, rows: Any) -> None:
    with pytest.raises(RunError) as caught:
        module.to_table(source, rows)
    assert caught.value.code == "TG-309"
    if isinstance(rows, pl.LazyFrame):
        assert "rows.collect()" in str(caught.value.hint)
