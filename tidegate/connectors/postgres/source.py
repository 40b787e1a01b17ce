"""Tables of PostgreSQL as a source: the whole table once, or what is new by a growing column.

All tasks of an epoch read in one snapshot of the database, which the driver keeps open for them:
they see the same table, however often they run.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tidegate.columns import OP
from tidegate.connectors.base import FrameBuilder, InputRange, Offset, Read, SourceContext, Split
from tidegate.connectors.postgres.client import Login, import_psycopg, read_table, translate_errors
from tidegate.connectors.postgres.column_types import plain_type
from tidegate.connectors.postgres.reader import PostgresSplitReader, ReadColumn, read_columns
from tidegate.errors import RunError, did_you_mean

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# What can grow: of two values one is larger, and no two transactions have to share one.
_GROWING = (
    "smallint",
    "integer",
    "bigint",
    "numeric",
    "timestamp with time zone",
    "timestamp without time zone",
)
# From so many pages of 8 KiB on, tasks share a table.
_PAGES_PER_SHARE = 1_024


class PostgresSource:
    """A table that is read."""

    def __init__(self, context: SourceContext) -> None:
        self.source = context.source
        self.options = context.source.options
        self.login = Login.of(self.options)
        self.who = f"the source {self.source.name}"
        self.growing: str | None = None
        # The connection that keeps the snapshot of an epoch, and the range that waits until
        # everybody who was writing when it was seen is done: its end, and the transaction.
        self._keeping: Any = None
        self._waiting: tuple[str, int] | None = None
        kinds = [(c.name, str(c.type)) for c in self.source.stored_columns]
        kinds += [(OP, "STRING")] if self.source.carries_op else []
        with translate_errors(self.who), self.login.connect(self.who) as connection:
            found = read_columns(connection, self.options["table"], kinds, self.who)
            self.schema, self.name, columns = found
            self.columns: dict[str, ReadColumn] = {c.declared.lower(): c for c in columns}
            self._find_growing(connection)

    def _find_growing(self, connection: Any) -> None:
        wanted = self.options["increasing"]
        if wanted is None:
            return
        table = read_table(connection, self.schema, self.name)
        assert table is not None, "its columns were found"
        column = table.column(wanted)
        if column is None:
            raise RunError(
                "TG-523",
                f"{self.who} reads by the column {wanted}, which the table {table.shown} does not "
                "have",
                hint=did_you_mean(wanted, [c.name for c in table.columns], "columns it has"),
            )
        if plain_type(column.type) not in _GROWING or not column.not_null:
            why = "may be NULL" if not column.not_null else f"is {column.type}"
            raise RunError(
                "TG-523",
                f"{self.who} reads by the column {column.name}, which {why}: rows would be missed",
                hint="increasing names a NOT NULL column of numbers or timestamps, such as id.",
            )
        self.growing = column.name

    # Cutting

    def plan_range(self, since: Offset | None, tasks: int) -> InputRange | None:
        if self.growing is None and since is not None:
            return None
        with translate_errors(self.who):
            return self._scan(tasks) if self.growing is None else self._new(since, tasks)

    def _scan(self, tasks: int) -> InputRange:
        snapshot = self._snapshot()
        splits = self._spread(tasks, {"snapshot": snapshot})
        return InputRange({"done": True}, splits, size=self._size())

    def _new(self, since: Offset | None, tasks: int) -> InputRange | None:
        """Rows after an offset, up to a value below which nobody can write any more."""
        after = None if since is None else since["upto"]
        upto = self._finished(after)
        if upto is None:
            return None
        split = {"snapshot": self._snapshot(), "after": after, "upto": upto}
        splits = self._spread(tasks, split) if after is None else [[{**split, "place": 0}]]
        return InputRange({"upto": upto}, splits, size=self._size() if after is None else 0)

    def _finished(self, after: str | None) -> str | None:
        """The largest value, once all who were writing when it was seen are done.

        Whoever was writing then may have taken a smaller value and not committed it yet.
        """
        last, oldest, newest = self._last(after)
        if self._waiting is not None:
            upto, writers = self._waiting
            if oldest <= writers:
                return None
            self._waiting = None
            return upto
        if last is None:
            return None
        if oldest == newest:
            return last
        self._waiting = (last, newest - 1)
        return None

    def _last(self, after: str | None) -> tuple[str | None, int, int]:
        """The largest value after another, the oldest transaction that is not done, and the next
        one to come, all in one snapshot."""
        sql = import_psycopg().sql
        assert self.growing is not None, "it is read by a column"
        own = sql.Identifier(self.growing)
        condition = sql.SQL(" WHERE {} > %s").format(own) if after is not None else sql.SQL("")
        query = sql.SQL(
            "SELECT (SELECT max({})::text FROM {}{}), pg_snapshot_xmin(s)::text::bigint, "
            "pg_snapshot_xmax(s)::text::bigint FROM pg_current_snapshot() AS s"
        ).format(own, sql.Identifier(self.schema, self.name), condition)
        with self.login.connect(self.who) as connection:
            row = connection.execute(query, [] if after is None else [after]).fetchone()
        return row[0], row[1], row[2]

    def _snapshot(self) -> str:
        """A snapshot of now, kept until the next one."""
        self._let_go()
        connection = self.login.connect(self.who)
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        self._keeping = connection
        return str(connection.execute("SELECT pg_export_snapshot()").fetchone()[0])

    def _let_go(self) -> None:
        if self._keeping is not None:
            with suppress(Exception):
                # A server sees only later that a connection is closed.
                self._keeping.execute("ROLLBACK")
            with suppress(Exception):
                self._keeping.close()
            self._keeping = None

    def _pages(self) -> int:
        """How many pages a table has; 0 for what is no plain table."""
        row = self._keeping.execute(
            "SELECT CASE WHEN c.relkind = 'r' THEN pg_relation_size(c.oid) / "
            "current_setting('block_size')::bigint ELSE 0 END FROM pg_class c JOIN pg_namespace n "
            "ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = %s",
            (self.schema, self.name),
        ).fetchone()
        return int(row[0])

    def _size(self) -> int:
        return self._pages() * 8_192

    def _spread(self, tasks: int, split: dict[str, Any]) -> list[Split]:
        """The pages of a table over tasks; the last one reads to the end."""
        pages = self._pages()
        count = max(min(tasks, pages // _PAGES_PER_SHARE), 1)
        if count == 1:
            return [[{**split, "place": 0}]]
        bounds = [pages * part // count for part in range(count)]
        ends = [*bounds[1:], None]
        return [
            [{**split, "place": place, "pages": [first, end]}]
            for place, (first, end) in enumerate(zip(bounds, ends, strict=True))
        ]

    def on_commit(self, offset: Offset) -> None:
        self._let_go()

    # Reading

    def direct(self, read: Read) -> PostgresSplitReader:
        wanted = tuple(self.columns[name.lower()] for name, _ in read.columns)
        return PostgresSplitReader(
            self.login, self.who, self.schema, self.name, wanted, self.growing, read.arrival
        )

    def frame(self, spark: SparkSession, read: Read, builder: FrameBuilder) -> DataFrame:
        return builder(self.direct(read))

    def native_frame(self, spark: SparkSession, read: Read, input_range: InputRange) -> DataFrame:
        raise AssertionError("tasks read all rows")


def open_source(context: SourceContext) -> PostgresSource:
    return PostgresSource(context)
