"""MATCH_RECOGNIZE, read with the parser of our dialect.

sqlglot keeps the pattern as a text, and knows neither WITHIN nor SUBSET; here they are read, and
every clause remembers its place.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from sqlglot import exp
from sqlglot.tokenizer_core import Token, TokenType

from tidegate.types import Span

# ---- Row patterns of MATCH_RECOGNIZE: what PATTERN (A B+ C?) says, and facts that follow from it.


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
    """Return the maximum number of rows of a match, or None if it is unbounded."""
    if isinstance(pattern, Repetition):
        one = longest(pattern.part)
        return None if one is None or pattern.most is None else pattern.most * one
    if isinstance(pattern, Concatenation | Alternation):
        sizes = [longest(part) for part in pattern.parts]
        lengths = [size for size in sizes if size is not None]
        if len(lengths) < len(sizes):
            return None
        return sum(lengths) if isinstance(pattern, Concatenation) else max(lengths)
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
        positions = [first_place(part, names) for part in pattern.parts]
        return min((location for location in positions if location is not None), default=None)
    if not isinstance(pattern, Concatenation):
        return None
    before, places = 0, []
    for part in pattern.parts:
        location = first_place(part, names)
        if location is not None:
            places.append(before + location)
        if occurs(part, names):
            break
        before += shortest(part)
    return min(places, default=None)


def last_place(pattern: Pattern, names: frozenset[str]) -> int:
    """Return the minimum number of rows before the last row of these variables in a match.

    Every match has one (`occurs`).
    """
    if isinstance(pattern, Repetition):
        rest = (pattern.least - 1) * shortest(pattern.part)
        return rest + last_place(pattern.part, names)
    if isinstance(pattern, Alternation):
        return min(last_place(part, names) for part in pattern.parts)
    if not isinstance(pattern, Concatenation):
        return 0
    before, position = 0, 0
    for part in pattern.parts:
        if occurs(part, names):
            position = max(position, before + last_place(part, names))
        before += shortest(part)
    return position


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


# What stands for one row in other systems, and for a name nowhere.
_QUANTIFIERS = {TokenType.STAR: (0, None), TokenType.PLUS: (1, None), TokenType.PLACEHOLDER: (0, 1)}
_MARKS = frozenset(
    {*_QUANTIFIERS, TokenType.DQMARK, TokenType.L_BRACE, TokenType.R_BRACE, TokenType.COMMA}
)


class MatchRecognize(exp.MatchRecognize):
    """A clause on a table; `pattern` is a Pattern, and so is not printed back."""

    arg_types: ClassVar[dict[str, bool]] = {
        **exp.MatchRecognize.arg_types,
        "within": False,
        "subsets": False,
    }


def parse_match_recognize(parser: Any) -> MatchRecognize:
    """What follows the word MATCH_RECOGNIZE."""
    if not parser._match(TokenType.L_PAREN):
        parser.raise_error("Expecting (")
    parts: dict[str, Any] = {
        "partition_by": parser._parse_partition_by(),
        "order": parser._parse_order(),
    }
    if parser._match_text_seq("MEASURES"):
        parts["measures"] = parser._parse_csv(lambda: _measure(parser))
    parts["rows"] = _located(parser, _rows)
    parts["after"] = _located(parser, _after)
    if not parser._match_text_seq("PATTERN") or not parser._match(TokenType.L_PAREN):
        parser.raise_error("Expecting PATTERN (…)")
    parts["pattern"] = _pattern(parser)
    parser._match_r_paren()
    if parser._match_text_seq("WITHIN"):
        parts["within"] = parser._parse_interval() or parser._parse_unary()
    if parser._match_text_seq("SUBSET"):
        parts["subsets"] = parser._parse_csv(lambda: _subset(parser))
    if parser._match_text_seq("DEFINE"):
        parts["define"] = parser._parse_csv(lambda: _definition(parser))
    if not parser._match(TokenType.R_PAREN):
        parser.raise_error(f"Expecting ) after {parser._prev.text}")
    return MatchRecognize(**parts, alias=parser._parse_table_alias())


def _located(parser: Any, parse: Any) -> exp.Expr | None:
    first, index = parser._curr, parser._index
    node: exp.Expr | None = parse(parser)
    if node is not None and parser._index > index:
        node.meta["span"] = (first.start, parser._prev.end + 1)
    return node


def _measure(parser: Any) -> exp.Expr:
    """LAST(A.price) AS price; FINAL and RUNNING say the same where a match is one row."""
    parser._match_texts(("FINAL", "RUNNING"))
    value = _value(parser, "a measure")
    if not parser._match(TokenType.ALIAS):
        parser.raise_error("Expecting AS and a name after a measure")
    return exp.Alias(this=value, alias=_name(parser))


def _name(parser: Any) -> exp.Expr:
    name: exp.Expr | None = parser._parse_id_var()
    if name is None:
        parser.raise_error("Expecting a name")
    assert name is not None, "the parser raises"
    return name


def _rows(parser: Any) -> exp.Expr | None:
    if parser._match_text_seq("ONE", "ROW", "PER", "MATCH"):
        return exp.var("ONE ROW PER MATCH")
    if not parser._match_text_seq("ALL", "ROWS", "PER", "MATCH"):
        return None
    for words in ("SHOW EMPTY MATCHES", "OMIT EMPTY MATCHES", "WITH UNMATCHED ROWS"):
        parser._match_text_seq(*words.split())
    return exp.var("ALL ROWS PER MATCH")


def _after(parser: Any) -> exp.Expr | None:
    """Parse AFTER MATCH SKIP; `this` of the result names the variable."""
    if not parser._match_text_seq("AFTER", "MATCH"):
        return None
    parser._match_text_seq("SKIP")
    if parser._match_text_seq("PAST", "LAST", "ROW"):
        return exp.var("PAST LAST ROW")
    if parser._match_text_seq("TO", "NEXT", "ROW"):
        return exp.var("TO NEXT ROW")
    if not parser._match_text_seq("TO"):
        parser.raise_error("Expecting PAST LAST ROW, TO NEXT ROW, TO FIRST or TO LAST")
    way = "FIRST" if parser._match_text_seq("FIRST") else "LAST"
    if way == "LAST":
        parser._match_text_seq("LAST")
    return exp.Dot(this=exp.var(f"TO {way}"), expression=_name(parser))


def _subset(parser: Any) -> exp.Expr:
    """U = (A, B)"""
    name = _name(parser)
    if not parser._match(TokenType.EQ):
        parser.raise_error("Expecting = after the name of a subset")
    members = parser._parse_wrapped_csv(lambda: _name(parser))
    return exp.Tuple(expressions=[name, *members])


def _definition(parser: Any) -> exp.Expr:
    name = _name(parser)
    if not parser._match(TokenType.ALIAS):
        parser.raise_error(f"Expecting AS after {name.name}")
    return exp.Alias(this=_value(parser, "a condition"), alias=name)


def _value(parser: Any, what: str) -> exp.Expr:
    value: exp.Expr | None = parser._parse_disjunction()
    if value is None:
        parser.raise_error(f"Expecting {what}")
    assert value is not None, "the parser raises"
    return value


# The pattern


def _pattern(parser: Any) -> Pattern:
    """Up to the parenthesis that closes it, or a part of it."""
    choices = [_sequence(parser)]
    while parser._match(TokenType.PIPE):
        choices.append(_sequence(parser))
    return choices[0] if len(choices) == 1 else Alternation(tuple(choices))


def _sequence(parser: Any) -> Pattern:
    parts: list[Pattern] = []
    while parser._curr and parser._curr.token_type not in (TokenType.R_PAREN, TokenType.PIPE):
        parts.append(_quantified(parser))
    if not parts:
        parser.raise_error("Expecting a variable of the pattern")
    return parts[0] if len(parts) == 1 else Concatenation(tuple(parts))


def _quantified(parser: Any) -> Pattern:
    first: Token = parser._curr
    part = _part(parser)
    bounds = _bounds(parser)
    if bounds is None:
        return part
    least, most, reluctant = bounds
    reluctant = reluctant or bool(parser._match(TokenType.PLACEHOLDER))
    return Repetition(part, least, most, reluctant, Span(first.start, parser._prev.end + 1))


def _part(parser: Any) -> Pattern:
    token: Token = parser._curr
    span = Span(token.start, token.end + 1)
    if parser._match(TokenType.L_PAREN):
        inner = _pattern(parser)
        parser._match_r_paren()
        return inner
    if token.text in ("^", "$") or (token.text == "{" and _is(parser._next, "-")):
        what = "anchors such as ^ and $" if token.text != "{" else "exclusions such as {- A -}"
        return _skipped(parser, what, span)
    parser._advance()
    if token.text.upper() == "PERMUTE" and _is(parser._curr, "("):
        return _skipped(parser, "PERMUTE", span)
    if token.token_type in _MARKS or not token.text[:1].isidentifier():
        parser.raise_error("Expecting a variable of the pattern", token)
    return Variable(token.text.upper(), span)


def _is(token: Token | None, text: str) -> bool:
    return token is not None and token.text == text


def _skipped(parser: Any, what: str, span: Span) -> Pattern:
    """Leave out what is rejected anyway, up to where the pattern ends."""
    depth, names = 0, []
    while parser._curr and (depth or parser._curr.token_type is not TokenType.R_PAREN):
        depth += {"(": 1, ")": -1}.get(parser._curr.text, 0)
        names += [parser._curr.text.upper()] if parser._curr.text[:1].isidentifier() else []
        parser._advance()
    return Foreign(what, span, tuple(names))


def _bounds(parser: Any) -> tuple[int, int | None, bool] | None:
    """The least and the most of a quantifier, and whether it is reluctant already (??)."""
    for kind, (least, most) in _QUANTIFIERS.items():
        if parser._match(kind):
            return least, most, False
    if parser._match(TokenType.DQMARK):
        return 0, 1, True
    if not parser._curr or parser._curr.text != "{" or _is(parser._next, "-"):
        return None
    parser._advance()
    low = _number(parser)
    high = _number(parser) if parser._match(TokenType.COMMA) else low
    if not parser._match(TokenType.R_BRACE) or (low is None and high is None):
        parser.raise_error("Expecting a quantifier such as {2,3}")
    return low or 0, high, False


def _number(parser: Any) -> int | None:
    if not parser._match(TokenType.NUMBER):
        return None
    if not parser._prev.text.isdecimal():
        parser.raise_error("Expecting a whole number")
    return int(parser._prev.text)
