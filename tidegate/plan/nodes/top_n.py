"""Top-N, and the first row of each key."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from sqlglot import exp

from tidegate.plan.nodes.base import APPEND, CHANGELOG, Key, Node, Unary, expiry
from tidegate.plan.nodes.fields import Field
from tidegate.plan.nodes.once import once
from tidegate.types import ChangelogKind


@dataclass(frozen=True, eq=False)
class TopN(Unary):
    """The first rows of each partition; `limit` None keeps all of them, sorted."""

    partition: tuple[exp.Expr, ...] = field(kw_only=True)
    order: tuple[exp.Expr, ...] = field(kw_only=True)
    limit: exp.Expr | None = field(kw_only=True)
    function: str = field(default="ROW_NUMBER", kw_only=True)
    rank_id: str | None = field(default=None, kw_only=True)
    windowed: bool = field(default=False, kw_only=True)
    ttl_us: int | None = field(default=None, kw_only=True)
    # EMIT ON WINDOW CLOSE: rows wait until the watermark makes them final.
    at_close: bool = field(default=False, kw_only=True)
    # Without an order: of each partition the rows that came last, not those that came first.
    latest: bool = field(default=False, kw_only=True)

    @property
    def keeps_one(self) -> bool:
        """Whether one row of each partition comes out, whatever its peers."""
        one = isinstance(self.limit, exp.Literal) and self.limit.name == "1"
        return one and self.function == "ROW_NUMBER"

    @property
    def first_by_time(self) -> Field | None:
        """The event time by which the first row of a partition is kept, if it is by that."""
        first = self.order[0] if self.order and self.keeps_one else None
        if not isinstance(first, exp.Ordered) or first.args.get("desc"):
            return None
        found = [item for item in self.input.fields if item.id == first.this.name]
        timed = isinstance(first.this, exp.Column) and found and found[0].on_time
        return found[0] if timed else None

    @property
    def closing_key(self) -> Field | None:
        """The column of the partition that tells from when on no row of it can come."""
        names = [part.name for part in self.partition if isinstance(part, exp.Column)]
        found = [item for item in self.input.fields if item.id in names and item.closes]
        if self.at_close and not self.windowed:
            # Rows of other times may come after the first one has.
            return self.first_by_time if self.first_by_time in found else None
        ends = [item for item in found if item.on_time]
        windows = [item for item in found if item.window and not item.window_by_clock]
        return next(iter([*ends, *windows]), None)

    @once
    def deduplicates(self) -> bool:
        """Whether the first row of each partition comes out once and stays.

        By arrival it does so at once, unless it is to wait for the end of a window; by event time
        when the watermark has passed it, if the query waits for that.
        """
        below = self.input
        if below.changelog is not APPEND or below.bounded or not self.keeps_one:
            return False
        if self.at_close:
            return not self.windowed and self.first_by_time is not None
        by_arrival = not self.order and not self.latest
        return by_arrival and not (self.windowed and self.closing_key is None)

    @once
    def changelog(self) -> ChangelogKind:
        below = self.input
        by_window = self.windowed and below.changelog is APPEND
        return APPEND if below.bounded or self.deduplicates or by_window else CHANGELOG

    @once
    def key(self) -> Key | None:
        one = self.function == "ROW_NUMBER" and self.limit is not None and self.limit.name == "1"
        columns = [part.name for part in self.partition if isinstance(part, exp.Column)]
        return tuple(columns) if one and len(columns) == len(self.partition) else None

    @once
    def state_bound(self) -> str | None:
        """Rows beyond the limit can move up if others are retracted or the limit is their own."""
        if self.deduplicates:
            until = ", until the watermark closes them" if self.closing_key is not None else ""
            return "the keys that came out" + (until or expiry(self.ttl_us))
        fixed = self.limit is not None and not self.limit.find(exp.Column)
        rows = "the first rows" if fixed and self.input.changelog is APPEND else "the rows"
        if self.windowed:
            return f"{rows} of each window until it closes"
        return f"{rows} of each partition" + expiry(self.ttl_us)

    @property
    def judges_lateness(self) -> bool:
        closes = self.deduplicates and self.closing_key is not None
        return self.windowed or self.at_close or closes

    @once
    def is_final(self) -> bool:
        return self.at_close if self.deduplicates else self.windowed or self.bounded

    @property
    def needs_watermark(self) -> bool:
        return self.judges_lateness

    @property
    def reads_clock(self) -> bool:
        return self.ttl_us is not None

    def until_close(self, by_time: bool) -> Node:
        return replace(self, at_close=self.windowed or self.first_by_time is not None)

    @property
    def kept_expressions(self) -> tuple[exp.Expr, ...] | None:
        limit = (self.limit,) if self.limit is not None else ()
        return (*self.partition, *self.order, *limit)
