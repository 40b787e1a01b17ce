"""Kinds of rows that INSERT accepts: pandas, polars, Arrow C streams, iterators."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from tests.support.sessions import open_with
from tidegate.errors import RunError
from tidegate.observe.status import State

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SCRIPT = """
CREATE SOURCE s (id BIGINT, name STRING, price DECIMAL(10, 2), at TIMESTAMP) WITH (connector = 'memory');
CREATE MATERIALIZED VIEW v AS SELECT * FROM s;
"""
AT = datetime(2026, 1, 1, 10, tzinfo=UTC)


class Stream:
    """Arrow data with only the Arrow C stream interface."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.table.__arrow_c_stream__(requested_schema)


def rows(first: int) -> list[dict[str, Any]]:
    return [{"id": first, "name": f"n{first}", "price": "1.50", "at": "2026-01-01T10:00:00"}]


def one_by_one() -> Iterator[dict[str, Any]]:
    yield from rows(4)


async def later() -> AsyncIterator[dict[str, Any]]:
    for row in rows(5):
        yield row


def test_all_kinds_of_input_insert_the_same_rows(data: Path, spark: SparkSession) -> None:
    with open_with(data, spark, SCRIPT) as session:
        frame = pl.DataFrame(rows(1)).with_columns(pl.lit(AT).alias("at"))
        assert session.insert("s", frame) == 1
        assert session.insert("s", pd.DataFrame(rows(2))) == 1
        assert session.insert("s", Stream(pa.Table.from_pylist(rows(3)))) == 1
        assert session.insert("s", one_by_one()) == 1
        assert asyncio.run(session.insert("s", later())) == 1
        for wrong in (pl.LazyFrame(rows(1)), 7, "text"):
            with pytest.raises(RunError) as caught:
                session.insert("s", wrong)
            assert caught.value.code == "TG-309"
        session.start(until_end=True)
        session.wait()
        result = session.query('SELECT id, name, price::DOUBLE AS price, "at" FROM v ORDER BY id')
        assert [row["id"] for row in result] == [1, 2, 3, 4, 5]
        assert {(row["price"], row["at"]) for row in result} == {(1.5, AT)}
        assert result.to_polars()["name"].to_list() == [f"n{n}" for n in range(1, 6)]
        session.stop()
        (status,) = session.status()
        assert (status.state, status.rows_out) == (State.FINISHED, 5), (
            "the view lost rows after the stop"
        )
