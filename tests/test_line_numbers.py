"""Lines are numbered block by block, whatever batches Spark makes of them."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tidegate.connectors.line_numbers import LineCounter

LINES = st.lists(st.tuples(st.integers(1, 3), st.booleans()), max_size=30)


def expected(lines: list[tuple[int, bool]]) -> list[int]:
    """One line after the other: negative is the first of a block that is not blank."""
    numbers: list[int] = []
    block, line, filled = 0, 0, False
    for at, blank in lines:
        if at != block:
            block, line, filled = at, 0, False
        line += 1
        numbers.append(line if blank or filled else -line)
        filled = filled or not blank
    return numbers


@given(LINES, st.lists(st.integers(0, 30), max_size=5))
def test_any_batches_give_the_same_numbers(lines: list[tuple[int, bool]], cuts: list[int]) -> None:
    counter = LineCounter()
    numbers: list[int] = []
    places = [0, *sorted(min(cut, len(lines)) for cut in cuts), len(lines)]
    for start, end in itertools.pairwise(places):
        blocks = np.array([block for block, _ in lines[start:end]], np.int64)
        blank = np.array([item for _, item in lines[start:end]], bool)
        numbers += counter.number(blocks, blank).tolist()
    assert numbers == expected(lines)
