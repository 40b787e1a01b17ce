"""A model of windows, sessions and lateness in plain Python.

It follows from the semantics and not from the operators. A row is late or not by the watermark
before its epoch; a window [s, e) is closed for new rows when e + lateness ≤ watermark. A session is
closed or not after it has been merged with the rows of its epoch and with the open sessions. Rows
that are exactly the gap apart belong to the same session, so a session is closed when e + lateness
< watermark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.operators.harness import Query, Row, normalize_keys
from tidegate.operators.watermark import END_OF_INPUT_US

Window = tuple[int | None, int | None]
NO_WINDOW: Window = (None, None)


@dataclass(frozen=True)
class Step:
    """The rows of an epoch, and the watermark updates by origin that arrive with them."""

    rows: tuple[Row, ...]
    updates: dict[int, int]


@dataclass
class ModelResult:
    """The windows of all rows, the late rows, and the watermarks before and after each epoch."""

    assigned: list[tuple[Row, Window]] = field(default_factory=list)
    late: list[Row] = field(default_factory=list)
    previous_watermarks: list[int | None] = field(default_factory=list)
    watermarks: list[int | None] = field(default_factory=list)


def windows_of(query: Query, ts: int) -> list[Window]:
    """Return all windows that contain a time."""
    panes = query.panes
    if panes is None:
        return [NO_WINDOW]
    size, slide, offset = panes.size_us, panes.slide_us, panes.offset_us
    if panes.kind in ("TUMBLE", "CLOSING_TIME"):
        start = (ts - offset) // size * size + offset
        return [(start, start + size)]
    if panes.kind == "CUMULATE":
        start = (ts - offset) // size * size + offset
        return [(start, end) for end in range(start + slide, start + size + 1, slide) if end > ts]
    first = (ts - size - offset) // slide - 1
    starts = [number * slide + offset for number in range(first, first + size // slide + 4)]
    return [(start, start + size) for start in starts if start <= ts < start + size]


def watermarks(steps: Sequence[Step], origins: Sequence[int]) -> list[int | None]:
    """Return the watermark after each epoch: the minimum over origins, once all have sent a row."""
    by_origin: dict[int, int] = {}
    result: list[int | None] = []
    for step in steps:
        for origin, watermark_us in step.updates.items():
            by_origin[origin] = max(watermark_us, by_origin.get(origin, watermark_us))
        has_all = all(origin in by_origin for origin in origins)
        result.append(min(by_origin[origin] for origin in origins) if has_all else None)
    return result


def run_model(query: Query, steps: Sequence[Step], origins: Sequence[int]) -> ModelResult:
    """Assign the rows of all epochs to windows."""
    after = watermarks(steps, origins)
    result = ModelResult(previous_watermarks=[None, *after[:-1]], watermarks=after)
    if query.gap_us is not None:
        _SessionModel(query, result).run(steps)
        return result
    for step, previous_us in zip(steps, result.previous_watermarks, strict=True):
        for row in step.rows:
            windows = windows_of(query, row.ts)
            windows = [w for w in windows if not is_closed(w[1], previous_us, query)]
            result.assigned += [(row, window) for window in windows]
            if not windows:
                result.late.append(row)
    return result


def is_closed(end: int | None, watermark_us: int | None, query: Query) -> bool:
    return end is not None and watermark_us is not None and end + query.lateness_us <= watermark_us


class _SessionModel:
    """The open sessions of every key, as lists of their rows."""

    def __init__(self, query: Query, result: ModelResult) -> None:
        assert query.gap_us is not None
        self.query, self.result, self.gap = query, result, query.gap_us
        self.open: dict[tuple[Any, ...], list[list[Row]]] = {}

    def run(self, steps: Sequence[Step]) -> None:
        for number, step in enumerate(steps):
            self._add_rows(step.rows, self.result.previous_watermarks[number])
            self._close(self.result.watermarks[number])
        self._close(END_OF_INPUT_US + self.query.lateness_us)

    def _window(self, rows: list[Row]) -> tuple[int, int]:
        times = [row.ts for row in rows]
        return min(times), max(times) + self.gap

    def _is_closed(self, rows: list[Row], watermark_us: int | None) -> bool:
        end = self._window(rows)[1]
        return watermark_us is not None and end + self.query.lateness_us < watermark_us

    def _add_rows(self, rows: Sequence[Row], previous_us: int | None) -> None:
        """Add rows to open sessions; then retractions remove rows from them."""
        for key in {normalize_keys(row.keys) for row in rows}:
            changes = [row for row in rows if normalize_keys(row.keys) == key]
            changes = self._cancel_in_epoch(changes)
            sessions = self.open.get(key, [])
            old_rows = {id(row) for session in sessions for row in session}
            added = ([row] for row in changes if row.weight > 0)
            on_time: list[Row] = []
            for session in self._merge([*sessions, *added]):
                has_old_row = any(id(row) in old_rows for row in session)
                if not has_old_row and self._is_closed(session, previous_us):
                    self.result.late += session
                else:
                    on_time += session
            for row in changes:
                if row.weight < 0:
                    self._retract(on_time, row, previous_us)
            self.open[key] = self._merge([[row] for row in on_time])

    def _content(self, row: Row) -> str:
        """Return what identifies a row of a key: its time and the arguments of the aggregates."""
        return repr((row.ts, self.query.arguments_of(row)))

    def _cancel_in_epoch(self, rows: Sequence[Row]) -> list[Row]:
        """Remove the rows of a key that are added and retracted in the same epoch."""
        remaining: list[Row] = []
        for row in rows:
            content = self._content(row)
            opposite = [
                other
                for other in remaining
                if other.weight == -row.weight and self._content(other) == content
            ]
            if opposite:
                remaining.remove(opposite[0])
            else:
                remaining.append(row)
        return remaining

    def _retract(self, rows: list[Row], retraction: Row, previous_us: int | None) -> None:
        content = self._content(retraction)
        matches = [index for index, row in enumerate(rows) if self._content(row) == content]
        if matches:
            del rows[matches[-1]]
        elif self._is_closed([retraction], previous_us):
            self.result.late.append(retraction)

    def _merge(self, parts: list[list[Row]]) -> list[list[Row]]:
        """Merge parts that are at most the gap apart."""
        sessions: list[list[Row]] = []
        for part in sorted(parts, key=self._window):
            if sessions and self._window(part)[0] <= self._window(sessions[-1])[1]:
                sessions[-1] = [*sessions[-1], *part]
            else:
                sessions.append(part)
        return sessions

    def _close(self, watermark_us: int | None) -> None:
        for key, sessions in self.open.items():
            closed = [session for session in sessions if self._is_closed(session, watermark_us)]
            self.open[key] = [session for session in sessions if session not in closed]
            for session in closed:
                window = self._window(session)
                self.result.assigned += [(row, window) for row in session]
