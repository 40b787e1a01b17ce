"""A sink that runs the pipeline and keeps nothing: for measuring."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidegate.catalog.connector import ConnectorSpec, SinkSpec
from tidegate.connectors.blackhole_tasks import Forgetting
from tidegate.connectors.protocols import Decided, EpochId, SinkContext, SqlColumns, Token

if TYPE_CHECKING:
    import pyarrow as pa

SPEC = ConnectorSpec("blackhole", "takes rows and forgets them", sink=SinkSpec((), forgets=True))


class BlackholeSink:
    """Nothing to commit, nothing to recover."""

    def recover(self, decided: Decided) -> None: ...

    def columns(self, given: SqlColumns) -> SqlColumns | None:
        return None

    def stager(self, schema: pa.Schema) -> Forgetting:
        return Forgetting()

    def commit(self, epoch: EpochId, tokens: Sequence[Token]) -> None: ...


def open_sink(context: SinkContext) -> BlackholeSink:
    return BlackholeSink()
