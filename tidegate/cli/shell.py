"""`tidegate sql`: a shell for statements and meta commands, interactive or reading a pipe."""

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
from tidegate.cli import scripts
from tidegate.cli.directory import default_directory
from tidegate.cli.errors import UsageError, is_terminal, print_diagnostics, print_exception
from tidegate.cli.screen import Screen, open_screen, print_results, to_rows
from tidegate.cli.text import RowFormat, format_rows
from tidegate.errors import TidegateError, did_you_mean, pluralize
from tidegate.queries.engine import QueryResult
from tidegate.sql.dialect import DIALECT

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.history import History

    from tidegate.session.session import Session


# ---- Parsing input

META_COMMANDS = {
    "\\h": "show this help (also: help)",
    "\\d": "list the declared objects, or describe one: \\d name",
    "\\i": "run the statements of a file: \\i file.sql",
    "\\start": "start the streams, and print the rows of streams without a sink",
    "\\status": "show the status of the streams",
    "\\stop": "stop the streams; \\start resumes them",
    "\\end": "process all input, close all windows, and stop",
    "\\peek": "show some rows of a stream, stored or not: \\peek name [rows]",
    "\\tail": "follow a stream until Ctrl-C (also: TAIL name;)",
    "\\format": "set the format of rows: \\format table | vertical | json | csv",
    "\\q": "quit (also: exit, quit, Ctrl-D)",
}
WORD_COMMANDS = ("help", "exit", "quit")

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

# The first keyword of inputs that are not statements of the dialect.
_INPUT_KINDS = {"SELECT": "query", "WITH": "query", "FROM": "query", "TAIL": "tail"}


def is_complete(text: str, interactive: bool = False) -> bool:
    """Return whether input can be run: it is empty, a command, or SQL that ends with `;`."""
    if not text.strip() or split_command(text, interactive) is not None:
        return True
    try:
        tokens = list(DIALECT.tokenize(text))
    except TokenError:
        return False  # A quote or a comment is open.
    return not tokens or tokens[-1].token_type == TokenType.SEMICOLON


def split_command(text: str, interactive: bool = False) -> tuple[str, str] | None:
    """Return the command on the last line and the text before it, or None for SQL.

    A command may interrupt a statement. The words help, exit and quit may do so only in an
    interactive shell, because in a script they may be names.
    """
    before, _, line = text.rstrip().rpartition("\n")
    word = line.strip().rstrip(";").strip()
    interrupts = bool(before.strip())
    is_word = word.lower() in WORD_COMMANDS and (interactive or not interrupts)
    if not word.startswith("\\") and not is_word:
        return None
    try:
        list(DIALECT.tokenize(before))
    except TokenError:
        return None  # The line is inside a quote or a comment.
    return word, before if interrupts else ""


def split_input(text: str) -> list[tuple[str, str]]:
    """Split input into parts of kind "statements", "query" or "tail".

    The text before a part is replaced by blanks, so that errors have their location in the input.
    """
    try:
        tokens = list(DIALECT.tokenize(text))
    except TokenError:
        return [("statements", text)]
    parts: list[tuple[str, int, int]] = []
    first: Token | None = None
    for token in tokens:
        first = first or token
        if token.token_type == TokenType.SEMICOLON or token is tokens[-1]:
            kind = _INPUT_KINDS.get(first.text.upper(), "statements")
            if kind == "statements" and parts and parts[-1][0] == kind:
                parts[-1] = (kind, parts[-1][1], token.end + 1)
            elif first.token_type != TokenType.SEMICOLON:
                parts.append((kind, first.start, token.end + 1))
            first = None
    return [(kind, re.sub(".", " ", text[:start]) + text[start:end]) for kind, start, end in parts]


# ---- Completion

_WORD = re.compile(r"[\w\\]+$")
_QUALIFIED = re.compile(r"(\w+)\.(\w*)$")
_EXPECTS_NAME = re.compile(
    r"(?:^|\s)(?:FROM|JOIN|INTO|DESCRIBE|DESC|STREAM|SINK|SOURCE|CREATE|TAIL|\\d|\\peek|\\tail)"
    r"\s+\w*$",
    re.IGNORECASE,
)


def _column_names(item: Declared) -> list[str]:
    if isinstance(item, Stream):
        return [field.name for field in item.plan.fields]
    return [column.name for column in getattr(item, "columns", ())]


class SqlCompleter(Completer):
    """Completes commands, keywords, names of declared objects, and columns."""

    def __init__(self, catalog: Callable[[], Catalog]) -> None:
        self._catalog = catalog

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterator[Completion]:
        before = document.text_before_cursor
        if before.startswith("\\") and " " not in before:
            yield from _completions(before, META_COMMANDS, "command")
            return
        qualified = _QUALIFIED.search(before)
        if qualified is not None:
            columns = self._columns_of(qualified.group(1), document.text)
            yield from _completions(qualified.group(2), columns, "column")
            return
        match = _WORD.search(before)
        word = match.group() if match else ""
        expects_name = _EXPECTS_NAME.search(before) is not None
        names = self._catalog().names()
        if expects_name:
            yield from _completions(word, names, "")
        if not word or before.startswith("\\"):
            return
        if not expects_name:
            yield from _completions(word, self._columns(document.text), "column")
            yield from _completions(word, names, "")
        # Complete keywords in lower case if the user types lower case.
        keywords = map(str.lower, KEYWORDS) if word.islower() else KEYWORDS
        yield from _completions(word, keywords, "")

    def _columns(self, text: str) -> list[str]:
        """Return the columns of the objects in a statement, or of all if it has no names yet."""
        catalog = self._catalog()
        words = {word.lower() for word in re.findall(r"\w+", text)}
        objects = list(filter(None, map(catalog.get, catalog.names())))
        mentioned = [item for item in objects if item.name.lower() in words]
        columns = (name for item in mentioned or objects for name in _column_names(item))
        return list(dict.fromkeys(columns))

    def _columns_of(self, qualifier: str, text: str) -> list[str]:
        """Return the columns of an object, or of the object with this alias."""
        catalog = self._catalog()
        item = catalog.get(qualifier)
        if item is None:
            alias = rf"(\w+)(?:\s*\([^()]*\))?\s+(?:AS\s+)?{re.escape(qualifier)}\b"
            for name in re.findall(alias, text, re.IGNORECASE):
                item = item or catalog.get(name)
        return _column_names(item) if item is not None else []


def _completions(word: str, candidates: Iterable[str], kind: str) -> Iterator[Completion]:
    for candidate in candidates:
        if candidate.lower().startswith(word.lower()) and candidate.lower() != word.lower():
            yield Completion(candidate, start_position=-len(word), display_meta=kind)


# ---- The shell


def run(
    script: scripts.ScriptFile | None,
    *,
    data: str | None,
    master: str | None,
    spark_conf: Mapping[str, str],
) -> int:
    """Open a session, run the file if there is one, then run the input."""
    interactive = is_terminal(sys.stdout) and is_terminal(sys.stdin)
    path = script.path if script is not None else None
    name = script.stem if script is not None else "shell"
    directory = data or default_directory(path, name)
    screen = open_screen()
    show = _print_rows_above_prompt() if interactive else screen.print_rows
    with tidegate.open(directory, master=master, show=show, conf=spark_conf) as session:
        shell = Shell(session, screen, interactive)
        if script is not None:
            shell.execute(script.text, script.name)
        elif interactive:
            # Only here: a script in a pipe declares everything that it uses.
            shell.restore_declarations()
        if interactive:
            _prompt_until_exit(shell)
            return 0
        shell.run_lines(sys.stdin)
        return shell.exit_code


class Shell:
    """Runs statements, queries and meta commands in a session."""

    def __init__(self, session: Session, screen: Screen, interactive: bool = False) -> None:
        self.session = session
        self.screen = screen
        self.interactive = interactive
        self.exit_code = 0
        # The statement that a command has interrupted.
        self.unfinished = ""
        self._started = False
        self._format = RowFormat.TABLE
        self._commands: dict[str, Callable[[str], None]] = {
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

    def run_input(self, text: str, file: str | None = None) -> bool:
        """Run a complete input. Returns False if it is the command to exit."""
        split = split_command(text, self.interactive)
        self.unfinished = ""
        if split is None:
            self.execute(text, file)
            return True
        command, self.unfinished = split
        if command.lower() in {"\\q", "exit", "quit"}:
            return False
        self._run_command("\\h" if command.lower() == "help" else command)
        return True

    def run_lines(self, lines: Iterable[str]) -> None:
        """Run the inputs of a pipe, then wait until started streams have processed their input."""
        text, lines_before = "", 0
        for number, line in enumerate(lines, start=1):
            text += line
            if not is_complete(text):
                continue
            # With empty lines in front, errors have their line number in the whole input.
            if not self.run_input("\n" * lines_before + text, "stdin"):
                return
            # A statement that a command has interrupted already has the lines in front.
            text = f"{self.unfinished}\n" if self.unfinished else ""
            lines_before = 0 if self.unfinished else number
        if text.strip():
            self.run_input("\n" * lines_before + text, "stdin")
        if self._started:
            with self._handle_errors():
                self.session.wait()

    def restore_declarations(self) -> None:
        """Execute the declarations of the previous shell on the data directory."""
        with self._handle_errors():
            saved = self.session.load_declarations()
            with self.screen.working("starting Spark…"):
                for file, text in saved.scripts:
                    self.session.execute(text, file)
            names = ", ".join(self.session.catalog.names())
            if names:
                self.screen.print_line(f"restored: {names}")
            if saved.unsaved:
                self.screen.print_line(
                    "not saved, because they contain secrets or Python functions: "
                    f"{', '.join(saved.unsaved)}. Declare them again"
                )

    def execute(self, text: str, file: str | None = None) -> None:
        """Run statements and queries, and print their results."""
        for kind, part in split_input(text):
            with self._handle_errors():
                if kind == "query":
                    self._print_rows(self.session.query(part, file))
                elif kind == "tail":
                    self._tail(part.strip().rstrip(";")[len("TAIL") :].strip())
                else:
                    self._execute_statements(part, file)

    def _execute_statements(self, text: str, file: str | None) -> None:
        before = self.session.catalog
        # The first declaration starts Spark, which takes a while.
        first = not before.names()
        with self.screen.working("starting Spark…" if first else "working…"):
            results = self.session.execute(text, file)
        print_diagnostics(self.session.warnings, "warning")
        for change in _changes(before, self.session.catalog):
            self.screen.print_line(change)
        print_results(self.screen, results)
        if self._started:
            self._print_new_streams(before)

    def _print_new_streams(self, before: Catalog) -> None:
        """Print which new streams a running session has started."""
        running = {status.name.lower() for status in self.session.status()}
        names = [name for name in self.session.catalog.names() if before.get(name) is None]
        started = [name for name in names if name.lower() in running]
        if started:
            self.screen.print_line(f"started: {', '.join(started)}")

    def _print_rows(self, result: QueryResult, title: str = "") -> None:
        columns, rows = to_rows(result.to_arrow())
        if self._format is RowFormat.TABLE:
            self.screen.print_table(title, columns, rows)
            self.screen.print_line(pluralize(len(rows), "row"))
        elif rows:
            self.screen.print_line(format_rows(self._format, columns, rows))

    def _run_command(self, text: str) -> None:
        name, _, argument = text.partition(" ")
        with self._handle_errors():
            command = self._commands.get(name)
            if command is None:
                commands = ", ".join([*self._commands, "\\q"])
                raise UsageError(f"unknown command {name}", f"commands: {commands}")
            command(argument.strip())

    @contextmanager
    def _handle_errors(self) -> Iterator[None]:
        """Print errors and continue; Ctrl-C interrupts only the current operation."""
        # Spark's handler would cancel the jobs of all running streams.
        _set_sigint_handler(signal.default_int_handler)
        try:
            yield
        except BrokenPipeError:
            raise
        except KeyboardInterrupt:
            if not self.interactive:
                raise
            self.screen.print_line("interrupted")
        except Exception as error:
            code = print_exception(error)
            self.exit_code = self.exit_code or code
        finally:
            if self.interactive:
                _set_sigint_handler(_ignore)

    # Meta commands

    def _help(self, argument: str) -> None:
        rows = list(META_COMMANDS.items())
        self.screen.print_table("", ("command", "description"), rows)
        self.screen.print_line(
            "Statements end with ; and may span several lines. Tab completes names and keywords.\n"
            "SELECT … FROM view; queries materialized views and streams with a memory sink."
        )

    def _describe(self, argument: str) -> None:
        if argument:
            print_results(self.screen, self.session.execute(f"DESCRIBE {argument};"))
            return
        catalog = self.session.catalog
        declared = [item for item in map(catalog.get, catalog.names()) if item is not None]
        rows = [(item.kind.value.lower(), item.name, _summary(item)) for item in declared]
        if rows:
            self.screen.print_table("", ("kind", "name", "content"), rows)
        else:
            self.screen.print_line("nothing is declared yet")

    def _include(self, argument: str) -> None:
        if not argument:
            raise UsageError("\\i needs a file", "\\i streams.sql")
        script = scripts.read(argument)
        self.execute(script.text, script.name)

    def _peek(self, argument: str) -> None:
        name, _, count = argument.partition(" ")
        if not name or (count.strip() and not count.strip().isdigit()):
            raise UsageError("\\peek needs a stream", "\\peek my_stream 20")
        with self.screen.working("waiting for rows…"):
            result = self.session.peek(name, int(count or 20))
        if len(result):
            self._print_rows(result)
        else:
            self.screen.print_line(f"{name} has not emitted rows yet; windows may still be open")

    def _tail(self, argument: str) -> None:
        """Print the rows of a stream epoch by epoch, until Ctrl-C or the end of the stream."""
        if not argument:
            raise UsageError("TAIL needs a stream", "TAIL my_stream;")
        subscription = self.session.subscribe(argument)
        if not self._started:
            self._start("")
        try:
            for batch in subscription:
                self._print_rows(QueryResult(batch.table), f"{argument}, epoch {batch.epoch}")
        except KeyboardInterrupt:
            self.screen.print_line("")
        finally:
            subscription.close()

    def _set_format(self, argument: str) -> None:
        formats = [item.value for item in RowFormat]
        if argument and argument not in formats:
            raise UsageError(
                f"unknown format {argument}", did_you_mean(argument, formats, "formats")
            )
        self._format = RowFormat(argument) if argument else self._format
        self.screen.print_line(f"format: {self._format.value}")

    def _end(self, argument: str) -> None:
        """Process all input and close all windows, so that they emit their rows."""
        self.session.add_console_sinks()
        self.session.stop()
        with self.screen.working("reading to the end…"):
            self.session.start(until_end=True)
            self.session.wait()
        self.screen.print_final_status(self.session.status())
        self.session.stop()
        self._started = False

    def _start(self, argument: str) -> None:
        if self._started:
            names = ", ".join(status.name for status in self.session.status())
            self.screen.print_line(f"already running: {names}; new streams start automatically")
            return
        printed = self.session.add_console_sinks()
        try:
            with self.screen.working("starting the streams…"):
                self.session.start()
        except TidegateError:
            # Otherwise the session would start the next declared streams.
            if not self._started:
                self.session.stop()
            raise
        self._started = True
        names = ", ".join(status.name for status in self.session.status())
        self.screen.print_line(
            f"running: {names}" + (f"; printed here: {', '.join(printed)}" if printed else "")
        )

    def _status(self, argument: str) -> None:
        statuses = self.session.status()
        if statuses:
            self.screen.print_final_status(statuses)
        else:
            self.screen.print_line("no streams are running; \\start starts them")

    def _stop(self, argument: str) -> None:
        self.session.stop()
        self._started = False
        self.screen.print_line("stopped")


def _ignore(signum: int, frame: FrameType | None) -> None:
    """Ignore a signal. The prompt reads Ctrl-C as a key, and a signal would break the prompt."""


def _set_sigint_handler(handler: Callable[[int, FrameType | None], object]) -> None:
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, handler)


def _changes(before: Catalog, after: Catalog) -> Iterator[str]:
    """Describe the differences between two catalogs, because declarations print nothing."""
    for old, new, change in ((before, after, "declared"), (after, before, "dropped")):
        for name in new.names():
            item = new.get(name)
            if item is not None and old.get(name) is None:
                yield f"{item.kind.value.lower()} {item.name} {change}"
    for item in filter(None, map(after.get, after.names())):
        previous = before.get(item.name)
        if previous is not None and previous.statement != item.statement:
            yield f"{item.kind.value.lower()} {item.name} replaced"


def _summary(item: Declared) -> str:
    """Describe a declared object in one line."""
    if isinstance(item, Sink):
        return f"{item.connector}, from {item.stream}"
    if isinstance(item, Function):
        return item.signature
    return ", ".join(_column_names(item))


# ---- The interactive prompt


def _print_rows_above_prompt() -> Callable[[str, int, Any], None]:
    """Return a function that prints rows to sys.stdout, which `patch_stdout` redirects."""
    from rich.console import Console

    from tidegate.cli.live import LiveScreen

    return LiveScreen(Console(highlight=False)).print_rows


def _prompt_until_exit(shell: Shell) -> None:
    """Read and run inputs until the user exits."""
    from prompt_toolkit.patch_stdout import patch_stdout

    _set_sigint_handler(_ignore)
    prompt = _create_prompt(shell)
    shell.screen.print_line(
        f"Tidegate {tidegate.__version__}. Type help for the commands, exit to quit."
    )
    # Print the rows of running streams above the prompt, not into it.
    with patch_stdout(raw=True):
        while True:
            try:
                text = prompt.prompt(handle_sigint=False, default=shell.unfinished)
            except KeyboardInterrupt:
                shell.unfinished = ""
                continue
            except EOFError:
                return
            if not shell.run_input(text):
                return


def _create_prompt(shell: Shell) -> PromptSession[str]:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.filters import Condition
    from prompt_toolkit.lexers import PygmentsLexer
    from pygments.lexers.sql import SqlLexer

    session: PromptSession[str] = PromptSession(
        "tidegate> ",
        history=_open_history(),
        completer=SqlCompleter(lambda: shell.session.catalog),
        complete_while_typing=True,
        lexer=PygmentsLexer(SqlLexer),
        multiline=Condition(lambda: not is_complete(session.default_buffer.text, interactive=True)),
        prompt_continuation="     ...> ",
    )
    return session


def history_file() -> Path:
    """Return the file with the inputs of earlier interactive shells."""
    home = os.environ.get("XDG_STATE_HOME")
    state = Path(home) if home else Path.home() / ".local" / "state"
    return state / "tidegate" / "history"


def _open_history() -> History:
    """Open the history. Only its owner can read it, because statements may contain passwords."""
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    path = history_file()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(path))
