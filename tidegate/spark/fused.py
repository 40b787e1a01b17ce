"""Two tasks in one: where nothing is computed between them, rows do not leave Python.

A hop to Spark and back costs tens of milliseconds of every epoch, and copies of all rows.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.columns import BEFORE, LIVE, MARK, OP, SIDE, Renames
from tidegate.spark.order import OrderPlace
from tidegate.spark.pack import Batches, Packer, PackSpec
from tidegate.spark.staging import Staging, StagingSpec
from tidegate.spark.step import Step, StepSpec
from tidegate.spark.worker import keep_what_is_loaded


def step_and_pack(
    step: StepSpec, renames: Renames, pack: PackSpec, place: OrderPlace
) -> Callable[[Batches], Batches]:
    """An operator, and the packing of its rows for the one above."""

    def run(batches: Batches) -> Batches:
        order = place.read()
        packer = Packer(pack, _task(), order)
        for batch in Step(step, order).run(batches):
            yield from packer.add(_renamed(batch, renames, (MARK,)))
        yield from packer.finish()
        keep_what_is_loaded()

    return run


def step_and_stage(
    step: StepSpec, renames: Renames, stage: StagingSpec, place: OrderPlace
) -> Callable[[Batches], Batches]:
    """The last operator of a stream, and its sinks."""

    def run(batches: Batches) -> Batches:
        order = place.read()
        staging = Staging(stage, order, _task())
        for batch in Step(step, order).run(batches):
            staging.add(pa.Table.from_batches([_renamed(batch, renames)]))
        yield staging.notes()
        keep_what_is_loaded()

    return run


def _task() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    return int(context.partitionId()) if context is not None else 0


def _renamed(batch: pa.RecordBatch, renames: Renames, more: tuple[str, ...] = ()) -> pa.RecordBatch:
    hidden = (LIVE, SIDE, *more)
    names = [*(name for name, _ in renames.columns), *hidden]
    columns = [batch.column(own) for own in (*(own for _, own in renames.columns), *hidden)]
    renamed = pa.record_batch(columns, names=names)
    if renames.drops_before:
        before = pc.fill_null(pc.equal(renamed.column(OP), BEFORE), False)
        renamed = renamed.filter(pc.invert(before))
    return renamed
