"""Panes: the smallest pieces windows are made of. A row is in one pane, a pane in some windows."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Grid:
    """Panes begin at multiples of `width_us` from `offset_us`."""

    width_us: int
    offset_us: int


@dataclass(frozen=True)
class Panes:
    """How panes make windows. `kind` is TUMBLE, HOP, CUMULATE, or DUE.

    DUE has no windows of its own: the pane of a row is the moment at which the watermark closes its
    group, such as the end of a window that was made further up.
    """

    kind: str
    size_us: int = 1
    slide_us: int = 1
    offset_us: int = 0

    @property
    def width_us(self) -> int:
        if self.kind == "HOP":
            return math.gcd(self.size_us, self.slide_us)
        return {"TUMBLE": self.size_us, "CUMULATE": self.slide_us}.get(self.kind, 1)

    @property
    def shared(self) -> bool:
        """Whether a pane can be in several windows."""
        return self.kind in ("HOP", "CUMULATE")

    def last_end(self, pane: Ints) -> Ints:
        """The end of the last window a pane is in."""
        if self.kind == "DUE":
            return pane
        if self.kind == "HOP":
            return self._floor(pane, self.slide_us) + self.size_us
        if self.kind == "CUMULATE":
            return self._floor(pane, self.size_us) + self.size_us
        return pane + self.size_us

    def first_pane(self, end: int) -> int:
        """The first pane of the window that ends there."""
        if self.kind == "DUE":
            return end
        return int(self.start(np.array([end], np.int64))[0])

    def start(self, end: Ints) -> Ints:
        """The start of the window that ends there."""
        if self.kind == "CUMULATE":
            return self._floor(end - 1, self.size_us)
        return end - self.size_us

    def ends(self, pane: Ints) -> Ints:
        """The ends of all windows these panes are in, sorted, each once."""
        panes = np.unique(pane)
        last = self.last_end(panes)
        if not self.shared:
            return last
        # Both are sorted, and on a grid: of each pane only what the one before it lacks is new.
        step = self.slide_us
        first = last - (last - panes - 1) // step * step
        first[1:] = np.maximum(first[1:], last[:-1] + step)
        counts = np.maximum((last - first) // step + 1, 0)
        within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        ends: Ints = np.repeat(first, counts) + within * step
        return ends

    def floor_after(self, mark_us: int) -> int:
        """The smallest pane that a watermark leaves open."""
        if self.kind == "DUE":
            return mark_us + 1
        if self.kind == "HOP":
            # The first window with end > mark starts at the next grid point after mark − size.
            return self._scalar_floor(mark_us - self.size_us, self.slide_us) + self.slide_us
        if self.kind == "CUMULATE":
            return self._scalar_floor(mark_us, self.size_us)
        return self._scalar_floor(mark_us, self.size_us)

    def closing(self, before_us: int | None, after_us: int) -> tuple[int | None, int] | None:
        """The panes [first, limit) of windows with before < end ≤ after; None if none can end."""
        first = None if before_us is None else self.floor_after(before_us)
        if not self.shared:
            limit = self.floor_after(after_us)
            return None if limit == first else (first, limit)
        into = self.size_us if self.kind == "HOP" else 0
        last_end = self._scalar_floor(after_us - into, self.slide_us) + into
        passed = before_us is not None and last_end <= before_us
        return None if passed else (first, last_end)

    def _floor(self, us: Ints, grid: int) -> Ints:
        return us - np.mod(us - self.offset_us, grid)

    def _scalar_floor(self, us: int, grid: int) -> int:
        return us - (us - self.offset_us) % grid
