"""Cached frames, and epochs that need a new one."""

from __future__ import annotations

from typing import Any, cast

from tidegate.checkpoint.manifest import Manifest
from tidegate.connectors.base import InputRange
from tidegate.runtime.epoch import EpochPlan
from tidegate.runtime.frames import EpochJob, FrameCache
from tidegate.spark.frame import PipelineFrame
from tidegate.spark.tasks.protocol import EpochSpec


def job(input_range: InputRange) -> EpochJob:
    epoch = EpochPlan({("t", "s"): input_range}, False, False)
    return EpochJob({}, {}, {}, epoch, EpochSpec(0, 1, 0), Manifest(0, 0, 8, 0), 2)


def test_input_for_spark_readers_gets_a_separate_frame() -> None:
    frames = FrameCache(*cast(Any, (None, None, None, "")))
    frames_built: list[PipelineFrame] = []

    def build(once: bool) -> PipelineFrame:
        frames_built.append(PipelineFrame(cast(Any, object()), (), once))
        return frames_built[-1]

    both = job(InputRange({}, [["part"]], 5, spark_read=["a.parquet"]))
    spark_only = job(InputRange({}, [], 5, spark_read=["b.parquet"]))
    frame = frames.get_or_build(both, lambda: build(once=False))
    assert frames.get_or_build(both, lambda: build(once=False)) is frame
    other = frames.get_or_build(spark_only, lambda: build(once=True))
    assert other is not frame, "its rows would be skipped, but their offset committed"
    assert frames.get_or_build(both, lambda: build(once=False)) is frame
