"""Two tasks in one: where tasks can compute what stands between them, rows do not leave Python.

A hop to Spark and back costs tens of milliseconds of every epoch, and copies of all rows.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from tidegate.columns import LIVE, MARK, SIDE
from tidegate.operators.vectorized import VectorStage
from tidegate.spark.order import OrderPlace
from tidegate.spark.pack import Batches, Packer, PackSpec
from tidegate.spark.staging import Staging, StagingSpec
from tidegate.spark.step import GivesRows
from tidegate.spark.worker import keep_what_is_loaded, task_number


def step_and_pack(
    step: GivesRows, between: VectorStage, pack: PackSpec, place: OrderPlace
) -> Callable[[Batches], Batches]:
    """An operator, and the packing of its rows for the one above."""

    def run(batches: Batches) -> Batches:
        order = place.read()
        packer = Packer(pack, task_number(), order)
        for batch in step.rows(order, batches):
            yield from packer.add(between.apply(batch, (MARK, LIVE, SIDE)))
        yield from packer.finish()
        keep_what_is_loaded()

    return run


def step_and_stage(
    step: GivesRows, between: VectorStage, stage: StagingSpec, place: OrderPlace
) -> Callable[[Batches], Batches]:
    """The last operator of a stream, and its sinks."""

    def run(batches: Batches) -> Batches:
        order = place.read()
        staging = Staging(stage, order, task_number())
        for batch in step.rows(order, batches):
            staging.add(pa.Table.from_batches([between.apply(batch, (LIVE, SIDE))]))
        yield staging.notes()
        keep_what_is_loaded()

    return run
