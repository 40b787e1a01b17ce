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

    @property
    def bucket_us(self) -> int:
        """How much of time one bucket of state holds to begin with."""
        if self.kind == "DUE":
            return 1_000_000
        return self.width_us * max(1, self.size_us // self.width_us // 16)

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
        if not self.shared:
            return np.unique(self.last_end(pane))
        step = self.slide_us
        last = self.last_end(pane)
        found = []
        for back in range(-(-self.size_us // step)):
            end = last - back * step
            found.append(end[self._covers(end, pane)])
        return np.unique(np.concatenate(found)) if found else np.array([], np.int64)

    def _covers(self, end: Ints, pane: Ints) -> npt.NDArray[np.bool_]:
        return (end > pane) & (self.start(end) <= pane)

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

    def _floor(self, us: Ints, grid: int) -> Ints:
        return us - np.mod(us - self.offset_us, grid)

    def _scalar_floor(self, us: int, grid: int) -> int:
        return us - (us - self.offset_us) % grid
