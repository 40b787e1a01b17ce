"""What passes by rows on its side: notes for the driver, late rows, dead letters, and ticks.

It travels in a column of its own, as bytes whose first one says what it is. Ticks of an operator go
to the operator above it, everything else through all stages up to the sinks of the stream.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tidegate.columns import LETTER
from tidegate.operators.watermark import Tick, decode_ticks, encode_ticks

TICKS = b"T"
NOTE = b"N"
_LATE, _LETTER = b"L", LETTER.encode()

Note = dict[str, Any]


def note_bytes(note: Note) -> bytes:
    return NOTE + json.dumps(note, separators=(",", ":")).encode()


def late_bytes(rows: bytes) -> bytes:
    return _LATE + rows


def tick_bytes(*ticks: Tick) -> bytes:
    return TICKS + encode_ticks(ticks)


@dataclass
class Sides:
    """What came by, sorted by kind."""

    notes: list[bytes] = field(default_factory=list)
    late: list[bytes] = field(default_factory=list)
    # Dead letters: rows on which an expression failed, as JSON.
    failed: list[bytes] = field(default_factory=list)
    ticks: list[Tick] = field(default_factory=list)
    size: int = 0

    def add(self, column: pa.ChunkedArray) -> None:
        if column.null_count == len(column):
            return
        self.size += column.nbytes
        for item in column.drop_null().to_pylist():
            kind, content = item[:1], item[1:]
            if kind == TICKS:
                self.ticks += decode_ticks(content)
            else:
                {NOTE: self.notes, _LATE: self.late, _LETTER: self.failed}[kind].append(content)

    def passing(self) -> list[bytes]:
        """What goes on to the sinks, as it came."""
        kinds = ((NOTE, self.notes), (_LATE, self.late), (_LETTER, self.failed))
        return [kind + content for kind, contents in kinds for content in contents]
