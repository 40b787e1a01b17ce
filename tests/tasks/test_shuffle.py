"""The shuffle write without Spark: the rows of each part and their key groups."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tidegate.columns import (
    CONTROL,
    EVENT_TIME,
    MALFORMED_EVENT_TIME,
    OP,
    ORIGIN,
    PANE,
    PARTITION_SHIFT,
    SELECTED,
)
from tidegate.operators.aggregate.functions import AggregateCall
from tidegate.operators.aggregate.groups import GroupSpec, OutputColumn, OutputLayout, WindowPanes
from tidegate.operators.aggregate.window import WindowAggregate
from tidegate.operators.hold import HoldOperator, hash_columns
from tidegate.operators.operator import Operator
from tidegate.operators.watermark import (
    END_OF_INPUT_US,
    WatermarkUpdate,
    decode_updates,
    encode_updates,
)
from tidegate.physical.job_graph import REPORTS, ShuffleWrite
from tidegate.spark.tasks import shuffle
from tidegate.spark.tasks.protocol import EpochSpec, report_bytes, watermark_bytes
from tidegate.spark.tasks.shuffle import ShuffleWriter
from tidegate.state.codec import table_from_bytes, tables_from_bytes

L = pa.int64()
KEY_GROUPS = 4
HOLD = HoldOperator(pa.schema([("c0", L), ("c1", L)]))
EPOCH = EpochSpec(0, 7, 1_000)
TARGET, DEAD_LETTERS = 1_000_000, 2_000_001


def shuffle_write(
    operator: Operator, columns: tuple[str, ...], hashed: tuple[str, ...]
) -> ShuffleWrite:
    named = tuple((name, name) for name in columns)
    delays, local = ((0, 0),), ((0, 0), (1000, 1))
    return ShuffleWrite(
        TARGET, ("s",), operator, 0, named, delays, (0,), local, KEY_GROUPS, hashed=hashed
    )


def hold_write() -> ShuffleWrite:
    return shuffle_write(HOLD, (PANE, "c0", "c1"), hash_columns(HOLD.output))


def batch(first: int, count: int, **more: Any) -> pa.RecordBatch:
    numbers = np.arange(first, first + count)
    times = numbers * 10
    columns = {EVENT_TIME: times, SELECTED: [True] * count, PANE: np.full(count, 60), "c0": numbers}
    columns[CONTROL] = pa.nulls(count, pa.binary())
    return pa.record_batch({**columns, "c1": times, **more})


def sent(
    write: ShuffleWrite,
    batches: list[pa.RecordBatch],
    epoch_spec: EpochSpec = EPOCH,
    task: int = 3,
    target: int = TARGET,
) -> list[list[dict[str, Any]]]:
    """Return the rows of each batch that a task sends to a target."""
    writer = ShuffleWriter(write, task, epoch_spec)
    parts = [part for item in batches for part in writer.add(item)]
    rows = [part.to_pylist() for part in (*parts, *writer.finish())]
    assert all(len({row["target"] for row in part}) == 1 for part in rows)
    return [part for part in rows if part[0]["target"] == target]


def values(operator: Operator, rows: list[dict[str, Any]]) -> list[int]:
    blobs = [row["data"] for row in rows if row["data"] is not None and row["port"] == 0]
    tables = [tables_from_bytes(blob, operator.shuffle_schemas[0])[0] for blob in blobs]
    return [value for table in tables for value in table.column("c0").to_pylist()]


def test_sends_small_input_in_one_part() -> None:
    (rows,) = sent(hold_write(), [batch(0, 100), batch(100, 100)])
    assert sorted(values(HOLD, rows)) == list(range(200))
    assert [row["key_group"] for row in rows] == list(range(KEY_GROUPS))


def test_sends_large_input_in_several_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shuffle, "BYTES_TO_SEND", 10_000)
    parts = sent(hold_write(), [batch(first, 100) for first in range(0, 2_000, 100)])
    assert len(parts) > 5
    assert sorted(n for rows in parts for n in values(HOLD, rows)) == list(range(2_000))
    # No part is much larger than the limit, and the parts have an order.
    sizes = [sum(len(row["data"] or b"") for row in rows) for rows in parts]
    assert max(sizes) < 2 * 10_000
    assert [{row["part"] for row in rows} for rows in parts] == [{n} for n, _ in enumerate(parts)]
    assert {row["task"] for rows in parts for row in rows} == {3}


def test_sends_watermark_updates_with_the_last_part_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shuffle, "BYTES_TO_SEND", 10_000)
    *early, last = sent(hold_write(), [batch(first, 100) for first in range(0, 1_000, 100)])
    assert {row["watermark_updates"] for rows in early for row in rows} == {b""}
    assert [row["key_group"] for row in last] == list(range(KEY_GROUPS))
    assert {
        update.watermark_us for row in last for update in decode_updates(row["watermark_updates"])
    } == {9_990}


def test_reports_the_event_time_of_each_partition() -> None:
    origins = [0, 1 << PARTITION_SHIFT] * 5
    (rows,) = sent(hold_write(), [batch(0, 10, **{ORIGIN: pa.array(origins, L)})])
    assert decode_updates(rows[0]["watermark_updates"]) == [
        WatermarkUpdate(0, 0, 80),
        WatermarkUpdate(0, 1, 90),
    ]


def test_end_of_input_sends_the_maximum_watermark() -> None:
    (rows,) = sent(hold_write(), [], EpochSpec(0, 7, 1_000, ends=True))
    assert [row["key_group"] for row in rows] == list(range(KEY_GROUPS))
    assert {update for row in rows for update in decode_updates(row["watermark_updates"])} == {
        WatermarkUpdate(0, 0, END_OF_INPUT_US)
    }


def test_task_without_rows_still_sends_to_every_key_group() -> None:
    (rows,) = sent(hold_write(), [], task=0)
    assert [(row["key_group"], row["watermark_updates"], row["data"]) for row in rows] == [
        (kg, b"", None) for kg in range(KEY_GROUPS)
    ]
    assert sent(hold_write(), [], task=1) == []


def test_forwards_watermark_updates_by_position_in_the_port() -> None:
    control = pa.array(
        [watermark_bytes(encode_updates([WatermarkUpdate(1000, 0, 55)]))] + [None] * 9, pa.binary()
    )
    unselected = {SELECTED: [False] * 10, EVENT_TIME: pa.nulls(10, L)}
    (rows,) = sent(hold_write(), [batch(0, 10, **{CONTROL: control, **unselected})])
    assert {update for row in rows for update in decode_updates(row["watermark_updates"])} == {
        WatermarkUpdate(1, 0, 55)
    }
    assert not any(row["data"] for row in rows)


def test_sends_watermark_updates_of_an_operator_that_ran_in_this_task() -> None:
    writer = ShuffleWriter(hold_write(), 3, EPOCH)
    writer.add_update(WatermarkUpdate(1000, 0, 55))
    (rows,) = [part.to_pylist() for part in writer.finish()]
    assert [row["key_group"] for row in rows] == list(range(KEY_GROUPS))
    assert {row["watermark_updates"] for row in rows} == {
        encode_updates([WatermarkUpdate(1, 0, 55)])
    }


def test_forwards_watermark_updates_of_a_shared_operator_to_all_positions() -> None:
    write = replace(hold_write(), local=((1000, 0), (0, 1), (1000, 2)))
    control = pa.array(
        [watermark_bytes(encode_updates([WatermarkUpdate(1000, 0, 55)]))], pa.binary()
    )
    unselected = {SELECTED: [False], EVENT_TIME: pa.nulls(1, L)}
    (rows,) = sent(write, [batch(0, 1, **{CONTROL: control, **unselected})])
    assert {row["watermark_updates"] for row in rows} == {
        encode_updates([WatermarkUpdate(0, 0, 55), WatermarkUpdate(2, 0, 55)])
    }


def test_counts_malformed_records_without_advancing_event_time() -> None:
    times = pa.array([MALFORMED_EVENT_TIME, 5, MALFORMED_EVENT_TIME, 7], L)
    selected = [False, True, False, True]
    records = batch(0, 4, **{EVENT_TIME: times, SELECTED: selected})
    (rows,) = sent(hold_write(), [records])
    ((report,),) = sent(hold_write(), [records], target=REPORTS)
    assert json.loads(report["data"]) == {"streams": ["s"], "malformed": 2}
    assert {
        update.watermark_us for row in rows for update in decode_updates(row["watermark_updates"])
    } == {7}
    assert sorted(values(HOLD, rows)) == [1, 3]


def test_buffers_small_partial_aggregates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shuffle, "BYTES_TO_SEND", 10_000)
    panes = WindowPanes("TUMBLE", 60, 60)
    columns = (OutputColumn("key", 0, L), OutputColumn("result", 0, L))
    calls = (AggregateCall("count", "count(*)", (), L),)
    operator = WindowAggregate(GroupSpec((L,), calls), panes, OutputLayout(columns, panes))
    write = shuffle_write(operator, (PANE, "k0"), ("k0",))
    batches = [batch(0, 500, k0=pa.array(np.arange(500) % 5)) for _ in range(50)]
    (rows,) = sent(write, batches)
    tables = [
        tables_from_bytes(r["data"], operator.shuffle_schemas[0])[0] for r in rows if r["data"]
    ]
    assert sum(sum(table.column("_rows").to_pylist()) for table in tables) == 25_000


def test_passes_reports_to_the_driver_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shuffle, "BYTES_TO_SEND", 10_000)
    report = {"x": "y" * 2_000}
    control = pa.array([report_bytes(report)] * 10, pa.binary())
    batches = [batch(0, 10, **{CONTROL: control}) for _ in range(5)]
    (rows,) = sent(hold_write(), batches, target=REPORTS)
    assert [json.loads(row["data"]) for row in rows] == [report] * 50
    assert {row["key_group"] for row in rows} == {3}, "the task keeps its reports"


def dead_letters(count: int) -> pa.Array:
    letter = {"stream": "s", "expression": "1 / 0", "record": "x" * 2_000}
    return pa.array([b"D" + json.dumps(letter).encode()] * count, pa.binary())


def test_flushes_dead_letters_to_the_stage_that_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shuffle, "BYTES_TO_SEND", 10_000)
    write = replace(hold_write(), dead_letters=DEAD_LETTERS)
    batches = [batch(0, 10, **{CONTROL: dead_letters(10)}) for _ in range(5)]
    parts = sent(write, batches, target=DEAD_LETTERS)
    assert len(parts) == 5, "each batch exceeds the buffer"
    assert [row["part"] for rows in parts for row in rows] == list(range(5))
    names = ("stream", "expression", "record")
    schema = pa.schema([pa.field(name, pa.string()) for name in names])
    tables = [table_from_bytes(row["data"], schema) for rows in parts for row in rows]
    letters = [letter for table in tables for letter in table.to_pylist()]
    assert letters == [{"stream": "s", "expression": "1 / 0", "record": "x" * 2_000}] * 50
    (reports,) = sent(write, batches, target=REPORTS)
    assert [json.loads(row["data"]) for row in reports] == [{"streams": ["s"], "failed": 50}]


def test_counts_dead_letters_that_no_stage_reads() -> None:
    batches = [batch(0, 10, **{CONTROL: dead_letters(10)})]
    assert sent(hold_write(), batches, target=DEAD_LETTERS) == []
    ((report,),) = sent(hold_write(), batches, target=REPORTS)
    assert json.loads(report["data"]) == {"streams": ["s"], "failed": 10}


def test_spreads_rows_of_one_window_over_key_groups() -> None:
    (rows,) = sent(hold_write(), [batch(0, 4_000)])
    counts = Counter({row["key_group"]: len(values(HOLD, [row])) for row in rows})
    assert set(counts) == set(range(KEY_GROUPS))
    assert min(counts.values()) > 800


def test_hashes_held_rows_by_all_hashable_columns() -> None:
    nested = pa.schema([("c0", L), ("c1", pa.list_(L)), ("c2", pa.string())])
    assert hash_columns(nested) == (PANE, "c0", "c2")
    changes = pa.schema([("c0", L), (OP, pa.string())])
    assert hash_columns(changes) == (PANE,)
