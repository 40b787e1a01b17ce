"""What a materialised view keeps: files of changes, each of a range of epochs, and what they mean.

An epoch is a range of one. Ranges are folded into larger ones, by size, as long as no epoch to
which the pipeline can go back lies inside, so that going back is leaving files out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from tidegate.storage import NotThere, Store
from tidegate.types import ChangelogKind

if TYPE_CHECKING:
    import pyarrow as pa

FOLDER, STAGED = "view", "staged"
_ABOUT = "about.json"
_SUFFIX = ".arrow"
# How many rows a stream has given out in a range, where folding has made them fewer.
_GIVEN = b"tidegate.rows"
# So many epochs that can be folded are folded.
MANY = 16


@dataclass(frozen=True)
class Shape:
    """What the rows of a view mean."""

    kind: ChangelogKind
    key: tuple[str, ...]
    # Names and Spark's types.
    columns: tuple[tuple[str, str], ...]

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "kind": self.kind.value}

    @classmethod
    def of_json(cls, stored: dict[str, Any]) -> Shape:
        columns = tuple((str(name), str(kind)) for name, kind in stored["columns"])
        return cls(ChangelogKind(stored["kind"]), tuple(stored["key"]), columns)

    def meaning(self, query: str) -> str:
        """Tells a view from one of another query, or with other columns."""
        text = json.dumps([self.to_json(), query], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def empty(self) -> pa.Table:
        """A table without rows."""
        import pyarrow as pa

        from tidegate.physical.typed import arrow_type

        fields = [pa.field(name, arrow_type(kind)) for name, kind in self.columns]
        return pa.schema(fields).empty_table()


@dataclass(frozen=True, order=True)
class Range:
    """Epochs that follow each other, both ends included, and how many of them had rows."""

    first: int
    last: int
    epochs: int = 1

    @property
    def file(self) -> str:
        return f"{self.first:012d}-{self.last:012d}-{self.epochs}{_SUFFIX}"

    def holds(self, epoch: int) -> bool:
        return self.first <= epoch <= self.last

    def covers(self, other: Range) -> bool:
        return self != other and self.first <= other.first and other.last <= self.last

    def never_was(self, gaps: Iterable[tuple[int, int]]) -> bool:
        """Whether the pipeline went back to before these epochs."""
        return any(before < self.first and self.last < after for before, after in gaps)


def ranges(store: Store) -> list[Range]:
    """What is there, in order; what was folded and not yet removed is left out."""
    found = []
    for item in store.list():
        name = item.name
        if "/" not in name and name.endswith(_SUFFIX):
            found.append(Range(*map(int, name.removesuffix(_SUFFIX).split("-"))))
    return sorted(r for r in found if not any(other.covers(r) for other in found))


def leftovers(store: Store) -> list[str]:
    """Files that were folded into others, and not removed."""
    kept = {item.file for item in ranges(store)}
    names = (item.name for item in store.list())
    return [n for n in names if "/" not in n and n.endswith(_SUFFIX) and n not in kept]


def read_range(store: Store, item: Range) -> tuple[pa.Table, int]:
    """The changes of a range, and how many rows the stream gave out in it."""
    import pyarrow as pa

    table = pa.ipc.open_file(pa.BufferReader(store.map(item.file))).read_all()
    metadata = table.schema.metadata or {}
    return table, int(metadata.get(_GIVEN, table.num_rows))


def range_bytes(table: pa.Table, given: int) -> bytes:
    """The content of the file of a range."""
    from tidegate.connectors.memory_tasks import arrow_bytes

    metadata = {**(table.schema.metadata or {}), _GIVEN: str(given).encode()}
    return arrow_bytes(table.replace_schema_metadata(metadata).combine_chunks())


def to_fold(found: Sequence[Range], kept: Collection[int]) -> list[Range]:
    """Ranges that may become one, if single epochs among them are many.

    `kept` are the epochs to which the pipeline can go back: none may lie inside of a range, unless
    at its end.
    """
    for part in _parts(found, kept):
        epochs = 0
        chosen: list[Range] = []
        # An older range is taken along once what is new is half of it: each epoch is then written
        # again a few times only, however many there are.
        for item in reversed(part):
            if item.epochs > 1 and item.epochs > 2 * epochs:
                break
            chosen.insert(0, item)
            epochs += item.epochs
        if sum(item.epochs == 1 for item in chosen) >= MANY:
            return chosen
    return []


def _parts(found: Sequence[Range], kept: Collection[int]) -> list[list[Range]]:
    """The ranges cut at the epochs to which the pipeline can go back."""
    parts: list[list[Range]] = []
    for item in found:
        before = parts[-1][-1].last if parts else None
        if before is None or any(before <= epoch < item.first for epoch in kept):
            parts.append([])
        parts[-1].append(item)
    return parts


def store_shape(store: Store, shape: Shape) -> None:
    """Written when it is another one: readers in other processes need it."""
    if stored_shape(store) != shape:
        store.put(_ABOUT, json.dumps(shape.to_json()).encode())


def stored_shape(store: Store) -> Shape | None:
    try:
        return Shape.of_json(json.loads(store.get(_ABOUT)))
    except NotThere:
        return None
