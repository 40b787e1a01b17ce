"""OVER for complete partitions: when a window closes, at the end of the input, or as a changelog.

The operators are those of top-N; they evaluate window functions instead of ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidegate.columns import HASH, STORE_TIME
from tidegate.operators.kernels import ordering as arrival
from tidegate.operators.kernels.arrays import int_column
from tidegate.operators.kernels.keys import group_ids
from tidegate.operators.kernels.ordering import ARRIVAL_NUMBER, INT
from tidegate.operators.kernels.weighted_rows import diff_results
from tidegate.operators.over.functions import OverSpec
from tidegate.operators.top_n.window import select_arrivals


@dataclass(frozen=True)
class PartitionWindowFunctions:
    """Evaluates window functions over all rows of a partition, as a `PartitionEvaluator`."""

    spec: OverSpec

    @property
    def partition_columns(self) -> list[str]:
        return [STORE_TIME, *(item.name for item in self.key_fields)]

    @property
    def key_fields(self) -> list[pa.Field]:
        return self.spec.key_fields

    @property
    def result_schema(self) -> pa.Schema:
        return self.spec.result_schema

    @property
    def fields(self) -> list[pa.Field]:
        spec = self.spec
        hidden = [pa.field(STORE_TIME, INT), pa.field(HASH, INT)]
        columns = [*spec.order_fields, *spec.argument_fields, *spec.column_fields]
        return [*hidden, *spec.key_fields, *columns]

    @property
    def arrival_schema(self) -> pa.Schema:
        return arrival.arrival_schema(self.fields)

    @property
    def stored_schema(self) -> pa.Schema:
        return arrival.stored_schema(self.fields)

    def select(self, rows: pa.Table, schema: pa.Schema) -> pa.Table:
        return select_arrivals(rows, schema, self.key_fields)

    def prune_arrivals(self, rows: pa.Table) -> pa.Table:
        """Return all rows."""
        return rows

    def prune_stored(self, rows: pa.Table) -> pa.Table:
        """Return all rows."""
        return rows

    def evaluate(self, rows: pa.Table) -> pa.Table:
        """Append the results of the functions; rows are in the order of their arrival."""
        ids, _ = group_ids(rows, self.partition_columns)
        seq = int_column(rows, ARRIVAL_NUMBER)
        result = self.spec.evaluate_partitions(rows, ids, seq)
        return result.take(pa.array(np.lexsort((seq, int_column(result, STORE_TIME)))))

    def diff(self, before: pa.Table, after: pa.Table) -> pa.Table:
        """Return the changes between two results; a row with other results is updated."""
        names = [ARRIVAL_NUMBER, *self.result_schema.names]
        return diff_results(before.select(names), after.select(names), [ARRIVAL_NUMBER])
