"""What tasks do for a files sink. Python workers import it: it must load little."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidegate.errors import RunError
from tidegate.storage import open_store

if TYPE_CHECKING:
    from tidegate.storage import Store
    from tidegate.storage.store import Writer

# So many rows are written at a time, and make a row group of parquet.
_ROWS_AT_ONCE = 1 << 20
# Hive's name of a folder whose value is NULL.
NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
_ODD = frozenset([*map(chr, range(1, 32)), *"\"#%'*/:=?\\\x7f{[]^"])


@dataclass(frozen=True)
class FilesWriterFactory:
    """Opens stagers in tasks."""

    root: str
    format: str
    partition: tuple[str, ...]
    header: str | None
    # How much a file holds before another one is begun.
    most_rows: int | None = None
    most_bytes: int | None = None

    def open(self, stamp: str, task: int) -> FilesWriter:
        return FilesWriter(self, stamp, task)


@dataclass
class FilesWriter:
    """The files of one task: at least one per folder, and no rows, no file."""

    how: FilesWriterFactory
    stamp: str
    task: int
    files: dict[tuple[str, ...], _File] = field(default_factory=dict)
    committables: list[dict[str, Any]] = field(default_factory=list)
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
                self.committables.append(self.files.pop(folder).finish())

    def _begun(self, folder: tuple[str, ...]) -> _File:
        name = f"{self.task:05d}-{self.number:03d}.{self.how.format}"
        self.number += 1
        staged = f"{self.stamp}-{uuid.uuid4().hex[:12]}-{name}"
        self.files[folder] = _File(self.how, folder, name, staged)
        return self.files[folder]

    def finish(self) -> list[dict[str, Any]]:
        return [*self.committables, *(file.finish() for file in self.files.values())]


@dataclass
class _File:
    how: FilesWriterFactory
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


# ---- What lies in the files of a sink: how rows are counted, and how files become one.

# Rows are written in groups of about this size.
_GROUP_ROWS = 1 << 17
_GROUP_BYTES = 32 << 20


@dataclass(frozen=True)
class Content:
    """The format of a sink's files; CSV may have a header."""

    format: str
    header: str | None = None

    def count(self, store: Store, path: str) -> int:
        """How many rows a file has."""
        if self.format == "parquet":
            return int(_opened(store, path).metadata.num_rows)
        return self._records(self._body(store, path))

    def merge(self, store: Store, paths: Sequence[str], out: Writer) -> int:
        """Write the rows of several files into one; returns how many they are."""
        if self.format == "parquet":
            return _merge_parquet(store, paths, out)
        out.write(self._head)
        rows = 0
        for path in paths:
            body = self._body(store, path)
            out.write(body)
            rows += self._records(body)
        return rows

    def _records(self, body: bytes) -> int:
        """Lines, but for those of CSV that end inside of quotes."""
        outside = body.split(b'"')[::2] if self.format == "csv" else [body]
        return sum(part.count(b"\n") for part in outside)

    @property
    def _head(self) -> bytes:
        return b"" if self.header is None else self.header.encode() + b"\n"

    def _body(self, store: Store, path: str) -> bytes:
        data = store.get(path)
        if not data.startswith(self._head) or not data.endswith(b"\n"):
            raise _unreadable(store, path, "it is not as it was written")
        return data[len(self._head) :]


def _merge_parquet(store: Store, paths: Sequence[str], out: Writer) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = _opened(store, paths[0]).schema_arrow
    rows = 0
    with pq.ParquetWriter(out, schema) as writer:
        for batches in _groups(_batches(store, paths, schema)):
            writer.write_table(pa.Table.from_batches(batches, schema))
            rows += sum(batch.num_rows for batch in batches)
    return rows


def _batches(store: Store, paths: Sequence[str], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    for path in paths:
        file = _opened(store, path)
        if not file.schema_arrow.equals(schema):
            raise _unreadable(store, path, "its columns are not those of the others")
        try:
            yield from file.iter_batches(_GROUP_ROWS)
        except (pa.ArrowException, OSError) as error:
            raise _unreadable(store, path, str(error).splitlines()[0]) from None


def _groups(batches: Iterator[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    group: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        group.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= _GROUP_ROWS or size >= _GROUP_BYTES:
            yield group
            group, rows, size = [], 0, 0
    if group:
        yield group


def _opened(store: Store, path: str) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(pa.BufferReader(store.map(path)))
    except pa.ArrowException as error:
        raise _unreadable(store, path, str(error).splitlines()[0]) from None


def _unreadable(store: Store, path: str, why: str) -> RunError:
    return RunError(
        "TG-504",
        f"{store.uri}/{path} was committed and cannot be merged with others: {why}",
        hint="put the file back as it was, move it elsewhere, or leave out compact_after.",
    )
