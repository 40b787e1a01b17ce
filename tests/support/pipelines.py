"""A pipeline that runs its jobs in Python instead of Spark; everything else is the real code."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from tests.support.compiling import compile_text
from tidegate.catalog.connector import ColumnTypes
from tidegate.catalog.objects import Sink, Source, Stream
from tidegate.catalog.settings import Settings
from tidegate.checkpoint.manifest import Manifest, OperatorState, SourceIdentity
from tidegate.checkpoint.manifests import Manifests
from tidegate.connectors.base import (
    LookupConnector,
    LookupContext,
    ScanRequest,
    SinkContext,
    SourceContext,
)
from tidegate.connectors.memory import connector as memory
from tidegate.connectors.registry import LOOKUPS, SINKS
from tidegate.physical.job_graph import JobGraph
from tidegate.physical.planner import PhysicalPlan
from tidegate.runtime import pipeline as module
from tidegate.runtime.executor import BuildQuery
from tidegate.runtime.graphs import EpochJob
from tidegate.runtime.pipeline import EpochStep, Pipeline, PipelineContext
from tidegate.runtime.planning import PipelineStream
from tidegate.spark.diagnostics import FailingRow
from tidegate.spark.errors import JobFailed
from tidegate.spark.sql_stages import Connectors
from tidegate.spark.tasks.protocol import EpochSpec, EpochSpecStore
from tidegate.storage import Store, open_store
from tidegate.storage import local as disk

KEY_GROUPS = 2
SCHEMA = pa.schema([("a", pa.int64()), ("id", pa.string())])


@dataclass(frozen=True)
class PythonGraph:
    """The streams of a job, in place of a job graph; valid for any epoch with these inputs."""

    streams: tuple[PipelineStream, ...]
    tasks: int
    # The first input with the same range, by stream.
    leaders: Mapping[str, str]
    is_single_use: bool = False

    def splits_of(self, stream: PipelineStream, epoch_spec: EpochSpec) -> list[list[str]]:
        """Return the splits that a stream reads, by task."""
        leader = self.leaders.get(stream.key, stream.key)
        return epoch_spec.splits.get(f"{leader}/s", [])


def build_python_graph(
    streams: Sequence[PipelineStream], job: EpochJob, work: object = None
) -> PythonGraph:
    groups = job.epoch.shared_inputs
    leaders = {stream: group[0][0] for group in groups for stream, _ in group}
    return PythonGraph(tuple(streams), job.tasks, leaders)


@dataclass
class PythonExecutor:
    """Copies rows from a source to sinks and adds a random id, so that recomputation is visible.

    Every operator writes one state file per epoch.
    """

    epoch_specs: EpochSpecStore
    connectors: Connectors
    store: Store
    # Called before each job; set by the pipeline.
    before_job: Callable[[EpochSpec], None] = lambda epoch_spec: None

    @property
    def tasks(self) -> int:
        return 2

    def attach(self) -> None:
        pass

    def cancel(self) -> None:
        pass

    def forget(self) -> None:
        pass

    def lookup_versions(self, lookups: Mapping[str, LookupConnector]) -> dict[str, Any]:
        return {}

    def failing_row(
        self, plan: PhysicalPlan, failed: JobFailed, epoch_spec: EpochSpec, build: BuildQuery
    ) -> FailingRow | None:
        return None

    def run(self, graph: JobGraph, epoch_spec: EpochSpec) -> list[bytes]:
        assert self.epoch_specs.read() == epoch_spec, "the spec is written before the job"
        self.before_job(epoch_spec)
        python_graph = cast(PythonGraph, graph)
        reports = (
            report
            for stream in python_graph.streams
            for report in self._run_stream(python_graph, stream, epoch_spec)
        )
        return [json.dumps(report).encode() for report in reports]

    def _run_stream(
        self, graph: PythonGraph, stream: PipelineStream, epoch_spec: EpochSpec
    ) -> Iterator[dict[str, Any]]:
        for task, split in enumerate(graph.splits_of(stream, epoch_spec)):
            if split:
                yield from self._run_task(stream, epoch_spec, task, split)
        for key, _ in stream.operators().values():
            file = f"{epoch_spec.stamp}-{uuid.uuid4().hex[:8]}"
            self.store.child("state").put_new(file, b"state")
            for key_group in range(KEY_GROUPS):
                yield {
                    "operators": [key],
                    "key_group": key_group,
                    "handle": [file, 0, 5, 0],
                    "files": [],
                    "size": 5,
                    "report": {"rows": 1},
                }

    def _run_task(
        self, stream: PipelineStream, epoch_spec: EpochSpec, task: int, split: Sequence[str]
    ) -> Iterator[dict[str, Any]]:
        reader = self.connectors.source("s").create_reader(ScanRequest((("a", "BIGINT"),)))
        assert reader is not None, "tasks read the source"
        sinks = {sink.name: self.connectors.sink(sink.name) for sink in stream.sinks}
        writers = {
            name: sink.writer_factory(SCHEMA).open(epoch_spec.stamp, task)
            for name, sink in sinks.items()
        }
        for batch, count in (item for part in split for item in reader.read(part)):
            yield {"streams": [stream.name], "rows": count, "out": count}
            ids = [uuid.uuid4().hex for _ in range(count)]
            rows = pa.table([batch.column(0), pa.array(ids)], schema=SCHEMA)
            for writer in writers.values():
                writer.add(rows)
        for name, writer in writers.items():
            yield {"sink": name, "committables": writer.finish()}


class PythonPipeline(Pipeline):
    """The real loop with a `PythonExecutor`. `job` is called before each job."""

    job: Callable[[PythonPipeline, EpochSpec], None] = staticmethod(
        lambda pipeline, epoch_spec: None
    )

    def __init__(self, context: PipelineContext, name: str) -> None:
        super().__init__(context, name)
        self._graphs.build = build_python_graph  # type: ignore[method-assign,assignment]
        assert isinstance(self.executor, PythonExecutor)
        self.executor.before_job = lambda epoch_spec: self.job(self, epoch_spec)


# The pipelines of the current test.
_started: list[PythonPipeline] = []


def stop_pipelines() -> None:
    """Stop the pipelines of a test: a thread that still runs would be killed instead of the next."""
    while _started:
        _started.pop().stop()


class PipelineHarness:
    """A data directory with a memory source and streams that read it, each with three sinks."""

    def __init__(self, folder: Path, streams: int = 2, operators: bool = True) -> None:
        self.folder = folder
        self.store = open_store(str(folder / "pipeline"))
        script = "CREATE SOURCE s (a BIGINT) WITH (connector = 'memory', inserts_per_epoch = 1);"
        for number in range(streams):
            script += (
                f"CREATE STREAM t{number} AS SELECT a FROM s;"
                f"CREATE SINK one{number} FROM t{number} WITH (connector = 'files', "
                f"path = '{self.files(f'one{number}')}');"
                f"CREATE SINK two{number} FROM t{number} WITH (connector = 'files', "
                f"path = '{self.files(f'two{number}')}', compact_after = 2);"
                f"CREATE SINK kept{number} FROM t{number} WITH (connector = 'memory');"
            )
        self.catalog = compile_text(script).catalog
        self.streams = [self.stream(stream, operators) for stream in self.catalog.of_type(Stream)]

    def files(self, sink: str) -> Path:
        return self.folder / "out" / sink

    def stream(self, stream: Stream, operators: bool, on_change: str = "reject") -> PipelineStream:
        sinks = tuple(s for s in self.catalog.of_type(Sink) if s.stream == stream.name)
        scan = SimpleNamespace(index=0, delay_us=0, node=None, late_rows_of=None)
        key = stream.name.lower()
        states = {0: (f"{key}.1", OperatorState(key, "w", "1"))} if operators else {}
        plan = SimpleNamespace(
            lookups=(), scans=(scan,), operators=tuple(states), filters_failed_rows=True
        )
        return cast(
            PipelineStream,
            _FixedStream(
                stream.name,
                cast(Any, None),
                cast(Any, plan),
                {"s": SourceIdentity("memory", {})},
                sinks,
                None,
                on_change,
                states,
            ),
        )

    def insert(self, *values: int) -> None:
        """Insert two rows per value; each value is a separate epoch."""
        for value in values:
            self.inserts.append(pa.table({"a": pa.array([value, -value], pa.int64())}))

    @property
    def inserts(self) -> memory.Inserts:
        return memory.open_inserts(str(self.folder / "rows"))

    def pipeline(self, **config: Any) -> PythonPipeline:
        settings = Settings.from_config(config)
        source = self.catalog.get("s")
        assert isinstance(source, Source)
        data = str(self.folder / "rows")
        context = PipelineContext(
            lambda epoch_specs, connectors: PythonExecutor(epoch_specs, connectors, self.store),
            settings,
            self.store,
            str(self.folder / "epoch_specs"),
            lambda source, offsets, sizer: memory.MemorySource(
                SourceContext(source, data, offsets, settings, sizer)
            ),
            lambda sink, stream_id, stream: SINKS[sink.connector](
                SinkContext(
                    sink,
                    str(self.folder / sink.name),
                    stream_id,
                    lambda *_: None,
                    stream.sink_columns(sink),
                    restorable=self.manifests,
                )
            ),
            lambda table, scratch: LOOKUPS[table.connector](
                LookupContext(table, str(self.folder / table.name), scratch)
            ),
            lambda scan: source,
            KEY_GROUPS,
        )
        _started.append(PythonPipeline(context, "main"))
        return _started[-1]

    def manifests(self) -> list[Manifest]:
        """Load the manifests that can be restored."""
        return Manifests(self.store).load_all()

    def run(self, until_end: bool = True, **config: Any) -> PythonPipeline:
        """Run a new pipeline until its end, or until it fails."""
        pipeline = self.pipeline(**config)
        pipeline.start(self.streams, until_end)
        if until_end and pipeline._thread is not None:
            pipeline._thread.join(60)
            assert not pipeline._thread.is_alive()
        return pipeline

    def rows(self, sink: str) -> list[tuple[int, str]]:
        """Return the rows of a sink with their random ids."""
        import pyarrow.parquet as pq

        if sink.startswith("kept"):
            store = open_store(str(self.folder / sink))
            tables = [memory.read_epoch(store, e) for e in memory.stored_epochs(store)]
        else:
            paths = sorted(self.files(sink).glob("*.parquet"))
            tables = [pq.read_table(path) for path in paths]
        return sorted(tuple(row.values()) for table in tables for row in table.to_pylist())

    def sinks(self) -> list[str]:
        return [sink.name for sink in self.catalog.of_type(Sink)]

    def state_files(self) -> set[str]:
        return {item.name for item in self.store.child("state").list()}

    def epochs(self) -> list[int]:
        names = sorted((self.folder / "pipeline" / "manifests").glob("*.json"))
        return [int(name.stem.split("-")[1]) for name in names]


class _FixedStream(PipelineStream):
    """A stream with fixed operators and columns."""

    def __init__(self, *args: Any) -> None:
        *arguments, states = args
        super().__init__(*arguments)
        object.__setattr__(self, "states", states)

    def sink_columns(self, sink: Sink) -> ColumnTypes:
        return (("a", "BIGINT"), ("id", "STRING"))

    def operators(self) -> dict[int, tuple[str, OperatorState]]:
        return dict(self.states)  # type: ignore[attr-defined]


class Killed(BaseException):
    """The process was killed. No code catches this."""


def expected(*values: int) -> list[int]:
    return sorted(number for value in values for number in (value, -value))


def assert_exactly_once(harness: PipelineHarness, *values: int) -> None:
    """Check that every sink has every row once, with the same ids in all sinks of a stream."""
    for sink in harness.sinks():
        assert [a for a, _ in harness.rows(sink)] == expected(*values), sink
    for number in range(len(harness.streams)):
        first, second, memory_rows = (
            harness.rows(f"{name}{number}") for name in ("one", "two", "kept")
        )
        assert first == second == memory_rows, "rows were computed again"


def kill_at(monkeypatch: pytest.MonkeyPatch, step: EpochStep, times: int) -> None:
    """Kill the process when a step is reached for the given time."""
    remaining = [times]

    def reached(current: EpochStep) -> None:
        if current is step:
            remaining[0] -= 1
            if remaining[0] == 0:
                raise Killed

    monkeypatch.setattr(module, "on_step", reached)


class NoSyncDisk(disk.Disk):
    """Does not sync: these tests kill the process, not the machine."""

    def sync(self, handle: int) -> None:
        pass

    def sync_folder(self, path: str) -> None:
        Path(path).stat()
