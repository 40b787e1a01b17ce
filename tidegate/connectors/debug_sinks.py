"""Two sinks for development: `console` shows rows in the terminal, `blackhole` discards them."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidegate.catalog.connector import ConnectorSpec, SinkSpec
from tidegate.catalog.options import OptionSpec, OptionType
from tidegate.connectors.base import Committable, CommittedState, EpochId, SinkContext, SqlColumns
from tidegate.connectors.debug_writers import DiscardingWriter, FirstRowsWriterFactory

if TYPE_CHECKING:
    import pyarrow as pa

# Metadata key of the shown table: the number of all rows of the epoch.
TOTAL_ROWS = "tidegate.total_rows"

CONSOLE = ConnectorSpec(
    "console",
    "prints rows to the terminal",
    sink=SinkSpec(
        (
            OptionSpec(
                "rows",
                OptionType.INTEGER,
                "maximum number of rows printed per epoch",
                default=20,
                minimum=1,
            ),
        ),
        tolerates_restore=True,
    ),
)


@dataclass
class ConsoleSink:
    """Shows the first rows of each epoch after it has been committed."""

    context: SinkContext

    def recover(self, committed: CommittedState) -> None:
        """Do nothing: the last epoch may not have been shown, but is not worth showing twice."""

    def columns(self, stream_columns: SqlColumns) -> SqlColumns | None:
        return None

    def row_encoder(self, schema: pa.Schema) -> None:
        """Return None: rows are written unchanged."""

    def writer_factory(self, schema: pa.Schema) -> FirstRowsWriterFactory:
        return FirstRowsWriterFactory(self.context.sink.options["rows"])

    def publish(self, epoch: EpochId, committables: Sequence[Committable]) -> None:
        import pyarrow as pa

        parts = [
            pa.ipc.open_file(base64.b64decode(committable["rows"])).read_all()
            for committable in committables
        ]
        if not parts:
            return
        total = sum(committable["total"] for committable in committables)
        rows = pa.concat_tables(parts).slice(0, self.context.sink.options["rows"])
        shown = rows.replace_schema_metadata({TOTAL_ROWS: str(total)})
        self.context.show(self.context.sink.stream, epoch.epoch, shown)


def open_console(context: SinkContext) -> ConsoleSink:
    return ConsoleSink(context)


BLACKHOLE = ConnectorSpec(
    "blackhole", "discards all rows, for benchmarks", sink=SinkSpec((), tolerates_restore=True)
)


class BlackholeSink:
    """Discards rows after they have been computed."""

    def recover(self, committed: CommittedState) -> None: ...

    def columns(self, stream_columns: SqlColumns) -> SqlColumns | None:
        return None

    def row_encoder(self, schema: pa.Schema) -> None:
        """Return None: rows are written unchanged."""

    def writer_factory(self, schema: pa.Schema) -> DiscardingWriter:
        return DiscardingWriter()

    def publish(self, epoch: EpochId, committables: Sequence[Committable]) -> None: ...


def open_blackhole(context: SinkContext) -> BlackholeSink:
    return BlackholeSink()
