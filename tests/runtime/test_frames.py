"""Frames that serve for many epochs, and epochs that need one of their own."""

from __future__ import annotations

from typing import Any, cast

from tidegate.checkpoint.manifest import Manifest
from tidegate.connectors.base import InputRange
from tidegate.runtime.epoch import Epoch
from tidegate.runtime.frames import Frames, Job
from tidegate.spark.frame import PipelineFrame
from tidegate.spark.tasks.protocol import EpochSpec


def job(input_range: InputRange) -> Job:
    epoch = Epoch({("t", "s"): input_range}, False, False)
    return Job({}, {}, {}, epoch, EpochSpec(0, 1, 0), Manifest(0, 0, 8, 0), 2)


def test_what_only_spark_can_read_is_not_left_to_a_frame_whose_tasks_read() -> None:
    frames = Frames(*cast(Any, (None, None, None, "")))
    made: list[PipelineFrame] = []

    def build(once: bool) -> PipelineFrame:
        made.append(PipelineFrame(cast(Any, object()), (), once))
        return made[-1]

    both = job(InputRange({}, [["part"]], 5, native=["a.parquet"]))
    spark_only = job(InputRange({}, [], 5, native=["b.parquet"]))
    kept = frames.kept(both, lambda: build(once=False))
    assert frames.kept(both, lambda: build(once=False)) is kept
    other = frames.kept(spark_only, lambda: build(once=True))
    assert other is not kept, "its rows would not be read, and their offset decided"
    assert frames.kept(both, lambda: build(once=False)) is kept
