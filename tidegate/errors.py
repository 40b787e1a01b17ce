"""Errors that users can cause: a code, a message, the location in the SQL, and a hint that works.

An error is data (`code`, `message`, `location`, `hint`); `render` formats it. This module lists all
codes with their titles. Tests compare `docs/ERRORS.md` with the list.
"""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

TITLES: dict[str, str] = {
    # 1xx: the language
    "TG-101": "syntax error",
    "TG-102": "unknown statement",
    "TG-103": "unsupported SQL",
    "TG-104": "EMIT in the wrong place",
    "TG-105": "invalid interval",
    # 2xx: names and options
    "TG-201": "unknown source, stream or table",
    "TG-202": "name already in use",
    "TG-203": "circular dependency",
    "TG-204": "object in use",
    "TG-205": "unknown connector",
    "TG-206": "unknown option",
    "TG-207": "invalid option value",
    "TG-208": "missing option",
    "TG-209": "environment variable not set",
    "TG-210": "invalid declaration",
    "TG-211": "connector cannot be used this way",
    "TG-212": "unknown setting",
    # 3xx: columns, functions, types
    "TG-301": "unknown column",
    "TG-302": "ambiguous column",
    "TG-303": "unknown function",
    "TG-304": "column neither grouped nor aggregated",
    "TG-305": "misplaced aggregate or window function",
    "TG-306": "invalid window",
    "TG-307": "type error",
    "TG-308": "number of columns differs",
    "TG-309": "rows do not fit the source",
    "TG-310": "ambiguous double quotes",
    "TG-311": "comparison with NULL",
    "TG-312": "unknown pattern or time zone",
    "TG-313": "invalid row pattern",
    "TG-314": "wrong number of arguments",
    # 4xx: statements that the validator rejects
    "TG-401": "ORDER BY on an unbounded stream",
    "TG-402": "LIMIT on an unbounded stream",
    "TG-403": "aggregate that would never emit",
    "TG-404": "EMIT ON WINDOW CLOSE without a window",
    "TG-405": "EMIT ON WINDOW CLOSE without a watermark",
    "TG-406": "window on a column that is not the event time",
    "TG-407": "join of streams without a time bound",
    "TG-408": "DISTINCT or the first row of each key without a bound",
    "TG-409": "set operation without a bound",
    "TG-410": "unsupported subquery",
    "TG-411": "unbounded OVER",
    "TG-412": "lateness without a window",
    "TG-413": "changelog not supported by the sink",
    "TG-414": "volatile value in state or in a key",
    "TG-415": "temporal join without a versioned right side",
    "TG-416": "EMIT ON UPDATE without a key or updates",
    "TG-417": "join not supported by the right side",
    "TG-418": "incompatible late rows",
    "TG-419": "late stream cannot be read",
    "TG-420": "unbounded row pattern",
    "TG-421": "unsupported input of MATCH_RECOGNIZE",
    "TG-422": "conflicting on_error options",
    # 5xx: running
    "TG-501": "not supported yet",
    "TG-502": "Java missing or too old",
    "TG-503": "pipeline failed",
    "TG-504": "value does not fit",
    "TG-505": "nothing to run",
    "TG-506": "invalid operation",
    "TG-507": "overflow in an aggregate",
    "TG-508": "state limit exceeded",
    "TG-509": "system unavailable",
    "TG-510": "Python function failed",
    "TG-511": "cannot listen on address",
    "TG-512": "login rejected",
    "TG-521": "missing Python package",
    "TG-522": "table, topic or directory not found",
    "TG-523": "schema mismatch",
    "TG-525": "sink ahead of the pipeline",
    "TG-526": "lost commit marker",
    "TG-527": "sink in use by another process",
    "TG-528": "input data lost or changed",
    "TG-529": "request rejected",
    "TG-530": "invalid path or URI",
    # 6xx: the data directory
    "TG-601": "data directory cannot be used",
    "TG-602": "data directory in use",
    "TG-603": "pipeline changed since its last epoch",
    "TG-604": "epoch expired",
    "TG-605": "saved state cannot be read",
    "TG-606": "discarded state",
    "TG-607": "stream already ended",
    "TG-608": "storage error",
    "TG-609": "unknown checkpoint",
    "TG-610": "sink cannot be rolled back",
    "TG-611": "stream was restored",
    "TG-612": "missed rows",
    "TG-613": "storage unavailable",
    "TG-614": "undeclared stream",
    # 7xx: test cases
    "TG-701": "invalid test case",
    # 8xx: queries over stored rows of streams
    "TG-801": "invalid query",
    "TG-802": "rows not stored",
}


# Replaces each character of a secret, so that offsets into the text stay valid. Shown as ***.
SECRET = "\ue000"
LINE_SHOWN = 160


def pluralize(number: int, noun: str) -> str:
    """Return a number with its noun, such as `1 column` or `2 columns`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def without_secrets(text: str) -> str:
    """Replace the secrets in a text by ***."""
    return re.sub(f"{SECRET}+", "***", text)


@dataclass(frozen=True)
class Location:
    """A position in SQL: the characters of `text` from `start` up to, but not including, `end`."""

    text: str
    start: int
    end: int
    file: str | None = None

    @property
    def line(self) -> int:
        return self.text.count("\n", 0, self.start) + 1

    @property
    def column(self) -> int:
        return self.start - (self.text.rfind("\n", 0, self.start) + 1) + 1

    def render(self) -> str:
        """Format the line of SQL with a caret below the location."""
        line_start = self.text.rfind("\n", 0, self.start) + 1
        line_end = self.text.find("\n", self.start)
        line_end = len(self.text) if line_end < 0 else line_end
        before, marked, after = self._parts(line_start, line_end)
        number = str(self.line)
        gutter = " " * len(number)
        where = f"{self.file or 'sql'}:{self.line}:{self.column}"
        return (
            f" {gutter}--> {where}\n"
            f" {gutter} |\n"
            f" {number} | {(before + marked + after).rstrip()}\n"
            f" {gutter} | {' ' * _width(before)}{'^' * max(1, _width(marked))}"
        )

    def _parts(self, line_start: int, line_end: int) -> tuple[str, str, str]:
        """Split a line into the text before, at and after the location; shorten very long lines."""
        end = max(self.start, min(self.end, line_end))
        before = self.text[line_start : self.start]
        marked, after = self.text[self.start : end], self.text[end:line_end]
        if len(before) > LINE_SHOWN:
            before = "…" + before[-LINE_SHOWN // 2 :]
        if len(marked) > LINE_SHOWN:
            marked, after = marked[:LINE_SHOWN] + "…", ""
        if len(after) > LINE_SHOWN:
            after = after[:LINE_SHOWN] + "…"
        shown = (without_secrets(part.replace("\t", " ")) for part in (before, marked, after))
        first, second, third = shown
        return first, second, third


def _width(text: str) -> int:
    """Return the width of a text on a terminal, where wide characters take two columns."""
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


class TidegateError(Exception):
    """Base class of all errors that Tidegate raises.

    * `code`: the error code, such as TG-301.
    * `message`, `hint`: what is wrong, and how to fix it.
    * `location`: the position in the SQL, or None.
    * `path`: the position in the plan, or None.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        location: Location | None = None,
        hint: str | None = None,
        path: str | None = None,
    ) -> None:
        assert code in TITLES, f"unregistered error code {code}"
        super().__init__(message)
        self.code = code
        self.message = message
        self.location = location
        self.hint = hint
        self.path = path

    def render(self, severity: str = "error") -> str:
        """Format the error as users see it."""
        parts = [f"{severity}[{self.code}]: {self.message}"]
        if self.location is not None:
            parts.append(self.location.render())
        if self.path is not None:
            parts.append(f"   = plan: {self.path}")
        if self.hint is not None:
            parts.append(f"Hint: {self.hint}")
        return "\n".join(parts)

    def __str__(self) -> str:
        return self.render()


class SqlError(TidegateError):
    """A statement with a syntax error, an unknown name or an invalid expression."""


class CatalogError(TidegateError):
    """An invalid declaration: names, options, connectors or dependencies."""


class ValidationError(TidegateError):
    """A statement that the validator rejected: unbounded, never emitting or with wrong rows."""


class RunError(TidegateError):
    """A pipeline, query or command that failed or was rejected."""


class SystemUnavailable(RunError):
    """A broker or a database is unavailable; a retry may succeed."""

    retryable = True

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__("TG-509", message, hint=hint)


def unsupported_error(
    message: str, hint: str | None = None, location: Location | None = None
) -> RunError:
    """Return the error for valid SQL that this version cannot run."""
    return RunError("TG-501", message, location=location, hint=hint)


class DataDirectoryError(RunError):
    """The data directory cannot be used."""


class ScriptError(TidegateError):
    """All errors of a script, in `errors`; the other attributes are those of the first error."""

    def __init__(self, errors: Sequence[TidegateError]) -> None:
        assert errors, "a script error needs errors"
        first = errors[0]
        super().__init__(
            first.code, first.message, location=first.location, hint=first.hint, path=first.path
        )
        self.errors = tuple(errors)

    def render(self, severity: str = "error") -> str:
        return "\n\n".join(error.render(severity) for error in self.errors)


def nearest(name: str, candidates: Iterable[str]) -> str | None:
    """Return the existing name that is most similar to `name`, or None."""
    by_lower = {candidate.lower(): candidate for candidate in candidates}
    matches = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[matches[0]] if matches else None


def did_you_mean(name: str, candidates: Iterable[str], kind: str) -> str:
    """Return a hint with the most similar name, or with a list of the existing names."""
    names = sorted(set(candidates))
    match = nearest(name, names)
    if match is not None:
        return f"did you mean {match}?"
    if not names:
        return f"there are no {kind} yet."
    shown = ", ".join(names[:12]) + (", …" if len(names) > 12 else "")
    return f"{kind}: {shown}"


def list_names(names: Iterable[str], if_empty: str = "none") -> str:
    """Join names with commas; `if_empty` is the text without any name."""
    return ", ".join(names) or if_empty
