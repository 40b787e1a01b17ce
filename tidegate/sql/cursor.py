"""A cursor over the tokens of one statement."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot.tokenizer_core import Token, TokenType

from tidegate.errors import Location, SqlError
from tidegate.sql.quoting import quote_identifier
from tidegate.types import Span

_OPENING = {TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE}
_CLOSING = {TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE}


def backticks_hint(name: str) -> str:
    """Return the hint for a name that needs backticks."""
    return (
        f"quote it with backticks: {quote_identifier(name)}; other names consist of letters, "
        "digits and _."
    )


class Cursor:
    """Reads the tokens of a statement from left to right. Its errors have a location.

    Errors show `text`, in which secrets are masked. A statement stores its text from `original`.
    """

    def __init__(
        self, tokens: Sequence[Token], text: str, file: str | None, original: str | None = None
    ) -> None:
        assert tokens, "a statement has tokens"
        assert original is None or len(original) == len(text), "both texts have the same spans"
        self.tokens = list(tokens)
        self.text = text
        self.original = original if original is not None else text
        self.file = file
        self.index = 0

    @property
    def statement_span(self) -> Span:
        return Span(self.tokens[0].start, self.tokens[-1].end + 1)

    @property
    def statement_text(self) -> str:
        return self.original[self.tokens[0].start : self.tokens[-1].end + 1]

    @property
    def at_end(self) -> bool:
        return self.index >= len(self.tokens)

    def peek(self, ahead: int = 0) -> str:
        """Return the text of a following token without consuming it; '' at the end."""
        index = self.index + ahead
        return self.tokens[index].text if index < len(self.tokens) else ""

    def at_paren(self) -> bool:
        return not self.at_end and self.tokens[self.index].token_type == TokenType.L_PAREN

    def match(self, *words: str) -> bool:
        """Consume these keywords if they come next."""
        for ahead, word in enumerate(words):
            index = self.index + ahead
            if index >= len(self.tokens) or self.tokens[index].text.upper() != word:
                return False
            if self.tokens[index].token_type in (TokenType.STRING, TokenType.IDENTIFIER):
                return False
        self.index += len(words)
        return True

    def take(self, expected: str) -> Token:
        """Consume and return the next token; raise an error at the end of the statement."""
        if self.at_end:
            raise self.error(f"expected {expected}, found the end of the statement")
        token = self.tokens[self.index]
        self.index += 1
        return token

    def expect(self, *words: str, hint: str | None = None) -> None:
        if not self.match(*words):
            actual = self.peek() or "the end of the statement"
            expected = "a comma" if words == (",",) else " ".join(words)
            raise self.error(f"expected {expected}, found {actual}", hint)

    def expect_end(self) -> None:
        if not self.at_end:
            raise self.error(
                f"expected the end of the statement, found {self.peek()}",
                "separate statements with ;",
            )

    def name(self, expected: str) -> tuple[str, Span]:
        """Consume an identifier, with or without backticks."""
        token = self.take(expected)
        is_plain = token.text.replace("_", "a").isalnum() and not token.text[0].isdigit()
        span = Span(token.start, token.end + 1)
        if token.token_type == TokenType.STRING:
            string = self.text[span.start : span.end]
            raise self.error(
                f"expected {expected}, found the string {string}",
                f"quote names with backticks: {quote_identifier(token.text)}.",
                span,
            )
        if not is_plain and token.token_type != TokenType.IDENTIFIER:
            raise self.error(f"expected {expected}, found {token.text}", span=span)
        if is_plain:
            self._reject_hyphens(span)
        return token.text, span

    def _reject_hyphens(self, span: Span) -> None:
        """Raise an error for a name with hyphens, such as my-stream, which needs backticks."""
        following = self.tokens[self.index :]
        end = span.end
        for hyphen, word in zip(following[::2], following[1::2], strict=False):
            adjacent = hyphen.text == "-" and (hyphen.start, word.start) == (end, end + 1)
            if not adjacent or not word.text.replace("_", "a").isalnum():
                break
            end = word.end + 1
        if end > span.end:
            raise self.error(
                f"{self.text[span.start : end]} is not a valid name",
                backticks_hint(self.text[span.start : end]),
                Span(span.start, end),
            )

    def option_name(self, expected: str) -> tuple[str, Span]:
        """Consume the name of an option, which may contain dots or be a quoted string."""
        if not self.at_end and self.tokens[self.index].token_type == TokenType.STRING:
            token = self.take(expected)
            return token.text, Span(token.start, token.end + 1)
        name, span = self.name(expected)
        while self.peek() == ".":
            self.take(".")
            part, part_span = self.name("a name")
            name, span = f"{name}.{part}", span.cover(part_span)
        return name, span

    def names_in_parens(self) -> list[str]:
        self.expect("(")
        names = [self.name("a column")[0]]
        while self.match(","):
            names.append(self.name("a column")[0])
        self.expect(")")
        return names

    def option_value(self) -> tuple[str, Span]:
        """Consume a string, a number or a word; return its text."""
        token = self.take("a value")
        span = Span(token.start, token.end + 1)
        if token.token_type in (TokenType.STRING, TokenType.RAW_STRING):
            return token.text, span
        if token.text == "-" and not self.at_end:
            number = self.take("a number")
            return f"-{number.text}", span.cover(Span(number.start, number.end + 1))
        if token.token_type in _OPENING | _CLOSING or token.text in {",", "="}:
            raise self.error(f"expected a value, found {token.text}", span=span)
        return token.text, span

    def take_until_comma(self, in_type: bool) -> list[Token]:
        """Consume the tokens before the comma or closing parenthesis that ends this item."""
        tokens: list[Token] = []
        depth = 0
        while not self.at_end:
            token = self.tokens[self.index]
            if token.token_type in _OPENING:
                depth += 1
            elif token.token_type in _CLOSING:
                if depth == 0:
                    break
                depth -= 1
            elif in_type and set(token.text) <= {"<", ">"}:
                depth += token.text.count("<") - token.text.count(">")
            elif token.token_type == TokenType.COMMA and depth == 0:
                break
            tokens.append(token)
            self.index += 1
        return tokens

    def take_rest(self) -> list[Token]:
        """Consume the remaining tokens."""
        tokens = self.tokens[self.index :]
        self.index = len(self.tokens)
        return tokens

    def location(self, span: Span | None = None) -> Location:
        """Return the location of a span; by default of the next token, or the statement's end."""
        if span is None:
            if self.at_end:
                end = self.tokens[-1].end + 1
                span = Span(max(end - 1, 0), end)
            else:
                token = self.tokens[self.index]
                span = Span(token.start, token.end + 1)
        return Location(self.text, span.start, span.end, self.file)

    def error(self, message: str, hint: str | None = None, span: Span | None = None) -> SqlError:
        return SqlError("TG-101", message, location=self.location(span), hint=hint)
