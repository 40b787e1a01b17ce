"""The steps of an epoch, in the order in which they are done.

A process may die at any of them: tests enumerate them here and see to it that it does.
"""

from __future__ import annotations

from enum import Enum


class Step(Enum):
    """What has just been done."""

    CUT = "cut"
    ORDERED = "ordered"
    RAN = "ran"
    DECIDED = "decided"
    COMMITTING = "committing"
    COMMITTED = "committed"
    SWEPT = "swept"


def reached(step: Step) -> None:
    """Nothing happens here; tests put something in its place."""
