"""Guard rails: a clear error before memory runs out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tidegate.errors import RunError


class Log(Protocol):
    """What keeps state in segments, in which a group may lie several times."""

    def save(self) -> None: ...

    def compact(self) -> None: ...


class Waiting(Protocol):
    """What keeps rows by time until they are due."""

    def save(self) -> None: ...

    def sizes(self) -> dict[str, int]: ...


@dataclass(frozen=True)
class Limits:
    """How much one key group of an operator may keep; None is no limit."""

    groups: int | None = None
    bytes: int | None = None

    def exceeded(self, gauges: dict[str, int]) -> bool:
        limits = ((self.groups, gauges.get("groups", 0)), (self.bytes, gauges.get("bytes", 0)))
        return any(limit is not None and kept > limit for limit, kept in limits)

    def enforce(self, operator: str, log: Log, gauges: dict[str, int]) -> None:
        """Save a log and stop if it is too large, after counting every group once."""
        log.save()
        if self.exceeded(gauges):
            log.compact()
            log.save()
        self.check(operator, gauges)

    def enforce_both(
        self, operator: str, log: Log, waiting: Waiting, gauges: dict[str, int]
    ) -> None:
        """The same where rows wait besides."""
        waiting.save()
        sizes = waiting.sizes()
        self.enforce(operator, log, gauges)
        for what, size in sizes.items():
            gauges[what] += size
        self.check(operator, gauges)

    def check(self, operator: str, gauges: dict[str, int]) -> None:
        for what, limit, setting in (
            ("groups", self.groups, "max_groups"),
            ("bytes", self.bytes, "max_state_bytes"),
        ):
            kept = gauges.get(what, 0)
            if limit is not None and kept > limit:
                raise RunError(
                    "TG-508",
                    f"the operator {operator} keeps {kept:,} {what} in one key group, and "
                    f"{limit:,} are allowed",
                    hint=f"group by fewer keys or make windows shorter, or SET {setting} = "
                    f"{_next(kept)}; nothing is lost: start again and the epoch is repeated.",
                )


NO_LIMITS = Limits()


def _next(kept: int) -> int:
    """A round number with room to spare."""
    limit = 1
    while limit < 2 * kept:
        limit *= 10
    return limit
