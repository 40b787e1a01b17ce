"""The writer of postgres sinks: copies the rows of each task into a staging table.

Staging tables are ordinary tables. They must survive a crash of the server after a manifest has
referred to them, and a crash empties UNLOGGED tables. Python workers import this module, which must
not load the parser.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.columns import OP
from tidegate.connectors.postgres.client import (
    ConnectionParameters,
    cached_connection,
    import_psycopg,
    translate_errors,
)
from tidegate.connectors.postgres.column_types import BINARY, plain_type
from tidegate.errors import RunError

# ---- Encoding Arrow columns for binary COPY.
#
# A row is the number of its fields, followed by the length and the bytes of each field. The length
# of NULL is -1. Fields are written into the rows column by column.

HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TRAILER = b"\xff\xff"
# PostgreSQL counts days and microseconds from 2000. The ranges are its first and last values.
_DAYS, _MICROS = 10_957, 946_684_800_000_000
_DAY_RANGE = (-2_451_545, 2_145_031_948)
_MICRO_RANGE = (-211_813_488_000_000_000, 9_223_371_331_199_999_999)
_FIXED = {
    "bool": (pa.bool_(), ">i1"),
    "int2": (pa.int16(), ">i2"),
    "int4": (pa.int32(), ">i4"),
    "int8": (pa.int64(), ">i8"),
    "float4": (pa.float32(), ">f4"),
    "float8": (pa.float64(), ">f8"),
    "date": (pa.date32(), ">i4"),
    "timestamp": (pa.timestamp("us"), ">i8"),
    "timestamptz": (pa.timestamp("us", "UTC"), ">i8"),
}


@dataclass(frozen=True)
class _Fields:
    """The encoded fields of a column: which are not NULL, their lengths, and all bytes."""

    valid: np.ndarray
    lengths: np.ndarray
    data: np.ndarray


def binary_rows(columns: Sequence[pa.ChunkedArray], sql_types: Sequence[str], label: str) -> bytes:
    """Encode rows for columns with these PostgreSQL types, by their short names."""
    encoded = [_encode(c, sql_type, label) for c, sql_type in zip(columns, sql_types, strict=True)]
    count = len(columns[0])
    sizes = np.full(count, 2 + 4 * len(encoded), np.int64)
    for column in encoded:
        sizes += column.lengths
    ends = np.cumsum(sizes)
    out = np.empty(int(ends[-1]) if count else 0, np.uint8)
    positions = ends - sizes
    _write_fixed(out, positions, np.full(count, len(encoded), ">i2"))
    positions = positions + 2
    for column in encoded:
        _write_fixed(out, positions, np.where(column.valid, column.lengths, -1).astype(">i4"))
        _write_variable(out, positions + 4, column)
        positions = positions + 4 + column.lengths
    return out.tobytes()


def _write_fixed(out: np.ndarray, positions: np.ndarray, values: np.ndarray) -> None:
    """Write values of a fixed width at their positions."""
    width = values.dtype.itemsize
    data = np.ascontiguousarray(values).view(np.uint8).reshape(-1, width)
    for byte in range(width):
        out[positions + byte] = data[:, byte]


def _write_variable(out: np.ndarray, positions: np.ndarray, field: _Fields) -> None:
    count = len(field.data)
    if not count:
        return
    lengths = field.lengths
    first = int(lengths[field.valid][0])
    if (lengths[field.valid] == first).all():
        data = field.data.reshape(-1, first)
        starts = positions[field.valid]
        for byte in range(first):
            out[starts + byte] = data[:, byte]
        return
    begins = np.cumsum(lengths) - lengths
    out[np.repeat(positions - begins, lengths) + np.arange(count)] = field.data


def _encode(column: pa.ChunkedArray, sql_type: str, label: str) -> _Fields:
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    valid = np.asarray(array.is_valid())
    if sql_type not in _FIXED:
        return _encode_variable(array, valid)
    arrow_type, wire_type = _FIXED[sql_type]
    values = _numbers(array.drop_null().cast(arrow_type), sql_type, label).astype(wire_type)
    width = values.dtype.itemsize
    lengths = np.where(valid, width, 0).astype(np.int64)
    return _Fields(valid, lengths, values.view(np.uint8))


def _numbers(array: pa.Array, sql_type: str, label: str) -> np.ndarray:
    """Convert values without NULLs to the numbers that PostgreSQL stores."""
    if sql_type == "bool":
        return np.asarray(array.cast(pa.int8()))
    if sql_type == "date":
        days = np.asarray(array.cast(pa.int32())).astype(np.int64)
        return _checked_range(days, _DAYS, _DAY_RANGE, "a date", label)
    if sql_type.startswith("timestamp"):
        return _checked_range(
            np.asarray(array.cast(pa.int64())), _MICROS, _MICRO_RANGE, "a time", label
        )
    return np.asarray(array)


def _checked_range(
    values: np.ndarray, epoch: int, bounds: tuple[int, int], description: str, label: str
) -> np.ndarray:
    """Convert to PostgreSQL's epoch. Numbers outside of its range would mean infinity."""
    if len(values) and (values.min() < bounds[0] + epoch or values.max() > bounds[1]):
        raise RunError(
            "TG-504",
            f"{label}: {description} that PostgreSQL cannot store",
            hint="remove such values from the stream.",
        )
    return values - epoch


def _encode_variable(array: pa.Array, valid: np.ndarray) -> _Fields:
    """Encode texts and binary values, which COPY takes unchanged."""
    values = array.drop_null().cast(pa.large_binary())
    _, offsets, data = values.buffers()
    if not len(values) or data is None:
        return _Fields(valid, np.zeros(len(array), np.int64), np.empty(0, np.uint8))
    bounds = np.frombuffer(offsets, np.int64)[values.offset : values.offset + len(values) + 1]
    lengths = np.zeros(len(array), np.int64)
    lengths[valid] = np.diff(bounds)
    content = np.frombuffer(data, np.uint8)[bounds[0] : bounds[-1]]
    return _Fields(valid, lengths, content)


# ---- The writer.


@dataclass(frozen=True)
class TargetTable:
    """The table that a sink writes, and how the columns of the stream map to it."""

    schema: str
    table: str
    # For each column: its name in the stream, its name in the table, its type in the table.
    columns: tuple[tuple[str, str, str], ...]
    # The columns of the table that must not be NULL.
    not_null: tuple[str, ...]
    # Whether rows carry _op.
    has_op: bool


@dataclass(frozen=True)
class PostgresWriterFactory:
    """Opens the writers of a postgres sink. `prefix` begins the names of staging tables."""

    parameters: ConnectionParameters
    target: TargetTable
    prefix: str
    sink: str

    def open(self, stamp: str, task: int) -> PostgresWriter:
        return PostgresWriter(self, stamp)


@dataclass
class PostgresWriter:
    """Copies the rows of one task into a staging table, in one transaction.

    The table is created when the first rows are added.
    """

    factory: PostgresWriterFactory
    stamp: str
    rows: int = 0
    table: str | None = None
    _open: ExitStack = field(default_factory=ExitStack)
    _copy: Any = None
    # The short names of the column types for binary COPY; None for text COPY.
    _binary_types: list[str] | None = None

    def add(self, rows: pa.Table) -> None:
        with translate_errors(f"the sink {self.factory.sink}"):
            if self._copy is None:
                self._start_copy()
            names = [name for name, _, _ in self.factory.target.columns]
            names += [OP] if self.factory.target.has_op else []
            columns = [rows.column(name) for name in names]
            if self._binary_types is not None:
                self._copy.write(
                    binary_rows(columns, self._binary_types, f"the sink {self.factory.sink}")
                )
            else:
                for row in zip(*(column.to_pylist() for column in columns), strict=True):
                    self._copy.write_row(row)
        self.rows += rows.num_rows

    def _start_copy(self) -> None:
        target = self.factory.target
        stamp = self.stamp.replace("-", "_")
        self.table = f"{self.factory.prefix}{stamp}_{uuid.uuid4().hex[:8]}"
        connection = cached_connection(self.factory.parameters, f"the sink {self.factory.sink}")
        self._open.enter_context(connection.transaction())
        cursor = self._open.enter_context(connection.cursor())
        sql = import_psycopg().sql
        columns = [sql.Identifier(name) for _, name, _ in target.columns]
        self._create_table(cursor, columns)
        sql_types = [BINARY.get(plain_type(sql_type)) for _, _, sql_type in target.columns]
        if target.has_op:
            columns.append(sql.Identifier(OP))
            sql_types.append("text")
        statement = sql.SQL("COPY {} ({}) FROM STDIN").format(
            sql.Identifier(target.schema, self.table), sql.SQL(", ").join(columns)
        )
        binary_types = [sql_type for sql_type in sql_types if sql_type is not None]
        if len(binary_types) == len(sql_types):
            statement += sql.SQL(" (FORMAT BINARY)")
            self._binary_types = binary_types
        self._copy = self._open.enter_context(cursor.copy(statement))
        if self._binary_types is not None:
            self._copy.write(HEADER)

    def _create_table(self, cursor: Any, columns: list[Any]) -> None:
        """Create a staging table like the target.

        If the target has changed since the sink was opened, this fails, before the commit.
        """
        sql = import_psycopg().sql
        target = self.factory.target
        assert self.table is not None, "the staging table has a name"
        selected = [*columns]
        selected += (
            [sql.SQL("NULL::text AS {}").format(sql.Identifier(OP))] if target.has_op else []
        )
        staging_table = sql.Identifier(target.schema, self.table)
        cursor.execute(
            sql.SQL("CREATE TABLE {} AS SELECT {} FROM {} WITH NO DATA").format(
                staging_table,
                sql.SQL(", ").join(selected),
                sql.Identifier(target.schema, target.table),
            )
        )
        for name in target.not_null:
            change = sql.SQL("ALTER TABLE {} ALTER {} SET NOT NULL")
            cursor.execute(change.format(staging_table, sql.Identifier(name)))

    def finish(self) -> list[dict[str, Any]]:
        if self.table is None:
            return []
        with translate_errors(f"the sink {self.factory.sink}"):
            if self._binary_types is not None:
                self._copy.write(TRAILER)
            self._open.close()
        return [{"table": self.table, "rows": self.rows}]
