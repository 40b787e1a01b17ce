"""What tasks do for a source of PostgreSQL. Python workers import it: it must load little."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.connectors.postgres_client import Login, driver, kept_connection, told
from tidegate.connectors.postgres_read import ReadColumn, to_arrow
from tidegate.errors import SystemAway
from tidegate.operators.arrival import ARRIVAL_FIELDS

_BATCH_ROWS = 50_000


@dataclass(frozen=True)
class RowReader:
    """Reads shares of a table in the snapshot of an epoch."""

    login: Login
    who: str
    schema_name: str
    table: str
    columns: tuple[ReadColumn, ...]
    growing: str | None
    arrival: bool

    @property
    def schema(self) -> pa.Schema:
        fields = [column.field for column in self.columns]
        if self.arrival:
            fields += ARRIVAL_FIELDS
        return pa.schema(fields)

    def read(self, share: dict[str, Any]) -> Iterator[tuple[pa.RecordBatch, int]]:
        first = 0
        for rows in self._rows(share):
            table = to_arrow(rows, self.columns, self.who)
            count = table.num_rows
            arrays = [column.combine_chunks() for column in table.columns]
            if self.arrival:
                arrays.append(pa.repeat(pa.scalar(f"{share['place']:06d}"), count))
                arrays.append(pa.array(np.arange(first, first + count)))
            first += count
            yield pa.record_batch(arrays, schema=self.schema), count

    def _rows(self, share: dict[str, Any]) -> Iterator[list[tuple[Any, ...]]]:
        with told(self.who):
            connection = kept_connection(self.login, self.who)
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            try:
                self._enter(connection, share["snapshot"])
                with connection.cursor(name="tidegate") as cursor:
                    cursor.execute(*self._query(share))
                    while rows := cursor.fetchmany(_BATCH_ROWS):
                        yield rows
            finally:
                connection.rollback()

    def _enter(self, connection: Any, snapshot: str) -> None:
        sql = driver().sql
        try:
            connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot)))
        except (driver().DataError, driver().ProgrammingError):
            # Whoever kept it lost its connection: the epoch is cut anew.
            raise SystemAway(f"{self.who}: the snapshot of this epoch is gone") from None

    def _query(self, share: dict[str, Any]) -> tuple[Any, list[Any]]:
        sql = driver().sql
        shown = sql.SQL(", ").join(column.selected("t") for column in self.columns)
        conditions, given = [sql.SQL("true")], []
        if self.growing is not None:
            own = sql.Identifier("t", self.growing)
            for sign, bound in ((">", share["after"]), ("<=", share["upto"])):
                if bound is not None:
                    conditions.append(sql.SQL(f"{{}} {sign} %s").format(own))
                    given.append(bound)
        first, end = share.get("pages") or (None, None)
        if first is not None:
            conditions.append(sql.SQL("t.ctid >= %s::tid"))
            given.append(f"({first},0)")
        if end is not None:
            conditions.append(sql.SQL("t.ctid < %s::tid"))
            given.append(f"({end},0)")
        query = sql.SQL("SELECT {} FROM {} AS t WHERE {}").format(
            shown,
            sql.Identifier(self.schema_name, self.table),
            sql.SQL(" AND ").join(conditions),
        )
        if self.growing is not None:
            query += sql.SQL(" ORDER BY {}").format(sql.Identifier("t", self.growing))
        return query, given
