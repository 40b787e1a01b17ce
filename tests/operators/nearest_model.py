"""What joins by nearness mean, row by row: a model that forgets nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from tidegate.operators.join.asof import BACKWARD, FORWARD, NEAREST, AsofBounds
from tidegate.operators.watermark import END_US


class Fact(NamedTuple):
    """A row of the left."""

    key: str | None
    at: int
    number: int


class Version(NamedTuple):
    """A row of the right; `alive` is false for a tombstone."""

    key: str | None
    at: int
    number: int
    alive: bool = True


Pair = tuple[Fact, Version | None]


@dataclass
class Waiting:
    fact: Fact
    until: int
    back: Version | None


@dataclass
class Model:
    """An epoch gives the pairs that come out, and counts what came too late."""

    nearest: AsofBounds
    how: str
    unripe: list[Fact] = field(default_factory=list)
    waiting: list[Waiting] = field(default_factory=list)
    versions: list[Version] = field(default_factory=list)
    late: int = 0

    def epoch(
        self, facts: list[Fact], versions: list[Version], before: int | None, after: int | None
    ) -> list[Pair]:
        in_time = [fact for fact in facts if before is None or fact.at >= before]
        self.late += sum(
            fact.key is not None or self.how == "LEFT" for fact in facts if fact not in in_time
        )
        self.unripe += [fact for fact in in_time if fact.key is not None or self.how == "LEFT"]
        behind, useless = self._take([v for v in versions if v.key is not None], before)
        pairs: list[Pair] = []
        if after is not None:
            ripe = [fact for fact in self.unripe if self._ripe(fact) <= after]
            self.unripe = [fact for fact in self.unripe if self._ripe(fact) > after]
            if self.nearest.direction == BACKWARD:
                pairs = [(fact, self._alive(self._back(fact))) for fact in ripe]
            else:
                pairs, used = self._on(ripe, behind, after)
                useless = [version for version in useless if version not in used]
        self.late += len(useless)
        return [pair for pair in pairs if pair[1] is not None or self.how == "LEFT"]

    def _floor(self, mark: int) -> int:
        bound = {BACKWARD: self.nearest.lower, FORWARD: self.nearest.upper}
        return mark - max(0, int(bound.get(self.nearest.direction) or 0))

    def _ripe(self, fact: Fact) -> int:
        bound = {BACKWARD: self.nearest.lower, FORWARD: self.nearest.upper}
        return fact.at - int(bound.get(self.nearest.direction) or 0) + 1

    def _take(
        self, versions: list[Version], before: int | None
    ) -> tuple[list[Version], list[Version]]:
        """Late versions, and those of them that no row of the left can see."""
        behind = [v for v in versions if before is not None and v.at < self._floor(before)]
        ahead = [v for v in versions if v not in behind]
        used: list[Version] = []
        if self.nearest.direction != FORWARD and before is not None:
            floor = self._floor(before)
            for version in behind:
                rivals = [v for v in (*self.versions, *behind) if v.key == version.key]
                rivals = [v for v in rivals if v.at < floor]
                if self.nearest.first:
                    stands = min(rivals, key=lambda v: (v.at, v.number))
                else:
                    stands = max(rivals, key=lambda v: (v.at, v.number))
                if stands is version and self._seen(version, before):
                    used.append(version)
        self.versions += [*ahead, *used]
        return behind, [v for v in behind if v not in used]

    def _seen(self, version: Version, mark: int) -> bool:
        """Whether a row of the left that is not answered yet may reach it."""
        if self.nearest.upper is None:
            return True
        earliest = mark
        if self.nearest.direction == BACKWARD:
            earliest += min(0, int(self.nearest.lower or 0))
        return earliest - version.at <= self.nearest.upper

    def _alive(self, version: Version | None) -> Version | None:
        return version if version is not None and version.alive else None

    def _back(self, fact: Fact) -> Version | None:
        lower = self.nearest.lower if self.nearest.direction == BACKWARD else 0
        upper = self.nearest.upper
        seen = [
            v
            for v in self.versions
            if v.key == fact.key
            and fact.at - v.at >= (lower or 0)
            and (upper is None or self.nearest.first or fact.at - v.at <= upper)
        ]
        choose = min if self.nearest.first else max
        return choose(seen, key=lambda v: (v.at, v.number)) if seen else None

    def _on(
        self, ripe: list[Fact], behind: list[Version], after: int
    ) -> tuple[list[Pair], list[Version]]:
        both = self.nearest.direction == NEAREST
        for fact in ripe:
            lower = self.nearest.lower
            until = END_US if lower is None else fact.at - int(lower) + 1
            back = self._back(fact) if both else None
            if back is not None:
                until = min(until, 2 * fact.at - back.at)
            if fact.key is None:
                until = after
            self.waiting.append(Waiting(fact, until, back))
        pairs: list[Pair] = []
        used: list[Version] = []
        still = []
        for row in self.waiting:
            found = self._next(row, [*self.versions, *behind], after)
            if found is not None:
                used.append(found)
                pairs.append((row.fact, found))
            elif row.until <= after:
                pairs.append((row.fact, row.back))
            else:
                still.append(row)
        self.waiting = still
        return pairs, used

    def _next(self, row: Waiting, versions: list[Version], after: int) -> Version | None:
        fact, both = row.fact, self.nearest.direction == NEAREST
        upper = -1 if both else self.nearest.upper
        assert upper is not None
        lower = self.nearest.lower
        found = [
            v
            for v in versions
            if v.key == fact.key
            and v.at < after
            and fact.at - v.at <= upper
            and (lower is None or fact.at - v.at >= lower)
        ]
        if not found or fact.key is None:
            return None
        best = min(found, key=lambda v: (v.at, -v.number))
        nearer = row.back is None or best.at - fact.at < fact.at - row.back.at
        return best if not both or nearer else None
