"""Sinks and sources of Delta Lake as a pipeline opens them, without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from tests.support.compiling import compile_text
from tidegate.catalog.objects import Sink, Source
from tidegate.catalog.settings import Settings
from tidegate.columns import OP
from tidegate.connectors.base import (
    CommittedState,
    EpochId,
    InputRange,
    ScanRequest,
    SinkContext,
    SourceContext,
    StreamSchema,
)
from tidegate.connectors.delta.table_sink import DeltaSink
from tidegate.connectors.delta.table_source import DeltaSource
from tidegate.physical.typed import arrow_type
from tidegate.types import ChangelogKind

SCRIPT = (
    "CREATE SOURCE s (id BIGINT, name STRING, day DATE) WITH (connector = 'memory');"
    "CREATE STREAM t AS SELECT * FROM s;"
)
ROWS = StreamSchema((("id", "BIGINT"), ("name", "STRING")))
KEYED = StreamSchema(ROWS.columns, ChangelogKind.CHANGELOG, ("id",), has_op=True)
E0, E1, E2 = (EpochId(0, number) for number in range(3))


def sink_of(
    path: Path | str,
    rows: StreamSchema = ROWS,
    stream: str = "1234",
    create_table: str = "true",
    **options: str,
) -> DeltaSink:
    all_options = {"create_table": create_table, **options}
    more = "".join(f", {name} = '{value}'" for name, value in all_options.items())
    script = f"{SCRIPT}CREATE SINK out FROM t WITH (connector = 'delta', path = '{path}'{more});"
    compiled = compile_text(script)
    assert not compiled.errors and not compiled.rejections
    sink = compiled.catalog.get("out")
    assert isinstance(sink, Sink)
    return DeltaSink(SinkContext(sink, str(path), stream, lambda *_: None, schema=rows))


def opened(path: Path | str, rows: StreamSchema = ROWS, **options: str) -> DeltaSink:
    sink = sink_of(path, rows, **options)
    sink.recover(CommittedState(None))
    return sink


def schema_of(rows: StreamSchema) -> pa.Schema:
    fields = [(name, arrow_type(kind)) for name, kind in rows.columns]
    return pa.schema([*fields, *([(OP, pa.string())] if rows.has_op else [])])


def staged(sink: DeltaSink, epoch: EpochId, *tasks: Sequence[dict[str, Any]]) -> list[Any]:
    """Stage the rows of an epoch by task; return the committables."""
    schema = schema_of(sink.stream_schema)
    committables: list[Any] = []
    for number, rows in enumerate(tasks):
        writer_factory = sink.writer_factory(schema).open(epoch.stamp, number)
        if rows:
            writer_factory.add(pa.Table.from_pylist(list(rows), schema))
        committables += writer_factory.finish()
    return committables


def row(number: int | None, name: str | None = None, op: str | None = None) -> dict[str, Any]:
    return {"id": number, "name": name, **({OP: op} if op else {})}


def table_rows(path: Path | str) -> list[tuple[Any, ...]]:
    """Return the rows of a table, sorted."""
    rows = pa.table(DeltaTable(str(path)).to_pyarrow_table()).to_pylist()
    return sorted((tuple(r.values()) for r in rows), key=str)


def source_of(
    path: Path | str, columns: str = "id BIGINT, name STRING", **options: str
) -> DeltaSource:
    more = "".join(f", {name} = '{value}'" for name, value in options.items())
    compiled = compile_text(
        f"CREATE SOURCE s ({columns}) WITH (connector = 'delta', path = '{path}'{more});"
    )
    assert not compiled.errors and not compiled.rejections
    source = compiled.catalog.get("s")
    assert isinstance(source, Source)
    return DeltaSource(SourceContext(source, "", "", Settings()))


def rows_of(
    source: DeltaSource, input_range: InputRange | None, arrival: bool = False
) -> list[dict[str, Any]]:
    """Return the rows that all tasks read."""
    assert input_range is not None
    columns = tuple((c.name, str(c.type)) for c in source.source.stored_columns)
    reader = source.create_reader(ScanRequest(columns, arrival))
    parts = [part for split in input_range.splits for part in split]
    return [r for part in parts for batch, _ in reader.read(part) for r in batch.to_pylist()]
