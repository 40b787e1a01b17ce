"""The first row of each key, once: by example, and over any rows against a model and DuckDB."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from tests.operators.harness import Harness, L, Row, S, hash_of, state_limits
from tidegate.columns import ARRIVAL_FILE, ARRIVAL_ROW, HASH, PANE
from tidegate.operators.kernels.ordering import Ordering
from tidegate.operators.late_rows import LateRows
from tidegate.operators.top_n.dedup import Deduplicate
from tidegate.operators.top_n.window import Ranking
from tidegate.operators.watermark import END_US, WatermarkUpdate

EXAMPLES = int(os.environ.get("TIDEGATE_EXAMPLES", "200"))
SEED = int(os.environ.get("TIDEGATE_SEED", "20261115"))


@dataclass(frozen=True)
class Query:
    """A row is a key, a time and a value; with `closes` the time is a part of the key."""

    waits: bool = False
    closes: bool = False
    ttl_us: int | None = None
    keeps_late: bool = False
    ranked: bool = False

    def operator(self) -> Deduplicate:
        order = (Ordering(L),) if self.waits else ()
        keys = (S, L) if self.closes else (S,)
        rank = pa.int32() if self.ranked else None
        ranking = Ranking(keys, order, (S, L, L), 1, rank=rank)
        needed = pa.schema([f for f in self.table([]).schema if not f.name.startswith("l")])
        late = LateRows("deduplicate", needed, (L,)) if self.keeps_late else None
        return Deduplicate(ranking, self.waits, self.closes, self.ttl_us, late)

    def key(self, row: Row) -> tuple[Any, ...]:
        return (*row.keys, row.ts) if self.closes else row.keys

    def table(self, rows: Sequence[Row]) -> pa.Table:
        timed = self.waits or self.closes
        columns: dict[str, tuple[pa.DataType, list[Any]]] = {
            PANE: (L, [row.ts + 1 if timed else 0 for row in rows]),
            HASH: (L, [hash_of(self.key(row)) for row in rows]),
            "k0": (S, [row.keys[0] for row in rows]),
            "c0": (S, [row.keys[0] for row in rows]),
            "c1": (L, [row.ts for row in rows]),
            "c2": (L, [row.values[0] for row in rows]),
            ARRIVAL_FILE: (S, [""] * len(rows)),
            ARRIVAL_ROW: (L, [row.id for row in rows]),
            "l0": (L, [row.values[0] for row in rows]),
        }
        if self.closes:
            columns["k1"] = columns["c1"]
        if self.waits:
            columns["o0"] = columns["c1"]
        return pa.table({name: pa.array(values, kind) for name, (kind, values) in columns.items()})

    def harness(self, **options: Any) -> Harness:
        return Harness(self.operator, self.table, **options)


def rows(*items: tuple[str | None, int, int]) -> list[Row]:
    return [Row(ts, (key,), (value,), id=id) for id, (key, ts, value) in enumerate(items)]


def test_by_arrival_the_first_row_comes_at_once_and_stays() -> None:
    run = Query(ttl_us=10, ranked=True).harness(key_groups=1)
    assert run.rows(rows(("a", 5, 1), ("a", 1, 2), (None, 1, 3)), now_us=1).main == [
        ("a", 5, 1, 1),
        (None, 1, 3, 1),
    ]
    run.restart()
    assert run.rows(rows(("a", 0, 4)), now_us=9).main == [], "a duplicate keeps its key alive"
    assert run.rows(rows(("a", 0, 5), (None, 0, 6)), now_us=12).main == [(None, 0, 6, 1)]
    run.rows([], now_us=100)
    assert run.stored_names() == []


def test_by_event_time_the_first_row_comes_when_the_watermark_has_passed_it() -> None:
    run = Query(waits=True, ttl_us=1_000, keeps_late=True).harness(key_groups=1)
    assert run.rows(rows(("a", 5, 1), ("b", 9, 2)), watermark_us=2, now_us=1).main == []
    assert run.rows(rows(("a", 3, 3), ("a", 3, 4)), watermark_us=3, now_us=1).main == []
    run.restart()
    assert run.rows([], watermark_us=4, now_us=1).main == [("a", 3, 3)]
    late = run.rows(rows(("b", 2, 5), ("a", 7, 6)), watermark_us=4, now_us=1)
    assert late.main == [] and late.late_rows == 1 and [row["l0"] for row in late.late] == [5]
    assert run.rows([], watermark_us=9, now_us=1).main == []
    assert run.end().main == [("b", 9, 2)]


def test_a_late_row_does_not_hide_one_of_its_key_that_is_on_time() -> None:
    run = Query(waits=True, ttl_us=1_000).harness(key_groups=1)
    run.rows([], watermark_us=5, now_us=1)
    run.rows(rows(("a", 1, 1), ("a", 8, 2)), watermark_us=5, now_us=1)
    assert run.epochs[-1].late_rows == 1
    assert run.end().main == [("a", 8, 2)]


@pytest.mark.parametrize("waits", [False, True])
def test_keys_that_close_are_forgotten_by_the_watermark(waits: bool) -> None:
    run = Query(waits=waits, closes=True).harness(key_groups=1)
    run.rows(rows(("a", 5, 1), ("a", 6, 2), ("a", 5, 3)), watermark_us=4)
    run.rows([], watermark_us=10)
    assert sorted(row for epoch in run.epochs for row in epoch.main) == [("a", 5, 1), ("a", 6, 2)]
    assert run.rows(rows(("a", 5, 4)), watermark_us=10).late_rows == 1
    assert run.end().main == [] and run.stored_names() == []


# Any rows


@dataclass
class Model:
    """Which rows come out, said once more in plain Python."""

    query: Query
    out: dict[tuple[Any, ...], int]
    waiting: list[Row]
    late: list[Row] = field(default_factory=list)

    def epoch(
        self, came: list[Row], before: int | None, after: int, now_us: int
    ) -> list[tuple[Any, ...]]:
        query, ttl = self.query, self.query.ttl_us
        if ttl is not None and not query.closes:
            self.out = {key: last for key, last in self.out.items() if last + ttl > now_us}
        timed = query.waits or query.closes
        on_time = [row for row in came if not timed or before is None or row.ts >= before]
        self.late += [row for row in came if row not in on_time]
        for row in on_time:
            if query.key(row) in self.out:
                self.out[query.key(row)] = now_us
            else:
                self.waiting.append(row)
        ready = [row for row in self.waiting if not query.waits or row.ts < after]
        self.waiting = [row for row in self.waiting if row not in ready]
        found = []
        # Sorting keeps the order of arrival.
        for row in sorted(ready, key=lambda row: row.ts if query.waits else 0):
            if query.key(row) not in self.out:
                found.append((*row.keys, row.ts, *row.values))
                self.out[query.key(row)] = now_us
        if query.closes:
            self.out = {key: last for key, last in self.out.items() if key[-1] >= after}
        return found


ROWS = st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.integers(0, 6)), max_size=6)


@seed(SEED)
@settings(
    max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)
@given(st.data(), st.booleans(), st.sampled_from([None, 2, 5]), st.booleans(), st.booleans())
def test_it_is_what_the_model_says(
    data: st.DataObject, waits: bool, ttl_us: int | None, keeps_late: bool, small: bool
) -> None:
    query = Query(waits, ttl_us is None, ttl_us, keeps_late)
    run, model = query.harness(key_groups=data.draw(st.integers(1, 3))), Model(query, {}, [])
    before, after, now_us, number = None, -1, 100, 0
    with state_limits(small):
        for end in [False] * data.draw(st.integers(1, 7)) + [True]:
            now_us += data.draw(st.integers(0, 3))
            came = []
            for key, ahead in data.draw(ROWS):
                came.append(Row(max(after, 0) + ahead - 2, (key,), (number,), id=number))
                number += 1
            after = END_US if end else max(after, data.draw(st.integers(-1, 4)) + after)
            tasks = [[came[::2]], [came[1::2]]]
            epoch = run.epoch(tasks, [WatermarkUpdate(0, 0, after)], now_us)
            assert Counter(epoch.main) == Counter(model.epoch(came, before, after, now_us))
            assert epoch.late_rows == len(model.late)
            before = after
            if data.draw(st.booleans()):
                run.restart()
    kept = Counter(row["l0"] for epoch in run.epochs for row in epoch.late)
    assert kept == Counter(row.values[0] for row in model.late if keeps_late)
