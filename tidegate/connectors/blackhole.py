"""A sink that runs the pipeline and keeps nothing: for measuring."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from tidegate.catalog.connector import ConnectorSpec, SinkSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidegate.runtime.connector import SinkContext

SPEC = ConnectorSpec("blackhole", "takes rows and forgets them", sink=SinkSpec(()))


@dataclass
class BlackholeWriter:
    """Computes every row of an epoch, and that is all."""

    # Alone on its stream, it needs no epoch of ours: Spark may write to it directly.
    direct_format: ClassVar[str] = "noop"
    last: int = -1

    def prepare(self) -> None:
        """Nothing to prepare."""

    def committed(self) -> int:
        return self.last

    def stage(self, epoch: int, frame: DataFrame) -> None:
        frame.write.format("noop").mode("append").save()

    def commit(self, epoch: int) -> None:
        self.last = epoch


def write(spark: SparkSession, context: SinkContext) -> BlackholeWriter:
    return BlackholeWriter()
