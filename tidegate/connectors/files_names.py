"""Names of files that a files sink has committed: they say which epochs a file holds.

A task's file is named after its epoch, a merged one after the first and the last epoch of the files
it replaces. A merged file holds all rows that its sink has of these epochs in that folder, so what
lies beside it of the same epochs is about to be deleted, and its rows must not be read again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_MERGED = "-to-"
_NAME = re.compile(
    r"(?P<owner>.+-)(?P<generation>\d{3,})-(?P<first>\d{12,})-"
    r"(?:to-(?P<last>\d{12,})|\d{5,}-\d{3,})\.(?:parquet|json|csv)"
)


@dataclass(frozen=True)
class Held:
    """What a file holds, by its name: epochs of one generation of one sink."""

    folder: str
    owner: str
    generation: int
    first: int
    last: int
    merged: bool

    @property
    def place(self) -> tuple[str, str, int]:
        return self.folder, self.owner, self.generation

    def holds(self, other: Held) -> bool:
        """Whether the rows of another file of this place are in this one."""
        return self.first <= other.first and other.last <= self.last and self != other


def held(path: str) -> Held | None:
    """What a file holds; None for files that no sink has named."""
    folder, _, name = path.rpartition("/")
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    first, last = int(found["first"]), found["last"]
    return Held(
        folder,
        found["owner"],
        int(found["generation"]),
        first,
        int(last) if last else first,
        last is not None,
    )


def merged_name(prefix: str, generation: int, first: int, last: int, suffix: str) -> str:
    return f"{prefix}{generation:03d}-{first:012d}{_MERGED}{last:012d}.{suffix}"


class MergedFiles:
    """The merged files among some."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._by_place: dict[tuple[str, str, int], list[Held]] = {}
        for path in paths:
            # Most are not, and there may be very many.
            found = held(path) if _MERGED in path else None
            if found is not None and found.merged:
                self._by_place.setdefault(found.place, []).append(found)

    def __bool__(self) -> bool:
        return bool(self._by_place)

    def hold(self, path: str) -> bool:
        """Whether one of them holds the rows of another file."""
        found = held(path)
        return found is not None and any(
            item.holds(found) for item in self._by_place.get(found.place, ())
        )
