"""Run a case on a session: one epoch after the other, with restarts and checks in between."""

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
    Mismatch,
    Outcome,
    Restart,
    Row,
    Step,
    Verdict,
)
from tidegate.testing.compare import Change, Difference, StreamOutput, compare, net_rows
from tidegate.testing.declare import DeclaredCase, declare, sql_name
from tidegate.testing.fields import watermark_row
from tidegate.testing.loader import WEIGHT
from tidegate.types import ChangelogKind

# ---- Compare the output with the expectations of a case.

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _raise_if_different(difference: Difference | None, expectation: str) -> None:
    if difference is not None:
        raise Mismatch(f"{expectation}: {difference.reason}", difference.render())


def check_rows(
    step: ExpectNew | ExpectAll | ExpectDelta, output: StreamOutput, since: int, ordered: bool
) -> None:
    """Check a step that expects rows; earlier steps have checked the first `since` changes."""
    if isinstance(step, ExpectNew):
        rows = output.new_rows(since)
        _raise_if_different(compare(step.rows, rows, output.columns, ordered), "expect_new")
    elif isinstance(step, ExpectAll):
        rows = output.all_rows()
        _raise_if_different(compare(step.rows, rows, output.columns, ordered), "expect_all")
    else:
        _raise_if_different(_compare_delta(step.rows, output, since), "expect_delta")


def _compare_delta(expected: Sequence[Row], output: StreamOutput, since: int) -> Difference | None:
    """Compare the net changes; a row that was added and retracted does not count."""
    added, removed = net_rows(output.changes[since:])
    changes = [*_signed(added, "+"), *_signed(removed, "-")]
    expected_changes: list[Row] = []
    for row in expected:
        plain = {name: value for name, value in row.items() if name not in (OP, WEIGHT)}
        weight = row[WEIGHT] if WEIGHT in row else (1 if str(row[OP]).startswith("+") else -1)
        expected_changes += _signed([plain] * abs(weight), "+" if weight > 0 else "-")
    return compare(expected_changes, changes, _with_op(output))


def _signed(rows: Sequence[Row], sign: str) -> list[Row]:
    return [{OP: sign, **row} for row in rows]


def _with_op(output: StreamOutput) -> dict[str, pa.DataType]:
    return {OP: pa.string(), **output.columns} if output.columns else {}


def check_final(case: Case, output: StreamOutput) -> None:
    """Check what the case expects at its end."""
    if case.expected_changelog is not None:
        difference = _compare_changelog(case.expected_changelog, output, case.ordered)
        _raise_if_different(difference, "expected_changelog")
    if case.expected_rows is not None:
        difference = compare(case.expected_rows, output.all_rows(), output.columns, case.ordered)
        _raise_if_different(difference, "expected_rows")


def _compare_changelog(
    expected: Sequence[Row], output: StreamOutput, ordered: bool
) -> Difference | None:
    """Compare the signs and the rows; +I equals +U, and -U equals -D.

    If the expected changelog contains +U but not -U, the replaced rows are implied.
    """
    ops = {row[OP] for row in expected}
    has_upserts = "+U" in ops and "-U" not in ops
    changes = [change for change in output.changes if not (has_upserts and change.op == "-U")]
    expected_changes = [{**row, OP: str(row[OP])[0]} for row in expected]
    actual_changes = [{OP: change.op[0], **change.row} for change in changes]
    return compare(expected_changes, actual_changes, _with_op(output), ordered)


def check_late_rows(case: Case, late_output: StreamOutput) -> None:
    """Check that the late stream has exactly these rows, comparing the columns that it has."""
    assert case.late_rows is not None, "only cases with late rows are checked for them"
    column_names = {name.lower() for name in late_output.columns}
    expected: list[Row] = []
    for item in case.late_rows:
        row = case.rows_of(item.source)[item.row_index] if isinstance(item, LateReference) else item
        expected.append(
            {k: v for k, v in row.items() if not column_names or k.lower() in column_names}
        )
    row_columns = {name.lower() for row in expected for name in row}
    columns = {
        name: data_type
        for name, data_type in late_output.columns.items()
        if name.lower() in row_columns
    }
    _raise_if_different(compare(expected, late_output.all_rows(), columns), "late_rows")


def check_late_count(expected: int, actual: int) -> None:
    """Check the number of late rows."""
    if expected != actual:
        raise Mismatch(f"late rows: expected {expected}, found {actual}")


def check_watermark(step: ExpectWatermark, actual: datetime | None) -> None:
    """Check the watermark, in milliseconds."""
    at = None if actual is None else (actual - _EPOCH) // timedelta(milliseconds=1)
    if at != step.watermark_ms:
        raise Mismatch(f"expect_watermark_ms: expected {step.watermark_ms}, found {at}")


# ---- The epochs of a case
#
# With `per_row`, an epoch has one row, and the sources alternate. An explicit watermark ends an
# epoch. Otherwise an `add` step is one epoch, and a case without steps is one epoch with all rows.

Rows = tuple[Row, ...]


def epochs_of(case: Case, restart: bool = False) -> tuple[Step, ...]:
    """Return the steps of a run, in which each `Add` is exactly one epoch.

    `restart` adds a restart in the middle of a case that has none.
    """
    steps = _expand_steps(case)
    if restart and not any(isinstance(step, Restart) for step in steps):
        steps = _with_restart(case, steps)
    if case.flush and not any(isinstance(step, EndOfInput) for step in steps):
        steps.append(EndOfInput())
    return tuple(steps)


def _expand_steps(case: Case) -> list[Step]:
    lookups = tuple(
        (source.name, source.rows)
        for source in case.sources
        if source.is_lookup and source.rows and not (case.steps and case.rows_of(source.name))
    )
    steps: list[Step] = [Add(lookups)] if lookups else []
    script = case.steps or (_all_rows_step(case),)
    row_counts: Counter[str] = Counter()
    for step in script:
        if isinstance(step, Add):
            steps += _split_into_epochs(case, step, row_counts)
        else:
            steps.append(step)
    return steps


def _all_rows_step(case: Case) -> Add:
    return Add(
        tuple(
            (source.name, source.rows)
            for source in case.sources
            if source.rows and not source.is_lookup
        )
    )


def _split_into_epochs(case: Case, step: Add, row_counts: Counter[str]) -> Iterator[Add]:
    """Split one step into epochs; `row_counts` counts the rows of each source so far."""
    together: list[tuple[str, Rows]] = []
    alternating: list[list[Add]] = []
    for name, rows in step.rows:
        source = case.source(name)
        first_index = row_counts[name]
        row_counts[name] += len(rows)
        if source is not None and source.is_lookup:
            # A lookup table must be complete before the first row is looked up in it.
            yield Add(((name, rows),))
        elif source is not None and source.explicit_watermarks:
            parts = _split_at_watermarks(source, rows, first_index)
            alternating.append([Add(((name, part),)) for part in parts])
        elif case.watermark_model in ("per_row", "explicit"):
            alternating.append([Add(((name, (row,)),)) for row in rows])
        else:
            together.append((name, rows))
    if together:
        yield Add(tuple(together))
    for turn in range(max((len(epochs) for epochs in alternating), default=0)):
        for epochs in alternating:
            if turn < len(epochs):
                yield epochs[turn]


def _split_at_watermarks(source: CaseSource, rows: Rows, first_index: int) -> Iterator[Rows]:
    """Split rows after each explicit watermark, which is in the epoch of the row before it."""
    time = source.time_column
    assert time is not None, "explicit watermarks need a time column"
    watermarks = {watermark.row_index: watermark for watermark in source.explicit_watermarks}
    if first_index == 0 and min(watermarks) < 0:
        yield (watermark_row(time, watermarks[min(watermarks)]),)
    part: list[Row] = []
    for index, row in enumerate(rows, first_index):
        part.append(row)
        if index in watermarks:
            part.append(watermark_row(time, watermarks[index]))
            yield tuple(part)
            part = []
    if part:
        yield tuple(part)


def _with_restart(case: Case, steps: list[Step]) -> list[Step]:
    """Insert a restart between two epochs; split a single epoch in two unless a step adds it."""
    indexes = [index for index, step in enumerate(steps) if isinstance(step, Add)]
    if len(indexes) == 1 and not case.steps:
        index = indexes[0]
        only = steps[index]
        assert isinstance(only, Add), "indexes refer to Add steps"
        first = tuple((name, rows[: len(rows) // 2]) for name, rows in only.rows)
        second = tuple((name, rows[len(rows) // 2 :]) for name, rows in only.rows)
        return [*steps[:index], Add(first), Restart(), Add(second), *steps[index + 1 :]]
    if not indexes:
        return steps
    middle = indexes[(len(indexes) - 1) // 2] + 1
    return [*steps[:middle], Restart(), *steps[middle:]]


TIMEOUT_SECONDS = 120.0
# Spark reports the counters of an epoch shortly after the epoch.
_REPORT_SECONDS = 5.0


class SessionLike(Protocol):
    """The methods of a session that the runner calls."""

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
    """Run one case in a new data directory. Errors are part of the outcome and never raised.

    `restart` adds a restart in the middle of a case that has none; the outcome must be the same.
    """
    if case.skip is not None:
        return Outcome(case.name, Verdict.SKIPPED, reason=_one_line(case.skip))
    start = time.monotonic()
    reason: str | None = None
    detail: str | None = None
    is_diff = False
    try:
        declared = declare(case)
        with tempfile.TemporaryDirectory(prefix="tidegate-test-") as directory:
            opener = open_session or session_opener(spark)
            with _RunningCase(case, declared, opener, Path(directory), timeout_seconds) as run:
                run.run(epochs_of(case, restart))
    except Mismatch as mismatch:
        reason, detail, is_diff = mismatch.reason, mismatch.detail, True
    except TidegateError as error:
        reason, detail = one_line_error(error), error.render()
    except Exception as error:
        reason = f"internal error: {type(error).__name__}: {error}"
        detail = traceback.format_exc()
    seconds = time.monotonic() - start
    if reason is None:
        return Outcome(case.name, Verdict.PASSED, seconds)
    return Outcome(case.name, Verdict.FAILED, seconds, _one_line(reason), detail, is_diff)


def session_opener(spark: Any = None) -> OpenSession:
    """Return a function that opens sessions on one Spark session."""
    from tidegate.session.session import Session

    return lambda path: Session(path, spark=spark)


def one_line_error(error: TidegateError) -> str:
    """Return the code and message of an error, and the number of further errors."""
    more = len(error.errors) - 1 if isinstance(error, ScriptError) else 0
    return f"{error.code}: {error.message}" + (f" (and {more} more)" if more else "")


def _one_line(text: str) -> str:
    return " ".join(text.split()) or "no reason given"


@dataclass
class _RunningCase:
    """One run of a case: one session after the other, on one data directory."""

    case: Case
    declared: DeclaredCase
    opener: OpenSession
    directory: Path
    timeout_seconds: float
    output: StreamOutput = field(init=False)
    late_output: StreamOutput = field(init=False)
    session: SessionLike | None = None
    subscriptions: list[tuple[Any, StreamOutput]] = field(default_factory=list)
    is_running: bool = False
    first_epoch: int = -1
    last_epoch: int = -1
    checked_change_count: int = 0
    late_rows_before: int = 0
    checked_late_rows: int = 0
    watermark_before: datetime | None = None
    inserted: dict[str, list[Change]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.output = StreamOutput(self.declared.changelog, self.declared.key)
        self.late_output = StreamOutput(ChangelogKind.APPEND)

    def __enter__(self) -> _RunningCase:
        self._start_session(self.declared.script)
        return self

    def __exit__(self, *_: object) -> None:
        # A session that cannot be closed must not hide the failure of the case.
        with suppress(Exception):
            if self.session is not None:
                self.session.close()

    def run(self, steps: Sequence[Step]) -> None:
        for index, step in enumerate(steps):
            next_step = steps[index + 1] if index + 1 < len(steps) else None
            try:
                self._run_step(step, input_ends=isinstance(next_step, EndOfInput))
            except Mismatch as mismatch:
                reason = self._with_step_number(step, mismatch.reason)
                raise Mismatch(reason, mismatch.detail) from None
        self._collect()
        check_final(self.case, self.output)
        self._check_late()

    def _with_step_number(self, step: Step, reason: str) -> str:
        """Prefix a reason with the number of the step; steps that the runner added have none."""
        numbers = [index for index, item in enumerate(self.case.steps) if item is step]
        return f"steps[{numbers[0]}]: {reason}" if numbers else reason

    def _run_step(self, step: Step, input_ends: bool) -> None:
        if isinstance(step, Add):
            self._run_epoch(step, input_ends)
        elif isinstance(step, Restart):
            self._restart()
        elif isinstance(step, EndOfInput):
            self._end_input()
        elif isinstance(step, DeleteAll):
            self._delete_all(step, input_ends)
        elif isinstance(step, ExpectDropped):
            self._check_dropped(step)
        elif isinstance(step, ExpectWatermark):
            self._await_report()
            check_watermark(step, self._watermark())
        else:
            self._collect()
            check_rows(step, self.output, self.checked_change_count, self.case.ordered)
            self.checked_change_count = len(self.output.changes)

    @property
    def _open_session(self) -> SessionLike:
        assert self.session is not None, "a session is open while the case runs"
        return self.session

    def _start_session(self, script: str) -> None:
        self.session = self.opener(self.directory)
        self.session.execute(script, sql_name(self.case))
        pairs = [(self.declared.stream, self.output)]
        if self.declared.late_stream is not None and self.case.late_rows is not None:
            pairs.append((self.declared.late_stream, self.late_output))
        self.subscriptions = [(self.session.subscribe(name), output) for name, output in pairs]

    def _run_epoch(self, step: Add, input_ends: bool) -> None:
        """Run one epoch with these rows.

        If they are for several sources, the pipeline is stopped while they are inserted; otherwise
        the first source would start an epoch before the others have their rows.
        """
        rows_by_source = [(name, rows) for name, rows in step.rows if rows]
        streamed = [name for name, _ in rows_by_source if not self._is_lookup(name)]
        if len(streamed) > 1 or (streamed and input_ends):
            self._stop()
        for name, rows in rows_by_source:
            self._insert(name, rows)
        if streamed and not input_ends:
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
        self._open_session.insert(target, [dict(row) for row in rows])

    def _delete_all(self, step: DeleteAll, input_ends: bool) -> None:
        """Retract all rows of these sources, as one epoch."""
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
                rows = upserts.all_rows()
            else:
                rows = net_rows(changes)[0]
            removals.append((name, tuple({**row, OP: "-D"} for row in rows)))
        self._run_epoch(Add(tuple(removals)), input_ends)

    def _start(self, until_end: bool) -> None:
        if not self.is_running:
            self._collect()
            self.first_epoch = self.last_epoch
            self._open_session.start(until_end)
            self.is_running = True

    def _wait(self) -> None:
        if not self._open_session.wait(self.timeout_seconds):
            raise Mismatch(f"the epoch did not finish within {self.timeout_seconds:g} s")

    def _stop(self) -> None:
        """Stop the pipeline; its counters and watermark are kept until the next epoch."""
        if not self.is_running:
            return
        self._await_report()
        self.late_rows_before = self._late_rows()
        self.watermark_before = self._watermark()
        self._open_session.stop()
        self.is_running = False

    def _restart(self) -> None:
        """Reopen the data directory and resume; check that all emitted rows still exist."""
        self._collect()
        rows_before = list(self.output.changes)
        was_running = self.is_running
        self._stop()
        self._open_session.close()
        for output in (self.output, self.late_output):
            output.changes.clear()
        self._start_session(self.declared.script)
        if was_running:
            self._start(until_end=False)
            self._wait()
        self._collect()
        if self.output.changes[: len(rows_before)] != rows_before:
            raise Mismatch("the rows emitted before the restart have changed")

    def _end_input(self) -> None:
        self._stop()
        self._start(until_end=True)
        self._wait()

    def _collect(self) -> None:
        for subscription, output in self.subscriptions:
            for batch in subscription.take_all():
                output.add(batch.table)
                if output is self.output:
                    self.last_epoch = max(self.last_epoch, batch.epoch)

    def _status(self) -> Any:
        name = self.declared.stream.lower()
        return next((s for s in self._open_session.status() if s.name.lower() == name), None)

    def _late_rows(self) -> int:
        """Return the number of late rows so far; the session's counter restarts at 0."""
        status = self._status() if self.is_running else None
        return self.late_rows_before + (status.late_rows if status is not None else 0)

    def _watermark(self) -> datetime | None:
        """Return the watermark; after a start, until the first epoch, that before the stop."""
        status = self._status()
        watermark = status.watermark if status is not None else None
        return watermark if watermark is not None else self.watermark_before

    def _await_report(self) -> None:
        """Wait for the report of the last epoch since the start, if there was one."""
        self._collect()
        deadline = time.monotonic() + _REPORT_SECONDS
        while self.last_epoch > self.first_epoch and time.monotonic() < deadline:
            status = self._status()
            if status is None or (status.epoch is not None and status.epoch >= self.last_epoch):
                return
            time.sleep(0.01)

    def _check_dropped(self, step: ExpectDropped) -> None:
        self._await_report()
        late_rows = self._late_rows()
        check_late_count(step.count, late_rows - self.checked_late_rows)
        self.checked_late_rows = late_rows

    def _check_late(self) -> None:
        if self.case.late_rows is None:
            return
        if self.declared.late_stream is not None:
            check_late_rows(self.case, self.late_output)
            return
        self._await_report()
        check_late_count(len(self.case.late_rows), self._late_rows())
