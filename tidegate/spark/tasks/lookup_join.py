"""The task of a lookup join: add the matching rows of the table to each batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.columns import SELECTED
from tidegate.operators.join.lookup_cache import LookupResult, to_list_array
from tidegate.spark.tasks.protocol import EpochSpecStore, keep_loaded_modules
from tidegate.spark.tasks.shuffle import Batches

if TYPE_CHECKING:
    from tidegate.connectors.base import LookupReader, LookupReaderFactory


@dataclass(frozen=True)
class LookupTaskSpec:
    """A lookup: its table in the epoch spec, the reader, and the key columns."""

    table: str
    reader: LookupReaderFactory
    keys: tuple[str, ...]
    # The output: the columns of the input, and a list of the matching rows.
    output: pa.Schema


def enriching(spec: LookupTaskSpec, epoch_specs: EpochSpecStore) -> Callable[[Batches], Batches]:
    """Return the function for mapInArrow."""

    def enrich(batches: Batches) -> Batches:
        epoch_spec = epoch_specs.read()
        reader: LookupReader | None = None
        for batch in batches:
            if reader is None:
                reader = spec.reader.open(epoch_spec.lookups.get(spec.table), epoch_spec.now_us)
            yield _enriched(spec, batch, reader)
        keep_loaded_modules()

    return enrich


def _enriched(spec: LookupTaskSpec, batch: pa.RecordBatch, reader: LookupReader) -> pa.RecordBatch:
    selected = batch.column(SELECTED)
    for key in spec.keys:
        selected = pc.and_(selected, pc.is_valid(batch.column(key)))
    row_indexes = np.flatnonzero(selected.to_numpy(zero_copy_only=False))
    input_columns = [batch.column(name) for name in spec.output.names[:-1]]
    kind = spec.output.field(len(input_columns)).type
    row_positions = pa.array(row_indexes)
    keys = [batch.column(key).take(row_positions) for key in spec.keys]
    result = reader.find(keys) if len(row_indexes) else _nothing(kind)
    return pa.record_batch(
        [*input_columns, to_list_array(result, row_indexes, batch.num_rows, kind)],
        schema=spec.output,
    )


def _nothing(kind: pa.DataType) -> LookupResult:
    rows = kind.value_type
    empty = [pa.array([], rows.field(index).type) for index in range(rows.num_fields)]
    names = [rows.field(index).name for index in range(rows.num_fields)]
    return LookupResult(pa.table(empty, names=names), np.zeros(0, np.int64), np.zeros(0, np.int64))
