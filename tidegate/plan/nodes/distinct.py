"""SELECT DISTINCT."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tidegate.plan.nodes.base import APPEND, CHANGELOG, Key, Node, Unary, rows_kept
from tidegate.plan.nodes.once import once
from tidegate.types import ChangelogKind


@dataclass(frozen=True, eq=False)
class Distinct(Unary):
    """Each row once, as soon as it comes; `at_close`: when the watermark has passed its time."""

    ttl_us: int | None = field(default=None, kw_only=True)
    at_close: bool = field(default=False, kw_only=True)

    @property
    def has_time(self) -> bool:
        """Whether the watermark says when no more rows equal to one can come."""
        return any(item.closes for item in self.fields)

    @property
    def timed(self) -> bool:
        """Whether the watermark says when a row is forgotten; else a time to live, or nothing."""
        return self.has_time and (self.ttl_us is None or self.at_close)

    @property
    def by_clock(self) -> bool:
        return any(item.window_by_clock for item in self.fields)

    @once
    def changelog(self) -> ChangelogKind:
        return APPEND if self.input.changelog is APPEND else CHANGELOG

    @once
    def key(self) -> Key | None:
        """Where the old row of a key goes and the new one comes, no key tells which stays."""
        return self.input.key if self.input.changelog is APPEND else None

    @once
    def state_bound(self) -> str | None:
        return rows_kept(self, self.ttl_us)

    @property
    def judges_lateness(self) -> bool:
        return self.timed and not self.by_clock

    @once
    def is_final(self) -> bool:
        return self.at_close or self.bounded or self.input.is_final

    @property
    def needs_watermark(self) -> bool:
        return self.ttl_us is None and self.has_time

    @property
    def reads_clock(self) -> bool:
        return self.ttl_us is not None or self.by_clock

    def until_close(self, by_time: bool) -> Node:
        if self.has_time:
            return replace(self, at_close=True)
        return self.with_inputs(self.input.until_close(by_time))
