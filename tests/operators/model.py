"""What is late and which windows a row counts in, said once more in plain Python.

Written from the semantics and not from the operators: a row is judged by the watermark before its
epoch, a window [s, e) is over for new rows when e + lateness ≤ watermark. A session is judged after
it has been merged with the rows of its epoch and with the sessions that are still kept. Rows that
are exactly the gap apart belong together, so it is over when e + lateness < watermark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.operators.harness import Query, Row, normalize_keys
from tidegate.operators.watermark import END_US

Window = tuple[int | None, int | None]
NO_WINDOW: Window = (None, None)


@dataclass(frozen=True)
class Step:
    """The rows of an epoch, and the ticks by origin that came with them."""

    rows: tuple[Row, ...]
    marks: dict[int, int]


@dataclass
class Verdict:
    """Rows with the window they count in, rows that are late, and the watermark around epochs."""

    placed: list[tuple[Row, Window]] = field(default_factory=list)
    late: list[Row] = field(default_factory=list)
    before: list[int | None] = field(default_factory=list)
    after: list[int | None] = field(default_factory=list)


def windows_of(query: Query, ts: int) -> list[Window]:
    """All windows a time is in."""
    panes = query.panes
    if panes is None:
        return [NO_WINDOW]
    size, slide, offset = panes.size_us, panes.slide_us, panes.offset_us
    if panes.kind in ("TUMBLE", "DUE"):
        start = (ts - offset) // size * size + offset
        return [(start, start + size)]
    if panes.kind == "CUMULATE":
        start = (ts - offset) // size * size + offset
        return [(start, end) for end in range(start + slide, start + size + 1, slide) if end > ts]
    first = (ts - size - offset) // slide - 1
    starts = [number * slide + offset for number in range(first, first + size // slide + 4)]
    return [(start, start + size) for start in starts if start <= ts < start + size]


def watermarks(steps: Sequence[Step], origins: Sequence[int]) -> list[int | None]:
    """The watermark after each epoch: the smallest over origins, once all have sent a row."""
    marks: dict[int, int] = {}
    result: list[int | None] = []
    for step in steps:
        for origin, mark in step.marks.items():
            marks[origin] = max(mark, marks.get(origin, mark))
        known = [marks[origin] for origin in origins if origin in marks]
        result.append(min(known) if len(known) == len(origins) else None)
    return result


def judge(query: Query, steps: Sequence[Step], origins: Sequence[int]) -> Verdict:
    """Place all rows of all epochs."""
    after = watermarks(steps, origins)
    verdict = Verdict(before=[None, *after[:-1]], after=after)
    if query.gap_us is not None:
        _Sessions(query, verdict).run(steps)
        return verdict
    for step, before in zip(steps, verdict.before, strict=True):
        for row in step.rows:
            found = [w for w in windows_of(query, row.ts) if not over(w[1], before, query)]
            verdict.placed += [(row, window) for window in found]
            if not found:
                verdict.late.append(row)
    return verdict


def over(end: int | None, watermark: int | None, query: Query) -> bool:
    return end is not None and watermark is not None and end + query.lateness_us <= watermark


class _Sessions:
    """Sessions by key, as lists of the rows they have; those that are over are sealed."""

    def __init__(self, query: Query, verdict: Verdict) -> None:
        assert query.gap_us is not None
        self.query, self.verdict, self.gap = query, verdict, query.gap_us
        self.kept: dict[tuple[Any, ...], list[list[Row]]] = {}

    def run(self, steps: Sequence[Step]) -> None:
        for place, step in enumerate(steps):
            self._step(step.rows, self.verdict.before[place])
            self._seal(self.verdict.after[place])
        self._seal(END_US + self.query.lateness_us)

    def _window(self, rows: list[Row]) -> tuple[int, int]:
        times = [row.ts for row in rows]
        return min(times), max(times) + self.gap

    def _over(self, rows: list[Row], watermark: int | None) -> bool:
        end = self._window(rows)[1]
        return watermark is not None and end + self.query.lateness_us < watermark

    def _step(self, rows: Sequence[Row], before: int | None) -> None:
        """Rows join sessions that are kept; retractions then take rows out of them."""
        for key in {normalize_keys(row.keys) for row in rows}:
            own = self._left([row for row in rows if normalize_keys(row.keys) == key])
            known = self.kept.get(key, [])
            old = {id(row) for session in known for row in session}
            there: list[Row] = []
            for cluster in self._clusters([*known, *([row] for row in own if row.weight > 0)]):
                joins = any(id(row) in old for row in cluster)
                if not joins and self._over(cluster, before):
                    self.verdict.late += cluster
                else:
                    there += cluster
            for row in own:
                if row.weight < 0:
                    self._retract(there, row, before)
            self.kept[key] = self._clusters([[row] for row in there])

    def _content(self, row: Row) -> str:
        """Rows of a key are known by their time and by what the aggregates read of them."""
        return repr((row.ts, self.query.arguments_of(row)))

    def _left(self, rows: Sequence[Row]) -> list[Row]:
        """The rows of an epoch and a key, without those that were added and retracted in it."""
        left: list[Row] = []
        for row in rows:
            content = self._content(row)
            opposite = [r for r in left if r.weight == -row.weight and self._content(r) == content]
            if opposite:
                left.remove(opposite[0])
            else:
                left.append(row)
        return left

    def _retract(self, there: list[Row], gone: Row, before: int | None) -> None:
        wanted = self._content(gone)
        equal = [place for place, row in enumerate(there) if self._content(row) == wanted]
        if equal:
            del there[equal[-1]]
        elif self._over([gone], before):
            self.verdict.late.append(gone)

    def _clusters(self, pieces: list[list[Row]]) -> list[list[Row]]:
        """Pieces that are at most the gap apart, together."""
        clusters: list[list[Row]] = []
        for piece in sorted(pieces, key=self._window):
            if clusters and self._window(piece)[0] <= self._window(clusters[-1])[1]:
                clusters[-1] = [*clusters[-1], *piece]
            else:
                clusters.append(piece)
        return clusters

    def _seal(self, mark: int | None) -> None:
        for key, sessions in self.kept.items():
            done = [s for s in sessions if self._over(s, mark)]
            self.kept[key] = [s for s in sessions if s not in done]
            for session in done:
                window = self._window(session)
                self.verdict.placed += [(row, window) for row in session]


Key = tuple[Any, ...]


@dataclass
class Memory:
    """Rows by key, with a time to live that begins anew with every row of the key.

    Rows that are added and retracted in one epoch were never there. A retraction of a row that is
    not there changes nothing, and is counted.
    """

    ttl_us: int | None
    rows: dict[Key, Counter[Hashable]] = field(default_factory=dict)
    touched: dict[Key, int] = field(default_factory=dict)
    unknown: int = 0

    def forget(self, now_us: int) -> dict[Key, Counter[Hashable]]:
        """The keys whose time is over, with the rows that they had."""
        if self.ttl_us is None:
            return {}
        over = [key for key, last in self.touched.items() if last + self.ttl_us <= now_us]
        for key in over:
            del self.touched[key]
        return {key: self.rows.pop(key) for key in over}

    def add(self, rows: Iterable[tuple[Key, Hashable, int]], now_us: int) -> None:
        """Rows of an epoch: a key, what a row is, and 1 or −1."""
        came: Counter[tuple[Key, Hashable]] = Counter()
        for key, content, weight in rows:
            came[key, content] += weight
        for (key, content), weight in came.items():
            there = self.rows.get(key, Counter())[content]
            self.unknown += max(-there - weight, 0)
            weight = max(weight, -there)
            if weight:
                self.rows.setdefault(key, Counter())[content] += weight
                self.touched[key] = now_us

    def standing(self) -> list[tuple[Key, Hashable]]:
        """Every row that is there, with its key."""
        return [(key, row) for key, rows in self.rows.items() for row in rows.elements()]
