"""Sinks and sources as a pipeline opens them, without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.support.compiling import compile_text
from tidegate.catalog.connector import ColumnTypes
from tidegate.catalog.objects import Sink, Source
from tidegate.catalog.settings import Settings
from tidegate.connectors.base import (
    CommittedState,
    EpochId,
    SinkConnector,
    SinkContext,
    SourceContext,
)
from tidegate.connectors.files.sink import FilesSink
from tidegate.connectors.files.source import FilesSource
from tidegate.connectors.memory import connector as memory
from tidegate.storage import open_store

SCRIPT = (
    "CREATE SOURCE s (a BIGINT) WITH (connector = 'memory'); CREATE STREAM t AS SELECT a FROM s;"
)


def files_sink(
    path: Path, pipeline: str = "1234", options: str = "", columns: ColumnTypes = (("a", "BIGINT"),)
) -> FilesSink:
    script = f"{SCRIPT}CREATE SINK out FROM t WITH (connector = 'files', path = '{path}'{options});"
    sink = compile_text(script).catalog.get("out")
    assert isinstance(sink, Sink)
    return FilesSink(SinkContext(sink, str(path), pipeline, lambda *_: None, columns))


def memory_sink(path: Path, retain: int = 100_000) -> memory.MemorySink:
    return memory.MemorySink(open_store(str(path)), retain)


def files_source(path: Path, offsets: Path, options: str = "") -> FilesSource:
    script = (
        f"CREATE SOURCE s (a BIGINT) WITH (connector = 'files', path = '{path}', "
        f"format = 'json'{options});"
    )
    source = compile_text(script).catalog.get("s")
    assert isinstance(source, Source)
    return FilesSource(SourceContext(source, str(offsets), str(offsets), Settings()))


def stage(sink: SinkConnector, epoch: EpochId, rows: Sequence[int], tasks: int = 1) -> list[Any]:
    """Stage a part of the rows in each task; return the committables."""
    committables: list[Any] = []
    factory = sink.writer_factory(pa.schema([("a", pa.int64())]))
    for task in range(tasks):
        writer_factory = factory.open(epoch.stamp, task)
        part = rows[task::tasks]
        if part:
            writer_factory.add(pa.table({"a": pa.array(part, pa.int64())}))
        committables += writer_factory.finish()
    return committables


def run(sink: SinkConnector, *epochs: int, generation: int = 0, tasks: int = 1) -> list[Any]:
    """Stage and publish epochs whose rows are their number; return the last committables."""
    committables: list[Any] = []
    for number in epochs:
        epoch = EpochId(generation, number)
        committables = stage(sink, epoch, [number] * tasks, tasks)
        sink.publish(epoch, committables)
    return committables


def committed(epoch: int, committables: Sequence[Any] = (), generation: int = 0) -> CommittedState:
    return CommittedState(EpochId(generation, epoch), committables)
