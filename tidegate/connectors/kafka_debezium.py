"""Debezium's envelopes: what became of a row of a table, as rows of a changelog.

An envelope says in `op` what happened: c and r (a row is there), u (it is another now), d (it is
gone), with the row as it was in `before` and as it is in `after`. It may stand by itself or, with
its schema, in `payload`. With a PRIMARY KEY the key is enough of the old row, so `before` may be
missing, as it is for tables that do not keep it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidegate.columns import ARRIVAL_ROW, BAD_COLUMN, BAD_REASON, BAD_RECORD, OP
from tidegate.connectors.kafka_tasks import TOMBSTONE
from tidegate.physical.stage_sql import quoted
from tidegate.sql.dialect import text_literal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

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
