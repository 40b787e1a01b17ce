"""Upserts to changes."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidegate.plan.nodes.base import CHANGELOG, Key, Unary, expiry
from tidegate.plan.nodes.once import once
from tidegate.types import ChangelogKind


@dataclass(frozen=True, eq=False)
class Normalize(Unary):
    """Turns upserts into a changelog by remembering the last row of each key."""

    key: Key = field(kw_only=True)
    # How long it is known that a key was deleted; without it, for good.
    ttl_us: int | None = field(default=None, kw_only=True)

    @once
    def changelog(self) -> ChangelogKind:
        return CHANGELOG

    @once
    def state_bound(self) -> str | None:
        return "the last row of each key, and where deleted ones stood" + expiry(self.ttl_us)
