"""A pipeline with Delta sinks, killed at every step, without Spark.

Rows get random ids when they are computed: two sinks only agree if nothing is computed twice.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.compiling import compile_text
from tests.support.delta import table_rows
from tests.support.pipelines import Killed, PipelineHarness, PythonPipeline, expected
from tidegate.catalog.objects import Sink, Stream
from tidegate.connectors.base import SinkContext, StreamSchema
from tidegate.connectors.delta import table_sink as delta_sink
from tidegate.connectors.delta.table_sink import DeltaSink
from tidegate.connectors.registry import SINKS
from tidegate.runtime import pipeline as module
from tidegate.runtime.pipeline import EpochStep
from tidegate.types import ChangelogKind

COLUMNS = (("a", "BIGINT"), ("id", "STRING"))
ROWS = {
    "one": StreamSchema(COLUMNS),
    "two": StreamSchema(COLUMNS, ChangelogKind.UPSERT, ("a",)),
    "kept0": StreamSchema(COLUMNS),
}


class DeltaPipelineHarness(PipelineHarness):
    """A stream that appends to a table, one that updates a table by key, and a memory sink."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, streams=0)
        script = "CREATE SOURCE s (a BIGINT) WITH (connector = 'memory', inserts_per_epoch = 1);"
        script += "CREATE STREAM t0 AS SELECT a FROM s;"
        for name in ("one", "two"):
            script += (
                f"CREATE SINK {name} FROM t0 WITH (connector = 'delta', "
                f"path = '{self.files(name)}', create_table = true);"
            )
        script += "CREATE SINK kept0 FROM t0 WITH (connector = 'memory');"
        self.catalog = compile_text(script).catalog
        self.streams = [self.stream(stream, True) for stream in self.catalog.of_type(Stream)]

    def pipeline(self, **config: Any) -> PythonPipeline:
        context = super().pipeline(**config).context

        def opened(sink: Sink, stream: str, member: Any) -> Any:
            data = str(self.folder / sink.name)
            return SINKS[sink.connector](
                SinkContext(sink, data, stream, lambda *_: None, schema=ROWS[sink.name])
            )

        return PythonPipeline(replace(context, open_sink=opened), "main")

    def rows(self, sink: str) -> list[tuple[int, str]]:
        return super().rows(sink) if sink == "kept0" else sorted(table_rows(self.files(sink)))

    def check(self, *values: int) -> None:
        memory_rows = self.rows("kept0")
        assert [a for a, _ in memory_rows] == expected(*values)
        assert self.rows("one") == self.rows("two") == memory_rows
        assert self.run().failure is None
        staged = [p for name in ("one", "two") for p in self.files(name).rglob("staging/*.parquet")]
        # Staged files of uncommitted epochs are deleted when the sink is opened again, unless the
        # stream crashed before its first manifest: then their owner is unknown.
        stream = self.run()._manifest.streams["t0"].id
        assert [p for p in staged if stream in str(p)] == []


def kill_at(step: EpochStep | str, patch: pytest.MonkeyPatch, times: int) -> None:
    """Crash when a step is reached for the Nth time, or in the middle of publishing."""
    remaining = [times]

    def reached(current: object) -> None:
        remaining[0] -= current == step
        if current == step and remaining[0] == 0:
            raise Killed

    patch.setattr(module, "on_step", reached)
    add_action, durable = DeltaSink._add_action, DeltaSink._make_durable
    merge = delta_sink.merge_changes

    def add_then_crash(self: DeltaSink, *arguments: Any) -> Any:
        action = add_action(self, *arguments)
        reached("files moved")
        return action

    def crash_before_merge(*arguments: Any) -> None:
        reached("before the merge")
        merge(*arguments)

    def crash_after_log(self: DeltaSink, before: int) -> None:
        reached("logged")
        durable(self, before)

    patch.setattr(DeltaSink, "_add_action", add_then_crash)
    patch.setattr(DeltaSink, "_make_durable", crash_after_log)
    patch.setattr(delta_sink, "merge_changes", crash_before_merge)


@pytest.mark.parametrize("step", [*EpochStep, "files moved", "before the merge", "logged"])
def test_survives_a_kill_at_every_step_without_duplicates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: EpochStep | str
) -> None:
    harness = DeltaPipelineHarness(tmp_path)
    values: list[int] = []
    for times in (1, 2):
        values += [10 * times, 10 * times + 1]
        harness.insert(*values[-2:])
        with monkeypatch.context() as patch:
            kill_at(step, patch, times)
            assert harness.run().failure is not None, "the pipeline was not killed"
    assert harness.run().failure is None
    harness.check(*values)
