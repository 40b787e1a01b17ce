"""What a pipeline gets from its session."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidegate.catalog.objects import LookupTable, Sink, Source
from tidegate.catalog.settings import Settings
from tidegate.connectors.base import OpenLookup, OpenSink, OpenSource, Pace
from tidegate.physical.planner import ScanPlan
from tidegate.runtime.blame import OriginOf
from tidegate.runtime.members import Member
from tidegate.storage import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class PipelineContext:
    """What a pipeline needs from its session."""

    spark: SparkSession
    settings: Settings
    # The folder of the pipeline, and the one for the orders of this process.
    store: Store
    orders: str
    open_source: Callable[[Source, str, Pace], OpenSource]
    open_sink: Callable[[Sink, str, Member], OpenSink]
    open_lookup: Callable[[LookupTable, str], OpenLookup]
    source_of: Callable[[ScanPlan], Source]
    key_groups: int
    # The text that a stream was declared in.
    origin_of: OriginOf = lambda stream: None
    # Raises if another process has taken over the data directory.
    require_held: Callable[[], None] = lambda: None
