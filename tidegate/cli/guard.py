"""How every command ends: 0 done, 2 the user's mistake, 1 ours; a stack trace only on request."""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import ParamSpec

import typer

from tidegate.cli import report
from tidegate.errors import TidegateError

P = ParamSpec("P")

USER_ERROR = 2
INTERNAL_ERROR = 1
INTERRUPTED = 130


@dataclass
class _Options:
    """What holds for the whole command, said before its name or after."""

    debug: bool = False


OPTIONS = _Options()


def guarded(command: Callable[P, int]) -> Callable[P, None]:
    """Let a command return its exit code and raise what it likes."""

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
        _silence_stdout()
        return 0
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        return show_exception(error)


def show_exception(error: Exception) -> int:
    """Print an error to stderr and return the exit code."""
    if OPTIONS.debug:
        traceback.print_exception(error)
    if isinstance(error, TidegateError | report.InputProblem):
        report.show_error(error)
        return USER_ERROR
    first = next(iter(str(error).strip().splitlines()), "no message")
    if report.STYLE.json:
        message = f"{type(error).__name__}: {first}"
        print(report.json_line("error", "internal error", message=message), file=sys.stderr)
        return INTERNAL_ERROR
    print(
        f"internal error: {type(error).__name__}: {first}, run with --debug for details",
        file=sys.stderr,
    )
    return INTERNAL_ERROR


def _silence_stdout() -> None:
    """The reader is gone; what is still buffered must not raise again when Python exits."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())


# ---- Ctrl-C once asks to stop, twice means now.

_SHOW_CURSOR = b"\x1b[?25h\n"


class Interrupts:
    """Counts what the user or the system asked for; the one who runs looks at `requested`.

    The handler does next to nothing, because it runs in the middle of anything: locks may be held
    and lines half written.
    """

    def __init__(self) -> None:
        self._count = 0

    @property
    def requested(self) -> bool:
        return self._count > 0

    def note(self) -> str:
        return "stopping… (Ctrl-C again to leave at once)" if self.requested else ""

    def install(self) -> None:
        """Spark puts its own handler in place when it starts, so this is called again after."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self._handle)
            signal.signal(signal.SIGTERM, self._handle)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        self.count()

    def count(self) -> None:
        """One more request; the second ends the process, which leaves nothing half done on disk:
        the epoch that was under way is repeated by the next run."""
        self._count += 1
        if self._count > 1:
            if sys.stdout.isatty():
                os.write(sys.stdout.fileno(), _SHOW_CURSOR)
            os._exit(INTERRUPTED)
