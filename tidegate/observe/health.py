"""Whether streams are well, for whoever restarts processes or sends them work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tidegate.observe.status import State, StreamStatus

_READY = (State.RUNNING, State.FINISHED)


@dataclass(frozen=True)
class Health:
    """An answer to /health or /ready: whether all is well, and what is not."""

    well: bool
    problems: tuple[str, ...] = ()

    @property
    def code(self) -> int:
        return 200 if self.well else 503

    def content(self) -> dict[str, Any]:
        return {"status": "ok" if self.well else "failing", "problems": list(self.problems)}


def health(statuses: Sequence[StreamStatus]) -> Health:
    """Well unless a stream has failed: waiting for another system is no reason for a restart."""
    failed = [status for status in statuses if status.state is State.FAILED]
    return Health(not failed, tuple(map(_problem, failed)))


def readiness(statuses: Sequence[StreamStatus]) -> Health:
    """Ready if all streams run, or have finished, and none waits for another system."""
    if not statuses:
        return Health(False, ("no stream has been started yet",))
    waiting = [s for s in statuses if s.state not in _READY or s.error is not None]
    return Health(not waiting, tuple(map(_problem, waiting)))


def _problem(status: StreamStatus) -> str:
    reason = f": {status.error}" if status.error is not None else ""
    return f"{status.name} is {status.state.value}{reason}"
