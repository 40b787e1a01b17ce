"""What tasks do for a sink of Delta Lake. Python workers import it: it must load little.

The rows of a task become parquet files aside. Those of a table that is appended to hold exactly
what the table will hold; where rows are replaced by key, the files also hold what each row does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.columns import OP
from tidegate.connectors.files_tasks import FilesStager, FilesStagerFactory
from tidegate.errors import RunError


@dataclass(frozen=True)
class DeltaStagerFactory:
    """Opens stagers in tasks."""

    sink: str
    files: FilesStagerFactory
    # Columns of the stream with those of the table, and those of these that are never NULL.
    columns: tuple[tuple[str, str], ...]
    not_null: tuple[str, ...]
    # Those by which the table is partitioned: the log would read '' of them as NULL.
    not_empty: tuple[str, ...]

    def open(self, stamp: str, task: int) -> DeltaStager:
        return DeltaStager(self, self.files.open(stamp, task))


@dataclass
class DeltaStager:
    """The rows of one task: no rows, no file."""

    how: DeltaStagerFactory
    files: FilesStager

    def add(self, rows: pa.Table) -> None:
        pairs = [*self.how.columns, *([(OP, OP)] if OP in rows.column_names else [])]
        table = rows.select([ours for ours, _ in pairs]).rename_columns([t for _, t in pairs])
        self._require_values(table)
        self.files.add(self._with_texts(table))

    def _require_values(self, table: pa.Table) -> None:
        """What the table would not take shows before the epoch is decided."""
        if OP in table.column_names:
            table = table.filter(pc.is_in(table.column(OP), pa.array(["+I", "+U"])))
        for name in self.how.not_null:
            if table.column(name).null_count:
                raise self._unfit(f"a row has no {name}, which the table needs in every row")
        for name in self.how.not_empty:
            if pc.any(pc.equal(table.column(name).cast(pa.string()), "")).as_py():
                raise self._unfit(f"{name} is '' in a row, and the table is partitioned by it")

    def _with_texts(self, table: pa.Table) -> pa.Table:
        """Files are sorted by values as the log writes them."""
        for name in self.how.files.partition:
            texts = table.column(name).cast(pa.string())
            table = table.set_column(table.column_names.index(name), name, texts)
        return table

    def _unfit(self, why: str) -> RunError:
        return RunError(
            "TG-504",
            f"the sink {self.how.sink}: {why}",
            hint="give it another value in the query, or leave such rows out.",
        )

    def finish(self) -> list[dict[str, Any]]:
        return self.files.finish()
