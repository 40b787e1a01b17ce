"""What a case file says, frozen. `loader` makes these; nothing here can be half right."""

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
class Mark:
    """An explicit watermark: what it is once the row with this index has been read."""

    row_index: int
    watermark_ms: int


@dataclass(frozen=True)
class CaseSource:
    """A source of a case. In a case with a script only its name and its rows are given."""

    name: str
    kind: str = "stream"
    columns: tuple[tuple[str, str], ...] = ()
    time_column: str | None = None
    watermark_delay_ms: int = 0
    primary_key: tuple[str, ...] = ()
    rows: tuple[Row, ...] = ()
    marks: tuple[Mark, ...] = ()

    def __post_init__(self) -> None:
        assert self.kind in KINDS, f"{self.kind} is not a kind of source"

    @property
    def is_lookup(self) -> bool:
        return self.kind in LOOKUP_KINDS


@dataclass(frozen=True)
class Add:
    """Rows for one or more sources, in arrival order; one epoch unless the case says per_row."""

    rows: tuple[tuple[str, tuple[Row, ...]], ...]


@dataclass(frozen=True)
class ExpectNew:
    """The rows that came out since the last check."""

    rows: tuple[Row, ...]


@dataclass(frozen=True)
class ExpectAll:
    """All rows so far, updates applied."""

    rows: tuple[Row, ...]


@dataclass(frozen=True)
class ExpectDelta:
    """The net of the signed rows since the last check."""

    rows: tuple[Row, ...]


@dataclass(frozen=True)
class ExpectDropped:
    """How many rows were too late since the last such check."""

    count: int


@dataclass(frozen=True)
class ExpectWatermark:
    """The watermark of the stream in milliseconds since 1970; None for none yet."""

    watermark_ms: int | None


@dataclass(frozen=True)
class Restart:
    """Stop, and start again where it was."""


@dataclass(frozen=True)
class EndOfInput:
    """A final watermark of +∞: everything that is open closes."""


@dataclass(frozen=True)
class DeleteAll:
    """Retract every row of these sources."""

    sources: tuple[str, ...]


Expect = ExpectNew | ExpectAll | ExpectDelta | ExpectDropped | ExpectWatermark
Step = Add | Expect | Restart | EndOfInput | DeleteAll


@dataclass(frozen=True)
class LateReference:
    """A late row named by where it stands in its source."""

    source: str
    row_index: int


@dataclass(frozen=True)
class Case:
    """One scripted test. Either `query` over `sources`, or a `script` with `stream` to look at."""

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
        assert (self.script is None) == (self.stream is None), "a script names its stream"

    def source(self, name: str) -> CaseSource | None:
        key = name.lower()
        return next((item for item in self.sources if item.name.lower() == key), None)

    def rows_of(self, name: str) -> tuple[Row, ...]:
        """All rows of a source in arrival order."""
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


# ---- How a case ended.


class Verdict(Enum):
    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Outcome:
    """The verdict on a case: `reason` is one line, `detail` a diff or an error in full."""

    name: str
    verdict: Verdict
    seconds: float = 0.0
    reason: str | None = None
    detail: str | None = None
    is_diff: bool = False

    def __post_init__(self) -> None:
        assert self.verdict is Verdict.PASSED or self.reason, "a verdict other than passed says why"
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
