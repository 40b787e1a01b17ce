"""How a case ended."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Verdict(Enum):
    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Outcome:
    """The verdict on a case: `reason` is one line, `detail` a diff or an error in full."""

    name: str
    verdict: Verdict
    seconds: float = 0.0
    reason: str | None = None
    detail: str | None = None
    is_diff: bool = False

    def __post_init__(self) -> None:
        assert self.verdict is Verdict.PASSED or self.reason, "a verdict other than passed says why"
        assert self.reason is None or "\n" not in self.reason, "a reason is one line"

    @property
    def passed(self) -> bool:
        return self.verdict is Verdict.PASSED


class Mismatch(Exception):
    """What came out is not what the case expects."""

    def __init__(self, reason: str, detail: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.detail = detail
