"""The shell of an operator, without Spark: blobs and ticks in, rows and ticks out, state between."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming.tws_tester import TwsTester

from tidegate.columns import LIVE, MARK, ORIGIN
from tidegate.errors import DataDirectoryError
from tidegate.operators.accumulators import Call
from tidegate.operators.clock import END_US, Origin, decode_ticks
from tidegate.operators.epoch import Runner
from tidegate.operators.group_kernels import HASH, PANE, GroupSpec
from tidegate.operators.layout import Layout, OutputColumn
from tidegate.operators.panes import Panes
from tidegate.operators.window_aggregate import WindowAggregate
from tidegate.spark.pack import MAIN, TICK_PORT, PackSpec, packer
from tidegate.spark.processor import Processor, Reports
from tidegate.state.codec import table_from_bytes

L = pa.int64()
KEY_GROUPS = 4
SECOND = 1_000_000


def operator(*functions: str) -> WindowAggregate:
    """GROUP BY k, TUMBLE(ts, 10 s) with some aggregates of a number."""
    calls = [Call(name, f"{name}(v)", (L,), L) for name in functions]
    columns = [OutputColumn("key", 0, L), OutputColumn("due", 0, L)]
    columns += [OutputColumn("result", place, L) for place, _ in enumerate(calls)]
    panes = Panes("TUMBLE", 10 * SECOND)
    spec = GroupSpec((L,), tuple(calls))
    return WindowAggregate(spec, panes, Layout(tuple(columns), panes))


class Heard:
    """Stands for Spark's accumulator."""

    def __init__(self) -> None:
        self.value: Reports = {}

    def add(self, reports: Reports) -> None:
        self.value.update(reports)


class Shell:
    """The pack step and a processor for each operator that takes over the same state."""

    def __init__(self, running: WindowAggregate, entries: dict[int, Any] | None = None) -> None:
        self.running = running
        self.heard = Heard()
        runner = Runner(1000, running, ((Origin(0),),), meaning=repr(running))
        self.tester = TwsTester(Processor(runner, "sales", self.heard))  # type: ignore[arg-type]
        for key_group, stored in (entries or {}).items():
            self.tester.updateMapState("entries", key_group, stored)

    def packed(self, rows: Iterable[tuple[int, int, int]], delay: int = 0) -> pd.DataFrame:
        """(key, seconds, value) as a task of the pack step sends them; a dead row tells time."""
        listed = list(rows)
        names = [PANE, HASH, "k0", *(f"a{i}_0" for i, _ in enumerate(self.running.spec.calls))]
        given = {PANE: "x0", HASH: "x1", "k0": "x2"}
        columns = tuple((name, given.get(name, "x3")) for name in names)
        spec = PackSpec(self.running, 0, columns, ((0, delay),), KEY_GROUPS)
        batch = pa.record_batch(
            {
                ORIGIN: pa.array([0] * len(listed), pa.int32()),
                MARK: pa.array([at * SECOND for _, at, _ in listed], L),
                LIVE: [key >= 0 for key, _, _ in listed],
                "x0": pa.array([at // 10 * 10 * SECOND for _, at, _ in listed], L),
                "x1": pa.array([key for key, _, _ in listed], L),
                "x2": pa.array([key for key, _, _ in listed], L),
                "x3": pa.array([value for _, _, value in listed], L),
            }
        )
        frames = [part.to_pandas() for part in packer(spec)(iter([batch]))]
        return pd.concat(frames) if frames else pd.DataFrame()

    def epoch(self, *rows: tuple[int, int, int]) -> tuple[list[tuple[Any, ...]], int | None]:
        """What came out, and the operator's own tick."""
        packed = self.packed(rows)
        found, mark = [], None
        for key_group, frame in packed.groupby("kg"):
            given = [Row(**row) for row in frame.to_dict("records")]
            for port, at, _, data in self.tester.test(key_group, given):
                if port == MAIN:
                    table = table_from_bytes(data, self.running.output)
                    found += [tuple(row.values()) for row in table.to_pylist()]
                elif port == TICK_PORT:
                    assert (mark, key_group) == (None, 0), "one key group speaks for all"
                    mark = at
        return sorted(found), mark

    def entries(self) -> dict[int, Any]:
        return {kg: self.tester.peekMapState("entries", kg) for kg in range(KEY_GROUPS)}


def test_ticks_reach_every_key_group_and_rows_one() -> None:
    packed = Shell(operator("sum")).packed([(1, 3, 10), (5, 4, 20), (-1, 12, 0)], 2 * SECOND)
    assert packed["kg"].tolist() == [0, 1, 2, 3]
    assert [len(data) if data is not None else 0 for data in packed["data"]][0::2] == [0, 0]
    assert {(t.origin, t.mark_us) for b in packed["ticks"] for t in decode_ticks(b)} == {
        (0, 10 * SECOND)
    }


def test_a_window_is_kept_over_epochs_and_restarts_and_closes_with_its_tick() -> None:
    shell = Shell(operator("sum", "max"))
    assert shell.epoch((1, 3, 10), (2, 4, 20), (1, 5, 1)) == ([], 5 * SECOND)
    shell = Shell(operator("sum", "max"), shell.entries())
    closed = [(1, 10 * SECOND, 11, 10), (2, 10 * SECOND, 20, 20)]
    assert shell.epoch((-1, 10, 0)) == (closed, 10 * SECOND)
    assert shell.epoch((1, 2, 5), (1, 10, 6)) == ([], 10 * SECOND)
    late = {kg: report["late_rows"] for (_, kg), report in shell.heard.value.items()}
    assert late == {0: 0, 1: 1, 2: 0, 3: 0}
    assert shell.epoch((-1, END_US // SECOND, 0))[0] == [(1, 20 * SECOND, 6, 6)]


def test_a_changed_operator_forgets_its_rows_but_not_the_time() -> None:
    shell = Shell(operator("sum"))
    shell.epoch((1, 3, 10), (2, 12, 20))
    changed = Shell(operator("max"), shell.entries())
    assert changed.epoch((2, 13, 7), (3, 1, 1)) == ([], 13 * SECOND)
    reports = changed.heard.value.values()
    assert {report["discarded"] for report in reports} == {1}
    assert sum(report["late_rows"] for report in reports) == 1
    assert changed.epoch((-1, 20, 0))[0] == [(2, 20 * SECOND, 7)]


@pytest.mark.parametrize("place", [0, 10, 20, 30, 40, -1])
def test_damaged_state_is_an_error_and_never_other_rows(place: int) -> None:
    shell = Shell(operator("sum"))
    shell.epoch((1, 3, 10))
    entries = shell.entries()
    for key, (value,) in list(entries[1].items()):
        damaged = bytearray(value)
        damaged[place] ^= 0x10
        hurt = Shell(operator("sum"), {**entries, 1: {**entries[1], key: (bytes(damaged),)}})
        with pytest.raises(DataDirectoryError) as caught:
            hurt.epoch((1, 11, 5))
        assert caught.value.code == "TG-605"
        assert "the stream sales, operator window_aggregate" in caught.value.message
        assert "remove the data of the stream" in (caught.value.hint or "")
