"""Encodes rows as JSON text in tasks, with Arrow, as Spark's to_json does.

Only types are supported whose text is proven to be equal. Values without an equal text, such as
dates after the year 9999, raise VectorFailed; Spark then encodes all rows.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.operators.vectorized import VectorFailed

# Beyond these, the text has another number of digits.
_FIRST_US, _LAST_US = -62_135_596_800_000_000, 253_402_300_799_999_999
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
# BigDecimal writes numbers with more decimal places in scientific notation.
_MAX_SCALE = 6
_SPECIAL = r'["\\\x00-\x1f]'
_ESCAPES = [
    ("\\", "\\\\"),
    ('"', '\\"'),
    ("\b", "\\b"),
    ("\t", "\\t"),
    ("\n", "\\n"),
    ("\f", "\\f"),
    ("\r", "\\r"),
    *((chr(n), f"\\u{n:04X}") for n in range(32) if chr(n) not in "\b\t\n\f\r"),
]


def is_encodable(kind: pa.DataType) -> bool:
    """Return whether values of a type can be written as JSON."""
    if pa.types.is_decimal(kind):
        return bool(0 <= kind.scale <= _MAX_SCALE)
    plain = pa.types.is_signed_integer(kind) or pa.types.is_boolean(kind) or kind == pa.string()
    return bool(plain or pa.types.is_date32(kind) or kind == pa.timestamp("us", "UTC"))


@dataclass(frozen=True)
class JsonText:
    """A JSON object of some columns. `nulls`: columns that are NULL are written, too."""

    names: tuple[str, ...]
    nulls: bool = False

    def encode(self, rows: pa.Table) -> Any:
        if not self.names:
            return pa.repeat(pa.scalar("{}"), rows.num_rows)
        parts = [self._member(name, _array(rows.column(name))) for name in self.names]
        members = pc.ascii_rtrim(pc.binary_join_element_wise(*parts, ""), characters=",")
        return pc.binary_join_element_wise("{", members, "}", "")

    def _member(self, name: str, column: pa.Array) -> Any:
        value = _json_value(column)
        if self.nulls:
            value = pc.fill_null(value, "null")
        key = json.dumps(name, ensure_ascii=False)
        # Arrow drops a row if it is asked to skip NULLs and all of its parts are NULL.
        return pc.fill_null(pc.binary_join_element_wise(f"{key}:", value, ",", ""), "")


@dataclass(frozen=True)
class PlainText:
    """A column as text; NULL without a column."""

    name: str | None

    def encode(self, rows: pa.Table) -> Any:
        if self.name is None:
            return pa.nulls(rows.num_rows, pa.string())
        return rows.column(self.name).cast(pa.string())


@dataclass(frozen=True)
class TextEncoder:
    """Encodes rows as columns of text (a `RowEncoder`)."""

    outputs: tuple[tuple[str, JsonText | PlainText], ...]

    def encode(self, rows: pa.Table) -> pa.Table:
        """Return the columns of text."""
        try:
            return pa.table({name: output.encode(rows) for name, output in self.outputs})
        except pa.ArrowException as error:
            raise VectorFailed(str(error)) from None


def json_encoder(
    schema: pa.Schema, output: str, names: Sequence[str] | None = None
) -> TextEncoder | None:
    """Return an encoder that writes rows as one column of JSON; None if only Spark can."""
    names = schema.names if names is None else names
    if not all(is_encodable(schema.field(name).type) for name in names):
        return None
    return TextEncoder(((output, JsonText(tuple(names))),))


def _array(column: pa.ChunkedArray) -> pa.Array:
    """Return a column in one piece."""
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _json_value(column: pa.Array) -> Any:
    kind = column.type
    if kind == pa.string():
        return _quoted(_escaped(column))
    if pa.types.is_date32(kind):
        _require_range(column.cast(pa.int32()), _FIRST_DAY, _LAST_DAY)
        return _quoted(column.cast(pa.string()))
    if pa.types.is_timestamp(kind):
        _require_range(column.cast(pa.int64()), _FIRST_US, _LAST_US)
        return _quoted(pc.strftime(column, format="%Y-%m-%dT%H:%M:%SZ"))
    return column.cast(pa.string())


def _quoted(text: Any) -> Any:
    return pc.binary_join_element_wise('"', text, '"', "")


def _escaped(text: pa.Array) -> Any:
    # Spark replaces bytes that are not UTF-8.
    text.validate(full=True)
    if not pc.any(pc.match_substring_regex(text, _SPECIAL)).as_py():
        return text
    for character, escape in _ESCAPES:
        text = pc.replace_substring(text, character, escape)
    return text


def _require_range(numbers: Any, first: int, last: int) -> None:
    least, most = pc.min_max(numbers).as_py().values()
    if least is not None and (least < first or most > last):
        raise VectorFailed("a date outside of the years 1 to 9999")
