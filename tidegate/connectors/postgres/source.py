"""The postgres source: reads a whole table once, or new rows by an increasing column.

All tasks that read a range read in one snapshot of the database, which the driver exports and keeps
open. They see the same table, also if they are retried. Streams at different offsets read different
ranges in one epoch, so there may be several snapshots.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.columns import OP
from tidegate.connectors.base import (
    FrameBuilder,
    InputRange,
    Offset,
    ScanRequest,
    SourceContext,
    Split,
)
from tidegate.connectors.postgres.client import (
    ConnectionParameters,
    import_psycopg,
    read_table,
    translate_errors,
)
from tidegate.connectors.postgres.column_types import plain_type
from tidegate.connectors.postgres.reader import PostgresSplitReader, ReadColumn, read_columns
from tidegate.errors import RunError, did_you_mean

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# The types of increasing columns.
_INCREASING_TYPES = (
    "smallint",
    "integer",
    "bigint",
    "numeric",
    "timestamp with time zone",
    "timestamp without time zone",
)
# The minimum size of a split, in pages of 8 KiB.
_MIN_SPLIT_PAGES = 1_024
_PAGE_BYTES = 8_192


@dataclass
class _Start:
    """What the driver keeps for an offset from which streams read."""

    # The planning round in which this offset was planned last.
    planned_in: int
    # A bound that cannot be used yet: the value, and the newest transaction that may still write
    # smaller ones.
    pending_bound: tuple[str, int] | None = None
    # The connection that holds the snapshot of the planned range, and the offset after the range.
    connection: Any = None
    end: Offset | None = None

    def release(self) -> None:
        """Release the snapshot of the planned range."""
        connection, self.connection = self.connection, None
        if connection is None:
            return
        with suppress(Exception):
            # The server may notice a closed connection late.
            connection.execute("ROLLBACK")
        with suppress(Exception):
            connection.close()


class PostgresSource:
    """Reads a table. With an increasing column, the offset is the largest value that was read."""

    def __init__(self, context: SourceContext) -> None:
        self.source = context.source
        self.options = context.source.options
        self.parameters = ConnectionParameters.from_options(self.options)
        self.label = f"the source {self.source.name}"
        self.increasing: str | None = None
        # By offset. The loop plans all offsets of its streams in each round of planning.
        self._starts: dict[str, _Start] = {}
        self._round = 0
        declared = [(c.name, str(c.type)) for c in self.source.stored_columns]
        declared += [(OP, "STRING")] if self.source.carries_op else []
        with translate_errors(self.label), self.parameters.connect(self.label) as connection:
            self.schema, self.name, columns = read_columns(
                connection, self.options["table"], declared, self.label
            )
            self.columns: dict[str, ReadColumn] = {c.declared.lower(): c for c in columns}
            self._find_increasing_column(connection)

    def _find_increasing_column(self, connection: Any) -> None:
        """Find the column of the option `increasing`, which must have a suitable type."""
        option = self.options["increasing"]
        if option is None:
            return
        table = read_table(connection, self.schema, self.name)
        assert table is not None, "read_columns has found the table"
        column = table.column(option)
        if column is None:
            raise RunError(
                "TG-523",
                f"{self.label} reads by the column {option}, which the table {table.full_name} "
                "does not have",
                hint=did_you_mean(option, [c.name for c in table.columns], "columns it has"),
            )
        if plain_type(column.type) not in _INCREASING_TYPES or not column.not_null:
            why = "may be NULL" if not column.not_null else f"is {column.type}"
            raise RunError(
                "TG-523",
                f"{self.label} reads by the column {column.name}, which {why}: rows would be "
                "missed",
                hint="increasing names a NOT NULL column of numbers or timestamps, such as id.",
            )
        self.increasing = column.name

    # Planning.

    def plan_range(self, since: Offset | None, tasks: int) -> InputRange | None:
        if self.increasing is None and since is not None:
            return None
        start = self._start_of(since)
        try:
            with translate_errors(self.label):
                planned = (
                    self._plan_scan(start, tasks)
                    if self.increasing is None
                    else self._plan_new_rows(start, since, tasks)
                )
        except BaseException:
            start.release()
            raise
        start.end = planned.offset if planned is not None else None
        return planned

    def _start_of(self, since: Offset | None) -> _Start:
        """Return the start of a range, without the snapshot of its earlier plan."""
        key = json.dumps(since, sort_keys=True)
        start = self._starts.get(key)
        if start is None:
            start = self._starts[key] = _Start(self._round)
        elif start.planned_in == self._round:
            self._begin_round()
        start.release()
        start.planned_in = self._round
        return start

    def _begin_round(self) -> None:
        """Forget the offsets that were not planned in the last round: their streams are gone."""
        for key, start in list(self._starts.items()):
            if start.planned_in < self._round:
                start.release()
                del self._starts[key]
        self._round += 1

    def _plan_scan(self, start: _Start, tasks: int) -> InputRange:
        split = {"snapshot": self._export_snapshot(start)}
        pages = self._pages(start.connection)
        return InputRange({"done": True}, _splits(pages, tasks, split), size=pages * _PAGE_BYTES)

    def _plan_new_rows(self, start: _Start, since: Offset | None, tasks: int) -> InputRange | None:
        """Plan the rows after an offset, up to a value below which no row can be added."""
        after = None if since is None else since["upto"]
        upto = self._safe_bound(start, after)
        if upto is None:
            return None
        split = {"snapshot": self._export_snapshot(start), "after": after, "upto": upto}
        if after is not None:
            return InputRange({"upto": upto}, [[{**split, "position": 0}]])
        pages = self._pages(start.connection)
        return InputRange({"upto": upto}, _splits(pages, tasks, split), size=pages * _PAGE_BYTES)

    def _safe_bound(self, start: _Start, after: str | None) -> str | None:
        """Return the largest value, after all transactions that were active have ended.

        An active transaction may have inserted a smaller value without having committed yet.
        Returns None if the largest value is not new or not safe yet.
        """
        last, oldest, newest = self._largest_value(after)
        if start.pending_bound is not None:
            upto, writers = start.pending_bound
            if oldest <= writers:
                return None
            start.pending_bound = None
            return upto
        if last is None:
            return None
        if oldest == newest:
            return last
        start.pending_bound = (last, newest - 1)
        return None

    def _largest_value(self, after: str | None) -> tuple[str | None, int, int]:
        """Return the largest value after an offset and the transactions of the same snapshot.

        These are the oldest active transaction and the next one that will be assigned.
        """
        sql = import_psycopg().sql
        assert self.increasing is not None, "the source has an increasing column"
        column = sql.Identifier(self.increasing)
        condition = sql.SQL(" WHERE {} > %s").format(column) if after is not None else sql.SQL("")
        query = sql.SQL(
            "SELECT (SELECT max({})::text FROM {}{}), pg_snapshot_xmin(s)::text::bigint, "
            "pg_snapshot_xmax(s)::text::bigint FROM pg_current_snapshot() AS s"
        ).format(column, sql.Identifier(self.schema, self.name), condition)
        with self.parameters.connect(self.label) as connection:
            row = connection.execute(query, [] if after is None else [after]).fetchone()
        return row[0], row[1], row[2]

    def _export_snapshot(self, start: _Start) -> str:
        """Export a snapshot, which is held until the range is committed or planned again."""
        start.connection = self.parameters.connect(self.label)
        start.connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        return str(start.connection.execute("SELECT pg_export_snapshot()").fetchone()[0])

    def _pages(self, connection: Any) -> int:
        """Return the number of pages of the table, 0 for views and other relations."""
        row = connection.execute(
            "SELECT CASE WHEN c.relkind = 'r' THEN pg_relation_size(c.oid) / "
            "current_setting('block_size')::bigint ELSE 0 END FROM pg_class c JOIN pg_namespace n "
            "ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = %s",
            (self.schema, self.name),
        ).fetchone()
        return int(row[0])

    def on_commit(self, offset: Offset) -> None:
        for key in [key for key, start in self._starts.items() if start.end == offset]:
            self._starts.pop(key).release()

    # Reading.

    def create_reader(self, request: ScanRequest) -> PostgresSplitReader:
        columns = tuple(self.columns[name.lower()] for name, _ in request.columns)
        return PostgresSplitReader(
            self.parameters,
            self.label,
            self.schema,
            self.name,
            columns,
            self.increasing,
            request.with_arrival,
        )

    def frame(self, spark: SparkSession, request: ScanRequest, builder: FrameBuilder) -> DataFrame:
        return builder.read_frame(self.create_reader(request))

    def spark_read_frame(
        self, spark: SparkSession, request: ScanRequest, input_range: InputRange
    ) -> DataFrame:
        raise AssertionError("tasks read all rows")


def _splits(pages: int, tasks: int, split: dict[str, Any]) -> list[Split]:
    """Divide the pages of the table into splits. The last one reads to the end."""
    count = max(min(tasks, pages // _MIN_SPLIT_PAGES), 1)
    if count == 1:
        return [[{**split, "position": 0}]]
    bounds = [pages * part // count for part in range(count)]
    ends = [*bounds[1:], None]
    return [
        [{**split, "position": position, "pages": [first, end]}]
        for position, (first, end) in enumerate(zip(bounds, ends, strict=True))
    ]


def open_source(context: SourceContext) -> PostgresSource:
    return PostgresSource(context)
