"""The manifest: the commit record of an epoch, from which a pipeline continues after a restart.

A manifest is stored as readable JSON with a checksum over its content.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import pairwise
from typing import Any

FORMAT = 2


class DamagedManifest(Exception):
    """A manifest cannot be used; the message is the reason."""


@dataclass(frozen=True)
class SourceIdentity:
    """The identity of a source: an offset is valid only for the same connector and options."""

    connector: str
    options: dict[str, str]


@dataclass(frozen=True)
class OperatorState:
    """The fingerprint and state of an operator, with its counters."""

    stream: str
    name: str
    fingerprint: str
    # By key group.
    state_handles: dict[str, list[Any]] = field(default_factory=dict)
    # The state files that the state handles need, with their sizes in bytes.
    files: dict[str, int] = field(default_factory=dict)
    # Watermark, next timer and counters, combined over all key groups.
    report: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class StreamState:
    """The offsets of a stream, and its counters since its first epoch."""

    # Identifies the output of the stream. A stream that starts over gets a new id.
    id: str
    # All sources of the stream, including those that have not been read yet.
    sources: dict[str, SourceIdentity] = field(default_factory=dict)
    offsets: dict[str, Any] = field(default_factory=dict)
    # The largest event time, for streams without operators: by the number of the scan, followed by
    # `/partition` unless that is 0.
    event_times_us: dict[str, int] = field(default_factory=dict)
    ended: bool = False
    rows_in: int = 0
    rows_out: int = 0
    dead_letters: int = 0
    # How many of the dead letters are rows for which an expression failed.
    failed_rows: int = 0
    # The canonical form of the materialized view's query; None if the stream is not materialized.
    view_definition: str | None = None


@dataclass(frozen=True)
class SinkState:
    """The last committables of a sink, with the epoch and generation in which they were staged.

    A manifest that is written without running an epoch, for example after DROP STREAM, repeats the
    committables of the previous manifest, because they may not have been published yet.
    """

    stream: str
    connector: str
    # The last epoch with committables, and its generation; -1 if there is none.
    epoch: int = -1
    committables: list[Any] = field(default_factory=list)
    generation: int = 0
    # How many rows the stream had emitted at the last epoch in which the sink took part.
    stream_rows_at_last_epoch: int | None = None

    def with_last_epoch_of(self, previous: SinkState | None) -> SinkState:
        """Return this state; without committables, with the last epoch of `previous`."""
        if self.committables:
            return self
        if previous is None or previous.stream != self.stream:
            return replace(self, epoch=-1)
        return replace(self, epoch=previous.epoch, generation=previous.generation)


@dataclass(frozen=True)
class EpochRange:
    """Consecutive epochs of one generation, both ends included."""

    generation: int
    first: int
    last: int

    def contains(self, generation: int, epoch: int) -> bool:
        return generation == self.generation and self.first <= epoch <= self.last


def rolled_back_between(lineage: Sequence[EpochRange]) -> list[tuple[int, int]]:
    """Return the last epoch before and the first one after those that each RESTORE rolled back."""
    return [(before.last, after.first) for before, after in pairwise(lineage)]


@dataclass(frozen=True)
class RestoreRecord:
    """A RESTORE: the generation and epoch that were restored, and the first epoch after it.

    RESTORE has removed the epochs between the two from the pipeline's lineage.
    """

    generation: int
    epoch: int
    next_epoch: int


@dataclass(frozen=True)
class Manifest:
    """The state of a pipeline after an epoch."""

    generation: int
    epoch: int
    key_groups: int
    # The processing time of the epoch in microseconds.
    processing_time_us: int
    streams: dict[str, StreamState] = field(default_factory=dict)
    operators: dict[str, OperatorState] = field(default_factory=dict)
    sinks: dict[str, SinkState] = field(default_factory=dict)
    restores: list[RestoreRecord] = field(default_factory=list)
    # Sinks keep rows of generations before this one, because RESTORE was run with sinks = 'keep'.
    keep_before_generation: int = 0

    @property
    def lineage(self) -> tuple[EpochRange, ...]:
        """The epochs that led to this manifest, oldest first."""
        ranges, first = [], -1
        for restore in self.restores:
            ranges.append(EpochRange(restore.generation, first, restore.epoch))
            first = restore.next_epoch
        return (*ranges, EpochRange(self.generation, first, self.epoch))

    def includes(self, generation: int, epoch: int) -> bool:
        """Return whether an epoch is in the lineage."""
        return any(epochs.contains(generation, epoch) for epochs in self.lineage)

    def restored_as(self, generation: int, epoch: int) -> Manifest:
        """Return the manifest of a RESTORE: this content as an epoch of a new generation.

        The epochs between this one and `epoch` are rolled back.
        """
        restore = RestoreRecord(self.generation, self.epoch, epoch)
        return replace(self, generation=generation, epoch=epoch, restores=[*self.restores, restore])

    @property
    def stamp(self) -> str:
        return epoch_stamp(self.generation, self.epoch)

    def to_bytes(self) -> bytes:
        content = asdict(self)
        for sink in content["sinks"].values():
            for name, key in _SINK_KEYS.items():
                sink[key] = sink.pop(name)
        stored = {"format": FORMAT, "checksum": _checksum(content), "manifest": content}
        return json.dumps(stored, indent=1, sort_keys=True).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Manifest:
        """Parse a stored manifest; raise `DamagedManifest` if it is incomplete or changed."""
        try:
            stored = json.loads(data)
            version, content = stored["format"], stored["manifest"]
            checksum = stored["checksum"]
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedManifest(f"it is incomplete ({error})") from None
        if version != FORMAT:
            reason = f"its format is {version}, and this version of Tidegate reads {FORMAT}"
            raise DamagedManifest(reason)
        if checksum != _checksum(content):
            raise DamagedManifest("its checksum is wrong")
        names = {item.name for item in fields(cls)}
        values = {key: value for key, value in content.items() if key in names}
        for name, parse in _PARSERS.items():
            values[name] = {key: parse(part) for key, part in content[name].items()}
        values["restores"] = [RestoreRecord(**part) for part in content["restores"]]
        return cls(**values)


def epoch_stamp(generation: int, epoch: int) -> str:
    """Return the name of an epoch in file names. Stamps sort in the order of epochs."""
    return f"{generation:03d}-{epoch:012d}"


def _parse_stream(part: dict[str, Any]) -> StreamState:
    sources = {name: SourceIdentity(**source) for name, source in part["sources"].items()}
    return StreamState(**{**part, "sources": sources})


# By field of a sink state: its JSON key, if that has another name.
_SINK_KEYS = {"stream_rows_at_last_epoch": "stream_rows"}


def _parse_sink(part: dict[str, Any]) -> SinkState:
    names = {key: name for name, key in _SINK_KEYS.items()}
    return SinkState(**{names.get(key, key): value for key, value in part.items()})


_PARSERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "streams": _parse_stream,
    "operators": lambda part: OperatorState(**part),
    "sinks": _parse_sink,
}


def _checksum(content: Any) -> str:
    text = json.dumps(content, separators=(",", ":"), sort_keys=True)
    return f"{zlib.crc32(text.encode()):08x}"
