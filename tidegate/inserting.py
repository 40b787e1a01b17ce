"""Rows into memory sources: all at once, or in parts as an iterator hands them out."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Mapping
from typing import Any

# An insert is a file: so many rows of an iterator are one.
PART = 10_000

Insert = Callable[[Any], int]


def is_endless(rows: Any) -> bool:
    """Whether rows come one by one, and nobody knows how many they are."""
    return isinstance(rows, Iterator) and not isinstance(rows, Mapping)


def insert_parts(rows: Iterable[Any], insert: Insert) -> int:
    """Insert what an iterator hands out, part by part; how many rows it were."""
    given, count = iter(rows), 0
    while part := list(itertools.islice(given, PART)):
        count += insert(part)
    return count


async def insert_async(rows: AsyncIterable[Any], insert: Insert, most: int = PART) -> int:
    """The same for an async iterator; rows are inserted once they are many, and at the end."""
    part: list[Any] = []
    count = 0
    async for row in rows:
        part.append(row)
        if len(part) >= most:
            count += insert(part)
            part = []
    return count + (insert(part) if part else 0)
