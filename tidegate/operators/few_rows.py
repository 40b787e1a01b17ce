"""Merging a few rows of whole numbers: Arrow needs longer for a plan than numpy for all of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

# Above that Arrow is faster.
MOST_ROWS = 1_000
_WHOLE = pa.int64()
# They give what the kernels of Arrow with these names give.
_FOLDS = {"sum": np.add, "min": np.minimum, "max": np.maximum}


@dataclass(frozen=True)
class FewRows:
    """How tables of one shape are merged: by which columns, and the others by which function."""

    schema: pa.Schema
    keys: tuple[int, ...]
    folds: tuple[tuple[int, np.ufunc], ...]

    def merge(self, table: pa.Table) -> pa.Table | None:
        """One row per key, in the order of first rows; None if a plan of Arrow must do it."""
        if table.num_rows > MOST_ROWS:
            return None
        columns = table.columns
        if any(column.null_count for column in columns):
            return None
        values = [column.to_numpy() for column in columns]
        # What all rows share sorts nothing: a window that closes is one pane.
        by = [values[key] for key in self.keys]
        by = [numbers for numbers in by if (numbers != numbers[0]).any()]
        order = np.lexsort(by[::-1]) if by else np.arange(table.num_rows)
        new = np.zeros(table.num_rows, np.bool_)
        new[0] = True
        for numbers in by:
            placed = numbers[order]
            new[1:] |= placed[1:] != placed[:-1]
        starts = np.flatnonzero(new)
        shown = np.argsort(order[starts])
        firsts = order[starts][shown]
        for key in self.keys:
            values[key] = values[key][firsts]
        for place, fold in self.folds:
            values[place] = fold.reduceat(values[place][order], starts)[shown]
        return pa.Table.from_arrays([pa.array(numbers) for numbers in values], schema=self.schema)


def few_rows(
    schema: pa.Schema, keys: Sequence[str], merges: Sequence[tuple[str, str]]
) -> FewRows | None:
    """A merge of all columns of a schema, if they are whole numbers that numpy can merge."""
    known = all(kernel in _FOLDS for _, kernel in merges)
    if not known or any(kind != _WHOLE for kind in schema.types):
        return None
    assert len(keys) + len(merges) == len(schema), "every column is a key or merged"
    folds = ((schema.get_field_index(name), _FOLDS[kernel]) for name, kernel in merges)
    return FewRows(schema, tuple(schema.get_field_index(key) for key in keys), tuple(folds))
