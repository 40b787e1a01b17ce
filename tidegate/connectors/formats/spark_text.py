"""Decodes JSON and CSV records with Spark's from_json and from_csv, and finds malformed ones.

Spark's own file readers silently accept parts of some records: the first of two JSON objects on a
line, or a CSV line up to an unclosed quote. Here the text of every record is a column, so the whole
record can be checked. For 1 M lines (2 cores, warm) this costs nothing with JSON (2.6 to 3.4 s
either way); with CSV it takes 1.9 s instead of 1.3 s if all lines have quotes.

There is one difference from Spark's JSON reader: a number or an object in a STRING column is
serialized again (1.10 becomes 1.1), as from_json does.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.columns import (
    CONTROL,
    MALFORMED_COLUMN,
    MALFORMED_REASON,
    MALFORMED_RECORD,
    NOW,
    RECORD_FILE,
    RECORD_LINE,
)
from tidegate.connectors.formats.lines import FIRST, TEXT_BYTES
from tidegate.sql.dialect import string_literal
from tidegate.sql.quoting import quote_identifier

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame

# The bytes that differ between windows-1252 and iso-8859-1, without five that neither defines.
_WINDOWS_ONLY = bytes(sorted({*range(0x80, 0xA0)} - {0x81, 0x8D, 0x8F, 0x90, 0x9D}))
_TEXT, _PARSED, _CORRUPT = "_tg_text", "_tg_parsed", "_tg_corrupt"
# A JSON record is wrapped into an object. Its field `end` is only parsed if nothing else follows
# the record.
_ONE, _MANY, _END = "record", "records", "end"
_BEFORE_ONE, _BEFORE_MANY = f'{{"{_ONE}":', f'{{"{_MANY}":'
_AFTER = f',"{_END}":1}}'


@dataclass(frozen=True)
class SparkTextDecoder:
    """Decodes the records of a text source with expressions of Spark."""

    # The options of the source, as in `files`.
    options: Mapping[str, Any]
    # Names and Spark types of the columns of a record.
    columns: tuple[tuple[str, str], ...]
    # Columns of the reader that are passed through.
    extra_columns: tuple[str, ...]
    # Whether to add the file and line of every record, and the reason for malformed ones.
    located: bool
    # Whether a text is a message and not a line. It may then contain line breaks, which do not
    # separate records.
    messages: bool = False

    @property
    def is_csv(self) -> bool:
        return bool(self.options["format"] == "csv")

    def read(self, raw: DataFrame) -> DataFrame:
        """Decode a DataFrame of texts into the columns and MALFORMED_RECORD."""
        records = self._records(raw)
        malformed = self._is_malformed()
        columns = [self._field(name) for name, _ in self.columns]
        columns.append(
            f"CASE WHEN {malformed} THEN coalesce({_TEXT}, '') END AS {MALFORMED_RECORD}"
        )
        columns += [*self.extra_columns, CONTROL, NOW]
        if not self.located:
            return records.selectExpr(*columns)
        columns += [
            RECORD_FILE,
            RECORD_LINE,
            f"explode(array({self._reason(malformed)})) AS _tg_malformed_reason",
        ]
        located = records.selectExpr(*columns)
        return located.selectExpr(
            "* EXCEPT (_tg_malformed_reason)",
            f"_tg_malformed_reason.reason AS {MALFORMED_REASON}",
            f"_tg_malformed_reason.name AS {MALFORMED_COLUMN}",
        )

    # Splitting texts into records.

    def _records(self, raw: DataFrame) -> DataFrame:
        """Return one row per record, with its text, its parsed value and its location."""
        location = [RECORD_FILE, RECORD_LINE, FIRST]
        frame = raw.selectExpr(
            f"{self._decoded()} AS {_TEXT}", *location, *self.extra_columns, CONTROL, NOW
        )
        if not self.options["multi_line"]:
            return self._parsed(self._lines(frame))
        return self._parsed(self._pieces(frame)) if self.is_csv else self._elements(frame)

    def _columns(self, frame: DataFrame) -> list[str]:
        """Return the columns of a record except its parsed value."""
        names = [_TEXT, RECORD_FILE, RECORD_LINE, *self.extra_columns, CONTROL, NOW]
        return [name for name in names if name in frame.columns]

    def _decoded(self) -> str:
        """Return the decoded text, NULL if it is invalid. `_is_malformed` checks utf-8."""
        encoding = self.options["encoding"]
        # The reader removes the byte order mark from lines, but not from whole files.
        mark = "regexp_replace({0}, '^\\\\uFEFF', '')" if self.options["multi_line"] else "{0}"
        if encoding == "utf-8":
            return mark.format(f"CAST({TEXT_BYTES} AS STRING)")
        if encoding == "utf-16":
            text = f"decode({TEXT_BYTES}, 'UTF-16')"
            return mark.format(f"CAST(try_to_binary({text}, 'utf-8') AS STRING)")
        text = f"decode({TEXT_BYTES}, 'ISO-8859-1')"
        if encoding == "windows-1252":
            latin, windows = (_WINDOWS_ONLY.decode(name) for name in ("latin-1", "cp1252"))
            text = f"translate({text}, {string_literal(latin)}, {string_literal(windows)})"
        return text

    def _lines(self, frame: DataFrame) -> DataFrame:
        """Remove the headers. The reader has already removed blank lines."""
        columns = self._columns(frame)
        if self._has_header:
            frame = frame.where(f"CASE WHEN {FIRST} THEN {self._header(_TEXT)} ELSE true END")
        return frame.selectExpr(*columns)

    def _pieces(self, frame: DataFrame) -> DataFrame:
        """Split whole CSV files into records. Line breaks inside quotes do not end a record."""
        # A file that cannot be decoded is one record.
        text = f"coalesce({_TEXT}, ' ')"
        split = f"posexplode(regexp_extract_all({text}, {string_literal(self._piece())}, 0))"
        frame = frame.selectExpr(*self._columns(frame), f"{split} AS (pos, piece)")
        is_record = f"NOT ({_is_blank('piece')})"
        if self._has_header:
            is_record = f"CASE WHEN pos = 0 THEN {self._header('piece')} ELSE {is_record} END"
        return frame.where(f"{_TEXT} IS NULL OR {is_record}").selectExpr(
            f"CASE WHEN {_TEXT} IS NOT NULL THEN piece END AS {_TEXT}",
            *(name for name in self._columns(frame) if name not in (_TEXT, RECORD_LINE)),
            f"CAST(pos + 1 AS BIGINT) AS {RECORD_LINE}",
        )

    def _elements(self, frame: DataFrame) -> DataFrame:
        """Split whole JSON files into records: one object, or the elements of an array."""
        frame = self._parsed(frame)
        columns = self._columns(frame)
        one = f"array({_PARSED}.{_ONE})"
        rows = f"CASE WHEN {self._is_malformed(whole=True)} THEN {one} "
        rows += f"ELSE coalesce({_PARSED}.{_MANY}, {one}) END"
        parts = {_ONE: "element", _END: f"{_PARSED}.{_END}", _CORRUPT: f"{_PARSED}.{_CORRUPT}"}
        parsed = ", ".join(f"'{name}', {value}" for name, value in parts.items())
        others = [name for name in columns if name != RECORD_LINE]
        return frame.selectExpr(
            *others, _PARSED, f"posexplode({rows}) AS (pos, element)"
        ).selectExpr(
            *others,
            f"CAST(pos + 1 AS BIGINT) AS {RECORD_LINE}",
            f"named_struct({parsed}) AS {_PARSED}",
        )

    @property
    def _has_header(self) -> bool:
        return self.is_csv and bool(self.options["header"])

    def _header(self, text: str) -> str:
        """Return a condition that is false for a matching header and raises an error otherwise."""
        names = [name for name, _ in self.columns]
        values = self._csv(text, [(name, "STRING") for name in names])
        # Columns are matched by position, so the header must have the declared names.
        same = [f"name.{_CORRUPT} IS NULL"]
        same += [
            f"lower(trim(name.{quote_identifier(name)})) <=> {string_literal(name.lower())}"
            for name in names
        ]
        fits = f"exists(array({values}), name -> {' AND '.join(same)})"
        declared = string_literal(
            f"; declared: {', '.join(names)})\nHint: declare the columns in the order of the "
            "header, or set header = false.\n"
        )
        header = f"replace({text}, {string_literal(self.options['delimiter'])}, ', ')"
        error = (
            f"concat('error[TG-523]: the header of ', {RECORD_FILE}, ' does not match the columns "
            f"of its source (header: ', {header}, {declared})"
        )
        stop = f"CAST(raise_error({error}) AS BOOLEAN)"
        return f"CASE WHEN {fits} THEN false ELSE {stop} END"

    # Parsing records.

    def _parsed(self, frame: DataFrame) -> DataFrame:
        """Add the parsed value.

        It is wrapped into explode(), because Spark would otherwise copy the call into every
        condition.
        """
        parse = f"explode(array({self._parse(self.columns)})) AS {_PARSED}"
        return frame.selectExpr(*self._columns(frame), parse)

    def _parse(self, columns: Sequence[tuple[str, str]]) -> str:
        return self._csv(_TEXT, columns) if self.is_csv else self._json(columns)

    def _json(self, columns: Sequence[tuple[str, str]]) -> str:
        fields = ", ".join(f"{quote_identifier(name)}: {sql_type}" for name, sql_type in columns)
        record = f"STRUCT<{fields}>"
        before, many = string_literal(_BEFORE_ONE), ""
        if self.options["multi_line"]:
            is_array = f"{_TEXT} RLIKE '\\\\A[ \\\\t\\\\r\\\\n]*\\\\['"
            before = f"CASE WHEN {is_array} THEN {string_literal(_BEFORE_MANY)} ELSE {before} END"
            many = f"{_MANY}: ARRAY<{record}>, "
        schema = f"STRUCT<{_ONE}: {record}, {many}{_END}: INT, {_CORRUPT}: STRING>"
        text = f"concat({before}, {_TEXT}, {string_literal(_AFTER)})"
        return f"from_json({text}, {string_literal(schema)}, {self._options()})"

    def _csv(self, text: str, columns: Sequence[tuple[str, str]]) -> str:
        fields = [f"{quote_identifier(name)} {sql_type}" for name, sql_type in columns]
        schema = ", ".join([*fields, f"{_CORRUPT} STRING"])
        return f"from_csv({text}, {string_literal(schema)}, {self._options()})"

    def _options(self) -> str:
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
        if self.options["timestamp_format"] is not None:
            options["timestampFormat"] = self.options["timestamp_format"]
            options["timestampNTZFormat"] = self.options["timestamp_format"]
        if self.is_csv:
            options["sep"] = self.options["delimiter"]
            options["quote"] = self.options["quote"] or ""
            options["escape"] = self.options["escape"]
            options["nullValue"] = self.options["null_value"] or ""
            options["multiLine"] = str(self.options["multi_line"]).lower()
        return (
            f"map({', '.join(string_literal(part) for pair in options.items() for part in pair)})"
        )

    def _field(self, name: str) -> str:
        record = _PARSED if self.is_csv else f"{_PARSED}.{_ONE}"
        return f"{record}.{quote_identifier(name)} AS {quote_identifier(name)}"

    # Malformed records.

    def _is_malformed(self, whole: bool = False) -> str:
        """Return the condition that a record (with `whole`: its file) is malformed; never NULL."""
        tests = [f"{_PARSED}.{_CORRUPT} IS NOT NULL", self._is_no_text()]
        if self.is_csv:
            tests += [self._misquoted()] if self.options["quote"] else []
            tests += [_has_line_break()] if self.messages else []
        else:
            tests.append(f"{_PARSED}.{_END} IS NULL")
            tests += [] if whole else [f"{_PARSED}.{_ONE} IS NULL"]
        return " OR ".join(f"({test})" for test in tests)

    def _is_no_text(self) -> str:
        utf8 = self.options["encoding"] == "utf-8"
        return f"NOT is_valid_utf8({_TEXT})" if utf8 else f"{_TEXT} IS NULL"

    def _misquoted(self) -> str:
        """Return the condition that a CSV record has misplaced quotes. Most records have none."""
        fits = f"{_TEXT} RLIKE {string_literal(self._strict())}"
        return f"contains({_TEXT}, {string_literal(self.options['quote'])}) AND NOT {fits}"

    def _alone(self, name: str) -> str:
        """Parse a record for a single column. CSV reads the other columns as text."""
        if not self.is_csv:
            return self._parse([item for item in self.columns if item[0] == name])
        return self._parse(
            [(n, sql_type if n == name else "STRING") for n, sql_type in self.columns]
        )

    def _reason(self, malformed: str) -> str:
        """Return an expression of the reason why a record is malformed, and of the column."""
        cases: list[tuple[str, str, str | None]] = []
        cases.append((self._is_no_text(), f"not text in {self.options['encoding']}", None))
        cases += self._csv_cases() if self.is_csv else self._json_cases()
        for name, sql_type in self.columns:
            is_corrupt = f"{self._alone(name)}.{_CORRUPT} IS NOT NULL"
            cases.append((is_corrupt, self._type_reason(name, sql_type), name))
        cases.append(("true", "not a readable record", None))
        branches = " ".join(
            f"WHEN {test} THEN named_struct('reason', {string_literal(reason)}, 'name', "
            f"{string_literal(name) if name else 'CAST(NULL AS STRING)'})"
            for test, reason, name in cases
        )
        return f"CASE WHEN NOT ({malformed}) THEN NULL {branches} END"

    def _type_reason(self, name: str, sql_type: str) -> str:
        article = "an" if sql_type[0] in "AEIOU" else "a"
        pattern = self.options["timestamp_format"]
        suffix = f" ({pattern})" if pattern and sql_type.startswith("TIMESTAMP") else ""
        return f"{name} is not {article} {sql_type}{suffix}"

    def _csv_cases(self) -> list[tuple[str, str, str | None]]:
        cases: list[tuple[str, str, str | None]] = []
        if self.messages:
            cases.append((_has_line_break(), "a line break in the record", None))
        if self.options["quote"]:
            where = "" if self.options["multi_line"] else " on its line"
            is_open = f"{_TEXT} RLIKE {string_literal(self._strict(is_open=True))}"
            cases.append((is_open, f"a quote is not closed{where}", None))
            cases.append((self._misquoted(), "a quote in a value that is not quoted", None))
        texts = self._parse([(name, "STRING") for name, _ in self.columns])
        count = len(self.columns)
        several = "1 value" if count == 1 else f"{count} values"
        return [*cases, (f"{texts}.{_CORRUPT} IS NOT NULL", f"not {several}", None)]

    def _json_cases(self) -> list[tuple[str, str, str | None]]:
        nothing = [("_tg_nothing", "STRING")]
        is_object = f"{self._parse(nothing)}.{_CORRUPT} IS NULL"
        if self.options["multi_line"]:
            return [
                (f"{_PARSED}.{_END} IS NULL", "not one JSON object or array", None),
                (f"NOT ({is_object})", "not an array of JSON objects", None),
            ]
        alone = f"from_json({_TEXT}, '_tg_nothing STRING, {_CORRUPT} STRING', {self._options()})"
        return [
            (f"{alone}.{_CORRUPT} IS NOT NULL", "not a JSON object", None),
            (f"{_PARSED}.{_END} IS NULL", "text after the JSON object", None),
        ]

    # Patterns of quoted values.

    def _value(self) -> tuple[str, str]:
        """Return the patterns of a quoted value without its closing quote, and of a plain value."""
        quote, escape = (re.escape(self.options[name]) for name in ("quote", "escape"))
        inner = f"[^{quote}]|{quote}{quote}" if quote == escape else f"[^{quote}{escape}]|{escape}."
        return f"{quote}(?:{inner})*+", f"(?:(?!{self._delimiter})[^{quote}])*+"

    @property
    def _delimiter(self) -> str:
        return re.escape(str(self.options["delimiter"]).replace("\\t", "\t"))

    def _strict(self, is_open: bool = False) -> str:
        """Return the pattern of records in which quotes only surround whole values.

        With `is_open`, return the pattern of records whose last quoted value is not closed.
        """
        unclosed, plain = self._value()
        value = f"(?:{unclosed}{re.escape(self.options['quote'])}[ \\t]*+|{plain})"
        if is_open:
            return f"(?s)\\A(?:{value}{self._delimiter})*+{unclosed}\\z"
        return f"(?s)\\A{value}(?:{self._delimiter}{value})*+\\z"

    def _piece(self) -> str:
        """Return the pattern of a record in a whole file: up to a line break outside of quotes."""
        if not self.options["quote"]:
            return "[^\\r\\n]++"
        unclosed, _ = self._value()
        value_start = f"(?:(?<=[\\r\\n])|(?<={self._delimiter})|\\A)"
        quote = re.escape(self.options["quote"])
        return f"(?s)(?:{value_start}{unclosed}(?:{quote}|\\z)|[^\\r\\n])++"


def _has_line_break() -> str:
    return f"{_TEXT} RLIKE '[\\\\r\\\\n]'"


def _is_blank(text: str) -> str:
    return f"trim(BOTH ' \\t' FROM {text}) = ''"
