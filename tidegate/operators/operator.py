"""The operator contract: pure functions over Arrow tables, with state that the caller passes in.

`Operator` is the contract, `TimeProgress` and `StepOutput` are what `step` takes and returns, and
`KeyGroupState` is where an operator keeps its state. `Limits` stops an operator before its state
exhausts memory.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from tidegate.columns import OP
from tidegate.errors import RunError
from tidegate.operators.watermark import END_OF_INPUT_US
from tidegate.state import codec
from tidegate.state.state_file import StateBackend

if TYPE_CHECKING:
    from tidegate.operators.aggregate.groups import WindowPanes

Tables = tuple[pa.Table, ...]
# Tables up to this size are stored in the header, as long as the header does not exceed its limit.
INLINE_BYTES = 16_384
HEADER_BYTES = 65_536
_SIZES = struct.Struct("<II")
_JSON = json.JSONEncoder(separators=(",", ":"))


@dataclass(frozen=True)
class TimeProgress:
    """The watermark before and after an epoch, and the epoch's processing time."""

    previous_watermark_us: int | None
    watermark_us: int | None
    now_us: int

    @property
    def ended(self) -> bool:
        """Whether all inputs have ended."""
        return self.watermark_us == END_OF_INPUT_US

    @property
    def just_ended(self) -> bool:
        """Whether all inputs have ended in this epoch."""
        return self.ended and self.previous_watermark_us != END_OF_INPUT_US


@dataclass
class StepOutput:
    """The rows that an operator emits in an epoch, and the rows that were late."""

    rows: list[pa.Table] = field(default_factory=list)
    late: list[pa.Table] = field(default_factory=list)


class Operator(Protocol):
    """A stateful operator.

    The task that writes the operator's shuffle calls `pre_aggregate` on every batch and `combine`
    on the results. It reads a source, or it runs the operator upstream. After the shuffle, `step`
    runs once per epoch for every key group, including key groups without rows.
    """

    @property
    def name(self) -> str:
        """The operator's name in status, metrics and late rows."""

    @property
    def shuffle_schemas(self) -> tuple[tuple[pa.Schema, ...], ...]:
        """The schemas of the tables that `pre_aggregate` returns, a tuple per input port."""

    @property
    def output(self) -> pa.Schema:
        """The schema of the rows that `step` emits."""

    @property
    def late(self) -> pa.Schema | None:
        """The schema of the late rows that `step` emits; None if it does not emit any."""

    @property
    def panes(self) -> WindowPanes | None:
        """The panes of its windows; in processing time it runs whenever one ends. Usually None."""

    def state_format(self) -> tuple[str, ...]:
        """Return what determines the stored bytes: the format versions of stores, and schemas.

        It is part of the fingerprint, so state in another format does not fit the operator.
        """

    def pre_aggregate(self, port: int, rows: pa.Table) -> Tables:
        """Select the columns of a batch and reduce its rows before the shuffle.

        Runs in the task that writes the shuffle, whether the rows come from a source or from the
        operator upstream.
        """

    def combine(self, port: int, parts: Sequence[Tables]) -> Tables:
        """Merge several results of `pre_aggregate` in the task that writes the shuffle."""

    def step(
        self, state: KeyGroupState, inputs: list[list[Tables]], progress: TimeProgress
    ) -> StepOutput:
        """Run one epoch of one key group; `inputs` are the shuffled tables by port.

        Must depend only on its arguments, because an epoch that runs again must emit the same rows.
        """


class KeyGroupState:
    """The state of one operator in one key group: a small `meta` dictionary and stored tables.

    Small tables are stored inline, in one header next to `meta`, so that most epochs read and write
    a single value. A table that is too large for the header is stored separately.
    """

    def __init__(
        self, backend: StateBackend, fingerprint: bytes, is_first_key_group: bool = True
    ) -> None:
        self.backend = backend
        self.fingerprint = fingerprint
        # Whether this is key group 0, which has the single group of an aggregate without keys.
        self.is_first_key_group = is_first_key_group
        self.meta: dict[str, Any] = {}
        self.inline: dict[bytes, bytes | memoryview] = {}
        # Gauges and counters of the operator's report: groups, open windows, rows.
        self.metrics: dict[str, int] = {}
        # The processing-time timer: when the operator must run even if no rows arrive.
        self.timer_us: int | None = None

    @property
    def late_rows(self) -> int:
        """The number of late rows since the state was created."""
        return int(self.meta.get("late_rows", 0))

    def count_late(self, rows: int) -> None:
        """Add to the number of late rows."""
        if rows:
            self.meta["late_rows"] = self.late_rows + rows

    def count_unknown_retractions(self, rows: int) -> None:
        """Count retractions that were dropped because their row is not in the state."""
        total = int(self.meta.get("unknown_retractions", 0)) + rows
        self.metrics["unknown_retractions"] = total
        if rows:
            self.meta["unknown_retractions"] = total

    def put(self, name: str, key: bytes, tables: Tables) -> int:
        """Store tables under an unused key and return their size in bytes."""
        payload = codec.tables_to_bytes(tables)
        if len(payload) <= INLINE_BYTES:
            self.inline[_inline_key(name, key)] = payload
        else:
            self.backend.put(name, key, bytes(payload))
        return len(payload)

    def spill(self) -> None:
        """Move the largest inline tables out of the header until it is small enough."""
        size = sum(len(payload) for payload in self.inline.values())
        for inline_key in sorted(self.inline, key=lambda key: -len(self.inline[key])):
            if size <= HEADER_BYTES:
                return
            payload = self.inline.pop(inline_key)
            size -= len(payload)
            name, _, key = inline_key.partition(b"\0")
            self.backend.put(name.decode(), key, bytes(payload))

    def get(self, name: str, key: bytes, schemas: Sequence[pa.Schema]) -> Tables | None:
        """Return stored tables, or None if the key is not in use."""
        inline = self.inline.get(_inline_key(name, key))
        if inline is not None:
            return tuple(codec.tables_from_bytes(inline, schemas))
        stored = self.backend.get(name, key)
        if stored is None:
            return None
        return tuple(codec.tables_from_bytes(stored, schemas))

    def delete(self, name: str, key: bytes) -> None:
        """Remove the tables of a key."""
        if self.inline.pop(_inline_key(name, key), None) is None:
            self.backend.delete(name, key)

    def to_bytes(self) -> bytes:
        """Serialize the meta dictionary and the inline tables."""
        self.spill()
        meta = _JSON.encode(self.meta).encode()
        parts: list[bytes | memoryview] = [_SIZES.pack(len(meta), len(self.inline)), meta]
        for inline_key, payload in self.inline.items():
            parts += (_SIZES.pack(len(inline_key), len(payload)), inline_key, payload)
        return b"".join(parts)

    def from_bytes(self, data: memoryview) -> None:
        """Restore what `to_bytes` has written."""
        size, count = _SIZES.unpack_from(data)
        offset = _SIZES.size
        self.meta = json.loads(bytes(data[offset : offset + size]))
        offset += size
        for _ in range(count):
            key_size, size = _SIZES.unpack_from(data, offset)
            offset += _SIZES.size
            inline_key = bytes(data[offset : offset + key_size])
            # Copied, so that Arrow reads the tables from an aligned address.
            self.inline[inline_key] = bytes(data[offset + key_size : offset + key_size + size])
            offset += key_size + size


def _inline_key(name: str, key: bytes) -> bytes:
    return name.encode() + b"\0" + key


def with_op(table: pa.Table, op: str) -> pa.Table:
    """Append the changelog column, with the same operation for all rows."""
    return table.append_column(OP, pa.repeat(pa.scalar(op, pa.string()), table.num_rows))


# ---- Limits of the state in one key group


class CompactableStore(Protocol):
    """A store in which a group may have several entries until it is compacted."""

    def save(self) -> None: ...

    def compact(self) -> None: ...


class WaitingRowStore(Protocol):
    """A store of rows that wait for the watermark."""

    def save(self) -> None: ...

    def sizes(self) -> dict[str, int]: ...


@dataclass(frozen=True)
class Limits:
    """How many groups and bytes an operator may keep in one key group; None means no limit."""

    max_groups: int | None = None
    max_state_bytes: int | None = None

    def exceeded(self, metrics: dict[str, int]) -> bool:
        """Return whether a metric is above its limit."""
        limits = (
            (self.max_groups, metrics.get("groups", 0)),
            (self.max_state_bytes, metrics.get("bytes", 0)),
        )
        return any(limit is not None and size > limit for limit, size in limits)

    def enforce(self, operator: str, store: CompactableStore, metrics: dict[str, int]) -> None:
        """Save a store and raise an error if it is too large even after compaction."""
        store.save()
        if self.exceeded(metrics):
            store.compact()
            store.save()
        self.check(operator, metrics)

    def enforce_with_waiting(
        self,
        operator: str,
        store: CompactableStore,
        waiting: WaitingRowStore,
        metrics: dict[str, int],
    ) -> None:
        """Save a store and a store of waiting rows and check their total size."""
        waiting.save()
        sizes = waiting.sizes()
        self.enforce(operator, store, metrics)
        for metric, size in sizes.items():
            metrics[metric] += size
        self.check(operator, metrics)

    def check(self, operator: str, metrics: dict[str, int]) -> None:
        """Raise TG-508 if a metric is above its limit."""
        for metric, limit, setting in (
            ("groups", self.max_groups, "max_groups"),
            ("bytes", self.max_state_bytes, "max_state_bytes"),
        ):
            size = metrics.get(metric, 0)
            if limit is not None and size > limit:
                raise RunError(
                    "TG-508",
                    f"operator {operator} keeps {size:,} {metric} in one key group; the limit is "
                    f"{limit:,}",
                    hint=f"group by fewer keys, use shorter windows, or SET {setting} = "
                    f"{_next_limit(size)}; no data was lost: restart and the epoch is retried.",
                )


NO_LIMITS = Limits()


def _next_limit(size: int) -> int:
    """Return the first power of ten that leaves room to double."""
    limit = 1
    while limit < 2 * size:
        limit *= 10
    return limit
