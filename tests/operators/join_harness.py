"""Runs a join without Spark, and computes what DuckDB returns for the same rows in batch."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import duckdb
import pyarrow as pa

from tests.operators.harness import L, S, rows_of, select_key_group
from tidegate.operators.operator import Operator, Tables
from tidegate.operators.runner import OperatorRunner
from tidegate.operators.watermark import Origin, WatermarkUpdate
from tidegate.state.memory import MemoryStore

HOWS = ("INNER", "LEFT", "RIGHT", "FULL", "SEMI", "ANTI")
# A key, a time, and a value.
JoinRow = tuple[str | None, int, int]


class JoinHarness:
    """A join with its state. Each test module adds how its rows become a table."""

    def __init__(self, join: Operator, output_delay_us: int = 0, key_groups: int = 2) -> None:
        self.join = join
        self.output_delay_us = output_delay_us
        self.key_groups = key_groups
        self.store = MemoryStore()
        self.reports: list[dict[str, Any]] = []
        self.update: WatermarkUpdate | None = None
        self.late_rows: list[dict[str, Any]] = []

    @property
    def late(self) -> int:
        """The number of late rows so far."""
        return self.total("late_rows")

    def total(self, metric: str) -> int:
        """Sum a number of the last reports over the key groups."""
        return sum(report.get(metric, 0) for report in self.reports)

    def restart(self) -> None:
        """Keep only the stored bytes."""
        self.store = MemoryStore.restore(self.store.snapshot())

    def step(
        self,
        tables: Sequence[pa.Table],
        watermarks: Sequence[int | None] = (None, None),
        now_us: int | None = None,
    ) -> list[tuple[Any, ...]]:
        """Run an epoch with a table per port and return the emitted rows."""
        runner = OperatorRunner(
            9,
            self.join,
            ((Origin(0),), (Origin(1),)),
            output_watermark_delay_us=self.output_delay_us,
        )
        updates = [
            WatermarkUpdate(port, 0, watermark_us)
            for port, watermark_us in enumerate(watermarks)
            if watermark_us is not None
        ]
        prepared = [self.join.pre_aggregate(port, table) for port, table in enumerate(tables)]
        self.reports = []
        emitted: list[tuple[Any, ...]] = []
        for key_group in range(self.key_groups):
            inputs = [self._select(part, key_group) for part in prepared]
            result = runner.run_epoch(self.store.backend(1, key_group), inputs, updates, now_us)
            for table in result.output.rows:
                assert table.schema.equals(self.join.output)
                emitted += rows_of(table)
            for table in result.output.late:
                assert table.schema.equals(self.join.late)
                self.late_rows += table.to_pylist()
            self.reports.append(result.report)
            self.update = result.update
        return emitted

    def _select(self, tables: Tables, key_group: int) -> list[Tables]:
        selected = select_key_group(tables, key_group, self.key_groups)
        return [selected] if selected[0].num_rows else []


def split_at(rows: Sequence[Any], cuts: Sequence[int]) -> list[Sequence[Any]]:
    """Split rows into epochs."""
    bounds = [0, *sorted(cut for cut in cuts if cut < len(rows)), len(rows)]
    return [rows[start:stop] for start, stop in itertools.pairwise(bounds)]


_connection = duckdb.connect(config={"threads": 1})


def batch_query(
    sides: Sequence[Iterable[Sequence[Any]]], sql: str, time: pa.DataType = L
) -> Counter[tuple[Any, ...]]:
    """Return the result of a query over `l` and `r`, with the columns k, t and v."""
    for name, rows in zip(("l", "r"), sides, strict=True):
        side = list(rows)
        columns = [pa.array([row[i] for row in side], kind) for i, kind in enumerate((S, time, L))]
        _connection.register(name, pa.table(columns, names=["k", "t", "v"]))
    return Counter(_connection.execute(sql).fetchall())


def batch_join(
    sides: Sequence[Iterable[JoinRow]],
    how: str,
    bounds: tuple[int, int] | None,
    null_safe: bool,
) -> Counter[tuple[Any, ...]]:
    """Return the join of two sides by key, and by the distance of their times."""
    on = f"l.k {'IS NOT DISTINCT FROM' if null_safe else '='} r.k"
    if bounds is not None:
        on += f" AND l.t - r.t BETWEEN {bounds[0]} AND {bounds[1]}"
    if how in ("SEMI", "ANTI"):
        negated = "NOT " if how == "ANTI" else ""
        sql = f"SELECT l.* FROM l WHERE {negated}EXISTS (SELECT 1 FROM r WHERE {on})"
    else:
        sql = f"SELECT l.*, r.* FROM l {how} JOIN r ON {on}"
    return batch_query(sides, sql)
