"""Runs a case: epochs in, rows out, restarts in between, on a real session."""

from __future__ import annotations

import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from tidegate.columns import OP
from tidegate.errors import RunError, ScriptError, TidegateError
from tidegate.testing.case import (
    Add,
    Case,
    CaseSource,
    DeleteAll,
    EndOfInput,
    ExpectAll,
    ExpectDelta,
    ExpectDropped,
    ExpectNew,
    ExpectWatermark,
    LateReference,
    Mark,
    Mismatch,
    Outcome,
    Restart,
    Row,
    Step,
    Verdict,
)
from tidegate.testing.compare import Change, Difference, StreamOutput, compare, standing
from tidegate.testing.declare import DeclaredCase, declare, sql_name
from tidegate.testing.fields import marked_row
from tidegate.testing.loader import WEIGHT
from tidegate.types import ChangelogKind

# ---- Compare the output with the expectations of a case.

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _require_none(difference: Difference | None, what: str) -> None:
    if difference is not None:
        raise Mismatch(f"{what}: {difference.reason}", difference.render())


def check_rows(
    step: ExpectNew | ExpectAll | ExpectDelta, output: StreamOutput, since: int, ordered: bool
) -> None:
    """A step that expects rows; `since` is how many changes earlier steps have seen."""
    if isinstance(step, ExpectNew):
        rows = output.new_rows(since)
        _require_none(compare(step.rows, rows, output.columns, ordered), "expect_new")
    elif isinstance(step, ExpectAll):
        rows = output.all_rows()
        _require_none(compare(step.rows, rows, output.columns, ordered), "expect_all")
    else:
        _require_none(_delta(step.rows, output, since), "expect_delta")


def _delta(expected: Sequence[Row], output: StreamOutput, since: int) -> Difference | None:
    """Compare the net changes: a row that was added and retracted does not count."""
    added, removed = standing(output.changes[since:])
    changes = [*_signed(added, "+"), *_signed(removed, "-")]
    unfolded: list[Row] = []
    for row in expected:
        plain = {name: value for name, value in row.items() if name not in (OP, WEIGHT)}
        weight = row[WEIGHT] if WEIGHT in row else (1 if str(row[OP]).startswith("+") else -1)
        unfolded += _signed([plain] * abs(weight), "+" if weight > 0 else "-")
    return compare(unfolded, changes, _with_op(output))


def _signed(rows: Sequence[Row], sign: str) -> list[Row]:
    return [{OP: sign, **row} for row in rows]


def _with_op(output: StreamOutput) -> dict[str, pa.DataType]:
    return {OP: pa.string(), **output.columns} if output.columns else {}


def check_final(case: Case, output: StreamOutput) -> None:
    """What the case expects at its end."""
    if case.expected_changelog is not None:
        difference = _changelog(case.expected_changelog, output, case.ordered)
        _require_none(difference, "expected_changelog")
    if case.expected_rows is not None:
        difference = compare(case.expected_rows, output.all_rows(), output.columns, case.ordered)
        _require_none(difference, "expected_rows")


def _changelog(expected: Sequence[Row], output: StreamOutput, ordered: bool) -> Difference | None:
    """Signs must agree; whether an addition is called +I or +U is not told apart.

    A changelog with +U and never -U is one of upserts: the rows retracted are implied.
    """
    ops = {row[OP] for row in expected}
    upserts = "+U" in ops and "-U" not in ops
    changes = [c for c in output.changes if not (upserts and c.op == "-U")]
    left = [{**row, OP: str(row[OP])[0]} for row in expected]
    right = [{OP: _sign(change), **change.row} for change in changes]
    return compare(left, right, _with_op(output), ordered)


def _sign(change: Change) -> str:
    return "+" if change.sign > 0 else "-"


def check_late_rows(case: Case, late: StreamOutput) -> None:
    """The late stream holds exactly these rows, as far as its columns tell."""
    assert case.late_rows is not None, "only cases with late rows are checked for them"
    known = {name.lower() for name in late.columns}
    expected: list[Row] = []
    for item in case.late_rows:
        row = case.rows_of(item.source)[item.row_index] if isinstance(item, LateReference) else item
        expected.append({k: v for k, v in row.items() if not known or k.lower() in known})
    row_columns = {name.lower() for row in expected for name in row}
    columns = {name: kind for name, kind in late.columns.items() if name.lower() in row_columns}
    _require_none(compare(expected, late.all_rows(), columns), "late_rows")


def check_late_count(expected: int, actual: int) -> None:
    """The number of rows that were too late."""
    if expected != actual:
        raise Mismatch(f"expected {expected} rows to be too late, found {actual}")


def check_watermark(step: ExpectWatermark, actual: datetime | None) -> None:
    """The watermark in whole milliseconds."""
    at = None if actual is None else (actual - _EPOCH) // timedelta(milliseconds=1)
    if at != step.watermark_ms:
        raise Mismatch(f"expect_watermark_ms: expected {step.watermark_ms}, found {at}")


# ---- The epochs of a case: each remaining `add` is exactly one epoch.
#
# With `per_row` an epoch has one row, and the sources take turns. Each explicit watermark ends an
# epoch. Otherwise an add step is one epoch, and a case without steps is one epoch with all rows.

Rows = tuple[Row, ...]


def epochs_of(case: Case, restart: bool = False) -> tuple[Step, ...]:
    """The steps of a run; with `restart` there is one in the middle if the case has none."""
    steps = _laid_out(case)
    if restart and not any(isinstance(step, Restart) for step in steps):
        steps = _with_restart(case, steps)
    if case.flush and not any(isinstance(step, EndOfInput) for step in steps):
        steps.append(EndOfInput())
    return tuple(steps)


def _laid_out(case: Case) -> list[Step]:
    lookups = tuple(
        (source.name, source.rows)
        for source in case.sources
        if source.is_lookup and source.rows and not (case.steps and case.rows_of(source.name))
    )
    steps: list[Step] = [Add(lookups)] if lookups else []
    script = case.steps or (_all_rows(case),)
    read: Counter[str] = Counter()
    for step in script:
        if isinstance(step, Add):
            steps += _epochs(case, step, read)
        else:
            steps.append(step)
    return steps


def _all_rows(case: Case) -> Add:
    return Add(
        tuple(
            (source.name, source.rows)
            for source in case.sources
            if source.rows and not source.is_lookup
        )
    )


def _epochs(case: Case, step: Add, read: Counter[str]) -> Iterator[Add]:
    """One step as epochs; `read` counts the rows of each source so far."""
    whole: list[tuple[str, Rows]] = []
    turns: list[list[Add]] = []
    for name, rows in step.rows:
        source = case.source(name)
        first = read[name]
        read[name] += len(rows)
        if source is not None and source.is_lookup:
            # A lookup table is read when a row asks: it must be complete before that row.
            yield Add(((name, rows),))
        elif source is not None and source.marks:
            turns.append([Add(((name, part),)) for part in _marked(source, rows, first)])
        elif case.watermark_model in ("per_row", "explicit"):
            turns.append([Add(((name, (row,)),)) for row in rows])
        else:
            whole.append((name, rows))
    if whole:
        yield Add(tuple(whole))
    for turn in range(max((len(parts) for parts in turns), default=0)):
        for parts in turns:
            if turn < len(parts):
                yield parts[turn]


def _marked(source: CaseSource, rows: Rows, first: int) -> Iterator[Rows]:
    """Rows cut after each explicit watermark, which goes with the last row before it."""
    time = source.time_column
    assert time is not None, "explicit watermarks need a time column"
    marks = {mark.row_index: mark for mark in source.marks}
    if first == 0 and min(marks) < 0:
        yield (marked_row(time, Mark(-1, marks[min(marks)].watermark_ms)),)
    part: list[Row] = []
    for index, row in enumerate(rows, first):
        part.append(row)
        if index in marks:
            part.append(marked_row(time, marks[index]))
            yield tuple(part)
            part = []
    if part:
        yield tuple(part)


def _with_restart(case: Case, steps: list[Step]) -> list[Step]:
    """Insert a restart between two epochs; split a single epoch in two unless a step adds it."""
    places = [index for index, step in enumerate(steps) if isinstance(step, Add)]
    if len(places) == 1 and not case.steps:
        index = places[0]
        only = steps[index]
        assert isinstance(only, Add), "places are those of the epochs"
        first = tuple((name, rows[: len(rows) // 2]) for name, rows in only.rows)
        second = tuple((name, rows[len(rows) // 2 :]) for name, rows in only.rows)
        return [*steps[:index], Add(first), Restart(), Add(second), *steps[index + 1 :]]
    if not places:
        return steps
    middle = places[(len(places) - 1) // 2] + 1
    return [*steps[:middle], Restart(), *steps[middle:]]


TIMEOUT_SECONDS = 120.0
# Spark reports what an epoch did a moment after the epoch; counters are read after the report.
_REPORT_SECONDS = 5.0


class SessionLike(Protocol):
    """What the runner needs of a session."""

    def execute(self, sql: str, file: str | None = None) -> Any: ...
    def insert(self, source: str, rows: Any) -> int: ...
    def start(self, until_end: bool = False) -> None: ...
    def wait(self, timeout: float | None = None) -> bool: ...
    def stop(self) -> None: ...
    def close(self) -> None: ...
    def subscribe(self, stream: str, from_epoch: int | None = None) -> Any: ...
    def status(self) -> Sequence[Any]: ...


OpenSession = Callable[[Path], SessionLike]


def run_case(
    case: Case,
    open_session: OpenSession | None = None,
    *,
    spark: Any = None,
    restart: bool = False,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> Outcome:
    """Run one case in a data directory of its own; nothing it does can raise.

    `restart` puts one in the middle of a case that has none: the outcome must be the same.
    """
    if case.skip is not None:
        return Outcome(case.name, Verdict.SKIPPED, reason=_one_line(case.skip))
    began = time.monotonic()
    reason: str | None = None
    detail: str | None = None
    is_diff = False
    try:
        declared = declare(case)
        with tempfile.TemporaryDirectory(prefix="tidegate-test-") as directory:
            opener = open_session or session_opener(spark)
            with _Run(case, declared, opener, Path(directory), timeout_seconds) as run:
                run.run(epochs_of(case, restart))
    except Mismatch as mismatch:
        reason, detail, is_diff = mismatch.reason, mismatch.detail, True
    except TidegateError as error:
        reason, detail = reason_of(error), error.render()
    except Exception as error:
        reason = f"internal error: {type(error).__name__}: {error}"
        detail = traceback.format_exc()
    seconds = time.monotonic() - began
    if reason is None:
        return Outcome(case.name, Verdict.PASSED, seconds)
    return Outcome(case.name, Verdict.FAILED, seconds, _one_line(reason), detail, is_diff)


def session_opener(spark: Any = None) -> OpenSession:
    """Sessions on one Spark."""
    from tidegate.session.session import Session

    return lambda path: Session(path, spark=spark)


def reason_of(error: TidegateError) -> str:
    """An error in one line: its code, what is wrong, and how many more there are."""
    more = len(error.errors) - 1 if isinstance(error, ScriptError) else 0
    return f"{error.code}: {error.message}" + (f" (and {more} more)" if more else "")


def _one_line(text: str) -> str:
    return " ".join(text.split()) or "no reason given"


@dataclass
class _Run:
    """One run of a case: a session at a time, on one data directory."""

    case: Case
    declared: DeclaredCase
    opener: OpenSession
    directory: Path
    timeout_seconds: float
    output: StreamOutput = field(init=False)
    late: StreamOutput = field(init=False)
    session: SessionLike | None = None
    subscriptions: list[tuple[Any, StreamOutput]] = field(default_factory=list)
    running: bool = False
    first_epoch: int = -1
    last_epoch: int = -1
    checked: int = 0
    dropped_before: int = 0
    dropped_checked: int = 0
    watermark_before: datetime | None = None
    inserted: dict[str, list[Change]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.output = StreamOutput(self.declared.changelog, self.declared.key)
        self.late = StreamOutput(ChangelogKind.APPEND)

    def __enter__(self) -> _Run:
        self._open(self.declared.script)
        return self

    def __exit__(self, *_: object) -> None:
        # A session that cannot be closed must not hide why the case failed.
        with suppress(Exception):
            if self.session is not None:
                self.session.close()

    def run(self, steps: Sequence[Step]) -> None:
        for index, step in enumerate(steps):
            following = steps[index + 1] if index + 1 < len(steps) else None
            try:
                self._step(step, ends=isinstance(following, EndOfInput))
            except Mismatch as mismatch:
                raise Mismatch(self._told(step, mismatch.reason), mismatch.detail) from None
        self._collect()
        check_final(self.case, self.output)
        self._check_late()

    def _told(self, step: Step, reason: str) -> str:
        """The reason with the number of the step in the file; some steps are not from there."""
        own = [index for index, item in enumerate(self.case.steps) if item is step]
        return f"steps[{own[0]}]: {reason}" if own else reason

    def _step(self, step: Step, ends: bool) -> None:
        if isinstance(step, Add):
            self._epoch(step, ends)
        elif isinstance(step, Restart):
            self._restart()
        elif isinstance(step, EndOfInput):
            self._end()
        elif isinstance(step, DeleteAll):
            self._delete_all(step, ends)
        elif isinstance(step, ExpectDropped):
            self._check_dropped(step)
        elif isinstance(step, ExpectWatermark):
            self._await_report()
            check_watermark(step, self._watermark())
        else:
            self._collect()
            check_rows(step, self.output, self.checked, self.case.ordered)
            self.checked = len(self.output.changes)

    # Rows in

    @property
    def _live(self) -> SessionLike:
        assert self.session is not None, "the session is open while the case runs"
        return self.session

    def _open(self, script: str) -> None:
        self.session = self.opener(self.directory)
        self.session.execute(script, sql_name(self.case))
        pairs = [(self.declared.stream, self.output)]
        if self.declared.late_stream is not None and self.case.late_rows is not None:
            pairs.append((self.declared.late_stream, self.late))
        self.subscriptions = [(self.session.subscribe(name), output) for name, output in pairs]

    def _epoch(self, step: Add, ends: bool) -> None:
        """The rows of one epoch. Several sources are filled while nothing runs, or the first
        of them would be an epoch of its own."""
        rows = [(name, part) for name, part in step.rows if part]
        streamed = [name for name, _ in rows if not self._is_lookup(name)]
        if len(streamed) > 1 or (streamed and ends):
            self._stop()
        for name, part in rows:
            self._insert(name, part)
        if streamed and not ends:
            self._start(until_end=False)
            self._wait()

    def _is_lookup(self, name: str) -> bool:
        source = self.case.source(name)
        return source is not None and source.is_lookup

    def _insert(self, name: str, rows: Sequence[Row]) -> None:
        source = self.declared.source(name)
        target = source.name
        if source.carries_op:
            rows = [{OP: "+I", **row} for row in rows]
        self.inserted.setdefault(target, []).extend(
            Change(row.get(OP, "+I"), {k: v for k, v in row.items() if k != OP}) for row in rows
        )
        self._live.insert(target, [dict(row) for row in rows])

    def _delete_all(self, step: DeleteAll, ends: bool) -> None:
        """Retract what stands in these sources, as one epoch."""
        removals: list[tuple[str, tuple[Row, ...]]] = []
        for name in step.sources:
            source = self.declared.source(name)
            if not source.carries_op:
                raise RunError(
                    "TG-506",
                    f"delete_all: rows of {name} cannot be retracted",
                    hint="declare the source with changelog = true (kind: changelog).",
                )
            changes = self.inserted.get(source.name, [])
            if source.primary_key:
                upserts = StreamOutput(ChangelogKind.UPSERT, source.primary_key, list(changes))
                left = upserts.all_rows()
            else:
                left = standing(changes)[0]
            removals.append((name, tuple({**row, OP: "-D"} for row in left)))
        self._epoch(Add(tuple(removals)), ends)

    # Running

    def _start(self, until_end: bool) -> None:
        if not self.running:
            self._collect()
            self.first_epoch = self.last_epoch
            self._live.start(until_end)
            self.running = True

    def _wait(self) -> None:
        if not self._live.wait(self.timeout_seconds):
            raise Mismatch(f"not done within {self.timeout_seconds:g} s")

    def _stop(self) -> None:
        """Until the first epoch of the next start, what the counters say now holds."""
        if not self.running:
            return
        self._await_report()
        self.dropped_before = self._dropped()
        self.watermark_before = self._watermark()
        self._live.stop()
        self.running = False

    def _restart(self) -> None:
        """Reopen the data directory and continue; rows that were emitted before must still be
        there.
        """
        self._collect()
        before = list(self.output.changes)
        was_running = self.running
        self._stop()
        self._live.close()
        for output in (self.output, self.late):
            output.changes.clear()
        self._open(self.declared.script)
        if was_running:
            self._start(until_end=False)
            self._wait()
        self._collect()
        if self.output.changes[: len(before)] != before:
            raise Mismatch("the rows emitted before the restart have changed")

    def _end(self) -> None:
        self._stop()
        self._start(until_end=True)
        self._wait()

    # Rows out

    def _collect(self) -> None:
        for subscription, output in self.subscriptions:
            for batch in subscription.take_all():
                output.add(batch.table)
                if output is self.output:
                    self.last_epoch = max(self.last_epoch, batch.epoch)

    def _status(self) -> Any:
        name = self.declared.stream.lower()
        return next((s for s in self._live.status() if s.name.lower() == name), None)

    def _dropped(self) -> int:
        """How many rows were late so far; a start counts from 0."""
        status = self._status() if self.running else None
        return self.dropped_before + (status.late_rows if status is not None else 0)

    def _watermark(self) -> datetime | None:
        """The watermark; before the first epoch after a start it is the one before the stop."""
        status = self._status()
        watermark = status.watermark if status is not None else None
        return watermark if watermark is not None else self.watermark_before

    def _await_report(self) -> None:
        """Wait for the report of the last epoch, if this start has had one."""
        self._collect()
        deadline = time.monotonic() + _REPORT_SECONDS
        while self.last_epoch > self.first_epoch and time.monotonic() < deadline:
            status = self._status()
            if status is None or (status.epoch is not None and status.epoch >= self.last_epoch):
                return
            time.sleep(0.01)

    def _check_dropped(self, step: ExpectDropped) -> None:
        self._await_report()
        dropped = self._dropped()
        check_late_count(step.count, dropped - self.dropped_checked)
        self.dropped_checked = dropped

    def _check_late(self) -> None:
        if self.case.late_rows is None:
            return
        if self.declared.late_stream is not None:
            check_late_rows(self.case, self.late)
            return
        self._await_report()
        check_late_count(len(self.case.late_rows), self._dropped())
