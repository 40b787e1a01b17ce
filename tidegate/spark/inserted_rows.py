"""Conversion of inserted rows to Arrow, checked against the schema of their source."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from numbers import Real
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType
from sqlglot import exp

from tidegate.catalog.objects import LookupTable, Source
from tidegate.columns import OP, OPS
from tidegate.errors import Location, RunError, did_you_mean
from tidegate.spark.errors import describe
from tidegate.spark.sources import bad_reasons, source_frame
from tidegate.sql.dialect import own_span, to_sql
from tidegate.sql.quoting import quote_identifier
from tidegate.sql.statements import Insert, Script

Target = Source | LookupTable


def arrow_schema(source: Target) -> pa.Schema:
    """Return the Arrow schema of the stored columns of a source."""
    columns = [f"{quote_identifier(c.name)} {c.type}" for c in source.stored_columns]
    if source.carries_op:
        columns.append(f"{OP} STRING")
    schema = StructType.fromDDL(", ".join(columns))
    assert isinstance(schema, StructType), "a list of columns is a struct"
    return to_arrow_schema(schema, timezone="UTC")


def to_table(source: Target, rows: Any) -> pa.Table:
    """Convert dicts, tuples, Arrow data, or a pandas or polars frame to the source's schema."""
    schema = arrow_schema(source)
    rows = _as_rows(source, rows)
    columns = (
        _columns_of_table(source, rows)
        if isinstance(rows, pa.Table)
        else _columns_of_rows(source, schema, rows)
    )
    count = rows.num_rows if isinstance(rows, pa.Table) else len(rows)
    _require_known(source, schema, columns)
    arrays = [_array(source, field, columns, count) for field in schema]
    table = pa.Table.from_arrays(arrays, schema=schema)
    _require_values(source, table)
    return table


def _as_rows(source: Target, rows: Any) -> Any:
    """Return an Arrow table or a list of rows; one dict is one row."""
    if isinstance(rows, Mapping):
        return [rows]
    if isinstance(rows, pa.Table | list | tuple):
        return rows
    if isinstance(rows, pa.RecordBatch):
        return pa.Table.from_batches([rows])
    if hasattr(rows, "iloc") and hasattr(rows, "columns"):
        # A pandas frame, without its index.
        return pa.Table.from_pandas(rows, preserve_index=False)
    if hasattr(rows, "__arrow_c_stream__"):
        return pa.table(rows)
    if rows is None or isinstance(rows, str | bytes) or not isinstance(rows, Iterable):
        raise RunError(
            "TG-309",
            f"rows do not fit the source {source.name}: expected dicts, tuples, Arrow data, or a "
            f"pandas or polars frame, not {type(rows).__name__}",
            hint="a lazy frame is collected first: rows.collect()."
            if hasattr(rows, "collect")
            else None,
        )
    return list(rows)


def _columns_of_table(source: Target, table: pa.Table) -> dict[str, Any]:
    _require_once(source, table.column_names)
    return {name.lower(): table.column(name) for name in table.column_names}


def _require_once(source: Target, names: Sequence[str]) -> None:
    """Reject columns whose names differ only in case."""
    lower = [name.lower() for name in names]
    for index, name in enumerate(names):
        if lower[index] in lower[:index]:
            raise _row_error(source, f"the column {name} occurs twice")


def _columns_of_rows(source: Target, schema: pa.Schema, rows: Sequence[Any]) -> dict[str, Any]:
    columns: dict[str, list[Any]] = {}
    for index, row in enumerate(rows):
        if not isinstance(row, Mapping | list | tuple):
            raise _row_error(source, f"a row is a dict or a tuple, not {row!r}")
        if not isinstance(row, Mapping):
            if len(row) != len(schema):
                raise _row_error(source, f"a row has {len(row)} values for {len(schema)} columns")
            row = dict(zip(schema.names, row, strict=True))
        _require_once(source, list(row))
        for name in row:
            columns.setdefault(name.lower(), [None] * len(rows))
        for name, value in row.items():
            columns[name.lower()][index] = value
    return columns


def _require_known(source: Target, schema: pa.Schema, columns: Mapping[str, Any]) -> None:
    names = {name.lower() for name in schema.names}
    for name in columns:
        if name not in names:
            raise RunError(
                "TG-309",
                f"{source.name} has no column {name} to insert into",
                hint=did_you_mean(name, schema.names, f"columns of {source.name}"),
            )


def _array(source: Target, field: pa.Field, columns: Mapping[str, Any], count: int) -> Any:
    values = columns.get(field.name.lower())
    if values is None:
        return pa.nulls(count, field.type)
    try:
        if isinstance(values, list):
            return pa.array([_value(item, field.type) for item in values], type=field.type)
        if _is_text(values.type) and not _is_text(field.type):
            texts = values.to_pylist()
            return pa.array([_value(item, field.type) for item in texts], type=field.type)
        return values.cast(field.type)
    except (pa.ArrowException, ValueError, TypeError, ArithmeticError) as error:
        raise _row_error(source, f"the column {field.name} is {field.type}: {error}") from None


def _is_text(kind: pa.DataType) -> bool:
    is_view = pa.types.is_string_view(kind)
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or is_view)


def _value(value: Any, kind: pa.DataType) -> Any:
    """Convert strings to times and decimals, as JSON has neither; nothing is truncated."""
    if type(value).__name__ in ("NaTType", "NAType"):
        return None
    if isinstance(value, Mapping | list | tuple):
        return _nested(value, kind)
    whole = pa.types.is_integer(kind) or pa.types.is_temporal(kind)
    if whole and isinstance(value, Real | Decimal) and value != value // 1:
        raise ValueError(f"{value} is not a whole number")
    if isinstance(value, str):
        if pa.types.is_timestamp(kind):
            at = datetime.fromisoformat(value)
            return (
                at
                if kind.tz is None
                else at.astimezone(UTC)
                if at.tzinfo
                else at.replace(tzinfo=UTC)
            )
        if pa.types.is_date(kind):
            return date.fromisoformat(value)
        if pa.types.is_decimal(kind):
            return Decimal(value)
    if isinstance(value, datetime) and value.tzinfo is None and pa.types.is_timestamp(kind):
        return value.replace(tzinfo=UTC) if kind.tz is not None else value
    if pa.types.is_decimal(kind) and isinstance(value, int | float):
        return Decimal(str(value))
    return value


def _nested(value: Any, kind: pa.DataType) -> Any:
    """Convert the parts of a nested value; names of fields are case-insensitive."""
    if pa.types.is_list(kind) and not isinstance(value, Mapping):
        return [_value(item, kind.value_type) for item in value]
    if pa.types.is_map(kind):
        pairs = value.items() if isinstance(value, Mapping) else value
        return [(_value(k, kind.key_type), _value(v, kind.item_type)) for k, v in pairs]
    if pa.types.is_struct(kind):
        fields = [kind.field(index) for index in range(kind.num_fields)]
        if not isinstance(value, Mapping):
            value = dict(zip([field.name for field in fields], value, strict=True))
        items = {name.lower(): item for name, item in value.items()}
        unknown = sorted(set(items) - {field.name.lower() for field in fields})
        if unknown or len(items) != len(value):
            raise ValueError(f"fields that are not there once: {', '.join(unknown or value)}")
        return {f.name: _value(items.get(f.name.lower()), f.type) for f in fields}
    return value


def _require_values(source: Target, table: pa.Table) -> None:
    time = source.watermark.column.lower() if source.watermark else None
    for column in source.stored_columns:
        # A missing event time makes a malformed record, which becomes a dead letter; accept it.
        required = column.not_null and column.name.lower() != time
        if required and table.column(column.name).null_count:
            raise _row_error(source, f"the column {column.name} is NOT NULL")
    if source.carries_op and isinstance(source, LookupTable):
        for op in table.column(OP).unique().to_pylist():
            # Lookup tables do not have dead letters.
            if op not in OPS:
                raise _row_error(source, f"{OP} is one of {', '.join(OPS)}, not {op or 'NULL'}")


def _row_error(source: Target, reason: str) -> RunError:
    return RunError("TG-309", f"rows do not fit the source {source.name}: {reason}")


def rows_of_insert(
    spark: SparkSession, source: Target, statement: Insert, script: Script
) -> pa.Table:
    """Return the rows of INSERT, evaluated and cast by Spark."""
    columns = list(statement.columns) or [c.name for c in source.stored_columns]
    if not statement.columns and source.carries_op:
        columns.append(OP)
    types = {c.name.lower(): c.type for c in source.stored_columns} | {OP: "STRING"}
    kinds = [str(types[name.lower()]) for name in columns]
    try:
        frame = spark.sql(_typed_sql(statement.tree, kinds))
        if len(frame.columns) != len(columns):
            raise _row_error(
                source,
                f"{len(frame.columns)} values for {len(columns)} columns: {', '.join(columns)}",
            )
        casts = [
            f"CAST({quote_identifier(source_column)} AS {kind}) AS {quote_identifier(column)}"
            for source_column, column, kind in zip(
                _unique(frame.columns), columns, kinds, strict=True
            )
        ]
        return to_table(source, frame.toDF(*_unique(frame.columns)).selectExpr(*casts).toArrow())
    except PySparkException as error:
        raise _value_error(spark, source, statement, script, columns, kinds) or _row_error(
            source, _sentence(error)
        ) from None


def _sentence(error: PySparkException) -> str:
    return describe(error).split(" SQLSTATE:")[0]


def _typed_sql(tree: exp.Expr, kinds: Sequence[str]) -> str:
    """Return the SQL of the rows, with a cast of every value of VALUES."""
    if not isinstance(tree, exp.Values):
        return to_sql(tree)
    rows = (map(_cast, _cells(row), kinds) for row in tree.expressions)
    return "VALUES " + ", ".join(f"({', '.join(row)})" for row in rows)


def _cells(row: exp.Expr) -> list[exp.Expr]:
    return list(row.expressions) if isinstance(row, exp.Tuple) else [row]


def _cast(cell: exp.Expr, kind: str) -> str:
    return f"CAST({to_sql(cell)} AS {kind})"


def _value_error(
    spark: SparkSession,
    source: Target,
    statement: Insert,
    script: Script,
    columns: Sequence[str],
    kinds: Sequence[str],
) -> RunError | None:
    """Return the error for the first value of VALUES that does not fit its column."""
    rows = statement.tree.expressions if isinstance(statement.tree, exp.Values) else []
    for row in rows:
        for cell, name, kind in zip(_cells(row), columns, kinds, strict=True):
            try:
                spark.sql(f"SELECT {_cast(cell, kind)}").toArrow()
            except PySparkException as error:
                span = own_span(cell) or statement.target_span
                return RunError(
                    "TG-309",
                    f"{to_sql(cell)} does not fit the column {name} of {source.name}, which is "
                    f"{kind}: {_sentence(error)}",
                    location=Location(script.text, span.start, span.end, script.file),
                )
    return None


def dead_letters_of(spark: SparkSession, source: Source, table: pa.Table) -> list[str]:
    """Return the reason for each inserted row that will become a dead letter."""
    frame = source_frame(source, spark.createDataFrame(table))
    return list(bad_reasons(source, frame).toArrow().column("reason").to_pylist())


def _unique(names: Sequence[str]) -> list[str]:
    return [f"c{index}" for index, _ in enumerate(names)]
