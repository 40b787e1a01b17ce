"""What a manifest says: everything that a pipeline needs to go on after an epoch.

It is JSON that a person can read. Its checksum covers all of it, so that a damaged one is not
believed.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

FORMAT = 2


class DamagedManifest(Exception):
    """A manifest that cannot be believed, and why."""


@dataclass(frozen=True)
class SourceState:
    """A source as its offsets know it."""

    connector: str
    options: dict[str, str]


@dataclass(frozen=True)
class OperatorState:
    """An operator: what its state means, and by key group where it is."""

    stream: str
    name: str
    fingerprint: str
    state_handles: dict[str, list[Any]] = field(default_factory=dict)
    # The files in which the heads and their entries lie, with their bytes.
    files: dict[str, int] = field(default_factory=dict)
    report: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class StreamState:
    """A stream: how far it has read its sources, and what it has counted since its first epoch."""

    # Names its output for good; a stream that starts over gets another one.
    id: str
    # All sources that it reads, also those that had nothing yet.
    sources: dict[str, SourceState] = field(default_factory=dict)
    offsets: dict[str, Any] = field(default_factory=dict)
    # The largest event time of each source, where the stream has no operators that know it.
    marks: dict[str, int] = field(default_factory=dict)
    ended: bool = False
    rows_in: int = 0
    rows_out: int = 0
    dead_letters: int = 0
    # Those of them that are rows on which an expression failed.
    failed: int = 0
    # What the rows of its materialised view mean; None if it is not materialised.
    view: str | None = None


@dataclass(frozen=True)
class SinkState:
    """A sink and what was staged for it.

    A manifest that no epoch was run for (a stream was dropped, say) repeats the tokens of the one
    before it, since they may not be visible yet: they belong to the epoch in which they were made.
    """

    stream: str
    connector: str
    # The last epoch with tokens, and its generation; -1 if there was none.
    epoch: int = -1
    committables: list[Any] = field(default_factory=list)
    generation: int = 0
    # How many rows the stream had given out when the sink last took part.
    rows: int | None = None

    def following(self, before: SinkState | None) -> SinkState:
        """The same after an earlier one: without tokens, the last epoch with some is still that."""
        if self.committables:
            return self
        if before is None or before.stream != self.stream:
            return replace(self, epoch=-1)
        return replace(self, epoch=before.epoch, generation=before.generation)


@dataclass(frozen=True)
class EpochRange:
    """Epochs of one generation that follow each other, both ends included."""

    generation: int
    first: int
    last: int

    def holds(self, generation: int, epoch: int) -> bool:
        return generation == self.generation and self.first <= epoch <= self.last


@dataclass(frozen=True)
class Manifest:
    """The decision of one epoch."""

    generation: int
    epoch: int
    key_groups: int
    now_us: int
    streams: dict[str, StreamState] = field(default_factory=dict)
    operators: dict[str, OperatorState] = field(default_factory=dict)
    sinks: dict[str, SinkState] = field(default_factory=dict)
    # Where the pipeline went back: each time the generation and epoch it went on from, and the
    # first epoch after that. Epochs in between were decided once, and never were.
    restored: list[list[int]] = field(default_factory=list)
    # What sinks hold of generations before this one is left there: RESTORE said so.
    kept_before: int = 0

    @property
    def line(self) -> tuple[EpochRange, ...]:
        """The epochs that led to this one, oldest first."""
        found, first = [], -1
        for generation, epoch, after in self.restored:
            found.append(EpochRange(generation, first, epoch))
            first = after
        return (*found, EpochRange(self.generation, first, self.epoch))

    def knows(self, generation: int, epoch: int) -> bool:
        """Whether an epoch is one of those that led to this one."""
        return any(stretch.holds(generation, epoch) for stretch in self.line)

    def gone_back(self, generation: int, epoch: int) -> Manifest:
        """The same content as a later epoch: everything in between is forgotten."""
        back = [self.generation, self.epoch, epoch]
        return replace(self, generation=generation, epoch=epoch, restored=[*self.restored, back])

    @property
    def stamp(self) -> str:
        return f"{self.generation:03d}-{self.epoch:012d}"

    def to_bytes(self) -> bytes:
        content = asdict(self)
        stored = {"format": FORMAT, "checksum": _checksum(content), "manifest": content}
        return json.dumps(stored, indent=1, sort_keys=True).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Manifest:
        try:
            stored = json.loads(data)
            version, content = stored["format"], stored["manifest"]
            checksum = stored["checksum"]
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedManifest(f"it is not whole ({error})") from None
        if version != FORMAT:
            raise DamagedManifest(f"its format is {version}, and this version reads {FORMAT}")
        if checksum != _checksum(content):
            raise DamagedManifest("its checksum is wrong")
        known = {item.name for item in fields(cls)}
        given = {key: value for key, value in content.items() if key in known}
        for name, part_of in _PARTS.items():
            given[name] = {key: part_of(part) for key, part in content[name].items()}
        return cls(**given)


def _stream(part: dict[str, Any]) -> StreamState:
    sources = {name: SourceState(**source) for name, source in part["sources"].items()}
    return StreamState(**{**part, "sources": sources})


_PARTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "streams": _stream,
    "operators": lambda part: OperatorState(**part),
    "sinks": lambda part: SinkState(**part),
}


def _checksum(content: Any) -> str:
    text = json.dumps(content, separators=(",", ":"), sort_keys=True)
    return f"{zlib.crc32(text.encode()):08x}"
