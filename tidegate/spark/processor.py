"""The shell in which Spark runs an operator: one call an epoch and key group."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.accumulators import Accumulator, AccumulatorParam
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from tidegate.operators.clock import decode_ticks
from tidegate.operators.epoch import EpochResult, Runner
from tidegate.spark.pack import LATE_PORT, MAIN, PASSING, TICK_PORT
from tidegate.spark.worker import keep_what_is_loaded
from tidegate.state.codec import table_to_bytes, tables_from_bytes
from tidegate.state.keys import delimit

Reports = dict[tuple[int, int], dict[str, Any]]
_OUT = Row("port", "mark", "idle", "data")


class ReportParam(AccumulatorParam[Reports]):
    """Keeps the last report of every operator and key group."""

    def zero(self, value: Reports) -> Reports:
        return {}

    def addInPlace(self, value1: Reports, value2: Reports) -> Reports:  # noqa: N802
        value1.update(value2)
        return value1


class SparkBackend:
    """The state of one key group in Spark's state store: one map from bytes to bytes."""

    def __init__(self, entries: Any) -> None:
        self.entries = entries

    def get(self, name: str, key: bytes) -> bytes | None:
        found = self.entries.getValue((_full(name, key),))
        return None if found is None else bytes(found[0])

    def put(self, name: str, key: bytes, value: bytes) -> None:
        self.entries.updateValue((_full(name, key),), (value,))

    def delete(self, name: str, key: bytes) -> None:
        self.entries.removeKey((_full(name, key),))

    def scan(
        self, name: str, start: bytes = b"", end: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        prefix = _full(name, b"")
        found = []
        for (full,) in self.entries.keys():  # noqa: SIM118
            key = bytes(full)
            if key.startswith(prefix):
                found.append(key[len(prefix) :])
        for key in sorted(found):
            value = self.get(name, key) if key >= start and (end is None or key < end) else None
            if value is not None:
                yield key, value

    def clear(self) -> None:
        self.entries.clear()


def _full(name: str, key: bytes) -> bytes:
    return delimit(name.encode()) + key


class Processor(StatefulProcessor):
    """Feeds a runner with what came in for a key group, and hands out what it says."""

    def __init__(self, runner: Runner, stream: str, reports: Accumulator[Reports] | None) -> None:
        self.runner = runner
        self.stream = stream
        self.reports = reports
        self.entries: Any = None

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.entries = handle.getMapState("entries", "key BINARY", "value BINARY")

    def handleInputRows(  # noqa: N802
        self,
        key: Any,
        rows: Iterator[Row],
        timerValues: Any,  # noqa: N803
    ) -> Iterator[Row]:
        key_group = int(key[0])
        operator = self.runner.operator
        found = sorted(map(_fields, rows), key=lambda row: row[:3])
        inputs: list[list[tuple[Any, ...]]] = [[] for _ in operator.packed]
        ticks, now, passing = [], -1, []
        for port, _, _, at, tick, data in found:
            now = max(now, at)
            ticks += decode_ticks(tick)
            if data is None:
                continue
            if port == PASSING:
                passing.append(data)
            else:
                inputs[port].append(tuple(tables_from_bytes(data, operator.packed[port])))
        what = f"the state of the stream {self.stream}, operator {operator.name}"
        backend = SparkBackend(self.entries)
        result = self.runner.run(backend, inputs, ticks, now if now >= 0 else None, what, key_group)
        if self.reports is not None:
            self.reports.add({(self.runner.id, key_group): result.report})
        handed = list(_handed_out(result, key_group, passing))
        for row in handed:
            yield _OUT(*row)

    def close(self) -> None:
        """Nothing is kept between epochs but what is loaded."""
        keep_what_is_loaded()


def _fields(row: Row) -> tuple[int, int, int, int, bytes, bytes | None]:
    return row["port"], row["task"], row["part"], row["now"], row["ticks"], row["data"]


def _handed_out(
    result: EpochResult, key_group: int, passing: list[bytes]
) -> Iterator[tuple[int, int, bool, bytes | None]]:
    for table in result.output.main:
        if table.num_rows:
            yield MAIN, 0, False, table_to_bytes(table)
    for table in result.output.late:
        if table.num_rows:
            yield LATE_PORT, 0, False, table_to_bytes(table)
    for data in passing:
        yield LATE_PORT, 0, False, data
    # All key groups have the same watermark, so one tells it.
    if key_group == 0 and result.tick is not None:
        yield TICK_PORT, result.tick.mark_us, result.tick.idle, None
