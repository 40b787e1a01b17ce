"""Records of Kafka as columns: bytes that Spark decodes, what records tell besides, what they do.

JSON and CSV are decoded as those of files are, so that the same text is the same row, and what is
not a record is a dead letter that says its topic, partition and offset. Avro comes as JSON, or with
the reason why it cannot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.columns import (
    ARRIVAL,
    ARRIVAL_FILE,
    ARRIVAL_ROW,
    BAD_COLUMN,
    BAD_REASON,
    BAD_RECORD,
    CONTROL,
    NOW,
    OP,
    PARTITION,
    RECORD_FILE,
    RECORD_LINE,
)
from tidegate.connectors.formats.lines import TEXT_BYTES
from tidegate.connectors.formats.spark_text import TextFiles
from tidegate.connectors.kafka.avro import REASON
from tidegate.connectors.kafka.reader import TOMBSTONE, metadata_column
from tidegate.sql.dialect import text_literal
from tidegate.sql.quoting import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tidegate.catalog.objects import Source

_NO_VALUE = "the record has no value, and the source no PRIMARY KEY that it could delete"


@dataclass(frozen=True)
class Records:
    """How the records of a source are decoded."""

    source: Source
    # Whether rows must say where they stood, and bad records why they are bad.
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
        """Columns of what records tell, with what that is and their types."""
        return [
            (c.name, c.metadata, str(c.type))
            for c in self.source.stored_columns
            if c.metadata is not None
        ]

    def read(self, raw: DataFrame) -> DataFrame:
        """The stored columns, _op if rows have one, and what is hidden."""
        if self.format == "raw":
            return self._finished(self._raw(raw), self._names())
        if self.format == "debezium-json":
            envelopes = Envelopes(self.record_columns, self.upserts)
            rows = envelopes.rows(self._text(raw, envelopes.columns), self._passed())
            return self._finished(rows, [*self._names(), OP])
        columns = self.text_columns
        return self._finished(self._text(raw, columns), [name for name, _ in columns])

    @property
    def text_columns(self) -> list[tuple[str, str]]:
        """What is read of the texts of records."""
        return [*self.record_columns, *([(OP, "STRING")] if self._has_op else [])]

    @property
    def record_columns(self) -> list[tuple[str, str]]:
        return [(c.name, str(c.type)) for c in self.source.record_columns]

    @property
    def _has_op(self) -> bool:
        """Whether _op is a field of records."""
        return bool(self.options["changelog"]) and not self.upserts

    def _names(self) -> list[str]:
        return [name for name, _ in self.record_columns]

    def _kept(self) -> tuple[str, ...]:
        """What is known of a record besides its text."""
        told = dict.fromkeys(metadata_column(what) for _, what, _ in self.metadata)
        judged = (REASON,) if self.format == "avro" else ()
        return (*ARRIVAL, PARTITION, TOMBSTONE, *told, *judged)

    def _passed(self) -> list[str]:
        """All that is hidden, while a record becomes rows."""
        located = [RECORD_FILE, RECORD_LINE, BAD_REASON, BAD_COLUMN] if self.located else []
        return [*self._kept(), *located, BAD_RECORD, CONTROL, NOW]

    def _text(self, raw: DataFrame, columns: Sequence[tuple[str, str]]) -> DataFrame:
        given = {
            "format": "csv" if self.format == "csv" else "json",
            "multi_line": False,
            "encoding": "utf-8",
            "header": False,
            **{name: self.options[name] for name in _TEXT_OPTIONS},
        }
        return TextFiles(given, tuple(columns), self._kept(), self.located, True).read(raw)

    def _raw(self, raw: DataFrame) -> DataFrame:
        """The one column as it is; text must be text."""
        (name, kind), *_ = self.record_columns
        text = f"CAST({TEXT_BYTES} AS {kind})"
        broken = f"NOT is_valid_utf8({text})" if kind == "STRING" else "false"
        is_bad = f"coalesce({broken}, false)"
        shown = [f"CASE WHEN NOT {TOMBSTONE} THEN {text} END AS {quoted(name)}"]
        shown += [f"CASE WHEN {is_bad} THEN CAST({TEXT_BYTES} AS STRING) END AS {BAD_RECORD}"]
        shown += [*self._kept(), CONTROL, NOW]
        if self.located:
            shown += [RECORD_FILE, RECORD_LINE]
            shown.append(f"CASE WHEN {is_bad} THEN 'not text in utf-8' END AS {BAD_REASON}")
            shown.append(f"CAST(NULL AS STRING) AS {BAD_COLUMN}")
        return raw.selectExpr(*shown)

    def _finished(self, frame: DataFrame, names: Sequence[str]) -> DataFrame:
        """Columns of metadata under their names, what a tombstone does, and what is hidden."""
        shown = [quoted(name) for name in names]
        shown += [f"{_as(what, kind)} AS {quoted(name)}" for name, what, kind in self.metadata]
        tombstone = f"coalesce({TOMBSTONE}, false)"
        if self.upserts and self.format != "debezium-json":
            shown.append(f"CASE WHEN {tombstone} THEN '-D' ELSE '+U' END AS {OP}")
        hidden = [name for name in self._passed() if name in (PARTITION, CONTROL, NOW)]
        hidden += [ARRIVAL_FILE, ARRIVAL_ROW] if self.arrival else []
        hidden += [RECORD_FILE, RECORD_LINE, BAD_COLUMN] if self.located else []
        without = self.format in ("json", "csv", "avro") and not self.upserts
        unwanted = tombstone if without else "false"
        shown.append(f"CASE WHEN {unwanted} THEN '' ELSE {BAD_RECORD} END AS {BAD_RECORD}")
        if self.located:
            why = f"coalesce({REASON}, {BAD_REASON})" if self.format == "avro" else BAD_REASON
            reason = f"CASE WHEN {unwanted} THEN {text_literal(_NO_VALUE)} ELSE {why} END"
            shown.append(f"{reason} AS {BAD_REASON}")
        return frame.selectExpr(*shown, *hidden)


_TEXT_OPTIONS = ("timestamp_format", "delimiter", "quote", "escape", "null_value")


def _as(what: str, kind: str) -> str:
    column = metadata_column(what)
    return f"CAST({column} AS STRING)" if what == "key" and kind == "STRING" else column


# ---- Debezium's envelopes: what became of a row of a table, as rows of a changelog.
#
# An envelope says in `op` what happened: c and r (a row is there), u (it is another now), d (it is
# gone), with the row as it was in `before` and as it is in `after`. It may stand by itself or, with
# its schema, in `payload`. With a PRIMARY KEY the key is enough of the old row, so `before` may be
# missing, as it is for tables that do not keep it.

_WHAT, _ROW, _OTHER = "_tg_what", "_tg_change", "_tg_envelope"


@dataclass(frozen=True)
class Envelopes:
    """How envelopes of rows with these columns become rows."""

    record: Sequence[tuple[str, str]]
    # Whether rows are known by their keys.
    upserts: bool

    @property
    def columns(self) -> list[tuple[str, str]]:
        """An envelope, and the one that may stand in it, as columns of JSON."""
        row = self._struct()
        own = [("before", row), ("after", row), ("op", "STRING")]
        inner = ", ".join(f"{name}: {kind}" for name, kind in own)
        return [*own, ("payload", f"STRUCT<{inner}>")]

    def _struct(self) -> str:
        return f"STRUCT<{', '.join(f'{quoted(name)}: {kind}' for name, kind in self.record)}>"

    def rows(self, frame: DataFrame, passed: Sequence[str]) -> DataFrame:
        """The rows of envelopes; one that cannot be used stays, and one without value goes."""
        parts = ", ".join(
            f"'{name}', CASE WHEN payload IS NOT NULL THEN payload.{name} ELSE {name} END"
            for name in ("before", "after", "op")
        )
        whole = frame.selectExpr(*passed, f"named_struct({parts}) AS {_OTHER}")
        # What is no envelope is one row, turned off.
        told = whole.selectExpr("*", f"{self._reason()} AS {_WHAT}").where(
            f"NOT coalesce({TOMBSTONE}, false)"
        )
        split = told.selectExpr("*", f"posexplode({self._changes()}) AS (_tg_nth, {_ROW})")
        shown = [f"{_ROW}.row.{quoted(name)} AS {quoted(name)}" for name, _ in self.record]
        shown.append(f"{_ROW}.op AS {OP}")
        return split.selectExpr(*shown, *(self._passed(name) for name in passed))

    def _passed(self, name: str) -> str:
        bad = f"{_WHAT} IS NOT NULL AND {BAD_RECORD} IS NULL"
        if name == ARRIVAL_ROW:
            # The old row stands before the new one.
            return f"2 * {ARRIVAL_ROW} + _tg_nth AS {ARRIVAL_ROW}"
        if name == BAD_RECORD:
            shown = f"to_json({_OTHER})"
            return f"CASE WHEN {bad} THEN {shown} ELSE {BAD_RECORD} END AS {BAD_RECORD}"
        if name == BAD_REASON:
            return f"CASE WHEN {bad} THEN {_WHAT} ELSE {BAD_REASON} END AS {BAD_REASON}"
        if name == BAD_COLUMN:
            return f"CASE WHEN {bad} THEN NULL ELSE {BAD_COLUMN} END AS {BAD_COLUMN}"
        return name

    def _reason(self) -> str:
        """Why an envelope is of no use; NULL if it is."""
        op, before, after = (f"{_OTHER}.{name}" for name in ("op", "before", "after"))
        missing = text_literal(
            "the envelope has no before: declare a PRIMARY KEY, or let the table keep it (REPLICA "
            "IDENTITY FULL)"
        )
        needs = "('d')" if self.upserts else "('u', 'd')"
        return (
            f"CASE WHEN coalesce({op} NOT IN ('c', 'r', 'u', 'd'), true) "
            "THEN 'op is not c, u, d or r' "
            f"WHEN {op} <> 'd' AND {after} IS NULL THEN 'the envelope has no after' "
            f"WHEN {op} IN {needs} AND {before} IS NULL THEN {missing} END"
        )

    def _changes(self) -> str:
        """The rows of an envelope with what they do, as an array."""

        def change(op: str, row: str) -> str:
            return f"named_struct('op', '{op}', 'row', {_OTHER}.{row})"

        updated = change("+U", "after")
        if not self.upserts:
            updated = f"{change('-U', 'before')}, {updated}"
        return (
            f"CASE WHEN {_WHAT} IS NOT NULL THEN array({change('+I', 'after')}) "
            f"WHEN {_OTHER}.op = 'd' THEN array({change('-D', 'before')}) "
            f"WHEN {_OTHER}.op = 'u' THEN array({updated}) "
            f"ELSE array({change('+I', 'after')}) END"
        )
