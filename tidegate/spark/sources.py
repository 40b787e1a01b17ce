"""Declared sources as streaming frames, with bad rows kept apart and event time observed."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from sqlglot import exp

from tidegate.catalog.objects import Source
from tidegate.physical.stage_sql import OP, quoted
from tidegate.runtime.connector import ARRIVAL, BAD_RECORD
from tidegate.sql.dialect import to_sql

_OPS = ("+I", "-U", "+U", "-D")


@dataclass(frozen=True)
class SourceFrame:
    """A source in two parts: the rows a query sees, and the records it cannot use."""

    source: Source
    everything: DataFrame
    metric: str
    counted_by_spark: bool = True

    def good(self, timed: bool = True) -> DataFrame:
        """The usable rows; what is dropped and (`timed`) the event time are noted on the way.

        Where Spark counts the rows of the source itself, the good ones are counted behind the
        filter and the rest follows; the generator's rows are counted before it.
        """
        reason = bad_reason(self.source, self.everything)
        if reason is None and self.counted_by_spark:
            return self.everything
        frame = self._whole_records()
        if not self.counted_by_spark:
            frame = frame.observe(self.metric, *self._counts_before(reason, timed))
        if reason is not None:
            frame = frame.where(f"({reason}) IS NULL")
            if self.counted_by_spark:
                frame = frame.observe(self.metric, *self._counts_behind(timed))
        columns = [quoted(c.name) for c in self.source.columns]
        columns += [OP] if self.source.options["changelog"] else []
        columns += [name for name in ARRIVAL if name in frame.columns]
        return frame.selectExpr(*columns)

    def _whole_records(self) -> DataFrame:
        """Spark only notices what it cannot read in columns that it reads: refer to all of them."""
        if BAD_RECORD not in self.everything.columns:
            return self.everything
        names = [BAD_RECORD, *(c.name for c in self.source.stored_columns)]
        nulls = " + ".join(f"CAST({quoted(name)} IS NULL AS INT)" for name in names)
        return self.everything.where(f"{nulls} >= 0")

    def _counts_behind(self, timed: bool) -> list[Column]:
        return [F.count(F.lit(1)).alias("good"), *(self._time("true") if timed else [])]

    def _counts_before(self, reason: str | None, timed: bool) -> list[Column]:
        is_good = f"({reason}) IS NULL" if reason is not None else "true"
        return [
            F.count(F.lit(1)).alias("rows"),
            F.expr(f"count_if({is_good})").alias("good"),
            *(self._time(is_good) if timed else []),
        ]

    def _time(self, is_good: str) -> list[Column]:
        watermark = self.source.watermark
        if watermark is None:
            return []
        time = quoted(watermark.column)
        if self.source.options["max_future"] is not None and is_good != "true":
            time = f"CASE WHEN {is_good} THEN {time} END"
        return [F.expr(f"unix_micros(CAST(max({time}) AS TIMESTAMP))").alias("time_us")]

    def bad(self) -> DataFrame:
        """The dead letters: source, reason, record."""
        frame = self.everything
        reason = bad_reason(self.source, frame) or "CAST(NULL AS STRING)"
        stored = ", ".join(quoted(column.name) for column in self.source.stored_columns)
        record = f"to_json(struct({stored}))"
        if BAD_RECORD in frame.columns:
            record = f"coalesce({BAD_RECORD}, {record})"
        return frame.selectExpr(
            f"{_text(self.source.name)} AS source",
            f"{reason} AS reason",
            f"make_valid_utf8({record}) AS record",
        ).where("reason IS NOT NULL")


def source_frame(
    source: Source, raw: DataFrame, metric: str, counted_by_spark: bool = True
) -> SourceFrame:
    """The raw frame of a connector with the computed columns added, in declared order."""
    columns = []
    for column in source.columns:
        if column.computed is not None:
            columns.append(f"{to_sql(column.computed)} AS {quoted(column.name)}")
        else:
            columns.append(quoted(column.name))
    if source.options["changelog"]:
        columns.append(OP)
    columns += [name for name in (BAD_RECORD, *ARRIVAL) if name in raw.columns]
    if columns == [quoted(name) for name in raw.columns]:
        return SourceFrame(source, raw, metric, counted_by_spark)
    return SourceFrame(source, raw.selectExpr(*columns), metric, counted_by_spark)


def bad_reason(source: Source, frame: DataFrame) -> str | None:
    """An expression: why a row cannot be used, NULL for a good one; None if all are good."""
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
    branches = " ".join(f"WHEN {test} THEN {_text(text)}" for test, text in cases)
    return f"CASE {branches} END"


def _text(value: str) -> str:
    """A string literal; names may hold any character."""
    return to_sql(exp.Literal.string(value))
