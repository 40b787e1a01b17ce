"""Decodes JSON records in tasks, with Arrow, if Spark's from_json would return the same rows.

Arrow is stricter than Spark almost everywhere and then fails. Records that Arrow accepts but Spark
reads differently are left to Spark: NaN and infinity, minus zero, very deep nesting. Records that
no reader accepts as JSON are malformed and do not need Spark. All columns are decoded, also those
that no stream uses, because a record with one invalid value is malformed as a whole.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.columns import MALFORMED_RECORD
from tidegate.operators.vectorized import RecordFailed

MICROS = pa.timestamp("us", "UTC")
TYPES = {
    "BOOLEAN": pa.bool_(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "DOUBLE": pa.float64(),
    "STRING": pa.string(),
    "TIMESTAMP": MICROS,
}
_TIME = r"^[12]\d{3}-\d{2}-\d{2}[T ]\d{2}:\d{2}:\d{2}(\.\d{1,6})?"
_ZONED, _PLAIN = _TIME + r"(Z|[+-]0\d:[0-5]\d)$", _TIME + "$"
# Arrow and Spark both accept words for numbers, but different ones.
_WORDS = re.compile(rb"[:,\[]\s*-?(?:Inf|NaN)")
# Text that Spark accepts although it is not JSON.
_LENIENT = re.compile(r"'|nan|inf", re.IGNORECASE)
# Spark rejects numbers with more digits and objects that are nested deeper.
_SPARKS_LIMIT = 1_000
_LONG_NUMBER = re.compile(rb"[0-9.eE+-]{900}")


def json_schema(columns: Sequence[tuple[str, str]]) -> pa.Schema | None:
    """Return the schema of the decoded rows, or None if only Spark can decode these columns."""
    if any(sql_type not in TYPES for _, sql_type in columns):
        return None
    return pa.schema([(name, TYPES[sql_type]) for name, sql_type in columns])


def decode_json(texts: list[bytes], schema: pa.Schema) -> pa.Table:
    """Decode records. The column MALFORMED_RECORD contains the text of malformed ones.

    Raises RecordFailed if Spark could decode one of them differently.
    """
    if not texts:
        return _with_malformed(schema.empty_table(), pa.nulls(0, pa.string()))
    try:
        return _with_malformed(_decode_plain(texts, schema), pa.nulls(len(texts), pa.string()))
    except RecordFailed:
        texts = [text.strip(b" \t\r\n") for text in texts]
        framed = [text.startswith(b"{") and text.endswith(b"}") for text in texts]
        if all(framed):
            return _bisect(texts, schema)
        return _separate_unframed(texts, framed, schema)


def _bisect(texts: list[bytes], schema: pa.Schema) -> pa.Table:
    """Find the records that cannot be decoded by bisection, and decode all others."""
    if len(texts) > 1:
        half = len(texts) // 2
        return pa.concat_tables(
            [decode_json(texts[:half], schema), decode_json(texts[half:], schema)]
        )
    return _bad_rows(texts, schema)


def _separate_unframed(texts: list[bytes], framed: list[bool], schema: pa.Schema) -> pa.Table:
    """Decode records in braces, mark the others as malformed, and restore the order."""
    objects = [text for text, is_framed in zip(texts, framed, strict=True) if is_framed]
    others = [text for text, is_framed in zip(texts, framed, strict=True) if not is_framed]
    rows = pa.concat_tables([decode_json(objects, schema), _bad_rows(others, schema)])
    order = np.argsort(~np.array(framed), kind="stable")
    return rows.take(pa.array(np.argsort(order)))


def _bad_rows(texts: list[bytes], schema: pa.Schema) -> pa.Table:
    """Return rows of NULLs with the text of malformed records."""
    if not all(map(_is_surely_malformed, texts)):
        raise RecordFailed("a record that Spark might accept")
    decoded_texts = pa.array([text.decode("utf-8", "replace") for text in texts], pa.string())
    nulls = pa.table([pa.nulls(len(texts), f.type) for f in schema], schema=schema)
    return _with_malformed(nulls, decoded_texts)


def _with_malformed(rows: pa.Table, texts: pa.Array) -> pa.Table:
    return rows.append_column(MALFORMED_RECORD, texts)


def _is_surely_malformed(text: bytes) -> bool:
    """Return whether Spark rejects the record, too: it is truncated, or invalid in the middle.

    Spark also accepts single quotes and words for numbers, and ignores text after an object.
    """
    try:
        record = text.decode("utf-8")
    except UnicodeDecodeError:
        return True
    if _LENIENT.search(record):
        return False
    try:
        json.loads(f'{{"record":{record},"end":1}}')
    except json.JSONDecodeError as error:
        return not error.msg.startswith("Extra data")
    except (RecursionError, ValueError):
        return False
    return False


def _decode_plain(texts: list[bytes], schema: pa.Schema) -> pa.Table:
    """Decode records with Arrow; raises RecordFailed if one of them is not plain."""
    from pyarrow import json as arrow_json

    joined = b"\n".join(texts)
    _require_plain(joined, texts)
    raw = pa.schema([(f.name, pa.string() if f.type == MICROS else f.type) for f in schema])
    try:
        # Spark rejects records that are not UTF-8.
        pa.scalar(joined, pa.binary()).cast(pa.string())
        rows = arrow_json.read_json(
            pa.BufferReader(joined),
            arrow_json.ReadOptions(use_threads=False, block_size=len(joined) + 1),
            arrow_json.ParseOptions(explicit_schema=raw, unexpected_field_behavior="ignore"),
        )
        # Every record contains at least one object, so equal counts mean exactly one in each.
        if rows.num_rows != len(texts):
            raise RecordFailed("a record is not one object")
        return pa.table([_value(rows.column(f.name), f) for f in schema], schema=schema)
    except pa.ArrowException as error:
        raise RecordFailed(str(error)) from None


def _require_plain(joined: bytes, texts: list[bytes]) -> None:
    """Check that every record is in braces on one line, so that none continues in the next one."""
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    letters = np.frombuffer(joined, np.uint8)
    ends = np.cumsum(lengths + 1) - 2
    framed = (
        lengths.min() > 1 and _all(letters[ends], b"}") and _all(letters[ends - lengths + 1], b"{")
    )
    if not framed or np.count_nonzero(letters == ord(b"\n")) != len(texts) - 1:
        raise RecordFailed("a record is not an object on one line")
    # Searching for a letter first is much faster than for a word.
    suspect = (b"I" in joined and b"Inf" in joined) or (b"N" in joined and b"NaN" in joined)
    if suspect and _WORDS.search(joined):
        raise RecordFailed("a word for a number")
    for index in np.flatnonzero(lengths >= _SPARKS_LIMIT):
        _require_shallow(texts[index])


def _all(letters: Any, letter: bytes) -> bool:
    return bool((letters == ord(letter)).all())


def _require_shallow(text: bytes) -> None:
    if text.count(b"[") + text.count(b"{") >= _SPARKS_LIMIT or _LONG_NUMBER.search(text):
        raise RecordFailed("a record that may be too deep, or has too long a number")


def _value(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    if field.type == MICROS:
        return parse_timestamps(column)
    if field.type == pa.float64():
        # Spark reads -0 as 0 if it is written without a decimal point.
        unsupported = pc.or_(pc.invert(pc.is_finite(column)), _is_minus_zero(column))
        if pc.any(unsupported).as_py():
            raise RecordFailed("a double that is not finite, or minus zero")
    return column


def _is_minus_zero(column: pa.ChunkedArray) -> Any:
    return pc.and_(pc.equal(column, 0.0), pc.less(pc.divide(1.0, column), 0.0))


def parse_timestamps(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Parse timestamps, in UTC unless they have a zone."""
    zoned = pc.match_substring_regex(texts, _ZONED)
    plain = pc.match_substring_regex(texts, _PLAIN)
    if pc.all(pc.or_(zoned, plain)).as_py() is False:
        raise RecordFailed("timestamps in another format")
    null = pa.scalar(None, pa.string())
    timestamps = pc.if_else(zoned, texts, null).cast(MICROS)
    if pc.any(plain).as_py():
        without_zone = pc.if_else(plain, texts, null).cast(pa.timestamp("us"))
        timestamps = pc.coalesce(timestamps, pc.assume_timezone(without_zone, "UTC"))
    return timestamps
