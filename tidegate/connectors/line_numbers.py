"""Numbers the lines of text files in the order in which a task reads them.

Python workers import this module: it must not load the parser.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import Column


@dataclass
class LineCounter:
    """Counts lines block by block; a task reads the lines of a block one after the other."""

    block: int | None = None
    lines: int = 0
    filled: bool = False

    def number(self, blocks: Any, blank: Any) -> Any:
        """The number of each line in its block, from 1; negative for the first that has text."""
        count = len(blocks)
        if not count:
            return np.zeros(0, np.int64)
        places = np.arange(count)
        begins = np.empty(count, bool)
        begins[0] = blocks[0] != self.block
        begins[1:] = blocks[1:] != blocks[:-1]
        start = np.maximum.accumulate(np.where(begins, places, 0))
        # Lines up to the first block that begins here belong to the block of the batch before.
        carried = np.cumsum(begins) == 0
        numbers = places - start + 1 + np.where(carried, self.lines, 0)
        texts = np.cumsum(~blank)
        before = texts[start] - (~blank)[start]
        first = (~blank) & (texts - before == 1) & ~(carried & self.filled)
        self.filled = bool(texts[-1] > before[-1]) or bool(carried[-1] and self.filled)
        self.block, self.lines = int(blocks[-1]), int(numbers[-1])
        return np.where(first, -numbers, numbers)


def numbered(batches: Iterator[tuple[pa.Array, pa.Array]]) -> Iterator[pa.Array]:
    counter = LineCounter()
    for blocks, blank in batches:
        yield pa.array(
            counter.number(
                blocks.to_numpy(zero_copy_only=False), blank.to_numpy(zero_copy_only=False)
            ),
            pa.int64(),
        )


def line_number(block: Column, blank: Column) -> Column:
    """A column with the number of each line; only the two columns go to Python and back."""
    from pyspark.sql import functions
    from pyspark.sql.types import LongType

    # PySpark's annotations do not know it, though its documentation does.
    make: Any = functions.arrow_udf  # type: ignore[attr-defined]
    # Conditions must stay above it: without the lines they drop the numbers would be others.
    number: Callable[[Column, Column], Column] = make(numbered, LongType()).asNondeterministic()
    return number(block, blank)
