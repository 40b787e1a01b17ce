"""What all GROUP BY operators share: rows become partials where they are read."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar

import pyarrow as pa

from tidegate.operators import runs
from tidegate.operators.contract import Tables
from tidegate.operators.group_kernels import Groups, GroupSpec, concat
from tidegate.operators.late import LateRows
from tidegate.operators.layout import Layout
from tidegate.state.codec import schema_text


class Grouped:
    """With late rows to keep, rows stay what they are until they have been judged."""

    stored_in: ClassVar[str] = runs.FORMAT
    spec: GroupSpec
    layout: Layout
    late_rows: LateRows | None

    @cached_property
    def groups(self) -> Groups:
        return Groups(self.spec)

    @property
    def packed(self) -> tuple[tuple[pa.Schema, ...], ...]:
        if self.late_rows is not None:
            return ((self.late_rows.packed,),)
        return (self.groups.schemas,)

    @property
    def output(self) -> pa.Schema:
        return self.layout.schema

    @property
    def late(self) -> pa.Schema | None:
        return self.late_rows.schema if self.late_rows is not None else None

    def stored_as(self) -> tuple[str, ...]:
        return (self.stored_in, *(schema_text(schema) for schema in self.groups.schemas))

    def lift(self, port: int, rows: pa.Table) -> Tables:
        if self.late_rows is not None:
            return (self.late_rows.select(rows),)
        return self.partials(rows)

    def shrink(self, port: int, parts: Sequence[Tables]) -> Tables:
        if self.late_rows is not None or len(parts) == 1:
            return concat(parts)
        return self.merged(concat(parts))

    def partials(self, rows: pa.Table) -> Tables:
        return self.groups.lift(rows)

    def merged(self, tables: Tables) -> Tables:
        """Partials of the same group as one."""
        return self.groups.combine(tables)
