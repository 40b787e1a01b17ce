"""What a query gives back: Arrow, and whatever people want to make of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tidegate.observe.html import html_table

# So many rows are shown; all of them are there.
_SHOWN = 20


@dataclass(frozen=True, eq=False)
class QueryResult:
    """The rows of a query, as of one epoch of each pipeline."""

    table: pa.Table
    epochs: Mapping[str, int] = field(default_factory=dict)

    @property
    def columns(self) -> list[str]:
        return list(self.table.column_names)

    def to_arrow(self) -> pa.Table:
        return self.table

    def to_pandas(self) -> Any:
        return self.table.to_pandas()

    def to_polars(self) -> Any:
        import polars

        return polars.from_arrow(self.table)

    def to_pylist(self) -> list[dict[str, Any]]:
        """The rows as dicts."""
        return list(self.table.to_pylist())

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.table.__arrow_c_stream__(requested_schema)

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for batch in self.table.to_batches():
            yield from batch.to_pylist()

    def __repr__(self) -> str:
        lines = ["\t".join(self.columns)]
        lines += ["\t".join(map(str, row.values())) for row in self._first()]
        return "\n".join([*lines, f"({self._count()})"])

    def _repr_html_(self) -> str:
        """A table for notebooks."""
        return html_table(self.columns, self._first(), self._count())

    def _first(self) -> list[dict[str, Any]]:
        return list(self.table.slice(0, _SHOWN).to_pylist())

    def _count(self) -> str:
        count = "1 row" if len(self) == 1 else f"{len(self):,} rows"
        shown = f", the first {_SHOWN} are shown" if len(self) > _SHOWN else ""
        epochs = ", ".join(f"{name} at epoch {epoch}" for name, epoch in self.epochs.items())
        return count + shown + (f"; {epochs}" if epochs else "")
