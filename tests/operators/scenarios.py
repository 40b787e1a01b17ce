"""Random GROUP BY queries with random input: disorder, retractions, epochs, tasks and restarts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from tests.operators import batch
from tests.operators.harness import B, D, L, Query, Row, S
from tests.operators.window_model import Step
from tidegate.operators.aggregate.groups import WindowPanes
from tidegate.operators.watermark import END_OF_INPUT_US

NAN, INF = float("nan"), float("inf")
# Few distinct values, so that rows share groups.
SAMPLES: dict[pa.DataType, list[Any]] = {
    L: [None, 0, 1, -7, 2**40, 3],
    D: [None, 0.0, -0.0, 1.5, -2.25, 1e6, NAN],
    batch.DEC: [None, Decimal("0.10"), Decimal("-99999999.99"), Decimal("7.00")],
    S: [None, "", "a", "é", "e\u0301", "漢字", "😀 x", "'\\\"\n"],
    B: [None, True, False],
    batch.DATE: [None, date(1969, 12, 31), date(2026, 2, 28), date(1, 1, 1)],
}
KEY_SAMPLES = {**SAMPLES, D: [*SAMPLES[D], INF, -INF]}
UNITS = (1, 7, 1_000_000, 3_600_000_000)


@dataclass(frozen=True)
class Scenario:
    """A query with its input.

    For every epoch, `tasks` has the task and the batch of each row, `task_updates` the watermark
    updates of each task, and `times` the processing time. With `small`, buckets and the header
    are small.
    """

    query: Query
    texts: tuple[str, ...]
    steps: tuple[Step, ...]
    origins: tuple[int, ...]
    tasks: tuple[tuple[tuple[int, int], ...], ...]
    task_updates: tuple[tuple[tuple[int, int], ...], ...]
    times: tuple[int | None, ...]
    restarts: tuple[bool, ...]
    key_groups: int
    small: bool


@st.composite
def windows(draw: st.DrawFn, kinds: Sequence[str]) -> tuple[WindowPanes | None, int | None, int]:
    """Draw panes or the gap of a session, and the unit of time."""
    kind, unit = draw(st.sampled_from(kinds)), draw(st.sampled_from(UNITS))
    if kind == "NONE":
        return None, None, unit
    size = draw(st.integers(1, 12))
    if kind == "SESSION":
        return None, size * unit, unit
    slide = draw(st.integers(1, size)) if kind == "HOP" else size
    if kind == "CUMULATE":
        slide, size = size, size * draw(st.integers(1, 4))
    offset = draw(st.integers(-15, 15)) * unit if kind != "CLOSING_TIME" else 0
    return WindowPanes(kind, size * unit, slide * unit, offset), None, unit


@st.composite
def queries(
    draw: st.DrawFn,
    mode: str,
    kinds: Sequence[str],
    lateness: st.SearchStrategy[int] | None = None,
    retracts: bool = False,
) -> tuple[Query, tuple[str, ...], int]:
    """Draw a query; return it with the SQL of its aggregates and the unit of time."""
    panes, gap, unit = draw(windows(kinds))
    keys = draw(st.lists(st.sampled_from(list(KEY_SAMPLES)), max_size=3))
    # A query with keys and without calls is SELECT DISTINCT.
    min_calls = 0 if keys else 1
    calls = draw(st.lists(st.sampled_from(batch.CHOICES), min_size=min_calls, max_size=4))
    every = draw(st.sampled_from([None, None, 3])) if mode == "early" and gap is None else None
    query = Query(
        tuple(keys),
        batch.VALUES,
        tuple(choice[0] for choice in calls),
        tuple(choice[1] for choice in calls),
        tuple(choice[2] for choice in calls),
        panes,
        gap,
        mode,
        draw(lateness) * unit if lateness is not None else 0,
        every,
        None,
        retracts,
        draw(st.booleans()) and (panes is not None or gap is not None),
    )
    return query, tuple(choice[3] for choice in calls), unit


@st.composite
def histories(draw: st.DrawFn, query: Query, unit: int) -> list[Row]:
    """Draw rows in order of arrival; with `retracts`, some retract an existing row."""
    used = {index for arguments in query.arguments for index in arguments}
    used |= {index for index in query.filters if index is not None}
    values = st.tuples(
        *(
            st.sampled_from(SAMPLES[kind]) if index in used else st.none()
            for index, kind in enumerate(query.values)
        )
    )
    keys = st.tuples(*(st.sampled_from(draw(_few_keys(kind))) for kind in query.keys))
    pace, disorder = draw(st.integers(0, 4)), draw(st.integers(0, 25))
    jitter = st.integers(-disorder, min(disorder, 4))
    now = draw(st.integers(-40, 20))
    rows: list[Row] = []
    for number in range(draw(st.integers(0, 28))):
        now += draw(st.integers(0, pace))
        if query.retracts and draw(st.integers(0, 3)) == 0:
            existing = _existing(rows)
            if existing:
                old = draw(st.sampled_from(existing))
                rows.append(Row(old.ts, old.keys, old.values, -1, number))
                continue
        rows.append(Row((now + draw(jitter)) * unit, draw(keys), draw(values), 1, number))
    return rows


def _few_keys(kind: pa.DataType) -> st.SearchStrategy[list[Any]]:
    return st.lists(st.sampled_from(KEY_SAMPLES[kind]), min_size=1, max_size=3)


def _existing(rows: Sequence[Row]) -> list[Row]:
    """Return the rows that are not retracted."""
    existing: list[Row] = []
    for row in rows:
        if row.weight > 0:
            existing.append(row)
        else:
            content = (row.ts, row.keys, row.values)
            existing.remove(next(r for r in existing if (r.ts, r.keys, r.values) == content))
    return existing


@st.composite
def scenarios(draw: st.DrawFn, *args: Any, **options: Any) -> Scenario:
    query, texts, unit = draw(queries(*args, **options))
    rows = draw(histories(query, unit))
    epochs = draw(st.integers(1, 9))
    cuts = sorted(draw(st.lists(st.integers(0, len(rows)), min_size=epochs, max_size=epochs)))
    bounds = [0, *cuts, len(rows)]
    pieces = [tuple(rows[a:b]) for a, b in pairwise(bounds)]
    origins = draw(st.sampled_from([(0,), (0,), (0, 1)]))
    delay = draw(st.integers(0, 10)) * unit
    spread = draw(st.integers(1, 7))
    tasks = [tuple((row.id * spread % 3, row.id % 2) for row in piece) for piece in pieces]
    pairs = zip(pieces, tasks, strict=True)
    updates = [_task_updates(piece, where, origins, delay) for piece, where in pairs]
    # The input ends in the epoch of the last rows, or in one more epoch.
    ending = tuple((origin, END_OF_INPUT_US) for origin in origins)
    if draw(st.booleans()):
        updates[-1] = (*updates[-1], *ending)
    else:
        pieces, tasks, updates = [*pieces, ()], [*tasks, ()], [*updates, ending]
    count = len(pieces)
    pairs = zip(pieces, updates, strict=True)
    steps = tuple(Step(piece, _latest_by_origin(update)) for piece, update in pairs)
    times = draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    return Scenario(
        query,
        texts,
        steps,
        origins,
        tuple(tasks),
        tuple(updates),
        tuple(100 + sum(times[: number + 1]) for number in range(count)),
        tuple(draw(st.lists(st.booleans(), min_size=count, max_size=count))),
        draw(st.integers(1, 3)),
        draw(st.booleans()),
    )


def _task_updates(
    rows: Sequence[Row], where: Sequence[tuple[int, int]], origins: Sequence[int], delay: int
) -> tuple[tuple[int, int], ...]:
    """Return the watermark of each task and origin: its largest time minus the delay."""
    latest: dict[tuple[int, int], int] = {}
    for row, (task, _) in zip(rows, where, strict=True):
        key = (task, row.id % len(origins))
        latest[key] = max(row.ts - delay, latest.get(key, row.ts - delay))
    return tuple((origins[origin], update) for (_, origin), update in sorted(latest.items()))


def _latest_by_origin(updates: Sequence[tuple[int, int]]) -> dict[int, int]:
    latest: dict[int, int] = {}
    for origin, watermark_us in updates:
        latest[origin] = max(watermark_us, latest.get(origin, watermark_us))
    return latest
