"""Drives an operator without Spark: rows to partials by task, then an epoch of every key group.

What Spark's SQL computes for an operator (pane, hash, keys, arguments) is computed here in Python.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.columns import HASH, PANE, WEIGHT
from tidegate.operators.aggregate.functions import AggregateCall
from tidegate.operators.aggregate.groups import GroupSpec, Layout, OutputColumn, Panes
from tidegate.operators.aggregate.keyed import KeyedAggregate
from tidegate.operators.aggregate.sessions import SessionAggregate, UpdatingSessions
from tidegate.operators.aggregate.window import WindowAggregate
from tidegate.operators.kernels.keys import canonicalize
from tidegate.operators.late_rows import LateRows
from tidegate.operators.operator import NO_LIMITS, Limits, Operator, Tables
from tidegate.operators.runner import Runner
from tidegate.operators.watermark import END_US, Origin, WatermarkUpdate
from tidegate.state import codec
from tidegate.state.memory import MemoryStore

L, D, S, B = pa.int64(), pa.float64(), pa.string(), pa.bool_()
SECOND = 1_000_000
MINUTE = 60 * SECOND


@dataclass(frozen=True)
class Row:
    """`id` tells rows apart; `values` are the columns that aggregates read; −1 takes one back."""

    ts: int
    keys: tuple[Any, ...] = ()
    values: tuple[Any, ...] = ()
    weight: int = 1
    id: int = 0


@dataclass(frozen=True)
class Query:
    """A GROUP BY. Argument j of call i is the value column `arguments[i][j]`.

    Rows where the column `filters[i]` is not true do not exist for call i. `mode` is close, early,
    or end; without `panes` and `gap_us` there are no windows. Times come out as numbers.
    """

    keys: tuple[pa.DataType, ...] = ()
    values: tuple[pa.DataType, ...] = ()
    calls: tuple[AggregateCall, ...] = (AggregateCall("count", "count(*)", (), L),)
    arguments: tuple[tuple[int, ...], ...] = ((),)
    filters: tuple[int | None, ...] = (None,)
    panes: Panes | None = None
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
        """Keys, start and end of the window, results."""
        columns = [OutputColumn("key", index, kind) for index, kind in enumerate(self.keys)]
        if self.windowed:
            columns += [self._start(), OutputColumn("due", 0, L)]
        results = enumerate(self.calls)
        return (*columns, *(OutputColumn("result", index, call.result) for index, call in results))

    def _start(self) -> OutputColumn:
        if self.panes is not None and self.panes.kind in ("TUMBLE", "HOP", "DUE"):
            return OutputColumn("due", -self.panes.size_us, L)
        return OutputColumn("start", 0, L)

    def operator(self) -> Operator:
        """As `spark.operators` chooses it."""
        layout = Layout(self.outputs(), self.panes or Panes("DUE"), self.with_op)
        late = self.late_rows() if self.keeps_late else None
        early = self.mode == "early"
        if self.gap_us is not None:
            kind = UpdatingSessions if self.retracts else SessionAggregate
            return kind(self.spec, self.gap_us, layout, self.lateness_us, early, late, self.limits)
        if self.panes is not None and not early:
            return WindowAggregate(
                self.spec, self.panes, layout, self.lateness_us, late, self.limits
            )
        return KeyedAggregate(
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

    def late_rows(self) -> LateRows:
        table = self.table([])
        needed = [item for item in table.schema if not item.name.startswith("l")]
        return LateRows("an_operator", pa.schema(needed), (L, L))

    # What SQL does

    def table(self, rows: Sequence[Row]) -> pa.Table:
        """Rows as an operator gets them; a late row is its id and time."""
        columns = {
            PANE: pa.array([self.pane(row.ts) for row in rows], L),
            HASH: pa.array([hash_of(row.keys) for row in rows], L),
        }
        for index, kind in enumerate(self.keys):
            columns[f"k{index}"] = canonicalize(pa.array([row.keys[index] for row in rows], kind))
        if self.retracts:
            columns[WEIGHT] = pa.array([row.weight for row in rows], L)
        for index, call in enumerate(self.calls):
            for place, kind in enumerate(call.arguments):
                values = [self._argument(row, index, place) for row in rows]
                columns[f"a{index}_{place}"] = pa.array(values, kind)
        columns["l0"] = pa.array([row.id for row in rows], L)
        columns["l1"] = pa.array([row.ts for row in rows], L)
        return pa.table(columns)

    def arguments_of(self, row: Row) -> list[Any]:
        """All that the aggregates read of a row."""
        calls = enumerate(self.calls)
        return [
            self._argument(row, i, p) for i, call in calls for p, _ in enumerate(call.arguments)
        ]

    def _argument(self, row: Row, index: int, place: int) -> Any:
        """CASE WHEN filter THEN argument END; of count(*) FILTER (…) the argument is 1."""
        condition = self.filters[index]
        if condition is not None and row.values[condition] is not True:
            return None
        columns = self.arguments[index]
        return row.values[columns[place]] if columns else 1

    def pane(self, ts: int) -> int:
        if self.gap_us is not None:
            return ts
        if self.panes is None:
            return 0
        if self.panes.kind == "DUE":
            return ts - ts % self.panes.size_us + self.panes.size_us
        return ts - (ts - self.panes.offset_us) % self.panes.width_us


def hash_of(keys: tuple[Any, ...]) -> int:
    """64 bits of the keys; equal keys have equal ones, and without keys it is 0."""
    if not keys:
        return 0
    digest = blake2b(repr(same_keys(keys)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def same_keys(keys: tuple[Any, ...]) -> tuple[Any, ...]:
    """Keys that SQL takes as equal are equal in Python."""
    return tuple(_same(key) for key in keys)


def identical(cells: tuple[Any, ...]) -> tuple[Any, ...]:
    """Cells of which a retraction of one retracts the other: zeros keep their sign."""
    return tuple(
        (_same(cell), math.copysign(1, 0 if math.isnan(cell) else cell))
        if isinstance(cell, float)
        else cell
        for cell in cells
    )


def _same(key: Any) -> Any:
    if isinstance(key, float):
        return "NaN" if math.isnan(key) else key + 0.0
    return key


@dataclass
class Epoch:
    """What came out of all key groups in an epoch; rows are tuples in the order of the columns."""

    main: list[tuple[Any, ...]] = field(default_factory=list)
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


class Drive:
    """An operator with its state; `make` builds it anew after a restart."""

    def __init__(
        self,
        make: Callable[[], Operator],
        table: Callable[[Sequence[Row]], pa.Table],
        key_groups: int = 2,
        origins: tuple[Origin, ...] = (Origin(0),),
        held_back: int = 0,
    ) -> None:
        self.make, self.table = make, table
        self.key_groups, self.origins = key_groups, origins
        self.held_back = held_back
        self.store = MemoryStore()
        self.runner = self._runner()
        self.epochs: list[Epoch] = []

    def _runner(self) -> Runner:
        return Runner(
            1, self.make(), (self.origins,), False, self.held_back, canonical_form=repr(self.make())
        )

    def restart(self) -> None:
        """Nothing but the stored bytes survives."""
        self.store = MemoryStore.restore(self.store.snapshot())
        self.runner = self._runner()

    def epoch(
        self,
        tasks: Sequence[Task] = (),
        updates: Sequence[WatermarkUpdate] = (),
        now_us: int | None = None,
    ) -> Epoch:
        """Pack the rows of every task, then step every key group."""
        inputs: list[list[Tables]] = [[] for _ in range(self.key_groups)]
        for batches in tasks:
            for key_group, piece in self._packed(batches):
                inputs[key_group].append(piece)
        epoch = Epoch()
        for key_group, parts in enumerate(inputs):
            backend = self.store.backend(1, key_group)
            result = self.runner.run(backend, [parts], updates, now_us, key_group=key_group)
            schema = self.runner.operator.output
            for table in result.output.main:
                assert table.schema.equals(schema), (table.schema, schema)
                epoch.main += rows_of(table)
            for table in result.output.late:
                assert table.schema.equals(self.runner.operator.late)
                epoch.late += table.to_pylist()
            epoch.reports.append(result.report)
            assert key_group == 0 or result.update == epoch.update, "all have the same watermark"
            epoch.update = result.update
        self.epochs.append(epoch)
        return epoch

    def _packed(self, batches: Task) -> list[tuple[int, Tables]]:
        """Lifted, shrunk, cut by key group, and sent as bytes."""
        operator = self.runner.operator
        parts = [operator.pre_aggregate(0, self.table(batch)) for batch in batches if batch]
        if not parts:
            return []
        whole = operator.combine(0, parts)
        pieces = []
        for key_group in range(self.key_groups):
            owners = (np.mod(table.column(HASH).to_numpy(), self.key_groups) for table in whole)
            masks = [pa.array(owner == key_group) for owner in owners]
            cut = tuple(table.filter(m) for table, m in zip(whole, masks, strict=True))
            if any(table.num_rows for table in cut):
                data = codec.tables_to_bytes(cut)
                schemas = operator.shuffle_schemas[0]
                pieces.append((key_group, tuple(codec.tables_from_bytes(data, schemas))))
        return pieces

    def rows(self, rows: Sequence[Row], mark: int | None = None, **more: Any) -> Epoch:
        """An epoch of one task with one batch, with a tick of the only origin."""
        updates = [WatermarkUpdate(self.origins[0].id, 0, mark)] if mark is not None else []
        return self.epoch([[rows]], updates, **more)

    def end(self) -> Epoch:
        return self.epoch((), [WatermarkUpdate(origin.id, 0, END_US) for origin in self.origins])

    def kept(self) -> list[str]:
        """The names of what is stored, in the head or apart."""
        entries = self.store.scan_key_groups(1, 0, self.key_groups)
        apart = [key.name for key, _ in entries if key.name != "head"]
        runner = self._runner()
        for key_group in range(self.key_groups):
            apart += runner.inline_names(self.store.backend(1, key_group))
        return apart


def rows_of(table: pa.Table) -> list[tuple[Any, ...]]:
    columns = [column.to_pylist() for column in table.columns]
    return list(zip(*columns, strict=True))


def drive(query: Query, **options: Any) -> Drive:
    return Drive(query.operator, query.table, **options)


def call(function: str, kind: pa.DataType, result: pa.DataType, **options: Any) -> AggregateCall:
    return AggregateCall(function, f"{function}(x)", (kind,), result, **options)
