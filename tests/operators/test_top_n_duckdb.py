"""Top-N over any rows, in any epochs, tasks and restarts: what DuckDB says about them in batch.

TIDEGATE_EXAMPLES is the number of examples over the whole file (100), TIDEGATE_SEED where they
start; both are printed with `-s`.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from tests.operators.harness import B, D, Epoch, L, Row, S, row_identity, state_limits
from tests.operators.test_top_n import BIN, DEC, FUNCTIONS, NAN, Query
from tidegate.operators.watermark import END_US, WatermarkUpdate

EXAMPLES = int(os.environ.get("TIDEGATE_EXAMPLES", "100"))
SEED = int(os.environ.get("TIDEGATE_SEED", "20261115"))
PROPERTIES = 4


@pytest.fixture(scope="module", autouse=True)
def _say_the_seed() -> None:
    print(f"TIDEGATE_SEED={SEED} TIDEGATE_EXAMPLES={EXAMPLES}")


SAMPLES: dict[pa.DataType, list[Any]] = {
    L: [None, -1, 0, 2],
    D: [None, NAN, -0.0, 0.0, 1.5, -math.inf],
    S: [None, "", "a", "é", "\uffff", "\U00010000"],
    DEC: [None, Decimal("-10.00"), Decimal("9.00"), Decimal("10.00")],
    B: [None, False, True],
    BIN: [None, b"", b"\x7f", b"\xff"],
}
KINDS = st.sampled_from(list(SAMPLES))
_connection = duckdb.connect(config={"threads": 1})


@dataclass(frozen=True)
class Case:
    """A query; of every epoch its rows by task and batch, the watermark, and whether it ends in
    a restart."""

    query: Query
    epochs: tuple[tuple[list[list[list[Row]]], int, bool], ...]
    small: bool


@st.composite
def cases(draw: st.DrawFn, mode: str) -> Case:
    keys = draw(st.lists(KINDS, max_size=2))
    values = draw(st.lists(KINDS, min_size=1, max_size=3))
    place = st.integers(0, len(values) - 1)
    ordering = st.tuples(place, st.booleans(), st.booleans())
    windowed = mode in ("windows", "closing")
    retracts = mode == "closing" or (mode != "windows" and draw(st.booleans()))
    query = Query(
        tuple(keys),
        tuple(values),
        tuple(draw(st.lists(ordering, max_size=2))),
        draw(st.integers(1, 3)),
        draw(st.sampled_from(FUNCTIONS)),
        draw(st.booleans()),
        mode,
        retracts,
        keeps_late=windowed and draw(st.booleans()),
        places=draw(st.booleans()),
        shown=tuple(sorted(draw(st.sets(place)))),
    )
    if not query.keys and not query.shown:
        query = replace(query, shown=None)
    # Few keys, so that partitions fill up; few rows, so that what is retracted was often there.
    some = [draw(st.lists(st.sampled_from(SAMPLES[kind]), min_size=1, max_size=2)) for kind in keys]
    some += [SAMPLES[kind] for kind in values]
    cells = st.tuples(*map(st.sampled_from, some))
    content = st.sampled_from(draw(st.lists(cells, min_size=1, max_size=8)))
    weights = st.sampled_from([1, 1, -1] if retracts else [1])
    panes = st.integers(-3, 6) if windowed else st.just(0)
    row = st.tuples(content, weights, panes, st.integers(0, 3))
    epochs = []
    for epoch in draw(st.lists(st.lists(row, max_size=8), max_size=8)):
        ids = draw(st.permutations(range(len(epoch))))
        tasks: list[list[list[Row]]] = [[[], []], [[], []]]
        for (made_of, weight, pane, task), id in zip(epoch, ids, strict=True):
            made = Row(pane, made_of[: len(keys)], made_of[len(keys) :], weight, id)
            tasks[task // 2][task % 2].append(made)
        epochs.append((tasks, draw(st.integers(-4, 6)), draw(st.booleans())))
    return Case(query, tuple(epochs), draw(st.booleans()))


def arrived(query: Query, tasks: list[list[list[Row]]]) -> list[Row]:
    found = [row for batches in tasks for batch in batches for row in batch]
    return sorted(found, key=lambda row: row.id) if query.places else found


def shown_of(query: Query) -> tuple[int, ...]:
    return tuple(range(len(query.values))) if query.shown is None else query.shown


def content_of(query: Query, row: Row) -> tuple[Any, ...]:
    """What of a row the operator gets to see."""
    places = {*shown_of(query), *(place for place, *_ in query.order)}
    return row_identity((*row.keys, *(row.values[place] for place in sorted(places))))


def standing(query: Query, known: list[Row], epoch: list[Row]) -> tuple[list[Row], int]:
    """The rows that are there after an epoch, in the order they came; and what was not there."""
    there, unknown = [*known, *(row for row in epoch if row.weight > 0)], 0
    for row in epoch:
        if row.weight < 0:
            content = (row.ts, content_of(query, row))
            equal = [i for i, o in enumerate(there) if (o.ts, content_of(query, o)) == content]
            if equal:
                del there[equal[-1]]
            else:
                unknown += 1
    return there, unknown


def in_batch(query: Query, there: list[Row]) -> Counter[Any]:
    """What DuckDB says about rows in the order they came."""
    items = (*query.keys, *query.values)
    cells = [(*same_zero((*row.keys, *row.values)), row.ts, i) for i, row in enumerate(there)]
    names = [f"x{i}" for i, _ in enumerate(items)] + ["pane", "arrival"]
    kinds = zip(names, (*items, L, L), strict=True)
    data = {name: pa.array([c[i] for c in cells], kind) for i, (name, kind) in enumerate(kinds)}
    _connection.register("there", pa.table(data))
    cut = len(query.keys)
    by = ", ".join(["pane", *names[:cut]])
    order = [
        f"x{cut + place} {'DESC' if desc else 'ASC'} NULLS {'FIRST' if first else 'LAST'}"
        for place, desc, first in query.order
    ]
    order += ["arrival"] if query.function == "ROW_NUMBER" else []
    over = f"PARTITION BY {by}" + (f" ORDER BY {', '.join(order)}" if order else "")
    ranks = f"SELECT arrival, {query.function}() OVER ({over}) AS r FROM there"
    sql = f"SELECT arrival, r FROM ({ranks}) WHERE r <= {query.limit}"
    found: Counter[Any] = Counter()
    for place, rank in _connection.execute(sql).fetchall():
        row = there[place]
        cells = (*row.keys, *(row.values[index] for index in shown_of(query)))
        found[row_identity((*cells, *([rank] if query.ranked else [])))] += 1
    return found


def same_zero(cells: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(cell + 0.0 if isinstance(cell, float) else cell for cell in cells)


def examples(mode: str) -> Any:
    limits = settings(
        max_examples=-(-EXAMPLES // PROPERTIES),
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    return lambda test: seed(SEED)(limits(given(cases(mode))(test)))


def apply(found: Counter[Any], epoch: Epoch, by_window: bool = False) -> None:
    """Take in changes; what is retracted was there, and pairs follow each other.

    A row that leaves a window may look like one that comes into another.
    """
    ops = [row[-1] for row in epoch.main]
    for place, (*content, op) in enumerate(epoch.main):
        row = row_identity(tuple(content))
        assert (op == "+U") == (place > 0 and ops[place - 1] == "-U")
        if op in ("-U", "-D"):
            assert found[row] > 0, f"{row} was not there"
            found[row] -= 1
        else:
            found[row] += 1
    if by_window:
        return
    rows_out = Counter((row_identity(row[:-1]), row[-1][0]) for row in epoch.main)
    assert not any(rows_out[(row, "-")] for row, sign in rows_out if sign == "+"), "for nothing"


@examples("changes")
def test_changes_add_up_to_what_batch_says(case: Case) -> None:
    run, there, missing = case.query.harness(), [], 0
    found: Counter[Any] = Counter()
    with state_limits(case.small):
        for tasks, _, restarts in case.epochs:
            epoch = run.epoch(tasks)
            there, unknown = standing(case.query, there, arrived(case.query, tasks))
            missing += unknown
            apply(found, epoch)
            assert +found == in_batch(case.query, there)
            if case.query.retracts:
                assert sum(report["unknown"] for report in epoch.reports) == missing
            if restarts:
                run.restart()


@examples("closing")
def test_windows_whose_rows_retract_add_up_until_they_close(case: Case) -> None:
    run, there, missing, late, before = case.query.harness(), [], 0, 0, None
    found: Counter[Any] = Counter()
    with state_limits(case.small):
        for tasks, mark, restarts in [*case.epochs, ([], END_US, False)]:
            epoch = run.epoch(tasks, [WatermarkUpdate(0, 0, mark)])
            new = arrived(case.query, tasks)
            on_time = [row for row in new if before is None or row.ts > before]
            late += len(new) - len(on_time)
            there, unknown = standing(case.query, there, on_time)
            missing += unknown
            apply(found, epoch, by_window=True)
            assert +found == in_batch(case.query, there)
            assert epoch.late_rows == late
            assert len(epoch.late) == (len(new) - len(on_time)) * case.query.keeps_late
            assert sum(report["unknown"] for report in epoch.reports) == missing
            before = mark if before is None else max(before, mark)
            closed = [row for row in there if row.ts <= before]
            there = [row for row in there if row.ts > before]
            found -= in_batch(case.query, closed)
            if restarts:
                run.restart()
    assert run.stored_names() == []


@examples("end")
def test_the_end_says_what_batch_says(case: Case) -> None:
    run, there = case.query.harness(), []
    with state_limits(case.small):
        for tasks, _, restarts in case.epochs:
            assert run.epoch(tasks).main == []
            there, _ = standing(case.query, there, arrived(case.query, tasks))
            if restarts:
                run.restart()
        assert Counter(map(row_identity, run.end().main)) == in_batch(case.query, there)


@examples("windows")
def test_windows_say_once_what_batch_says(case: Case) -> None:
    run, there, late, before = case.query.harness(), [], 0, None
    with state_limits(case.small):
        for tasks, mark, restarts in [*case.epochs, ([], END_US, False)]:
            epoch = run.epoch(tasks, [WatermarkUpdate(0, 0, mark)])
            after = mark if before is None else max(before, mark)
            new = arrived(case.query, tasks)
            on_time = [row for row in new if before is None or row.ts > before]
            late += len(new) - len(on_time)
            there += on_time
            closed = [row for row in there if row.ts <= after]
            there = [row for row in there if row.ts > after]
            assert Counter(map(row_identity, epoch.main)) == in_batch(case.query, closed)
            assert epoch.late_rows == late
            assert len(epoch.late) == (len(new) - len(on_time)) * case.query.keeps_late
            before = after
            if restarts:
                run.restart()
    assert run.stored_names() == []
