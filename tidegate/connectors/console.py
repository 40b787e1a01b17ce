"""A sink that shows rows to a person."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.catalog.connector import ConnectorSpec, SinkSpec
from tidegate.catalog.options import OptionSpec, OptionType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidegate.runtime.connector import SinkContext

# In the metadata of the shown table: how many rows the epoch has in all.
TOTAL_ROWS = "tidegate.total_rows"

SPEC = ConnectorSpec(
    "console",
    "shows rows in the terminal",
    sink=SinkSpec(
        (OptionSpec("rows", OptionType.INTEGER, "rows shown of each epoch", default=20, minimum=1),)
    ),
)


@dataclass
class ConsoleWriter:
    """Shows the first rows of each epoch when it commits."""

    context: SinkContext
    staged: Any = None
    last: int = -1

    def prepare(self) -> None:
        """Nothing to prepare."""

    def committed(self) -> int:
        return self.last

    def stage(self, epoch: int, frame: DataFrame) -> None:
        """All rows are computed, so that what is counted on the way is right; few are fetched."""
        kept = frame.persist()
        try:
            total = kept.count()
            rows = kept.limit(self.context.sink.options["rows"]).toArrow()
            self.staged = rows.replace_schema_metadata({TOTAL_ROWS: str(total)})
        finally:
            kept.unpersist()

    def commit(self, epoch: int) -> None:
        if self.staged is not None and self.staged.num_rows:
            self.context.show(self.context.sink.source, epoch, self.staged)
        self.staged = None
        self.last = epoch


def write(spark: SparkSession, context: SinkContext) -> ConsoleWriter:
    return ConsoleWriter(context)
