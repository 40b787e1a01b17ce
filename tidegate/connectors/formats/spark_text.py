"""Records of JSON and CSV files: lines of text that Spark's from_json and from_csv parse.

Spark's own readers of these formats read half of some records without a word: of two JSON objects
on a line the first, of a CSV line whose quote is open the part up to its end. Here the text of a
record is at hand, so that it can be looked at as a whole. For 1 M lines (2 cores, warm) that costs
nothing with JSON (2.6 to 3.4 s either way); with CSV 1.9 s, not 1.3 s, if all lines have quotes.

One thing differs from Spark's reader of JSON: a number or an object in a STRING column is written
anew (1.10 becomes 1.1), as from_json does for every source of JSON that is not a file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.columns import (
    BAD_COLUMN,
    BAD_REASON,
    BAD_RECORD,
    CONTROL,
    NOW,
    RECORD_FILE,
    RECORD_LINE,
)
from tidegate.connectors.formats.lines import FIRST, TEXT_BYTES
from tidegate.sql.dialect import text_literal
from tidegate.sql.quoting import quoted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame

# The bytes that mean something else in windows-1252 than in iso-8859-1; five are in neither.
_WINDOWS_ONLY = bytes(sorted({*range(0x80, 0xA0)} - {0x81, 0x8D, 0x8F, 0x90, 0x9D}))
_TEXT, _PARSED, _CORRUPT = "_tg_text", "_tg_parsed", "_tg_corrupt"
# What is put around a record of JSON: `end` is only found if nothing else follows the record.
_ONE, _MANY, _END = "record", "records", "end"
_BEFORE_ONE, _BEFORE_MANY = f'{{"{_ONE}":', f'{{"{_MANY}":'
_AFTER = f',"{_END}":1}}'


@dataclass(frozen=True)
class TextFiles:
    """A source of text files: its options, columns, and what a reader must add to its rows."""

    options: Mapping[str, Any]
    columns: tuple[tuple[str, str], ...]
    # Columns of the reader that are kept.
    kept: tuple[str, ...]
    # Whether bad records say why they are bad, and every record where it stood.
    located: bool
    # Whether texts are not lines, so that one may hold a line break, which ends no record.
    messages: bool = False

    @property
    def is_csv(self) -> bool:
        return bool(self.options["format"] == "csv")

    def read(self, raw: DataFrame) -> DataFrame:
        """The columns of the records in a frame of texts, and the text of those that are bad."""
        records = self._records(raw)
        broken = self._is_broken()
        shown = [self._field(name) for name, _ in self.columns]
        shown.append(f"CASE WHEN {broken} THEN coalesce({_TEXT}, '') END AS {BAD_RECORD}")
        shown += [*self.kept, CONTROL, NOW]
        if not self.located:
            return records.selectExpr(*shown)
        shown += [RECORD_FILE, RECORD_LINE, f"explode(array({self._blame(broken)})) AS blame"]
        known = records.selectExpr(*shown)
        return known.selectExpr(
            "* EXCEPT (blame)", f"blame.reason AS {BAD_REASON}", f"blame.name AS {BAD_COLUMN}"
        )

    # Texts

    def _records(self, raw: DataFrame) -> DataFrame:
        """A row for each record: its text, what it was parsed to, where it stood."""
        place = [RECORD_FILE, RECORD_LINE, FIRST]
        frame = raw.selectExpr(f"{self._decoded()} AS {_TEXT}", *place, *self.kept, CONTROL, NOW)
        if not self.options["multi_line"]:
            return self._parsed(self._lines(frame))
        return self._parsed(self._pieces(frame)) if self.is_csv else self._elements(frame)

    def _columns(self, frame: DataFrame) -> list[str]:
        """What is known of a record besides what it was parsed to."""
        names = [_TEXT, RECORD_FILE, RECORD_LINE, *self.kept, CONTROL, NOW]
        return [name for name in names if name in frame.columns]

    def _decoded(self) -> str:
        """The text of the file; NULL if it cannot be decoded (utf-8 is judged later)."""
        encoding = self.options["encoding"]
        # Lines come without the mark that some programs put first, whole files with it.
        mark = "regexp_replace({0}, '^\\\\uFEFF', '')" if self.options["multi_line"] else "{0}"
        if encoding == "utf-8":
            return mark.format(f"CAST({TEXT_BYTES} AS STRING)")
        if encoding == "utf-16":
            text = f"decode({TEXT_BYTES}, 'UTF-16')"
            return mark.format(f"CAST(try_to_binary({text}, 'utf-8') AS STRING)")
        text = f"decode({TEXT_BYTES}, 'ISO-8859-1')"
        if encoding == "windows-1252":
            given, meant = (_WINDOWS_ONLY.decode(name) for name in ("latin-1", "cp1252"))
            text = f"translate({text}, {text_literal(given)}, {text_literal(meant)})"
        return text

    def _lines(self, frame: DataFrame) -> DataFrame:
        """Lines without headers; those without text were left out where they were read."""
        columns = self._columns(frame)
        if self._has_header:
            frame = frame.where(f"CASE WHEN {FIRST} THEN {self._header(_TEXT)} ELSE true END")
        return frame.selectExpr(*columns)

    def _pieces(self, frame: DataFrame) -> DataFrame:
        """The records of whole CSV files: a line break inside quotes does not end one."""
        # What is no text is one piece.
        text = f"coalesce({_TEXT}, ' ')"
        split = f"posexplode(regexp_extract_all({text}, {text_literal(self._piece())}, 0))"
        frame = frame.selectExpr(*self._columns(frame), f"{split} AS (place, piece)")
        wanted = f"NOT ({_is_blank('piece')})"
        if self._has_header:
            wanted = f"CASE WHEN place = 0 THEN {self._header('piece')} ELSE {wanted} END"
        return frame.where(f"{_TEXT} IS NULL OR {wanted}").selectExpr(
            f"CASE WHEN {_TEXT} IS NOT NULL THEN piece END AS {_TEXT}",
            *(name for name in self._columns(frame) if name not in (_TEXT, RECORD_LINE)),
            f"CAST(place + 1 AS BIGINT) AS {RECORD_LINE}",
        )

    def _elements(self, frame: DataFrame) -> DataFrame:
        """The records of whole JSON files: one object, or an array with one record an element."""
        frame = self._parsed(frame)
        columns = self._columns(frame)
        one = f"array({_PARSED}.{_ONE})"
        rows = f"CASE WHEN {self._is_broken(whole=True)} THEN {one} "
        rows += f"ELSE coalesce({_PARSED}.{_MANY}, {one}) END"
        parts = {_ONE: "element", _END: f"{_PARSED}.{_END}", _CORRUPT: f"{_PARSED}.{_CORRUPT}"}
        parsed = ", ".join(f"'{name}', {value}" for name, value in parts.items())
        others = [name for name in columns if name != RECORD_LINE]
        return frame.selectExpr(
            *others, _PARSED, f"posexplode({rows}) AS (place, element)"
        ).selectExpr(
            *others,
            f"CAST(place + 1 AS BIGINT) AS {RECORD_LINE}",
            f"named_struct({parsed}) AS {_PARSED}",
        )

    # Headers

    @property
    def _has_header(self) -> bool:
        return self.is_csv and bool(self.options["header"])

    def _header(self, text: str) -> str:
        """A condition that is false for a header that fits, and stops the stream for another."""
        names = [name for name, _ in self.columns]
        committables = self._csv(text, [(name, "STRING") for name in names])
        # Columns are matched by place, so their names must be the declared ones.
        same = [f"name.{_CORRUPT} IS NULL"]
        same += [
            f"lower(trim(name.{quoted(name)})) <=> {text_literal(name.lower())}" for name in names
        ]
        fits = f"exists(array({committables}), name -> {' AND '.join(same)})"
        declared = text_literal(
            f"; declared are {', '.join(names)})\nHint: declare the columns in the order of the "
            "header, or say header = false.\n"
        )
        found = f"replace({text}, {text_literal(self.options['delimiter'])}, ', ')"
        error = (
            f"concat('error[TG-504]: the header of ', {RECORD_FILE}, ' does not fit the columns of "
            f"its source (it has ', {found}, {declared})"
        )
        stop = f"CAST(raise_error({error}) AS BOOLEAN)"
        return f"CASE WHEN {fits} THEN false ELSE {stop} END"

    # Parsing

    def _parsed(self, frame: DataFrame) -> DataFrame:
        """Exploded, the record is parsed once: Spark would copy the call into every condition."""
        parse = f"explode(array({self._parse(self.columns)})) AS {_PARSED}"
        return frame.selectExpr(*self._columns(frame), parse)

    def _parse(self, columns: Sequence[tuple[str, str]]) -> str:
        return self._csv(_TEXT, columns) if self.is_csv else self._json(columns)

    def _json(self, columns: Sequence[tuple[str, str]]) -> str:
        fields = ", ".join(f"{quoted(name)}: {kind}" for name, kind in columns)
        record = f"STRUCT<{fields}>"
        before, many = text_literal(_BEFORE_ONE), ""
        if self.options["multi_line"]:
            is_array = f"{_TEXT} RLIKE '\\\\A[ \\\\t\\\\r\\\\n]*\\\\['"
            before = f"CASE WHEN {is_array} THEN {text_literal(_BEFORE_MANY)} ELSE {before} END"
            many = f"{_MANY}: ARRAY<{record}>, "
        schema = f"STRUCT<{_ONE}: {record}, {many}{_END}: INT, {_CORRUPT}: STRING>"
        text = f"concat({before}, {_TEXT}, {text_literal(_AFTER)})"
        return f"from_json({text}, {text_literal(schema)}, {self._options()})"

    def _csv(self, text: str, columns: Sequence[tuple[str, str]]) -> str:
        fields = [f"{quoted(name)} {kind}" for name, kind in columns]
        schema = ", ".join([*fields, f"{_CORRUPT} STRING"])
        return f"from_csv({text}, {text_literal(schema)}, {self._options()})"

    def _options(self) -> str:
        given = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
        if self.options["timestamp_format"] is not None:
            given["timestampFormat"] = self.options["timestamp_format"]
            given["timestampNTZFormat"] = self.options["timestamp_format"]
        if self.is_csv:
            given["sep"] = self.options["delimiter"]
            given["quote"] = self.options["quote"] or ""
            given["escape"] = self.options["escape"]
            given["nullValue"] = self.options["null_value"] or ""
            given["multiLine"] = str(self.options["multi_line"]).lower()
        return f"map({', '.join(text_literal(part) for pair in given.items() for part in pair)})"

    def _field(self, name: str) -> str:
        record = _PARSED if self.is_csv else f"{_PARSED}.{_ONE}"
        return f"{record}.{quoted(name)} AS {quoted(name)}"

    # Bad records

    def _is_broken(self, whole: bool = False) -> str:
        """A condition, never NULL: whether a record cannot be used (`whole`: the file it is in)."""
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
        """Whether a CSV record is not what quotes allow; most records have none."""
        fits = f"{_TEXT} RLIKE {text_literal(self._strict())}"
        return f"contains({_TEXT}, {text_literal(self.options['quote'])}) AND NOT {fits}"

    def _alone(self, name: str) -> str:
        """A record parsed for one column only; CSV has the others as texts."""
        if not self.is_csv:
            return self._parse([item for item in self.columns if item[0] == name])
        return self._parse([(n, kind if n == name else "STRING") for n, kind in self.columns])

    def _blame(self, broken: str) -> str:
        """An expression: why a record is bad, and the column that is to blame."""
        cases: list[tuple[str, str, str | None]] = []
        cases.append((self._is_no_text(), f"not text in {self.options['encoding']}", None))
        cases += self._csv_cases() if self.is_csv else self._json_cases()
        for name, kind in self.columns:
            misfit = f"{self._alone(name)}.{_CORRUPT} IS NOT NULL"
            cases.append((misfit, self._misfit(name, kind), name))
        cases.append(("true", "not a readable record", None))
        branches = " ".join(
            f"WHEN {test} THEN named_struct('reason', {text_literal(reason)}, 'name', "
            f"{text_literal(name) if name else 'CAST(NULL AS STRING)'})"
            for test, reason, name in cases
        )
        return f"CASE WHEN NOT ({broken}) THEN NULL {branches} END"

    def _misfit(self, name: str, kind: str) -> str:
        article = "an" if kind[0] in "AEIOU" else "a"
        given = self.options["timestamp_format"]
        how = f" ({given})" if given and kind.startswith("TIMESTAMP") else ""
        return f"{name} is not {article} {kind}{how}"

    def _csv_cases(self) -> list[tuple[str, str, str | None]]:
        cases: list[tuple[str, str, str | None]] = []
        if self.messages:
            cases.append((_has_line_break(), "a line break in the record", None))
        if self.options["quote"]:
            where = "" if self.options["multi_line"] else " on its line"
            is_open = f"{_TEXT} RLIKE {text_literal(self._strict(is_open=True))}"
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

    # Quotes

    def _value(self) -> tuple[str, str]:
        """Patterns of a quoted value without its last quote, and of a plain one."""
        quote, escape = (re.escape(self.options[name]) for name in ("quote", "escape"))
        inner = f"[^{quote}]|{quote}{quote}" if quote == escape else f"[^{quote}{escape}]|{escape}."
        return f"{quote}(?:{inner})*+", f"(?:(?!{self._delimiter})[^{quote}])*+"

    @property
    def _delimiter(self) -> str:
        return re.escape(str(self.options["delimiter"]).replace("\\t", "\t"))

    def _strict(self, is_open: bool = False) -> str:
        """A record whose quotes stand around whole values, or whose last value is not closed."""
        begun, plain = self._value()
        value = f"(?:{begun}{re.escape(self.options['quote'])}[ \\t]*+|{plain})"
        if is_open:
            return f"(?s)\\A(?:{value}{self._delimiter})*+{begun}\\z"
        return f"(?s)\\A{value}(?:{self._delimiter}{value})*+\\z"

    def _piece(self) -> str:
        """A record of a whole file: up to a line break that is outside of quotes."""
        if not self.options["quote"]:
            return "[^\\r\\n]++"
        begun, _ = self._value()
        after = f"(?:(?<=[\\r\\n])|(?<={self._delimiter})|\\A)"
        quote = re.escape(self.options["quote"])
        return f"(?s)(?:{after}{begun}(?:{quote}|\\z)|[^\\r\\n])++"


def _has_line_break() -> str:
    return f"{_TEXT} RLIKE '[\\\\r\\\\n]'"


def _is_blank(text: str) -> str:
    return f"trim(BOTH ' \\t' FROM {text}) = ''"
