"""Frames that serve for many epochs, and epochs that need one of their own."""

from __future__ import annotations

from typing import Any, cast

from tidegate.connectors.protocols import Cut
from tidegate.runtime.cutting import Epoch
from tidegate.runtime.frames import Frames
from tidegate.spark.frame import PipelineFrame


def epoch(cut: Cut) -> Epoch:
    return Epoch({("t", "s"): cut}, False, False)


def test_what_only_spark_can_read_is_not_left_to_a_frame_whose_tasks_read() -> None:
    frames = Frames(*cast(Any, (None, None, None, "")))
    made: list[PipelineFrame] = []

    def build(once: bool) -> PipelineFrame:
        made.append(PipelineFrame(cast(Any, object()), (), once))
        return made[-1]

    both = epoch(Cut({}, [["part"]], 5, native=["a.parquet"]))
    spark_only = epoch(Cut({}, [], 5, native=["b.parquet"]))
    kept = frames.kept(both, 2, lambda: build(once=False))
    assert frames.kept(both, 2, lambda: build(once=False)) is kept
    other = frames.kept(spark_only, 2, lambda: build(once=True))
    assert other is not kept, "its rows would not be read, and their offset decided"
    assert frames.kept(both, 2, lambda: build(once=False)) is kept
