"""`tidegate sql`: statements and meta commands, typed by a person or piped in."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from sqlglot.errors import TokenError
from sqlglot.tokenizer_core import Token, TokenType

import tidegate
from tidegate.catalog.catalog import Catalog
from tidegate.catalog.objects import Declared, Function, Sink, Stream
from tidegate.cli import data as data_directory
from tidegate.cli import report, scripts
from tidegate.cli.guard import show_exception
from tidegate.cli.screen import Screen, cells, open_screen, show_results
from tidegate.cli.text import Format, formatted, plural
from tidegate.errors import TidegateError, did_you_mean
from tidegate.queries.engine import QueryResult
from tidegate.sql.dialect import DIALECT

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.history import History

    from tidegate.session.session import Session


# ---- What a person types in the shell: when it is complete, and how it could go on.

META_COMMANDS = {
    "\\h": "this help (also help)",
    "\\d": "what is declared; \\d name describes one of them",
    "\\i": "run the statements of a file: \\i file.sql",
    "\\start": "run the streams; those without a sink are shown here",
    "\\status": "how the streams are doing",
    "\\stop": "stop the streams; \\start resumes them",
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


def run(
    script: scripts.ScriptFile | None,
    *,
    data: str | None,
    master: str | None,
    conf: Mapping[str, str],
) -> int:
    """Open a session, run the file if there is one, then whatever comes in."""
    interactive = report.is_terminal(sys.stdout) and report.is_terminal(sys.stdin)
    path = script.path if script is not None else None
    name = script.stem if script is not None else "shell"
    directory = data or data_directory.default_directory(path, name)
    screen = open_screen()
    show = _rows_above_prompt() if interactive else screen.rows
    with tidegate.open(directory, master=master, show=show, conf=conf) as session:
        shell = Shell(session, screen, interactive)
        if script is not None:
            shell.execute(script.text, script.name)
        elif interactive:
            # What is piped in is a script, and declares everything itself.
            shell.recall()
        if interactive:
            _talk(shell)
            return 0
        shell.read(sys.stdin)
        return shell.exit_code


class Shell:
    """A session with the state of the shell."""

    def __init__(self, session: Session, screen: Screen, interactive: bool = False) -> None:
        self.session = session
        self.screen = screen
        self.interactive = interactive
        self.exit_code = 0
        # What was begun and not ended when a command came in between.
        self.begun = ""
        self._started = False
        self._format = Format.TABLE
        self._meta: dict[str, Callable[[str], None]] = {
            "\\h": self._help,
            "\\d": self._describe,
            "\\i": self._include,
            "\\start": self._start,
            "\\status": self._status,
            "\\stop": self._stop,
            "\\end": self._end,
            "\\peek": self._peek,
            "\\tail": self._tail,
            "\\format": self._set_format,
        }

    def feed(self, text: str, file: str | None = None) -> bool:
        """Do what one complete input says; False if it says goodbye."""
        found = command_in(text, typed=self.interactive)
        self.begun = ""
        if found is None:
            self.execute(text, file)
            return True
        command, self.begun = found
        if command.lower() in {"\\q", "exit", "quit"}:
            return False
        self._command("\\h" if command.lower() == "help" else command)
        return True

    def recall(self) -> None:
        """Declare again what was declared here before."""
        with self._guarded():
            saved = self.session.recall()
            with self.screen.working("starting Spark…"):
                for file, text in saved.scripts:
                    self.session.execute(text, file)
            names = ", ".join(self.session.catalog.names())
            if names:
                self.screen.line(f"declared here before: {names}")
            if saved.secret:
                self.screen.line(
                    f"not kept, because of secrets or Python: {', '.join(saved.secret)}; declare "
                    "them again"
                )

    def read(self, lines: Iterable[str]) -> None:
        """Take inputs from a pipe, then finish the rows that are there."""
        text, above = "", 0
        for number, line in enumerate(lines, start=1):
            text += line
            if not is_complete(text):
                continue
            # Empty lines in front make the line numbers of errors those of the whole input.
            if not self.feed("\n" * above + text, "stdin"):
                return
            # After a command in its middle a statement goes on; it has its lines in front already.
            text = f"{self.begun}\n" if self.begun else ""
            above = 0 if self.begun else number
        if text.strip():
            self.feed("\n" * above + text, "stdin")
        if self._started:
            with self._guarded():
                self.session.wait()

    def execute(self, text: str, file: str | None = None) -> None:
        """Run statements and queries, and show what they say."""
        for kind, part in parts_of(text):
            with self._guarded():
                if kind == "query":
                    self._show(self.session.query(part, file))
                elif kind == "tail":
                    self._tail(part.strip().rstrip(";")[len("TAIL") :].strip())
                else:
                    self._statements(part, file)

    def _statements(self, text: str, file: str | None) -> None:
        before = self.session.catalog
        # The first declaration starts Spark, which takes a while.
        first = not before.names()
        with self.screen.working("starting Spark…" if first else "working…"):
            results = self.session.execute(text, file)
        report.show(self.session.warnings, "warning")
        for change in _changes(before, self.session.catalog):
            self.screen.line(change)
        show_results(self.screen, results)
        if self._started:
            self._say_what_joined(before)

    def _say_what_joined(self, before: Catalog) -> None:
        running = {status.name.lower() for status in self.session.status()}
        names = [name for name in self.session.catalog.names() if before.get(name) is None]
        joined = [name for name in names if name.lower() in running]
        if joined:
            self.screen.line(f"running now too: {', '.join(joined)}")

    def _show(self, result: QueryResult, title: str = "") -> None:
        """Rows in the format that is wanted."""
        columns, rows = cells(result.to_arrow())
        if self._format is Format.TABLE:
            self.screen.table(title, columns, rows)
            self.screen.line(plural(len(rows), "row"))
        elif rows:
            self.screen.line(formatted(self._format, columns, rows))

    def _command(self, text: str) -> None:
        name, _, argument = text.partition(" ")
        with self._guarded():
            command = self._meta.get(name)
            if command is None:
                commands = ", ".join([*self._meta, "\\q"])
                raise report.InputProblem(f"unknown command {name}", f"commands: {commands}")
            command(argument.strip())

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Errors are shown and the shell goes on; Ctrl-C ends what is being done, no more."""
        # Spark's own handler would cancel the jobs of all running streams.
        _on_interrupt(signal.default_int_handler)
        try:
            yield
        except BrokenPipeError:
            raise
        except KeyboardInterrupt:
            if not self.interactive:
                raise
            self.screen.line("interrupted")
        except Exception as error:
            code = show_exception(error)
            self.exit_code = self.exit_code or code
        finally:
            if self.interactive:
                _on_interrupt(_ignore)

    # Meta commands

    def _help(self, argument: str) -> None:
        rows = list(META_COMMANDS.items())
        self.screen.table("", ("command", "what it does"), rows)
        self.screen.line(
            "Statements end with ; and may take several lines. Tab completes.\n"
            "SELECT … FROM view; asks materialized views and streams with a memory sink."
        )

    def _describe(self, argument: str) -> None:
        if argument:
            show_results(self.screen, self.session.execute(f"DESCRIBE {argument};"))
            return
        catalog = self.session.catalog
        declared = [item for item in map(catalog.get, catalog.names()) if item is not None]
        rows = [(item.kind.value.lower(), item.name, _outline(item)) for item in declared]
        if rows:
            self.screen.table("", ("kind", "name", "what"), rows)
        else:
            self.screen.line("nothing is declared yet")

    def _include(self, argument: str) -> None:
        if not argument:
            raise report.InputProblem("\\i needs a file", "\\i streams.sql")
        script = scripts.read(argument)
        self.execute(script.text, script.name)

    def _peek(self, argument: str) -> None:
        name, _, count = argument.partition(" ")
        if not name or (count.strip() and not count.strip().isdigit()):
            raise report.InputProblem("\\peek needs a stream", "\\peek my_stream 20")
        with self.screen.working("waiting for rows…"):
            result = self.session.peek(name, int(count or 20))
        if len(result):
            self._show(result)
        else:
            self.screen.line(f"no rows of {name} came; windows may still be open")

    def _tail(self, argument: str) -> None:
        """Show the epochs of a stream as they come, until Ctrl-C or its end."""
        if not argument:
            raise report.InputProblem("TAIL needs a stream", "TAIL my_stream;")
        subscription = self.session.subscribe(argument)
        if not self._started:
            self._start("")
        try:
            for batch in subscription:
                self._show(QueryResult(batch.table), f"{argument}, epoch {batch.epoch}")
        except KeyboardInterrupt:
            self.screen.line("")
        finally:
            subscription.close()

    def _set_format(self, argument: str) -> None:
        formats = [item.value for item in Format]
        if argument and argument not in formats:
            raise report.InputProblem(
                f"unknown format {argument}", did_you_mean(argument, formats, "formats")
            )
        self._format = Format(argument) if argument else self._format
        self.screen.line(f"format: {self._format.value}")

    def _end(self, argument: str) -> None:
        """Close every window: what is open comes out."""
        self.session.add_console_sinks()
        self.session.stop()
        with self.screen.working("reading to the end…"):
            self.session.start(until_end=True)
            self.session.wait()
        self.screen.end(self.session.status())
        self.session.stop()
        self._started = False

    def _start(self, argument: str) -> None:
        if self._started:
            names = ", ".join(status.name for status in self.session.status())
            self.screen.line(f"running already: {names}; new streams join by themselves")
            return
        shown = self.session.add_console_sinks()
        try:
            with self.screen.working("starting the streams…"):
                self.session.start()
        except TidegateError:
            # A session that could not start would start streams behind the user's back later.
            if not self._started:
                self.session.stop()
            raise
        self._started = True
        names = ", ".join(status.name for status in self.session.status())
        self.screen.line(
            f"running: {names}" + (f"; shown here: {', '.join(shown)}" if shown else "")
        )

    def _status(self, argument: str) -> None:
        statuses = self.session.status()
        if statuses:
            self.screen.end(statuses)
        else:
            self.screen.line("nothing is running; \\start runs the streams")

    def _stop(self, argument: str) -> None:
        self.session.stop()
        self._started = False
        self.screen.line("stopped")


def _ignore(signum: int, frame: FrameType | None) -> None:
    """The prompt reads Ctrl-C as a key; a signal just before or after must not tear it apart."""


def _on_interrupt(handler: Callable[[int, FrameType | None], object]) -> None:
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, handler)


def _changes(before: Catalog, after: Catalog) -> Iterator[str]:
    """Describe the differences between two catalogs, because declarations print nothing."""
    for old, new, word in ((before, after, "declared"), (after, before, "dropped")):
        for name in new.names():
            item = new.get(name)
            if item is not None and old.get(name) is None:
                yield f"{item.kind.value.lower()} {item.name} {word}"
    for item in filter(None, map(after.get, after.names())):
        previous = before.get(item.name)
        if previous is not None and previous.statement != item.statement:
            yield f"{item.kind.value.lower()} {item.name} replaced"


def _outline(item: Declared) -> str:
    """What an object is about, in a line."""
    if isinstance(item, Sink):
        return f"{item.connector}, from {item.source}"
    if isinstance(item, Function):
        return item.signature
    return ", ".join(columns_of(item))


def _rows_above_prompt() -> Callable[[str, int, Any], None]:
    """Prints rows through sys.stdout, which `patch_stdout` leads around the prompt."""
    from rich.console import Console

    from tidegate.cli.live import LiveScreen

    return LiveScreen(Console(highlight=False)).rows


def _talk(shell: Shell) -> None:
    """Prompt until the user leaves."""
    from prompt_toolkit.patch_stdout import patch_stdout

    _on_interrupt(_ignore)
    prompt = _prompt(shell)
    shell.screen.line(f"Tidegate {tidegate.__version__}. help for help, exit to leave.")
    # Rows of running streams are printed above the prompt, not into it.
    with patch_stdout(raw=True):
        while True:
            try:
                line = prompt.prompt(handle_sigint=False, default=shell.begun)
            except KeyboardInterrupt:
                shell.begun = ""
                continue
            except EOFError:
                return
            if not shell.feed(line):
                return


def _prompt(shell: Shell) -> PromptSession[str]:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.filters import Condition
    from prompt_toolkit.lexers import PygmentsLexer
    from pygments.lexers.sql import SqlLexer

    session: PromptSession[str] = PromptSession(
        "tidegate> ",
        history=_history(),
        completer=SqlCompleter(lambda: shell.session.catalog),
        complete_while_typing=True,
        lexer=PygmentsLexer(SqlLexer),
        multiline=Condition(lambda: not is_complete(session.default_buffer.text, typed=True)),
        prompt_continuation="     ...> ",
    )
    return session


def history_file() -> Path:
    """Where the shell keeps what was typed."""
    home = os.environ.get("XDG_STATE_HOME")
    state = Path(home) if home else Path.home() / ".local" / "state"
    return state / "tidegate" / "history"


def _history() -> History:
    """A history in a file only its owner can read, since statements may hold passwords."""
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    path = history_file()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(path))
