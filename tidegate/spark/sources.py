"""The rows of declared sources with their event time, and their malformed records."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pyspark.sql import DataFrame
from sqlglot import exp

from tidegate.catalog.objects import Column, Source
from tidegate.catalog.objects import Column as Declared
from tidegate.columns import (
    ARRIVAL,
    ARRIVAL_FILE,
    ARRIVAL_ROW,
    CONTROL,
    EVENT_TIME,
    MALFORMED_COLUMN,
    MALFORMED_REASON,
    MALFORMED_RECORD,
    NOW,
    OP,
    OPS,
    ORIGIN,
    PARTITION,
    PARTITION_SHIFT,
    RECORD_FILE,
    RECORD_LINE,
    SELECTED,
)
from tidegate.physical.job_graph import DecodedRows
from tidegate.physical.planner import ScanPlan
from tidegate.physical.stage_sql import is_failure
from tidegate.sql.dialect import own_span, string_literal, to_sql
from tidegate.sql.expressions import calls, is_volatile_call
from tidegate.sql.quoting import quote_identifier

# ---- Computed columns of sources, and detection of rows on which they fail.
#
# In ANSI mode a failing cast or division fails the job, and it would fail again after every
# restart. So each column is tried first. `explode` keeps these calls where they are written;
# elsewhere Spark extracts common subexpressions and evaluates them without the test.

# The name of the first computed column that failed on a row; NULL if none did.
FAILED = "_tg_failed"
_TRIED, _VALUES = "_tg_tried", "_tg_values"


def with_computed(source: Source, raw: DataFrame) -> DataFrame:
    """Add the computed columns, and FAILED if one of them can fail."""
    computed = [column for column in source.columns if column.computed is not None]
    fallible = [column for column in computed if _may_fail(column)]
    plain = [f"{_sql(c)} AS {quote_identifier(c.name)}" for c in computed if c not in fallible]
    if not fallible:
        return raw.selectExpr("*", *plain) if plain else raw
    tried = [f"{string_literal(c.name)}, {_failed(c)}" for c in fallible]
    frame = raw.selectExpr("*", f"explode(array(named_struct({', '.join(tried)}))) AS {_TRIED}")
    values = [
        f"{string_literal(c.name)}, "
        f"CASE WHEN NOT {_TRIED}.{quote_identifier(c.name)} THEN {_sql(c)} END"
        for c in fallible
    ]
    frame = frame.selectExpr("*", f"explode(array(named_struct({', '.join(values)}))) AS {_VALUES}")
    failed = " ".join(
        f"WHEN {_TRIED}.{quote_identifier(c.name)} THEN {string_literal(c.name)}" for c in fallible
    )
    return frame.selectExpr(
        f"* EXCEPT ({_TRIED}, {_VALUES})",
        *plain,
        *(f"{_VALUES}.{quote_identifier(c.name)} AS {quote_identifier(c.name)}" for c in fallible),
        f"CASE {failed} END AS {FAILED}",
    )


def _sql(column: Column) -> str:
    assert column.computed is not None, f"{column.name} is computed"
    return to_sql(column.computed)


def _failed(column: Column) -> str:
    """Return a condition, never NULL, that is true if the column cannot be computed."""
    kind = column.type or ""
    return is_failure(_sql(column), hashable="MAP<" not in kind and "VARIANT" not in kind)


def _may_fail(column: Column) -> bool:
    """Return True if computing a value may fail; nondeterministic expressions are excluded."""
    tree = column.computed
    if isinstance(tree, exp.Column | exp.Literal):
        return False
    return tree is not None and not any(
        is_volatile_call(name, call) or name == "PROCTIME" for name, call in calls(tree)
    )


_BAD = "_tg_bad"
# Hidden columns of readers and computed columns.
_ABOUT_RECORDS = (MALFORMED_RECORD, MALFORMED_REASON, MALFORMED_COLUMN, RECORD_FILE, RECORD_LINE)
_HIDDEN = (*_ABOUT_RECORDS, FAILED, *ARRIVAL, PARTITION)


def source_frame(source: Source, raw: DataFrame) -> DataFrame:
    """Add the computed columns to the raw frame of a connector, in declared order."""
    frame = with_computed(source, raw)
    raw_columns = {name.lower() for name in raw.columns}
    columns = [
        quote_identifier(c.name)
        for c in source.columns
        if c.computed or c.name.lower() in raw_columns
    ]
    if source.options["changelog"]:
        columns.append(OP)
    columns += [name for name in (*_HIDDEN, CONTROL, NOW) if name in frame.columns]
    return frame.selectExpr(*columns)


def scanned(scan: ScanPlan, source: Source, frame: DataFrame) -> DataFrame:
    """Return the rows of a source for a stage: its columns by id, and the hidden ones.

    A malformed record stays in the frame, not selected, so that it is counted.
    """
    rows, hidden = _checked(scan, source, frame, _origin(scan, frame))
    return rows.selectExpr(*scan.columns, *hidden, *_carried(scan, frame))


def decoded(scan: ScanPlan, source: Source, frame: DataFrame, rows: DecodedRows) -> DataFrame:
    """Return the records of a source for several scans: their columns by position, and the hidden
    ones.
    """
    origin = "0"
    if rows.partitioned and PARTITION in frame.columns:
        origin = f"shiftleft(CAST({PARTITION} AS BIGINT), {PARTITION_SHIFT})"
    checked, hidden = _checked(scan, source, frame, origin)
    columns = [
        f"{quote_identifier(name)} AS _tg_c{index}" for index, name in enumerate(rows.columns)
    ]
    carried = _carried(
        replace(scan, arrival=rows.with_arrival, has_processing_time=rows.with_now), frame
    )
    return checked.selectExpr(*columns, *hidden, *carried)


def _checked(
    scan: ScanPlan, source: Source, frame: DataFrame, origin: str
) -> tuple[DataFrame, list[str]]:
    """Return the records with a mark for malformed ones, and the SQL of the hidden columns."""
    bad = is_bad(source, frame)
    control = CONTROL if CONTROL in frame.columns else "CAST(NULL AS BINARY)"
    is_row = f"{CONTROL} IS NULL" if CONTROL in frame.columns else "true"
    if bad is not None:
        frame = frame.selectExpr("*", f"{is_row} AND ({bad}) AS {_BAD}")
        is_row = f"{is_row} AND NOT {_BAD}"
    hidden = [
        f"{origin} AS {ORIGIN}",
        f"{scan.event_time_sql(_BAD if bad is not None else None)} AS {EVENT_TIME}",
        f"{is_row} AS {SELECTED}",
        f"{control} AS {CONTROL}",
    ]
    return frame, hidden


def _origin(scan: ScanPlan, frame: DataFrame) -> str:
    """Return the SQL of the origin: the source, and the partition if it has its own watermark."""
    if not scan.partitioned or PARTITION not in frame.columns:
        return str(scan.index)
    return f"shiftleft(CAST({PARTITION} AS BIGINT), {PARTITION_SHIFT}) + {scan.index}L"


def dead_letters(scan: ScanPlan, source: Source, frame: DataFrame) -> DataFrame:
    """Return malformed records: source, reason, record, column, file and line."""
    stored = ", ".join(quote_identifier(column.name) for column in source.stored_columns)
    record = f"to_json(struct({stored}))"
    if MALFORMED_RECORD in frame.columns:
        record = f"coalesce({MALFORMED_RECORD}, {record})"
    cases = _bad_cases(source, frame)
    control = CONTROL if CONTROL in frame.columns else "CAST(NULL AS BINARY)"
    letters = frame.selectExpr(
        f"{string_literal(source.name)} AS source",
        f"{_case_sql([(case.test, case.reason) for case in cases])} AS reason",
        f"make_valid_utf8({record}) AS record",
        f"{_case_sql([(case.test, case.column) for case in cases])} AS column_name",
        _column_or_null(frame, RECORD_FILE, "file", "STRING"),
        _column_or_null(frame, RECORD_LINE, "line", "BIGINT"),
        f"{control} AS {CONTROL}",
        *_carried(scan, frame),
    ).where(f"reason IS NOT NULL OR {CONTROL} IS NOT NULL")
    hidden = [f"{scan.index} AS {ORIGIN}", f"CAST(NULL AS BIGINT) AS {EVENT_TIME}"]
    hidden += [f"{CONTROL} IS NULL AS {SELECTED}", CONTROL]
    carried = [item.rpartition(" AS ")[2] for item in _carried(scan, frame)]
    return letters.selectExpr(*scan.columns, *hidden, *carried)


def bad_reasons(source: Source, frame: DataFrame) -> DataFrame:
    """Return the reasons of malformed rows, one row for each."""
    reason = _case_sql([(case.test, case.reason) for case in _bad_cases(source, frame)])
    return frame.selectExpr(f"{reason} AS reason").where("reason IS NOT NULL")


def _carried(scan: ScanPlan, frame: DataFrame) -> list[str]:
    """Return the hidden columns for the arrival order and the processing time."""
    columns: list[str] = []
    if scan.arrival:
        has_arrival = ARRIVAL_FILE in frame.columns
        columns.append(f"{ARRIVAL_FILE if has_arrival else repr('')} AS {ARRIVAL_FILE}")
        columns.append(f"{ARRIVAL_ROW if has_arrival else '0L'} AS {ARRIVAL_ROW}")
    if scan.has_processing_time:
        columns.append(f"{NOW} AS {NOW}")
    return columns


def _case_sql(cases: list[tuple[str, str]]) -> str:
    branches = " ".join(f"WHEN {test} THEN {value}" for test, value in cases)
    return f"CAST(CASE {branches} END AS STRING)" if branches else "CAST(NULL AS STRING)"


def _column_or_null(frame: DataFrame, column: str, name: str, kind: str) -> str:
    return f"{column if column in frame.columns else f'CAST(NULL AS {kind})'} AS {name}"


@dataclass(frozen=True)
class _BadCase:
    """A condition that is never NULL, and the SQL of the reason for rows that meet it."""

    test: str
    reason: str
    column: str = "NULL"


def is_bad(source: Source, frame: DataFrame) -> str | None:
    """Return a condition, never NULL, that is true for malformed rows; None if there are none."""
    return " OR ".join(f"({case.test})" for case in _bad_cases(source, frame)) or None


def _bad_cases(source: Source, frame: DataFrame) -> list[_BadCase]:
    cases: list[_BadCase] = []
    if MALFORMED_RECORD in frame.columns:
        has_reason = MALFORMED_REASON in frame.columns
        reason = MALFORMED_REASON if has_reason else "'not a readable record'"
        cases.append(
            _BadCase(
                f"{MALFORMED_RECORD} IS NOT NULL",
                reason,
                MALFORMED_COLUMN if has_reason else "NULL",
            )
        )
    if FAILED in frame.columns:
        reasons = [
            (f"{FAILED} = {string_literal(c.name)}", _cannot_be_computed(source, c))
            for c in source.columns
            if c.computed is not None
        ]
        cases.append(_BadCase(f"{FAILED} IS NOT NULL", _case_sql(reasons), FAILED))
    keys = {name.lower() for name in source.primary_key}
    for column in source.columns:
        if column.not_null:
            case = _null(column.name, f"{column.name} is NULL")
            if keys and source.options["changelog"] and column.name.lower() not in keys:
                # A delete needs only the key.
                case = replace(case, test=f"{case.test} AND NOT ({OP} <=> '-D')")
            cases.append(case)
    watermark = source.watermark
    if watermark is not None:
        time = quote_identifier(watermark.column)
        cases.append(_null(watermark.column, f"the event time {watermark.column} is NULL"))
        future = source.options["max_future"]
        if future is not None:
            limit = f"timestampadd(MICROSECOND, {future}, current_timestamp())"
            reason = string_literal(f"{watermark.column} is too far in the future")
            cases.append(_BadCase(f"{time} > {limit}", reason, string_literal(watermark.column)))
    if source.options["changelog"]:
        known_ops = ", ".join(f"'{op}'" for op in OPS)
        test = f"{OP} IS NULL OR {OP} NOT IN ({known_ops})"
        cases.append(_BadCase(test, "'_op is not +I, -U, +U or -D'", f"'{OP}'"))
    return cases


def _null(column: str, reason: str) -> _BadCase:
    return _BadCase(
        f"{quote_identifier(column)} IS NULL", string_literal(reason), string_literal(column)
    )


def _cannot_be_computed(source: Source, column: Declared) -> str:
    """Return a reason with the expression as the user wrote it."""
    assert column.computed is not None, f"{column.name} is computed"
    span = own_span(column.computed)
    sql = source.script.text[span.start : span.end] if span else to_sql(column.computed)
    return string_literal(f"{column.name} cannot be computed: {sql}")
