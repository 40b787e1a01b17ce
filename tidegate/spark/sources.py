"""Declared sources as streaming frames, with bad rows kept apart and event time observed."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from tidegate.catalog.objects import Column as Declared
from tidegate.catalog.objects import Source
from tidegate.columns import (
    ARRIVAL,
    BAD_COLUMN,
    BAD_REASON,
    BAD_RECORD,
    OP,
    OPS,
    RECORD_FILE,
    RECORD_LINE,
)
from tidegate.physical.stage_sql import micros, quoted
from tidegate.spark.computed import FAILED, with_computed
from tidegate.sql.dialect import own_span, text_literal, to_sql

_BAD, _KEPT, _ROW = "_tg_bad", "_tg_kept", "_tg_row_in_task"
# What readers and computed columns tell of a row besides its columns.
_HIDDEN = (BAD_RECORD, BAD_REASON, BAD_COLUMN, RECORD_FILE, RECORD_LINE, FAILED, *ARRIVAL)
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
        frame = self.everything
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

    def _time(self, is_good: str) -> list[Column]:
        watermark = self.source.watermark
        if watermark is None:
            return []
        time = quoted(watermark.column)
        if is_good != "true" and len(_bad_cases(self.source, self.everything)) > 1:
            time = f"CASE WHEN {is_good} THEN {time} END"
        return [F.expr(micros(f"max({time})")).alias("time_us")]

    def bad(self) -> DataFrame:
        """The dead letters: source, reason, record, and the column, file and line to look at."""
        frame = self.everything
        stored = ", ".join(quoted(column.name) for column in self.source.stored_columns)
        record = f"to_json(struct({stored}))"
        if BAD_RECORD in frame.columns:
            record = f"coalesce({BAD_RECORD}, {record})"
        cases = _bad_cases(self.source, frame)
        return frame.selectExpr(
            f"{text_literal(self.source.name)} AS source",
            f"{_choice([(case.test, case.reason) for case in cases])} AS reason",
            f"make_valid_utf8({record}) AS record",
            f"{_choice([(case.test, case.column) for case in cases])} AS column_name",
            _if_there(frame, RECORD_FILE, "file", "STRING"),
            _if_there(frame, RECORD_LINE, "line", "BIGINT"),
        ).where("reason IS NOT NULL")


def _choice(cases: list[tuple[str, str]]) -> str:
    branches = " ".join(f"WHEN {test} THEN {value}" for test, value in cases)
    return f"CAST(CASE {branches} END AS STRING)" if branches else "CAST(NULL AS STRING)"


def _if_there(frame: DataFrame, column: str, name: str, kind: str) -> str:
    return f"{column if column in frame.columns else f'CAST(NULL AS {kind})'} AS {name}"


def source_frame(
    source: Source, raw: DataFrame, metric: str, counted_by_spark: bool = True
) -> SourceFrame:
    """The raw frame of a connector with the computed columns added, in declared order."""
    frame = with_computed(source, raw)
    columns = [quoted(column.name) for column in source.columns]
    if source.options["changelog"]:
        columns.append(OP)
    columns += [name for name in _HIDDEN if name in frame.columns]
    if columns != [quoted(name) for name in frame.columns]:
        frame = frame.selectExpr(*columns)
    return SourceFrame(source, frame, metric, counted_by_spark)


@dataclass(frozen=True)
class _BadCase:
    """A condition that is never NULL, and SQL for what to say of a row that meets it."""

    test: str
    reason: str
    column: str = "NULL"


def is_bad(source: Source, frame: DataFrame) -> str | None:
    """A condition, never NULL: whether a row cannot be used; None if all are good."""
    return " OR ".join(f"({case.test})" for case in _bad_cases(source, frame)) or None


def _bad_cases(source: Source, frame: DataFrame) -> list[_BadCase]:
    cases: list[_BadCase] = []
    if BAD_RECORD in frame.columns:
        known = BAD_REASON in frame.columns
        reason = BAD_REASON if known else "'not a readable record'"
        cases.append(_BadCase(f"{BAD_RECORD} IS NOT NULL", reason, BAD_COLUMN if known else "NULL"))
    if FAILED in frame.columns:
        reasons = [
            (f"{FAILED} = {text_literal(c.name)}", _cannot_be_computed(source, c))
            for c in source.columns
            if c.computed is not None
        ]
        cases.append(_BadCase(f"{FAILED} IS NOT NULL", _choice(reasons), FAILED))
    for column in source.columns:
        if column.not_null:
            cases.append(_null(column.name, f"{column.name} is NULL"))
    watermark = source.watermark
    if watermark is not None:
        time = quoted(watermark.column)
        cases.append(_null(watermark.column, f"the event time {watermark.column} is NULL"))
        future = source.options["max_future"]
        if future is not None:
            limit = f"timestampadd(MICROSECOND, {future}, current_timestamp())"
            reason = text_literal(f"{watermark.column} is too far in the future")
            cases.append(_BadCase(f"{time} > {limit}", reason, text_literal(watermark.column)))
    if source.options["changelog"]:
        known_ops = ", ".join(f"'{op}'" for op in OPS)
        test = f"{OP} IS NULL OR {OP} NOT IN ({known_ops})"
        cases.append(_BadCase(test, "'_op is not +I, -U, +U or -D'", f"'{OP}'"))
    return cases


def _null(column: str, reason: str) -> _BadCase:
    return _BadCase(f"{quoted(column)} IS NULL", text_literal(reason), text_literal(column))


def _cannot_be_computed(source: Source, column: Declared) -> str:
    """A reason with the expression as the user wrote it."""
    assert column.computed is not None, f"{column.name} is computed"
    span = own_span(column.computed)
    sql = source.origin.text[span.start : span.end] if span else to_sql(column.computed)
    return text_literal(f"{column.name} cannot be computed: {sql}")
