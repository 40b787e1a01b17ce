"""A log for machines: one JSON object per line."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tidegate.cli.plain import SECONDS_BETWEEN_LINES
from tidegate.cli.report import json_line
from tidegate.cli.screen import cells
from tidegate.observe.status import StreamStatus
from tidegate.observe.values import json_value

_FIELDS = (
    "epoch", "rows_in", "rows_out", "rows_in_per_second", "rows_out_per_second", "watermark",
    "watermark_lag_seconds", "late_rows", "dead_letters", "lost", "behind", "state_bytes",
    "open_windows", "epoch_seconds", "error",
)  # fmt: skip


class JsonLog:
    """Writes to stdout; `clock` is there for tests."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        # By stream when something was said of it, and which epoch, state and error it had.
        self._said: dict[str, tuple[float, tuple[Any, ...]]] = {}
        self._broken = False

    def _write(self, level: str, event: str, **content: Any) -> None:
        with self._lock:
            print(json_line(level, event, **content), flush=True)

    def line(self, text: str) -> None:
        self._write("info", "message", message=text.rstrip())

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        listed = _objects(columns, rows)
        self._write("info", "table", title=title, rows=listed)

    def rows(self, stream: str, epoch: int, rows: Any) -> None:
        columns, values = cells(rows)
        listed = _objects(columns, values)
        try:
            self._write("info", "rows", stream=stream, epoch=epoch, rows=listed)
        except BrokenPipeError:
            # Raised here it would fail the pipeline; raised by `progress` it ends the command.
            self._broken = True

    def progress(self, statuses: Sequence[StreamStatus]) -> None:
        """News of each stream: epochs at most once per second, another state or error at once."""
        if self._broken:
            raise BrokenPipeError
        now = self._clock()
        for status in statuses:
            last, (epoch, *trouble) = self._said.get(status.name, (now - 1, (None, None, None)))
            news = (status.epoch, status.state, status.error)
            waited = now - last >= SECONDS_BETWEEN_LINES
            if trouble != [*news[1:]] or (waited and status.epoch != epoch):
                self._said[status.name] = (now, news)
                self._status("progress", status)

    def _status(self, event: str, status: StreamStatus) -> None:
        level = "warning" if status.error is not None else "info"
        known = {name: getattr(status, name) for name in _FIELDS}
        self._write(level, event, stream=status.name, state=status.state.value, **known)

    @contextmanager
    def working(self, message: str) -> Iterator[None]:
        self.line(message)
        yield

    def end(self, statuses: Sequence[StreamStatus]) -> None:
        for status in statuses:
            self._status("end", status)


def _objects(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(columns, map(json_value, row), strict=True)) for row in rows]
