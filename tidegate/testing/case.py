"""The content of a case file as frozen dataclasses, and the outcome of a case.

`loader` validates a file before it creates these objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]

KINDS = (
    "stream",
    "changelog",
    "upsert",
    "versioned",
    "versioned_upsert",
    "lookup",
    "lookup_table",
)
LOOKUP_KINDS = frozenset({"lookup", "lookup_table"})
KEYED_KINDS = frozenset({"upsert", "versioned", "versioned_upsert"})
WATERMARK_MODELS = ("per_row", "per_batch", "explicit", "none")


@dataclass(frozen=True)
class ExplicitWatermark:
    """The watermark of a source after the row with this index has been read."""

    row_index: int
    watermark_ms: int


@dataclass(frozen=True)
class CaseSource:
    """A source of a case. In a case with a script it has only a name and rows."""

    name: str
    kind: str = "stream"
    columns: tuple[tuple[str, str], ...] = ()
    time_column: str | None = None
    watermark_delay_ms: int = 0
    primary_key: tuple[str, ...] = ()
    rows: tuple[Row, ...] = ()
    explicit_watermarks: tuple[ExplicitWatermark, ...] = ()

    def __post_init__(self) -> None:
        assert self.kind in KINDS, f"{self.kind} is not a kind of source"

    @property
    def is_lookup(self) -> bool:
        return self.kind in LOOKUP_KINDS


@dataclass(frozen=True)
class Add:
    """Rows for one or more sources, in arrival order.

    They form one epoch unless the watermark model of the case is `per_row` or `explicit`.
    """

    rows: tuple[tuple[str, tuple[Row, ...]], ...]


@dataclass(frozen=True)
class ExpectNew:
    """The rows emitted since the last check."""

    rows: tuple[Row, ...]


@dataclass(frozen=True)
class ExpectAll:
    """All rows so far, with updates applied."""

    rows: tuple[Row, ...]


@dataclass(frozen=True)
class ExpectDelta:
    """The net change since the last check, as signed rows."""

    rows: tuple[Row, ...]


@dataclass(frozen=True)
class ExpectDropped:
    """The number of rows that were too late since the last such check."""

    count: int


@dataclass(frozen=True)
class ExpectWatermark:
    """The watermark of the stream in milliseconds since 1970; None if there is none yet."""

    watermark_ms: int | None


@dataclass(frozen=True)
class Restart:
    """Stop the pipeline and resume it in a new session."""


@dataclass(frozen=True)
class EndOfInput:
    """A final watermark of +∞, which closes all open windows."""


@dataclass(frozen=True)
class DeleteAll:
    """The retraction of all rows of these sources."""

    sources: tuple[str, ...]


Expect = ExpectNew | ExpectAll | ExpectDelta | ExpectDropped | ExpectWatermark
Step = Add | Expect | Restart | EndOfInput | DeleteAll


@dataclass(frozen=True)
class LateReference:
    """A late row, identified by its index in its source."""

    source: str
    row_index: int


@dataclass(frozen=True)
class Case:
    """One test: either a `query` over `sources`, or a `script` and the `stream` to check."""

    name: str
    path: Path
    sources: tuple[CaseSource, ...]
    query: str | None = None
    script: str | None = None
    stream: str | None = None
    emit: str | None = None
    state_ttl: str | None = None
    flush: bool = True
    allowed_lateness_ms: int = 0
    watermark_model: str = "per_batch"
    ordered: bool = False
    steps: tuple[Step, ...] = ()
    expected_rows: tuple[Row, ...] | None = None
    expected_changelog: tuple[Row, ...] | None = None
    late_rows: tuple[Row | LateReference, ...] | None = None
    skip: str | None = None

    def __post_init__(self) -> None:
        assert (self.query is None) != (self.script is None), "a case has a query or a script"
        assert (self.script is None) == (self.stream is None), "a script has a stream to check"

    def source(self, name: str) -> CaseSource | None:
        key = name.lower()
        return next((item for item in self.sources if item.name.lower() == key), None)

    def rows_of(self, name: str) -> tuple[Row, ...]:
        """Return all rows of a source in arrival order."""
        if not self.steps:
            source = self.source(name)
            return source.rows if source is not None else ()
        return tuple(
            row
            for step in self.steps
            if isinstance(step, Add)
            for target, rows in step.rows
            if target.lower() == name.lower()
            for row in rows
        )


# ---- Outcomes


class Verdict(Enum):
    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Outcome:
    """The verdict on a case. `reason` is one line; `detail` is a diff or the complete error."""

    name: str
    verdict: Verdict
    seconds: float = 0.0
    reason: str | None = None
    detail: str | None = None
    is_diff: bool = False

    def __post_init__(self) -> None:
        assert self.verdict is Verdict.PASSED or self.reason, "other verdicts have a reason"
        assert self.reason is None or "\n" not in self.reason, "a reason is one line"

    @property
    def passed(self) -> bool:
        return self.verdict is Verdict.PASSED


class Mismatch(Exception):
    """The output differs from the expectation of the case."""

    def __init__(self, reason: str, detail: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.detail = detail
