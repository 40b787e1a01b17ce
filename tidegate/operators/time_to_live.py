"""Keys are forgotten some time after their last row, in processing time.

A log with a time to live has one more table, its first: when each key was last touched. It is
written when rows arrive, whenever what they say comes out. A row counts if it is left after those
of its epoch have cancelled out, and is not a retraction of what was forgotten.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.operators.group_kernels import HASH
from tidegate.operators.keys import merge_rows, places_of
from tidegate.operators.runs import RunLog, hashes_of, of_hashes

Ints = npt.NDArray[np.int64]
TOUCHED = "_touched"


@dataclass(frozen=True)
class TimeToLive:
    """`keys` are the columns that make up a key, besides its hash."""

    ttl_us: int
    keys: tuple[pa.Field, ...]

    @property
    def by(self) -> list[str]:
        return [HASH, *(item.name for item in self.keys)]

    @property
    def schema(self) -> pa.Schema:
        stamps = [pa.field(HASH, pa.int64()), *self.keys, pa.field(TOUCHED, pa.int64())]
        return pa.schema(stamps)

    def touches(self, tables: Sequence[pa.Table], now_us: int) -> pa.Table:
        """The keys of these rows, touched now."""
        keys = pa.concat_tables([table.select(self.by) for table in tables])
        stamps = pa.array(np.full(keys.num_rows, now_us, np.int64))
        return self.latest(keys.append_column(TOUCHED, stamps).cast(self.schema))

    def latest(self, touches: pa.Table) -> pa.Table:
        """Each key once, with its last touch."""
        if touches.num_rows <= 1:
            return touches
        return merge_rows(touches, self.by, [(TOUCHED, "max")]).cast(self.schema)

    def due(self, touches: pa.Table) -> Ints:
        """When each key is forgotten."""
        return np.asarray(touches.column(TOUCHED).to_numpy(), np.int64) + self.ttl_us

    def expired(self, log: RunLog, now_us: int) -> pa.Table:
        """The keys whose time is over."""
        return self._over(log.load(log.due_hashes(now_us))[0], now_us)

    def _over(self, touches: pa.Table, now_us: int) -> pa.Table:
        return touches.filter(pa.array(self.due(touches) <= now_us))

    def forget(self, log: RunLog, now_us: int) -> None:
        """Drop those keys and their rows, before anything is added to them."""
        tables = log.load(log.due_hashes(now_us))
        hashes = hashes_of(self._over(tables[0], now_us))
        if len(hashes):
            # Keys that live on and have the hash of one that does not.
            (touches, *rows), _ = of_hashes(tables, hashes)
            alive = touches.filter(pa.array(self.due(touches) > now_us))
            log.replace(hashes, (alive, *(self.of_keys(alive, table) for table in rows)))

    def of_keys(self, keys: pa.Table, rows: pa.Table) -> pa.Table:
        """The rows that have one of these keys."""
        return rows.filter(pa.array(self.has_key(keys, rows))) if rows.num_rows else rows

    def has_key(self, keys: pa.Table, rows: pa.Table) -> npt.NDArray[np.bool_]:
        """Which rows have one of these keys."""
        return places_of(keys, rows, self.by) >= 0
