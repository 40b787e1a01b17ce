"""Turns Kafka records into columns with Spark: text formats, raw records and Debezium envelopes.

JSON and CSV records are decoded like those of files, so the same text gives the same row. A
malformed record becomes a dead letter with its topic, partition and offset. Avro arrives as JSON,
or with the reason why it is malformed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.columns import (
    ARRIVAL,
    ARRIVAL_FILE,
    ARRIVAL_ROW,
    CONTROL,
    MALFORMED_COLUMN,
    MALFORMED_REASON,
    MALFORMED_RECORD,
    NOW,
    OP,
    PARTITION,
    RECORD_FILE,
    RECORD_LINE,
)
from tidegate.connectors.formats.lines import TEXT_BYTES
from tidegate.connectors.formats.spark_text import SparkTextDecoder
from tidegate.connectors.kafka.avro import AVRO_REASON
from tidegate.connectors.kafka.reader import TOMBSTONE, metadata_column
from tidegate.sql.dialect import string_literal
from tidegate.sql.quoting import quote_identifier

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tidegate.catalog.objects import Source

_NO_VALUE = "the record has no value, and the source has no PRIMARY KEY to delete by"


@dataclass(frozen=True)
class RecordDecoder:
    """Decodes the records of a source."""

    source: Source
    # Whether rows carry their arrival position, and whether malformed records carry the reason.
    arrival: bool
    located: bool

    @property
    def options(self) -> Mapping[str, Any]:
        return self.source.options

    @property
    def format(self) -> str:
        return str(self.options["format"])

    @property
    def upserts(self) -> bool:
        return bool(self.source.primary_key)

    @property
    def metadata(self) -> list[tuple[str, str, str]]:
        """The METADATA columns, with the name of the column, the metadata, and the type."""
        return [
            (c.name, c.metadata, str(c.type))
            for c in self.source.stored_columns
            if c.metadata is not None
        ]

    def read(self, raw: DataFrame) -> DataFrame:
        """Decode the frame of `KafkaReader` into stored columns, _op if any, and hidden columns."""
        if self.format == "raw":
            return self._with_hidden_columns(self._raw(raw), self._names())
        if self.format == "debezium-json":
            decoder = EnvelopeDecoder(self.record_columns, self.upserts)
            rows = decoder.rows(self._text(raw, decoder.columns), self._hidden_columns())
            return self._with_hidden_columns(rows, [*self._names(), OP])
        columns = self.text_columns
        return self._with_hidden_columns(self._text(raw, columns), [name for name, _ in columns])

    @property
    def text_columns(self) -> list[tuple[str, str]]:
        """The columns that are read from the text of a record."""
        return [*self.record_columns, *([(OP, "STRING")] if self._has_op else [])]

    @property
    def record_columns(self) -> list[tuple[str, str]]:
        return [(c.name, str(c.type)) for c in self.source.record_columns]

    @property
    def _has_op(self) -> bool:
        """Whether _op is a field of the records."""
        return bool(self.options["changelog"]) and not self.upserts

    def _names(self) -> list[str]:
        return [name for name, _ in self.record_columns]

    def _reader_columns(self) -> tuple[str, ...]:
        """Return the columns of `KafkaReader` that are passed on while the text is decoded."""
        metadata = dict.fromkeys(metadata_column(name) for _, name, _ in self.metadata)
        reason = (AVRO_REASON,) if self.format == "avro" else ()
        return (*ARRIVAL, PARTITION, TOMBSTONE, *metadata, *reason)

    def _hidden_columns(self) -> list[str]:
        """Return the columns that are not columns of the source."""
        located = (
            [RECORD_FILE, RECORD_LINE, MALFORMED_REASON, MALFORMED_COLUMN] if self.located else []
        )
        return [*self._reader_columns(), *located, MALFORMED_RECORD, CONTROL, NOW]

    def _text(self, raw: DataFrame, columns: Sequence[tuple[str, str]]) -> DataFrame:
        options = {
            "format": "csv" if self.format == "csv" else "json",
            "multi_line": False,
            "encoding": "utf-8",
            "header": False,
            **{name: self.options[name] for name in _TEXT_OPTIONS},
        }
        decoder = SparkTextDecoder(
            options, tuple(columns), self._reader_columns(), self.located, messages=True
        )
        return decoder.read(raw)

    def _raw(self, raw: DataFrame) -> DataFrame:
        """Return the record as the only column. Invalid UTF-8 in a STRING is malformed."""
        (name, sql_type), *_ = self.record_columns
        text = f"CAST({TEXT_BYTES} AS {sql_type})"
        invalid = f"NOT is_valid_utf8({text})" if sql_type == "STRING" else "false"
        is_malformed = f"coalesce({invalid}, false)"
        columns = [f"CASE WHEN NOT {TOMBSTONE} THEN {text} END AS {quote_identifier(name)}"]
        columns += [
            f"CASE WHEN {is_malformed} THEN CAST({TEXT_BYTES} AS STRING) END AS {MALFORMED_RECORD}"
        ]
        columns += [*self._reader_columns(), CONTROL, NOW]
        if self.located:
            columns += [RECORD_FILE, RECORD_LINE]
            columns.append(
                f"CASE WHEN {is_malformed} THEN 'not text in utf-8' END AS {MALFORMED_REASON}"
            )
            columns.append(f"CAST(NULL AS STRING) AS {MALFORMED_COLUMN}")
        return raw.selectExpr(*columns)

    def _with_hidden_columns(self, frame: DataFrame, names: Sequence[str]) -> DataFrame:
        """Select the columns `names`, the metadata, _op, and the hidden columns of a source."""
        columns = [quote_identifier(name) for name in names]
        columns += [
            f"{_metadata_sql(metadata, sql_type)} AS {quote_identifier(name)}"
            for name, metadata, sql_type in self.metadata
        ]
        tombstone = f"coalesce({TOMBSTONE}, false)"
        if self.upserts and self.format != "debezium-json":
            columns.append(f"CASE WHEN {tombstone} THEN '-D' ELSE '+U' END AS {OP}")
        hidden = [name for name in self._hidden_columns() if name in (PARTITION, CONTROL, NOW)]
        hidden += [ARRIVAL_FILE, ARRIVAL_ROW] if self.arrival else []
        hidden += [RECORD_FILE, RECORD_LINE, MALFORMED_COLUMN] if self.located else []
        # Without a key, a tombstone has nothing to delete and is malformed.
        rejects = self.format in ("json", "csv", "avro") and not self.upserts
        is_malformed = tombstone if rejects else "false"
        columns.append(
            f"CASE WHEN {is_malformed} THEN '' ELSE {MALFORMED_RECORD} END AS {MALFORMED_RECORD}"
        )
        if self.located:
            cause = (
                f"coalesce({AVRO_REASON}, {MALFORMED_REASON})"
                if self.format == "avro"
                else MALFORMED_REASON
            )
            reason = f"CASE WHEN {is_malformed} THEN {string_literal(_NO_VALUE)} ELSE {cause} END"
            columns.append(f"{reason} AS {MALFORMED_REASON}")
        return frame.selectExpr(*columns, *hidden)


_TEXT_OPTIONS = ("timestamp_format", "delimiter", "quote", "escape", "null_value")


def _metadata_sql(metadata: str, sql_type: str) -> str:
    column = metadata_column(metadata)
    return f"CAST({column} AS STRING)" if metadata == "key" and sql_type == "STRING" else column


# ---- Debezium envelopes, which describe changes of the rows of a table.
#
# The field `op` of an envelope is c or r (the row exists), u (the row was updated) or d (it was
# deleted), with the old row in `before` and the new row in `after`. The envelope is the record, or
# it is in the field `payload` next to its schema. With a PRIMARY KEY, the key of the old row is
# enough, so `before` may be missing, as it is for tables that do not log it.

_REASON, _CHANGE, _ENVELOPE = "_tg_what", "_tg_change", "_tg_envelope"


@dataclass(frozen=True)
class EnvelopeDecoder:
    """Converts envelopes to rows of a changelog."""

    # The columns of the table.
    columns_of_row: Sequence[tuple[str, str]]
    # Whether rows are identified by a key.
    upserts: bool

    @property
    def columns(self) -> list[tuple[str, str]]:
        """The columns to read from JSON: an envelope, and one that may be inside it."""
        row = self._struct()
        fields = [("before", row), ("after", row), ("op", "STRING")]
        payload = ", ".join(f"{name}: {sql_type}" for name, sql_type in fields)
        return [*fields, ("payload", f"STRUCT<{payload}>")]

    def _struct(self) -> str:
        fields = (f"{quote_identifier(name)}: {sql_type}" for name, sql_type in self.columns_of_row)
        return f"STRUCT<{', '.join(fields)}>"

    def rows(self, frame: DataFrame, hidden: Sequence[str]) -> DataFrame:
        """Return the rows of envelopes, and one row per malformed envelope. Drop tombstones."""
        parts = ", ".join(
            f"'{name}', CASE WHEN payload IS NOT NULL THEN payload.{name} ELSE {name} END"
            for name in ("before", "after", "op")
        )
        envelopes = frame.selectExpr(*hidden, f"named_struct({parts}) AS {_ENVELOPE}")
        checked = envelopes.selectExpr("*", f"{self._reason()} AS {_REASON}").where(
            f"NOT coalesce({TOMBSTONE}, false)"
        )
        changes = checked.selectExpr("*", f"posexplode({self._changes()}) AS (_tg_nth, {_CHANGE})")
        columns = [
            f"{_CHANGE}.row.{quote_identifier(name)} AS {quote_identifier(name)}"
            for name, _ in self.columns_of_row
        ]
        columns.append(f"{_CHANGE}.op AS {OP}")
        return changes.selectExpr(*columns, *(self._hidden_sql(name) for name in hidden))

    def _hidden_sql(self, name: str) -> str:
        """Return the expression of a hidden column for a change."""
        is_malformed = f"{_REASON} IS NOT NULL AND {MALFORMED_RECORD} IS NULL"
        if name == ARRIVAL_ROW:
            # The old row is before the new row.
            return f"2 * {ARRIVAL_ROW} + _tg_nth AS {ARRIVAL_ROW}"
        if name == MALFORMED_RECORD:
            text = f"to_json({_ENVELOPE})"
            record = f"CASE WHEN {is_malformed} THEN {text} ELSE {MALFORMED_RECORD} END"
            return f"{record} AS {MALFORMED_RECORD}"
        if name == MALFORMED_REASON:
            reason = f"CASE WHEN {is_malformed} THEN {_REASON} ELSE {MALFORMED_REASON} END"
            return f"{reason} AS {MALFORMED_REASON}"
        if name == MALFORMED_COLUMN:
            column = f"CASE WHEN {is_malformed} THEN NULL ELSE {MALFORMED_COLUMN} END"
            return f"{column} AS {MALFORMED_COLUMN}"
        return name

    def _reason(self) -> str:
        """Return the expression of the reason why an envelope is malformed, or NULL."""
        op, before, after = (f"{_ENVELOPE}.{name}" for name in ("op", "before", "after"))
        missing = string_literal(
            "the envelope has no before: declare a PRIMARY KEY, or make the table log old rows "
            "(REPLICA IDENTITY FULL)"
        )
        needs_before = "('d')" if self.upserts else "('u', 'd')"
        return (
            f"CASE WHEN coalesce({op} NOT IN ('c', 'r', 'u', 'd'), true) "
            "THEN 'op is not c, u, d or r' "
            f"WHEN {op} <> 'd' AND {after} IS NULL THEN 'the envelope has no after' "
            f"WHEN {op} IN {needs_before} AND {before} IS NULL THEN {missing} END"
        )

    def _changes(self) -> str:
        """Return the expression of the array of an envelope's rows with their _op."""

        def change(op: str, row: str) -> str:
            return f"named_struct('op', '{op}', 'row', {_ENVELOPE}.{row})"

        updated = change("+U", "after")
        if not self.upserts:
            updated = f"{change('-U', 'before')}, {updated}"
        return (
            f"CASE WHEN {_REASON} IS NOT NULL THEN array({change('+I', 'after')}) "
            f"WHEN {_ENVELOPE}.op = 'd' THEN array({change('-D', 'before')}) "
            f"WHEN {_ENVELOPE}.op = 'u' THEN array({updated}) "
            f"ELSE array({change('+I', 'after')}) END"
        )
