"""A sink that shows rows to a person."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidegate.catalog.connector import ConnectorSpec, SinkSpec
from tidegate.catalog.options import OptionSpec, OptionType
from tidegate.connectors.base import Committable, CommittedState, EpochId, SinkContext, SqlColumns
from tidegate.connectors.debug_writers import FirstRowsFactory, Forgetting

if TYPE_CHECKING:
    import pyarrow as pa

# In the metadata of the shown table: how many rows the epoch has in all.
TOTAL_ROWS = "tidegate.total_rows"

CONSOLE = ConnectorSpec(
    "console",
    "shows rows in the terminal",
    sink=SinkSpec(
        (
            OptionSpec(
                "rows", OptionType.INTEGER, "rows shown of each epoch", default=20, minimum=1
            ),
        ),
        supports_rollback=True,
    ),
)


@dataclass
class ConsoleSink:
    """Shows the first rows of each epoch when it commits."""

    context: SinkContext

    def recover(self, committed: CommittedState) -> None:
        """What was decided may have been shown or not; a person has no use for it twice."""

    def columns(self, given: SqlColumns) -> SqlColumns | None:
        return None

    def writer_factory(self, schema: pa.Schema) -> FirstRowsFactory:
        return FirstRowsFactory(self.context.sink.options["rows"])

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
        self.context.show(self.context.sink.source, epoch.epoch, shown)


def open_console(context: SinkContext) -> ConsoleSink:
    return ConsoleSink(context)


# ---- A sink that runs the pipeline and keeps nothing: for measuring.

BLACKHOLE = ConnectorSpec(
    "blackhole", "takes rows and forgets them", sink=SinkSpec((), supports_rollback=True)
)


class BlackholeSink:
    """Nothing to commit, nothing to recover."""

    def recover(self, committed: CommittedState) -> None: ...

    def columns(self, given: SqlColumns) -> SqlColumns | None:
        return None

    def writer_factory(self, schema: pa.Schema) -> Forgetting:
        return Forgetting()

    def publish(self, epoch: EpochId, committables: Sequence[Committable]) -> None: ...


def open_blackhole(context: SinkContext) -> BlackholeSink:
    return BlackholeSink()
