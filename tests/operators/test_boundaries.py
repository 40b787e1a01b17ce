"""Rows exactly at a boundary: at the watermark, at the end of a window, at a bound of a join.

Two conditions of an operator must agree: from which watermark a row is late, and from which nothing
can change a result. Therefore any split of rows into epochs must emit what a single epoch emits for
the rows that were on time, and no result may be late for a downstream operator. Times are a few
microseconds apart, so that nearly every row is at some boundary.

TIDEGATE_EXAMPLES is the number of examples per operator (60), TIDEGATE_SEED the seed of hypothesis.
MATCH_RECOGNIZE is tested in the same way in `test_match.py`.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from tests.operators import test_asof_join as asof
from tests.operators import test_deduplicate as dedup
from tests.operators import test_hold as holding
from tests.operators import test_interval_join as interval
from tests.operators import test_top_n as ranking
from tests.operators.asof_model import LeftRow, RightRow
from tests.operators.batch import COUNT
from tests.operators.harness import Harness, L, Query, Row, S, harness_of, state_limits
from tests.operators.join_harness import HOWS
from tests.operators.over_queries import TYPES, OverQuery, total
from tests.operators.window_model import windows_of
from tidegate.columns import BEFORE, DELETE
from tidegate.operators.aggregate.groups import WindowPanes
from tidegate.operators.hold import HoldOperator
from tidegate.operators.join.asof import BACKWARD, FORWARD, NEAREST, AsofBounds
from tidegate.operators.over.frames import Frame
from tidegate.operators.watermark import END_OF_INPUT_US

EXAMPLES = int(os.environ.get("TIDEGATE_EXAMPLES", "60"))
SEED = int(os.environ.get("TIDEGATE_SEED", "20261117"))
Result = tuple[Any, ...]


@dataclass(frozen=True)
class InputRow:
    """A row of an input port; `number` identifies it."""

    port: int
    key: str
    ts: int
    number: int


@dataclass(frozen=True)
class Epoch:
    """The rows of an epoch, and the watermark after it."""

    rows: tuple[InputRow, ...]
    watermark: int
    restarts: bool = False


@dataclass(frozen=True)
class Outcome:
    """The results of an epoch, the late rows so far, and the output watermark."""

    rows: list[Result]
    late: int
    output_watermark: int


class Run(Protocol):
    """An operator with its state."""

    def epoch(self, rows: Sequence[InputRow], watermark: int) -> Outcome: ...

    def restart(self) -> None: ...


@dataclass
class OneInput:
    """Runs an operator with one input."""

    harness: Harness
    row: Callable[[InputRow], Row]

    def epoch(self, rows: Sequence[InputRow], watermark: int) -> Outcome:
        epoch = self.harness.rows([self.row(item) for item in rows], watermark, now_us=1)
        assert epoch.watermark is not None
        return Outcome(epoch.rows, epoch.late_rows, epoch.watermark)

    def restart(self) -> None:
        self.harness.restart()


@dataclass
class IntervalJoinRun:
    harness: interval.Harness

    def epoch(self, rows: Sequence[InputRow], watermark: int) -> Outcome:
        sides = [[(r.key, r.ts, r.number) for r in rows if r.port == port] for port in (0, 1)]
        main = self.harness.epoch(sides, (watermark, watermark))
        assert self.harness.update is not None
        return Outcome(main, self.harness.late, self.harness.update.watermark_us)

    def restart(self) -> None:
        self.harness.restart()


@dataclass
class AsofJoinRun:
    harness: asof.Harness

    def epoch(self, rows: Sequence[InputRow], watermark: int) -> Outcome:
        left = [LeftRow(r.key, r.ts, r.number) for r in rows if r.port == 0]
        right = [RightRow(r.key, r.ts, r.number) for r in rows if r.port == 1]
        main = self.harness.epoch(left, right, (watermark, watermark))
        assert self.harness.update is not None
        return Outcome(main, self.harness.late, self.harness.update.watermark_us)

    def restart(self) -> None:
        self.harness.restart()


@dataclass(frozen=True)
class Subject:
    """An operator under test.

    Rows are on time up to `lateness` behind the watermark. `late` returns whether a row is late at a
    watermark; if it is None, whether rows behind the watermark are late depends on the state, and
    there are none. `times` are the event times of a result: a downstream operator takes it as late
    if one of them is behind the output watermark.
    """

    start: Callable[[], Run]
    times: Callable[[Result], list[int | None]]
    late: Callable[[InputRow, int], bool] | None = None
    ports: int = 1
    lateness: int = 0
    changes: bool = False


def is_behind(row: InputRow, watermark: int) -> bool:
    return row.ts < watermark


SIZES = st.integers(1, 5)


def as_row(row: InputRow) -> Row:
    return Row(row.ts, (row.key,), id=row.number)


def group_by(
    query: Query, output_delay_us: int, late: Callable[[InputRow, int], bool] | None
) -> Subject:
    """Return a GROUP BY; a result is a key, the start and the end of its window, and a count."""
    return Subject(
        lambda: OneInput(harness_of(query, output_delay_us=output_delay_us), as_row),
        lambda result: [result[2] - 1],
        late,
        lateness=query.lateness_us,
        changes=query.with_op,
    )


@st.composite
def windows(draw: st.DrawFn) -> Subject:
    kind, size = draw(st.sampled_from(["TUMBLE", "HOP", "CUMULATE", "CLOSING_TIME"])), draw(SIZES)
    slide = draw(st.integers(1, size)) if kind == "HOP" else size
    if kind == "CUMULATE":
        slide, size = size, size * draw(st.integers(1, 3))
    offset = draw(st.integers(0, 3)) if kind != "CLOSING_TIME" else 0
    lateness = draw(st.sampled_from([0, 0, 1, 3]))
    mode = draw(st.sampled_from(["close", "early"]))
    query = Query(
        (S,), panes=WindowPanes(kind, size, slide, offset), mode=mode, lateness_us=lateness
    )

    def late(row: InputRow, watermark: int) -> bool:
        return all(
            end is not None and end + lateness <= watermark for _, end in windows_of(query, row.ts)
        )

    # A row behind the watermark still counts in its windows that are open.
    return group_by(query, lateness, None if kind in ("HOP", "CUMULATE") else late)


@st.composite
def sessions(draw: st.DrawFn) -> Subject:
    lateness = draw(st.sampled_from([0, 0, 1, 3]))
    mode, retracts = draw(st.sampled_from(["close", "early"])), draw(st.booleans())
    query = Query((S,), gap_us=draw(SIZES), mode=mode, lateness_us=lateness, retracts=retracts)
    return group_by(query, lateness + 1, None)


@st.composite
def interval_joins(draw: st.DrawFn) -> Subject:
    how, at_close = draw(st.sampled_from(HOWS)), draw(st.booleans())
    lower = draw(st.integers(-4, 3))
    upper = lower + draw(st.integers(0, 4))
    output_delay_us = max(0, upper, -lower, upper - lower if at_close else 0)
    join = interval.make_join(how, lower, upper, at_close=at_close)
    return Subject(
        lambda: IntervalJoinRun(interval.Harness(join, output_delay_us)),
        lambda result: list(result[1::3]),
        is_behind,
        ports=2,
    )


@st.composite
def asof_joins(draw: st.DrawFn) -> Subject:
    """Draw temporal and ASOF joins; the event time of a result is that of the left row."""
    how, direction = (
        draw(st.sampled_from(choices))
        for choices in (["INNER", "LEFT"], [BACKWARD, FORWARD, NEAREST])
    )
    if direction == BACKWARD:
        lower = draw(st.integers(-2, 2))
        upper = draw(st.sampled_from([None, lower, lower + 3]))
        bounds = AsofBounds(direction, lower, upper)
    elif direction == FORWARD:
        upper = draw(st.integers(-2, 2))
        bounds = AsofBounds(direction, upper - draw(st.integers(0, 4)), upper)
    else:
        bounds = AsofBounds(direction, -draw(SIZES), draw(SIZES))
    assert bounds.lower is not None
    output_delay_us = max(0, -int(bounds.lower))
    join = asof.make_join(bounds, how, versions=False)
    return Subject(
        lambda: AsofJoinRun(asof.Harness(join, output_delay_us)),
        lambda result: [result[1]],
        ports=2,
    )


@st.composite
def over(draw: st.DrawFn) -> Subject:
    start = -draw(st.integers(0, 4)) if draw(st.booleans()) else draw(st.integers(0, 2))
    end = max(start, draw(st.integers(-3, 3)))
    begin = draw(st.sampled_from([start, start, None]))
    query = OverQuery((total(COUNT, Frame(False, begin, end)),), window=draw(st.none() | SIZES))
    output_delay_us = max(0, end, 0 if begin is None else begin)
    return Subject(
        lambda: OneInput(
            query.harness(output_delay_us=output_delay_us),
            lambda row: Row(row.ts, (row.key,), (None,) * len(TYPES), id=row.number),
        ),
        lambda result: [result[1]],
        is_behind,
    )


@st.composite
def top_n(draw: st.DrawFn) -> Subject:
    """Draw a top-N; the pane of a row is the end of its window, which is also a value."""
    size, mode = draw(SIZES), draw(st.sampled_from(["windows", "closing"]))
    retracts = mode == "closing" and draw(st.booleans())
    query = ranking.Query(
        values=(L, L), limit=draw(st.integers(1, 2)), mode=mode, retracts=retracts
    )

    def end(row: InputRow) -> int:
        return row.ts - row.ts % size + size

    return Subject(
        lambda: OneInput(
            query.harness(),
            lambda row: Row(end(row), (row.key,), (row.ts, end(row)), id=row.number),
        ),
        lambda result: [result[2] - 1],
        lambda row, watermark: end(row) <= watermark,
        changes=mode == "closing",
    )


@st.composite
def deduplications(draw: st.DrawFn) -> Subject:
    by_event_time, has_closing_key = draw(
        st.sampled_from([(True, False), (False, True), (True, True)])
    )
    query = dedup.Query(by_event_time, has_closing_key)
    return Subject(
        lambda: OneInput(
            query.harness(), lambda row: Row(row.ts, (row.key,), (row.number,), id=row.number)
        ),
        lambda result: [result[1]],
        is_behind,
    )


def hold() -> Subject:
    return Subject(
        lambda: OneInput(
            Harness(lambda: HoldOperator(pa.schema([("c0", L), ("c1", L)])), holding.table), as_row
        ),
        lambda result: [result[1]],
        is_behind,
    )


OPERATORS: dict[str, st.SearchStrategy[Subject]] = {
    "window_aggregate": windows(),
    "session_aggregate": sessions(),
    "interval_join": interval_joins(),
    "asof_join": asof_joins(),
    "over": over(),
    "top_n": top_n(),
    "deduplicate": deduplications(),
    "hold": st.just(hold()),
}


@st.composite
def epochs(draw: st.DrawFn, subject: Subject) -> list[Epoch]:
    """Draw rows at the watermark before their epoch, shortly after it, and some behind it."""
    watermark, number = draw(st.integers(-3, 12)), 0
    result: list[Epoch] = []
    # Half of all rows are just on time.
    ahead = st.one_of(st.just(0), st.integers(0, 7))
    steps = ahead if subject.late is None else st.one_of(ahead, ahead, st.integers(-3, -1))
    row = st.tuples(st.integers(0, subject.ports - 1), st.sampled_from("ab"), steps)
    for drawn in draw(st.lists(st.lists(row, max_size=4), min_size=1, max_size=7)):
        rows = []
        for port, key, step in drawn:
            # No row of the first epoch is late.
            step = step if result else abs(step)
            rows.append(InputRow(port, key, watermark - subject.lateness + step, number))
            number += 1
        watermark += draw(st.integers(0, 6))
        result.append(Epoch(tuple(rows), watermark, draw(st.booleans())))
    return result


@st.composite
def cases(
    draw: st.DrawFn, subjects: st.SearchStrategy[Subject]
) -> tuple[Subject, list[Epoch], bool]:
    subject = draw(subjects)
    return subject, draw(epochs(subject)), draw(st.booleans())


def materialize(subject: Subject, results: Sequence[Result]) -> Counter[Result]:
    """Return the rows that are not retracted."""
    rows: Counter[Result] = Counter()
    for result in results:
        row, op = (result[:-1], result[-1]) if subject.changes else (result, None)
        if op in (BEFORE, DELETE):
            assert rows[row] > 0, f"{result} retracts a row that was not emitted"
            rows[row] -= 1
        else:
            rows[row] += 1
    return +rows


def in_one_epoch(subject: Subject, rows: Sequence[InputRow]) -> Counter[Result]:
    outcome = subject.start().epoch(rows, END_OF_INPUT_US)
    assert outcome.late == 0
    return materialize(subject, outcome.rows)


@pytest.mark.parametrize("name", OPERATORS)
def test_any_split_into_epochs_emits_what_one_epoch_emits(name: str) -> None:
    @seed(SEED)
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(cases(OPERATORS[name]))
    def check(case: tuple[Subject, list[Epoch], bool]) -> None:
        subject, drawn_epochs, small = case
        run, late = subject.start(), 0
        watermark: int | None = None
        output_watermark: int | None = None
        on_time: list[InputRow] = []
        results: list[Result] = []
        with state_limits(small):
            for epoch in [*drawn_epochs, Epoch((), END_OF_INPUT_US)]:
                outcome = run.epoch(epoch.rows, epoch.watermark)
                for row in epoch.rows:
                    if watermark is not None and subject.late and subject.late(row, watermark):
                        late += 1
                    else:
                        on_time.append(row)
                assert outcome.late == late
                for result in outcome.rows:
                    for time in subject.times(result):
                        if time is not None and output_watermark is not None:
                            assert time >= output_watermark, f"{result} is late downstream"
                results += outcome.rows
                watermark, output_watermark = epoch.watermark, outcome.output_watermark
                if epoch.restarts:
                    run.restart()
        assert materialize(subject, results) == in_one_epoch(subject, on_time)

    check()
