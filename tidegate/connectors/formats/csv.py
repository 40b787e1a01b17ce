"""Decodes CSV records in tasks, with Arrow, if Spark's from_csv would return the same rows.

Arrow separates the values, which are then checked column by column. A value in the plain notation
of its type is accepted. If no reader would accept a value, its record is malformed. Everything in
between is left to Spark. All columns are decoded, also those that no stream uses, because a record
with one invalid value is malformed as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.columns import MALFORMED_RECORD
from tidegate.connectors.formats.json import MICROS, TYPES, parse_timestamps
from tidegate.operators.vectorized import RecordFailed

_DECIMAL = re.compile(r"DECIMAL\((\d+), ?(\d+)\)")
# Patterns that an ASCII text matches only if no reader accepts it as a value of the type.
_ASCII = r"^[ -~]*$"
_NEVER_INTEGER = "[^0-9+-]"
_NEVER_DECIMAL = "[^0-9eE+.,-]"
_NEVER_DOUBLE = "[^0-9a-fA-FinfityINFTYxXpP+. -]"
_NEVER_TIME = "^[^0-9]*$"
_NEVER_BOOLEAN = "."
# The values of a column, and a mask of the texts that are not values.
ValuesAndInvalid = tuple[pa.Array, pa.Array]


@dataclass(frozen=True)
class CsvFormat:
    """The special characters of a CSV format. `quote` is None if values are not quoted."""

    delimiter: str
    quote: str | None
    escape: str

    @property
    def is_plain(self) -> bool:
        """Whether Arrow supports the format: single and distinct ASCII characters."""
        letters = [self.delimiter, *([self.quote, self.escape] if self.quote else [])]
        single = all(re.fullmatch(r"[\t -~]", letter) for letter in letters)
        return single and self.delimiter not in letters[1:]

    @property
    def plain(self) -> str:
        """The pattern of records in which quotes only surround whole values."""
        ends = re.escape(self.delimiter)
        if self.quote is None:
            return "^.*$"
        quote, escape = re.escape(self.quote), re.escape(self.escape)
        inner = f"(?:[^{quote}]|{quote}{quote})" if self.doubles else f"[^{quote}{escape}]"
        value = f"(?:{quote}{inner}*{quote}|[^{quote}{escape}{ends}]*)"
        return f"^{value}(?:{ends}{value})*$"

    @property
    def doubles(self) -> bool:
        """Whether a quote inside a value is written twice."""
        return self.quote == self.escape


def csv_schema(columns: Sequence[tuple[str, str]]) -> pa.Schema | None:
    """Return the schema of the decoded rows, or None if only Spark can decode these columns."""
    fields = [(name, _type(sql_type)) for name, sql_type in columns]
    if any(data_type is None for _, data_type in fields):
        return None
    return pa.schema(fields)


def _type(sql_type: str) -> pa.DataType | None:
    decimal = _DECIMAL.fullmatch(sql_type)
    if decimal is not None:
        return pa.decimal128(int(decimal.group(1)), int(decimal.group(2)))
    return TYPES.get(sql_type)


def decode_csv(lines: pa.Array, schema: pa.Schema, csv_format: CsvFormat) -> pa.Table:
    """Decode records. The column MALFORMED_RECORD contains the text of malformed ones.

    Raises RecordFailed if Spark could decode one of them differently.
    """
    try:
        texts = lines.cast(pa.string())
    except pa.ArrowException:
        return _separate_undecodable(lines, schema, csv_format)
    if not len(texts):
        return schema.empty_table().append_column(MALFORMED_RECORD, pa.nulls(0, pa.string()))
    if not pc.all(pc.match_substring_regex(texts, csv_format.plain)).as_py():
        raise RecordFailed("quotes that do not surround whole values")
    if pc.any(pc.match_substring(texts, "\0")).as_py():
        raise RecordFailed("a zero byte")
    values, short = _split_values(texts, schema, csv_format)
    columns = []
    malformed = short
    for name, data_type in zip(schema.names, schema.types, strict=True):
        column, invalid = _convert(values.column(name).combine_chunks(), data_type)
        columns.append(column)
        malformed = pc.or_(malformed, invalid)
    malformed_texts = pc.if_else(malformed, texts, pa.scalar(None, pa.string()))
    return pa.table(
        [*columns, malformed_texts], schema=schema.append(pa.field(MALFORMED_RECORD, pa.string()))
    )


def header_fits(line: bytes, names: Sequence[str], csv_format: CsvFormat) -> bool:
    """Return whether a header without quotes has the names of the columns, in their order."""
    header = line.decode("utf-8", "replace").split(csv_format.delimiter)
    return [name.strip(" ").lower() for name in header] == [name.lower() for name in names]


def _separate_undecodable(lines: pa.Array, schema: pa.Schema, csv_format: CsvFormat) -> pa.Table:
    """Decode lines that are UTF-8, mark the others as malformed, and restore the order."""
    texts = lines.to_pylist()
    is_valid = np.array([_is_utf8(text) for text in texts])
    decoded = decode_csv(lines.filter(pa.array(is_valid)), schema, csv_format)
    malformed_texts = [texts[at].decode("utf-8", "replace") for at in np.flatnonzero(~is_valid)]
    nulls = [pa.nulls(len(malformed_texts), item.type) for item in schema]
    undecodable = pa.table([*nulls, pa.array(malformed_texts, pa.string())], schema=decoded.schema)
    order = np.argsort(~is_valid, kind="stable")
    return pa.concat_tables([decoded, undecodable]).take(pa.array(np.argsort(order)))


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _split_values(
    texts: pa.Array, schema: pa.Schema, csv_format: CsvFormat
) -> tuple[pa.Table, pa.Array]:
    """Split records into text values, NULL where they are empty.

    Also returns a mask of the records that do not have one value per column. They have no values.
    """
    from pyarrow import csv as arrow_csv

    short: list[int] = []

    def skip_row(row: Any) -> str:
        short.append(row.number - 1)
        return "skip"

    joined = b"\n".join(texts.cast(pa.binary()).to_pylist()) + b"\n"
    try:
        rows = arrow_csv.read_csv(
            pa.BufferReader(joined),
            arrow_csv.ReadOptions(
                use_threads=False, block_size=len(joined) + 1, column_names=schema.names
            ),
            arrow_csv.ParseOptions(
                delimiter=csv_format.delimiter,
                quote_char=csv_format.quote or False,
                double_quote=csv_format.doubles,
                ignore_empty_lines=False,
                invalid_row_handler=skip_row,
            ),
            arrow_csv.ConvertOptions(
                column_types=dict.fromkeys(schema.names, pa.string()),
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=True,
            ),
        )
    except pa.ArrowException as error:
        raise RecordFailed(str(error)) from None
    if rows.num_rows + len(short) != len(texts):
        raise RecordFailed("a record is not one line")
    if not short:
        return rows, pa.repeat(pa.scalar(False), len(texts))
    mask = np.zeros(len(texts), bool)
    mask[short] = True
    positions = pa.array(np.where(mask, -1, np.cumsum(~mask) - 1), mask=mask)
    return rows.take(positions), pa.array(mask)


def _convert(texts: pa.Array, data_type: pa.DataType) -> ValuesAndInvalid:
    """Convert texts to a type. Raises RecordFailed if only Spark can judge one of them."""
    if data_type == pa.string():
        return texts, pa.repeat(pa.scalar(False), len(texts))
    if data_type == pa.bool_():
        lower = pc.utf8_lower(texts)
        plain = pc.is_in(lower, value_set=pa.array(["true", "false"]))
        return _convert_plain(lower, plain, _NEVER_BOOLEAN, lambda values: values.cast(data_type))
    if data_type == MICROS:
        plain = pc.match_substring_regex(texts, r"^[12]\d{3}-\d{2}-\d{2}[T ]")
        return _convert_plain(texts, plain, _NEVER_TIME, _convert_timestamps)
    if data_type == pa.float64():
        plain = pc.and_(
            pc.match_substring_regex(texts, r"^-?\d{1,15}(\.\d{1,15})?$"),
            pc.invert(pc.match_substring_regex(texts, r"^-[0.]*$")),
        )
        return _convert_plain(texts, plain, _NEVER_DOUBLE, lambda values: values.cast(data_type))
    if pa.types.is_decimal(data_type):
        plain = pc.match_substring_regex(texts, _decimal(data_type.precision, data_type.scale))
        return _convert_plain(texts, plain, _NEVER_DECIMAL, lambda values: values.cast(data_type))
    digits = 9 if data_type == pa.int32() else 18
    plain = pc.match_substring_regex(texts, rf"^-?\d{{1,{digits}}}$")
    return _convert_plain(texts, plain, _NEVER_INTEGER, lambda values: values.cast(data_type))


def _decimal(precision: int, scale: int) -> str:
    """Return the pattern of numbers that fit a decimal type without rounding."""
    whole = rf"\d{{1,{precision - scale}}}" if precision > scale else "0"
    return rf"^-?{whole}(\.\d{{1,{scale}}})?$" if scale else rf"^-?{whole}$"


def _convert_timestamps(texts: pa.Array) -> pa.Array:
    return parse_timestamps(pa.chunked_array([texts])).combine_chunks()


def _convert_plain(
    texts: pa.Array, plain: pa.Array, never: str, cast: Callable[[pa.Array], pa.Array]
) -> ValuesAndInvalid:
    """Convert plain texts with `cast`; texts that match the pattern `never` are invalid."""
    if pc.all(plain).as_py() is not False:
        return _cast(texts, cast), pa.repeat(pa.scalar(False), len(texts))
    plain = pc.fill_null(plain, False)
    matches = (pc.match_substring_regex(texts, pattern) for pattern in (_ASCII, never))
    invalid = pc.fill_null(pc.and_not(pc.and_(*matches), plain), False)
    if not pc.all(pc.or_(pc.or_(plain, invalid), pc.is_null(texts))).as_py():
        raise RecordFailed("values in another format")
    return _cast(pc.if_else(plain, texts, pa.scalar(None, pa.string())), cast), invalid


def _cast(texts: pa.Array, cast: Callable[[pa.Array], pa.Array]) -> pa.Array:
    try:
        return cast(texts)
    except pa.ArrowException as error:
        raise RecordFailed(str(error)) from None
