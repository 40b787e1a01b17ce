"""What tasks do for a console. Python workers import it: it must load little."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

    from tidegate.connectors.base import Committable


@dataclass
class FirstRows:
    """Keeps the first rows of a task, and counts the others."""

    most: int
    kept: Any = None
    total: int = 0

    def add(self, rows: pa.Table) -> None:
        self.total += rows.num_rows
        if self.kept is None:
            self.kept = rows.slice(0, self.most)
        elif self.kept.num_rows < self.most:
            import pyarrow as pa

            missing = rows.slice(0, self.most - self.kept.num_rows)
            self.kept = pa.concat_tables([self.kept, missing])

    def finish(self) -> list[Committable]:
        if not self.total:
            return []
        from tidegate.connectors.memory.rows import arrow_bytes

        data = base64.b64encode(arrow_bytes(self.kept)).decode()
        return [{"total": self.total, "rows": data}]


@dataclass(frozen=True)
class FirstRowsFactory:
    """Opens the stagers of a console."""

    most: int

    def open(self, stamp: str, task: int) -> FirstRows:
        return FirstRows(self.most)


# ---- What tasks do for a blackhole. Python workers import it: it must load little.


@dataclass(frozen=True)
class Forgetting:
    """Takes rows in tasks."""

    def open(self, stamp: str, task: int) -> Forgetting:
        return self

    def add(self, rows: pa.Table) -> None:
        """Computed, and that is all."""

    def finish(self) -> list[Committable]:
        return []
