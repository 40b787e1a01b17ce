"""The task of a lookup join: add the matching rows of the table to each batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.columns import SELECTED
from tidegate.operators.join.lookup_results import LookupResult, to_list_array
from tidegate.spark.tasks.protocol import EpochSpecStore, keep_what_is_loaded
from tidegate.spark.tasks.shuffle import Batches

if TYPE_CHECKING:
    from tidegate.connectors.base import LookupReader, LookupReaderFactory


@dataclass(frozen=True)
class EnrichSpec:
    """A lookup: its table in the epoch spec, the reader, and the key columns."""

    table: str
    reader: LookupReaderFactory
    keys: tuple[str, ...]
    # The output: the columns of the input, and a list of the matching rows.
    output: pa.Schema


def enriching(spec: EnrichSpec, place: EpochSpecStore) -> Callable[[Batches], Batches]:
    """Return the function for mapInArrow."""

    def enrich(batches: Batches) -> Batches:
        epoch_spec = place.read()
        answers: LookupReader | None = None
        for batch in batches:
            if answers is None:
                answers = spec.reader.open(epoch_spec.lookups.get(spec.table), epoch_spec.now_us)
            yield _enriched(spec, batch, answers)
        keep_what_is_loaded()

    return enrich


def _enriched(spec: EnrichSpec, batch: pa.RecordBatch, answers: LookupReader) -> pa.RecordBatch:
    asks = batch.column(SELECTED)
    for key in spec.keys:
        asks = pc.and_(asks, pc.is_valid(batch.column(key)))
    asked = np.flatnonzero(asks.to_numpy(zero_copy_only=False))
    passed = [batch.column(name) for name in spec.output.names[:-1]]
    kind = spec.output.field(len(passed)).type
    places = pa.array(asked)
    keys = [batch.column(key).take(places) for key in spec.keys]
    found = answers.find(keys) if len(asked) else _nothing(kind)
    return pa.record_batch(
        [*passed, to_list_array(found, asked, batch.num_rows, kind)], schema=spec.output
    )


def _nothing(kind: pa.DataType) -> LookupResult:
    rows = kind.value_type
    empty = [pa.array([], rows.field(place).type) for place in range(rows.num_fields)]
    names = [rows.field(place).name for place in range(rows.num_fields)]
    return LookupResult(pa.table(empty, names=names), np.zeros(0, np.int64), np.zeros(0, np.int64))
