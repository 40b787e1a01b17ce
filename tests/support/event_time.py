"""Event times and rows with an event time, relative to a fixed start."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

START = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    """Return the time a number of seconds after the start."""
    return START + timedelta(seconds=seconds)


def row(k: str, v: int, seconds: float) -> dict[str, Any]:
    """Return a row with a key, a value and an event time."""
    return {"k": k, "v": v, "ts": at(seconds)}
