"""Columns of nodes, and what they mean to time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from tidegate.types import format_duration


class Role(Enum):
    """What a column means to time; everything but PLAIN is moved by the watermark."""

    PLAIN = "plain"
    TIME = "event time"
    WINDOW_START = "window start"
    WINDOW_END = "window end"


class WindowKind(Enum):
    TUMBLE = "TUMBLE"
    HOP = "HOP"
    SESSION = "SESSION"
    CUMULATE = "CUMULATE"


@dataclass(frozen=True)
class WindowSpec:
    """A window function with its sizes in microseconds; `slide_us` is the step of CUMULATE."""

    kind: WindowKind
    size_us: int
    slide_us: int
    offset_us: int = 0
    processing_time: bool = False

    def __post_init__(self) -> None:
        assert self.size_us > 0 and self.slide_us > 0, "windows have a length"

    def __str__(self) -> str:
        sizes = [format_duration(self.size_us)]
        if self.kind in (WindowKind.HOP, WindowKind.CUMULATE):
            sizes.insert(0, format_duration(self.slide_us))
        if self.offset_us:
            sizes.append(f"offset {format_duration(self.offset_us)}")
        clock = ", processing time" if self.processing_time else ""
        return f"{self.kind.value}({', '.join(sizes)}{clock})"


@dataclass(frozen=True)
class Field:
    """A column of a node's output."""

    id: str
    name: str
    type: str | None = None
    role: Role = Role.PLAIN
    window: WindowSpec | None = None
    volatile: bool = False
    nullable: bool = True

    def renamed(self, name: str) -> Field:
        return replace(self, name=name)

    @property
    def fixed_length(self) -> bool:
        """Whether it is an end of a window whose other end follows from it."""
        return self.window is not None and self.window.kind in (WindowKind.TUMBLE, WindowKind.HOP)

    @property
    def window_by_clock(self) -> bool:
        """Whether it belongs to a window of processing time."""
        return self.window is not None and self.window.processing_time

    @property
    def on_time(self) -> bool:
        """Whether it is the event time: rows come before the watermark passes its value.

        The start of a window is not: its rows may come until the watermark passes the end.
        """
        if self.window_by_clock:
            return False
        return self.role in (Role.TIME, Role.WINDOW_END)

    @property
    def closes(self) -> bool:
        """Whether the watermark says when no more rows with its value can come.

        The start of a session does not: the session may go on for as long as it likes.
        """
        if self.role is Role.WINDOW_START and self.window is not None:
            return self.window.kind is not WindowKind.SESSION
        return self.role is not Role.PLAIN

    def held_back_us(self, fields: Sequence[Field]) -> int | None:
        """How much older other times of a row can be than this one, which lets it out.

        A row that waits for the end of its window still has its own time, which lies anywhere in
        that window. Whoever reads it by that time must not take it for late. None: nobody can tell.
        """
        if self.window is None:
            return 0
        if all(not item.on_time or item.window == self.window for item in fields):
            return 0
        return None if self.window.kind is WindowKind.SESSION else self.window.size_us
