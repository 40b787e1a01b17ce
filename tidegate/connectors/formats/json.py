"""Records of JSON that tasks decode themselves: only those that Spark's from_json reads alike.

Arrow is stricter than Spark almost everywhere, and fails. Where it is not, or where both read
something else, a record is left to Spark: numbers that are none or minus zero, what is nested too
deep. What is no JSON to anybody is bad, and needs no Spark. All columns are decoded, also those
that nobody asks for: a record with a value that does not fit is bad as a whole. Python workers
import this: it must load little.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.columns import BAD_RECORD
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
# Both take words for numbers, and not the same ones.
_WORDS = re.compile(rb"[:,\[]\s*-?(?:Inf|NaN)")
# What Spark takes and others do not.
_LENIENT = re.compile(r"'|nan|inf", re.IGNORECASE)
# Spark reads no number of so many digits, and nothing that is nested so deep.
_SPARKS_LIMIT = 1_000
_LONG_NUMBER = re.compile(rb"[0-9.eE+-]{900}")


def json_schema(columns: Sequence[tuple[str, str]]) -> pa.Schema | None:
    """What records are decoded to; None if Spark has to do it."""
    if any(kind not in TYPES for _, kind in columns):
        return None
    return pa.schema([(name, TYPES[kind]) for name, kind in columns])


def decoded(texts: list[bytes], schema: pa.Schema) -> pa.Table:
    """The rows of records, and BAD_RECORD: the text of those that are none.

    RecordFailed if only Spark can say what one of them is.
    """
    if not texts:
        return _none(schema)
    try:
        return _with_bad(_rows(texts, schema), pa.nulls(len(texts), pa.string()))
    except RecordFailed:
        texts = [text.strip(b" \t\r\n") for text in texts]
        framed = [text.startswith(b"{") and text.endswith(b"}") for text in texts]
        if all(framed):
            return _apart(texts, schema)
        return _without_odd(texts, framed, schema)


def _apart(texts: list[bytes], schema: pa.Schema) -> pa.Table:
    """One of them is not plain: which one it is."""
    if len(texts) > 1:
        half = len(texts) // 2
        return pa.concat_tables([decoded(texts[:half], schema), decoded(texts[half:], schema)])
    return _bad_rows(texts, schema)


def _without_odd(texts: list[bytes], framed: list[bool], schema: pa.Schema) -> pa.Table:
    """Records that do not even look like objects are taken out, and put back in their places."""
    whole = [text for text, fits in zip(texts, framed, strict=True) if fits]
    odd = [text for text, fits in zip(texts, framed, strict=True) if not fits]
    both = pa.concat_tables([decoded(whole, schema), _bad_rows(odd, schema)])
    order = np.argsort(~np.array(framed), kind="stable")
    return both.take(pa.array(np.argsort(order)))


def _bad_rows(texts: list[bytes], schema: pa.Schema) -> pa.Table:
    if not all(map(_is_surely_bad, texts)):
        raise RecordFailed("a record that may be one to Spark")
    shown = pa.array([text.decode("utf-8", "replace") for text in texts], pa.string())
    empty = pa.table([pa.nulls(len(texts), f.type) for f in schema], schema=schema)
    return _with_bad(empty, shown)


def _none(schema: pa.Schema) -> pa.Table:
    return _with_bad(schema.empty_table(), pa.nulls(0, pa.string()))


def _with_bad(rows: pa.Table, texts: pa.Array) -> pa.Table:
    return rows.append_column(BAD_RECORD, texts)


def _is_surely_bad(text: bytes) -> bool:
    """Whether it ends in the middle, or has something where JSON has nothing of the kind.

    Spark reads it as a part of an object, and takes single quotes and words for numbers besides;
    what follows a whole object it does not read.
    """
    try:
        shown = text.decode("utf-8")
    except UnicodeDecodeError:
        return True
    if _LENIENT.search(shown):
        return False
    try:
        json.loads(f'{{"record":{shown},"end":1}}')
    except json.JSONDecodeError as error:
        return not error.msg.startswith("Extra data")
    except (RecursionError, ValueError):
        return False
    return False


def _rows(texts: list[bytes], schema: pa.Schema) -> pa.Table:
    """The rows of records, or RecordFailed if one of them is not plain."""
    from pyarrow import json as arrow_json

    joined = b"\n".join(texts)
    _require_plain(joined, texts)
    raw = pa.schema([(f.name, pa.string() if f.type == MICROS else f.type) for f in schema])
    try:
        # Spark takes nothing for text that is not.
        pa.scalar(joined, pa.binary()).cast(pa.string())
        rows = arrow_json.read_json(
            pa.BufferReader(joined),
            arrow_json.ReadOptions(use_threads=False, block_size=len(joined) + 1),
            arrow_json.ParseOptions(explicit_schema=raw, unexpected_field_behavior="ignore"),
        )
        # With one object in each record at least, as many rows mean one object in each.
        if rows.num_rows != len(texts):
            raise RecordFailed("a record is not one object")
        return pa.table([_value(rows.column(f.name), f) for f in schema], schema=schema)
    except pa.ArrowException as error:
        raise RecordFailed(str(error)) from None


def _require_plain(joined: bytes, texts: list[bytes]) -> None:
    """Every record begins and ends as an object does, so that none goes on in the next one."""
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    letters = np.frombuffer(joined, np.uint8)
    ends = np.cumsum(lengths + 1) - 2
    framed = (
        lengths.min() > 1 and _all(letters[ends], b"}") and _all(letters[ends - lengths + 1], b"{")
    )
    if not framed or np.count_nonzero(letters == ord(b"\n")) != len(texts) - 1:
        raise RecordFailed("a record is not an object on one line")
    # A letter is found much sooner than a word.
    suspect = (b"I" in joined and b"Inf" in joined) or (b"N" in joined and b"NaN" in joined)
    if suspect and _WORDS.search(joined):
        raise RecordFailed("a word for a number")
    for place in np.flatnonzero(lengths >= _SPARKS_LIMIT):
        _require_shallow(texts[place])


def _all(letters: Any, letter: bytes) -> bool:
    return bool((letters == ord(letter)).all())


def _require_shallow(text: bytes) -> None:
    if text.count(b"[") + text.count(b"{") >= _SPARKS_LIMIT or _LONG_NUMBER.search(text):
        raise RecordFailed("a record that may be too deep, or has too long a number")


def _value(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    if field.type == MICROS:
        return time_of(column)
    if field.type == pa.float64():
        # -0 is 0 to Spark, where it is written without a point.
        odd = pc.or_(pc.invert(pc.is_finite(column)), _is_minus_zero(column))
        if pc.any(odd).as_py():
            raise RecordFailed("a double that is not finite, or minus zero")
    return column


def _is_minus_zero(column: pa.ChunkedArray) -> Any:
    return pc.and_(pc.equal(column, 0.0), pc.less(pc.divide(1.0, column), 0.0))


def time_of(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Times with a zone, and in UTC where they name none."""
    zoned = pc.match_substring_regex(texts, _ZONED)
    plain = pc.match_substring_regex(texts, _PLAIN)
    if pc.all(pc.or_(zoned, plain)).as_py() is False:
        raise RecordFailed("times that are written in another way")
    nothing = pa.scalar(None, pa.string())
    found = pc.if_else(zoned, texts, nothing).cast(MICROS)
    if pc.any(plain).as_py():
        others = pc.if_else(plain, texts, nothing).cast(pa.timestamp("us"))
        found = pc.coalesce(found, pc.assume_timezone(others, "UTC"))
    return found
