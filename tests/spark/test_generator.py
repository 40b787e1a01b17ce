"""The generator source on Spark: the same rows in batch, in epochs, and across a restart."""

import json
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

from tidegate.connectors import generator

ROWS = 20_011  # neither a multiple of the cycle nor of the epochs below
SOURCES: list[dict[str, Any]] = [
    *({"kind": "nexmark", "table": table} for table in ("person", "auction", "bid")),
    {"kind": "series", "keys": 7},
]
BIDS = {"table": "bid", "rows": ROWS, "seed": 7}


def sample(table: str, **options: Any) -> dict[str, Any]:
    return {"kind": "nexmark", "table": table, "rows": ROWS, "seed": 7, **options}


def as_json(rows: DataFrame) -> DataFrame:
    return rows.select(F.to_json(F.struct("*")).alias("row"))


def all_sources(read: Callable[[dict[str, Any]], DataFrame]) -> DataFrame:
    frames = [
        as_json(read({**source, "rows": ROWS, "seed": 7, "out_of_order_ms": 250}))
        for source in SOURCES
    ]
    return reduce(DataFrame.unionAll, frames)


def contents(rows: DataFrame) -> list[str]:
    return sorted(row.row for row in as_json(rows).collect())


def offsets(checkpoint: Path, epoch: int) -> list[int]:
    """The offsets of all sources that Spark has logged for an epoch."""
    lines = (checkpoint / "offsets" / str(epoch)).read_text().splitlines()
    return [json.loads(line)["event"] for line in lines[2:]]


@pytest.fixture(scope="module")
def expected(spark: SparkSession) -> list[str]:
    batch = all_sources(lambda options: generator.read_batch(spark, options))
    return sorted(row.row for row in batch.collect())


def test_columns_are_as_declared(spark: SparkSession) -> None:
    for source in SOURCES:
        for rows in (
            generator.read_batch(spark, {**source, "rows": 1}),
            generator.read(spark, source, 1),
        ):
            declared = [(name, sql_type.lower()) for name, sql_type in generator.columns(source)]
            assert rows.dtypes == declared


def test_epochs_after_a_crash_and_a_restart_equal_the_batch(
    spark: SparkSession, tmp_path: Path, expected: list[str]
) -> None:
    epochs: dict[int, list[Row]] = {}
    tasks: set[int] = set()
    crash_at = 2

    def keep(rows: DataFrame, epoch: int) -> None:
        tasks.add(rows.rdd.getNumPartitions())
        if epoch == crash_at:
            raise RuntimeError("scripted crash")
        epochs[epoch] = rows.collect()

    def start(rows_per_epoch: int) -> StreamingQuery:
        stream = all_sources(lambda options: generator.read(spark, options, rows_per_epoch))
        writer = stream.writeStream.foreachBatch(keep).trigger(availableNow=True)
        return writer.option("checkpointLocation", str(tmp_path)).start()

    with pytest.raises(StreamingQueryException, match="scripted crash"):
        start(rows_per_epoch=3000).awaitTermination()
    crash_at = -1
    # The epoch that crashed is replayed as it was logged; only those after it have the new size.
    start(rows_per_epoch=7000).awaitTermination()

    assert [offsets(tmp_path, epoch) for epoch in sorted(epochs)] == [
        [end] * len(SOURCES) for end in (3000, 6000, 9000, 16_000, ROWS)
    ]
    assert sorted(row.row for rows in epochs.values() for row in rows) == expected
    assert tasks == {len(SOURCES) * spark.sparkContext.defaultParallelism}


def test_a_bounded_stream_rests_at_its_end(spark: SparkSession, tmp_path: Path) -> None:
    stream = generator.read(spark, BIDS, 10_000)
    writer = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    query = writer.trigger(processingTime="50 milliseconds").start()
    try:
        query.processAllAvailable()
        query.awaitTermination(timeout=0.5)
        assert sorted(int(file.name) for file in (tmp_path / "commits").glob("[0-9]*")) == [0, 1, 2]
        assert offsets(tmp_path, 2) == [ROWS]
        assert query.exception() is None
    finally:
        query.stop()


def test_an_unbounded_stream_runs_on_but_not_to_an_end(
    spark: SparkSession, tmp_path: Path
) -> None:
    epochs: list[list[Row]] = []
    stream = generator.read(spark, {"kind": "series"}, 100).select("n")
    writer = stream.writeStream.option("checkpointLocation", str(tmp_path))
    query = writer.foreachBatch(lambda rows, _: epochs.append(rows.collect())).start()
    try:
        while query.isActive and len(epochs) < 3:
            query.awaitTermination(timeout=0.05)
    finally:
        query.stop()
    assert [sorted(row.n for row in rows) for rows in epochs[:3]] == [
        list(range(first, first + 100)) for first in (0, 100, 200)
    ]
    to_the_end = writer.foreachBatch(lambda rows, _: None).trigger(availableNow=True).start()
    with pytest.raises(StreamingQueryException, match="give it the option rows"):
        to_the_end.awaitTermination()
    with pytest.raises(ValueError, match="give it the option rows"):
        generator.read_batch(spark, {"kind": "series"})


def test_rows_limit_and_proportions_are_exact(spark: SparkSession) -> None:
    for rows in (0, 1, 4, 50, 4096, ROWS):
        limited = {"rows": rows, "kind": "nexmark"}
        counts = [
            generator.read_batch(spark, {**limited, "table": table}).count()
            for table in ("person", "auction", "bid")
        ]
        cycles, rest = divmod(rows, 50)
        ends = [max(0, min(rest - first, width)) for first, width in ((0, 1), (1, 3), (4, 46))]
        assert counts == [cycles * w + end for w, end in zip((1, 3, 46), ends, strict=True)]
        assert counts == [
            generator.rows_between({**limited, "table": table}, None, {"event": rows})
            for table in ("person", "auction", "bid")
        ]


def test_references_are_to_what_exists_already(spark: SparkSession) -> None:
    for table in ("person", "auction", "bid"):
        generator.read_batch(spark, sample(table)).createOrReplaceTempView(f"generated_{table}")
    for table, reference, target in (
        ("auction", "seller", "person"),
        ("bid", "bidder", "person"),
        ("bid", "auction", "auction"),
    ):
        dangling = spark.sql(
            f"SELECT * FROM generated_{table} AS l LEFT ANTI JOIN generated_{target} AS r "
            f"ON l.{reference} = r.id AND l.date_time > r.date_time"
        )
        assert dangling.count() == 0, (table, reference)


def test_hot_keys_and_value_ranges(spark: SparkSession) -> None:
    newest = "(CAST(unix_micros(date_time) - unix_micros(TIMESTAMP '2015-07-15') AS BIGINT) div 5000)"
    bids = generator.read_batch(spark, sample("bid")).selectExpr(
        f"avg(if(auction - 1000 = ({newest} * 3 + 2) div 100 * 100, 1, 0)) AS hot_auctions",
        f"avg(if(bidder - 1000 = least({newest} div 100 * 100 + 1, {newest}), 1, 0)) AS hot_bidders",
        "avg(if(channel IN ('Google', 'Facebook', 'Baidu', 'Apple'), 1, 0)) AS hot_channels",
        "min(price) >= 100 AND max(price) <= 100000000 AS in_range",
        "avg(log10(price)) AS magnitude",
        "min(size(split(url, '/'))) AS parts",
        "avg(if(channel LIKE 'channel-%' AND url LIKE '%&channel_id=%', 1, 0)) AS named",
        "max(if(channel NOT LIKE 'channel-%' AND url LIKE '%&channel_id=%', 1, 0)) AS misnamed",
    )
    row = bids.first()
    assert row is not None
    assert row.hot_auctions == pytest.approx(0.5, abs=0.03)
    assert row.hot_bidders == pytest.approx(0.75, abs=0.03)
    assert row.hot_channels == pytest.approx(0.5, abs=0.03)
    assert row.in_range
    assert row.magnitude == pytest.approx(5, abs=0.1)
    assert (row.parts, row.misnamed) == (7, 0)
    assert row.named == pytest.approx(0.45, abs=0.03)
    auctions = generator.read_batch(spark, sample("auction")).selectExpr(
        "collect_set(category) AS categories",
        "min(reserve > initial_bid) AND min(expires > date_time) AS in_order",
    )
    row = auctions.first()
    assert row is not None
    assert (sorted(row.categories), row.in_order) == ([10, 11, 12, 13, 14], True)
    persons = generator.read_batch(spark, sample("person")).select("state").distinct()
    assert {row.state for row in persons.collect()} == {"AZ", "CA", "ID", "OR", "WA", "WY"}


def test_a_seed_names_a_sequence(spark: SparkSession) -> None:
    for source in SOURCES:
        options = {**source, "rows": 500}
        first, again, other = (
            contents(generator.read_batch(spark, {**options, "seed": seed})) for seed in (1, 1, 2)
        )
        assert first == again
        assert not set(first) & set(other)


def test_event_times(spark: SparkSession) -> None:
    options = {"kind": "series", "rows": 5000, "start": "1969-12-31T23:59:59", "seed": 3}
    shift_us = "unix_micros(ts) - (n * 1000000 div 300 - 1000000)"

    def shifts(out_of_order_ms: int) -> Row:
        rows = generator.read_batch(
            spark, {**options, "events_per_second": 300, "out_of_order_ms": out_of_order_ms}
        ).select(F.expr(shift_us).alias("shift"))
        row = rows.selectExpr("min(shift) AS least", "max(shift) AS most").first()
        assert row is not None
        return row

    assert tuple(shifts(0)) == (0, 0)
    late = shifts(2500)
    assert -2_500_000 <= late.least < -2_490_000
    assert -10_000 < late.most <= 0


def test_only_columns_in_use_are_computed(spark: SparkSession) -> None:
    auctions = generator.read_batch(spark, BIDS).select("auction")
    plan = auctions._jdf.queryExecution().optimizedPlan().toString()
    assert "xxhash64" in plan
    assert not [word for word in ("EXP(", "channel", "timestamp_micros", "hex(") if word in plan]
