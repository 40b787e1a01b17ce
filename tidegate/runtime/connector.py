"""What the Spark side of a connector offers. A sink writes an epoch in two steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tidegate.catalog.objects import Sink, Source
from tidegate.catalog.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class SourceContext:
    """What a reader gets besides Spark."""

    source: Source
    directory: Path
    settings: Settings
    # Whether rows must say where they stood.
    arrival: bool = False
    # Whether records must say where they stood in a file, and bad ones why they are bad.
    located: bool = False


@dataclass(frozen=True)
class SinkContext:
    """What a writer gets besides Spark: `pipeline_id` names this pipeline's output for good."""

    sink: Sink
    directory: Path
    pipeline_id: str
    show: Callable[[str, int, Any], None]


class SinkWriter(Protocol):
    """Writes epochs exactly once: staged, then committed; a replayed epoch changes nothing."""

    def prepare(self) -> None:
        """Before the first epoch: check the target, roll back what was only staged."""

    def committed(self) -> int:
        """The last epoch this sink has committed, -1 for none."""

    def stage(self, epoch: int, frame: DataFrame) -> None:
        """Put the rows of an epoch where nobody sees them yet."""

    def commit(self, epoch: int) -> None:
        """Make the staged epoch visible."""


class SourceReader(Protocol):
    """Opens a source as a streaming frame with its stored columns (and _op, and BAD_RECORD)."""

    def __call__(self, spark: SparkSession, context: SourceContext) -> DataFrame: ...


class SinkFactory(Protocol):
    """Makes the writer of a sink."""

    def __call__(self, spark: SparkSession, context: SinkContext) -> SinkWriter: ...
