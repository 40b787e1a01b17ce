"""From evaluated groups to the columns that an aggregate hands out."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.columns import OP
from tidegate.operators.group_kernels import PANE
from tidegate.operators.panes import Panes

# A column with the start of the window, where the end does not tell it.
START = "_start"


@dataclass(frozen=True)
class OutputColumn:
    """`key` or `result` number `index`; `due` is a time `index` µs after the end of the window,
    `start` the window's start."""

    kind: str
    index: int
    type: pa.DataType

    def __post_init__(self) -> None:
        assert self.kind in ("key", "result", "due", "start"), self.kind


@dataclass(frozen=True)
class Layout:
    """The columns of an aggregate, as `c0`, `c1`, …, and _op if it gives out changes."""

    columns: tuple[OutputColumn, ...]
    panes: Panes
    with_op: bool = False

    @cached_property
    def schema(self) -> pa.Schema:
        fields = [pa.field(f"c{index}", item.type) for index, item in enumerate(self.columns)]
        return pa.schema([*fields, pa.field(OP, pa.string())] if self.with_op else fields)

    def rows(self, groups: pa.Table) -> pa.Table:
        """`groups` has the end of the window as its pane."""
        arrays = [self._column(groups, item) for item in self.columns]
        if self.with_op:
            arrays.append(groups.column(OP))
        return pa.table(arrays, schema=self.schema)

    def _column(self, groups: pa.Table, item: OutputColumn) -> pa.ChunkedArray:
        if item.kind == "key":
            return groups.column(f"k{item.index}")
        if item.kind == "result":
            return groups.column(f"r{item.index}")
        end = groups.column(PANE)
        if item.kind == "start" and START in groups.column_names:
            return pc.cast(groups.column(START), item.type)
        if item.kind == "start":
            starts = self.panes.start(np.asarray(end.to_numpy(), np.int64))
            return pa.chunked_array([pa.array(starts).cast(item.type)])
        shifted = end if item.index == 0 else pc.add(end, pa.scalar(item.index, pa.int64()))
        return shifted if shifted.type == item.type else pc.cast(shifted, item.type)
