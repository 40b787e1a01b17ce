"""The sinks of a pipeline, and how the rows of an epoch get to them."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from tidegate.columns import LATE, LIVE, OP
from tidegate.physical.stage_sql import carries_op, filters_changes, gives_upserts, quoted
from tidegate.plan import nodes as n
from tidegate.plan.properties import properties
from tidegate.runtime.connector import SinkWriter
from tidegate.state.codec import table_from_bytes


class Outputs:
    """Stages everywhere, then commits everywhere; main rows and late rows in the same epoch."""

    def __init__(self, plan: n.Node) -> None:
        self.plan = plan
        self.writers: list[SinkWriter] = []
        self.late_writers: list[SinkWriter] = []
        # The columns of late rows, once the operator that finds them is known.
        self.late: pa.Schema | None = None
        self.late_names: tuple[str, ...] = ()
        self._lock = threading.Lock()

    @property
    def some(self) -> bool:
        return bool(self.writers or self.late_writers)

    def add(self, writer: SinkWriter, late: bool) -> None:
        with self._lock:
            (self.late_writers if late else self.writers).append(writer)

    def direct_format(self) -> str | None:
        """A single sink that has nothing to commit is written by Spark without a detour."""
        if self.late_writers or self._mends_changes:
            return None
        formats = [getattr(writer, "direct_format", None) for writer in self.writers]
        return formats[0] if len(formats) == 1 else None

    @property
    def _mends_changes(self) -> bool:
        return gives_upserts(self.plan) and carries_op(self.plan) and filters_changes(self.plan)

    def write(self, frame: DataFrame, epoch: int) -> None:
        with self._lock:
            main = [writer for writer in self.writers if writer.committed() < epoch]
            late = [writer for writer in self.late_writers if writer.committed() < epoch]
        if not main and not late:
            # All sinks have it, but Spark has not: the state of the operators is still missing.
            frame.write.format("noop").mode("overwrite").save()
            return
        several = len(main) + len(late) > 1
        if several:
            frame = frame.persist()
        try:
            rows = self._main(frame)
            for writer in main:
                writer.stage(epoch, rows)
            for writer in late:
                writer.stage(epoch, self._late(frame))
            for writer in (*main, *late):
                writer.commit(epoch)
        finally:
            if several:
                frame.unpersist()

    def _main(self, frame: DataFrame) -> DataFrame:
        if LIVE in frame.columns:
            frame = frame.where(LIVE).drop(LIVE, LATE)
        return self._mended(frame) if self._mends_changes else frame

    def _mended(self, frame: DataFrame) -> DataFrame:
        """Behind a filter an old row may come without its new one: then its key is gone."""
        key = properties(self.plan).key or ()
        names = [quoted(self.plan.field(column).name) for column in key] or ["1"]
        has_new = f"max({OP} IN ('+I', '+U')) OVER (PARTITION BY {', '.join(names)})"
        columns = [quoted(name) for name in frame.columns if name != OP]
        marked = frame.selectExpr(*columns, OP, f"{has_new} AS _tg_new")
        kept = marked.where(f"NOT ({OP} IN ('-U', '-D') AND _tg_new)")
        return kept.selectExpr(*columns, f"CASE WHEN {OP} = '-U' THEN '-D' ELSE {OP} END AS {OP}")

    def _late(self, frame: DataFrame) -> DataFrame:
        assert self.late is not None, "late rows have columns"
        schema = self.late
        named = pa.schema(
            [pa.field(name, f.type) for name, f in zip(self.late_names, schema, strict=True)]
        )

        def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for data in batch.column(0).to_pylist():
                    table = table_from_bytes(data, schema)
                    yield from pa.table(table.columns, schema=named).to_batches()

        blobs = frame.where(f"{LATE} IS NOT NULL").select(LATE)
        return blobs.mapInArrow(rows, from_arrow_schema(named))
