"""OVER of whole partitions: when their window closes, at the end of the input, or as they change.

The operators are those of top-N; what differs is what comes out of a partition.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidegate.columns import HASH, PANE
from tidegate.operators.kernels import ordering as arrival
from tidegate.operators.kernels.arrays import int_column
from tidegate.operators.kernels.keys import group_ids
from tidegate.operators.kernels.ordering import INT, SEQ
from tidegate.operators.kernels.weighted_rows import diff_results
from tidegate.operators.over.functions import OverSpec
from tidegate.operators.top_n.window import select


@dataclass(frozen=True)
class WholePartitions:
    """All rows of each partition with their functions, in place of the first ones with a rank."""

    spec: OverSpec

    @property
    def by(self) -> list[str]:
        return [PANE, *(item.name for item in self.key_fields)]

    @property
    def key_fields(self) -> list[pa.Field]:
        return self.spec.key_fields

    @property
    def row(self) -> pa.Schema:
        return self.spec.row

    @property
    def content(self) -> list[pa.Field]:
        """What rows have wherever they are."""
        spec = self.spec
        hidden = [pa.field(PANE, INT), pa.field(HASH, INT)]
        inner = [*spec.order_fields, *spec.argument_fields, *spec.column_fields]
        return [*hidden, *spec.key_fields, *inner]

    @property
    def arrived(self) -> pa.Schema:
        return arrival.arrival_schema(self.content)

    @property
    def kept(self) -> pa.Schema:
        return arrival.stored_schema(self.content)

    def select(self, rows: pa.Table, schema: pa.Schema) -> pa.Table:
        return select(rows, schema, self.key_fields)

    def contenders(self, rows: pa.Table) -> pa.Table:
        """Every row counts."""
        return rows

    def leading(self, rows: pa.Table) -> pa.Table:
        return rows

    def result(self, rows: pa.Table) -> pa.Table:
        """The stored rows with what the functions say about them, in the order they came."""
        ids, _ = group_ids(rows, self.by)
        seq = int_column(rows, SEQ)
        found = self.spec.in_whole_partitions(rows, ids, seq)
        return found.take(pa.array(np.lexsort((seq, int_column(found, PANE)))))

    def changed(self, was: pa.Table, now: pa.Table) -> pa.Table:
        """A row whose functions say something else is updated."""
        names = [SEQ, *self.row.names]
        return diff_results(was.select(names), now.select(names), [SEQ])
