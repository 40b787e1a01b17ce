"""The generator source on Spark returns the same rows in batch, in epochs and across a restart."""

from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from benchmarks.nexmark.events import read_batch
from tests.support.sessions import bag, open_with, rows_of
from tidegate.checkpoint.manifests import Manifests
from tidegate.connectors.generator import generator
from tidegate.errors import RunError
from tidegate.runtime import pipeline
from tidegate.runtime.pipeline import EpochStep
from tidegate.storage import open_store

pytestmark = pytest.mark.spark

Options = dict[str, Any]

EVENTS = 20_011  # Not a multiple of the cycle or of the epochs below.
TABLES = ("person", "auction", "bid")
SERIES: Options = {"kind": "series", "keys": 7, "rows": EVENTS, "seed": 7, "out_of_order_ms": 250}


def nexmark(table: str, **options: Any) -> Options:
    return {"kind": "nexmark", "table": table, "rows": EVENTS, "seed": 7, **options}


def as_json(rows: DataFrame) -> DataFrame:
    return rows.selectExpr("to_json(struct(*)) AS row")


def union(sources: list[Options], read: Callable[[Options], DataFrame]) -> DataFrame:
    return reduce(DataFrame.unionAll, (as_json(read(options)) for options in sources))


def batch(spark: SparkSession, *sources: Options) -> list[Row]:
    return sorted(union([*sources], lambda options: read_batch(spark, options)).collect())


def declared(name: str, options: Options) -> str:
    clause = ", ".join(f"{key} = '{value}'" for key, value in options.items())
    return (
        f"CREATE SOURCE {name}_source WITH (connector = 'generator', {clause});"
        f"CREATE STREAM {name} AS SELECT * FROM {name}_source;"
    )


def offsets(data: Path) -> list[dict[str, int]]:
    """Return the offset of each stream by epoch."""
    manifests = Manifests(open_store(str(data / "_pipelines" / "main"))).load_all()
    return [
        {name: offset["event"] for name, s in m.streams.items() for offset in s.offsets.values()}
        for m in reversed(manifests)
    ]


def first_row(rows: DataFrame) -> Row:
    row = rows.first()
    assert row is not None
    return row


def test_columns_are_as_declared(spark: SparkSession) -> None:
    for options in (SERIES, *map(nexmark, TABLES)):
        columns = [(name, sql_type.lower()) for name, sql_type in generator.columns(options)]
        assert read_batch(spark, options).dtypes == columns


def test_epochs_after_a_crash_and_a_restart_equal_the_batch(
    spark: SparkSession, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = {"auctions": nexmark("auction"), "series": SERIES}
    script = "".join(declared(name, options) for name, options in sources.items())
    config = {"max_retained": 100}
    epochs: list[EpochStep] = []

    def crash(step: EpochStep) -> None:
        epochs.extend([step] if step is EpochStep.RAN else [])
        if len(epochs) == 3:
            raise KeyboardInterrupt("scripted crash")

    monkeypatch.setattr(pipeline, "on_step", crash)
    with open_with(data, spark, script, rows_per_epoch=3000, **config) as session:
        for name in sources:
            session.subscribe(name)
        session.start(until_end=True)
        with pytest.raises(RunError, match="scripted crash"):
            session.wait()
    monkeypatch.undo()
    # The crashed epoch was not committed, so it already has the new size.
    with open_with(data, spark, script, rows_per_epoch=7000, **config) as session:
        readers = {name: session.subscribe(name) for name in sources}
        session.start(until_end=True)
        session.wait()
        rows = {name: rows_of(out.take_all()) for name, out in readers.items()}
    ends = (3000, 6000, 13_000, 20_000, EVENTS)
    assert offsets(data) == [{"auctions": end, "series": end} for end in ends]
    for name, options in sources.items():
        whole = read_batch(spark, options).toArrow().to_pylist()
        assert bag(rows[name]) == bag(whole), name


def test_bounded_stream_waits_at_its_end(spark: SparkSession, data: Path) -> None:
    options = nexmark("bid", out_of_order_ms=250)
    script = declared("bids", options)
    with open_with(data, spark, script, rows_per_epoch=10_000) as session:
        out = session.subscribe("bids")
        session.start()
        # Each call waits for a poll of the source that finds no new rows.
        for _ in range(3):
            session.wait()
        batches = out.take_all()
    assert [batch.epoch for batch in batches] == [0, 1, 2]
    assert offsets(data)[-1] == {"bids": EVENTS}
    assert bag(rows_of(batches)) == bag(read_batch(spark, options).toArrow().to_pylist())


def test_unbounded_stream_runs_but_rejects_until_end(spark: SparkSession, data: Path) -> None:
    script = declared("persons", {"kind": "nexmark", "table": "person"})
    with open_with(data, spark, script, rows_per_epoch=100) as session:
        batches: list[list[int]] = []
        out = session.subscribe("persons")
        session.start()
        for batch in out:
            batches.append(sorted(batch.table.column("id").to_pylist()))
            if len(batches) == 3:
                out.close()
        assert batches == [[1000, 1001], [1002, 1003], [1004, 1005]]
        session.stop()
        with pytest.raises(RunError, match="is unbounded"):
            session.start(until_end=True)
    with pytest.raises(ValueError, match="set the option rows"):
        read_batch(spark, nexmark("person", rows=None))


@pytest.mark.parametrize("rows", [0, 2, EVENTS])
def test_rows_limit_and_proportions_are_exact(spark: SparkSession, rows: int) -> None:
    cycles, rest = divmod(rows, 50)
    for table, first, width in (("person", 0, 1), ("auction", 1, 3), ("bid", 4, 46)):
        options = nexmark(table, rows=rows)
        count = read_batch(spark, options).count()
        assert count == cycles * width + max(0, min(rest - first, width))
        assert count == generator.rows_between(options, None, {"event": rows})


def test_references_point_to_existing_rows(spark: SparkSession) -> None:
    tables = {table: read_batch(spark, nexmark(table)) for table in TABLES}
    for table, reference, target in (
        ("auction", "seller", "person"),
        ("bid", "bidder", "person"),
        ("bid", "auction", "auction"),
    ):
        referring = tables[table].selectExpr(f"{reference} AS id", "date_time AS at")
        earlier = tables[target].selectExpr("id AS target", "date_time AS since")
        exists = (referring.id == earlier.target) & (referring.at > earlier.since)
        assert referring.join(earlier, exists, "left_anti").count() == 0, (table, reference)


def test_bids_hit_hot_keys_in_the_proportions_of_nexmark(spark: SparkSession) -> None:
    bids = read_batch(spark, nexmark("bid")).selectExpr(
        "*", "unix_micros(date_time) - unix_micros(TIMESTAMP '2015-07-15') AS us"
    )
    shares = first_row(
        bids.selectExpr("*", "us div 5000 AS cycle").selectExpr(
            "avg(if(auction - 1000 = (cycle * 3 + 2) div 100 * 100, 1, 0)) AS hot_auctions",
            "avg(if(bidder - 1000 = least(cycle div 100 * 100 + 1, cycle), 1, 0)) AS hot_bidders",
            "avg(if(channel IN ('Google', 'Facebook', 'Baidu', 'Apple'), 1, 0)) AS hot_channels",
            "avg(if(channel RLIKE '^channel-[0-9]+$', 1, 0)) AS other_channels",
            "avg(if(url LIKE '%&channel_id=%' AND channel LIKE 'channel-%', 1, 0)) AS named",
            "count_if(url LIKE '%&channel_id=%' AND channel NOT LIKE 'channel-%') AS misnamed",
            "count_if(size(split(url, '/')) <> 7) AS other_urls",
            "min(price) >= 100 AND max(price) <= 100000000 AS prices_in_range",
            "avg(log10(price)) AS magnitude",
            "avg(length(extra)) AS extra",
        )
    ).asDict()
    assert shares == {
        "hot_auctions": pytest.approx(0.5, abs=0.03),
        "hot_bidders": pytest.approx(0.75, abs=0.03),
        "hot_channels": pytest.approx(0.5, abs=0.03),
        "other_channels": pytest.approx(0.5, abs=0.03),
        "named": pytest.approx(0.45, abs=0.03),
        "misnamed": 0,
        "other_urls": 0,
        "prices_in_range": True,
        "magnitude": pytest.approx(5, abs=0.1),
        "extra": pytest.approx(68, abs=2),
    }


def test_auctions_and_persons_have_the_values_of_nexmark(spark: SparkSession) -> None:
    auctions = first_row(
        read_batch(spark, nexmark("auction")).selectExpr(
            "sort_array(collect_set(category)) AS categories",
            "bool_and(reserve > initial_bid AND expires > date_time) AS in_order",
            "avg(if(seller % 100 = 0, 1, 0)) AS hot_sellers",
        )
    )
    assert auctions.categories == [10, 11, 12, 13, 14]
    assert auctions.in_order
    assert auctions.hot_sellers == pytest.approx(0.75, abs=0.05)
    persons = first_row(
        read_batch(spark, nexmark("person")).selectExpr(
            "sort_array(collect_set(state)) AS states",
            "bool_and(credit_card RLIKE '^[0-9]{4}( [0-9]{4}){3}$') AS cards",
            "bool_and(email_address RLIKE '^[a-z]+@[a-z]+[.]com$') AS emails",
        )
    )
    assert persons.states == ["AZ", "CA", "ID", "OR", "WA", "WY"]
    assert persons.cards
    assert persons.emails


def test_seed_determines_the_sequence(spark: SparkSession) -> None:
    for options in ({**SERIES, "rows": 2000}, nexmark("bid", rows=2000)):
        first, repeated, other = (batch(spark, {**options, "seed": seed}) for seed in (1, 1, 2))
        assert first == repeated
        assert not set(first) & set(other)


@pytest.mark.parametrize("out_of_order_ms", [0, 2500])
def test_event_times_are_late_by_at_most_out_of_order(
    spark: SparkSession, out_of_order_ms: int
) -> None:
    # The start is before 1970, where rounding towards zero would be visible.
    start = {"start": "1969-12-31T23:59:59", "events_per_second": 300}
    options = {**SERIES, **start, "out_of_order_ms": out_of_order_ms}
    late_us = "(n * 1000000 div 300 - 1000000) - unix_micros(ts)"
    least, most = first_row(
        read_batch(spark, options).selectExpr(f"min({late_us})", f"max({late_us})")
    )
    tolerance_us = out_of_order_ms * 10
    assert 0 <= least <= tolerance_us
    assert out_of_order_ms * 1000 - tolerance_us <= most <= out_of_order_ms * 1000


def test_only_used_columns_are_computed(spark: SparkSession) -> None:
    auctions = read_batch(spark, nexmark("bid")).select("auction")
    plan = auctions._jdf.queryExecution().optimizedPlan().toString()
    assert "xxhash64" in plan
    assert not [word for word in ("EXP(", "channel", "timestamp_micros", "hex(") if word in plan]


def test_future_rows_are_dead_letters(spark: Any, data: Path) -> None:
    script = (
        "CREATE SOURCE g (auction BIGINT, date_time TIMESTAMP, WATERMARK FOR date_time AS date_time) "
        "WITH (connector = 'generator', kind = 'nexmark', table = 'bid', rows = 1000, "
        "start = '2999-01-01 00:00:00', max_future = '1 hour');"
        "CREATE STREAM q AS SELECT auction FROM g;"
    )
    with open_with(data, spark, script) as session:
        near = session.subscribe("q")
        session.start(until_end=True)
        session.wait()
        assert rows_of(near.take_all()) == []
        (status,) = session.status()
    assert (status.rows_in, status.rows_out, status.dead_letters) == (920, 0, 920)
    assert status.watermark is None
