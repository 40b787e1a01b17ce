"""Pipelines without Spark: the real loop, sources, operators and sinks with a `LocalExecutor`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.compiling import compile_text, plan_of, typed
from tests.support.pipelines import Killed, kill_at
from tidegate.catalog.catalog import Catalog
from tidegate.catalog.objects import SideStream, Sink, Stream
from tidegate.catalog.settings import Settings
from tidegate.connectors.base import LookupContext, SinkContext, SourceContext
from tidegate.connectors.memory import connector as memory
from tidegate.connectors.registry import LOOKUPS, SINKS, SOURCES
from tidegate.errors import TidegateError
from tidegate.observe.status import State
from tidegate.physical.planner import typed_side_stream
from tidegate.plan.rewrite.optimizer import optimize
from tidegate.runtime.executor import LocalExecutor
from tidegate.runtime.pipeline import EpochStep, Pipeline, PipelineContext
from tidegate.runtime.planning import StreamPlanner
from tidegate.storage import open_store

START = datetime(2026, 1, 1, tzinfo=UTC)
SECOND = "INTERVAL '1' SECOND"
SOURCES_SQL = """
CREATE SOURCE clicks (id BIGINT NOT NULL, page STRING, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND) WITH (connector = 'memory', inserts_per_epoch = 1);
CREATE SOURCE orders (id BIGINT, click BIGINT, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND)
    WITH (connector = 'files', path = '{path}/orders', format = 'parquet', files_per_epoch = 1);
"""
COUNTS = """SELECT window_start, window_end, page, count(*) AS n, max(id) AS last FROM clicks
    GROUP BY page, TUMBLE(ts, INTERVAL '10' SECOND)"""
QUERIES = {
    "plain": "SELECT id, page FROM clicks WHERE id % 3 = 0",
    "counts": COUNTS,
    "top": f"""SELECT window_start, page, n FROM ({COUNTS})
        QUALIFY row_number() OVER (PARTITION BY window_start, window_end ORDER BY n DESC, page) <= 2""",
    "pairs": """SELECT c.id, o.id AS other, c.page FROM clicks AS c JOIN orders AS o
        ON c.id = o.click AND o.ts BETWEEN c.ts AND c.ts + INTERVAL '4' SECOND""",
    # An operator of level 2 reads a source and an operator of level 1.
    "shares": """SELECT c.id, w.n FROM clicks AS c JOIN (
            SELECT page, window_time, count(*) AS n FROM clicks
            GROUP BY page, TUMBLE(ts, INTERVAL '10' SECOND)) AS w
        ON c.page = w.page AND c.ts BETWEEN w.window_time - INTERVAL '10' SECOND AND w.window_time""",
}
STREAMS_SQL = "".join(
    f"""CREATE STREAM {name} AS {query};
    CREATE SINK {name}_files FROM {name} WITH (connector = 'files', path = '{{path}}/{name}');
    CREATE SINK {name}_kept FROM {name} WITH (connector = 'memory');"""
    for name, query in QUERIES.items()
)
BUCKET = "time_bucket(INTERVAL '10' SECOND, ts)"
BATCH_COUNTS = f"""SELECT {BUCKET} AS window_start, {BUCKET} + INTERVAL '10' SECOND AS window_end,
    page, count(*) AS n, max(id) AS last FROM clicks GROUP BY ALL"""
BATCH = {
    "plain": QUERIES["plain"],
    "counts": BATCH_COUNTS,
    "top": f"""SELECT window_start, page, n FROM ({BATCH_COUNTS})
        QUALIFY row_number() OVER (PARTITION BY window_start ORDER BY n DESC, page) <= 2""",
    "pairs": QUERIES["pairs"],
    "shares": f"""SELECT id, n FROM (SELECT id, page, {BUCKET} AS window_start FROM clicks)
        JOIN ({BATCH_COUNTS}) USING (page, window_start)""",
}
CLICKS = pa.schema([("id", pa.int64()), ("page", pa.string()), ("ts", pa.timestamp("us", "UTC"))])
ORDERS = pa.schema([("id", pa.int64()), ("click", pa.int64()), ("ts", pa.timestamp("us", "UTC"))])


def clicks(first: int, count: int) -> pa.Table:
    """Return a click per second; neighbours are out of order."""
    rows = [
        {"id": i, "page": "abcd"[i * i % 7 % 4], "ts": START + timedelta(seconds=i ^ 1)}
        for i in range(first, first + count)
    ]
    return pa.Table.from_pylist(rows, CLICKS)


def orders(first: int, count: int) -> pa.Table:
    """Return an order for every second click, up to six seconds after it."""
    rows = [
        {"id": 1000 + i, "click": i, "ts": START + timedelta(seconds=(i ^ 1) + i % 7)}
        for i in range(first, first + count, 2)
    ]
    return pa.Table.from_pylist(rows, ORDERS)


@dataclass
class LocalPipelines:
    """A data directory, and the pipelines that run a script in it one after the other."""

    folder: Path
    script: str
    executor: LocalExecutor

    def pipeline(self) -> tuple[Pipeline, list[Any]]:
        """Return a new pipeline and its streams; their types are the declared ones."""
        compiled = compile_text(self.script.format(path=self.folder))
        assert not compiled.errors, [error.render() for error in compiled.errors]
        catalog, settings = compiled.catalog, Settings.from_config({})
        for stream in catalog.of_type(Stream):
            plan = typed(optimize(plan_of(compiled, stream.name)))
            catalog.replace(replace(stream, typed_plan=plan))
            for side in _side_streams(catalog, stream):
                catalog.replace(typed_side_stream(side, plan.plan))
        planner = StreamPlanner(None, catalog, settings)  # type: ignore[arg-type]
        streams = []
        for stream in catalog.of_type(Stream):
            names = {stream.name, *(side.name for side in _side_streams(catalog, stream))}
            sinks = [sink for sink in catalog.of_type(Sink) if sink.stream in names]
            streams.append(planner.plan_stream(stream, sinks))
        context = PipelineContext(
            lambda epoch_specs, connectors: self.executor,
            settings,
            open_store(str(self.folder / "pipeline")),
            str(self.folder / "epoch_specs"),
            lambda source, offsets, sizer: SOURCES[source.connector](
                SourceContext(source, self.rows_uri(source.name), offsets, settings, sizer)
            ),
            lambda sink, stream_id, stream: SINKS[sink.connector](
                SinkContext(
                    sink,
                    str(self.folder / "data" / sink.name),
                    stream_id,
                    lambda *_: None,
                    stream.sink_columns(sink),
                    stream.sink_schema(sink),
                )
            ),
            lambda table, scratch: LOOKUPS[table.connector](
                LookupContext(table, self.rows_uri(table.name), scratch)
            ),
            planner.source_of,
            4,
        )
        return Pipeline(context, "main"), streams

    def rows_uri(self, name: str) -> str:
        return str(self.folder / "rows" / name)

    def insert(self, *tables: pa.Table) -> None:
        """Insert clicks; each table is an epoch."""
        for table in tables:
            memory.open_inserts(self.rows_uri("clicks")).append(table)

    def write(self, *tables: pa.Table) -> None:
        """Write files of orders; each file is an epoch."""
        folder = self.folder / "orders"
        folder.mkdir(exist_ok=True)
        for table in tables:
            pq.write_table(table, folder / f"{len(list(folder.iterdir())):03}.parquet")

    def run(self, until_end: bool = False) -> Pipeline:
        """Run a new pipeline over all available rows, or to the end of the input."""
        pipeline, streams = self.pipeline()
        try:
            pipeline.start(streams, until_end, available_now=not until_end)
            assert pipeline._thread is not None
            pipeline._thread.join(120)
            assert not pipeline._thread.is_alive()
        finally:
            pipeline.stop()
        return pipeline

    def written(self, stream: str) -> list[Counter[tuple[Any, ...]]]:
        """Return the rows of a stream, from the sink with files and from the memory sink."""
        paths = sorted((self.folder / stream).glob("*.parquet"))
        store = open_store(str(self.folder / "data" / f"{stream}_kept"))
        epochs = [memory.read_epoch(store, epoch) for epoch in memory.stored_epochs(store)]
        return [rows_of([pq.read_table(path) for path in paths]), rows_of(epochs)]


def _side_streams(catalog: Catalog, stream: Stream) -> list[SideStream]:
    return [side for side in catalog.of_type(SideStream) if side.parent == stream.name]


def rows_of(tables: Sequence[pa.Table]) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row.values()) for table in tables for row in table.to_pylist())


def batch(clicks: pa.Table, orders: pa.Table) -> dict[str, Counter[tuple[Any, ...]]]:
    """Compute all queries over the whole input in DuckDB."""
    with duckdb.connect() as connection:
        connection.sql("SET TimeZone = 'UTC'")
        connection.register("clicks", clicks)
        connection.register("orders", orders)
        return {
            name: rows_of([connection.sql(query).to_arrow_table()]) for name, query in BATCH.items()
        }


def assert_equals_batch(pipelines: LocalPipelines, clicks: pa.Table, orders: pa.Table) -> None:
    for name, expected in batch(clicks, orders).items():
        assert expected, "the query has rows"
        assert pipelines.written(name) == [expected, expected], name


@pytest.fixture(params=["one task", "three tasks", "large epochs"])
def pipelines(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> LocalPipelines:
    if request.param != "one task":
        # No epoch is small enough for one task.
        monkeypatch.setattr("tidegate.runtime.epoch._SMALL_BYTES", -1)
    if request.param == "large epochs":
        monkeypatch.setattr("tidegate.runtime.epoch._LARGE_BYTES", -1)
    executor = LocalExecutor(1 if request.param == "one task" else 3)
    return LocalPipelines(tmp_path, SOURCES_SQL + STREAMS_SQL, executor)


def test_streams_with_a_restart_equal_batch(pipelines: LocalPipelines) -> None:
    pipelines.insert(*(clicks(first, 20) for first in range(0, 60, 20)))
    pipelines.write(*(orders(first, 30) for first in range(0, 60, 30)))
    pipeline = pipelines.run()
    assert {item.state for item in pipeline.status()} == {State.FINISHED}
    for name, expected in batch(clicks(0, 60), orders(0, 60)).items():
        for emitted in pipelines.written(name):
            assert emitted <= expected, name
            assert emitted.total() > expected.total() / 2, f"{name} emits before the end"
    pipelines.insert(*(clicks(first, 20) for first in range(60, 120, 20)))
    pipelines.write(*(orders(first, 30) for first in range(60, 120, 30)))
    pipeline = pipelines.run(until_end=True)
    assert_equals_batch(pipelines, clicks(0, 120), orders(0, 120))
    status = {item.name: (item.rows_in, item.late_rows) for item in pipeline.status()}
    # A stream that reads a source twice counts its rows twice.
    twice = {"pairs": (90, 0), "shares": (120, 0)}
    assert status == {"plain": (60, 0), "counts": (60, 0), "top": (60, 0)} | twice


@pytest.mark.parametrize("step", list(EpochStep))
def test_streams_equal_batch_if_the_process_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: EpochStep
) -> None:
    pipelines = LocalPipelines(tmp_path, SOURCES_SQL + STREAMS_SQL, LocalExecutor())
    pipelines.insert(*(clicks(first, 20) for first in range(0, 120, 20)))
    pipelines.write(*(orders(first, 30) for first in range(0, 120, 30)))
    with monkeypatch.context() as patch:
        kill_at(patch, step, times=3)
        killed = pipelines.run(until_end=True)
    assert isinstance(killed.failure, TidegateError)
    assert killed.failure.__cause__ is None or isinstance(killed.failure.__cause__, Killed)
    assert pipelines.run(until_end=True).failure is None
    assert_equals_batch(pipelines, clicks(0, 120), orders(0, 120))


def test_streams_with_equal_operators_run_them_once(tmp_path: Path) -> None:
    script = f"""{SOURCES_SQL} CREATE STREAM counts AS {COUNTS};
        CREATE STREAM large AS SELECT * FROM counts WHERE n > 2;
        CREATE SINK counts_kept FROM counts WITH (connector = 'memory');
        CREATE SINK large_kept FROM large WITH (connector = 'memory');"""
    pipelines = LocalPipelines(tmp_path, script, LocalExecutor())
    pipelines.insert(clicks(0, 20), clicks(20, 20))
    manifest = pipelines.run()._manifest
    one, other = manifest.operators.values()
    assert one.state_handles == other.state_handles
    pipelines.insert(clicks(40, 20))
    pipelines.run(until_end=True)
    expected = batch(clicks(0, 60), orders(0, 1))["counts"]
    assert pipelines.written("counts")[1] == expected
    large = Counter({row: count for row, count in expected.items() if row[3] > 2})
    assert large and pipelines.written("large")[1] == large


def test_late_rows_go_to_their_sink(tmp_path: Path) -> None:
    query = COUNTS + " EMIT ON WINDOW CLOSE LATE DATA TO late_clicks"
    script = f"""{SOURCES_SQL} CREATE STREAM counts AS {query};
        CREATE SINK counts_kept FROM counts WITH (connector = 'memory');
        CREATE SINK late FROM late_clicks WITH (connector = 'files', path = '{{path}}/late');"""
    pipelines = LocalPipelines(tmp_path, script, LocalExecutor())
    pipelines.insert(clicks(0, 40), clicks(0, 3), clicks(40, 20))
    pipeline = pipelines.run(until_end=True)
    (status,) = pipeline.status()
    assert (status.rows_in, status.late_rows) == (63, 3)
    tables = [pq.read_table(path) for path in sorted((tmp_path / "late").glob("*.parquet"))]
    assert sorted(row["id"] for table in tables for row in table.to_pylist()) == [0, 1, 2]
    assert pipelines.written("counts")[1] == batch(clicks(0, 60), orders(0, 1))["counts"]


def test_stream_that_needs_spark_is_rejected(tmp_path: Path) -> None:
    script = f"""{SOURCES_SQL} CREATE STREAM shouted AS SELECT id, upper(page) AS page FROM clicks;
        CREATE SINK shouted_kept FROM shouted WITH (connector = 'memory');"""
    pipelines = LocalPipelines(tmp_path, script, LocalExecutor())
    pipelines.insert(clicks(0, 20))
    pipeline, streams = pipelines.pipeline()
    pipeline.start(streams, until_end=True)
    with pytest.raises(
        TidegateError, match="need Spark SQL, which the local executor does not have"
    ):
        pipeline.wait(60)
    pipeline.stop()
    assert {item.state for item in pipeline.status()} == {State.FAILED}
    assert pipelines.written("shouted")[1] == Counter()


def test_lookup_tables_are_rejected(tmp_path: Path) -> None:
    script = f"""{SOURCES_SQL}
        CREATE LOOKUP TABLE pages (page STRING, title STRING, PRIMARY KEY (page))
            WITH (connector = 'memory');
        CREATE STREAM titles AS SELECT c.id, p.title FROM clicks AS c JOIN pages AS p
            ON c.page = p.page;
        CREATE SINK titles_kept FROM titles WITH (connector = 'memory');"""
    pipelines = LocalPipelines(tmp_path, script, LocalExecutor())
    pipelines.insert(clicks(0, 20))
    pipeline, streams = pipelines.pipeline()
    pipeline.start(streams, until_end=True)
    with pytest.raises(
        TidegateError, match="the local executor cannot read the lookup tables pages"
    ):
        pipeline.wait(60)
    pipeline.stop()
