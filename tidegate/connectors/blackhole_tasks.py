"""What tasks do for a blackhole. Python workers import it: it must load little."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

    from tidegate.connectors.protocols import Token


@dataclass(frozen=True)
class Forgetting:
    """Takes rows in tasks."""

    def open(self, stamp: str, task: int) -> Forgetting:
        return self

    def add(self, rows: pa.Table) -> None:
        """Computed, and that is all."""

    def finish(self) -> list[Token]:
        return []
