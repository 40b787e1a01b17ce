"""Plain text for pipes and log files: one line per epoch, no colours, no cursor."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tidegate.cli import text
from tidegate.cli.screen import cells, shown_of
from tidegate.observe.status import StreamStatus

# A stream may finish many epochs a second; a log that says so each time is no use.
SECONDS_BETWEEN_LINES = 1.0


class PlainScreen:
    """Writes to stdout; `clock` is there for tests."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._said: dict[str, tuple[float, int | None]] = {}
        self._broken = False

    def line(self, text: str) -> None:
        with self._lock:
            print(text, flush=True)

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        drawn = text.table(columns, rows)
        self.line(f"{title}\n{drawn}\n" if title else f"{drawn}\n")

    def rows(self, stream: str, epoch: int, rows: Any) -> None:
        columns, values = cells(rows)
        try:
            self.table(f"{stream}, epoch {epoch}{shown_of(rows)}", columns, values)
        except BrokenPipeError:
            # Raised here it would fail the pipeline; raised by `progress` it ends the command.
            self._broken = True

    def progress(self, statuses: Sequence[StreamStatus]) -> None:
        if self._broken:
            raise BrokenPipeError
        now = self._clock()
        for status in statuses:
            last, epoch = self._said.get(status.name, (now - SECONDS_BETWEEN_LINES, None))
            if status.epoch != epoch and now - last >= SECONDS_BETWEEN_LINES:
                self._said[status.name] = (now, status.epoch)
                self.line(f"{time.strftime('%H:%M:%S')} {progress_line(status)}")

    @contextmanager
    def working(self, message: str) -> Iterator[None]:
        """Nothing is said: the wait is no part of the output."""
        yield

    def end(self, statuses: Sequence[StreamStatus]) -> None:
        sys.stdout.flush()
        for status in statuses:
            self.line(summary_line(status))


def progress_line(status: StreamStatus) -> str:
    """What happened up to the last epoch."""
    parts = [
        f"{status.name}: epoch {status.epoch}",
        f"{text.plural(status.rows_in, 'row')} in ({text.rate(status.rows_in_per_second)}/s)",
        f"{text.plural(status.rows_out, 'row')} out ({text.rate(status.rows_out_per_second)}/s)",
    ]
    if status.progress is not None and status.progress < 1:
        parts.append(f"{text.percent(status.progress)} of the input read")
    return ", ".join(parts + _extras(status))


def summary_line(status: StreamStatus) -> str:
    """What came of a stream."""
    epoch = "no epoch" if status.epoch is None else f"epoch {status.epoch}"
    parts = [
        f"{status.name}: {status.state.value}",
        epoch,
        f"{text.plural(status.rows_in, 'row')} in",
        f"{text.plural(status.rows_out, 'row')} out",
    ]
    return ", ".join(parts + _extras(status))


def _extras(status: StreamStatus) -> list[str]:
    """What is worth a word only if there is any of it."""
    parts = []
    if status.watermark is not None:
        lag = status.live_lag_seconds
        behind = f" ({text.duration(lag)} behind)" if lag is not None else ""
        parts.append(f"watermark {text.moment(status.watermark)}{behind}")
    if status.late_rows:
        parts.append(text.plural(status.late_rows, "late row"))
    if status.dead_letters:
        parts.append(text.plural(status.dead_letters, "dead letter"))
    if status.state_bytes:
        parts.append(f"state {text.size(status.state_bytes)}")
    return parts
