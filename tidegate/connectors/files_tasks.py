"""What tasks do for a files sink. Python workers import it: it must load little."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidegate.storage import open_store

# So many rows are written at a time, and make a row group of parquet.
_ROWS_AT_ONCE = 1 << 20
# Hive's name of a folder whose value is NULL.
NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
_ODD = frozenset([*map(chr, range(1, 32)), *"\"#%'*/:=?\\\x7f{[]^"])


@dataclass(frozen=True)
class FilesStagerFactory:
    """Opens stagers in tasks."""

    root: str
    format: str
    partition: tuple[str, ...]
    header: str | None
    # How much a file holds before another one is begun.
    most_rows: int | None = None
    most_bytes: int | None = None

    def open(self, stamp: str, task: int) -> FilesStager:
        return FilesStager(self, stamp, task)


@dataclass
class FilesStager:
    """The files of one task: at least one per folder, and no rows, no file."""

    how: FilesStagerFactory
    stamp: str
    task: int
    files: dict[tuple[str, ...], _File] = field(default_factory=dict)
    tokens: list[dict[str, Any]] = field(default_factory=list)
    number: int = 0

    def add(self, rows: pa.Table) -> None:
        if not self.how.partition:
            self._add((), rows)
            return
        names = [n for n in rows.column_names if n.lower() in self._wanted]
        places = _places(rows.select(names))
        for folder, place in places.items():
            self._add(folder, rows.take(pa.array(place)).drop_columns(names))

    @property
    def _wanted(self) -> set[str]:
        return {name.lower() for name in self.how.partition}

    def _add(self, folder: tuple[str, ...], rows: pa.Table) -> None:
        while rows.num_rows:
            file = self.files.get(folder) or self._begun(folder)
            part = rows.slice(0, file.room)
            rows = rows.slice(part.num_rows)
            file.add(part)
            if file.is_full:
                self.tokens.append(self.files.pop(folder).finish())

    def _begun(self, folder: tuple[str, ...]) -> _File:
        name = f"{self.task:05d}-{self.number:03d}.{self.how.format}"
        self.number += 1
        staged = f"{self.stamp}-{uuid.uuid4().hex[:12]}-{name}"
        self.files[folder] = _File(self.how, folder, name, staged)
        return self.files[folder]

    def finish(self) -> list[dict[str, Any]]:
        return [*self.tokens, *(file.finish() for file in self.files.values())]


@dataclass
class _File:
    how: FilesStagerFactory
    folder: tuple[str, ...]
    name: str
    staged: str
    out: Any = None
    writer: Any = None
    rows: int = 0

    @property
    def room(self) -> int:
        """How many rows may be added at once."""
        most = self.how.most_rows
        return _ROWS_AT_ONCE if most is None else min(most - self.rows, _ROWS_AT_ONCE)

    @property
    def is_full(self) -> bool:
        many = self.how.most_rows is not None and self.rows >= self.how.most_rows
        return many or (self.how.most_bytes is not None and self.out.tell() >= self.how.most_bytes)

    def add(self, rows: pa.Table) -> None:
        if self.out is None:
            self.out = open_store(self.how.root).writer(self.staged)
            if self.how.format == "parquet":
                self.writer = pq.ParquetWriter(self.out, rows.schema)
            elif self.how.header is not None:
                self.out.write(self.how.header.encode() + b"\n")
        self.rows += rows.num_rows
        if self.writer is not None:
            self.writer.write_table(rows)
        else:
            self._write_lines(rows.column(0))

    def _write_lines(self, lines: pa.ChunkedArray) -> None:
        text = pc.binary_join_element_wise(lines, "\n", "")
        for chunk in text.chunks:
            self.out.write("".join(chunk.to_pylist()).encode())

    def finish(self) -> dict[str, Any]:
        if self.writer is not None:
            self.writer.close()
        self.out.close()
        return {
            "staged": self.staged,
            "folder": list(self.folder),
            "name": self.name,
            "rows": self.rows,
            "bytes": self.out.tell(),
        }


def _places(keys: pa.Table) -> dict[tuple[str, ...], list[int]]:
    """Which rows belong into which folder."""
    texts = [[_escaped(v) for v in keys.column(n).to_pylist()] for n in keys.column_names]
    places: dict[tuple[str, ...], list[int]] = {}
    for row, values in enumerate(zip(*texts, strict=True)):
        folder = tuple(
            f"{name}={value}" for name, value in zip(keys.column_names, values, strict=True)
        )
        places.setdefault(folder, []).append(row)
    return places


def _escaped(value: str | None) -> str:
    """A value as the name of a folder, as Hive and Spark write it."""
    if value is None or value == "":
        return NULL_FOLDER
    return "".join(f"%{ord(sign):02X}" if sign in _ODD else sign for sign in value)
