"""Deduplication: by example, and equal to a model for any rows."""

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
from tidegate.columns import ARRIVAL_FILE, ARRIVAL_ROW, HASH, STORE_TIME
from tidegate.operators.kernels.ordering import Ordering
from tidegate.operators.late_rows import LateRowFormat
from tidegate.operators.top_n.dedup import Deduplicate
from tidegate.operators.top_n.window import Ranking
from tidegate.operators.watermark import END_OF_INPUT_US, WatermarkUpdate

EXAMPLES = int(os.environ.get("TIDEGATE_EXAMPLES", "200"))
SEED = int(os.environ.get("TIDEGATE_SEED", "20261115"))


@dataclass(frozen=True)
class Query:
    """Rows have a key, a time and a value; with `has_closing_key` the time is part of the key."""

    by_event_time: bool = False
    has_closing_key: bool = False
    ttl_us: int | None = None
    keeps_late: bool = False
    with_rank: bool = False

    def operator(self) -> Deduplicate:
        order = (Ordering(L),) if self.by_event_time else ()
        keys = (S, L) if self.has_closing_key else (S,)
        rank = pa.int32() if self.with_rank else None
        ranking = Ranking(keys, order, (S, L, L), 1, rank=rank)
        required = pa.schema([f for f in self.table([]).schema if not f.name.startswith("l")])
        late_rows = LateRowFormat("deduplicate", required, (L,)) if self.keeps_late else None
        return Deduplicate(
            ranking, self.by_event_time, self.has_closing_key, self.ttl_us, late_rows
        )

    def key(self, row: Row) -> tuple[Any, ...]:
        return (*row.keys, row.ts) if self.has_closing_key else row.keys

    def table(self, rows: Sequence[Row]) -> pa.Table:
        has_time = self.by_event_time or self.has_closing_key
        columns: dict[str, tuple[pa.DataType, list[Any]]] = {
            STORE_TIME: (L, [row.ts + 1 if has_time else 0 for row in rows]),
            HASH: (L, [hash_of(self.key(row)) for row in rows]),
            "k0": (S, [row.keys[0] for row in rows]),
            "c0": (S, [row.keys[0] for row in rows]),
            "c1": (L, [row.ts for row in rows]),
            "c2": (L, [row.values[0] for row in rows]),
            ARRIVAL_FILE: (S, [""] * len(rows)),
            ARRIVAL_ROW: (L, [row.id for row in rows]),
            "l0": (L, [row.values[0] for row in rows]),
        }
        if self.has_closing_key:
            columns["k1"] = columns["c1"]
        if self.by_event_time:
            columns["o0"] = columns["c1"]
        return pa.table({name: pa.array(values, kind) for name, (kind, values) in columns.items()})

    def harness(self, **options: Any) -> Harness:
        return Harness(self.operator, self.table, **options)


def make_rows(*items: tuple[str | None, int, int]) -> list[Row]:
    return [Row(ts, (key,), (value,), id=id) for id, (key, ts, value) in enumerate(items)]


def test_by_arrival_emits_the_first_row_at_once() -> None:
    run = Query(ttl_us=10, with_rank=True).harness(key_groups=1)
    assert run.rows(make_rows(("a", 5, 1), ("a", 1, 2), (None, 1, 3)), now_us=1).rows == [
        ("a", 5, 1, 1),
        (None, 1, 3, 1),
    ]
    run.restart()
    assert run.rows(make_rows(("a", 0, 4)), now_us=9).rows == [], (
        "a duplicate extends the life of its key"
    )
    assert run.rows(make_rows(("a", 0, 5), (None, 0, 6)), now_us=12).rows == [(None, 0, 6, 1)]
    run.rows([], now_us=100)
    assert run.stored_names() == []


def test_by_event_time_emits_the_first_row_when_the_watermark_has_passed_it() -> None:
    run = Query(by_event_time=True, ttl_us=1_000, keeps_late=True).harness(key_groups=1)
    assert run.rows(make_rows(("a", 5, 1), ("b", 9, 2)), watermark_us=2, now_us=1).rows == []
    assert run.rows(make_rows(("a", 3, 3), ("a", 3, 4)), watermark_us=3, now_us=1).rows == []
    run.restart()
    assert run.rows([], watermark_us=4, now_us=1).rows == [("a", 3, 3)]
    late = run.rows(make_rows(("b", 2, 5), ("a", 7, 6)), watermark_us=4, now_us=1)
    assert late.rows == [] and late.late_rows == 1 and [row["l0"] for row in late.late] == [5]
    assert run.rows([], watermark_us=9, now_us=1).rows == []
    assert run.end().rows == [("b", 9, 2)]


def test_late_row_does_not_replace_a_row_on_time() -> None:
    run = Query(by_event_time=True, ttl_us=1_000).harness(key_groups=1)
    run.rows([], watermark_us=5, now_us=1)
    run.rows(make_rows(("a", 1, 1), ("a", 8, 2)), watermark_us=5, now_us=1)
    assert run.epochs[-1].late_rows == 1
    assert run.end().rows == [("a", 8, 2)]


@pytest.mark.parametrize("by_event_time", [False, True])
def test_watermark_drops_closed_keys(by_event_time: bool) -> None:
    run = Query(by_event_time=by_event_time, has_closing_key=True).harness(key_groups=1)
    run.rows(make_rows(("a", 5, 1), ("a", 6, 2), ("a", 5, 3)), watermark_us=4)
    run.rows([], watermark_us=10)
    assert sorted(row for epoch in run.epochs for row in epoch.rows) == [("a", 5, 1), ("a", 6, 2)]
    assert run.rows(make_rows(("a", 5, 4)), watermark_us=10).late_rows == 1
    assert run.end().rows == [] and run.stored_names() == []


@dataclass
class Model:
    """A model in plain Python; `emitted_keys` has the time of the last row of each key."""

    query: Query
    emitted_keys: dict[tuple[Any, ...], int] = field(default_factory=dict)
    waiting: list[Row] = field(default_factory=list)
    late: list[Row] = field(default_factory=list)

    def epoch(
        self, rows: list[Row], previous: int | None, watermark: int, now_us: int
    ) -> list[tuple[Any, ...]]:
        query, ttl = self.query, self.query.ttl_us
        if ttl is not None and not query.has_closing_key:
            self.emitted_keys = {
                key: last for key, last in self.emitted_keys.items() if last + ttl > now_us
            }
        has_time = query.by_event_time or query.has_closing_key
        on_time = [row for row in rows if not has_time or previous is None or row.ts >= previous]
        self.late += [row for row in rows if row not in on_time]
        for row in on_time:
            if query.key(row) in self.emitted_keys:
                self.emitted_keys[query.key(row)] = now_us
            else:
                self.waiting.append(row)
        ready = [row for row in self.waiting if not query.by_event_time or row.ts < watermark]
        self.waiting = [row for row in self.waiting if row not in ready]
        emitted = []
        # Sorting by time keeps the order of arrival.
        for row in sorted(ready, key=lambda row: row.ts if query.by_event_time else 0):
            if query.key(row) not in self.emitted_keys:
                emitted.append((*row.keys, row.ts, *row.values))
                self.emitted_keys[query.key(row)] = now_us
        if query.has_closing_key:
            self.emitted_keys = {
                key: last for key, last in self.emitted_keys.items() if key[-1] >= watermark
            }
        return emitted


ROWS = st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.integers(0, 6)), max_size=6)


@seed(SEED)
@settings(
    max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)
@given(st.data(), st.booleans(), st.sampled_from([None, 2, 5]), st.booleans(), st.booleans())
def test_emits_what_the_model_emits_in_every_epoch(
    data: st.DataObject, by_event_time: bool, ttl_us: int | None, keeps_late: bool, small: bool
) -> None:
    query = Query(by_event_time, ttl_us is None, ttl_us, keeps_late)
    run, model = query.harness(key_groups=data.draw(st.integers(1, 3))), Model(query)
    previous, watermark, now_us, number = None, -1, 100, 0
    with state_limits(small):
        for ends in [False] * data.draw(st.integers(1, 7)) + [True]:
            now_us += data.draw(st.integers(0, 3))
            rows = []
            for key, ahead in data.draw(ROWS):
                rows.append(Row(max(watermark, 0) + ahead - 2, (key,), (number,), id=number))
                number += 1
            watermark = (
                END_OF_INPUT_US
                if ends
                else max(watermark, data.draw(st.integers(-1, 4)) + watermark)
            )
            tasks = [[rows[::2]], [rows[1::2]]]
            epoch = run.epoch(tasks, [WatermarkUpdate(0, 0, watermark)], now_us)
            assert Counter(epoch.rows) == Counter(model.epoch(rows, previous, watermark, now_us))
            assert epoch.late_rows == len(model.late)
            previous = watermark
            if data.draw(st.booleans()):
                run.restart()
    late = Counter(row["l0"] for epoch in run.epochs for row in epoch.late)
    assert late == Counter(row.values[0] for row in model.late if keeps_late)
