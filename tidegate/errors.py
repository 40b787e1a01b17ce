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
    "TG-103": "SQL that Tidegate does not support",
    "TG-104": "EMIT in the wrong place",
    "TG-105": "invalid interval",
    # 2xx: names and options
    "TG-201": "unknown source, stream or table",
    "TG-202": "name already in use",
    "TG-203": "streams or functions that depend on each other in a cycle",
    "TG-204": "dropped while others depend on it",
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
    "TG-310": "text in double quotes where a column has that name",
    "TG-311": "comparison with NULL",
    "TG-312": "pattern or time zone that does not exist",
    "TG-313": "invalid row pattern",
    "TG-314": "function called with other arguments than it takes",
    # 4xx: statements that would emit nothing, emit wrong rows or need unbounded state
    "TG-401": "ORDER BY on an unbounded stream",
    "TG-402": "LIMIT on an unbounded stream",
    "TG-403": "aggregate that would never emit",
    "TG-404": "EMIT ON WINDOW CLOSE without a window",
    "TG-405": "EMIT ON WINDOW CLOSE without a watermark",
    "TG-406": "window on a column that is not the event time",
    "TG-407": "join of streams without a time bound",
    "TG-408": "DISTINCT or the first row of each key without a bound",
    "TG-409": "set operation without a bound",
    "TG-410": "subquery predicate over a stream",
    "TG-411": "OVER that a stream cannot compute",
    "TG-412": "lateness without a window",
    "TG-413": "sink that does not support a changelog",
    "TG-414": "value that changes on replay would reach state",
    "TG-415": "temporal join without a versioned right side",
    "TG-416": "EMIT that has nothing to update",
    "TG-417": "join that the right side does not support",
    "TG-418": "late rows from several places of a query",
    "TG-419": "late rows that a stream cannot read",
    "TG-420": "row pattern without a bound",
    "TG-421": "MATCH_RECOGNIZE that a stream cannot run",
    "TG-422": "conflicting on_error options",
    # 5xx: running
    "TG-501": "not supported yet",
    "TG-502": "Java missing or too old",
    "TG-503": "pipeline failed",
    "TG-504": "value that a column or a system cannot hold",
    "TG-505": "nothing to run",
    "TG-506": "wrong use of the session",
    "TG-507": "aggregate that overflows",
    "TG-508": "more state than allowed",
    "TG-509": "system that cannot be reached",
    "TG-510": "user-defined function that failed",
    "TG-511": "address that Tidegate cannot listen on",
    "TG-512": "login that a system rejects",
    "TG-521": "Python package that is not installed",
    "TG-522": "table, topic or directory that does not exist",
    "TG-523": "schema that does not match",
    "TG-525": "sink that is ahead of its pipeline",
    "TG-526": "lost commit marker",
    "TG-527": "sink that another process writes",
    "TG-528": "data that was removed or changed before it was read",
    "TG-529": "request that a system or file does not allow",
    "TG-530": "location that Tidegate cannot use",
    # 6xx: the data directory
    "TG-601": "data directory cannot be used",
    "TG-602": "data directory in use",
    "TG-603": "pipeline changed since its last epoch",
    "TG-604": "epoch no longer kept",
    "TG-605": "saved state cannot be read",
    "TG-606": "state that no longer fits",
    "TG-607": "stream that has reached its end",
    "TG-608": "stored bytes cannot be read or written",
    "TG-609": "checkpoint that does not exist",
    "TG-610": "sink that cannot roll back to a checkpoint",
    "TG-611": "stream that was restored to a checkpoint",
    "TG-612": "sink or stream that misses rows",
    "TG-613": "storage that is temporarily unavailable",
    "TG-614": "state of a stream that is not declared",
    # 7xx: test cases
    "TG-701": "invalid test case",
    # 8xx: queries over stored rows of streams
    "TG-801": "query that cannot be answered",
    "TG-802": "stream whose rows are not kept",
}


# Replaces each character of a secret, so that offsets into the text stay valid. Shown as ***.
SECRET = "\ue000"
LINE_SHOWN = 160


def without_secrets(text: str) -> str:
    """Replace the secrets in a text by ***."""
    return re.sub(f"{SECRET}+", "***", text)


@dataclass(frozen=True)
class Location:
    """A range of the user's SQL: half-open character offsets into a text."""

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
    """Base class of all errors that Tidegate raises."""

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
    """A statement that would emit nothing, emit wrong rows or need unbounded state on a stream."""


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
    """All errors of a script; code, message and location are those of the first one."""

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
