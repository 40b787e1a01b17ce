"""A pipeline that runs its jobs in Python instead of Spark; everything else is the real code."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Sequence
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
from tidegate.connectors.base import LookupContext, SinkContext, SourceContext
from tidegate.connectors.memory import connector as memory
from tidegate.connectors.memory.rows import InsertReader
from tidegate.connectors.registry import LOOKUPS, SINKS
from tidegate.runtime import pipeline as module
from tidegate.runtime.pipeline import EpochStep, Pipeline, PipelineContext
from tidegate.runtime.planning import PipelineStream
from tidegate.spark.tasks.protocol import EpochSpec
from tidegate.storage import local as disk
from tidegate.storage import open_store

SCHEMA = pa.schema([("a", pa.int64()), ("id", pa.string())])


class NoSpark:
    """The part of a SparkSession that the loop uses."""

    sparkContext = SimpleNamespace(  # noqa: N815
        defaultParallelism=2, setJobDescription=lambda text: None
    )

    def addTag(self, tag: str) -> None:  # noqa: N802
        pass

    def interruptTag(self, tag: str) -> None:  # noqa: N802
        pass


class _Frame(tuple[PipelineStream, ...]):
    """The streams of a job, in place of a Spark frame; valid for any epoch."""

    once = False


class PythonPipeline(Pipeline):
    """Copies rows from a source to sinks and adds a random id, so that recomputation is visible.

    Every operator writes one state file per epoch. `job` is called before each job.
    """

    job: Callable[[PythonPipeline, EpochSpec], None] = staticmethod(
        lambda pipeline, epoch_spec: None
    )

    def __init__(self, context: PipelineContext, name: str) -> None:
        super().__init__(context, name)
        self._frames.build = self._build  # type: ignore[method-assign]

    def _build(self, streams: Sequence[PipelineStream], job: Any) -> Any:
        return _Frame(streams)

    def _run_frame(self, frame: Any, epoch_spec: EpochSpec) -> list[bytes]:
        assert self.epoch_spec_store.read() == epoch_spec, "the spec is written before the job"
        self.job(self, epoch_spec)
        reports = (r for stream in frame for r in self._run_stream(stream, epoch_spec))
        return [json.dumps(report).encode() for report in reports]

    def _run_stream(
        self, stream: PipelineStream, epoch_spec: EpochSpec
    ) -> Iterator[dict[str, Any]]:
        for task, split in enumerate(epoch_spec.splits.get(f"{stream.key}/s", [])):
            if split:
                yield from self._run_task(stream, epoch_spec, task, split)
        for key, operator in self._manifest.operators.items():
            if operator.stream == stream.key:
                file = f"{epoch_spec.stamp}-{uuid.uuid4().hex[:8]}"
                self.context.store.child("state").put_new(file, b"state")
                handle, report = [file, 0, 5, 0], {"rows": 1}
                yield {
                    "operators": [key],
                    "key_group": 0,
                    "handle": handle,
                    "files": [],
                    "size": 5,
                    "report": report,
                }

    def _run_task(
        self, stream: PipelineStream, epoch_spec: EpochSpec, task: int, split: Sequence[str]
    ) -> Iterator[dict[str, Any]]:
        source = cast(memory.MemorySource, self.sources["s"])
        reader = InsertReader(source.inserts.store.uri, pa.schema([("a", pa.int64())]), False)
        writers = {
            name: sink.writer_factory(SCHEMA).open(epoch_spec.stamp, task)
            for name, (owner, _, sink) in self.sinks.items()
            if owner.key == stream.key
        }
        for batch, count in (item for name in split for item in reader.read(name)):
            yield {"streams": [stream.name], "rows": count, "out": count}
            ids = [uuid.uuid4().hex for _ in range(count)]
            rows = pa.table([batch.column(0), pa.array(ids)], schema=SCHEMA)
            for writer in writers.values():
                writer.add(rows)
        for name, writer in writers.items():
            yield {"sink": name, "committables": writer.finish()}


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
            cast(Any, NoSpark()),
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
            2,
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
