"""A pipeline with sinks in a real PostgreSQL, killed at every step, without Spark.

Rows get random ids when they are computed: two sinks only agree if nothing is computed twice.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.real.postgres import Postgres
from tests.support.compiling import compile_text
from tests.support.pipelines import Killed, PipelineHarness, PythonPipeline, expected
from tidegate.catalog.objects import Sink, Source, Stream
from tidegate.catalog.settings import Settings
from tidegate.connectors.base import (
    EpochSizer,
    SinkContext,
    SourceContext,
    StreamSchema,
)
from tidegate.connectors.postgres.source import PostgresSource
from tidegate.connectors.registry import SINKS
from tidegate.runtime import pipeline as module
from tidegate.runtime.pipeline import EpochStep

ROWS = StreamSchema((("a", "BIGINT"), ("id", "STRING")))


class PostgresPipelineHarness(PipelineHarness):
    """A stream with two sinks in PostgreSQL and a memory sink."""

    def __init__(self, folder: Path, postgres: Postgres) -> None:
        super().__init__(folder, streams=0)
        self.postgres = postgres
        postgres.drop_staged()
        script = "CREATE SOURCE s (a BIGINT) WITH (connector = 'memory', inserts_per_epoch = 1);"
        script += "CREATE STREAM t0 AS SELECT a FROM s;"
        for name in ("one", "two"):
            postgres.run(f"DROP TABLE IF EXISTS {name}, tidegate_commits")
            script += (
                f"CREATE SINK {name} FROM t0 WITH ({postgres.options(name)}, create_table = true);"
            )
        script += "CREATE SINK kept0 FROM t0 WITH (connector = 'memory');"
        self.catalog = compile_text(script).catalog
        self.streams = [self.stream(stream, True) for stream in self.catalog.of_type(Stream)]

    def pipeline(self, **config: Any) -> PythonPipeline:
        context = super().pipeline(**config).context

        def opened(sink: Sink, stream: str, member: Any) -> Any:
            data = str(self.folder / sink.name)
            return SINKS[sink.connector](
                SinkContext(sink, data, stream, lambda *_: None, schema=ROWS)
            )

        return PythonPipeline(replace(context, open_sink=opened), "main")

    def rows(self, sink: str) -> list[tuple[int, str]]:
        if sink == "kept0":
            return super().rows(sink)
        return sorted(self.postgres.query(f"SELECT a, id FROM {sink}"))

    def check(self, *values: int) -> None:
        memory_rows = self.rows("kept0")
        assert [a for a, _ in memory_rows] == expected(*values)
        assert self.rows("one") == self.rows("two") == memory_rows
        # Staging tables of uncommitted epochs are dropped when the sink is opened again, unless the
        # stream crashed before its first manifest: then their owner is unknown.
        last = self.run()
        assert last.failure is None
        stream = last._manifest.streams["t0"].id
        assert [name for name in self.postgres.staged() if stream in name] == []


@pytest.fixture
def harness(tmp_path: Path, postgres: Postgres) -> PostgresPipelineHarness:
    return PostgresPipelineHarness(tmp_path, postgres)


@pytest.mark.parametrize("step", EpochStep)
def test_survives_a_kill_at_every_step_without_duplicates(
    harness: PostgresPipelineHarness, monkeypatch: pytest.MonkeyPatch, step: EpochStep
) -> None:
    values: list[int] = []
    for times in range(1, 4):
        values += [10 * times, 10 * times + 1]
        harness.insert(*values[-2:])
        remaining = [times]

        def reached(step_reached: EpochStep, remaining: list[int] = remaining) -> None:
            remaining[0] -= step_reached is step
            if step_reached is step and remaining[0] == 0:
                raise Killed

        monkeypatch.setattr(module, "on_step", reached)
        died = harness.run()
        monkeypatch.undo()
        assert died.failure is not None or times == 3, "the pipeline was not killed"
    assert harness.run().failure is None
    harness.check(*values)


def test_survives_a_server_crash_between_commit_and_publish(
    harness: PostgresPipelineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pipeline waits for the server and reports the reason; staged rows survive."""
    harness.insert(1, 2)
    errors: list[str] = []
    crashed = [False]
    plain = PythonPipeline._sleep

    def crash(here: EpochStep) -> None:
        if here is EpochStep.COMMITTED and not crashed[0]:
            crashed[0] = True
            harness.postgres.kill()

    def asleep(pipeline: PythonPipeline, seconds: float, skip_if_woken: bool) -> None:
        error = next(iter(pipeline.counters.values())).error
        if error is not None and not errors:
            errors.append(error)
            harness.postgres.start()
        plain(pipeline, min(seconds, 0.2), skip_if_woken)

    monkeypatch.setattr(module, "on_step", crash)
    monkeypatch.setattr(PythonPipeline, "_sleep", asleep)
    assert harness.run().failure is None
    assert len(errors) == 1 and errors[0].startswith("the sink one: the sink one")
    harness.check(1, 2)


class PostgresSourceHarness(PipelineHarness):
    """Two streams with memory sinks that read a table."""

    def __init__(self, folder: Path, postgres: Postgres) -> None:
        super().__init__(folder, streams=0)
        postgres.run("DROP TABLE IF EXISTS numbers; CREATE TABLE numbers (a bigint NOT NULL)")
        script = f"CREATE SOURCE s (a BIGINT) WITH ({postgres.options('numbers', increasing='a')});"
        for number in range(2):
            script += (
                f"CREATE STREAM t{number} AS SELECT a FROM s;"
                f"CREATE SINK kept{number} FROM t{number} WITH (connector = 'memory');"
            )
        self.catalog = compile_text(script).catalog
        self.streams = [self.stream(stream, True) for stream in self.catalog.of_type(Stream)]

    def pipeline(self, **config: Any) -> PythonPipeline:
        context = super().pipeline(**config).context
        settings = Settings.from_config(config)

        def open_source(source: Source, offsets: str, sizer: EpochSizer) -> PostgresSource:
            return PostgresSource(SourceContext(source, "", offsets, settings, sizer))

        return PythonPipeline(replace(context, open_source=open_source), "main")


def test_streams_at_different_offsets_do_not_block_each_other(
    tmp_path: Path, postgres: Postgres
) -> None:
    """One stream has unread rows while a new stream starts from the beginning."""
    harness = PostgresSourceHarness(tmp_path, postgres)
    both = harness.streams
    postgres.run("INSERT INTO numbers VALUES (1), (2)")
    harness.streams = both[:1]
    first = harness.run(until_end=False)
    assert first.wait(30)
    first.stop()
    postgres.run("INSERT INTO numbers VALUES (3)")
    harness.streams = both
    second = harness.run(until_end=False)
    try:
        assert second.wait(20), [status.error for status in second.status()]
    finally:
        second.stop()
    for sink in ("kept0", "kept1"):
        assert [a for a, _ in harness.rows(sink)] == [1, 2, 3]
