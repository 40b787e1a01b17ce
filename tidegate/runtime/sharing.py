"""Which operators of a pipeline step once for several streams.

Every stream has its own plan, offsets and heads, and could go on alone. But where streams have the
same operator over the same sources, are equally far and have the same state, the work is done once:
all of them get the same new heads, and so will be together in the next epoch too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tidegate.checkpoint.manifest import Manifest
from tidegate.physical.planner import OperatorPlan, ScanPlan
from tidegate.physical.same_work import below, do_the_same, is_shareable
from tidegate.plan import nodes as n
from tidegate.runtime.cutting import Epoch
from tidegate.runtime.members import Member

# Operators by stream and number that do the same work.
Group = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class _Candidate:
    """An operator; the keys of what steps with it, and the sources below."""

    stream: str
    plan: OperatorPlan
    keys: tuple[str, ...]
    sources: tuple[str, ...]

    def goes_with(self, other: _Candidate, epoch: Epoch, manifest: Manifest) -> bool:
        """Whether both read the same ranges now, and have the same state."""
        ranges = (
            epoch.cuts.get((self.stream, name)) is epoch.cuts.get((other.stream, name))
            for name in self.sources
        )
        states = zip(self.keys, other.keys, strict=True)
        known = manifest.operators
        return all(ranges) and all(known[a].heads == known[b].heads for a, b in states)


class Sharing:
    """The operators of some members that do the same, found once."""

    def __init__(self, members: Iterable[Member]) -> None:
        self._alike: list[list[_Candidate]] = []
        for member in members:
            for candidate in _candidates(member):
                self._add(candidate)

    def _add(self, candidate: _Candidate) -> None:
        for known in self._alike:
            if do_the_same(known[0].plan, candidate.plan):
                known.append(candidate)
                return
        self._alike.append([candidate])

    def groups(self, epoch: Epoch, manifest: Manifest) -> tuple[Group, ...]:
        """Those that step together in an epoch."""
        found: list[list[_Candidate]] = []
        for alike in self._alike:
            found += _together(alike, epoch, manifest)
        return tuple(
            tuple((item.stream, item.plan.number) for item in group)
            for group in found
            if len(group) > 1
        )


def _candidates(member: Member) -> list[_Candidate]:
    """Its operators that others could share."""
    if member.plan.guarded:
        return []
    keys = {number: key for number, (key, _) in member.operators().items()}
    return [
        _Candidate(member.key, plan, _keys(plan, keys), _sources(plan))
        for plan in member.plan.operators
        if is_shareable(plan)
    ]


def _keys(plan: OperatorPlan, keys: Mapping[int, str]) -> tuple[str, ...]:
    return tuple(keys[leaf.number] for leaf in below(plan) if isinstance(leaf, OperatorPlan))


def _sources(plan: OperatorPlan) -> tuple[str, ...]:
    scans = (leaf.node for leaf in below(plan) if isinstance(leaf, ScanPlan))
    return tuple(node.source.name.lower() for node in scans if isinstance(node, n.Scan))


def _together(
    alike: Sequence[_Candidate], epoch: Epoch, manifest: Manifest
) -> list[list[_Candidate]]:
    groups: list[list[_Candidate]] = []
    for candidate in alike if len(alike) > 1 else ():
        for group in groups:
            if group[0].goes_with(candidate, epoch, manifest):
                group.append(candidate)
                break
        else:
            groups.append([candidate])
    return groups
