"""Runs one epoch of an operator in one key group: load, advance the watermark, step, save."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tidegate.operators.operator import KeyGroupState, Operator, StepOutput, Tables, TimeProgress
from tidegate.operators.watermark import (
    END_OF_INPUT_US,
    Origin,
    WatermarkTracker,
    WatermarkUpdate,
    latest_updates,
)
from tidegate.state import codec
from tidegate.state.state_file import StateBackend

# The key of the header: the watermarks, the operator's fingerprint and the small state.
_HEADER_KEY = "header"
_HEADER = struct.Struct("<I8s")
# The interval of the processing-time timer of operators in processing time that have no windows.
_POLL_US = 1_000_000
Report = dict[str, Any]


@dataclass(frozen=True)
class KeyGroupResult:
    """The result of an epoch in one key group: rows, the operator's watermark update, a report."""

    output: StepOutput
    update: WatermarkUpdate | None
    report: Report


@dataclass(frozen=True)
class OperatorRunner:
    """Runs the epochs of an operator. Its watermark updates have the origin `origin_id`."""

    origin_id: int
    operator: Operator
    ports: tuple[tuple[Origin, ...], ...]
    # True for windows in processing time: the processing time of the epoch is the watermark.
    by_processing_time: bool = False
    # How far behind the watermark the event times of later output rows can be.
    output_watermark_delay_us: int = 0
    # A canonical text of the operator and of everything upstream: it identifies the state.
    canonical_form: str = ""

    @cached_property
    def fingerprint(self) -> bytes:
        """The eight bytes that identify the meaning and the format of the state."""
        return codec.fingerprint(
            self.operator.name, self.canonical_form, *self.operator.state_format()
        )

    def run_epoch(
        self,
        backend: StateBackend,
        inputs: Sequence[Sequence[Tables]],
        updates: Sequence[WatermarkUpdate],
        now_us: int | None,
        key_group: int = 0,
    ) -> KeyGroupResult:
        """Run one epoch in one key group. All state is in `backend`."""
        tracker, state, discarded = self._load(backend, key_group == 0)
        previous_us = self._watermark_us(tracker)
        tracker.advance(latest_updates(updates), now_us)
        watermark_us = self._watermark_us(tracker)
        progress = TimeProgress(previous_us, watermark_us, tracker.now_us)
        output = self.operator.step(state, [list(parts) for parts in inputs], progress)
        self._save(backend, tracker, state)
        update = None
        if watermark_us is not None:
            delay_us = 0 if watermark_us == END_OF_INPUT_US else self.output_watermark_delay_us
            update = WatermarkUpdate(self.origin_id, 0, watermark_us - delay_us, tracker.idle)
        report = {
            "operator": self.operator.name,
            "watermark_us": watermark_us,
            "late_rows": state.late_rows,
            "discarded": int(discarded or state.meta.get("discarded", 0)),
            "timer_us": self._timer_us(tracker, state),
            **state.metrics,
        }
        return KeyGroupResult(output, update, report)

    def _timer_us(self, tracker: WatermarkTracker, state: KeyGroupState) -> int | None:
        """Return the processing time at which an epoch must run even if no rows arrive."""
        if tracker.watermark_us == END_OF_INPUT_US:
            return None
        times = [tracker.next_idle_us(), state.timer_us]
        if self.by_processing_time and state.metrics.get("rows", 0):
            # Windows in processing time close at multiples of the pane; others have to poll.
            panes = self.operator.panes
            width = panes.width_us if panes is not None and panes.width_us > 1 else _POLL_US
            offset = panes.offset_us if panes is not None else 0
            times.append(tracker.now_us - (tracker.now_us - offset) % width + width)
        return min((time for time in times if time is not None), default=None)

    def _watermark_us(self, tracker: WatermarkTracker) -> int | None:
        if not self.by_processing_time or tracker.watermark_us == END_OF_INPUT_US:
            return tracker.watermark_us
        return tracker.now_us or None

    def _load(
        self, backend: StateBackend, first: bool
    ) -> tuple[WatermarkTracker, KeyGroupState, bool]:
        """Load the watermarks and the state, and return whether old state was discarded.

        State of another fingerprint is discarded. The watermarks are kept in any case, because a
        watermark must not go back.
        """
        state = KeyGroupState(backend, self.fingerprint, first)
        stored = backend.get(_HEADER_KEY, b"")
        if stored is None:
            return WatermarkTracker(self.ports), state, False
        payload = memoryview(stored)
        length, fingerprint = _HEADER.unpack_from(payload)
        start = _HEADER.size
        tracker = WatermarkTracker.from_bytes(self.ports, bytes(payload[start : start + length]))
        if fingerprint == self.fingerprint:
            state.from_bytes(payload[start + length :])
            return tracker, state, False
        backend.clear()
        state.meta["discarded"] = 1
        return tracker, state, True

    def _save(self, backend: StateBackend, tracker: WatermarkTracker, state: KeyGroupState) -> None:
        watermarks = tracker.to_bytes()
        header = _HEADER.pack(len(watermarks), state.fingerprint) + watermarks + state.to_bytes()
        backend.put(_HEADER_KEY, b"", header)
