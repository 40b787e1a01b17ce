"""What tasks do for a sink of PostgreSQL. Python workers import it: it must load little.

The rows of a task are copied into a table of their own. It is an ordinary one: what a manifest
names must survive a crash of the server, and UNLOGGED tables are empty after one.
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
    Login,
    cached_connection,
    import_psycopg,
    translate_errors,
)
from tidegate.connectors.postgres.column_types import BINARY, plain_type
from tidegate.errors import RunError

# ---- Rows of Arrow as bytes of PostgreSQL's binary COPY, made column by column.
#
# A row is the number of its fields, then each field as its length and its bytes; -1 is NULL. Python
# workers import this: it must load little.

HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TRAILER = b"\xff\xff"
# PostgreSQL counts from 2000; its first and last day and microsecond, so counted.
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
    """The fields of a column: which are there, their lengths, and all their bytes."""

    there: np.ndarray
    lengths: np.ndarray
    data: np.ndarray


def binary_rows(columns: Sequence[pa.ChunkedArray], kinds: Sequence[str], who: str) -> bytes:
    """The rows as COPY takes them, by the types of the table's columns."""
    fields = [_fields(c, kind, who) for c, kind in zip(columns, kinds, strict=True)]
    count = len(columns[0])
    sizes = np.full(count, 2 + 4 * len(fields), np.int64)
    for item in fields:
        sizes += item.lengths
    ends = np.cumsum(sizes)
    out = np.empty(int(ends[-1]) if count else 0, np.uint8)
    at = ends - sizes
    _put(out, at, np.full(count, len(fields), ">i2"))
    at = at + 2
    for item in fields:
        _put(out, at, np.where(item.there, item.lengths, -1).astype(">i4"))
        _put_ragged(out, at + 4, item)
        at = at + 4 + item.lengths
    return out.tobytes()


def _put(out: np.ndarray, at: np.ndarray, values: np.ndarray) -> None:
    """Values of one width, each at its place."""
    width = values.dtype.itemsize
    each = np.ascontiguousarray(values).view(np.uint8).reshape(-1, width)
    for place in range(width):
        out[at + place] = each[:, place]


def _put_ragged(out: np.ndarray, at: np.ndarray, field: _Fields) -> None:
    count = len(field.data)
    if not count:
        return
    lengths = field.lengths
    first = int(lengths[field.there][0])
    if (lengths[field.there] == first).all():
        each = field.data.reshape(-1, first)
        places = at[field.there]
        for place in range(first):
            out[places + place] = each[:, place]
        return
    begins = np.cumsum(lengths) - lengths
    out[np.repeat(at - begins, lengths) + np.arange(count)] = field.data


def _fields(column: pa.ChunkedArray, kind: str, who: str) -> _Fields:
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    there = np.asarray(array.is_valid())
    if kind not in _FIXED:
        return _variable(array, there)
    goal, wire = _FIXED[kind]
    values = _numbers(array.drop_null().cast(goal), kind, who).astype(wire)
    width = values.dtype.itemsize
    lengths = np.where(there, width, 0).astype(np.int64)
    return _Fields(there, lengths, values.view(np.uint8))


def _numbers(array: pa.Array, kind: str, who: str) -> np.ndarray:
    if kind == "bool":
        return np.asarray(array.cast(pa.int8()))
    if kind == "date":
        days = np.asarray(array.cast(pa.int32())).astype(np.int64)
        return _within(days, _DAYS, _DAY_RANGE, "a date", who)
    if kind.startswith("timestamp"):
        return _within(np.asarray(array.cast(pa.int64())), _MICROS, _MICRO_RANGE, "a time", who)
    return np.asarray(array)


def _within(
    values: np.ndarray, since: int, bounds: tuple[int, int], what: str, who: str
) -> np.ndarray:
    """Counted as PostgreSQL does; beyond its range a number would mean something else."""
    if len(values) and (values.min() < bounds[0] + since or values.max() > bounds[1]):
        raise RunError(
            "TG-504",
            f"{who}: {what} that PostgreSQL does not hold",
            hint="leave such values out of the stream.",
        )
    return values - since


def _variable(array: pa.Array, there: np.ndarray) -> _Fields:
    """Texts and bytes as they are; what is NULL has none."""
    kept = array.drop_null().cast(pa.large_binary())
    _, offsets, data = kept.buffers()
    if not len(kept) or data is None:
        return _Fields(there, np.zeros(len(array), np.int64), np.empty(0, np.uint8))
    places = np.frombuffer(offsets, np.int64)[kept.offset : kept.offset + len(kept) + 1]
    lengths = np.zeros(len(array), np.int64)
    lengths[there] = np.diff(places)
    content = np.frombuffer(data, np.uint8)[places[0] : places[-1]]
    return _Fields(there, lengths, content)


@dataclass(frozen=True)
class TargetTable:
    """The table that rows are meant for: its columns by name, and whether they may be NULL."""

    schema: str
    table: str
    # Columns of the stream, those of the table, and the types of these.
    columns: tuple[tuple[str, str, str], ...]
    not_null: tuple[str, ...]
    has_op: bool


@dataclass(frozen=True)
class PostgresWriterFactory:
    """Opens stagers in tasks; `prefix` begins the names of what they create."""

    login: Login
    goal: TargetTable
    prefix: str
    sink: str

    def open(self, stamp: str, task: int) -> PostgresWriter:
        return PostgresWriter(self, stamp)


@dataclass
class PostgresWriter:
    """The rows of one task: no rows, no table."""

    how: PostgresWriterFactory
    stamp: str
    rows: int = 0
    table: str | None = None
    _open: ExitStack = field(default_factory=ExitStack)
    _copy: Any = None
    # The types of columns as COPY takes them in bytes; None if it gets texts.
    _kinds: list[str] | None = None

    def add(self, rows: pa.Table) -> None:
        with translate_errors(f"the sink {self.how.sink}"):
            if self._copy is None:
                self._begin()
            names = [name for name, _, _ in self.how.goal.columns]
            names += [OP] if self.how.goal.has_op else []
            columns = [rows.column(name) for name in names]
            if self._kinds is not None:
                self._copy.write(binary_rows(columns, self._kinds, f"the sink {self.how.sink}"))
            else:
                for row in zip(*(column.to_pylist() for column in columns), strict=True):
                    self._copy.write_row(row)
        self.rows += rows.num_rows

    def _begin(self) -> None:
        goal = self.how.goal
        stamp = self.stamp.replace("-", "_")
        self.table = f"{self.how.prefix}{stamp}_{uuid.uuid4().hex[:8]}"
        connection = cached_connection(self.how.login, f"the sink {self.how.sink}")
        self._open.enter_context(connection.transaction())
        cursor = self._open.enter_context(connection.cursor())
        sql = import_psycopg().sql
        columns = [sql.Identifier(theirs) for _, theirs, _ in goal.columns]
        self._create(cursor, columns)
        kinds = [BINARY.get(plain_type(kind)) for _, _, kind in goal.columns]
        if goal.has_op:
            columns.append(sql.Identifier(OP))
            kinds.append("text")
        statement = sql.SQL("COPY {} ({}) FROM STDIN").format(
            sql.Identifier(goal.schema, self.table), sql.SQL(", ").join(columns)
        )
        known = [kind for kind in kinds if kind is not None]
        if len(known) == len(kinds):
            statement += sql.SQL(" (FORMAT BINARY)")
            self._kinds = known
        self._copy = self._open.enter_context(cursor.copy(statement))
        if self._kinds is not None:
            self._copy.write(HEADER)

    def _create(self, cursor: Any, columns: list[Any]) -> None:
        """A table like the one that rows are meant for: whatever that lost or changed since it was
        looked at shows here, before the epoch is decided."""
        sql = import_psycopg().sql
        goal = self.how.goal
        assert self.table is not None, "it has a name"
        wanted = [*columns]
        wanted += [sql.SQL("NULL::text AS {}").format(sql.Identifier(OP))] if goal.has_op else []
        own = sql.Identifier(goal.schema, self.table)
        cursor.execute(
            sql.SQL("CREATE TABLE {} AS SELECT {} FROM {} WITH NO DATA").format(
                own, sql.SQL(", ").join(wanted), sql.Identifier(goal.schema, goal.table)
            )
        )
        for name in goal.not_null:
            change = sql.SQL("ALTER TABLE {} ALTER {} SET NOT NULL")
            cursor.execute(change.format(own, sql.Identifier(name)))

    def finish(self) -> list[dict[str, Any]]:
        if self.table is None:
            return []
        with translate_errors(f"the sink {self.how.sink}"):
            if self._kinds is not None:
                self._copy.write(TRAILER)
            self._open.close()
        return [{"table": self.table, "rows": self.rows}]
