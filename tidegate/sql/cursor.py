"""A cursor over the tokens of one statement."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot.tokenizer_core import Token, TokenType

from tidegate.errors import Location, SqlError
from tidegate.types import Span

_OPENING = {TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE}
_CLOSING = {TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE}


def backticked(name: str) -> str:
    """Quote a name with backticks if it is not a plain word."""
    return "`" + name.replace("`", "``") + "`"


class Cursor:
    """Walks tokens left to right; every error it raises has a place."""

    def __init__(
        self, tokens: Sequence[Token], text: str, file: str | None, own: str | None = None
    ) -> None:
        assert tokens, "a statement has tokens"
        assert own is None or len(own) == len(text), "places must fit both texts"
        self.tokens = list(tokens)
        # What is shown in errors hides secrets; what a statement keeps of itself may not.
        self.text = text
        self.own = own if own is not None else text
        self.file = file
        self.index = 0

    @property
    def statement_span(self) -> Span:
        return Span(self.tokens[0].start, self.tokens[-1].end + 1)

    @property
    def statement_text(self) -> str:
        return self.own[self.tokens[0].start : self.tokens[-1].end + 1]

    @property
    def done(self) -> bool:
        return self.index >= len(self.tokens)

    def peek(self, ahead: int = 0) -> str:
        """The text of a coming token, '' at the end."""
        index = self.index + ahead
        return self.tokens[index].text if index < len(self.tokens) else ""

    def at_paren(self) -> bool:
        return not self.done and self.tokens[self.index].token_type == TokenType.L_PAREN

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

    def take(self, what: str) -> Token:
        """Return the next token; raise an error with the expected syntax at the end of the text."""
        if self.done:
            raise self.error(f"the statement ends where {what} should be")
        token = self.tokens[self.index]
        self.index += 1
        return token

    def expect(self, *words: str, hint: str | None = None) -> None:
        if not self.match(*words):
            actual = self.peek() or "the end of the statement"
            expected = "a comma" if words == (",",) else " ".join(words)
            raise self.error(f"expected {expected}, found {actual}", hint)

    def expect_end(self) -> None:
        if not self.done:
            raise self.error(
                f"the statement should end before {self.peek()}", "separate statements with ;"
            )

    def name(self, what: str) -> tuple[str, Span]:
        """An identifier, plain or in backquotes."""
        token = self.take(what)
        plain = token.text.replace("_", "a").isalnum() and not token.text[0].isdigit()
        span = Span(token.start, token.end + 1)
        if token.token_type == TokenType.STRING:
            written = self.text[span.start : span.end]
            raise self.error(
                f"expected {what}, found the text {written}",
                f"names are quoted with backticks: {backticked(token.text)}.",
                span,
            )
        if not plain and token.token_type != TokenType.IDENTIFIER:
            raise self.error(f"expected {what}, found {token.text}", span=span)
        return token.text, span

    def option_name(self, what: str) -> tuple[str, Span]:
        """A name that may have dots, as options of connectors do, or stand in quotes."""
        if not self.done and self.tokens[self.index].token_type == TokenType.STRING:
            token = self.take(what)
            return token.text, Span(token.start, token.end + 1)
        name, span = self.name(what)
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
        """A quoted text, a number or a word, as text."""
        token = self.take("a value")
        span = Span(token.start, token.end + 1)
        if token.token_type in (TokenType.STRING, TokenType.RAW_STRING):
            return token.text, span
        if token.text == "-" and not self.done:
            number = self.take("a number")
            return f"-{number.text}", span.cover(Span(number.start, number.end + 1))
        if token.token_type in _OPENING | _CLOSING or token.text in {",", "="}:
            raise self.error(f"expected a value, found {token.text}", span=span)
        return token.text, span

    def until_comma(self, in_type: bool) -> list[Token]:
        """Tokens up to the comma or closing parenthesis that ends this item."""
        taken: list[Token] = []
        depth = 0
        while not self.done:
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
            taken.append(token)
            self.index += 1
        return taken

    def rest(self) -> list[Token]:
        """All tokens that are left."""
        tokens = self.tokens[self.index :]
        self.index = len(self.tokens)
        return tokens

    def location(self, span: Span | None = None) -> Location:
        """The given span, or the next token, or the end of the statement."""
        if span is None:
            if self.done:
                end = self.tokens[-1].end + 1
                span = Span(max(end - 1, 0), end)
            else:
                token = self.tokens[self.index]
                span = Span(token.start, token.end + 1)
        return Location(self.text, span.start, span.end, self.file)

    def error(self, message: str, hint: str | None = None, span: Span | None = None) -> SqlError:
        return SqlError("TG-101", message, location=self.location(span), hint=hint)
