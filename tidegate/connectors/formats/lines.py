"""Readers of text files: lines with their position, or whole files.

`TextReader` returns the texts, which Spark then decodes (`spark_text`). `ArrowLinesReader` decodes
plain records in the task. Python workers import this module, which must not load the parser.
"""

from __future__ import annotations

import bz2
import gzip
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.columns import ARRIVAL_FILE, ARRIVAL_ROW, MALFORMED_RECORD, RECORD_FILE, RECORD_LINE
from tidegate.connectors.formats import csv as plain_csv
from tidegate.connectors.formats import json as plain_json
from tidegate.operators.kernels.ordering import ARRIVAL_FIELDS
from tidegate.operators.vectorized import RecordFailed
from tidegate.storage import open_store

# Columns: the undecoded text of a line or file, and whether it is the first non-blank line.
TEXT_BYTES, FIRST = "_tg_bytes", "_tg_first"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_TEXT = re.compile(rb"[^ \t\r\n]")
# The size of the batches that are sent to Spark.
_BATCH_BYTES = 16 << 20
_SCHEMA = pa.schema(
    [
        (TEXT_BYTES, pa.binary()),
        (RECORD_FILE, pa.string()),
        (RECORD_LINE, pa.int64()),
        (FIRST, pa.bool_()),
        (ARRIVAL_FILE, pa.string()),
        (ARRIVAL_ROW, pa.int64()),
    ]
)


@dataclass(frozen=True)
class TextReader:
    """Reads splits [file, modification time, start, end] of the files below a root.

    `start` and `end` are byte positions; `end` is None for the rest of the file. With `whole`, a
    split is a whole file and becomes a single row.
    """

    root: str
    whole: bool
    has_header: bool
    utf8: bool

    @property
    def schema(self) -> pa.Schema:
        return _SCHEMA

    def read(self, split: list[Any]) -> Iterator[tuple[pa.RecordBatch, int]]:
        name, modified_us, start, end = split
        assert isinstance(name, str) and isinstance(start, int), "a split is a part of a file"
        uri = f"{open_store(self.root).uri}/{name}"
        arrival = f"{modified_us:020d} {uri}"
        content = _content(self.root, name)
        if self.whole:
            batch = _batch([content], uri, arrival, [1], [True], [0])
            # The records are counted after they have been parsed.
            yield batch, 0
            return
        yield from self._lines(content, uri, arrival, start, end if isinstance(end, int) else None)

    def _lines(
        self, content: bytes, uri: str, arrival: str, start: int, end: int | None
    ) -> Iterator[tuple[pa.RecordBatch, int]]:
        # A line belongs to the split in which it begins.
        first = content.find(b"\n", start - 1) + 1 if start else 0
        last = content.find(b"\n", end - 1) + 1 if end is not None else len(content)
        if (start and not first) or first >= (last or len(content)):
            return
        number = _line_ends(content, first)
        text_seen = self._has_text(content, first)
        position = first
        stop = last or len(content)
        while position < stop:
            batch_end = stop
            if stop - position > _BATCH_BYTES:
                batch_end = (content.find(b"\n", position + _BATCH_BYTES) + 1) or stop
                batch_end = min(batch_end, stop)
            block = content[position:batch_end]
            if position == 0 and self.utf8 and block.startswith(_BYTE_ORDER_MARK):
                block = block[len(_BYTE_ORDER_MARK) :]
            lines = _split(block)
            numbers = np.arange(number + 1, number + 1 + len(lines), dtype=np.int64)
            number += len(lines)
            has_text = _has_text_mask(lines)
            firsts = np.zeros(len(lines), bool)
            if not text_seen and has_text.any():
                firsts[int(has_text.argmax())] = True
                text_seen = True
            position = batch_end
            records = int(has_text.sum())
            if not records:
                continue
            if records < len(lines):
                lines = lines.filter(pa.array(has_text))
                numbers, firsts = numbers[has_text], firsts[has_text]
            header = int(self.has_header and bool(firsts.any()))
            yield _lines_batch(lines, uri, arrival, numbers, firsts), records - header

    def _has_text(self, content: bytes, end: int) -> bool:
        begin = len(_BYTE_ORDER_MARK) if self.utf8 and content.startswith(_BYTE_ORDER_MARK) else 0
        return _TEXT.search(content, begin, end) is not None


def _content(root: str, name: str) -> bytes:
    """Read a file, and decompress it according to its suffix."""
    data = open_store(root).get(name)
    if name.endswith(".gz"):
        return gzip.decompress(data)
    if name.endswith(".bz2"):
        return bz2.decompress(data)
    if name.endswith((".zst", ".lz4")):
        kind = "zstd" if name.endswith(".zst") else "lz4"
        with pa.CompressedInputStream(pa.BufferReader(data), kind) as stream:
            return bytes(stream.read())
    return data


def is_compressed(name: str) -> bool:
    """Return whether a file is compressed and can only be read from its beginning."""
    return name.endswith((".gz", ".bz2", ".zst", ".lz4"))


def _line_ends(content: bytes, end: int) -> int:
    """Count the lines that end before a position at which a line begins."""
    count = content.count(b"\n", 0, end)
    if b"\r" in content:
        count += content.count(b"\r", 0, end) - content.count(b"\r\n", 0, end)
    return count


def _split(block: bytes) -> pa.Array:
    """Split a block into lines without their line breaks, as a binary array."""
    if b"\r" in block:
        block = block.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    if block.endswith(b"\n"):
        block = block[:-1]
    data = np.frombuffer(block, np.uint8)
    ends = np.flatnonzero(data == 10)
    # The i-th line break moves i bytes to the left when all line breaks are removed.
    offsets = np.empty(len(ends) + 2, np.int32)
    offsets[0] = 0
    offsets[1:-1] = ends - np.arange(len(ends))
    offsets[-1] = len(block) - len(ends)
    values = pa.py_buffer(block.translate(None, b"\n"))
    return pa.Array.from_buffers(
        pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), values]
    )


def _has_text_mask(lines: pa.Array) -> np.ndarray:
    """Return a mask of the lines with characters other than spaces and tabs."""
    offsets = np.frombuffer(lines.buffers()[1], np.int32)[: len(lines) + 1]
    data = np.frombuffer(lines.buffers()[2] or b"", np.uint8)
    characters = np.zeros(len(data) + 1, np.int64)
    np.cumsum((data != 32) & (data != 9), out=characters[1:])
    return np.asarray(characters[offsets[1:]] > characters[offsets[:-1]])


def _lines_batch(
    lines: pa.Array, uri: str, arrival: str, numbers: np.ndarray, firsts: np.ndarray
) -> pa.RecordBatch:
    count = len(lines)
    return pa.record_batch(
        [
            lines,
            pa.repeat(pa.scalar(uri), count),
            pa.array(numbers),
            pa.array(firsts),
            pa.repeat(pa.scalar(arrival), count),
            pa.array(numbers),
        ],
        schema=_SCHEMA,
    )


def _batch(
    texts: list[bytes],
    uri: str,
    arrival: str,
    numbers: list[int],
    firsts: list[bool],
    rows: list[int],
) -> pa.RecordBatch:
    count = len(texts)
    columns = [texts, [uri] * count, numbers, firsts, [arrival] * count, rows]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, _SCHEMA, strict=True)]
    return pa.record_batch(arrays, schema=_SCHEMA)


# ---- Files with one JSON or CSV record per line, decoded in the task.


class LineFormat(Protocol):
    """Decodes lines. Both methods raise RecordFailed if only Spark can decode a line."""

    @property
    def schema(self) -> pa.Schema:
        """The columns of the records."""

    def records(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the lines of a batch that are records, without a header."""

    def rows(self, lines: pa.Array) -> pa.Table:
        """Decode records into their columns and MALFORMED_RECORD."""


@dataclass(frozen=True)
class JsonLines:
    """Lines with one JSON object each."""

    schema: pa.Schema

    def records(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch

    def rows(self, lines: pa.Array) -> pa.Table:
        return plain_json.decode_json(lines.to_pylist(), self.schema)


@dataclass(frozen=True)
class CsvLines:
    """Lines with one CSV record each."""

    schema: pa.Schema
    csv_format: plain_csv.CsvFormat
    header: bool

    def records(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Check and remove the header. For a header that does not fit, Spark raises the error."""
        first = batch.column(FIRST)
        if not self.header or not pc.any(first).as_py():
            return batch
        (line,) = batch.filter(first).column(TEXT_BYTES).to_pylist()
        if not plain_csv.header_fits(line, self.schema.names, self.csv_format):
            raise RecordFailed("a different header")
        return batch.filter(pc.invert(first))

    def rows(self, lines: pa.Array) -> pa.Table:
        return plain_csv.decode_csv(lines, self.schema, self.csv_format)


@dataclass(frozen=True)
class ArrowLinesReader:
    """Reads lines and decodes them with Arrow.

    Returns the columns `names`, the arrival position and MALFORMED_RECORD.
    """

    lines: TextReader
    format: LineFormat
    names: tuple[str, ...]
    arrival: bool

    @property
    def schema(self) -> pa.Schema:
        fields = [self.format.schema.field(name) for name in self.names]
        if self.arrival:
            fields += ARRIVAL_FIELDS
        return pa.schema([*fields, pa.field(MALFORMED_RECORD, pa.string())])

    def read(self, split: list[Any]) -> Iterator[tuple[pa.RecordBatch, int]]:
        for lines, records in self.lines.read(split):
            batch = self.format.records(lines)
            rows = self.format.rows(batch.column(TEXT_BYTES))
            arrays = [rows.column(name).combine_chunks() for name in self.names]
            if self.arrival:
                arrays += [batch.column(ARRIVAL_FILE), batch.column(ARRIVAL_ROW)]
            arrays.append(rows.column(MALFORMED_RECORD).combine_chunks())
            yield pa.record_batch(arrays, schema=self.schema), records
