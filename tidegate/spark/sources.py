"""Declared sources as streaming frames: computed columns, bad rows kept apart, event time observed."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from tidegate.catalog.objects import Source
from tidegate.physical.stage_sql import OP, quoted
from tidegate.runtime.connector import BAD_RECORD
from tidegate.sql.dialect import to_sql

_OPS = ("+I", "-U", "+U", "-D")


@dataclass(frozen=True)
class SourceFrame:
    """A source in two parts: the rows a query sees, and the records it cannot use."""

    source: Source
    everything: DataFrame
    metric: str

    def good(self, observe: bool = True) -> DataFrame:
        """The usable rows; what is dropped and the event time are observed on the way."""
        frame = self.everything
        reason = bad_reason(self.source, frame)
        if reason is None:
            return frame
        if observe:
            frame = frame.observe(self.metric, *self._metrics(reason))
        columns = [quoted(column.name) for column in self.source.columns]
        columns += [OP] if self.source.options["changelog"] else []
        return frame.where(f"({reason}) IS NULL").selectExpr(*columns)

    def _metrics(self, reason: str) -> list:  # type: ignore[type-arg]
        metrics = [F.expr(f"count({reason})").alias("bad")]
        watermark = self.source.watermark
        if watermark is not None:
            metrics.append(F.expr(f"max({quoted(watermark.column)})").alias("time"))
        return metrics

    def bad(self) -> DataFrame:
        """The dead letters: source, reason, record."""
        frame = self.everything
        reason = bad_reason(self.source, frame) or "CAST(NULL AS STRING)"
        stored = ", ".join(quoted(column.name) for column in self.source.stored_columns)
        record = f"to_json(struct({stored}))"
        if BAD_RECORD in frame.columns:
            record = f"coalesce({BAD_RECORD}, {record})"
        return frame.selectExpr(
            f"'{self.source.name}' AS source", f"{reason} AS reason", f"{record} AS record"
        ).where("reason IS NOT NULL")


def source_frame(source: Source, raw: DataFrame, metric: str) -> SourceFrame:
    """The raw frame of a connector with the computed columns added, in declared order."""
    columns = []
    for column in source.columns:
        if column.computed is not None:
            columns.append(f"{to_sql(column.computed)} AS {quoted(column.name)}")
        else:
            columns.append(quoted(column.name))
    if source.options["changelog"]:
        columns.append(OP)
    if BAD_RECORD in raw.columns:
        columns.append(BAD_RECORD)
    return SourceFrame(source, raw.selectExpr(*columns), metric)


def bad_reason(source: Source, frame: DataFrame) -> str | None:
    """An expression that says why a row cannot be used, NULL for a good one; None if none can be."""
    cases = []
    if BAD_RECORD in frame.columns:
        cases.append((f"{BAD_RECORD} IS NOT NULL", "not a readable record"))
    watermark = source.watermark
    for column in source.columns:
        if column.not_null:
            cases.append((f"{quoted(column.name)} IS NULL", f"{column.name} is NULL"))
    if watermark is not None:
        time = quoted(watermark.column)
        cases.append((f"{time} IS NULL", f"the event time {watermark.column} is NULL"))
        future = source.options["max_future"]
        if future is not None:
            limit = f"timestampadd(MICROSECOND, {future}, current_timestamp())"
            cases.append((f"{time} > {limit}", f"{watermark.column} is too far in the future"))
    if source.options["changelog"]:
        known = ", ".join(f"'{op}'" for op in _OPS)
        cases.append((f"{OP} IS NULL OR {OP} NOT IN ({known})", "_op is not +I, -U, +U or -D"))
    if not cases:
        return None
    branches = " ".join(f"WHEN {test} THEN '{text}'" for test, text in cases)
    return f"CASE {branches} END"
