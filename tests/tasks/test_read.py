"""Tasks that read a range for several operators and streams, without Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tests.tasks.test_shuffle import KEY_GROUPS
from tidegate.columns import PANE
from tidegate.connectors.base import ScanRequest
from tidegate.connectors.debug_writers import DiscardingWriter
from tidegate.operators.hold import HoldOperator, hash_columns
from tidegate.operators.vectorized import VectorCall, VectorColumn, VectorConstant, VectorStage
from tidegate.operators.watermark import NO_WATERMARK_US, decode_updates
from tidegate.spark.tasks.protocol import EpochSpec, EpochSpecStore
from tidegate.spark.tasks.read import (
    DirectScan,
    Reader,
    ReadPort,
    ReadRange,
    ReadStream,
    ranges_of,
    reading,
)
from tidegate.spark.tasks.shuffle import PASSING, ShuffleSpec
from tidegate.spark.tasks.sink_write import StagedSink, StagingSpec

L = pa.int64()
HOLD = HoldOperator(pa.schema([("c0", L), ("c1", L)]))
READ = ScanRequest((("a", "BIGINT"), ("t", "BIGINT")))
# Rows of a value and an optional event time.
Rows = list[tuple[int, int | None]]


@dataclass(frozen=True)
class RecordingReader:
    """Reads splits that contain their rows, and records which splits were read."""

    splits_read: list[Any] = field(default_factory=list)
    schema = pa.schema([("a", L), ("t", L)])

    def read(self, split: Rows) -> Iterator[tuple[pa.RecordBatch, int]]:
        self.splits_read.append(split)
        columns = [pa.array(values, L) for values in zip(*split, strict=True)]
        yield pa.record_batch(columns, schema=self.schema), len(split)


def scan_of(stream: str, reader: RecordingReader, partitioned: bool = False) -> DirectScan:
    columns = (("a", VectorColumn("a")), ("t", VectorColumn("t")))
    range_key = (stream, "source")
    time = VectorColumn("t")
    return DirectScan(READ, reader, range_key, (stream,), 0, columns, (), time, None, partitioned)


def port_of(
    stream: str, reader: RecordingReader, operator_index: int, least: int = -(10**6)
) -> ReadPort:
    stage = VectorStage(
        ((PANE, VectorColumn("t"), L), ("c0", VectorColumn("a"), L), ("c1", VectorColumn("t"), L)),
        (VectorCall(">", (VectorColumn("a"), VectorConstant(least, L))),),
    )
    columns = tuple((name, name) for name in (PANE, "c0", "c1"))
    pack = ShuffleSpec(
        (stream,),
        HOLD,
        0,
        columns,
        ((0, 0),),
        (0,),
        ((0, 0),),
        KEY_GROUPS,
        hashed=hash_columns(HOLD.output),
        operator_index=operator_index,
    )
    return ReadPort(scan_of(stream, reader), stage, pack)


def stream_of(stream: str, reader: RecordingReader, by: int | None) -> ReadStream:
    sink = StagedSink("sink", DiscardingWriter(), ("a",), ("a",))
    stage = VectorStage((("a", VectorColumn("a"), L),))
    spec = StagingSpec(stream, (sink,), scans=True)
    return ReadStream(scan_of(stream, reader), stage, spec, by)


def run_task(
    folder: Path,
    readers: list[Reader],
    splits: list[list[Rows]],
    reader: RecordingReader,
    task: int = 0,
) -> list[dict[str, Any]]:
    """Return the rows that a task sends for readers of the same range."""
    epoch_specs = EpochSpecStore(str(folder), "order")
    first = readers[0].scan.range_key
    first_of = {each.scan.range_key: first for each in readers}
    epoch_specs.write(EpochSpec(0, 1, 10**9, splits={"/".join(first): splits}, partitions={}))
    ranges = ranges_of(readers, first_of, lambda scans: reader)
    run = reading(ranges, epoch_specs)
    numbers = pa.record_batch([pa.array([task], L)], names=["id"])
    return [row for batch in run(iter([numbers])) for row in batch.to_pylist()]


def reports(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [json.loads(row["data"][1:]) for row in rows if row["port"] == PASSING]


rows_of_split = st.lists(
    st.tuples(st.integers(-100, 100), st.none() | st.integers(0, 1_000)), min_size=1, max_size=20
)


@given(st.lists(rows_of_split, min_size=1, max_size=4))
def test_shared_read_gives_each_reader_the_rows_of_a_separate_read(
    tmp_path_factory: Any, splits: list[Rows]
) -> None:
    folder = tmp_path_factory.getbasetemp()
    reader = RecordingReader()
    one, two = port_of("one", reader, 0), port_of("two", reader, 1, least=0)
    both = run_task(folder, [one, two, stream_of("three", reader, 0)], [splits], reader)
    assert len(reader.splits_read) == len(splits), "each split is read once"
    for operator_index, port in enumerate((one, two)):
        alone = run_task(folder, [port], [splits], reader)
        packed = [
            row for row in both if row["operator"] == operator_index and row["port"] != PASSING
        ]
        assert packed == [row for row in alone if row["port"] != PASSING]
    count = sum(map(len, splits))
    bad = sum(time is None for split in splits for _, time in split)
    task_reports = reports(both)
    (read,) = [report for report in task_reports if "rows" in report]
    assert (read["streams"], read["rows"]) == (["one", "two", "three"], count)
    assert sum(report.get("malformed", 0) for report in task_reports) == 3 * bad
    assert [report["out"] for report in task_reports if "out" in report] == [count - bad]
    assert {row["operator"] for row in both if row["port"] == PASSING} <= {0, 1}


def test_streams_without_operators_report_to_the_driver(tmp_path: Path) -> None:
    reader = RecordingReader()
    readers: list[Reader] = [stream_of("one", reader, None), stream_of("two", reader, None)]
    rows = run_task(tmp_path, readers, [[[(1, 5), (2, 7)]]], reader)
    task_reports = [json.loads(row["report"]) for row in rows]
    assert [report["streams"] for report in task_reports if "out" in report] == [["one"], ["two"]]
    assert [report["rows"] for report in task_reports if "rows" in report] == [2]
    assert all(report["event_times_us"] == {"0": 7} for report in task_reports if "out" in report)


def test_task_without_splits_still_sends_watermark_updates(tmp_path: Path) -> None:
    reader = RecordingReader()
    port = port_of("one", reader, 4)
    rows = run_task(tmp_path, [port], [[[(1, 5)]]], reader, task=1)
    assert reader.splits_read == []
    assert {row["operator"] for row in rows} <= {4}
    # Partitions without rows have a watermark in every port that reads them.
    scan = replace(port.scan, partitioned=True)
    epoch_spec = EpochSpec(0, 1, 0, partitions={"one/source": 2})
    epoch_specs = EpochSpecStore(str(tmp_path), "order")
    epoch_specs.write(epoch_spec)
    work = reading([ReadRange(reader, (replace(port, scan=scan),))], epoch_specs)
    numbers = pa.record_batch([pa.array([0], L)], names=["id"])
    sent = pa.Table.from_batches(work(iter([numbers]))).to_pylist()
    assert len(sent) == KEY_GROUPS
    updates = [
        (update.partition, update.watermark_us)
        for update in decode_updates(sent[0]["watermark_updates"])
    ]
    assert updates == [(0, NO_WATERMARK_US), (1, NO_WATERMARK_US)]


def test_reads_separately_without_a_common_reader() -> None:
    one, two = RecordingReader(), RecordingReader()
    readers = [port_of("one", one, 0), port_of("two", two, 1)]
    first_of = {("two", "source"): ("one", "source")}
    separate = ranges_of(readers, first_of, lambda scans: None)
    assert [(each.reader, len(each.readers)) for each in separate] == [(one, 1), (two, 1)]
    assert [each.readers[0].scan.split for each in separate] == ["one/source", "two/source"]
    (shared,) = ranges_of(readers, first_of, lambda scans: one)
    assert {each.scan.split for each in shared.readers} == {"one/source"}
