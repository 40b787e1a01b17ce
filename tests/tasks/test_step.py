"""The tasks of an operator without Spark: shuffle, step, stage; state in files between epochs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tidegate.columns import CONTROL, EVENT_TIME, HASH, MALFORMED_EVENT_TIME, ORIGIN, PANE, SELECTED
from tidegate.errors import DataDirectoryError
from tidegate.operators.aggregate.functions import AggregateCall
from tidegate.operators.aggregate.groups import GroupSpec, OutputColumn, OutputLayout, WindowPanes
from tidegate.operators.aggregate.window import WindowAggregate
from tidegate.operators.runner import OperatorRunner
from tidegate.operators.watermark import Origin, WatermarkUpdate, decode_updates
from tidegate.physical.job_graph import (
    REPORTS,
    Branch,
    Expose,
    ExposedRows,
    Level,
    Rename,
    ShuffleWrite,
    SinkTarget,
    SinkWrite,
    Step,
    TaskProgram,
)
from tidegate.runtime.epoch import EpochReport
from tidegate.spark.tasks.levels import LevelTask, run_levels, unpack_exposed
from tidegate.spark.tasks.protocol import EpochSpec, EpochSpecStore, report_bytes
from tidegate.spark.tasks.shuffle import ShuffleWriter
from tidegate.spark.tasks.sink_write import SinkStaging
from tidegate.state import state_file as files
from tidegate.storage import open_store

L = pa.int64()
KEY_GROUPS = 4
SECOND = 1_000_000
KEY = "sales.1"
OPERATOR, EXPOSED, LATE, LATER = 1_000_000, 2_000_001, 2_000_002, 1_000_007
Row = tuple[int, int, int]


def operator(*functions: str) -> WindowAggregate:
    """Return GROUP BY k, TUMBLE(ts, 10 s) with these aggregates of a number."""
    calls = [AggregateCall(name, f"{name}(v)", (L,), L) for name in functions]
    columns = [OutputColumn("key", 0, L), OutputColumn("end", 0, L)]
    columns += [OutputColumn("result", place, L) for place, _ in enumerate(calls)]
    panes = WindowPanes("TUMBLE", 10 * SECOND)
    spec = GroupSpec((L,), tuple(calls))
    return WindowAggregate(spec, panes, OutputLayout(tuple(columns), panes))


@dataclass
class Epoch:
    """The output of an epoch."""

    rows: list[tuple[Any, ...]]
    watermark_us: int | None
    reports: EpochReport


class Tasks:
    """One operator in one task; state handles pass from epoch to epoch as in a manifest."""

    def __init__(self, folder: Path, running: WindowAggregate, delay: int = 0) -> None:
        self.folder = folder
        self.running = running
        self.delay = delay
        self.epoch_spec = EpochSpec(0, 0, 0)

    def restarted(self, running: WindowAggregate) -> Tasks:
        """Return another process with the same state handles."""
        files._verified.clear()
        again = Tasks(self.folder, running, self.delay)
        again.epoch_spec = self.epoch_spec
        return again

    def shuffled(self, rows: Iterable[Row], ends: bool = False) -> list[pa.RecordBatch]:
        """Shuffle rows of (key, seconds, value); key -1 is a row that only advances event time."""
        listed = list(rows)
        self.epoch_spec = replace(self.epoch_spec, ends=ends)
        names = [PANE, HASH, "k0", *(f"a{i}_0" for i, _ in enumerate(self.running.spec.calls))]
        stage_names = {PANE: "x0", HASH: "x1", "k0": "x2"}
        columns = tuple((name, stage_names.get(name, "x3")) for name in names)
        delays, local = ((0, self.delay),), ((0, 0),)
        write = ShuffleWrite(
            OPERATOR, ("sales",), self.running, 0, columns, delays, (0,), local, KEY_GROUPS
        )
        batch = pa.record_batch(
            {
                ORIGIN: pa.array([0] * len(listed), pa.int32()),
                EVENT_TIME: pa.array([at * SECOND for _, at, _ in listed], L),
                SELECTED: [key >= 0 for key, _, _ in listed],
                CONTROL: pa.nulls(len(listed), pa.binary()),
                "x0": pa.array([at // 10 * 10 * SECOND for _, at, _ in listed], L),
                "x1": pa.array([key for key, _, _ in listed], L),
                "x2": pa.array([key for key, _, _ in listed], L),
                "x3": pa.array([value for _, _, value in listed], L),
            }
        )
        writer = ShuffleWriter(write, 0, self.epoch_spec)
        return [*writer.add(batch), *writer.finish()]

    def program(self, *branches: Branch, **changes: Any) -> TaskProgram:
        runner = OperatorRunner(
            OPERATOR, self.running, ((Origin(0),),), canonical_form=repr(self.running)
        )
        names = tuple(self.running.output.names)
        state = str(self.folder / "state")
        step = Step(OPERATOR, "sales", (KEY,), runner, state, names, False, False)
        return TaskProgram(replace(step, **changes), branches)

    def run(self, shuffled: list[pa.RecordBatch]) -> list[dict[str, Any]]:
        level = Level((self.program((Expose(EXPOSED),)),), frozenset({EXPOSED}))
        batches = LevelTask(level, self.epoch_spec, 1).run(shuffled)
        return [row for batch in batches for row in batch.to_pylist()]

    def epoch(self, *rows: Row, ends: bool = False) -> Epoch:
        result = self.attempt(*rows, ends=ends)
        state_handles = {
            **self.epoch_spec.state_handles.get(KEY, {}),
            **result.reports.state_handles[KEY],
        }
        self.epoch_spec = replace(
            self.epoch_spec, epoch=self.epoch_spec.epoch + 1, state_handles={KEY: state_handles}
        )
        return result

    def attempt(self, *rows: Row, ends: bool = False) -> Epoch:
        """Run an epoch without committing it."""
        sent = self.run(self.shuffled(rows, ends))
        assert {row["target"] for row in sent} <= {EXPOSED, REPORTS}
        updates = [update for row in sent for update in decode_updates(row["watermark_updates"])]
        assert len(updates) <= 1, "one key group reports the watermark"
        assert all(update.origin == OPERATOR for update in updates)
        reports = EpochReport.from_reports(row["data"] for row in sent if row["target"] == REPORTS)
        exposed = [row for row in sent if row["target"] == EXPOSED]
        result = sorted(tuple(row.values()) for row in self.unpacked(exposed))
        return Epoch(result, updates[0].watermark_us if updates else None, reports)

    def unpacked(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the rows that a stage in Spark SQL would read."""
        if not rows:
            return []
        schema = self.running.output
        batches = unpack_exposed(
            ExposedRows(EXPOSED, schema), self.epoch_spec, [pa.RecordBatch.from_pylist(rows)]
        )
        table = pa.Table.from_batches(batches)
        return list(table.filter(table.column(SELECTED)).select(schema.names).to_pylist())

    def files(self) -> list[Path]:
        return sorted((self.folder / "state").glob("*"))


def test_sends_watermarks_to_all_key_groups_and_each_row_to_one(tmp_path: Path) -> None:
    tasks = Tasks(tmp_path, operator("sum"), delay=2 * SECOND)
    (shuffled,) = tasks.shuffled([(1, 3, 10), (5, 4, 20), (-1, 12, 0)])
    rows = shuffled.to_pylist()
    assert [row["key_group"] for row in rows] == [0, 1, 2, 3]
    assert [row["data"] is not None for row in rows] == [False, True, False, False]
    updates = {update for row in rows for update in decode_updates(row["watermark_updates"])}
    assert updates == {WatermarkUpdate(0, 0, 10 * SECOND)}


def test_keeps_windows_over_epochs_and_restarts_until_they_close(tmp_path: Path) -> None:
    tasks = Tasks(tmp_path, operator("sum", "max"))
    first = tasks.epoch((1, 3, 10), (2, 4, 20), (1, 5, 1))
    assert (first.rows, first.watermark_us) == ([], 5 * SECOND)
    tasks = tasks.restarted(operator("sum", "max"))
    second = tasks.epoch((-1, 10, 0))
    assert second.rows == [(1, 10 * SECOND, 11, 10), (2, 10 * SECOND, 20, 20)]
    assert second.watermark_us == 10 * SECOND
    late = tasks.epoch((1, 2, 5), (1, 10, 6))
    assert (late.rows, late.watermark_us) == ([], 10 * SECOND)
    assert sum(report["late_rows"] for report in late.reports.operator_reports[KEY]) == 1
    assert tasks.epoch(ends=True).rows == [(1, 20 * SECOND, 6, 6)]


def test_retried_task_emits_equal_rows_and_writes_another_file(tmp_path: Path) -> None:
    tasks = Tasks(tmp_path, operator("sum"))
    tasks.epoch((1, 3, 10), (2, 4, 20))
    attempts = [tasks.attempt((1, 4, 5), (-1, 11, 0)) for _ in range(3)]
    assert attempts[0].rows == [(1, 10 * SECOND, 15), (2, 10 * SECOND, 20)]
    assert all(attempt.rows == attempts[0].rows for attempt in attempts)
    assert len(tasks.files()) == 4
    named = {
        handle[0] for attempt in attempts for handle in attempt.reports.state_handles[KEY].values()
    }
    assert len(named) == 3 and all(name.startswith("000-000000000001-") for name in named)


def test_writes_one_state_file_for_all_key_groups_and_reports_it(tmp_path: Path) -> None:
    tasks = Tasks(tmp_path, operator("sum"))
    reports = tasks.epoch((0, 1, 1), (1, 1, 1), (2, 1, 1), (3, 1, 1)).reports
    (file,) = tasks.files()
    assert reports.state_handles[KEY].keys() == {"0", "1", "2", "3"}
    assert {handle[0] for handle in reports.state_handles[KEY].values()} == {file.name}
    assert reports.files[KEY] == {file.name}


def test_changed_operator_discards_rows_but_keeps_the_watermark(tmp_path: Path) -> None:
    tasks = Tasks(tmp_path, operator("sum"))
    tasks.epoch((1, 3, 10), (2, 12, 20))
    changed = tasks.restarted(operator("max"))
    result = changed.epoch((2, 13, 7), (3, 1, 1))
    assert (result.rows, result.watermark_us) == ([], 13 * SECOND)
    reports = result.reports.operator_reports[KEY]
    assert {report["discarded"] for report in reports} == {1}
    assert sum(report["late_rows"] for report in reports) == 1
    assert changed.epoch((-1, 20, 0)).rows == [(2, 20 * SECOND, 7)]


def test_rejects_damaged_state(tmp_path: Path) -> None:
    """Damage every byte in turn: the result is an error, or the byte is not read."""
    tasks = Tasks(tmp_path, operator("sum"))
    tasks.epoch((1, 3, 10))
    expected = tasks.restarted(operator("sum")).attempt((1, 4, 5), (-1, 11, 0)).rows
    (file, other) = sorted(tasks.files())
    (file, other) = (file, other) if file.name in _named(tasks) else (other, file)
    whole, rejected = file.read_bytes(), 0
    for place in range(0, len(whole), 3):
        damaged = bytearray(whole)
        damaged[place] ^= 0x10
        file.unlink()
        file.write_bytes(damaged)
        hurt = tasks.restarted(operator("sum"))
        try:
            assert hurt.attempt((1, 4, 5), (-1, 11, 0)).rows == expected
        except DataDirectoryError as error:
            rejected += 1
            assert error.code == "TG-605"
            assert "the stream sales, operator window_aggregate" in error.message
            assert "remove the data" in (error.hint or "")
    # The remaining bytes are gaps between entries.
    assert rejected > len(whole) / 3 * 0.6


def _named(tasks: Tasks) -> set[str]:
    return {handle[0] for handle in tasks.epoch_spec.state_handles[KEY].values()}


@pytest.mark.parametrize("length", [None, 0, 1, 63, 64, 200])
def test_rejects_missing_or_truncated_state(tmp_path: Path, length: int | None) -> None:
    tasks = Tasks(tmp_path, operator("sum"))
    tasks.epoch((1, 3, 10))
    (file,) = tasks.files()
    if length is None:
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:length])
    with pytest.raises(DataDirectoryError) as caught:
        tasks.restarted(operator("sum")).attempt((1, 4, 5))
    assert caught.value.code == "TG-605"


@dataclass
class CollectingSink:
    """A sink that collects its rows."""

    tables: list[pa.Table] = field(default_factory=list)

    def open(self, stamp: str, task: int) -> CollectingSink:
        self.stamp = stamp
        return self

    def add(self, rows: pa.Table) -> None:
        self.tables.append(rows)

    def finish(self) -> list[str]:
        return [f"{self.stamp}: {sum(table.num_rows for table in self.tables)}"]

    def rows(self) -> list[dict[str, Any]]:
        return [row for table in self.tables for row in table.to_pylist()]


def test_each_branch_gets_all_rows_with_the_names_of_its_reader(tmp_path: Path) -> None:
    tasks = Tasks(tmp_path, operator("sum"))
    sinks = CollectingSink(), CollectingSink()
    branches = [
        (Rename(names), SinkWrite(stream, (SinkTarget(stream, sink, names[:1], ("key",)),)))
        for stream, names, sink in zip("ab", (("x", "y", "z"), ("u", "v", "w")), sinks, strict=True)
    ]
    level = Level((tasks.program(*branches),))
    rows = tasks.shuffled([(1, 3, 10), (2, 4, 20)], ends=True)
    sent = [row for b in LevelTask(level, tasks.epoch_spec, 1).run(rows) for row in b.to_pylist()]
    assert [sorted(row["key"] for row in sink.rows()) for sink in sinks] == [[1, 2], [1, 2]]
    report = EpochReport.from_reports(row["data"] for row in sent)
    assert {name: stream.rows_out for name, stream in report.streams.items()} == {"a": 2, "b": 2}
    assert report.state_handles.keys() == {KEY}, "the operator ran once"


def test_operator_with_several_keys_reports_its_state_for_each(tmp_path: Path) -> None:
    tasks = Tasks(tmp_path, operator("sum"))
    level = Level((tasks.program((Expose(EXPOSED),), keys=(KEY, "other.1")),))
    rows = tasks.shuffled([(1, 3, 10)])
    sent = [row for b in LevelTask(level, tasks.epoch_spec, 1).run(rows) for row in b.to_pylist()]
    reports = EpochReport.from_reports(row["data"] for row in sent if row["target"] == REPORTS)
    assert reports.state_handles[KEY] == reports.state_handles["other.1"]
    assert len(tasks.files()) == 1


def test_level_relays_reports_and_rows_of_later_levels(tmp_path: Path) -> None:
    tasks = Tasks(tmp_path, operator("sum"))
    rows = tasks.shuffled([(1, 3, 10)])
    later = [
        batch.set_column(0, "target", pa.array([target] * batch.num_rows, pa.int32()))
        for batch in rows
        for target in (LATER, REPORTS)
    ]
    level = Level((tasks.program((Expose(EXPOSED),)),), frozenset({LATER}))
    sent = list(LevelTask(level, tasks.epoch_spec, 1).run([*later, *rows]))
    assert sent[:2] == later, "they are relayed as they are"
    targets = {target for batch in sent[2:] for target in batch.column("target").to_pylist()}
    assert targets == {EXPOSED, REPORTS}


def test_level_drops_rows_that_nothing_reads(tmp_path: Path) -> None:
    """The rows for an exposed target end where the stage in Spark SQL reads them."""
    tasks = Tasks(tmp_path, operator("sum"))
    rows = [
        batch.set_column(0, "target", pa.array([EXPOSED] * batch.num_rows, pa.int32()))
        for batch in tasks.shuffled([(1, 3, 10)])
    ]
    assert list(LevelTask(Level(()), tasks.epoch_spec, 1).run(rows)) == []


def test_levels_in_one_task_equal_levels_one_after_the_other(tmp_path: Path) -> None:
    outputs = []
    for folder in ("fused", "separate"):
        tasks = Tasks(tmp_path / folder, operator("sum"))
        rows = tasks.shuffled([(1, 3, 10), (2, 4, 20), (1, 14, 1), (-1, 30, 0)])
        relay = Level((), frozenset({OPERATOR}))
        step = Level((tasks.program((Expose(EXPOSED),)),))
        if folder == "fused":
            batches = list(run_levels([relay, step], tasks.epoch_spec, 1, rows, reads=False))
        else:
            relayed = list(run_levels([relay], tasks.epoch_spec, 1, rows, reads=False))
            batches = list(run_levels([step], tasks.epoch_spec, 1, relayed, reads=False))
        sent = [row for batch in batches for row in batch.to_pylist()]
        outputs.append([row for row in sent if row["target"] == EXPOSED])
    assert outputs[0] == outputs[1] and outputs[0]


def test_stages_rows_for_every_sink_and_reports_the_rest() -> None:
    one, two, letters = CollectingSink(), CollectingSink(), CollectingSink()
    sinks = (
        SinkTarget("one", one, ("a", "b"), ("x", "y")),
        SinkTarget("two", two, ("b",), ("b",)),
        SinkTarget("letters", letters, ("l",), ("l",), selected_by="is_letter"),
    )
    letter = b'D{"record": "x"}'
    batch = pa.table(
        {
            "a": pa.array([1, 2, None, None, None]),
            "b": pa.array(["p", "q", None, None, None]),
            "l": pa.array([None, None, None, 5, None], L),
            "is_letter": [False, False, False, True, False],
            ORIGIN: pa.array([0, 1, 0, None, 0], pa.int32()),
            EVENT_TIME: pa.array([70, 30, None, None, MALFORMED_EVENT_TIME], L),
            SELECTED: [True, True, False, False, False],
            CONTROL: pa.array(
                [None, None, report_bytes({"streams": ["s"], "rows": 3}), None, letter],
                pa.binary(),
            ),
        }
    )
    staging = SinkStaging(SinkWrite("s", sinks, reads_source=True), EpochSpec(2, 9, 0), 0)
    staging.add(batch)
    reports = EpochReport.from_reports(staging.finish())
    assert one.rows() == [{"x": 1, "y": "p"}, {"x": 2, "y": "q"}]
    assert two.rows() == [{"b": "p"}, {"b": "q"}]
    assert letters.rows() == [{"l": 5}]
    stamp = "002-000000000009"
    assert reports.committables == {
        "one": [f"{stamp}: 2"],
        "two": [f"{stamp}: 2"],
        "letters": [f"{stamp}: 1"],
    }
    report = reports.streams["s"]
    assert (report.rows_in, report.rows_out) == (3, 2)
    assert (report.malformed, report.failed) == (1, 1)
    assert report.event_times_us == {"0": 70, "1": 30}


def test_side_rows_do_not_count_as_output_of_the_stream() -> None:
    sink = CollectingSink()
    write = SinkWrite("s", (SinkTarget("late", sink, ("a",), ("a",)),), counts=False)
    staging = SinkStaging(write, EpochSpec(2, 9, 0), 0)
    staging.add(pa.table({"a": [1, 2]}))
    assert [json.loads(report) for report in staging.finish()] == [
        {"sink": "late", "committables": ["002-000000000009: 2"]}
    ]
    assert sink.rows() == [{"a": 1}, {"a": 2}]


def test_epoch_specs_of_two_drivers_are_separate_and_removed_with_them(tmp_path: Path) -> None:
    one, two = (EpochSpecStore(str(tmp_path), name) for name in ("a.json", "b.json"))
    first = EpochSpec(0, 1, 5, True, {"s": [[1], []]}, {KEY: {"0": ["f", 0, 1, 2]}})
    one.write(first)
    two.write(EpochSpec(0, 2, 6))
    assert one.read() == first and two.read().epoch == 2
    one.forget()
    assert [item.name for item in open_store(str(tmp_path)).list()] == ["b.json"]
    assert json.loads((tmp_path / "b.json").read_text())["epoch"] == 2
