"""What the tasks of an epoch have told the driver, sorted out."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tidegate.checkpoint.manifest import OperatorState

# Numbers of key groups that add up; of the others the largest counts.
_SUMMED = ("late_rows", "groups", "rows", "bytes", "unknown")


@dataclass
class StreamNotes:
    """What a stream has counted in an epoch."""

    rows_in: int = 0
    rows_out: int = 0
    bad: int = 0
    # Rows on which an expression failed.
    failed: int = 0
    marks: dict[str, int] = field(default_factory=dict)


@dataclass
class Notes:
    """All notes of an epoch."""

    streams: dict[str, StreamNotes] = field(default_factory=dict)
    heads: dict[str, dict[str, list[Any]]] = field(default_factory=dict)
    files: dict[str, set[str]] = field(default_factory=dict)
    # The bytes of the state files that were written in this epoch.
    sizes: dict[str, int] = field(default_factory=dict)
    reports: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    tokens: dict[str, list[Any]] = field(default_factory=dict)
    # By operator: how many groups Spark has made of how many rows.
    shrunk: dict[str, tuple[int, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, items: Iterable[bytes]) -> Notes:
        notes = cls()
        for item in items:
            notes._add(json.loads(item))
        return notes

    def stream(self, name: str) -> StreamNotes:
        return self.streams.setdefault(name.lower(), StreamNotes())

    def rows(self) -> tuple[int, int]:
        """The rows that went into all streams and came out of them."""
        told = self.streams.values()
        return sum(item.rows_in for item in told), sum(item.rows_out for item in told)

    def _add(self, note: dict[str, Any]) -> None:
        if "operators" in note:
            for key in note["operators"]:
                self._add_operator(key, note)
        elif "shrunk" in note:
            groups, rows = self.shrunk.get(note["shrunk"], (0, 0))
            self.shrunk[note["shrunk"]] = groups + note["groups"], rows + note["rows"]
        elif "sink" in note:
            self.tokens.setdefault(note["sink"], []).extend(note["tokens"])
        else:
            for name in note["streams"]:
                self._add_counts(self.stream(name), note)

    def _add_counts(self, stream: StreamNotes, note: dict[str, Any]) -> None:
        stream.rows_in += note.get("rows", 0)
        stream.rows_out += note.get("out", 0)
        stream.bad += note.get("bad", 0)
        stream.failed += note.get("failed", 0)
        for origin, mark in note.get("marks", {}).items():
            stream.marks[origin] = max(mark, stream.marks.get(origin, mark))

    def _add_operator(self, key: str, note: dict[str, Any]) -> None:
        head = note["head"]
        self.heads.setdefault(key, {})[str(note["key_group"])] = head
        self.files.setdefault(key, set()).update([head[0], *note["files"]])
        self.sizes[head[0]] = note["size"]
        self.reports.setdefault(key, []).append(note["report"])

    def operator(self, key: str, before: OperatorState) -> OperatorState:
        """An operator after the epoch; one that told nothing is as it was."""
        if key not in self.heads:
            return before
        # Every key group steps in every epoch, so these are all of them.
        return OperatorState(
            before.stream,
            before.name,
            before.fingerprint,
            self.heads[key],
            {file: self._size(file, before) for file in sorted(self.files[key])},
            _added_up(self.reports[key]),
        )

    def _size(self, file: str, before: OperatorState) -> int:
        return self.sizes[file] if file in self.sizes else before.files[file]


def _added_up(reports: list[dict[str, Any]]) -> dict[str, Any]:
    names = {name for report in reports for name in report} - {"operator", "watermark_us"}
    total: dict[str, Any] = {}
    for name in sorted(names):
        values = [int(report.get(name) or 0) for report in reports]
        total[name] = sum(values) if name in _SUMMED else max(values)
    marks = [r["watermark_us"] for r in reports if r.get("watermark_us") is not None]
    total["watermark_us"] = min(marks) if marks else None
    wakes = [r["wake_us"] for r in reports if r.get("wake_us") is not None]
    total["wake_us"] = min(wakes) if wakes else None
    return total
