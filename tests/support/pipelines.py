"""A pipeline whose jobs are done in Python: everything but Spark is the real thing."""

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
from tidegate.catalog.connector import Columns
from tidegate.catalog.objects import Sink, Source, Stream
from tidegate.catalog.settings import Settings
from tidegate.checkpoint.manifest import Manifest, OperatorState, SourceState
from tidegate.checkpoint.manifests import Manifests
from tidegate.connectors.base import LookupContext, SinkContext, SourceContext
from tidegate.connectors.memory import connector as memory
from tidegate.connectors.memory.rows import InsertReader
from tidegate.connectors.registry import LOOKUPS, SINKS
from tidegate.runtime import pipeline as module
from tidegate.runtime.pipeline import EpochStep, Pipeline, PipelineContext
from tidegate.runtime.reconciliation import PipelineStream
from tidegate.spark.tasks.protocol import EpochSpec
from tidegate.storage import local as disk
from tidegate.storage import open_store

SCHEMA = pa.schema([("a", pa.int64()), ("id", pa.string())])


class NoSpark:
    """As much of a SparkSession as the loop asks for."""

    sparkContext = SimpleNamespace(  # noqa: N815
        defaultParallelism=2, setJobDescription=lambda text: None
    )

    def addTag(self, tag: str) -> None:  # noqa: N802
        pass

    def interruptTag(self, tag: str) -> None:  # noqa: N802
        pass


class _Frame(tuple[PipelineStream, ...]):
    """Members instead of a frame; it serves for any epoch."""

    once = False


class PythonPipeline(Pipeline):
    """Its jobs copy rows from a source to sinks, each with a random id: computing them again would
    give other ones. Every operator writes one state file per epoch."""

    job: Callable[[PythonPipeline, EpochSpec], None] = staticmethod(lambda pipeline, epoch_spec: None)

    def _build(self, members: Sequence[PipelineStream], *rest: Any) -> Any:
        return _Frame(members)

    def _job(self, frame: Any, epoch_spec: EpochSpec) -> list[bytes]:
        assert self.place.read() == epoch_spec, "it is written before the job"
        self.job(self, epoch_spec)
        return [json.dumps(n).encode() for m in frame for n in self._run_member(m, epoch_spec)]

    def _run_member(
        self, member: PipelineStream, epoch_spec: EpochSpec
    ) -> Iterator[dict[str, Any]]:
        for task, split in enumerate(epoch_spec.splits.get(f"{member.key}/s", [])):
            if split:
                yield from self._run_task(member, epoch_spec, task, split)
        for key, operator in self._manifest.operators.items():
            if operator.stream == member.key:
                file = f"{epoch_spec.stamp}-{uuid.uuid4().hex[:8]}"
                self.context.store.child("state").put_new(file, b"state")
                handle, report = [file, 0, 5, 0], {"rows": 1}
                found = {
                    "operators": [key],
                    "key_group": 0,
                    "handle": handle,
                    "files": [],
                    "size": 5,
                }
                yield {**found, "report": report}

    def _run_task(
        self, member: PipelineStream, epoch_spec: EpochSpec, task: int, split: Sequence[str]
    ) -> Iterator[dict[str, Any]]:
        source = cast(memory.MemorySource, self.sources["s"])
        reader = InsertReader(source.inserts.store.uri, pa.schema([("a", pa.int64())]), False)
        writer_factories = {
            name: sink.writer_factory(SCHEMA).open(epoch_spec.stamp, task)
            for name, (owner, _, sink) in self.sinks.items()
            if owner.key == member.key
        }
        for batch, count in (item for name in split for item in reader.read(name)):
            yield {"streams": [member.name], "rows": count, "out": count}
            ids = [uuid.uuid4().hex for _ in range(count)]
            rows = pa.table([batch.column(0), pa.array(ids)], schema=SCHEMA)
            for writer_factory in writer_factories.values():
                writer_factory.add(rows)
        for name, writer_factory in writer_factories.items():
            yield {"sink": name, "committables": writer_factory.finish()}


class PipelineHarness:
    """A data directory with a memory source and some streams over it."""

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
        self.members = [self.member(stream, operators) for stream in self.catalog.of(Stream)]

    def files(self, sink: str) -> Path:
        return self.folder / "out" / sink

    def member(self, stream: Stream, operators: bool, on_change: str = "reject") -> PipelineStream:
        sinks = tuple(s for s in self.catalog.of(Sink) if s.source == stream.name)
        scan = SimpleNamespace(index=0, delay_us=0, node=None, late_of=None)
        key = stream.name.lower()
        known = {0: (f"{key}.1", OperatorState(key, "w", "1"))} if operators else {}
        plan = SimpleNamespace(lookups=(), scans=(scan,), operators=tuple(known), guarded=True)
        return cast(
            PipelineStream,
            _Known(
                stream.name,
                cast(Any, None),
                cast(Any, plan),
                {"s": SourceState("memory", {})},
                sinks,
                None,
                on_change,
                known,
            ),
        )

    def insert(self, *values: int) -> None:
        """Each an insert, and an epoch, of its own."""
        for value in values:
            self.inserts.append(pa.table({"a": pa.array([value, -value], pa.int64())}))

    @property
    def inserts(self) -> memory.Inserts:
        return memory.inserts_of(str(self.folder / "rows"))

    def pipeline(self, **config: Any) -> PythonPipeline:
        settings = Settings.of(config)
        source = self.catalog.get("s")
        assert isinstance(source, Source)
        data = str(self.folder / "rows")
        context = PipelineContext(
            cast(Any, NoSpark()),
            settings,
            self.store,
            str(self.folder / "orders"),
            lambda source, offsets, pace: memory.MemorySource(
                SourceContext(source, data, offsets, settings, pace)
            ),
            lambda sink, stream, member: SINKS[sink.connector](
                SinkContext(
                    sink,
                    str(self.folder / sink.name),
                    stream,
                    lambda *_: None,
                    member.columns(sink),
                    restorable=self.kept,
                )
            ),
            lambda table, scratch: LOOKUPS[table.connector](
                LookupContext(table, str(self.folder / table.name), scratch)
            ),
            lambda scan: source,
            2,
        )
        return PythonPipeline(context, "main")

    def kept(self) -> list[Manifest]:
        """The manifests to which the pipeline can go back."""
        return Manifests(self.store).load_all()

    def run(self, until_end: bool = True, **config: Any) -> PythonPipeline:
        """Run until everything is done, or until it dies."""
        pipeline = self.pipeline(**config)
        pipeline.start(self.members, until_end)
        if until_end and pipeline._thread is not None:
            pipeline._thread.join(60)
            assert not pipeline._thread.is_alive()
        return pipeline

    def rows(self, sink: str) -> list[tuple[int, str]]:
        """What a sink shows, with the ids of its rows."""
        import pyarrow.parquet as pq

        if sink.startswith("kept"):
            store = open_store(str(self.folder / sink))
            tables = [memory.read_epoch(store, e) for e in memory.stored_epochs(store)]
        else:
            paths = sorted(self.files(sink).glob("*.parquet"))
            tables = [pq.read_table(path) for path in paths]
        return sorted(tuple(row.values()) for table in tables for row in table.to_pylist())

    def sinks(self) -> list[str]:
        return [sink.name for sink in self.catalog.of(Sink)]

    def state_files(self) -> set[str]:
        return {item.name for item in self.store.child("state").list()}

    def epochs(self) -> list[int]:
        names = sorted((self.folder / "pipeline" / "manifests").glob("*.json"))
        return [int(name.stem.split("-")[1]) for name in names]


class _Known(PipelineStream):
    """A member whose operators are given."""

    def __init__(self, *args: Any) -> None:
        *rest, known = args
        super().__init__(*rest)
        object.__setattr__(self, "known", known)

    def columns(self, sink: Sink) -> Columns:
        return (("a", "BIGINT"), ("id", "STRING"))

    def operators(self) -> dict[int, tuple[str, OperatorState]]:
        return dict(self.known)  # type: ignore[attr-defined]


class Killed(BaseException):
    """The process is gone: nobody catches it."""


def expected(*values: int) -> list[int]:
    return sorted(number for value in values for number in (value, -value))


def check(harness: PipelineHarness, *values: int) -> None:
    """Every sink has every row once, and all sinks of a stream have the same ones."""
    for sink in harness.sinks():
        assert [a for a, _ in harness.rows(sink)] == expected(*values), sink
    for number in range(len(harness.members)):
        one, two, kept = (harness.rows(f"{name}{number}") for name in ("one", "two", "kept"))
        assert one == two == kept, "rows were computed again"


def kill_at(monkeypatch: pytest.MonkeyPatch, step: EpochStep, times: int) -> None:
    """Die when a step is reached for so many times."""
    left = [times]

    def reached(here: EpochStep) -> None:
        if here is step:
            left[0] -= 1
            if left[0] == 0:
                raise Killed

    monkeypatch.setattr(module, "reached", reached)


class NoSyncDisk(disk.Disk):
    """Does not wait for the disk: here a process dies, not the machine."""

    def sync(self, handle: int) -> None:
        pass

    def sync_folder(self, path: str) -> None:
        Path(path).stat()
