"""Declared sources as streaming frames, with bad rows kept apart and event time observed."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from sqlglot import exp

from tidegate.catalog.objects import Source
from tidegate.columns import ARRIVAL, OP, OPS
from tidegate.physical.stage_sql import micros, quoted
from tidegate.runtime.connector import BAD_RECORD
from tidegate.sql.dialect import to_sql

_BAD, _KEPT, _ROW = "_tg_bad", "_tg_kept", "_tg_row_in_task"
# Of the rows a condition drops, the event time of the first ones in a task is seen, and then of
# every Nth: the watermark that status shows is never too large.
_FIRST_ROWS, _EVERY_ROW = 1_000, 128
_ROW_BITS = 2**33 - 1


@dataclass(frozen=True)
class SourceFrame:
    """A source in two parts: the rows a query sees, and the records it cannot use."""

    source: Source
    everything: DataFrame
    metric: str
    counted_by_spark: bool = True

    @property
    def can_filter(self) -> bool:
        """Whether `kept` makes a difference."""
        return self.counted_by_spark and is_bad(self.source, self.everything) is not None

    def good(self, timed: bool = True, kept: str | None = None) -> DataFrame:
        """The usable rows; what is dropped and (`timed`) the event time are noted on the way.

        Where Spark counts the rows of the source itself, the good or the bad ones are counted and
        the rest follows; the generator's rows are all counted. `kept` is what the query asks of
        its rows, where `can_filter`: it goes first, so that only rows that pass cost anything.
        """
        bad = is_bad(self.source, self.everything)
        if bad is None and self.counted_by_spark:
            return self.everything
        frame = self._whole_records()
        if kept is not None:
            frame = self._filtered_first(
                frame, f"CASE WHEN {bad} THEN NULL ELSE ({kept}) IS TRUE END"
            )
        elif self.counted_by_spark:
            frame = frame.where(f"NOT ({bad})")
            counts = [F.count(F.lit(1)).alias("good")]
            frame = frame.observe(self.metric, *counts, *(self._time("true") if timed else []))
        else:
            # As a column of its own: a metric must not ask for the time of day.
            frame = frame.selectExpr("*", f"{bad or 'false'} AS {_BAD}")
            counts = [F.count(F.lit(1)).alias("rows"), F.expr(f"count_if({_BAD})").alias("bad")]
            times = self._time(f"NOT {_BAD}") if timed else []
            frame = frame.observe(self.metric, *counts, *times).where(f"NOT {_BAD}")
        columns = [quoted(c.name) for c in self.source.columns]
        columns += [OP] if self.source.options["changelog"] else []
        columns += [name for name in ARRIVAL if name in frame.columns]
        return frame.selectExpr(*columns)

    def _filtered_first(self, frame: DataFrame, kept: str) -> DataFrame:
        """Rows that are kept; bad ones (NULL) are counted, and the time of others is sampled."""
        sampled = f"monotonically_increasing_id() & {_ROW_BITS}" if self._samples else "1L"
        frame = frame.selectExpr("*", f"{kept} AS {_KEPT}", f"{sampled} AS {_ROW}")
        some = f"{_ROW} < {_FIRST_ROWS} OR {_ROW} % {_EVERY_ROW} = 0" if self._samples else "false"
        frame = frame.where(f"{_KEPT} IS NULL OR {_KEPT} OR {some}")
        counts = [
            F.expr(f"count_if({_KEPT} IS NULL)").alias("bad"),
            F.expr(f"count_if({_KEPT})").alias("passed"),
        ]
        frame = frame.observe(self.metric, *counts, *self._time(f"{_KEPT} IS NOT NULL"))
        return frame.where(_KEPT)

    @property
    def _samples(self) -> bool:
        return self.source.watermark is not None

    def _whole_records(self) -> DataFrame:
        """Spark only notices what it cannot read in columns that it reads: refer to all of them."""
        if BAD_RECORD not in self.everything.columns:
            return self.everything
        names = [BAD_RECORD, *(c.name for c in self.source.stored_columns)]
        nulls = " + ".join(f"CAST({quoted(name)} IS NULL AS INT)" for name in names)
        return self.everything.where(f"{nulls} >= 0")

    def _time(self, is_good: str) -> list[Column]:
        watermark = self.source.watermark
        if watermark is None:
            return []
        time = quoted(watermark.column)
        if is_good != "true" and len(_bad_cases(self.source, self.everything)) > 1:
            time = f"CASE WHEN {is_good} THEN {time} END"
        return [F.expr(micros(f"max({time})")).alias("time_us")]

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
    cases = _bad_cases(source, frame)
    if not cases:
        return None
    branches = " ".join(f"WHEN {test} THEN {_text(text)}" for test, text in cases)
    return f"CASE {branches} END"


def is_bad(source: Source, frame: DataFrame) -> str | None:
    """A condition, never NULL: whether a row cannot be used; None if all are good."""
    return " OR ".join(f"({test})" for test, _ in _bad_cases(source, frame)) or None


def _bad_cases(source: Source, frame: DataFrame) -> list[tuple[str, str]]:
    cases = []
    if BAD_RECORD in frame.columns:
        cases.append((f"{BAD_RECORD} IS NOT NULL", "not a readable record"))
    for column in source.columns:
        if column.not_null:
            cases.append((f"{quoted(column.name)} IS NULL", f"{column.name} is NULL"))
    watermark = source.watermark
    if watermark is not None:
        time = quoted(watermark.column)
        cases.append((f"{time} IS NULL", f"the event time {watermark.column} is NULL"))
        future = source.options["max_future"]
        if future is not None:
            limit = f"timestampadd(MICROSECOND, {future}, current_timestamp())"
            cases.append((f"{time} > {limit}", f"{watermark.column} is too far in the future"))
    if source.options["changelog"]:
        known = ", ".join(f"'{op}'" for op in OPS)
        cases.append((f"{OP} IS NULL OR {OP} NOT IN ({known})", "_op is not +I, -U, +U or -D"))
    return cases


def _text(value: str) -> str:
    """A string literal; names may hold any character."""
    return to_sql(exp.Literal.string(value))
