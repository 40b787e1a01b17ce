"""Errors and warnings on stderr: coloured for a person, else exactly `render()`, or JSON."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TextIO

from tidegate.errors import ScriptError, TidegateError

if TYPE_CHECKING:
    from rich.text import Text


class InputProblem(Exception):
    """A file named on the command line that cannot be read; not a mistake in the SQL."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint

    def render(self, severity: str = "error") -> str:
        hint = f"\nHint: {self.hint}" if self.hint else ""
        return f"{severity}: {self}{hint}"


@dataclass
class _Style:
    """How problems are written, for the whole command."""

    json: bool = False


STYLE = _Style()


def is_terminal(stream: TextIO) -> bool:
    """Whether a person looks at this stream, on a terminal that can move its cursor."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def show(
    problems: Sequence[TidegateError | InputProblem],
    severity: str = "error",
    after_others: bool = False,
) -> None:
    """Write errors or warnings to stderr, an empty line between two."""
    for index, problem in enumerate(problems):
        if STYLE.json:
            print(json_line(severity, **_as_data(problem)), file=sys.stderr, flush=True)
            continue
        if index or after_others:
            print(file=sys.stderr)
        _write(problem.render(severity), severity)


def json_line(level: str, event: str, **content: Any) -> str:
    """One event of a log, as JSON on a line."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    return json.dumps({"time": now, "level": level, "event": event, **content}, default=str)


def _as_data(problem: TidegateError | InputProblem) -> dict[str, Any]:
    if isinstance(problem, InputProblem):
        return {"event": "problem", "message": str(problem), "hint": problem.hint}
    location = problem.location
    where = (
        {"file": location.file, "line": location.line, "column": location.column}
        if location
        else None
    )
    data = {"event": "problem", "code": problem.code, "message": problem.message}
    return {**data, "hint": problem.hint, "place": where}


def show_error(error: TidegateError | InputProblem) -> None:
    """Write what was raised: one error, or all those of a script."""
    show(error.errors if isinstance(error, ScriptError) else (error,))


def _write(rendered: str, severity: str) -> None:
    if not is_terminal(sys.stderr):
        print(rendered, file=sys.stderr, flush=True)
        return
    from rich.console import Console

    # soft_wrap: rich must not break lines, or the carets no longer stand under their words.
    Console(file=sys.stderr, highlight=False).print(coloured(rendered, severity), soft_wrap=True)


def coloured(rendered: str, severity: str) -> Text:
    """The same text with the parts of an error told apart."""
    from rich.text import Text

    colour = "red" if severity == "error" else "yellow"
    text = Text()
    for number, line in enumerate(rendered.split("\n")):
        if number:
            text.append("\n")
        head, colon, rest = line.partition(": ")
        stripped = line.lstrip()
        gutter, bar, source = line.partition(" |")
        if number == 0:
            text.append(head, f"bold {colour}").append(colon).append(rest, "bold")
        elif head == "Hint":
            text.append(head + colon, "bold green").append(rest)
        elif stripped.startswith(("-->", "= plan")):
            text.append(line, "dim")
        elif bar and (not gutter.strip() or gutter.strip().isdigit()):
            caret = bool(source.strip()) and set(source.strip()) == {"^"}
            text.append(gutter + bar, "blue").append(source, f"bold {colour}" if caret else "")
        else:
            text.append(line)
    return text
