"""Runs an operator without Spark: pre-aggregation by task, shuffle, then a step of every key group.

Columns that Spark SQL computes for an operator (pane, hash, keys, arguments) are computed here in
Python.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa

from tidegate.columns import HASH, PANE, WEIGHT
from tidegate.operators import operator as contract
from tidegate.operators.aggregate.functions import AggregateCall
from tidegate.operators.aggregate.groups import GroupSpec, OutputColumn, OutputLayout, WindowPanes
from tidegate.operators.aggregate.sessions import RetractingSessionAggregate, SessionAggregate
from tidegate.operators.aggregate.updating import UpdatingAggregate
from tidegate.operators.aggregate.window import WindowAggregate
from tidegate.operators.kernels.keys import canonicalize
from tidegate.operators.late_rows import LateRowFormat
from tidegate.operators.operator import NO_LIMITS, Limits, Operator, Tables
from tidegate.operators.runner import OperatorRunner
from tidegate.operators.store import time_buckets as segments
from tidegate.operators.watermark import END_OF_INPUT_US, Origin, WatermarkUpdate
from tidegate.state import codec
from tidegate.state.memory import MemoryStore

L, D, S, B = pa.int64(), pa.float64(), pa.string(), pa.bool_()
SECOND = 1_000_000
MINUTE = 60 * SECOND


@dataclass(frozen=True)
class Row:
    """An input row; `values` are the columns that aggregates read, and weight −1 retracts it.

    `id` identifies it among late rows.
    """

    ts: int
    keys: tuple[Any, ...] = ()
    values: tuple[Any, ...] = ()
    weight: int = 1
    id: int = 0


@dataclass(frozen=True)
class Query:
    """A GROUP BY. Argument j of call i is the value column `arguments[i][j]`.

    Call i ignores rows for which the column `filters[i]` is not true. `mode` is close, early, or
    end; without `panes` and `gap_us` there are no windows. Window times are emitted as numbers.
    """

    keys: tuple[pa.DataType, ...] = ()
    values: tuple[pa.DataType, ...] = ()
    calls: tuple[AggregateCall, ...] = (AggregateCall("count", "count(*)", (), L),)
    arguments: tuple[tuple[int, ...], ...] = ((),)
    filters: tuple[int | None, ...] = (None,)
    panes: WindowPanes | None = None
    gap_us: int | None = None
    mode: str = "close"
    lateness_us: int = 0
    every_us: int | None = None
    ttl_us: int | None = None
    retracts: bool = False
    keeps_late: bool = False
    limits: Limits = NO_LIMITS

    @property
    def windowed(self) -> bool:
        return self.panes is not None or self.gap_us is not None

    @property
    def with_op(self) -> bool:
        return self.mode == "early" or self.lateness_us > 0

    @property
    def spec(self) -> GroupSpec:
        return GroupSpec(self.keys, self.calls, self.retracts)

    def outputs(self) -> tuple[OutputColumn, ...]:
        """Return the output columns: keys, start and end of the window, results."""
        columns = [OutputColumn("key", index, kind) for index, kind in enumerate(self.keys)]
        if self.windowed:
            columns += [self._start(), OutputColumn("end", 0, L)]
        results = enumerate(self.calls)
        return (*columns, *(OutputColumn("result", index, call.result) for index, call in results))

    def _start(self) -> OutputColumn:
        if self.panes is not None and self.panes.kind in ("TUMBLE", "HOP", "CLOSING_TIME"):
            return OutputColumn("end", 0, L, -self.panes.size_us)
        return OutputColumn("start", 0, L)

    def operator(self) -> Operator:
        """Return the operator that `physical.aggregate` would choose."""
        layout = OutputLayout(
            self.outputs(), self.panes or WindowPanes("CLOSING_TIME"), self.with_op
        )
        late = self.late_rows() if self.keeps_late else None
        early = self.mode == "early"
        if self.gap_us is not None:
            kind = RetractingSessionAggregate if self.retracts else SessionAggregate
            return kind(self.spec, self.gap_us, layout, self.lateness_us, early, late, self.limits)
        if self.panes is not None and not early:
            return WindowAggregate(
                self.spec, self.panes, layout, self.lateness_us, late, self.limits
            )
        return UpdatingAggregate(
            self.spec,
            layout,
            self.panes,
            self.lateness_us,
            self.every_us,
            self.mode == "end",
            self.ttl_us,
            late,
            self.limits,
        )

    def late_rows(self) -> LateRowFormat:
        """Return late rows with the id and the time of the row."""
        required = [item for item in self.table([]).schema if not item.name.startswith("l")]
        return LateRowFormat("an_operator", pa.schema(required), (L, L))

    # Columns that SQL computes

    def table(self, rows: Sequence[Row]) -> pa.Table:
        """Return rows as the operator receives them."""
        columns = {
            PANE: pa.array([self.pane(row.ts) for row in rows], L),
            HASH: pa.array([hash_of(row.keys) for row in rows], L),
        }
        for index, kind in enumerate(self.keys):
            columns[f"k{index}"] = canonicalize(pa.array([row.keys[index] for row in rows], kind))
        if self.retracts:
            columns[WEIGHT] = pa.array([row.weight for row in rows], L)
        for index, call in enumerate(self.calls):
            for number, kind in enumerate(call.arguments):
                values = [self._argument(row, index, number) for row in rows]
                columns[f"a{index}_{number}"] = pa.array(values, kind)
        columns["l0"] = pa.array([row.id for row in rows], L)
        columns["l1"] = pa.array([row.ts for row in rows], L)
        return pa.table(columns)

    def arguments_of(self, row: Row) -> list[Any]:
        """Return the arguments of all calls for a row."""
        calls = enumerate(self.calls)
        return [
            self._argument(row, i, p) for i, call in calls for p, _ in enumerate(call.arguments)
        ]

    def _argument(self, row: Row, index: int, number: int) -> Any:
        """Return CASE WHEN filter THEN argument END; count(*) FILTER (…) has the argument 1."""
        condition = self.filters[index]
        if condition is not None and row.values[condition] is not True:
            return None
        columns = self.arguments[index]
        return row.values[columns[number]] if columns else 1

    def pane(self, ts: int) -> int:
        if self.gap_us is not None:
            return ts
        if self.panes is None:
            return 0
        if self.panes.kind == "CLOSING_TIME":
            return ts - ts % self.panes.size_us + self.panes.size_us
        return ts - (ts - self.panes.offset_us) % self.panes.width_us


def hash_of(keys: tuple[Any, ...]) -> int:
    """Return 64 bits of the keys, the same for equal keys; 0 without keys."""
    if not keys:
        return 0
    digest = blake2b(repr(normalize_keys(keys)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def normalize_keys(keys: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return keys that are equal in Python if SQL takes them as equal."""
    return tuple(_normalize(key) for key in keys)


def row_identity(cells: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return cells that are equal in Python if one retracts the other: zeros keep their sign."""
    return tuple(
        (_normalize(cell), math.copysign(1, 0 if math.isnan(cell) else cell))
        if isinstance(cell, float)
        else cell
        for cell in cells
    )


def _normalize(key: Any) -> Any:
    if isinstance(key, float):
        return "NaN" if math.isnan(key) else key + 0.0
    return key


@dataclass
class Epoch:
    """The output of all key groups in an epoch; rows are tuples in the order of the columns."""

    rows: list[tuple[Any, ...]] = field(default_factory=list)
    late: list[dict[str, Any]] = field(default_factory=list)
    reports: list[dict[str, Any]] = field(default_factory=list)
    update: WatermarkUpdate | None = None

    @property
    def watermark(self) -> int | None:
        return self.update.watermark_us if self.update is not None else None

    @property
    def late_rows(self) -> int:
        return sum(report["late_rows"] for report in self.reports)


Task = Sequence[Sequence[Row]]  # the batches of a task


class Harness:
    """An operator with one input and its state; `make` creates the operator after a restart."""

    def __init__(
        self,
        make: Callable[[], Operator],
        table: Callable[[Sequence[Row]], pa.Table],
        key_groups: int = 2,
        origins: tuple[Origin, ...] = (Origin(0),),
        output_delay_us: int = 0,
    ) -> None:
        self.make, self.table = make, table
        self.key_groups, self.origins = key_groups, origins
        self.output_delay_us = output_delay_us
        self.store = MemoryStore()
        self.runner = self._runner()
        self.epochs: list[Epoch] = []

    def _runner(self) -> OperatorRunner:
        operator = self.make()
        return OperatorRunner(
            1,
            operator,
            (self.origins,),
            output_watermark_delay_us=self.output_delay_us,
            canonical_form=repr(operator),
        )

    def restart(self) -> None:
        """Keep only the stored bytes."""
        self.store = MemoryStore.restore(self.store.snapshot())
        self.runner = self._runner()

    def epoch(
        self,
        tasks: Sequence[Task] = (),
        updates: Sequence[WatermarkUpdate] = (),
        now_us: int | None = None,
    ) -> Epoch:
        """Pre-aggregate the rows of every task, then step every key group."""
        inputs: list[list[Tables]] = [[] for _ in range(self.key_groups)]
        for batches in tasks:
            for key_group, tables in self._shuffle(batches):
                inputs[key_group].append(tables)
        epoch = Epoch()
        for key_group, parts in enumerate(inputs):
            backend = self.store.backend(1, key_group)
            result = self.runner.run_epoch(backend, [parts], updates, now_us, key_group=key_group)
            schema = self.runner.operator.output
            for table in result.output.rows:
                assert table.schema.equals(schema), (table.schema, schema)
                epoch.rows += rows_of(table)
            for table in result.output.late:
                assert table.schema.equals(self.runner.operator.late)
                epoch.late += table.to_pylist()
            epoch.reports.append(result.report)
            assert key_group == 0 or result.update == epoch.update, "all have the same watermark"
            epoch.update = result.update
        self.epochs.append(epoch)
        return epoch

    def _shuffle(self, batches: Task) -> list[tuple[int, Tables]]:
        """Pre-aggregate and combine batches, and return the serialized tables by key group."""
        operator = self.runner.operator
        parts = [operator.pre_aggregate(0, self.table(batch)) for batch in batches if batch]
        if not parts:
            return []
        combined = operator.combine(0, parts)
        shuffled = []
        for key_group in range(self.key_groups):
            tables = select_key_group(combined, key_group, self.key_groups)
            if any(table.num_rows for table in tables):
                data = codec.tables_to_bytes(tables)
                schemas = operator.shuffle_schemas[0]
                shuffled.append((key_group, tuple(codec.tables_from_bytes(data, schemas))))
        return shuffled

    def rows(self, rows: Sequence[Row], watermark_us: int | None = None, **options: Any) -> Epoch:
        """Run an epoch of one task with one batch and an update of the only origin."""
        origin = self.origins[0].id
        updates = [WatermarkUpdate(origin, 0, watermark_us)] if watermark_us is not None else []
        return self.epoch([[rows]], updates, **options)

    def end(self) -> Epoch:
        """Run an epoch in which all origins end."""
        return self.epoch(
            (), [WatermarkUpdate(origin.id, 0, END_OF_INPUT_US) for origin in self.origins]
        )

    def stored_names(self) -> list[str]:
        """Return the names of the stored tables, inline or not."""
        entries = self.store.scan_key_groups(1, 0, self.key_groups)
        names = [key.name for key, _ in entries if key.name != "header"]
        runner = self._runner()
        for key_group in range(self.key_groups):
            _, state, _ = runner._load(self.store.backend(1, key_group), True)
            names += [inline_key.partition(b"\0")[0].decode() for inline_key in state.inline]
        return names


def select_key_group(tables: Tables, key_group: int, key_groups: int) -> Tables:
    """Return the rows of one key group."""
    return tuple(
        table.filter(pa.array(np.mod(table.column(HASH).to_numpy(), key_groups) == key_group))
        for table in tables
    )


def rows_of(table: pa.Table) -> list[tuple[Any, ...]]:
    columns = [column.to_pylist() for column in table.columns]
    return list(zip(*columns, strict=True))


def harness_of(query: Query, **options: Any) -> Harness:
    return Harness(query.operator, query.table, **options)


def call(function: str, kind: pa.DataType, result: pa.DataType, **options: Any) -> AggregateCall:
    return AggregateCall(function, f"{function}(x)", (kind,), result, **options)


@contextmanager
def state_limits(small: bool) -> Iterator[None]:
    """Make buckets and the header small, so that a few epochs split, merge and spill them."""
    if not small:
        yield
        return
    with (
        patch.multiple(segments, _MAX_BUCKETS=4, _BUCKET_ROWS=2, _MAX_SEGMENTS=3, _FANOUT=2),
        patch.multiple(contract, INLINE_BYTES=600, HEADER_BYTES=1_500),
    ):
        yield
