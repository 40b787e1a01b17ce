"""The parser of MATCH_RECOGNIZE, and the row patterns that it returns.

sqlglot keeps the pattern as text and supports neither WITHIN nor SUBSET. This parser reads all
clauses, with their spans.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from sqlglot import exp
from sqlglot.tokenizer_core import Token, TokenType

from tidegate.types import Span

# ---- Row patterns, such as PATTERN (A B+ C?), and their properties


@dataclass(frozen=True)
class Variable:
    """One row that is mapped to a variable. Names are upper-case, because case does not matter."""

    name: str
    span: Span


@dataclass(frozen=True)
class Concatenation:
    """The parts in sequence."""

    parts: tuple[Pattern, ...]


@dataclass(frozen=True)
class Alternation:
    """The first part that leads to a match."""

    parts: tuple[Pattern, ...]


@dataclass(frozen=True)
class Repetition:
    """A part with a quantifier: repeated as often as possible, or as rarely if `reluctant`."""

    part: Pattern
    minimum: int
    maximum: int | None
    reluctant: bool
    span: Span


@dataclass(frozen=True)
class UnsupportedPattern:
    """Syntax of other systems that is not supported: anchors, exclusions and PERMUTE."""

    description: str
    span: Span
    names: tuple[str, ...] = ()


Pattern = Variable | Concatenation | Alternation | Repetition | UnsupportedPattern


def walk(pattern: Pattern) -> Iterator[Pattern]:
    """Yield a pattern and all its parts, in the order of the text."""
    yield pattern
    if isinstance(pattern, Concatenation | Alternation):
        for part in pattern.parts:
            yield from walk(part)
    elif isinstance(pattern, Repetition):
        yield from walk(pattern.part)


def variables(pattern: Pattern) -> tuple[str, ...]:
    """Return the variables of a pattern, in the order of their first occurrence."""
    return tuple(dict.fromkeys(p.name for p in walk(pattern) if isinstance(p, Variable)))


def min_length(pattern: Pattern) -> int:
    """Return the minimum number of rows of a match."""
    if isinstance(pattern, Concatenation):
        return sum(map(min_length, pattern.parts))
    if isinstance(pattern, Alternation):
        return min(map(min_length, pattern.parts))
    if isinstance(pattern, Repetition):
        return pattern.minimum * min_length(pattern.part)
    return 1


def max_length(pattern: Pattern) -> int | None:
    """Return the maximum number of rows of a match, or None if it is unbounded."""
    if isinstance(pattern, Repetition):
        one = max_length(pattern.part)
        return None if one is None or pattern.maximum is None else pattern.maximum * one
    if isinstance(pattern, Concatenation | Alternation):
        sizes = [max_length(part) for part in pattern.parts]
        lengths = [size for size in sizes if size is not None]
        if len(lengths) < len(sizes):
            return None
        return sum(lengths) if isinstance(pattern, Concatenation) else max(lengths)
    return 1


def always_occurs(pattern: Pattern, names: frozenset[str]) -> bool:
    """Return whether every match contains a row of one of these variables."""
    if isinstance(pattern, Variable):
        return pattern.name in names
    if isinstance(pattern, Concatenation):
        return any(always_occurs(part, names) for part in pattern.parts)
    if isinstance(pattern, Alternation):
        return all(always_occurs(part, names) for part in pattern.parts)
    return (
        isinstance(pattern, Repetition)
        and pattern.minimum > 0
        and always_occurs(pattern.part, names)
    )


def first_position(pattern: Pattern, names: frozenset[str]) -> int | None:
    """Return the minimum number of rows before the first row of these variables.

    None if no match contains such a row.
    """
    if isinstance(pattern, Variable):
        return 0 if pattern.name in names else None
    if isinstance(pattern, Repetition):
        return first_position(pattern.part, names) if pattern.maximum != 0 else None
    if isinstance(pattern, Alternation):
        positions = [first_position(part, names) for part in pattern.parts]
        return min((position for position in positions if position is not None), default=None)
    if not isinstance(pattern, Concatenation):
        return None
    before, candidates = 0, []
    for part in pattern.parts:
        position = first_position(part, names)
        if position is not None:
            candidates.append(before + position)
        if always_occurs(part, names):
            break
        before += min_length(part)
    return min(candidates, default=None)


def last_position(pattern: Pattern, names: frozenset[str]) -> int:
    """Return the minimum number of rows before the last row of these variables in a match.

    Every match must contain such a row (`always_occurs`).
    """
    if isinstance(pattern, Repetition):
        rest = (pattern.minimum - 1) * min_length(pattern.part)
        return rest + last_position(pattern.part, names)
    if isinstance(pattern, Alternation):
        return min(last_position(part, names) for part in pattern.parts)
    if not isinstance(pattern, Concatenation):
        return 0
    before, position = 0, 0
    for part in pattern.parts:
        if always_occurs(part, names):
            position = max(position, before + last_position(part, names))
        before += min_length(part)
    return position


def to_text(pattern: Pattern) -> str:
    """Return the SQL text of a pattern."""
    if isinstance(pattern, Variable):
        return pattern.name
    if isinstance(pattern, Concatenation):
        return " ".join(_parenthesized(part, Alternation) for part in pattern.parts)
    if isinstance(pattern, Alternation):
        return " | ".join(to_text(part) for part in pattern.parts)
    if isinstance(pattern, Repetition):
        part = _parenthesized(pattern.part, Alternation | Concatenation | Repetition)
        return part + _quantifier_text(pattern) + ("?" if pattern.reluctant else "")
    return pattern.description


def _parenthesized(part: Pattern, kinds: type | object) -> str:
    text = to_text(part)
    return f"({text})" if isinstance(part, kinds) else text  # type: ignore[arg-type]


def _quantifier_text(repetition: Repetition) -> str:
    minimum, maximum = repetition.minimum, repetition.maximum
    short = {(0, 1): "?", (0, None): "*", (1, None): "+"}.get((minimum, maximum))
    if short is not None:
        return short
    if minimum == maximum:
        return f"{{{minimum}}}"
    return f"{{{minimum},{'' if maximum is None else maximum}}}"


_QUANTIFIERS = {TokenType.STAR: (0, None), TokenType.PLUS: (1, None), TokenType.PLACEHOLDER: (0, 1)}
# Symbols that cannot be variables.
_SYMBOLS = frozenset(
    {*_QUANTIFIERS, TokenType.DQMARK, TokenType.L_BRACE, TokenType.R_BRACE, TokenType.COMMA}
)


class MatchRecognize(exp.MatchRecognize):
    """The clause of a table. `pattern` is a Pattern, so sqlglot cannot print the clause."""

    arg_types: ClassVar[dict[str, bool]] = {
        **exp.MatchRecognize.arg_types,
        "within": False,
        "subsets": False,
    }


def parse_match_recognize(parser: Any) -> MatchRecognize:
    """Parse the clause after the keyword MATCH_RECOGNIZE."""
    if not parser._match(TokenType.L_PAREN):
        parser.raise_error("Expecting (")
    parts: dict[str, Any] = {
        "partition_by": parser._parse_partition_by(),
        "order": parser._parse_order(),
    }
    if parser._match_text_seq("MEASURES"):
        parts["measures"] = parser._parse_csv(lambda: _parse_measure(parser))
    parts["rows"] = _with_span(parser, _parse_rows_per_match)
    parts["after"] = _with_span(parser, _parse_skip)
    if not parser._match_text_seq("PATTERN") or not parser._match(TokenType.L_PAREN):
        parser.raise_error("Expecting PATTERN (…)")
    parts["pattern"] = _parse_pattern(parser)
    parser._match_r_paren()
    if parser._match_text_seq("WITHIN"):
        parts["within"] = parser._parse_interval() or parser._parse_unary()
    if parser._match_text_seq("SUBSET"):
        parts["subsets"] = parser._parse_csv(lambda: _parse_subset(parser))
    if parser._match_text_seq("DEFINE"):
        parts["define"] = parser._parse_csv(lambda: _parse_definition(parser))
    if not parser._match(TokenType.R_PAREN):
        parser.raise_error(f"Expecting ) after {parser._prev.text}")
    return MatchRecognize(**parts, alias=parser._parse_table_alias())


def _with_span(parser: Any, parse: Any) -> exp.Expr | None:
    first, index = parser._curr, parser._index
    node: exp.Expr | None = parse(parser)
    if node is not None and parser._index > index:
        node.meta["span"] = (first.start, parser._prev.end + 1)
    return node


def _parse_measure(parser: Any) -> exp.Expr:
    """Parse LAST(A.price) AS price.

    With ONE ROW PER MATCH, FINAL and RUNNING mean the same.
    """
    parser._match_texts(("FINAL", "RUNNING"))
    value = _parse_value(parser, "a measure")
    if not parser._match(TokenType.ALIAS):
        parser.raise_error("Expecting AS and a name after a measure")
    return exp.Alias(this=value, alias=_parse_name(parser))


def _parse_name(parser: Any) -> exp.Expr:
    name: exp.Expr | None = parser._parse_id_var()
    if name is None:
        parser.raise_error("Expecting a name")
    assert name is not None, "the parser raises"
    return name


def _parse_rows_per_match(parser: Any) -> exp.Expr | None:
    if parser._match_text_seq("ONE", "ROW", "PER", "MATCH"):
        return exp.var("ONE ROW PER MATCH")
    if not parser._match_text_seq("ALL", "ROWS", "PER", "MATCH"):
        return None
    for words in ("SHOW EMPTY MATCHES", "OMIT EMPTY MATCHES", "WITH UNMATCHED ROWS"):
        parser._match_text_seq(*words.split())
    return exp.var("ALL ROWS PER MATCH")


def _parse_skip(parser: Any) -> exp.Expr | None:
    """Parse AFTER MATCH SKIP. For TO FIRST and TO LAST, the result contains the variable."""
    if not parser._match_text_seq("AFTER", "MATCH"):
        return None
    parser._match_text_seq("SKIP")
    if parser._match_text_seq("PAST", "LAST", "ROW"):
        return exp.var("PAST LAST ROW")
    if parser._match_text_seq("TO", "NEXT", "ROW"):
        return exp.var("TO NEXT ROW")
    if not parser._match_text_seq("TO"):
        parser.raise_error("Expecting PAST LAST ROW, TO NEXT ROW, TO FIRST or TO LAST")
    end = "FIRST" if parser._match_text_seq("FIRST") else "LAST"
    if end == "LAST":
        parser._match_text_seq("LAST")
    return exp.Dot(this=exp.var(f"TO {end}"), expression=_parse_name(parser))


def _parse_subset(parser: Any) -> exp.Expr:
    """Parse U = (A, B)."""
    name = _parse_name(parser)
    if not parser._match(TokenType.EQ):
        parser.raise_error("Expecting = after the name of a subset")
    members = parser._parse_wrapped_csv(lambda: _parse_name(parser))
    return exp.Tuple(expressions=[name, *members])


def _parse_definition(parser: Any) -> exp.Expr:
    name = _parse_name(parser)
    if not parser._match(TokenType.ALIAS):
        parser.raise_error(f"Expecting AS after {name.name}")
    return exp.Alias(this=_parse_value(parser, "a condition"), alias=name)


def _parse_value(parser: Any, expected: str) -> exp.Expr:
    value: exp.Expr | None = parser._parse_disjunction()
    if value is None:
        parser.raise_error(f"Expecting {expected}")
    assert value is not None, "the parser raises"
    return value


# ---- The pattern


def _parse_pattern(parser: Any) -> Pattern:
    """Parse a pattern up to its closing parenthesis."""
    choices = [_parse_sequence(parser)]
    while parser._match(TokenType.PIPE):
        choices.append(_parse_sequence(parser))
    return choices[0] if len(choices) == 1 else Alternation(tuple(choices))


def _parse_sequence(parser: Any) -> Pattern:
    parts: list[Pattern] = []
    while parser._curr and parser._curr.token_type not in (TokenType.R_PAREN, TokenType.PIPE):
        parts.append(_parse_quantified(parser))
    if not parts:
        parser.raise_error("Expecting a variable of the pattern")
    return parts[0] if len(parts) == 1 else Concatenation(tuple(parts))


def _parse_quantified(parser: Any) -> Pattern:
    first: Token = parser._curr
    part = _parse_part(parser)
    bounds = _parse_quantifier(parser)
    if bounds is None:
        return part
    minimum, maximum, reluctant = bounds
    reluctant = reluctant or bool(parser._match(TokenType.PLACEHOLDER))
    return Repetition(part, minimum, maximum, reluctant, Span(first.start, parser._prev.end + 1))


def _parse_part(parser: Any) -> Pattern:
    token: Token = parser._curr
    span = Span(token.start, token.end + 1)
    if parser._match(TokenType.L_PAREN):
        inner = _parse_pattern(parser)
        parser._match_r_paren()
        return inner
    if token.text in ("^", "$") or (token.text == "{" and _is(parser._next, "-")):
        is_anchor = token.text != "{"
        description = "anchors such as ^ and $" if is_anchor else "exclusions such as {- A -}"
        return _skip_unsupported(parser, description, span)
    parser._advance()
    if token.text.upper() == "PERMUTE" and _is(parser._curr, "("):
        return _skip_unsupported(parser, "PERMUTE", span)
    if token.token_type in _SYMBOLS or not token.text[:1].isidentifier():
        parser.raise_error("Expecting a variable of the pattern", token)
    return Variable(token.text.upper(), span)


def _is(token: Token | None, text: str) -> bool:
    return token is not None and token.text == text


def _skip_unsupported(parser: Any, description: str, span: Span) -> Pattern:
    """Skip the rest of the pattern, which the binder rejects, but keep its variables."""
    depth, names = 0, []
    while parser._curr and (depth or parser._curr.token_type is not TokenType.R_PAREN):
        depth += {"(": 1, ")": -1}.get(parser._curr.text, 0)
        names += [parser._curr.text.upper()] if parser._curr.text[:1].isidentifier() else []
        parser._advance()
    return UnsupportedPattern(description, span, tuple(names))


def _parse_quantifier(parser: Any) -> tuple[int, int | None, bool] | None:
    """Parse a quantifier: its minimum and maximum, and True for the reluctant `??`."""
    for kind, (minimum, maximum) in _QUANTIFIERS.items():
        if parser._match(kind):
            return minimum, maximum, False
    if parser._match(TokenType.DQMARK):
        return 0, 1, True
    if not parser._curr or parser._curr.text != "{" or _is(parser._next, "-"):
        return None
    parser._advance()
    low = _parse_number(parser)
    high = _parse_number(parser) if parser._match(TokenType.COMMA) else low
    if not parser._match(TokenType.R_BRACE) or (low is None and high is None):
        parser.raise_error("Expecting a quantifier such as {2,3}")
    return low or 0, high, False


def _parse_number(parser: Any) -> int | None:
    if not parser._match(TokenType.NUMBER):
        return None
    if not parser._prev.text.isdecimal():
        parser.raise_error("Expecting a whole number")
    return int(parser._prev.text)
