"""Records of CSV that tasks decode themselves: only those that Spark's from_csv reads alike.

Values are told apart by Arrow, and looked at column by column. One that is written in the plain way
is taken; of one that no reader takes for such a value the record is bad; all between is left to
Spark. All columns are decoded, also those that nobody asks for: a record with a value that does not
fit is bad as a whole. Python workers import this: it must load little.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.columns import BAD_RECORD
from tidegate.connectors.formats.json import MICROS, TYPES, time_of
from tidegate.operators.vectorized import RecordFailed

_DECIMAL = re.compile(r"DECIMAL\((\d+), ?(\d+)\)")
# What is found in a text of these letters that is no such value to anybody.
_ASCII = r"^[ -~]*$"
_NO_WHOLE = "[^0-9+-]"
_NO_DECIMAL = "[^0-9eE+.,-]"
_NO_DOUBLE = "[^0-9a-fA-FinfityINFTYxXpP+. -]"
_NO_TIME = "^[^0-9]*$"
_NO_BOOLEAN = "."
# Values, and which texts are none.
Judged = tuple[pa.Array, pa.Array]


@dataclass(frozen=True)
class CsvFormat:
    """How records are written: one letter each; no quote if there is none."""

    delimiter: str
    quote: str | None
    escape: str

    @property
    def is_plain(self) -> bool:
        """Whether each is one letter, and another."""
        letters = [self.delimiter, *([self.quote, self.escape] if self.quote else [])]
        single = all(re.fullmatch(r"[\t -~]", letter) for letter in letters)
        return single and self.delimiter not in letters[1:]

    @property
    def plain(self) -> str:
        """The pattern of records whose quotes stand around whole values."""
        ends = re.escape(self.delimiter)
        if self.quote is None:
            return "^.*$"
        quote, escape = re.escape(self.quote), re.escape(self.escape)
        inner = f"(?:[^{quote}]|{quote}{quote})" if self.doubles else f"[^{quote}{escape}]"
        value = f"(?:{quote}{inner}*{quote}|[^{quote}{escape}{ends}]*)"
        return f"^{value}(?:{ends}{value})*$"

    @property
    def doubles(self) -> bool:
        """Whether a quote in a value is written twice."""
        return self.quote == self.escape


def csv_schema(columns: Sequence[tuple[str, str]]) -> pa.Schema | None:
    """What records are decoded to; None if Spark has to do it."""
    kinds = [_type(kind) for _, kind in columns]
    if any(kind is None for kind in kinds):
        return None
    return pa.schema([(name, kind) for (name, _), kind in zip(columns, kinds, strict=True)])


def _type(kind: str) -> pa.DataType | None:
    found = _DECIMAL.fullmatch(kind)
    if found is not None:
        return pa.decimal128(int(found.group(1)), int(found.group(2)))
    return TYPES.get(kind)


def decoded(lines: pa.Array, schema: pa.Schema, form: CsvFormat) -> pa.Table:
    """The rows of records, and BAD_RECORD: the text of those that are none.

    RecordFailed if only Spark can say what one of them is.
    """
    try:
        texts = lines.cast(pa.string())
    except pa.ArrowException:
        return _without_broken(lines, schema, form)
    if not len(texts):
        return schema.empty_table().append_column(BAD_RECORD, pa.nulls(0, pa.string()))
    if not pc.all(pc.match_substring_regex(texts, form.plain)).as_py():
        raise RecordFailed("quotes that are not around whole values")
    if pc.any(pc.match_substring(texts, "\0")).as_py():
        raise RecordFailed("a letter that is none")
    values, short = _values(texts, schema, form)
    columns = []
    bad = short
    for name, kind in zip(schema.names, schema.types, strict=True):
        column, wrong = _judged(values.column(name).combine_chunks(), kind)
        columns.append(column)
        bad = pc.or_(bad, wrong)
    shown = pc.if_else(bad, texts, pa.scalar(None, pa.string()))
    return pa.table([*columns, shown], schema=schema.append(pa.field(BAD_RECORD, pa.string())))


def header_fits(line: bytes, names: Sequence[str], form: CsvFormat) -> bool:
    """Whether a header that has no quotes names the columns."""
    found = line.decode("utf-8", "replace").split(form.delimiter)
    return [name.strip(" ").lower() for name in found] == [name.lower() for name in names]


def _without_broken(lines: pa.Array, schema: pa.Schema, form: CsvFormat) -> pa.Table:
    """Lines that are no text are bad; they are taken out, and put back in their places."""
    texts = lines.to_pylist()
    whole = np.array([_is_text(text) for text in texts])
    good = decoded(lines.filter(pa.array(whole)), schema, form)
    shown = [texts[at].decode("utf-8", "replace") for at in np.flatnonzero(~whole)]
    nothing = [pa.nulls(len(shown), item.type) for item in schema]
    bad = pa.table([*nothing, pa.array(shown, pa.string())], schema=good.schema)
    order = np.argsort(~whole, kind="stable")
    return pa.concat_tables([good, bad]).take(pa.array(np.argsort(order)))


def _is_text(line: bytes) -> bool:
    try:
        line.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _values(texts: pa.Array, schema: pa.Schema, form: CsvFormat) -> tuple[pa.Table, pa.Array]:
    """The values of records as texts, NULL where there is none, and which have not one for each
    column: those have no values here."""
    from pyarrow import csv as arrow_csv

    short: list[int] = []

    def seen(row: Any) -> str:
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
                delimiter=form.delimiter,
                quote_char=form.quote or False,
                double_quote=form.doubles,
                ignore_empty_lines=False,
                invalid_row_handler=seen,
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
    places = np.where(mask, -1, np.cumsum(~mask) - 1)
    known = pa.array(places, mask=mask)
    return rows.take(known), pa.array(mask)


# What a value is, by type


def _judged(texts: pa.Array, kind: pa.DataType) -> Judged:
    """The values of texts that are plain, and which are surely none; RecordFailed for others."""
    if kind == pa.string():
        return texts, pa.repeat(pa.scalar(False), len(texts))
    if kind == pa.bool_():
        lower = pc.utf8_lower(texts)
        plain = pc.is_in(lower, value_set=pa.array(["true", "false"]))
        return _taken(lower, plain, _NO_BOOLEAN, lambda given: given.cast(kind))
    if kind == MICROS:
        plain = pc.match_substring_regex(texts, r"^[12]\d{3}-\d{2}-\d{2}[T ]")
        return _taken(texts, plain, _NO_TIME, _times)
    if kind == pa.float64():
        plain = pc.and_(
            pc.match_substring_regex(texts, r"^-?\d{1,15}(\.\d{1,15})?$"),
            pc.invert(pc.match_substring_regex(texts, r"^-[0.]*$")),
        )
        return _taken(texts, plain, _NO_DOUBLE, lambda given: given.cast(kind))
    if pa.types.is_decimal(kind):
        plain = pc.match_substring_regex(texts, _decimal(kind.precision, kind.scale))
        return _taken(texts, plain, _NO_DECIMAL, lambda given: given.cast(kind))
    digits = 9 if kind == pa.int32() else 18
    plain = pc.match_substring_regex(texts, rf"^-?\d{{1,{digits}}}$")
    return _taken(texts, plain, _NO_WHOLE, lambda given: given.cast(kind))


def _decimal(precision: int, scale: int) -> str:
    """Numbers that are held without rounding."""
    whole = rf"\d{{1,{precision - scale}}}" if precision > scale else "0"
    return rf"^-?{whole}(\.\d{{1,{scale}}})?$" if scale else rf"^-?{whole}$"


def _times(texts: pa.Array) -> pa.Array:
    return time_of(pa.chunked_array([texts])).combine_chunks()


def _taken(
    texts: pa.Array, plain: pa.Array, none: str, cast: Callable[[pa.Array], pa.Array]
) -> Judged:
    if pc.all(plain).as_py() is not False:
        return _cast(texts, cast), pa.repeat(pa.scalar(False), len(texts))
    plain = pc.fill_null(plain, False)
    found = (pc.match_substring_regex(texts, pattern) for pattern in (_ASCII, none))
    wrong = pc.fill_null(pc.and_not(pc.and_(*found), plain), False)
    if not pc.all(pc.or_(pc.or_(plain, wrong), pc.is_null(texts))).as_py():
        raise RecordFailed("values that are written in another way")
    return _cast(pc.if_else(plain, texts, pa.scalar(None, pa.string())), cast), wrong


def _cast(texts: pa.Array, cast: Callable[[pa.Array], pa.Array]) -> pa.Array:
    try:
        return cast(texts)
    except pa.ArrowException as error:
        raise RecordFailed(str(error)) from None
