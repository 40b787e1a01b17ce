"""Random inputs for windows: schema, aggregates, disorder, and the split of rows into epochs."""

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
from tests.operators.model import Step
from tidegate.operators.aggregate.groups import Panes
from tidegate.operators.watermark import END_US

NAN, INF = float("nan"), float("inf")
# Few different values, so that groups meet.
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
    """A query with its input; `tasks` has for every row of an epoch its task and batch."""

    query: Query
    texts: tuple[str, ...]
    steps: tuple[Step, ...]
    origins: tuple[int, ...]
    tasks: tuple[tuple[tuple[int, int], ...], ...]
    task_marks: tuple[tuple[tuple[int, int], ...], ...]
    times: tuple[int | None, ...]
    restarts: tuple[bool, ...]
    key_groups: int
    small: bool


@st.composite
def windows(draw: st.DrawFn, kinds: Sequence[str]) -> tuple[Panes | None, int | None, int]:
    """Panes or the gap of a session, and the unit of time."""
    kind, unit = draw(st.sampled_from(kinds)), draw(st.sampled_from(UNITS))
    if kind == "NONE":
        return None, None, unit
    size = draw(st.integers(1, 12))
    if kind == "SESSION":
        return None, size * unit, unit
    slide = draw(st.integers(1, size)) if kind == "HOP" else size
    if kind == "CUMULATE":
        slide, size = size, size * draw(st.integers(1, 4))
    offset = draw(st.integers(-15, 15)) * unit if kind != "DUE" else 0
    return Panes(kind, size * unit, slide * unit, offset), None, unit


@st.composite
def queries(
    draw: st.DrawFn,
    mode: str,
    kinds: Sequence[str],
    lateness: st.SearchStrategy[int] | None = None,
    retracts: bool = False,
) -> tuple[Query, tuple[str, ...], int]:
    """A query, the SQL of its aggregates, and the unit of time."""
    panes, gap, unit = draw(windows(kinds))
    keys = draw(st.lists(st.sampled_from(list(KEY_SAMPLES)), max_size=3))
    # With keys there may be no calls: that is DISTINCT.
    fewest = 0 if keys else 1
    calls = draw(st.lists(st.sampled_from(batch.CHOICES), min_size=fewest, max_size=4))
    every = draw(st.sampled_from([None, None, 3])) if mode == "early" and gap is None else None
    query = Query(
        tuple(keys),
        batch.VALUES,
        tuple(one[0] for one in calls),
        tuple(one[1] for one in calls),
        tuple(one[2] for one in calls),
        panes,
        gap,
        mode,
        draw(lateness) * unit if lateness is not None else 0,
        every,
        None,
        retracts,
        draw(st.booleans()) and (panes is not None or gap is not None),
    )
    return query, tuple(one[3] for one in calls), unit


@st.composite
def histories(draw: st.DrawFn, query: Query, unit: int) -> list[Row]:
    """Rows in the order they come in; with `retracts`, some retract one that is there."""
    read = {place for places in query.arguments for place in places}
    read |= {place for place in query.filters if place is not None}
    values = st.tuples(
        *(
            st.sampled_from(SAMPLES[kind]) if place in read else st.none()
            for place, kind in enumerate(query.values)
        )
    )
    keys = st.tuples(*(st.sampled_from(draw(_few(kind))) for kind in query.keys))
    pace, disorder = draw(st.integers(0, 4)), draw(st.integers(0, 25))
    jitter = st.integers(-disorder, min(disorder, 4))
    now = draw(st.integers(-40, 20))
    rows: list[Row] = []
    for number in range(draw(st.integers(0, 28))):
        now += draw(st.integers(0, pace))
        if query.retracts and draw(st.integers(0, 3)) == 0:
            there = _standing(rows)
            if there:
                old = draw(st.sampled_from(there))
                rows.append(Row(old.ts, old.keys, old.values, -1, number))
                continue
        rows.append(Row((now + draw(jitter)) * unit, draw(keys), draw(values), 1, number))
    return rows


def _few(kind: pa.DataType) -> st.SearchStrategy[list[Any]]:
    return st.lists(st.sampled_from(KEY_SAMPLES[kind]), min_size=1, max_size=3)


def _standing(rows: Sequence[Row]) -> list[Row]:
    there: list[Row] = []
    for row in rows:
        if row.weight > 0:
            there.append(row)
        else:
            same = (row.ts, row.keys, row.values)
            there.remove(next(r for r in there if (r.ts, r.keys, r.values) == same))
    return there


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
    marks = [_marks(piece, where, origins, delay) for piece, where in zip(pieces, tasks)]  # noqa: B905
    # The end comes with the last rows, or in an epoch of its own.
    ending = tuple((origin, END_US) for origin in origins)
    if draw(st.booleans()):
        marks[-1] = (*marks[-1], *ending)
    else:
        pieces, tasks, marks = [*pieces, ()], [*tasks, ()], [*marks, ending]
    count = len(pieces)
    steps = tuple(Step(piece, _furthest(mark)) for piece, mark in zip(pieces, marks, strict=True))
    times = draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    return Scenario(
        query,
        texts,
        steps,
        origins,
        tuple(tasks),
        tuple(marks),
        tuple(100 + sum(times[: place + 1]) for place in range(count)),
        tuple(draw(st.lists(st.booleans(), min_size=count, max_size=count))),
        draw(st.integers(1, 3)),
        draw(st.booleans()),
    )


def _marks(
    rows: Sequence[Row], where: Sequence[tuple[int, int]], origins: Sequence[int], delay: int
) -> tuple[tuple[int, int], ...]:
    """What each task says about each origin: its largest time, less the delay."""
    furthest: dict[tuple[int, int], int] = {}
    for row, (task, _) in zip(rows, where, strict=True):
        key = (task, row.id % len(origins))
        furthest[key] = max(row.ts - delay, furthest.get(key, row.ts - delay))
    return tuple((origins[origin], mark) for (_, origin), mark in sorted(furthest.items()))


def _furthest(marks: Sequence[tuple[int, int]]) -> dict[int, int]:
    found: dict[int, int] = {}
    for origin, mark in marks:
        found[origin] = max(mark, found.get(origin, mark))
    return found
