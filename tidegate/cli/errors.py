"""How a command ends: error messages on stderr, exit codes, and Ctrl-C.

Commands return their exit code or raise. The exit codes are 0 for success, 1 for failed test cases
and internal errors, 2 for errors that the user can fix, and 130 for an interrupted command.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import FrameType
from typing import TYPE_CHECKING, Any, ParamSpec, TextIO

import typer

from tidegate.errors import ScriptError, TidegateError

if TYPE_CHECKING:
    from rich.text import Text

P = ParamSpec("P")


@dataclass
class _Options:
    """Options of the process that apply to all messages."""

    debug: bool = False
    json: bool = False


OPTIONS = _Options()


class UsageError(Exception):
    """An invalid option or argument, or a file that cannot be read; not an error in the SQL."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint

    def render(self, severity: str = "error") -> str:
        hint = f"\nHint: {self.hint}" if self.hint else ""
        return f"{severity}: {self}{hint}"


# ---- Messages: colored on a terminal, plain text in a pipe, JSON if requested


def print_error(error: TidegateError | UsageError) -> None:
    """Print an error to stderr, or all errors of a script."""
    print_diagnostics(error.errors if isinstance(error, ScriptError) else (error,))


def print_diagnostics(
    diagnostics: Sequence[TidegateError | UsageError],
    severity: str = "error",
    leading_blank_line: bool = False,
) -> None:
    """Print errors or warnings to stderr, separated by blank lines."""
    for index, diagnostic in enumerate(diagnostics):
        if OPTIONS.json:
            print(json_line(severity, **_as_json(diagnostic)), file=sys.stderr, flush=True)
            continue
        if index or leading_blank_line:
            print(file=sys.stderr)
        _print_rendered(diagnostic.render(severity), severity)


def json_line(level: str, event: str, **content: Any) -> str:
    """Return a log event as one line of JSON."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    return json.dumps({"time": now, "level": level, "event": event, **content}, default=str)


def _as_json(diagnostic: TidegateError | UsageError) -> dict[str, Any]:
    if isinstance(diagnostic, UsageError):
        return {"event": "problem", "message": str(diagnostic), "hint": diagnostic.hint}
    location = diagnostic.location
    place = (
        {"file": location.file, "line": location.line, "column": location.column}
        if location
        else None
    )
    content = {"event": "problem", "code": diagnostic.code, "message": diagnostic.message}
    return {**content, "hint": diagnostic.hint, "place": place}


def is_terminal(stream: TextIO) -> bool:
    """Return whether a stream is a terminal that can move its cursor."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def _print_rendered(rendered: str, severity: str) -> None:
    if not is_terminal(sys.stderr):
        print(rendered, file=sys.stderr, flush=True)
        return
    from rich.console import Console

    # soft_wrap: carets would be misplaced if rich wrapped the lines of SQL.
    Console(file=sys.stderr, highlight=False).print(colored(rendered, severity), soft_wrap=True)


def colored(rendered: str, severity: str) -> Text:
    """Color the parts of a rendered error without changing its text."""
    from rich.text import Text

    color = "red" if severity == "error" else "yellow"
    text = Text()
    for number, line in enumerate(rendered.split("\n")):
        if number:
            text.append("\n")
        head, colon, rest = line.partition(": ")
        stripped = line.lstrip()
        gutter, bar, source = line.partition(" |")
        if number == 0:
            text.append(head, f"bold {color}").append(colon).append(rest, "bold")
        elif head == "Hint":
            text.append(head + colon, "bold green").append(rest)
        elif stripped.startswith(("-->", "= plan")):
            text.append(line, "dim")
        elif bar and (not gutter.strip() or gutter.strip().isdigit()):
            caret = bool(source.strip()) and set(source.strip()) == {"^"}
            text.append(gutter + bar, "blue").append(source, f"bold {color}" if caret else "")
        else:
            text.append(line)
    return text


# ---- Exit codes

USER_ERROR = 2
INTERNAL_ERROR = 1
INTERRUPTED = 130


def handle_errors(command: Callable[P, int]) -> Callable[P, None]:
    """Exit with the code that a command returns, or with the code of its exception."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        OPTIONS.debug = OPTIONS.debug or bool(kwargs.get("debug", False))
        raise typer.Exit(_exit_code(lambda: command(*args, **kwargs)))

    return run


def _exit_code(command: Callable[[], int]) -> int:
    try:
        code = command()
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        _discard_stdout()
        return 0
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        return print_exception(error)


def _discard_stdout() -> None:
    """Redirect stdout, so that Python does not fail when it flushes into a closed pipe at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())


def print_exception(error: Exception) -> int:
    """Print an exception to stderr and return its exit code."""
    if OPTIONS.debug:
        traceback.print_exception(error)
    if isinstance(error, TidegateError | UsageError):
        print_error(error)
        return USER_ERROR
    first_line = next(iter(str(error).strip().splitlines()), "no message")
    message = f"{type(error).__name__}: {first_line}"
    if OPTIONS.json:
        print(json_line("error", "internal error", message=message), file=sys.stderr)
    else:
        hint = "run again with --debug to see the stack trace."
        print(f"internal error: {message}\nHint: {hint}", file=sys.stderr)
    return INTERNAL_ERROR


# ---- Ctrl-C and SIGTERM: the first one stops the streams, the second one exits immediately

_SHOW_CURSOR = b"\x1b[?25h\n"


class Interrupts:
    """Records requests to stop; the loop that runs the command polls `requested`.

    The signal handler only counts, because it may interrupt code that holds a lock or that has
    written half of a line.
    """

    def __init__(self) -> None:
        self._count = 0

    @property
    def requested(self) -> bool:
        return self._count > 0

    def notice(self) -> str:
        """Return a message for the user after the first request, otherwise an empty text."""
        return "stopping… (press Ctrl-C again to exit immediately)" if self.requested else ""

    def install(self) -> None:
        """Handle signals. Spark installs its own handler when it starts: call this again then."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self._handle)
            signal.signal(signal.SIGTERM, self._handle)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        self.record()

    def record(self) -> None:
        """Record a request; the second one exits the process.

        Exiting in the middle of an epoch is safe: the next run processes the epoch again.
        """
        self._count += 1
        if self._count > 1:
            if sys.stdout.isatty():
                os.write(sys.stdout.fileno(), _SHOW_CURSOR)
            os._exit(INTERRUPTED)
