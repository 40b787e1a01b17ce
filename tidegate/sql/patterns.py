"""Row patterns of MATCH_RECOGNIZE: what PATTERN (A B+ C?) says, and facts that follow from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tidegate.types import Span


@dataclass(frozen=True)
class Variable:
    """One row that is mapped to a variable; case makes no difference, so its name is in capitals"""

    name: str
    span: Span


@dataclass(frozen=True)
class Concatenation:
    """One part after the other."""

    parts: tuple[Pattern, ...]


@dataclass(frozen=True)
class Alternation:
    """The first of the parts that leads to a match."""

    parts: tuple[Pattern, ...]


@dataclass(frozen=True)
class Repetition:
    """A part several times, as often as possible, or with `reluctant` as seldom as possible."""

    part: Pattern
    least: int
    most: int | None
    reluctant: bool
    span: Span


@dataclass(frozen=True)
class Foreign:
    """What other systems know and we do not: anchors, exclusions, PERMUTE; with its variables."""

    what: str
    span: Span
    names: tuple[str, ...] = ()


Pattern = Variable | Concatenation | Alternation | Repetition | Foreign


def walk(pattern: Pattern) -> Iterator[Pattern]:
    """The pattern and all its parts, as they are written."""
    yield pattern
    if isinstance(pattern, Concatenation | Alternation):
        for part in pattern.parts:
            yield from walk(part)
    elif isinstance(pattern, Repetition):
        yield from walk(pattern.part)


def variables(pattern: Pattern) -> tuple[str, ...]:
    """Its variables in the order in which they are written first."""
    return tuple(dict.fromkeys(p.name for p in walk(pattern) if isinstance(p, Variable)))


def shortest(pattern: Pattern) -> int:
    """The fewest rows of a match."""
    if isinstance(pattern, Concatenation):
        return sum(map(shortest, pattern.parts))
    if isinstance(pattern, Alternation):
        return min(map(shortest, pattern.parts))
    if isinstance(pattern, Repetition):
        return pattern.least * shortest(pattern.part)
    return 1


def longest(pattern: Pattern) -> int | None:
    """The most rows of a match; None if there is no such number."""
    if isinstance(pattern, Repetition):
        one = longest(pattern.part)
        return None if one is None or pattern.most is None else pattern.most * one
    if isinstance(pattern, Concatenation | Alternation):
        sizes = [longest(part) for part in pattern.parts]
        known = [size for size in sizes if size is not None]
        if len(known) < len(sizes):
            return None
        return sum(known) if isinstance(pattern, Concatenation) else max(known)
    return 1


def occurs(pattern: Pattern, names: frozenset[str]) -> bool:
    """Whether every match has a row of one of these variables."""
    if isinstance(pattern, Variable):
        return pattern.name in names
    if isinstance(pattern, Concatenation):
        return any(occurs(part, names) for part in pattern.parts)
    if isinstance(pattern, Alternation):
        return all(occurs(part, names) for part in pattern.parts)
    return isinstance(pattern, Repetition) and pattern.least > 0 and occurs(pattern.part, names)


def first_place(pattern: Pattern, names: frozenset[str]) -> int | None:
    """The least number of rows before the first row of these variables; None if there is none."""
    if isinstance(pattern, Variable):
        return 0 if pattern.name in names else None
    if isinstance(pattern, Repetition):
        return first_place(pattern.part, names) if pattern.most != 0 else None
    if isinstance(pattern, Alternation):
        found = [first_place(part, names) for part in pattern.parts]
        return min((place for place in found if place is not None), default=None)
    if not isinstance(pattern, Concatenation):
        return None
    before, places = 0, []
    for part in pattern.parts:
        place = first_place(part, names)
        if place is not None:
            places.append(before + place)
        if occurs(part, names):
            break
        before += shortest(part)
    return min(places, default=None)


def last_place(pattern: Pattern, names: frozenset[str]) -> int:
    """So many rows stand before the last row of these variables at least, in every match.

    Every match has one (`occurs`).
    """
    if isinstance(pattern, Repetition):
        rest = (pattern.least - 1) * shortest(pattern.part)
        return rest + last_place(pattern.part, names)
    if isinstance(pattern, Alternation):
        return min(last_place(part, names) for part in pattern.parts)
    if not isinstance(pattern, Concatenation):
        return 0
    before, found = 0, 0
    for part in pattern.parts:
        if occurs(part, names):
            found = max(found, before + last_place(part, names))
        before += shortest(part)
    return found


def text_of(pattern: Pattern) -> str:
    """The pattern as one would write it."""
    if isinstance(pattern, Variable):
        return pattern.name
    if isinstance(pattern, Concatenation):
        return " ".join(_enclosed(part, Alternation) for part in pattern.parts)
    if isinstance(pattern, Alternation):
        return " | ".join(text_of(part) for part in pattern.parts)
    if isinstance(pattern, Repetition):
        part = _enclosed(pattern.part, Alternation | Concatenation | Repetition)
        return part + _quantifier(pattern) + ("?" if pattern.reluctant else "")
    return pattern.what


def _enclosed(part: Pattern, kinds: type | object) -> str:
    text = text_of(part)
    return f"({text})" if isinstance(part, kinds) else text  # type: ignore[arg-type]


def _quantifier(repetition: Repetition) -> str:
    least, most = repetition.least, repetition.most
    short = {(0, 1): "?", (0, None): "*", (1, None): "+"}.get((least, most))
    if short is not None:
        return short
    if least == most:
        return f"{{{least}}}"
    return f"{{{least},{'' if most is None else most}}}"
