"""The watermark of an operator, computed by every key group from the same watermark updates.

An *origin* is a source of event time: a connector's source or an upstream operator. A watermark
update reports the watermark of one partition of an origin. Every key group receives the same
updates in the same epoch, so all key groups compute the same watermark without coordination, and a
replayed epoch computes it again.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

# The watermark of an input that has ended.
END_OF_INPUT_US = 2**63 - 1
# The watermark of a partition without rows so far. It holds back the watermark of its origin.
NO_WATERMARK_US = -(2**63)
_UPDATE = struct.Struct("<iiqB")
_JSON = json.JSONEncoder(separators=(",", ":"))


@dataclass(frozen=True)
class WatermarkUpdate:
    """The watermark of one partition of an origin, and whether the partition is idle."""

    origin: int
    partition: int
    watermark_us: int
    idle: bool = False


def encode_updates(updates: Iterable[WatermarkUpdate]) -> bytes:
    """Serialize updates for the shuffle."""
    return b"".join(_UPDATE.pack(u.origin, u.partition, u.watermark_us, u.idle) for u in updates)


def decode_updates(data: bytes | memoryview) -> list[WatermarkUpdate]:
    """Return the updates that `encode_updates` has serialized."""
    return [
        WatermarkUpdate(origin, partition, watermark_us, bool(idle))
        for origin, partition, watermark_us, idle in _UPDATE.iter_unpack(data)
    ]


def latest_updates(updates: Iterable[WatermarkUpdate]) -> list[WatermarkUpdate]:
    """Return one update per partition: the one with the largest watermark."""
    latest: dict[tuple[int, int], WatermarkUpdate] = {}
    for update in updates:
        previous = latest.get((update.origin, update.partition))
        if previous is None or update.watermark_us > previous.watermark_us:
            latest[(update.origin, update.partition)] = update
    return [latest[key] for key in sorted(latest)]


@dataclass(frozen=True)
class Origin:
    """A source or operator that feeds an input port.

    A partition without an update for longer than `idle_timeout_us` is idle: it does not hold the
    watermark back.
    """

    id: int
    idle_timeout_us: int | None = None


@dataclass
class _Partition:
    watermark_us: int
    updated_us: int
    idle: bool = False


@dataclass
class WatermarkTracker:
    """The watermark of each input port and of the operator; `advance` applies updates.

    The watermark of a port is the minimum over its partitions that are not idle. The watermark of
    the operator is the minimum over its ports that are not idle. Watermarks never go back.
    """

    ports: tuple[tuple[Origin, ...], ...]
    partitions: dict[tuple[int, int], _Partition] = field(default_factory=dict)
    started_us: int | None = None
    now_us: int = 0
    port_watermarks: list[int | None] = field(default_factory=list)
    watermark_us: int | None = None
    idle: bool = False

    def __post_init__(self) -> None:
        self.port_watermarks = self.port_watermarks or [None] * len(self.ports)

    def advance(self, updates: Sequence[WatermarkUpdate], now_us: int | None) -> None:
        """Apply the updates of an epoch; `now_us` is its processing time, the same on replay."""
        previous_us = self.now_us
        if now_us is not None:
            self.now_us = max(self.now_us, now_us)
            self.started_us = self.now_us if self.started_us is None else self.started_us
        for update in updates:
            key = (update.origin, update.partition)
            partition = self.partitions.get(key)
            if partition is not None and update.watermark_us == NO_WATERMARK_US:
                continue
            watermark_us = (
                update.watermark_us
                if partition is None
                else max(update.watermark_us, partition.watermark_us)
            )
            self.partitions[key] = _Partition(watermark_us, self.now_us)
        self._end({update.origin for update in updates if update.watermark_us == END_OF_INPUT_US})
        # Several partitions may have become idle since the last epoch, and each of them may have
        # released the watermark for a while. So the watermark advances in steps, one for each
        # partition that timed out. Partitions that report to be idle follow last, because their
        # watermark of this epoch counts first.
        for idle_us in [at for at in self._idle_times(previous_us) if at <= self.now_us]:
            self._advance_to(idle_us)
        self._advance_to(self.now_us)
        for update in updates:
            self.partitions[update.origin, update.partition].idle |= update.idle
        if any(update.idle for update in updates):
            self._advance_to(self.now_us)

    def _advance_to(self, at_us: int) -> None:
        """Advance the watermarks to their values at a processing time."""
        active = []
        for port, origins in enumerate(self.ports):
            watermark_us, idle = self._port_watermark(origins, at_us)
            if watermark_us is not None and not idle:
                previous_us = self.port_watermarks[port]
                self.port_watermarks[port] = (
                    watermark_us if previous_us is None else max(previous_us, watermark_us)
                )
            if not idle:
                active.append(self.port_watermarks[port])
        self.idle = not active
        watermarks = [watermark for watermark in active if watermark is not None]
        if active and len(watermarks) == len(active):
            lowest = min(watermarks)
            previous_us = self.watermark_us
            self.watermark_us = lowest if previous_us is None else max(previous_us, lowest)

    def _end(self, origins: set[int]) -> None:
        """End all partitions of origins that have ended."""
        for (origin, _), partition in self.partitions.items():
            if origin in origins:
                partition.watermark_us = END_OF_INPUT_US

    def _port_watermark(self, origins: tuple[Origin, ...], at_us: int) -> tuple[int | None, bool]:
        """Return the watermark of a port and whether all its origins are idle."""
        active: list[int | None] = []
        for origin in origins:
            watermark_us, idle = self._origin_watermark(origin, at_us)
            if not idle:
                active.append(watermark_us)
        if not active:
            return None, bool(origins)
        watermarks = [watermark for watermark in active if watermark is not None]
        return (min(watermarks) if len(watermarks) == len(active) else None), False

    def _origin_watermark(self, origin: Origin, at_us: int) -> tuple[int | None, bool]:
        """Return the watermark of an origin and whether all its partitions are idle."""
        partitions = self._partitions_of(origin)
        active = [partition for partition in partitions if not _is_idle(partition, origin, at_us)]
        if active:
            lowest = min(partition.watermark_us for partition in active)
            return (lowest if lowest != NO_WATERMARK_US else None), False
        if partitions:
            return None, True
        # An origin without partitions is idle if it had no rows for `idle_timeout_us`.
        silent_us = at_us - (self.started_us if self.started_us is not None else at_us)
        return None, origin.idle_timeout_us is not None and silent_us > origin.idle_timeout_us

    def _partitions_of(self, origin: Origin) -> list[_Partition]:
        return [item for (owner, _), item in self.partitions.items() if owner == origin.id]

    def next_idle_us(self) -> int | None:
        """Return the next processing time at which a partition becomes idle without updates."""
        return min(self._idle_times(self.now_us), default=None)

    def _idle_times(self, since_us: int) -> list[int]:
        """Return when partitions that were active at `since_us` become idle, in order."""
        times = set()
        for origin in {item for origins in self.ports for item in origins}:
            if origin.idle_timeout_us is None:
                continue
            partitions = self._partitions_of(origin)
            times |= {
                partition.updated_us + origin.idle_timeout_us + 1
                for partition in partitions
                if partition.watermark_us != END_OF_INPUT_US
                and not _is_idle(partition, origin, since_us)
            }
            if (
                not partitions
                and self.started_us is not None
                and not self._origin_watermark(origin, since_us)[1]
            ):
                times.add(self.started_us + origin.idle_timeout_us + 1)
        return sorted(times)

    def to_bytes(self) -> bytes:
        """Serialize the watermarks; the keys are part of the format of stored state."""
        content = {
            "partitions": [
                [origin, number, partition.watermark_us, partition.updated_us, partition.idle]
                for (origin, number), partition in sorted(self.partitions.items())
            ],
            "started_us": self.started_us,
            "now_us": self.now_us,
            "port_watermarks": self.port_watermarks,
            "watermark_us": self.watermark_us,
            "idle": self.idle,
        }
        return _JSON.encode(content).encode()

    @classmethod
    def from_bytes(cls, ports: tuple[tuple[Origin, ...], ...], data: bytes) -> WatermarkTracker:
        """Restore what `to_bytes` has written; port watermarks only if the ports are the same."""
        content = json.loads(data)
        port_watermarks = content["port_watermarks"]
        partitions = {
            (origin, number): _Partition(watermark_us, updated_us, idle)
            for origin, number, watermark_us, updated_us, idle in content["partitions"]
        }
        return cls(
            ports,
            partitions,
            content["started_us"],
            content["now_us"],
            port_watermarks if len(port_watermarks) == len(ports) else [],
            content["watermark_us"],
            content["idle"],
        )


def _is_idle(partition: _Partition, origin: Origin, at_us: int) -> bool:
    if partition.watermark_us == END_OF_INPUT_US:
        return False
    if partition.idle:
        return True
    timeout_us = origin.idle_timeout_us
    return timeout_us is not None and at_us - partition.updated_us > timeout_us
