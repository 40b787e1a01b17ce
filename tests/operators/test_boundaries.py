"""Rows exactly at a boundary: at the watermark, at the end of a window, at a bound of a join.

An operator must agree with itself about two moments: from when on a row is late, and from when on
nothing can change a result. So any split of rows into epochs gives what one epoch gives over the
rows that were on time, and no result is late for the operator above. Times are a few microseconds
apart, so that nearly every row is at some boundary.

TIDEGATE_EXAMPLES is the number of examples per operator (60), TIDEGATE_SEED where they start.
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

from tests.operators import test_deduplicate as first_rows
from tests.operators import test_hold as holding
from tests.operators import test_nearest_join as nearest_joins
from tests.operators import test_timed_join as timed_joins
from tests.operators import test_top_n as top_rows
from tests.operators.batch import COUNT
from tests.operators.harness import Harness, L, Query, Row, S, harness_of, state_limits
from tests.operators.model import windows_of
from tests.operators.nearest_model import Fact, Version
from tests.operators.over_queries import TYPES, OverQuery, total
from tidegate.columns import BEFORE, DELETE
from tidegate.operators.aggregate.groups import Panes
from tidegate.operators.hold import HoldOperator
from tidegate.operators.join.asof import BACKWARD, FORWARD, NEAREST, AsofBounds
from tidegate.operators.over.frames import Frame
from tidegate.operators.watermark import END_US

EXAMPLES = int(os.environ.get("TIDEGATE_EXAMPLES", "60"))
SEED = int(os.environ.get("TIDEGATE_SEED", "20261117"))
Result = tuple[Any, ...]


@dataclass(frozen=True)
class Came:
    """A row of one input; `number` is its place among all rows."""

    port: int
    key: str
    ts: int
    number: int


@dataclass(frozen=True)
class Epoch:
    """The rows of an epoch, and the watermark after it."""

    rows: tuple[Came, ...]
    mark: int
    restarts: bool = False


@dataclass(frozen=True)
class Outcome:
    """What came out of an epoch, how many rows were late so far, and the watermark handed on."""

    rows: list[Result]
    late: int
    handed_on: int


class Run(Protocol):
    """An operator with its state."""

    def epoch(self, rows: Sequence[Came], mark: int) -> Outcome: ...

    def restart(self) -> None: ...


@dataclass
class OneInput:
    """Drives an operator with one input."""

    harness: Harness
    row: Callable[[Came], Row]

    def epoch(self, rows: Sequence[Came], mark: int) -> Outcome:
        epoch = self.harness.rows([self.row(item) for item in rows], mark, now_us=1)
        assert epoch.watermark is not None
        return Outcome(epoch.main, epoch.late_rows, epoch.watermark)

    def restart(self) -> None:
        self.harness.restart()


@dataclass
class IntervalJoin:
    harness: timed_joins.Harness

    def epoch(self, rows: Sequence[Came], mark: int) -> Outcome:
        sides = [[(r.key, r.ts, r.number) for r in rows if r.port == port] for port in (0, 1)]
        main = self.harness.epoch(sides, (mark, mark))
        assert self.harness.update is not None
        return Outcome(main, self.harness.late, self.harness.update.watermark_us)

    def restart(self) -> None:
        self.harness.restart()


@dataclass
class NearJoin:
    harness: nearest_joins.Harness

    def epoch(self, rows: Sequence[Came], mark: int) -> Outcome:
        facts = [Fact(r.key, r.ts, r.number) for r in rows if r.port == 0]
        versions = [Version(r.key, r.ts, r.number) for r in rows if r.port == 1]
        main = self.harness.epoch(facts, versions, (mark, mark))
        assert self.harness.update is not None
        return Outcome(main, self.harness.late, self.harness.update.watermark_us)

    def restart(self) -> None:
        self.harness.restart()


@dataclass(frozen=True)
class Timed:
    """An operator that the watermark bounds.

    Rows are on time up to `lateness` behind the watermark. `late` says of a row behind that whether
    it is late; None: how such rows are judged depends on what is kept. `times` are the event times
    of a result: the operator above takes it for late if one of them is behind the watermark.
    """

    start: Callable[[], Run]
    times: Callable[[Result], list[int | None]]
    late: Callable[[Came, int], bool] | None = None
    ports: int = 1
    lateness: int = 0
    changes: bool = False


def behind(row: Came, watermark: int) -> bool:
    return row.ts < watermark


# The operators

SIZES = st.integers(1, 5)


def keyed(row: Came) -> Row:
    return Row(row.ts, (row.key,), id=row.number)


def grouped(query: Query, output_delay_us: int, late: Callable[[Came, int], bool] | None) -> Timed:
    """GROUP BY a window: a result is a key, the start and the end of the window, and a count."""
    return Timed(
        lambda: OneInput(harness_of(query, output_delay_us=output_delay_us), keyed),
        lambda result: [result[2] - 1],
        late,
        lateness=query.lateness_us,
        changes=query.with_op,
    )


@st.composite
def windows(draw: st.DrawFn) -> Timed:
    kind, size = draw(st.sampled_from(["TUMBLE", "HOP", "CUMULATE", "DUE"])), draw(SIZES)
    slide = draw(st.integers(1, size)) if kind == "HOP" else size
    if kind == "CUMULATE":
        slide, size = size, size * draw(st.integers(1, 3))
    offset = draw(st.integers(0, 3)) if kind != "DUE" else 0
    lateness = draw(st.sampled_from([0, 0, 1, 3]))
    mode = draw(st.sampled_from(["close", "early"]))
    query = Query((S,), panes=Panes(kind, size, slide, offset), mode=mode, lateness_us=lateness)

    def late(row: Came, watermark: int) -> bool:
        return all(
            end is not None and end + lateness <= watermark for _, end in windows_of(query, row.ts)
        )

    # A hopping row that is behind counts in those of its windows that are open.
    return grouped(query, lateness, None if kind in ("HOP", "CUMULATE") else late)


@st.composite
def sessions(draw: st.DrawFn) -> Timed:
    lateness = draw(st.sampled_from([0, 0, 1, 3]))
    mode, retracts = draw(st.sampled_from(["close", "early"])), draw(st.booleans())
    query = Query((S,), gap_us=draw(SIZES), mode=mode, lateness_us=lateness, retracts=retracts)
    return grouped(query, lateness + 1, None)


@st.composite
def interval_joins(draw: st.DrawFn) -> Timed:
    how, at_close = draw(st.sampled_from(timed_joins.HOWS)), draw(st.booleans())
    lower = draw(st.integers(-4, 3))
    upper = lower + draw(st.integers(0, 4))
    output_delay_us = max(0, upper, -lower, upper - lower if at_close else 0)
    join = timed_joins.make(how, lower, upper, at_close=at_close)
    return Timed(
        lambda: IntervalJoin(timed_joins.Harness(join, output_delay_us)),
        lambda result: list(result[1::3]),
        behind,
        ports=2,
    )


@st.composite
def nearest(draw: st.DrawFn) -> Timed:
    """Temporal and ASOF joins: the time of the left is the event time of the result."""
    how, direction = (
        draw(st.sampled_from(choices))
        for choices in (["INNER", "LEFT"], [BACKWARD, FORWARD, NEAREST])
    )
    if direction == BACKWARD:
        lower = draw(st.integers(-2, 2))
        upper = draw(st.sampled_from([None, lower, lower + 3]))
        found = AsofBounds(direction, lower, upper)
    elif direction == FORWARD:
        upper = draw(st.integers(-2, 2))
        found = AsofBounds(direction, upper - draw(st.integers(0, 4)), upper)
    else:
        found = AsofBounds(direction, -draw(SIZES), draw(SIZES))
    assert found.lower is not None
    output_delay_us, join = (
        max(0, -int(found.lower)),
        nearest_joins.make(found, how, versions=False),
    )
    return Timed(
        lambda: NearJoin(nearest_joins.Harness(join, output_delay_us)),
        lambda result: [result[1]],
        ports=2,
    )


@st.composite
def over(draw: st.DrawFn) -> Timed:
    start = -draw(st.integers(0, 4)) if draw(st.booleans()) else draw(st.integers(0, 2))
    end = max(start, draw(st.integers(-3, 3)))
    begin = draw(st.sampled_from([start, start, None]))
    query = OverQuery((total(COUNT, Frame(False, begin, end)),), window=draw(st.none() | SIZES))
    output_delay_us = max(0, end, 0 if begin is None else begin)
    return Timed(
        lambda: OneInput(
            query.harness(output_delay_us=output_delay_us),
            lambda row: Row(row.ts, (row.key,), (None,) * len(TYPES), id=row.number),
        ),
        lambda result: [result[1]],
        behind,
    )


@st.composite
def top_n(draw: st.DrawFn) -> Timed:
    """The pane of a row is the end of its window, which is also a value of the row."""
    size, mode = draw(SIZES), draw(st.sampled_from(["windows", "closing"]))
    retracts = mode == "closing" and draw(st.booleans())
    query = top_rows.Query(
        values=(L, L), limit=draw(st.integers(1, 2)), mode=mode, retracts=retracts
    )

    def end(row: Came) -> int:
        return row.ts - row.ts % size + size

    return Timed(
        lambda: OneInput(
            query.harness(),
            lambda row: Row(end(row), (row.key,), (row.ts, end(row)), id=row.number),
        ),
        lambda result: [result[2] - 1],
        lambda row, watermark: end(row) <= watermark,
        changes=mode == "closing",
    )


@st.composite
def first_of_key(draw: st.DrawFn) -> Timed:
    waits, closes = draw(st.sampled_from([(True, False), (False, True), (True, True)]))
    query = first_rows.Query(waits, closes)
    return Timed(
        lambda: OneInput(
            query.harness(), lambda row: Row(row.ts, (row.key,), (row.number,), id=row.number)
        ),
        lambda result: [result[1]],
        behind,
    )


def hold() -> Timed:
    return Timed(
        lambda: OneInput(
            Harness(lambda: HoldOperator(pa.schema([("c0", L), ("c1", L)])), holding.table), keyed
        ),
        lambda result: [result[1]],
        behind,
    )


OPERATORS: dict[str, st.SearchStrategy[Timed]] = {
    "window_aggregate": windows(),
    "session_aggregate": sessions(),
    "interval_join": interval_joins(),
    "nearest_join": nearest(),
    "over": over(),
    "top_n": top_n(),
    "deduplicate": first_of_key(),
    "hold": st.just(hold()),
}


# The rows


@st.composite
def epochs(draw: st.DrawFn, operator: Timed) -> list[Epoch]:
    """Draw rows at the watermark before their epoch, shortly after it, and some behind it."""
    mark, found, number = draw(st.integers(-3, 12)), [], 0
    # Half of all rows are exactly where a row is just on time.
    ahead = st.one_of(st.just(0), st.integers(0, 7))
    steps = ahead if operator.late is None else st.one_of(ahead, ahead, st.integers(-3, -1))
    row = st.tuples(st.integers(0, operator.ports - 1), st.sampled_from("ab"), steps)
    for listed in draw(st.lists(st.lists(row, max_size=4), min_size=1, max_size=7)):
        rows = []
        for port, key, step in listed:
            # In the first epoch nothing is late.
            step = step if found else abs(step)
            rows.append(Came(port, key, mark - operator.lateness + step, number))
            number += 1
        mark += draw(st.integers(0, 6))
        found.append(Epoch(tuple(rows), mark, draw(st.booleans())))
    return found


@st.composite
def cases(draw: st.DrawFn, operators: st.SearchStrategy[Timed]) -> tuple[Timed, list[Epoch], bool]:
    operator = draw(operators)
    return operator, draw(epochs(operator)), draw(st.booleans())


def standing(operator: Timed, results: Sequence[Result]) -> Counter[Result]:
    """Return the rows that are left of all that came out."""
    found: Counter[Result] = Counter()
    for result in results:
        row, op = (result[:-1], result[-1]) if operator.changes else (result, None)
        if op in (BEFORE, DELETE):
            assert found[row] > 0, f"{result} retracts what is not there"
            found[row] -= 1
        else:
            found[row] += 1
    return +found


def in_one_epoch(operator: Timed, rows: Sequence[Came]) -> Counter[Result]:
    outcome = operator.start().epoch(rows, END_US)
    assert outcome.late == 0
    return standing(operator, outcome.rows)


@pytest.mark.parametrize("name", OPERATORS)
def test_any_split_into_epochs_gives_what_one_epoch_gives(name: str) -> None:
    @seed(SEED)
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(cases(OPERATORS[name]))
    def check(case: tuple[Timed, list[Epoch], bool]) -> None:
        operator, given_epochs, small = case
        run, before, handed_on, late = operator.start(), None, None, 0
        on_time: list[Came] = []
        results: list[Result] = []
        with state_limits(small):
            for epoch in [*given_epochs, Epoch((), END_US)]:
                outcome = run.epoch(epoch.rows, epoch.mark)
                for row in epoch.rows:
                    if before is not None and operator.late and operator.late(row, before):
                        late += 1
                    else:
                        on_time.append(row)
                assert outcome.late == late
                for result in outcome.rows:
                    for time in operator.times(result):
                        is_late = None not in (time, handed_on) and time < handed_on
                        assert not is_late, f"{result} is late above: watermark {handed_on}"
                results += outcome.rows
                before, handed_on = epoch.mark, outcome.handed_on
                if epoch.restarts:
                    run.restart()
        assert standing(operator, results) == in_one_epoch(operator, on_time)

    check()
