"""What a task reads for several operators and streams, without Spark."""

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
from tidegate.connectors.base import Read
from tidegate.connectors.debug_writers import DiscardingWriter
from tidegate.operators.hold import HoldOperator, hash_columns
from tidegate.operators.vectorized import VectorCall, VectorColumn, VectorConstant, VectorStage
from tidegate.operators.watermark import NO_ROWS_US, decode_updates
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
READ = Read((("a", "BIGINT"), ("t", "BIGINT")))
# A value, and an event time if there is one.
Rows = list[tuple[int, int | None]]


@dataclass(frozen=True)
class Shares:
    """Reads rows that are the share themselves, and counts how often it is asked."""

    asked: list[Any] = field(default_factory=list)
    schema = pa.schema([("a", L), ("t", L)])

    def read(self, split: Rows) -> Iterator[tuple[pa.RecordBatch, int]]:
        self.asked.append(split)
        columns = [pa.array(values, L) for values in zip(*split, strict=True)]
        yield pa.record_batch(columns, schema=self.schema), len(split)


def scan_of(stream: str, reader: Shares, partitioned: bool = False) -> DirectScan:
    columns = (("a", VectorColumn("a")), ("t", VectorColumn("t")))
    place = (stream, "source")
    time = VectorColumn("t")
    return DirectScan(READ, reader, place, (stream,), 0, columns, (), time, None, partitioned)


def port_of(stream: str, reader: Shares, operator_index: int, least: int = -(10**6)) -> ReadPort:
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


def stream_of(stream: str, reader: Shares, by: int | None) -> ReadStream:
    sink = StagedSink("sink", DiscardingWriter(), ("a",), ("a",))
    stage = VectorStage((("a", VectorColumn("a"), L),))
    spec = StagingSpec(stream, (sink,), scans=True)
    return ReadStream(scan_of(stream, reader), stage, spec, by)


def made(
    folder: Path, readers: list[Reader], splits: list[list[Rows]], reader: Shares, task: int = 0
) -> list[dict[str, Any]]:
    """What a task sends for them, which read alike."""
    place = EpochSpecStore(str(folder), "order")
    first = readers[0].scan.range_key
    alike = {each.scan.range_key: first for each in readers}
    place.write(EpochSpec(0, 1, 10**9, splits={"/".join(first): splits}, partitions={}))
    ranges = ranges_of(readers, alike, lambda scans: reader)
    run = reading(ranges, place)
    numbers = pa.record_batch([pa.array([task], L)], names=["id"])
    return [row for batch in run(iter([numbers])) for row in batch.to_pylist()]


def reports(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [json.loads(row["data"][1:]) for row in rows if row["port"] == PASSING]


rows_of_share = st.lists(
    st.tuples(st.integers(-100, 100), st.none() | st.integers(0, 1_000)), min_size=1, max_size=20
)


@given(st.lists(rows_of_share, min_size=1, max_size=4))
def test_together_everybody_gets_what_it_gets_alone(
    tmp_path_factory: Any, splits: list[Rows]
) -> None:
    folder = tmp_path_factory.getbasetemp()
    reader = Shares()
    one, two = port_of("one", reader, 0), port_of("two", reader, 1, least=0)
    both = made(folder, [one, two, stream_of("three", reader, 0)], [splits], reader)
    assert len(reader.asked) == len(splits), "a share is read once"
    for member, port in enumerate((one, two)):
        alone = made(folder, [port], [splits], reader)
        packed = [row for row in both if row["member"] == member and row["port"] != PASSING]
        assert packed == [row for row in alone if row["port"] != PASSING]
    count = sum(map(len, splits))
    bad = sum(time is None for split in splits for _, time in split)
    told = reports(both)
    (read,) = [report for report in told if "rows" in report]
    assert (read["streams"], read["rows"]) == (["one", "two", "three"], count)
    assert sum(report.get("malformed", 0) for report in told) == 3 * bad
    assert [report["out"] for report in told if "out" in report] == [count - bad]
    assert {row["member"] for row in both if row["port"] == PASSING} <= {0, 1}


def test_without_operators_notes_go_to_the_driver(tmp_path: Path) -> None:
    reader = Shares()
    readers: list[Reader] = [stream_of("one", reader, None), stream_of("two", reader, None)]
    rows = made(tmp_path, readers, [[[(1, 5), (2, 7)]]], reader)
    told = [json.loads(row["note"]) for row in rows]
    assert [report["streams"] for report in told if "out" in report] == [["one"], ["two"]]
    assert [report["rows"] for report in told if "rows" in report] == [2]
    assert all(report["event_times_us"] == {"0": 7} for report in told if "out" in report)


def test_a_task_without_a_share_tells_the_time_all_the_same(tmp_path: Path) -> None:
    reader = Shares()
    port = port_of("one", reader, 4)
    rows = made(tmp_path, [port], [[[(1, 5)]]], reader, task=1)
    assert reader.asked == []
    assert {row["member"] for row in rows} <= {4}
    # Partitions that nothing came of are known to every port that reads them.
    scan = replace(port.scan, partitioned=True)
    epoch_spec = EpochSpec(0, 1, 0, partitions={"one/source": 2})
    place = EpochSpecStore(str(tmp_path), "order")
    place.write(epoch_spec)
    work = reading([ReadRange(reader, (replace(port, scan=scan),))], place)
    numbers = pa.record_batch([pa.array([0], L)], names=["id"])
    sent = pa.Table.from_batches(work(iter([numbers]))).to_pylist()
    assert len(sent) == KEY_GROUPS
    updates = [
        (update.partition, update.watermark_us) for update in decode_updates(sent[0]["ticks"])
    ]
    assert updates == [(0, NO_ROWS_US), (1, NO_ROWS_US)]


def test_who_cannot_be_read_for_together_reads_alone() -> None:
    one, two = Shares(), Shares()
    readers = [port_of("one", one, 0), port_of("two", two, 1)]
    alike = {("two", "source"): ("one", "source")}
    apart = ranges_of(readers, alike, lambda scans: None)
    assert [(each.reader, len(each.readers)) for each in apart] == [(one, 1), (two, 1)]
    assert [each.readers[0].scan.split for each in apart] == ["one/source", "two/source"]
    (together,) = ranges_of(readers, alike, lambda scans: one)
    assert {each.scan.split for each in together.readers} == {"one/source"}
