"""How every command ends: 0 done, 2 the user's mistake, 1 ours; a stack trace only on request."""

from __future__ import annotations

import functools
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
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
    """Say what went wrong, on stderr; returns the exit code for it."""
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
