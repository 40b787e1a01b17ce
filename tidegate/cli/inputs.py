"""What a person types in the shell: when it is complete, and how it could go on."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from sqlglot.errors import TokenError
from sqlglot.tokenizer_core import Token, TokenType

from tidegate.catalog.catalog import Catalog
from tidegate.catalog.objects import Declared, Stream
from tidegate.sql.dialect import DIALECT

META_COMMANDS = {
    "\\h": "this help (also help)",
    "\\d": "what is declared; \\d name describes one of them",
    "\\i": "run the statements of a file: \\i file.sql",
    "\\start": "run the streams; those without a sink are shown here",
    "\\status": "how the streams are doing",
    "\\stop": "stop the streams; \\start goes on where they were",
    "\\end": "read what there is, close every window, and stop",
    "\\peek": "a few rows of a stream, whether they are kept or not: \\peek name [rows]",
    "\\tail": "follow a stream until Ctrl-C (also TAIL name;)",
    "\\format": "how rows are shown: \\format table | vertical | json | csv",
    "\\q": "leave (also exit, quit, Ctrl-D)",
}
WORDS = ("help", "exit", "quit")

_KEYWORDS = """
    ALL, ALLOW, ALTER STREAM, AND, ANTI, AS, ASOF, BETWEEN, BY, CASE, CAST, CHANGES, CHECKPOINT,
    CHECKPOINTS, CLOSE, CREATE, CREATE FUNCTION, CREATE LOOKUP TABLE, CREATE MATERIALIZED VIEW,
    CREATE OR REPLACE FUNCTION, CREATE OR REPLACE STREAM, CREATE SINK, CREATE SOURCE, CREATE
    STREAM, CUMULATE, DATA, DESCRIBE, DISTINCT, DROP, ELSE, EMIT, EMIT CHANGES, EMIT EVERY, EMIT
    ON UPDATE, EMIT ON WINDOW CLOSE, END, EVERY, EXISTS, EXPLAIN, FILTER, FOR SYSTEM_TIME AS OF,
    FROM, FULL, FUNCTION, FUNCTIONS, GROUP BY, HAVING, HOP, IF, IN, INNER, INSERT INTO,
    INTERVAL, IS, JOIN, LATE DATA TO, LATENESS, LEFT, LIKE, LIMIT, LOOKUP, MATCH_CONDITION,
    MATERIALIZED VIEWS, NOT, NULL, ON, OR, ORDER BY, OVER, PARTITION BY, PRIMARY KEY, QUALIFY,
    RANGE, RESTORE FROM CHECKPOINT, RETURN, RETURNS, RIGHT, ROWS, SELECT, SEMI, SESSION, SET,
    SETTINGS, SHOW, SHOW CREATE, SHOW SETTINGS, SHOW STATUS, SHOW TABLES, SINK, SINKS, SOURCE,
    SOURCES, STATUS, STREAM, STREAMS, TABLE, TABLES, TAIL, THEN, TUMBLE, UNION ALL, UPDATE,
    VALUES, WATERMARK FOR, WHEN, WHERE, WINDOW, WITH
"""
KEYWORDS = tuple(" ".join(phrase.split()) for phrase in _KEYWORDS.split(","))

_WORD = re.compile(r"[\w\\]+$")
_QUALIFIED = re.compile(r"(\w+)\.(\w*)$")
_WANTS_NAME = re.compile(
    r"(?:^|\s)(?:FROM|JOIN|INTO|DESCRIBE|DESC|STREAM|SINK|SOURCE|CREATE|TAIL|\\d|\\peek|\\tail)"
    r"\s+\w*$",
    re.IGNORECASE,
)


def is_complete(text: str, typed: bool = False) -> bool:
    """Whether Enter sends the input: a command, nothing at all, or SQL that ends with `;`."""
    if not text.strip() or command_in(text, typed) is not None:
        return True
    try:
        tokens = list(DIALECT.tokenize(text))
    except TokenError:
        return False  # Inside a quote or a comment.
    return not tokens or tokens[-1].token_type == TokenType.SEMICOLON


def command_in(text: str, typed: bool = False) -> tuple[str, str] | None:
    """The command on the last line, and what stands before it: it may be given at any time.

    The words for help and leaving count in the middle of a statement only if a person types them:
    in a script they may be names.
    """
    before, _, line = text.rstrip().rpartition("\n")
    word = line.strip().rstrip(";").strip()
    begun = bool(before.strip())
    if not word.startswith("\\") and (word.lower() not in WORDS or (begun and not typed)):
        return None
    try:
        list(DIALECT.tokenize(before))
    except TokenError:
        return None  # It stands inside a quote or a comment.
    return word, before if begun else ""


def parts_of(text: str) -> list[tuple[str, str]]:
    """The input as "statements", "query" and "tail" parts, in order.

    Blanks stand for what is before a part, so that places in it are places in the whole.
    """
    try:
        tokens = list(DIALECT.tokenize(text))
    except TokenError:
        return [("statements", text)]
    parts: list[tuple[str, int, int]] = []
    begin: Token | None = None
    for token in tokens:
        begin = begin or token
        if token.token_type == TokenType.SEMICOLON or token is tokens[-1]:
            kind = _KINDS.get(begin.text.upper(), "statements")
            if kind == "statements" and parts and parts[-1][0] == kind:
                parts[-1] = (kind, parts[-1][1], token.end + 1)
            elif begin.token_type != TokenType.SEMICOLON:
                parts.append((kind, begin.start, token.end + 1))
            begin = None
    return [(kind, _blank(text[:start]) + text[start:end]) for kind, start, end in parts]


_KINDS = {"SELECT": "query", "WITH": "query", "FROM": "query", "TAIL": "tail"}


def _blank(text: str) -> str:
    return "".join(sign if sign == "\n" else " " for sign in text)


def columns_of(declared: Declared) -> list[str]:
    """The columns one can select from an object."""
    if isinstance(declared, Stream):
        return [item.name for item in declared.plan.fields]
    return [column.name for column in getattr(declared, "columns", ())]


class SqlCompleter(Completer):
    """Names of the catalog where a name is due, columns after a dot, keywords everywhere else."""

    def __init__(self, catalog: Callable[[], Catalog]) -> None:
        self._catalog = catalog

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterator[Completion]:
        before = document.text_before_cursor
        if before.startswith("\\") and " " not in before:
            yield from _matching(before, META_COMMANDS, "command")
            return
        qualified = _QUALIFIED.search(before)
        if qualified is not None:
            columns = self._columns_behind(qualified.group(1), document.text)
            yield from _matching(qualified.group(2), columns, "column")
            return
        found = _WORD.search(before)
        word = found.group() if found else ""
        catalog = self._catalog()
        if _WANTS_NAME.search(before):
            yield from _matching(word, catalog.names(), "")
        if not word or before.startswith("\\"):
            return
        if not _WANTS_NAME.search(before):
            yield from _matching(word, self._columns(document.text), "column")
            yield from _matching(word, catalog.names(), "")
        yield from _matching(word, KEYWORDS, "", like=word)

    def _columns(self, text: str) -> list[str]:
        """The columns of what the statement names, or of everything if it names nothing yet."""
        catalog = self._catalog()
        named = {word.lower() for word in re.findall(r"\w+", text)}
        objects = [catalog.get(name) for name in catalog.names()]
        mentioned = [item for item in objects if item and item.name.lower() in named]
        chosen = mentioned or [item for item in objects if item]
        return list(dict.fromkeys(name for item in chosen for name in columns_of(item)))

    def _columns_behind(self, qualifier: str, text: str) -> list[str]:
        """The columns of an object, or of the one that has this alias."""
        catalog = self._catalog()
        declared = catalog.get(qualifier)
        if declared is None:
            alias = rf"(\w+)(?:\s*\([^()]*\))?\s+(?:AS\s+)?{re.escape(qualifier)}\b"
            for name in re.findall(alias, text, re.IGNORECASE):
                declared = declared or catalog.get(name)
        return columns_of(declared) if declared is not None else []


def _matching(
    word: str, candidates: Iterable[str], kind: str, like: str | None = None
) -> Iterator[Completion]:
    for candidate in candidates:
        if candidate.lower().startswith(word.lower()) and candidate.lower() != word.lower():
            # Keywords follow the user's habit: lower case stays lower case.
            shown = candidate.lower() if like and like.islower() else candidate
            yield Completion(shown, start_position=-len(word), display_meta=kind)
