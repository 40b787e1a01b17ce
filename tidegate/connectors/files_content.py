"""What lies in the files of a sink: how rows are counted, and how files become one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.errors import RunError

if TYPE_CHECKING:
    import pyarrow as pa

    from tidegate.storage import Store
    from tidegate.storage.store import Writer

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
