"""Time to live and EMIT EVERY over any rows, in any epochs and restarts, against a model of both.

TIDEGATE_EXAMPLES is the number of examples over the whole file (300), TIDEGATE_SEED where they
start.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import HealthCheck, assume, given, seed, settings
from hypothesis import strategies as st

from tests.operators.batch import Results, assert_same, expected
from tests.operators.harness import (
    D,
    Epoch,
    Harness,
    Row,
    S,
    hash_of,
    normalize_keys,
    row_identity,
    state_limits,
)
from tests.operators.join_harness import HOWS, JoinRow, batch_join
from tests.operators.model import NO_WINDOW, Key, Memory
from tests.operators.scenarios import Scenario, scenarios
from tests.operators.test_regular_join import Harness as JoinHarness
from tests.operators.test_regular_join import changelogs, make_join
from tests.operators.test_top_n import FUNCTIONS, NAN, Query
from tests.operators.test_top_n_duckdb import (
    Case,
    apply_changelog,
    apply_changes,
    content_of,
    in_batch,
    rows_of,
)
from tests.operators.test_aggregates_duckdb import exactly, keyed
from tidegate.columns import BEFORE, DELETE, INSERT
from tidegate.operators.kernels.matching import TRACKS_MATCHES
from tidegate.operators.watermark import END_US, Origin, WatermarkUpdate

EXAMPLES = int(os.environ.get("TIDEGATE_EXAMPLES", "300"))
SEED = int(os.environ.get("TIDEGATE_SEED", "20261115"))
LIMITS = settings(
    max_examples=-(-EXAMPLES // 3),
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
TIMES = st.sampled_from([None, 1, 2, 3, 4, 6])


@st.composite
def forgetful(draw: st.DrawFn) -> Scenario:
    """Aggregates by key that forget, wait, or both."""
    case = draw(scenarios("early", ("NONE",), retracts=draw(st.sampled_from([True, True, False]))))
    assume(case.query.keys)
    query = replace(case.query, ttl_us=draw(TIMES), every_us=draw(TIMES))
    # So fast that groups go and come again within a few epochs.
    pace = draw(st.integers(1, 4))
    return replace(case, query=query, times=tuple(pace * (at or 0) for at in case.times))


@dataclass
class Reader:
    """What a reader of the changes of one key group knows, and what it should know."""

    case: Scenario
    memory: Memory
    found: Results = field(default_factory=dict)
    rows: dict[Hashable, Row] = field(default_factory=dict)
    emitted_us: int | None = None

    def add(self, rows: Iterable[Row], now_us: int) -> None:
        """Rows are known by what the aggregates read of them."""
        came = []
        for row in rows:
            content = repr(self.case.query.arguments_of(row))
            self.rows.setdefault((normalize_keys(row.keys), content), row)
            came.append((normalize_keys(row.keys), content, row.weight))
        self.memory.add(came, now_us)

    def expected(self, standing: Iterable[tuple[Key, Hashable]]) -> Results:
        placed = [(replace(self.rows[item], weight=1), NO_WINDOW) for item in standing]
        return expected(self.case.query, self.case.texts, placed)

    def epoch(self, came: list[Row], out: list[tuple[Any, ...]], now_us: int, ended: bool) -> None:
        """First groups that are forgotten say what they still have to say; then come the others."""
        gone = self.memory.forget(now_us)
        last = self.expected([(key, row) for key, r in gone.items() for row in r.elements()])
        before = {key: value for key, value in self.found.items() if key not in gone}
        self.add(came, now_us)
        open_ones = set(gone)
        emits = False
        for *row, op in out:
            key, results = keyed(self.case.query, tuple(row))
            if key in open_ones and op == INSERT and self._same(self.found.get(key), last.get(key)):
                self.found.pop(key, None)
                open_ones.discard(key)
            emits |= key not in open_ones
            if op in (BEFORE, DELETE):
                assert exactly(self.found.pop(key), results), "what is retracted was there"
            else:
                assert key not in self.found
                self.found[key] = results
        for key in open_ones:
            assert self._same(self.found.pop(key, None), last.get(key)), "the last words are right"
        every = self.case.query.every_us
        waited = self.emitted_us is None or every is None or now_us >= self.emitted_us + every
        if waited or ended:
            assert_same(self.found, self.expected(self.memory.standing()))
            self.emitted_us = now_us if emits else self.emitted_us
        else:
            assert_same(self.found, before)

    @staticmethod
    def _same(one: tuple[Any, ...] | None, other: tuple[Any, ...] | None) -> bool:
        return one is other is None or (None not in (one, other) and exactly(one, other))


def of_group(case: Scenario, number: int, keys: Key) -> bool:
    return hash_of(keys) % case.key_groups == number


@seed(SEED)
@LIMITS
@given(forgetful())
def test_aggregates_forget_and_wait_as_the_model_does(case: Scenario) -> None:
    origins = tuple(Origin(origin) for origin in case.origins)
    run = Harness(case.query.operator, case.query.table, case.key_groups, origins)
    readers = [Reader(case, Memory(case.query.ttl_us)) for _ in range(case.key_groups)]
    with state_limits(case.small):
        for place, step in enumerate(case.steps):
            tasks: list[list[list[Row]]] = [[[], []] for _ in range(3)]
            for row, (task, number) in zip(step.rows, case.tasks[place], strict=True):
                tasks[task][number].append(row)
            updates = [WatermarkUpdate(origin, 0, mark) for origin, mark in case.task_marks[place]]
            now_us = case.times[place]
            assert now_us is not None
            epoch = run.epoch(tasks, updates, now_us)
            came = [row for batches in tasks for batch in batches for row in batch]
            check(case, readers, came, epoch, now_us)
            if case.restarts[place]:
                run.restart()


def check(
    case: Scenario, readers: list[Reader], came: list[Row], epoch: Epoch, now_us: int
) -> None:
    cut = len(case.query.keys)
    for number, reader in enumerate(readers):
        own = [row for row in came if of_group(case, number, row.keys)]
        out = [row for row in epoch.main if of_group(case, number, row[:cut])]
        reader.epoch(own, out, now_us, epoch.watermark == END_US)
        if case.query.retracts and case.query.ttl_us is not None:
            assert epoch.reports[number]["unknown"] == reader.memory.unknown


@seed(SEED)
@LIMITS
@given(st.data(), st.sampled_from(HOWS), st.booleans(), st.booleans())
def test_joins_forget_as_the_model_does(
    data: st.DataObject, how: str, retracts: bool, safe: bool
) -> None:
    ttl = data.draw(st.integers(1, 6))
    run = JoinHarness(make_join(how, safe, retracts=retracts, ttl_us=ttl))
    memory, now_us = Memory(ttl), 100
    for epoch in data.draw(changelogs(retracts)):
        now_us += data.draw(st.integers(0, 4))
        came = [
            ((item[0],), (side, item), weight)
            for side, items in enumerate(epoch)
            for item, weight in items
            if safe or TRACKS_MATCHES[how][side] or item[0] is not None
        ]
        stay = leave(run, {key for (key,) in memory.forget(now_us)})
        memory.add(came, now_us)
        if data.draw(st.booleans()):
            run.restart()
        run.epoch(epoch, now_us=now_us)
        there = [row for _, row in memory.standing()]
        sides: list[list[JoinRow]] = [[item for s, item in there if s == side] for side in (0, 1)]
        assert run.result == batch_join(sides, how, None, safe), stay
        if retracts:
            assert sum(report["unknown"] for report in run.reports) == memory.unknown


def leave(run: JoinHarness, keys: set[str | None]) -> Counter[tuple[Any, ...]]:
    """What came out of forgotten keys stays with the reader; the join knows nothing of it."""

    def key_of(row: tuple[Any, ...]) -> str | None:
        # An outer row may have one side alone, which is NULL as a whole.
        return row[0] if len(row) == 3 or row[1] is not None else row[3]

    stay = Counter({row: count for row, count in run.result.items() if key_of(row) in keys})
    run.result -= stay
    return stay


@st.composite
def forgetful_top_n(draw: st.DrawFn) -> tuple[Case, list[int]]:
    """A ranking that forgets, and the processing time of each epoch.

    Few partitions and few values: rows lose, and what is retracted was often there.
    """
    keys = draw(st.sampled_from([(S, ["a", "b", None]), (D, [0.0, -0.0, NAN]), (None, [])]))
    query = Query(
        () if keys[0] is None else (keys[0],),
        order=draw(
            st.sampled_from([((0, False, True),), ((0, True, False), (1, False, True)), ()])
        ),
        limit=draw(st.sampled_from([1, 1, 2])),
        function=draw(st.sampled_from(FUNCTIONS)),
        with_rank=draw(st.booleans()),
        mode=draw(st.sampled_from(["changes", "changes", "end"])),
        retracts=draw(st.booleans()),
        ttl_us=draw(st.integers(2, 5)),
        selected=draw(st.sampled_from([None, (1,)])),
    )
    cells = st.tuples(st.integers(0, 2), st.sampled_from(["x", "y"]))
    key = st.sampled_from([(value,) for value in keys[1]] or [()])
    row = st.tuples(key, cells, st.sampled_from([1, -1] if query.retracts else [1]))
    epochs, times, now_us = [], [], 100
    for epoch in draw(st.lists(st.lists(row, max_size=4), min_size=3, max_size=10)):
        made = [Row(0, key, cells, weight, id) for id, (key, cells, weight) in enumerate(epoch)]
        cut = draw(st.integers(0, len(made)))
        epochs.append(([[made[cut:]], [made[:cut]]], 0, draw(st.booleans())))
        now_us += draw(st.integers(0, 3))
        times.append(now_us)
    return Case(query, tuple(epochs), draw(st.booleans())), times


@seed(SEED)
@LIMITS
@given(forgetful_top_n())
def test_top_n_forgets_as_the_model_does(given: tuple[Case, list[int]]) -> None:
    case, times = given
    query, memory = case.query, Memory(case.query.ttl_us)
    run, there = query.harness(), list[Row]()
    found: Counter[tuple[Any, ...]] = Counter()
    with state_limits(case.small):
        for (tasks, _, restarts), now_us in zip(case.epochs, times, strict=True):
            gone = memory.forget(now_us)
            there = [row for row in there if normalize_keys(row.keys) not in gone]
            # What came out of forgotten partitions stays with the reader.
            found = Counter({r: c for r, c in found.items() if partition_of(query, r) not in gone})
            came = rows_of(query, tasks)
            there, _ = apply_changelog(query, there, came)
            memory.add(
                [(normalize_keys(row.keys), content_of(query, row), row.weight) for row in came],
                now_us,
            )
            epoch = run.epoch(tasks, now_us=now_us)
            if query.mode == "end":
                assert epoch.main == []
            else:
                apply_changes(found, epoch)
                assert +found == in_batch(query, there)
            if query.retracts:
                assert sum(report["unknown"] for report in epoch.reports) == memory.unknown
            if restarts:
                run.restart()
        if query.mode == "end":
            last = run.epoch((), [WatermarkUpdate(0, 0, END_US)], times[-1])
            assert Counter(map(row_identity, last.main)) == in_batch(query, there)


def partition_of(query: Query, row: tuple[Any, ...]) -> Key:
    """The partition of a row that came out, whatever the sign of its zeros."""
    return tuple(cell[0] if isinstance(cell, tuple) else cell for cell in row[: len(query.keys)])
