"""Sink writers of the console and of the blackhole. Python workers import this module."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

    from tidegate.connectors.base import Committable


@dataclass
class FirstRowsWriter:
    """Keeps the first `limit` rows of a task and counts all. The rows are the committable."""

    limit: int
    first_rows: Any = None
    total: int = 0

    def add(self, rows: pa.Table) -> None:
        self.total += rows.num_rows
        if self.first_rows is None:
            self.first_rows = rows.slice(0, self.limit)
        elif self.first_rows.num_rows < self.limit:
            import pyarrow as pa

            missing = rows.slice(0, self.limit - self.first_rows.num_rows)
            self.first_rows = pa.concat_tables([self.first_rows, missing])

    def finish(self) -> list[Committable]:
        if not self.total:
            return []
        from tidegate.operators.kernels.arrays import arrow_bytes

        data = base64.b64encode(arrow_bytes(self.first_rows)).decode()
        return [{"total": self.total, "rows": data}]


@dataclass(frozen=True)
class FirstRowsWriterFactory:
    """Opens the writers of a console sink."""

    limit: int

    def open(self, stamp: str, task: int) -> FirstRowsWriter:
        return FirstRowsWriter(self.limit)


@dataclass(frozen=True)
class DiscardingWriter:
    """Discards rows. It has no state, so it is its own factory."""

    def open(self, stamp: str, task: int) -> DiscardingWriter:
        return self

    def add(self, rows: pa.Table) -> None:
        """Discard rows, which have been computed at this point."""

    def finish(self) -> list[Committable]:
        return []
