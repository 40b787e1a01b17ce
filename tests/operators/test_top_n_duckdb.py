"""Top-N equals DuckDB's batch result for any rows, split into epochs and tasks, and restarts.

TIDEGATE_EXAMPLES is the number of examples of the whole file (100), TIDEGATE_SEED the seed of
hypothesis; both are printed with `-s`.
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
from tidegate.operators.watermark import END_OF_INPUT_US, WatermarkUpdate

EXAMPLES = int(os.environ.get("TIDEGATE_EXAMPLES", "100"))
SEED = int(os.environ.get("TIDEGATE_SEED", "20261115"))
PROPERTIES = 4


@pytest.fixture(scope="module", autouse=True)
def _print_seed() -> None:
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
    """A query and its epochs: rows by task and batch, the watermark, whether a restart follows."""

    query: Query
    epochs: tuple[tuple[list[list[list[Row]]], int, bool], ...]
    small: bool


@st.composite
def cases(draw: st.DrawFn, mode: str) -> Case:
    keys = draw(st.lists(KINDS, max_size=2))
    values = draw(st.lists(KINDS, min_size=1, max_size=3))
    value = st.integers(0, len(values) - 1)
    ordering = st.tuples(value, st.booleans(), st.booleans())
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
        with_positions=draw(st.booleans()),
        selected=tuple(sorted(draw(st.sets(value)))),
    )
    if not query.keys and not query.selected:
        query = replace(query, selected=None)
    # Few keys, so that partitions fill up; few rows, so that retracted rows often exist.
    samples = [
        draw(st.lists(st.sampled_from(SAMPLES[kind]), min_size=1, max_size=2)) for kind in keys
    ]
    samples += [SAMPLES[kind] for kind in values]
    contents = st.tuples(*map(st.sampled_from, samples))
    content = st.sampled_from(draw(st.lists(contents, min_size=1, max_size=8)))
    weights = st.sampled_from([1, 1, -1] if retracts else [1])
    panes = st.integers(-3, 6) if windowed else st.just(0)
    rows = st.tuples(content, weights, panes, st.integers(0, 3))
    epochs = []
    for epoch in draw(st.lists(st.lists(rows, max_size=8), max_size=8)):
        ids = draw(st.permutations(range(len(epoch))))
        tasks: list[list[list[Row]]] = [[[], []], [[], []]]
        for (cells, weight, pane, task), id in zip(epoch, ids, strict=True):
            row = Row(pane, cells[: len(keys)], cells[len(keys) :], weight, id)
            tasks[task // 2][task % 2].append(row)
        epochs.append((tasks, draw(st.integers(-4, 6)), draw(st.booleans())))
    return Case(query, tuple(epochs), draw(st.booleans()))


def rows_of(query: Query, tasks: list[list[list[Row]]]) -> list[Row]:
    """Return rows in the order of their arrival."""
    rows = [row for batches in tasks for batch in batches for row in batch]
    return sorted(rows, key=lambda row: row.id) if query.with_positions else rows


def selected_of(query: Query) -> tuple[int, ...]:
    return tuple(range(len(query.values))) if query.selected is None else query.selected


def content_of(query: Query, row: Row) -> tuple[Any, ...]:
    """Return the cells of a row that the operator reads."""
    values = {*selected_of(query), *(value for value, *_ in query.order)}
    return row_identity((*row.keys, *(row.values[value] for value in sorted(values))))


def apply_changelog(query: Query, old: list[Row], epoch: list[Row]) -> tuple[list[Row], int]:
    """Return the rows after an epoch, in the order of arrival, and the unknown retractions."""
    rows, unknown = [*old, *(row for row in epoch if row.weight > 0)], 0
    for row in epoch:
        if row.weight < 0:
            content = (row.ts, content_of(query, row))
            equal = [i for i, o in enumerate(rows) if (o.ts, content_of(query, o)) == content]
            if equal:
                del rows[equal[-1]]
            else:
                unknown += 1
    return rows, unknown


def in_batch(query: Query, rows: list[Row]) -> Counter[Any]:
    """Return DuckDB's result for rows in the order of their arrival."""
    items = (*query.keys, *query.values)
    cells = [(*positive_zeros((*row.keys, *row.values)), row.ts, i) for i, row in enumerate(rows)]
    names = [f"x{i}" for i, _ in enumerate(items)] + ["pane", "arrival"]
    kinds = zip(names, (*items, L, L), strict=True)
    data = {name: pa.array([c[i] for c in cells], kind) for i, (name, kind) in enumerate(kinds)}
    _connection.register("input", pa.table(data))
    key_count = len(query.keys)
    by = ", ".join(["pane", *names[:key_count]])
    order = [
        f"x{key_count + value} {'DESC' if desc else 'ASC'} NULLS {'FIRST' if first else 'LAST'}"
        for value, desc, first in query.order
    ]
    order += ["arrival"] if query.function == "ROW_NUMBER" else []
    over = f"PARTITION BY {by}" + (f" ORDER BY {', '.join(order)}" if order else "")
    ranks = f"SELECT arrival, {query.function}() OVER ({over}) AS r FROM input"
    sql = f"SELECT arrival, r FROM ({ranks}) WHERE r <= {query.limit}"
    result: Counter[Any] = Counter()
    for index, rank in _connection.execute(sql).fetchall():
        row = rows[index]
        cells = (*row.keys, *(row.values[value] for value in selected_of(query)))
        result[row_identity((*cells, *([rank] if query.with_rank else [])))] += 1
    return result


def positive_zeros(cells: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(cell + 0.0 if isinstance(cell, float) else cell for cell in cells)


def examples(mode: str) -> Any:
    limits = settings(
        max_examples=-(-EXAMPLES // PROPERTIES),
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    return lambda test: seed(SEED)(limits(given(cases(mode))(test)))


def apply_changes(result: Counter[Any], epoch: Epoch, by_window: bool = False) -> None:
    """Apply a changelog; checks that only emitted rows are retracted and that pairs are adjacent.

    No row may be retracted and inserted in the same epoch, except in different windows.
    """
    ops = [row[-1] for row in epoch.rows]
    for index, (*content, op) in enumerate(epoch.rows):
        row = row_identity(tuple(content))
        assert (op == "+U") == (index > 0 and ops[index - 1] == "-U")
        if op in ("-U", "-D"):
            assert result[row] > 0, f"{row} was not emitted"
            result[row] -= 1
        else:
            result[row] += 1
    if by_window:
        return
    changes = Counter((row_identity(row[:-1]), row[-1][0]) for row in epoch.rows)
    assert not any(changes[(row, "-")] for row, sign in changes if sign == "+"), "redundant"


@examples("changes")
def test_materialized_changes_equal_the_batch_result_after_every_epoch(case: Case) -> None:
    run, rows, unknown = case.query.harness(), [], 0
    result: Counter[Any] = Counter()
    with state_limits(case.small):
        for tasks, _, restarts in case.epochs:
            epoch = run.epoch(tasks)
            rows, new_unknown = apply_changelog(case.query, rows, rows_of(case.query, tasks))
            unknown += new_unknown
            apply_changes(result, epoch)
            assert +result == in_batch(case.query, rows)
            if case.query.retracts:
                assert sum(report["unknown_retractions"] for report in epoch.reports) == unknown
            if restarts:
                run.restart()


@examples("closing")
def test_changes_of_windows_equal_the_batch_result_until_they_close(case: Case) -> None:
    run, rows, unknown, late, watermark = case.query.harness(), [], 0, 0, None
    result: Counter[Any] = Counter()
    with state_limits(case.small):
        for tasks, update_us, restarts in [*case.epochs, ([], END_OF_INPUT_US, False)]:
            epoch = run.epoch(tasks, [WatermarkUpdate(0, 0, update_us)])
            new = rows_of(case.query, tasks)
            on_time = [row for row in new if watermark is None or row.ts > watermark]
            late += len(new) - len(on_time)
            rows, new_unknown = apply_changelog(case.query, rows, on_time)
            unknown += new_unknown
            apply_changes(result, epoch, by_window=True)
            assert +result == in_batch(case.query, rows)
            assert epoch.late_rows == late
            assert len(epoch.late) == (len(new) - len(on_time)) * case.query.keeps_late
            assert sum(report["unknown_retractions"] for report in epoch.reports) == unknown
            watermark = update_us if watermark is None else max(watermark, update_us)
            closed = [row for row in rows if row.ts <= watermark]
            rows = [row for row in rows if row.ts > watermark]
            result -= in_batch(case.query, closed)
            if restarts:
                run.restart()
    assert run.stored_names() == []


@examples("end")
def test_result_at_the_end_equals_the_batch_result(case: Case) -> None:
    run, rows = case.query.harness(), []
    with state_limits(case.small):
        for tasks, _, restarts in case.epochs:
            assert run.epoch(tasks).rows == []
            rows, _ = apply_changelog(case.query, rows, rows_of(case.query, tasks))
            if restarts:
                run.restart()
        assert Counter(map(row_identity, run.end().rows)) == in_batch(case.query, rows)


@examples("windows")
def test_emits_the_batch_result_of_each_window_once(case: Case) -> None:
    run, rows, late, watermark = case.query.harness(), [], 0, None
    with state_limits(case.small):
        for tasks, update_us, restarts in [*case.epochs, ([], END_OF_INPUT_US, False)]:
            epoch = run.epoch(tasks, [WatermarkUpdate(0, 0, update_us)])
            previous = watermark
            watermark = update_us if previous is None else max(previous, update_us)
            new = rows_of(case.query, tasks)
            on_time = [row for row in new if previous is None or row.ts > previous]
            late += len(new) - len(on_time)
            rows += on_time
            closed = [row for row in rows if row.ts <= watermark]
            rows = [row for row in rows if row.ts > watermark]
            assert Counter(map(row_identity, epoch.rows)) == in_batch(case.query, closed)
            assert epoch.late_rows == late
            assert len(epoch.late) == (len(new) - len(on_time)) * case.query.keeps_late
            if restarts:
                run.restart()
    assert run.stored_names() == []
