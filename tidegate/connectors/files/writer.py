"""The writer of files sinks, and the file formats that compaction merges.

Python workers import this module, which must not load the parser.
"""

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

# The maximum number of rows per write, and per row group of Parquet.
_MAX_ROWS_PER_WRITE = 1 << 20
# Hive's name of the folder for NULL.
NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
_ESCAPED = frozenset([*map(chr, range(1, 32)), *"\"#%'*/:=?\\\x7f{[]^"])


@dataclass(frozen=True)
class FilesWriterFactory:
    """Opens the writers of a files sink. `root` is the staging folder."""

    root: str
    format: str
    partition: tuple[str, ...]
    header: str | None
    # The size at which a new file is started.
    max_rows: int | None = None
    max_bytes: int | None = None

    def open(self, stamp: str, task: int) -> FilesWriter:
        return FilesWriter(self, stamp, task)


@dataclass
class FilesWriter:
    """Writes the rows of one task into files, at least one per partition folder with rows."""

    factory: FilesWriterFactory
    stamp: str
    task: int
    files: dict[tuple[str, ...], _File] = field(default_factory=dict)
    committables: list[dict[str, Any]] = field(default_factory=list)
    number: int = 0

    def add(self, rows: pa.Table) -> None:
        if not self.factory.partition:
            self._add((), rows)
            return
        names = [n for n in rows.column_names if n.lower() in self._partition_names]
        rows_by_folder = _rows_by_folder(rows.select(names))
        for folder, positions in rows_by_folder.items():
            self._add(folder, rows.take(pa.array(positions)).drop_columns(names))

    @property
    def _partition_names(self) -> set[str]:
        return {name.lower() for name in self.factory.partition}

    def _add(self, folder: tuple[str, ...], rows: pa.Table) -> None:
        while rows.num_rows:
            file = self.files.get(folder) or self._start_file(folder)
            fitting_rows = rows.slice(0, file.remaining_rows)
            rows = rows.slice(fitting_rows.num_rows)
            file.add(fitting_rows)
            if file.is_full:
                self.committables.append(self.files.pop(folder).finish())

    def _start_file(self, folder: tuple[str, ...]) -> _File:
        name = f"{self.task:05d}-{self.number:03d}.{self.factory.format}"
        self.number += 1
        staged = f"{self.stamp}-{uuid.uuid4().hex[:12]}-{name}"
        self.files[folder] = _File(self.factory, folder, name, staged)
        return self.files[folder]

    def finish(self) -> list[dict[str, Any]]:
        return [*self.committables, *(file.finish() for file in self.files.values())]


@dataclass
class _File:
    """A staged file. It is opened when the first rows are added."""

    factory: FilesWriterFactory
    folder: tuple[str, ...]
    name: str
    staged: str
    out: Any = None
    writer: Any = None
    rows: int = 0

    @property
    def remaining_rows(self) -> int:
        """The number of rows that may be added at once."""
        limit = self.factory.max_rows
        return _MAX_ROWS_PER_WRITE if limit is None else min(limit - self.rows, _MAX_ROWS_PER_WRITE)

    @property
    def is_full(self) -> bool:
        has_max_rows = self.factory.max_rows is not None and self.rows >= self.factory.max_rows
        return has_max_rows or (
            self.factory.max_bytes is not None and self.out.tell() >= self.factory.max_bytes
        )

    def add(self, rows: pa.Table) -> None:
        if self.out is None:
            self.out = open_store(self.factory.root).writer(self.staged)
            if self.factory.format == "parquet":
                self.writer = pq.ParquetWriter(self.out, rows.schema)
            elif self.factory.header is not None:
                self.out.write(self.factory.header.encode() + b"\n")
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


def _rows_by_folder(keys: pa.Table) -> dict[tuple[str, ...], list[int]]:
    """Return the positions of the rows of each partition folder."""
    texts = [[_folder_value(v) for v in keys.column(n).to_pylist()] for n in keys.column_names]
    positions: dict[tuple[str, ...], list[int]] = {}
    for row, values in enumerate(zip(*texts, strict=True)):
        folder = tuple(
            f"{name}={value}" for name, value in zip(keys.column_names, values, strict=True)
        )
        positions.setdefault(folder, []).append(row)
    return positions


def _folder_value(value: str | None) -> str:
    """Return a value as a folder name, escaped like in Hive and Spark."""
    if value is None or value == "":
        return NULL_FOLDER
    return "".join(f"%{ord(sign):02X}" if sign in _ESCAPED else sign for sign in value)


# ---- Counting the rows of published files, and merging them.

# The approximate size of the row groups of merged files.
_GROUP_ROWS = 1 << 17
_GROUP_BYTES = 32 << 20


@dataclass(frozen=True)
class FileFormat:
    """The format of a sink's files, with the header line of CSV files if they have one."""

    format: str
    header: str | None = None

    def count(self, store: Store, path: str) -> int:
        """Return the number of rows of a file."""
        if self.format == "parquet":
            return int(_open_parquet(store, path).metadata.num_rows)
        return self._records(self._body(store, path))

    def merge(self, store: Store, paths: Sequence[str], out: Writer) -> int:
        """Write the rows of several files into one, and return their number."""
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
        """Count the lines, in CSV without line breaks inside quotes."""
        outside = body.split(b'"')[::2] if self.format == "csv" else [body]
        return sum(part.count(b"\n") for part in outside)

    @property
    def _head(self) -> bytes:
        return b"" if self.header is None else self.header.encode() + b"\n"

    def _body(self, store: Store, path: str) -> bytes:
        data = store.get(path)
        if not data.startswith(self._head) or not data.endswith(b"\n"):
            raise _unreadable(store, path, "it has been changed")
        return data[len(self._head) :]


def _merge_parquet(store: Store, paths: Sequence[str], out: Writer) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = _open_parquet(store, paths[0]).schema_arrow
    rows = 0
    with pq.ParquetWriter(out, schema) as writer:
        for batches in _groups(_batches(store, paths, schema)):
            writer.write_table(pa.Table.from_batches(batches, schema))
            rows += sum(batch.num_rows for batch in batches)
    return rows


def _batches(store: Store, paths: Sequence[str], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    for path in paths:
        file = _open_parquet(store, path)
        if not file.schema_arrow.equals(schema):
            raise _unreadable(store, path, "its columns differ from those of the other files")
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


def _open_parquet(store: Store, path: str) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(pa.BufferReader(store.map(path)))
    except pa.ArrowException as error:
        raise _unreadable(store, path, str(error).splitlines()[0]) from None


def _unreadable(store: Store, path: str, reason: str) -> RunError:
    return RunError(
        "TG-529",
        f"{store.uri}/{path} was published and cannot be merged with other files: {reason}",
        hint="restore the file, move it to another directory, or leave out compact_after.",
    )
