"""Records of JSON that tasks decode themselves: only those that Spark's from_json reads alike.

Arrow is stricter than Spark almost everywhere, and fails. Where it is not, or where both read
something else, a record is left to Spark: numbers that are none or minus zero, what is nested too
deep. All columns are decoded, also those that nobody asks for: a record with a value that does not
fit is bad as a whole. Python workers import this: it must load little.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.columns import ARRIVAL_FILE, ARRIVAL_ROW, PARTITION
from tidegate.connectors.kafka_client import Connection
from tidegate.connectors.kafka_tasks import Taken, taken_of
from tidegate.operators.vectors import VectorFailed

_MICROS = pa.timestamp("us", "UTC")
_TYPES = {
    "BOOLEAN": pa.bool_(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "DOUBLE": pa.float64(),
    "STRING": pa.string(),
    "TIMESTAMP": _MICROS,
}
_TIME = r"^[12]\d{3}-\d{2}-\d{2}[T ]\d{2}:\d{2}:\d{2}(\.\d{1,6})?"
_ZONED, _PLAIN = _TIME + r"(Z|[+-]0\d:[0-5]\d)$", _TIME + "$"
# Both take words for numbers, and not the same ones.
_WORDS = re.compile(rb"[:,\[]\s*-?(?:Inf|NaN)")
# Spark reads no number of so many digits, and nothing that is nested so deep.
_SPARKS_LIMIT = 1_000
_LONG_NUMBER = re.compile(rb"[0-9.eE+-]{900}")


def json_schema(columns: Sequence[tuple[str, str]]) -> pa.Schema | None:
    """What records are decoded to; None if Spark has to do it."""
    if any(kind not in _TYPES for _, kind in columns):
        return None
    return pa.schema([(name, _TYPES[kind]) for name, kind in columns])


def decoded(texts: list[bytes], schema: pa.Schema) -> pa.Table:
    """The rows of records, or VectorFailed if one of them is not plain."""
    from pyarrow import json

    joined = b"\n".join(texts)
    _require_plain(joined, texts)
    raw = pa.schema([(f.name, pa.string() if f.type == _MICROS else f.type) for f in schema])
    try:
        # Spark takes nothing for text that is not.
        pa.scalar(joined, pa.binary()).cast(pa.string())
        rows = json.read_json(
            pa.BufferReader(joined),
            json.ReadOptions(use_threads=False, block_size=len(joined) + 1),
            json.ParseOptions(explicit_schema=raw, unexpected_field_behavior="ignore"),
        )
        # With one object in each record at least, as many rows mean one object in each.
        if rows.num_rows != len(texts):
            raise VectorFailed("a record is not one object")
        return pa.table([_value(rows.column(f.name), f) for f in schema], schema=schema)
    except pa.ArrowException as error:
        raise VectorFailed(str(error)) from None


def _require_plain(joined: bytes, texts: list[bytes]) -> None:
    """Every record begins and ends as an object does, so that none goes on in the next one."""
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    letters = np.frombuffer(joined, np.uint8)
    ends = np.cumsum(lengths + 1) - 2
    framed = (
        lengths.min() > 1 and _all(letters[ends], b"}") and _all(letters[ends - lengths + 1], b"{")
    )
    if not framed or np.count_nonzero(letters == ord(b"\n")) != len(texts) - 1:
        raise VectorFailed("a record is not an object on one line")
    # A letter is found much sooner than a word.
    suspect = (b"I" in joined and b"Inf" in joined) or (b"N" in joined and b"NaN" in joined)
    if suspect and _WORDS.search(joined):
        raise VectorFailed("a word for a number")
    for place in np.flatnonzero(lengths >= _SPARKS_LIMIT):
        _require_shallow(texts[place])


def _all(letters: Any, letter: bytes) -> bool:
    return bool((letters == ord(letter)).all())


def _require_shallow(text: bytes) -> None:
    if text.count(b"[") + text.count(b"{") >= _SPARKS_LIMIT or _LONG_NUMBER.search(text):
        raise VectorFailed("a record that may be too deep, or has too long a number")


def _value(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    if field.type == _MICROS:
        return _time(column)
    if field.type == pa.float64():
        # -0 is 0 to Spark, where it is written without a point.
        odd = pc.or_(pc.invert(pc.is_finite(column)), _is_minus_zero(column))
        if pc.any(odd).as_py():
            raise VectorFailed("a double that is not finite, or minus zero")
    return column


def _is_minus_zero(column: pa.ChunkedArray) -> Any:
    return pc.and_(pc.equal(column, 0.0), pc.less(pc.divide(1.0, column), 0.0))


def _time(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Times that all say their zone, or none of them."""
    for pattern, kind in ((_ZONED, _MICROS), (_PLAIN, pa.timestamp("us"))):
        if pc.all(pc.match_substring_regex(texts, pattern)).as_py() is not False:
            found = texts.cast(kind)
            return found if kind == _MICROS else pc.assume_timezone(found, "UTC")
    raise VectorFailed("times that are written in another way")


@dataclass(frozen=True)
class JsonReader:
    """Reads the columns `names` of records, and where they stood."""

    connection: Connection
    decoded: pa.Schema
    names: tuple[str, ...]
    arrival: bool

    @property
    def schema(self) -> pa.Schema:
        fields = [self.decoded.field(name) for name in self.names]
        if self.arrival:
            fields += [pa.field(ARRIVAL_FILE, pa.string()), pa.field(ARRIVAL_ROW, pa.int64())]
        return pa.schema([*fields, pa.field(PARTITION, pa.int32())])

    def read(self, share: list[list[Any]]) -> Iterator[tuple[pa.RecordBatch, int]]:
        for taken in taken_of(self.connection, share):
            yield self._batch(taken), len(taken.messages)

    def _batch(self, taken: Taken) -> pa.RecordBatch:
        texts = [value for value in taken.values if value is not None]
        if len(texts) != len(taken.messages):
            raise VectorFailed("a record without a value")
        rows = decoded(texts, self.decoded)
        arrays = [rows.column(name).combine_chunks() for name in self.names]
        if self.arrival:
            arrays.append(pa.repeat(pa.scalar(taken.arrival), len(texts)))
            arrays.append(pa.array(taken.offsets, pa.int64()))
        arrays.append(pa.repeat(pa.scalar(taken.number, pa.int32()), len(texts)))
        return pa.record_batch(arrays, schema=self.schema)
