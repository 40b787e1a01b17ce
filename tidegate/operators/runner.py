"""One epoch of one key group: load, move the clock, step, save."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tidegate.operators.operator import EpochTime, KeyGroupState, Operator, StepOutput, Tables
from tidegate.operators.watermark import END_US, Clock, Origin, WatermarkUpdate, newest
from tidegate.state import codec
from tidegate.state.state_file import StateBackend

_HEAD = "head"
_LENGTH = struct.Struct("<I8s")
# How often the clock is looked at where something waits for it.
_LOOK_US = 1_000_000
Report = dict[str, Any]


@dataclass(frozen=True)
class EpochResult:
    """Rows out, the operator's own tick, and numbers to show."""

    output: StepOutput
    update: WatermarkUpdate | None
    report: Report


@dataclass(frozen=True)
class Runner:
    """Runs an operator; `id` is also the origin of the ticks it hands on."""

    id: int
    operator: Operator
    ports: tuple[tuple[Origin, ...], ...]
    # Windows of processing time: the clock of the epochs takes the place of the watermark.
    by_processing_time: bool = False
    # How far behind the watermark the times of rows can be that come out after it.
    output_watermark_delay_us: int = 0
    # What the state means: a canonical text of the operator and of everything below it.
    canonical_form: str = ""

    @cached_property
    def fingerprint(self) -> bytes:
        """What the state means and how it is stored, in eight bytes."""
        return codec.fingerprint(
            self.operator.name, self.canonical_form, *self.operator.stored_as()
        )

    def run(
        self,
        backend: StateBackend,
        inputs: Sequence[Sequence[Tables]],
        updates: Sequence[WatermarkUpdate],
        now_us: int | None,
        key_group: int = 0,
    ) -> EpochResult:
        """Step once. Nothing but `backend` is remembered."""
        clock, state, discarded = self._load(backend, key_group == 0)
        before = self._mark(clock)
        clock.step(newest(updates), now_us)
        mark = self._mark(clock)
        epoch_time = EpochTime(before, mark, clock.now_us)
        output = self.operator.step(state, [list(parts) for parts in inputs], epoch_time)
        self._save(backend, clock, state)
        update = (
            None if mark is None else WatermarkUpdate(self.id, 0, self._handed_on(mark), clock.idle)
        )
        report = {
            "operator": self.operator.name,
            "watermark_us": mark,
            "late_rows": state.late_rows,
            "discarded": int(discarded or state.meta.get("discarded", 0)),
            "wake_us": self._wake_us(clock, state),
            **state.gauges,
        }
        return EpochResult(output, update, report)

    def _wake_us(self, clock: Clock, state: KeyGroupState) -> int | None:
        """When an epoch is wanted though no rows came."""
        if clock.watermark_us == END_US:
            return None
        moments = [clock.idle_at_us(), state.wake_us]
        if self.by_processing_time and state.gauges.get("rows", 0):
            # Windows of processing time close on a grid; where there is none, look now and then.
            panes = getattr(self.operator, "panes", None)
            width = panes.width_us if panes is not None and panes.width_us > 1 else _LOOK_US
            offset = panes.offset_us if panes is not None else 0
            moments.append(clock.now_us - (clock.now_us - offset) % width + width)
        return min((epoch_time for epoch_time in moments if epoch_time is not None), default=None)

    def _mark(self, clock: Clock) -> int | None:
        if not self.by_processing_time or clock.watermark_us == END_US:
            return clock.watermark_us
        return clock.now_us or None

    def _handed_on(self, mark: int) -> int:
        return mark if mark == END_US else mark - self.output_watermark_delay_us

    def _load(self, backend: StateBackend, first: bool) -> tuple[Clock, KeyGroupState, bool]:
        """The head outlives a change of the operator: the watermark must not go back with it."""
        own = self.fingerprint
        state = KeyGroupState(backend, own, first)
        stored = backend.get(_HEAD, b"")
        if stored is None:
            return Clock(self.ports), state, False
        payload = memoryview(stored)
        length, written_by = _LENGTH.unpack_from(payload)
        place = _LENGTH.size
        clock = Clock.from_bytes(self.ports, bytes(payload[place : place + length]))
        if written_by == own:
            state.from_bytes(payload[place + length :])
            return clock, state, False
        backend.clear()
        state.meta["discarded"] = 1
        return clock, state, True

    def stored_names(self, backend: StateBackend) -> list[str]:
        """What is stored in the head besides the clock and the meta, by name."""
        _, state, _ = self._load(backend, True)
        return [full.partition(b"\0")[0].decode() for full in state.inline]

    def _save(self, backend: StateBackend, clock: Clock, state: KeyGroupState) -> None:
        times = clock.to_bytes()
        handle = _LENGTH.pack(len(times), state.fingerprint) + times + state.to_bytes()
        backend.put(_HEAD, b"", handle)
