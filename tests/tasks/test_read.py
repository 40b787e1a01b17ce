"""Tasks that read a range once for several branches, without Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tests.tasks.test_shuffle import KEY_GROUPS
from tidegate.columns import CONTROL, EVENT_TIME, ORIGIN, PANE, SELECTED
from tidegate.connectors.debug_writers import DiscardingWriter
from tidegate.operators.hold import HoldOperator, hash_columns
from tidegate.operators.vectorized import VectorCall, VectorColumn, VectorConstant, VectorStage
from tidegate.operators.watermark import NO_WATERMARK_US, decode_updates
from tidegate.physical.job_graph import (
    REPORTS,
    Branch,
    Evaluate,
    Level,
    Read,
    ScanColumns,
    ShuffleWrite,
    SinkTarget,
    SinkWrite,
    TaskProgram,
)
from tidegate.spark.tasks.levels import LevelTask, reports_of, run_levels
from tidegate.spark.tasks.protocol import EpochSpec

L = pa.int64()
HOLD = HoldOperator(pa.schema([("c0", L), ("c1", L)]))
COLUMNS = (("a", VectorColumn("a")), ("t", VectorColumn("t")))
FIRST, SECOND = 1_000_000, 1_000_001
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


def operator_branch(
    stream: str, target: int, least: int = -(10**6), partitioned: bool = False
) -> Branch:
    """Return a branch that sends the rows with a value above `least` to an operator."""
    stage = VectorStage(
        ((PANE, VectorColumn("t"), L), ("c0", VectorColumn("a"), L), ("c1", VectorColumn("t"), L)),
        (VectorCall(">", (VectorColumn("a"), VectorConstant(least, L))),),
    )
    write = ShuffleWrite(
        target,
        (stream,),
        HOLD,
        0,
        tuple((name, name) for name in (PANE, "c0", "c1")),
        ((0, 0),),
        (0,),
        ((0, 0),),
        KEY_GROUPS,
        hashed=hash_columns(HOLD.output),
    )
    hidden = (*([ORIGIN] if partitioned else []), EVENT_TIME, SELECTED, CONTROL)
    return ScanColumns(0, (stream,), COLUMNS, partitioned), Evaluate(stage, hidden), write


def sink_branch(stream: str) -> Branch:
    """Return a branch that stages all rows for a sink."""
    stage = VectorStage((("a", VectorColumn("a"), L),))
    sink = SinkTarget("sink", DiscardingWriter(), ("a",), ("a",))
    evaluate = Evaluate(stage, (ORIGIN, EVENT_TIME, SELECTED, CONTROL))
    return (
        ScanColumns(0, (stream,), COLUMNS),
        evaluate,
        SinkWrite(stream, (sink,), reads_source=True),
    )


def level_of(reader: RecordingReader, *branches: Branch) -> Level:
    read = Read(("one", "source"), reader, (), VectorColumn("t"), None)
    return Level((TaskProgram(read, branches),))


def run_task(
    level: Level, splits: list[list[Rows]], numbers: Sequence[int] = (0,)
) -> list[dict[str, Any]]:
    """Return the rows that a task sends after reading its splits."""
    epoch_spec = EpochSpec(0, 1, 10**9, splits={"one/source": splits})
    batches = LevelTask(level, epoch_spec, len(splits)).read(numbers)
    return [row for batch in batches for row in batch.to_pylist()]


def reports(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [json.loads(row["data"]) for row in rows if row["target"] == REPORTS]


rows_of_split = st.lists(
    st.tuples(st.integers(-100, 100), st.none() | st.integers(0, 1_000)), min_size=1, max_size=20
)


@given(st.lists(rows_of_split, min_size=1, max_size=4))
def test_shared_read_gives_each_branch_the_rows_of_a_separate_read(splits: list[Rows]) -> None:
    reader = RecordingReader()
    branches = operator_branch("one", FIRST), operator_branch("two", SECOND, least=0)
    together = run_task(level_of(reader, *branches, sink_branch("three")), [splits])
    assert len(reader.splits_read) == len(splits), "each split is read once"
    for target, branch in zip((FIRST, SECOND), branches, strict=True):
        alone = run_task(level_of(reader, branch), [splits])
        sent = [row for row in together if row["target"] == target]
        assert sent == [row for row in alone if row["target"] == target]
    count = sum(map(len, splits))
    malformed = sum(time is None for split in splits for _, time in split)
    task_reports = reports(together)
    (read,) = [report for report in task_reports if "rows" in report]
    assert (read["streams"], read["rows"]) == (["one", "two", "three"], count)
    assert sum(report.get("malformed", 0) for report in task_reports) == 3 * malformed
    assert [report["out"] for report in task_reports if "out" in report] == [count - malformed]
    assert {row["target"] for row in together} == {FIRST, SECOND, REPORTS}


def test_tasks_read_disjoint_splits() -> None:
    reader = RecordingReader()
    level = level_of(reader, operator_branch("one", FIRST))
    splits: list[list[Rows]] = [[[(1, 5)], [(2, 6)]], [[(3, 7)]]]
    for task, expected in enumerate(([[(1, 5)], [(2, 6)]], [[(3, 7)]])):
        reader.splits_read.clear()
        rows = run_task(level, splits, [task])
        assert reader.splits_read == expected
        assert {row["task"] for row in rows} == {task}


def test_task_with_several_numbers_reads_the_splits_of_each() -> None:
    reader = RecordingReader()
    level = level_of(reader, operator_branch("one", FIRST))
    rows = run_task(level, [[[(1, 5)]], [[(3, 7)], [(4, 8)]]], [0, 1])
    assert reader.splits_read == [[(1, 5)], [(3, 7)], [(4, 8)]]
    read = [report for report in reports(rows) if "rows" in report]
    assert [(report["task"], report["rows"]) for report in read] == [(0, 1), (1, 2)]


def test_streams_without_operators_only_send_reports() -> None:
    level = level_of(RecordingReader(), sink_branch("one"), sink_branch("two"))
    epoch_spec = EpochSpec(0, 1, 10**9, splits={"one/source": [[[(1, 5), (2, 7)]]]})
    numbers = pa.record_batch([pa.array([0], L)], names=["id"])
    columns = reports_of(run_levels([level], epoch_spec, 1, [numbers], reads=True))
    task_reports = [json.loads(report) for column in columns for report in column.to_pylist()]
    assert [report["streams"] for report in task_reports if "out" in report] == [["one"], ["two"]]
    assert [report["rows"] for report in task_reports if "rows" in report] == [2]
    assert all(report["event_times_us"] == {"0": 7} for report in task_reports if "out" in report)


def test_only_the_first_task_sends_to_every_key_group_without_rows() -> None:
    reader = RecordingReader()
    level = level_of(reader, operator_branch("one", FIRST))
    rows = run_task(level, [[], []])
    assert [(row["target"], row["key_group"]) for row in rows] == [
        (FIRST, key_group) for key_group in range(KEY_GROUPS)
    ]
    assert run_task(level, [[], []], [1]) == []
    assert reader.splits_read == []


def test_partitions_without_rows_have_a_watermark_in_every_branch() -> None:
    branches = [operator_branch("one", target, partitioned=True) for target in (FIRST, SECOND)]
    epoch_spec = EpochSpec(0, 1, 0, partitions={"one/source": 2})
    task = LevelTask(level_of(RecordingReader(), *branches), epoch_spec, 1)
    rows = [row for batch in task.read([0]) for row in batch.to_pylist()]
    assert [row["target"] for row in rows] == [FIRST] * KEY_GROUPS + [SECOND] * KEY_GROUPS
    for row in rows:
        updates = decode_updates(row["watermark_updates"])
        assert [(update.partition, update.watermark_us) for update in updates] == [
            (0, NO_WATERMARK_US),
            (1, NO_WATERMARK_US),
        ]
    assert list(task.read([1])) == [], "one task sends them"
