"""What tasks do for a files sink. Python workers import it: it must load little."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidegate.storage import open_store

_SUFFIX = {"parquet": "parquet", "json": "json", "csv": "csv"}
# Hive's name of a folder whose value is NULL.
_NULL = "__HIVE_DEFAULT_PARTITION__"
_ODD = frozenset([*map(chr, range(1, 32)), *"\"#%'*/:=?\\\x7f{[]^"])


@dataclass(frozen=True)
class FilesStagerFactory:
    """Opens stagers in tasks."""

    root: str
    format: str
    partition: tuple[str, ...]
    header: str | None

    def open(self, stamp: str, task: int) -> FilesStager:
        return FilesStager(self, stamp, task)


@dataclass
class FilesStager:
    """The files of one task: one per folder, and no rows, no file."""

    how: FilesStagerFactory
    stamp: str
    task: int
    files: dict[tuple[str, ...], _File] = field(default_factory=dict)

    def add(self, rows: pa.Table) -> None:
        if not self.how.partition:
            self._file(()).add(rows)
            return
        names = [n for n in rows.column_names if n.lower() in self._wanted]
        places = _places(rows.select(names))
        for folder, place in places.items():
            part = rows.take(pa.array(place)).drop_columns(names)
            self._file(tuple(folder)).add(part)

    @property
    def _wanted(self) -> set[str]:
        return {name.lower() for name in self.how.partition}

    def _file(self, folder: tuple[str, ...]) -> _File:
        if folder not in self.files:
            number = len(self.files)
            suffix = _SUFFIX[self.how.format]
            name = f"{self.task:05d}-{number:03d}.{suffix}"
            staged = f"{self.stamp}-{uuid.uuid4().hex[:12]}-{name}"
            self.files[folder] = _File(self.how, folder, name, staged)
        return self.files[folder]

    def finish(self) -> list[dict[str, Any]]:
        return [file.finish() for file in self.files.values()]


@dataclass
class _File:
    how: FilesStagerFactory
    folder: tuple[str, ...]
    name: str
    staged: str
    out: Any = None
    writer: Any = None
    rows: int = 0

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
        return _NULL
    return "".join(f"%{ord(sign):02X}" if sign in _ODD else sign for sign in value)
