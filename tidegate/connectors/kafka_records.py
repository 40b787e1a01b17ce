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
    NOW,
    OP,
    PARTITION,
    RECORD_FILE,
    RECORD_LINE,
    SIDE,
)
from tidegate.connectors.kafka_avro import REASON
from tidegate.connectors.kafka_tasks import TOMBSTONE, metadata_column
from tidegate.connectors.text_files import TextFiles
from tidegate.connectors.text_lines import TEXT_BYTES
from tidegate.physical.stage_sql import quoted
from tidegate.sql.dialect import text_literal

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
            from tidegate.connectors.kafka_debezium import Envelopes

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
        return [*self._kept(), *located, BAD_RECORD, SIDE, NOW]

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
        shown += [*self._kept(), SIDE, NOW]
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
        hidden = [name for name in self._passed() if name in (PARTITION, SIDE, NOW)]
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
