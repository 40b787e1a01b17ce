"""NEXMark q0, q1 and q2 return the same rows as batch queries, also across a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.nexmark import query
from benchmarks.nexmark.events import read_batch
from tests.support.sessions import bag, rows_of, run_some, run_to_end, table_rows
from tidegate.connectors.generator import generator

pytestmark = pytest.mark.spark

EVENTS = 20_000
OPTIONS = {
    "kind": "nexmark",
    "table": "bid",
    "rows": EVENTS,
    "seed": 42,
    "events_per_second": 10_000,
    "start": "2015-07-15 00:00:00",
    "out_of_order_ms": 0,
    "keys": 10,
}


def stream_sql(name: str) -> str:
    """Return the CREATE STREAM statement of a NEXMark query, without its sources."""
    text = query(name)
    return text[text.index("CREATE STREAM") :].rstrip().rstrip(";")


def on_generator(name: str) -> str:
    return (
        "CREATE SOURCE bid (WATERMARK FOR date_time AS date_time - INTERVAL '4' SECOND) "
        f"WITH (connector = 'generator', kind = 'nexmark', table = 'bid', rows = {EVENTS}); "
        + stream_sql(name)
    )


def on_files(name: str, folder: Path) -> str:
    columns = ", ".join(f"{column} {kind}" for column, kind in generator.columns(OPTIONS))
    return (
        f"CREATE SOURCE bid ({columns}, WATERMARK FOR date_time AS date_time - INTERVAL '4' SECOND) "
        f"WITH (connector = 'files', path = '{folder}', files_per_epoch = 2); " + stream_sql(name)
    )


def batch(spark: Any, name: str) -> list[dict[str, Any]]:
    """Run the same SQL over the same rows as a batch query of plain Spark."""
    text = stream_sql(name)
    read_batch(spark, OPTIONS).createOrReplaceTempView("bid")
    return table_rows(spark.sql(text[text.index("SELECT") :]).toArrow())


@pytest.mark.parametrize("name", ["q0", "q1", "q2"])
def test_generated_bids_return_the_batch_result_across_a_restart(
    spark: Any, data: Path, name: str
) -> None:
    script = on_generator(name)
    before = run_some(data, spark, script, name, 2, rows_per_epoch=3_000)
    batches = run_to_end(data, spark, script, name, rows_per_epoch=3_000)
    assert 2 <= before < len(batches)
    assert [item.epoch for item in batches] == list(range(len(batches)))
    assert bag(rows_of(batches)) == bag(batch(spark, name))


@pytest.mark.parametrize("name", ["q0", "q1", "q2"])
def test_bids_in_files_return_the_batch_result_across_a_restart(
    spark: Any, data: Path, tmp_path: Path, name: str
) -> None:
    folder = tmp_path / "bids"
    read_batch(spark, OPTIONS).repartition(8).write.parquet(str(folder))
    script = on_files(name, folder)
    before = run_some(data, spark, script, name, 2)
    batches = run_to_end(data, spark, script, name)
    assert before >= 2
    assert bag(rows_of(batches)) == bag(batch(spark, name))
