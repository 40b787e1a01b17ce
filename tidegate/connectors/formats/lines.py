"""Reads text files in tasks: lines with their place, or whole files.

Python workers import this module: it must not load the parser.
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

from tidegate.columns import ARRIVAL_FILE, ARRIVAL_ROW, BAD_RECORD, RECORD_FILE, RECORD_LINE
from tidegate.connectors.formats import csv as plain_csv
from tidegate.connectors.formats import json as plain_json
from tidegate.operators.kernels.ordering import ARRIVAL_FIELDS
from tidegate.operators.vectorized import RecordFailed
from tidegate.storage import open_store

# The text of a line or file as it is, and whether it is the first line of a file that has text.
TEXT_BYTES, FIRST = "_tg_bytes", "_tg_first"
_MARK = b"\xef\xbb\xbf"
_TEXT = re.compile(rb"[^ \t\r\n]")
# What goes to Spark at once.
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
    """Reads shares [file, time, start, end] of the files below a root; `end` of a share that
    goes to the end of its file is None."""

    root: str
    whole: bool
    has_header: bool
    utf8: bool

    @property
    def schema(self) -> pa.Schema:
        return _SCHEMA

    def read(self, split: list[Any]) -> Iterator[tuple[pa.RecordBatch, int]]:
        name, modified_us, start, end = split
        assert isinstance(name, str) and isinstance(start, int), "a share is a part of a file"
        shown = f"{open_store(self.root).uri}/{name}"
        arrival = f"{modified_us:020d} {shown}"
        content = _content(self.root, name)
        if self.whole:
            batch = _batch([content], shown, arrival, [1], [True], [0])
            # How many records that are is seen when they are parsed.
            yield batch, 0
            return
        yield from self._lines(
            content, shown, arrival, start, end if isinstance(end, int) else None
        )

    def _lines(
        self, content: bytes, shown: str, arrival: str, start: int, end: int | None
    ) -> Iterator[tuple[pa.RecordBatch, int]]:
        # A line belongs to the share in which it begins.
        first = content.find(b"\n", start - 1) + 1 if start else 0
        last = content.find(b"\n", end - 1) + 1 if end is not None else len(content)
        if (start and not first) or first >= (last or len(content)):
            return
        number = _line_ends(content, first)
        text_seen = self._has_text(content, first)
        at = first
        stop = last or len(content)
        while at < stop:
            until = stop
            if stop - at > _BATCH_BYTES:
                until = (content.find(b"\n", at + _BATCH_BYTES) + 1) or stop
                until = min(until, stop)
            block = content[at:until]
            if at == 0 and self.utf8 and block.startswith(_MARK):
                block = block[len(_MARK) :]
            lines = _split(block)
            numbers = np.arange(number + 1, number + 1 + len(lines), dtype=np.int64)
            number += len(lines)
            filled = _filled(lines)
            firsts = np.zeros(len(lines), bool)
            if not text_seen and filled.any():
                firsts[int(filled.argmax())] = True
                text_seen = True
            at = until
            records = int(filled.sum())
            if not records:
                continue
            if records < len(lines):
                lines = lines.filter(pa.array(filled))
                numbers, firsts = numbers[filled], firsts[filled]
            header = int(self.has_header and bool(firsts.any()))
            yield _lines_batch(lines, shown, arrival, numbers, firsts), records - header

    def _has_text(self, content: bytes, end: int) -> bool:
        begin = len(_MARK) if self.utf8 and content.startswith(_MARK) else 0
        return _TEXT.search(content, begin, end) is not None


def _content(root: str, name: str) -> bytes:
    """The bytes of a file; what is compressed by its name is unpacked."""
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
    """Whether a file can only be read from its beginning."""
    return name.endswith((".gz", ".bz2", ".zst", ".lz4"))


def _line_ends(content: bytes, end: int) -> int:
    """How many lines end before a place where a line begins."""
    count = content.count(b"\n", 0, end)
    if b"\r" in content:
        count += content.count(b"\r", 0, end) - content.count(b"\r\n", 0, end)
    return count


def _split(block: bytes) -> pa.Array:
    """The lines of a block, without what ends them, as an array of bytes."""
    if b"\r" in block:
        block = block.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    if block.endswith(b"\n"):
        block = block[:-1]
    data = np.frombuffer(block, np.uint8)
    ends = np.flatnonzero(data == 10)
    # Without the line ends, the text before the i-th of them is i bytes shorter.
    offsets = np.empty(len(ends) + 2, np.int32)
    offsets[0] = 0
    offsets[1:-1] = ends - np.arange(len(ends))
    offsets[-1] = len(block) - len(ends)
    values = pa.py_buffer(block.translate(None, b"\n"))
    return pa.Array.from_buffers(
        pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), values]
    )


def _filled(lines: pa.Array) -> np.ndarray:
    """Whether lines have text: something besides blanks and tabs."""
    offsets = np.frombuffer(lines.buffers()[1], np.int32)[: len(lines) + 1]
    data = np.frombuffer(lines.buffers()[2] or b"", np.uint8)
    dark = np.zeros(len(data) + 1, np.int64)
    np.cumsum((data != 32) & (data != 9), out=dark[1:])
    return np.asarray(dark[offsets[1:]] > dark[offsets[:-1]])


def _lines_batch(
    lines: pa.Array, shown: str, arrival: str, numbers: np.ndarray, firsts: np.ndarray
) -> pa.RecordBatch:
    count = len(lines)
    return pa.record_batch(
        [
            lines,
            pa.repeat(pa.scalar(shown), count),
            pa.array(numbers),
            pa.array(firsts),
            pa.repeat(pa.scalar(arrival), count),
            pa.array(numbers),
        ],
        schema=_SCHEMA,
    )


def _batch(
    texts: list[bytes],
    shown: str,
    arrival: str,
    numbers: list[int],
    firsts: list[bool],
    rows: list[int],
) -> pa.RecordBatch:
    count = len(texts)
    columns = [texts, [shown] * count, numbers, firsts, [arrival] * count, rows]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, _SCHEMA, strict=True)]
    return pa.record_batch(arrays, schema=_SCHEMA)


# ---- Files of JSON or CSV, a record per line, that tasks decode themselves.
#
# Python workers import this: it must load little.


class LineFormat(Protocol):
    """How lines are decoded, and to what."""

    @property
    def schema(self) -> pa.Schema: ...

    def records(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The lines that are records."""

    def rows(self, lines: pa.Array) -> pa.Table:
        """Their columns, and BAD_RECORD."""


@dataclass(frozen=True)
class JsonLines:
    schema: pa.Schema

    def records(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch

    def rows(self, lines: pa.Array) -> pa.Table:
        return plain_json.decoded(lines.to_pylist(), self.schema)


@dataclass(frozen=True)
class CsvLines:
    schema: pa.Schema
    form: plain_csv.CsvFormat
    header: bool

    def records(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Without the header, which must name the columns; Spark says what is wrong with others."""
        first = batch.column(FIRST)
        if not self.header or not pc.any(first).as_py():
            return batch
        (line,) = batch.filter(first).column(TEXT_BYTES).to_pylist()
        if not plain_csv.header_fits(line, self.schema.names, self.form):
            raise RecordFailed("another header")
        return batch.filter(pc.invert(first))

    def rows(self, lines: pa.Array) -> pa.Table:
        return plain_csv.decoded(lines, self.schema, self.form)


@dataclass(frozen=True)
class PlainLinesReader:
    """Reads the columns `names` of records, and where they stood."""

    lines: TextReader
    format: LineFormat
    names: tuple[str, ...]
    arrival: bool

    @property
    def schema(self) -> pa.Schema:
        fields = [self.format.schema.field(name) for name in self.names]
        if self.arrival:
            fields += ARRIVAL_FIELDS
        return pa.schema([*fields, pa.field(BAD_RECORD, pa.string())])

    def read(self, split: list[Any]) -> Iterator[tuple[pa.RecordBatch, int]]:
        for read, records in self.lines.read(split):
            batch = self.format.records(read)
            rows = self.format.rows(batch.column(TEXT_BYTES))
            arrays = [rows.column(name).combine_chunks() for name in self.names]
            if self.arrival:
                arrays += [batch.column(ARRIVAL_FILE), batch.column(ARRIVAL_ROW)]
            arrays.append(rows.column(BAD_RECORD).combine_chunks())
            yield pa.record_batch(arrays, schema=self.schema), records
