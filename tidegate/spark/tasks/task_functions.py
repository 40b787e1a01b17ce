"""The functions that Spark calls in Python workers, one for each role in a job.

`level_function` runs levels of the job graph. The others surround stages in Spark SQL: they read
splits for decoding in Spark, count records, unpack exposed rows, look up rows, and write the result
to a shuffle or to sinks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.columns import CONTROL, NOW, SELECTED
from tidegate.operators.join.lookup_cache import LookupResult, to_list_array
from tidegate.operators.watermark import encode_updates
from tidegate.physical.job_graph import (
    Branch,
    ExposedRows,
    Level,
    ShuffleWrite,
    SinkWrite,
    StreamNames,
)
from tidegate.spark.tasks.levels import (
    BranchTask,
    buffer_bytes,
    reports_of,
    run_levels,
    unpack_exposed,
)
from tidegate.spark.tasks.protocol import (
    ControlMessages,
    EpochSpec,
    EpochSpecStore,
    dead_letter_rows,
    keep_loaded_modules,
    report_bytes,
    task_number,
    watermark_bytes,
)
from tidegate.spark.tasks.read import initial_updates
from tidegate.spark.tasks.shuffle import Batches, ShuffleWriter
from tidegate.spark.tasks.sink_write import SinkStaging

if TYPE_CHECKING:
    from tidegate.connectors.base import LookupReader, LookupReaderFactory, SplitReader


TaskFunction = Callable[[Batches], Batches]

# Hidden columns of readers, before a stage in Spark SQL.
READER_FIELDS = [pa.field(CONTROL, pa.binary()), pa.field(NOW, pa.int64())]
IS_FAILED = "_tg_is_failed"


def level_function(
    levels: Sequence[Level], tasks: int, reads: bool, is_last: bool, epoch_specs: EpochSpecStore
) -> TaskFunction:
    """Return the function that runs levels; the last one returns task reports."""

    def run(batches: Batches) -> Batches:
        rows = run_levels(levels, epoch_specs.read(), tasks, batches, reads)
        if is_last:
            for reports in reports_of(rows):
                yield pa.record_batch([reports], names=["report"])
        else:
            yield from rows
        keep_loaded_modules()

    return run


def unpack_function(exposed: ExposedRows, epoch_specs: EpochSpecStore) -> TaskFunction:
    """Return the function that unpacks exposed rows."""

    def run(batches: Batches) -> Batches:
        yield from unpack_exposed(exposed, epoch_specs.read(), batches)
        keep_loaded_modules()

    return run


def shuffle_function(write: ShuffleWrite, epoch_specs: EpochSpecStore) -> TaskFunction:
    """Return the function that writes the rows of a stage to a shuffle."""

    def run(batches: Batches) -> Batches:
        # The numbers of these tasks depend on the other frames of a union, so none of them is the
        # first one for sure.
        writer = ShuffleWriter(write, task_number(), epoch_specs.read(), sends_to_all=True)
        for batch in batches:
            yield from writer.add(batch)
        yield from writer.finish()
        keep_loaded_modules()

    return run


def decoded_function(branches: Sequence[Branch], epoch_specs: EpochSpecStore) -> TaskFunction:
    """Return the function that runs branches over records that Spark has decoded."""

    def run(batches: Batches) -> Batches:
        epoch_spec, task = epoch_specs.read(), task_number()
        limit = buffer_bytes(len(branches))
        tasks = [BranchTask(b, epoch_spec, task, limit, sends_to_all=True) for b in branches]
        for batch in batches:
            for number, branch in enumerate(tasks):
                yield from branch.add_decoded(batch, passes_reports=number == 0)
        for branch in tasks:
            yield from branch.consumer.finish()
        keep_loaded_modules()

    return run


def sink_function(write: SinkWrite, epoch_specs: EpochSpecStore) -> TaskFunction:
    """Return the function that stages the rows of a stage for sinks and returns reports."""

    def run(batches: Batches) -> Batches:
        staging = SinkStaging(write, epoch_specs.read(), task_number())
        for batch in batches:
            if batch.num_rows:
                staging.add(pa.Table.from_batches([batch]))
        yield pa.record_batch([pa.array(staging.finish(), pa.binary())], names=["report"])
        keep_loaded_modules()

    return run


def lookup_function(spec: LookupTaskSpec, epoch_specs: EpochSpecStore) -> TaskFunction:
    """Return the function that adds the matching rows of a lookup table."""

    def run(batches: Batches) -> Batches:
        yield from enrich(spec, epoch_specs.read(), batches)
        keep_loaded_modules()

    return run


@dataclass(frozen=True)
class SplitRead:
    """Reads the splits of a range for a stage in Spark SQL."""

    split: str
    # The streams that the number of records is attributed to.
    streams: StreamNames
    reader: SplitReader
    # The origin of the watermark updates, if each partition has its own watermark.
    origin: int | None = None

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([*self.reader.schema, *READER_FIELDS])


def split_function(read: SplitRead, epoch_specs: EpochSpecStore) -> TaskFunction:
    """Return the function that reads splits and reports the number of records."""
    schema = read.schema

    def run(batches: Batches) -> Batches:
        epoch_spec = epoch_specs.read()
        splits = epoch_spec.splits.get(read.split, [])
        for task in (task for batch in batches for task in batch.column(0).to_pylist()):
            records = 0
            if task == 0 and read.origin is not None and read.split in epoch_spec.partitions:
                updates = initial_updates(read.origin, read.split, epoch_spec)
                yield _control_row(watermark_bytes(encode_updates(updates)), schema)
            for split in splits[task] if task < len(splits) else []:
                for batch, count in read.reader.read(split):
                    records += count
                    yield _with_hidden(batch, epoch_spec.now_us, schema)
            if records:
                # Pre-aggregation would merge equal reports: the task number keeps them distinct.
                about = {"streams": read.streams, "source": read.split, "task": task}
                yield _control_row(report_bytes({**about, "rows": records}), schema)
        keep_loaded_modules()

    return run


def count_function(streams: StreamNames, schema: pa.Schema) -> TaskFunction:
    """Return the function that adds a report with the number of rows."""

    def run(batches: Batches) -> Batches:
        rows = 0
        for batch in batches:
            rows += batch.column(schema.get_field_index(CONTROL)).null_count
            yield pa.record_batch(batch.columns, schema=schema)
        if rows:
            report = {"streams": streams, "task": task_number(), "rows": rows}
            yield _control_row(report_bytes(report), schema)

    return run


def failed_rows_function(schema: pa.Schema, columns: Sequence[str]) -> TaskFunction:
    """Return the function that adds dead letters as rows that are not selected.

    They have their own columns, which are NULL in all other rows.
    """

    def run(batches: Batches) -> Batches:
        for batch in batches:
            control = ControlMessages()
            control.add(pa.chunked_array([batch.column(batch.schema.get_field_index(CONTROL))]))
            arrays = dict(zip(batch.schema.names, batch.columns, strict=True))
            arrays[IS_FAILED] = pa.repeat(pa.scalar(False), batch.num_rows)
            yield _filled(arrays, batch.num_rows, schema)
            if control.failed:
                letters = dead_letter_rows(control.failed).combine_chunks().to_batches()[0]
                count = letters.num_rows
                arrays = dict(zip(columns, letters.columns, strict=True))
                arrays[IS_FAILED] = pa.repeat(pa.scalar(True), count)
                arrays[SELECTED] = pa.repeat(pa.scalar(False), count)
                yield _filled(arrays, count, schema)

    return run


def _filled(arrays: dict[str, Any], count: int, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch with these columns, and NULL in all other columns."""
    columns = [arrays.get(field.name, pa.nulls(count, field.type)) for field in schema]
    return pa.record_batch(columns, schema=schema)


def _with_hidden(batch: pa.RecordBatch, now_us: int, schema: pa.Schema) -> pa.RecordBatch:
    count = batch.num_rows
    hidden: list[Any] = [
        pa.nulls(count, pa.binary()),
        pa.repeat(pa.scalar(now_us, pa.int64()), count),
    ]
    return pa.record_batch([*batch.columns, *hidden], schema=schema)


def _control_row(message: bytes, schema: pa.Schema) -> pa.RecordBatch:
    arrays = [pa.nulls(1, field.type) for field in schema]
    arrays[schema.get_field_index(CONTROL)] = pa.array([message], pa.binary())
    return pa.record_batch(arrays, schema=schema)


# ---- The lookup join: add the matching rows of the table to each batch


@dataclass(frozen=True)
class LookupTaskSpec:
    """A lookup: its table in the epoch spec, the reader, and the key columns."""

    table: str
    reader: LookupReaderFactory
    keys: tuple[str, ...]
    # The output: the columns of the input, and a list of the matching rows.
    output: pa.Schema


def enrich(
    spec: LookupTaskSpec, epoch_spec: EpochSpec, batches: Iterable[pa.RecordBatch]
) -> Batches:
    """Yield the rows with the matching rows of the table."""
    reader: LookupReader | None = None
    for batch in batches:
        if reader is None:
            reader = spec.reader.open(epoch_spec.lookups.get(spec.table), epoch_spec.now_us)
        yield _enriched(spec, batch, reader)


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
