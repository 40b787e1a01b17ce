"""What every operator is: pure functions over tables, with state that comes in from outside."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from tidegate.columns import OP
from tidegate.errors import RunError
from tidegate.operators.watermark import END_US
from tidegate.state import codec
from tidegate.state.state_file import StateBackend

Tables = tuple[pa.Table, ...]
# Tables up to this size lie in the head, as long as all of them together are no larger than that.
INLINE_BYTES = 16_384
HANDLE_BYTES = 65_536
_SIZES = struct.Struct("<II")
_JSON = json.JSONEncoder(separators=(",", ":"))


@dataclass(frozen=True)
class EpochTime:
    """The watermark before and after an epoch, and the epoch's processing time."""

    previous_watermark_us: int | None
    watermark_us: int | None
    now_us: int

    @property
    def ended(self) -> bool:
        return self.watermark_us == END_US

    @property
    def just_ended(self) -> bool:
        return self.ended and self.previous_watermark_us != END_US


@dataclass
class StepOutput:
    """What an operator hands out in an epoch."""

    main: list[pa.Table] = field(default_factory=list)
    late: list[pa.Table] = field(default_factory=list)


class Operator(Protocol):
    """`packed` are the schemas of what `lift` makes, a tuple per port."""

    @property
    def name(self) -> str: ...

    @property
    def shuffle_schemas(self) -> tuple[tuple[pa.Schema, ...], ...]: ...

    @property
    def output(self) -> pa.Schema: ...

    @property
    def late(self) -> pa.Schema | None: ...

    def stored_as(self) -> tuple[str, ...]:
        """How its state is stored: a version that is raised by hand, and the columns."""

    def pre_aggregate(self, port: int, rows: pa.Table) -> Tables:
        """Where the rows are: make them as small as they can be."""

    def combine(self, port: int, parts: Sequence[Tables]) -> Tables:
        """Where the rows are: several lifted parts as one."""

    def step(
        self, state: KeyGroupState, inputs: list[list[Tables]], epoch_time: EpochTime
    ) -> StepOutput:
        """One epoch of one key group: parts by port, in the order they came."""


class KeyGroupState:
    """The state of one operator in one key group: a small `meta` and stored tables.

    Small tables lie in the head, next to the meta: an epoch then reads and writes one value, and
    not one for each of them. What does not fit there is stored by itself.
    """

    def __init__(
        self, backend: StateBackend, fingerprint: bytes, first_key_group: bool = True
    ) -> None:
        self.backend = backend
        self.fingerprint = fingerprint
        # Where the one group of an aggregate without keys lives.
        self.first_key_group = first_key_group
        self.meta: dict[str, Any] = {}
        self.inline: dict[bytes, bytes | memoryview] = {}
        # Numbers to show: groups, open windows, rows.
        self.gauges: dict[str, int] = {}
        # The moment of the clock at which something is to come out, if nothing else happens.
        self.wake_us: int | None = None

    @property
    def late_rows(self) -> int:
        return int(self.meta.get("late_rows", 0))

    def count_late(self, rows: int) -> None:
        if rows:
            self.meta["late_rows"] = self.late_rows + rows

    def count_unknown(self, rows: int) -> None:
        """Retractions that were dropped, because what they retract is not there."""
        self.gauges["unknown"] = int(self.meta.get("unknown", 0)) + rows
        if rows:
            self.meta["unknown"] = self.gauges["unknown"]

    def put(self, name: str, key: bytes, tables: Tables) -> int:
        """Store tables under a key that is not in use; returns how many bytes they take."""
        payload = codec.tables_to_bytes(tables)
        if len(payload) <= INLINE_BYTES:
            self.inline[_full(name, key)] = payload
        else:
            self._put_apart(name, key, payload)
        return len(payload)

    def _put_apart(self, name: str, key: bytes, payload: bytes | memoryview) -> None:
        self.backend.put(name, key, bytes(payload))

    def spill(self) -> None:
        """Move the largest tables out of the head until it is small enough."""
        size = sum(len(payload) for payload in self.inline.values())
        for full in sorted(self.inline, key=lambda full: -len(self.inline[full])):
            if size <= HANDLE_BYTES:
                return
            payload = self.inline.pop(full)
            size -= len(payload)
            name, _, key = full.partition(b"\0")
            self._put_apart(name.decode(), key, payload)

    def get(self, name: str, key: bytes, schemas: Sequence[pa.Schema]) -> Tables | None:
        near = self.inline.get(_full(name, key))
        if near is not None:
            return tuple(codec.tables_from_bytes(near, schemas))
        stored = self.backend.get(name, key)
        if stored is None:
            return None
        return tuple(codec.tables_from_bytes(stored, schemas))

    def delete(self, name: str, key: bytes) -> None:
        if self.inline.pop(_full(name, key), None) is None:
            self.backend.delete(name, key)

    def to_bytes(self) -> bytes:
        """What of it lies in the head."""
        self.spill()
        meta = _JSON.encode(self.meta).encode()
        parts: list[bytes | memoryview] = [_SIZES.pack(len(meta), len(self.inline)), meta]
        for full, payload in self.inline.items():
            parts += (_SIZES.pack(len(full), len(payload)), full, payload)
        return b"".join(parts)

    def from_bytes(self, data: memoryview) -> None:
        size, count = _SIZES.unpack_from(data)
        place = _SIZES.size
        self.meta = json.loads(bytes(data[place : place + size]))
        place += size
        for _ in range(count):
            name, size = _SIZES.unpack_from(data, place)
            place += _SIZES.size
            full = bytes(data[place : place + name])
            # A copy, so that tables begin at an address that Arrow likes.
            self.inline[full] = bytes(data[place + name : place + name + size])
            place += name + size


def _full(name: str, key: bytes) -> bytes:
    return name.encode() + b"\0" + key


def with_op(table: pa.Table, op: str) -> pa.Table:
    """The table with the column that says what its rows do."""
    return table.append_column(OP, pa.repeat(pa.scalar(op, pa.string()), table.num_rows))


# ---- Guard rails: a clear error before memory runs out.


class Log(Protocol):
    """What keeps state in segments, in which a group may lie several times."""

    def save(self) -> None: ...

    def compact(self) -> None: ...


class WaitingRows(Protocol):
    """What keeps rows by time until they are due."""

    def save(self) -> None: ...

    def sizes(self) -> dict[str, int]: ...


@dataclass(frozen=True)
class Limits:
    """How much one key group of an operator may keep; None is no limit."""

    groups: int | None = None
    bytes: int | None = None

    def exceeded(self, gauges: dict[str, int]) -> bool:
        limits = ((self.groups, gauges.get("groups", 0)), (self.bytes, gauges.get("bytes", 0)))
        return any(limit is not None and kept > limit for limit, kept in limits)

    def enforce(self, operator: str, log: Log, gauges: dict[str, int]) -> None:
        """Save a log and stop if it is too large, after counting every group once."""
        log.save()
        if self.exceeded(gauges):
            log.compact()
            log.save()
        self.check(operator, gauges)

    def enforce_both(
        self, operator: str, log: Log, waiting: WaitingRows, gauges: dict[str, int]
    ) -> None:
        """The same where rows wait besides."""
        waiting.save()
        sizes = waiting.sizes()
        self.enforce(operator, log, gauges)
        for what, size in sizes.items():
            gauges[what] += size
        self.check(operator, gauges)

    def check(self, operator: str, gauges: dict[str, int]) -> None:
        for what, limit, setting in (
            ("groups", self.groups, "max_groups"),
            ("bytes", self.bytes, "max_state_bytes"),
        ):
            kept = gauges.get(what, 0)
            if limit is not None and kept > limit:
                raise RunError(
                    "TG-508",
                    f"the operator {operator} keeps {kept:,} {what} in one key group, and "
                    f"{limit:,} are allowed",
                    hint=f"group by fewer keys or make windows shorter, or SET {setting} = "
                    f"{_next(kept)}; nothing is lost: start again and the epoch is repeated.",
                )


NO_LIMITS = Limits()


def _next(kept: int) -> int:
    """A round number with room to spare."""
    limit = 1
    while limit < 2 * kept:
        limit *= 10
    return limit
