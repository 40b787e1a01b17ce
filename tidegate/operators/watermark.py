"""The watermark of an operator, worked out by every key group from ticks that reach all of them.

An *origin* is where time comes from: a source, or another operator. A tick says how far one
partition of an origin is. Because every key group gets the same ticks in the same epoch, all of
them hold the same watermark, without asking anybody; a replayed epoch gives the same again.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

# The watermark after the last row of an input that has ended.
END_US = 2**63 - 1
# The mark of a partition that is there and has sent no row yet: it holds the watermark back.
UNHEARD_US = -(2**63)
_TICK = struct.Struct("<iiqB")
_JSON = json.JSONEncoder(separators=(",", ":"))


@dataclass(frozen=True)
class WatermarkUpdate:
    """No row of this partition of this origin comes any more with a time before `mark_us`."""

    origin: int
    partition: int
    mark_us: int
    idle: bool = False


def encode_updates(updates: Iterable[WatermarkUpdate]) -> bytes:
    return b"".join(_TICK.pack(t.origin, t.partition, t.mark_us, t.idle) for t in updates)


def decode_updates(data: bytes | memoryview) -> list[WatermarkUpdate]:
    return [WatermarkUpdate(o, p, mark, bool(idle)) for o, p, mark, idle in _TICK.iter_unpack(data)]


def newest(updates: Iterable[WatermarkUpdate]) -> list[WatermarkUpdate]:
    """One tick per partition: the furthest."""
    best: dict[tuple[int, int], WatermarkUpdate] = {}
    for update in updates:
        known = best.get((update.origin, update.partition))
        if known is None or update.mark_us > known.mark_us:
            best[(update.origin, update.partition)] = update
    return [best[key] for key in sorted(best)]


@dataclass(frozen=True)
class Origin:
    """A source or operator that feeds a port; after `idle_us` without a tick it holds no one."""

    id: int
    idle_us: int | None = None


@dataclass
class _Partition:
    mark_us: int
    heard_us: int
    idle: bool = False


@dataclass
class Clock:
    """The watermarks of an operator's ports; `step` moves them, and they never go back."""

    ports: tuple[tuple[Origin, ...], ...]
    partitions: dict[tuple[int, int], _Partition] = field(default_factory=dict)
    began_us: int | None = None
    now_us: int = 0
    marks: list[int | None] = field(default_factory=list)
    watermark_us: int | None = None
    idle: bool = False

    def __post_init__(self) -> None:
        self.marks = self.marks or [None] * len(self.ports)

    def step(self, updates: Sequence[WatermarkUpdate], now_us: int | None) -> None:
        """Take in the ticks of an epoch; `now_us` is its processing time, the same on replay."""
        since_us = self.now_us
        if now_us is not None:
            self.now_us = max(self.now_us, now_us)
            self.began_us = self.now_us if self.began_us is None else self.began_us
        for update in updates:
            key = (update.origin, update.partition)
            known = self.partitions.get(key)
            if known is not None and update.mark_us == UNHEARD_US:
                continue
            mark = update.mark_us if known is None else max(update.mark_us, known.mark_us)
            self.partitions[key] = _Partition(mark, self.now_us)
        self._end({update.origin for update in updates if update.mark_us == END_US})
        # However long ago the last epoch was: what fell silent since then did so one by one, and
        # what says that it is idle has said before how far it came.
        for moment_us in [at for at in self._idle_moments(since_us) if at <= self.now_us]:
            self._move(moment_us)
        self._move(self.now_us)
        for update in updates:
            self.partitions[update.origin, update.partition].idle |= update.idle
        if any(update.idle for update in updates):
            self._move(self.now_us)

    def _move(self, at_us: int) -> None:
        """Take the watermarks to where they are at a moment of processing time."""
        moving = []
        for index, origins in enumerate(self.ports):
            heard, idle = self._port(origins, at_us)
            if heard is not None and not idle:
                before = self.marks[index]
                self.marks[index] = heard if before is None else max(before, heard)
            if not idle:
                moving.append(self.marks[index])
        self.idle = not moving
        known_marks = [mark for mark in moving if mark is not None]
        if moving and len(known_marks) == len(moving):
            lowest = min(known_marks)
            before = self.watermark_us
            self.watermark_us = lowest if before is None else max(before, lowest)

    def _end(self, ended: set[int]) -> None:
        """An origin ends with all its partitions."""
        for (origin, _), item in self.partitions.items():
            if origin in ended:
                item.mark_us = END_US

    def _port(self, origins: tuple[Origin, ...], at_us: int) -> tuple[int | None, bool]:
        """The watermark of a port, and whether all that feeds it is idle."""
        marks: list[int | None] = []
        for origin in origins:
            mark, idle = self._origin(origin, at_us)
            if not idle:
                marks.append(mark)
        if not marks:
            return None, bool(origins)
        known = [mark for mark in marks if mark is not None]
        return (min(known) if len(known) == len(marks) else None), False

    def _origin(self, origin: Origin, at_us: int) -> tuple[int | None, bool]:
        heard = [item for (owner, _), item in self.partitions.items() if owner == origin.id]
        awake = [item for item in heard if not _is_idle(item, origin, at_us)]
        if awake:
            least = min(item.mark_us for item in awake)
            return (least if least != UNHEARD_US else None), False
        if heard:
            return None, True
        # It has never sent a row: it is idle once `idle_us` has passed since the first epoch.
        silent = at_us - (self.began_us if self.began_us is not None else at_us)
        return None, origin.idle_us is not None and silent > origin.idle_us

    def idle_at_us(self) -> int | None:
        """The next moment at which something that is silent will count as idle."""
        return min(self._idle_moments(self.now_us), default=None)

    def _idle_moments(self, since_us: int) -> list[int]:
        """When what was heard at `since_us` counts as idle if nothing comes, in order."""
        moments = set()
        for origin in {item for origins in self.ports for item in origins}:
            if origin.idle_us is None:
                continue
            heard = [item for (owner, _), item in self.partitions.items() if owner == origin.id]
            awake = [i for i in heard if i.mark_us != END_US and not _is_idle(i, origin, since_us)]
            moments |= {item.heard_us + origin.idle_us + 1 for item in awake}
            if not heard and self.began_us is not None and not self._origin(origin, since_us)[1]:
                moments.add(self.began_us + origin.idle_us + 1)
        return sorted(moments)

    def to_bytes(self) -> bytes:
        content = {
            "partitions": [
                [origin, number, item.mark_us, item.heard_us, item.idle]
                for (origin, number), item in sorted(self.partitions.items())
            ],
            "began_us": self.began_us,
            "now_us": self.now_us,
            "marks": self.marks,
            "watermark_us": self.watermark_us,
            "idle": self.idle,
        }
        return _JSON.encode(content).encode()

    @classmethod
    def from_bytes(cls, ports: tuple[tuple[Origin, ...], ...], data: bytes) -> Clock:
        content = json.loads(data)
        partitions = {
            (origin, number): _Partition(mark, heard, idle)
            for origin, number, mark, heard, idle in content["partitions"]
        }
        return cls(
            ports,
            partitions,
            content["began_us"],
            content["now_us"],
            content["marks"] if len(content["marks"]) == len(ports) else [],
            content["watermark_us"],
            content["idle"],
        )


def _is_idle(item: _Partition, origin: Origin, at_us: int) -> bool:
    if item.mark_us == END_US:
        return False
    if item.idle:
        return True
    return origin.idle_us is not None and at_us - item.heard_us > origin.idle_us
