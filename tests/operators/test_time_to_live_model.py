"""Time to live and EMIT EVERY equal a model, for random rows, epochs and restarts.

TIDEGATE_EXAMPLES is the number of examples over the whole file (300), TIDEGATE_SEED the seed.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import HealthCheck, assume, given, seed, settings
from hypothesis import strategies as st

from tests.operators.batch import Results, assert_same_results, batch_results
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
from tests.operators.scenarios import Scenario, scenarios
from tests.operators.test_aggregates_duckdb import same_cells, split_row
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
from tests.operators.window_model import NO_WINDOW
from tidegate.columns import BEFORE, DELETE, INSERT
from tidegate.operators.kernels.join_condition import TRACKS_MATCHES
from tidegate.operators.watermark import END_OF_INPUT_US, Origin, WatermarkUpdate

EXAMPLES = int(os.environ.get("TIDEGATE_EXAMPLES", "300"))
SEED = int(os.environ.get("TIDEGATE_SEED", "20261115"))
LIMITS = settings(
    max_examples=-(-EXAMPLES // 3),
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
INTERVALS = st.sampled_from([None, 1, 2, 3, 4, 6])
Key = tuple[Any, ...]


@dataclass
class TtlModel:
    """Rows by key, with a time to live that restarts with every row of the key.

    Rows that are added and retracted in the same epoch never existed. A retraction of a row that
    does not exist changes nothing and is counted.
    """

    ttl_us: int | None
    rows: dict[Key, Counter[Hashable]] = field(default_factory=dict)
    touched: dict[Key, int] = field(default_factory=dict)
    unknown: int = 0

    def expire(self, now_us: int) -> dict[Key, Counter[Hashable]]:
        """Remove expired keys and return them with their rows."""
        if self.ttl_us is None:
            return {}
        expired = [key for key, last in self.touched.items() if last + self.ttl_us <= now_us]
        for key in expired:
            del self.touched[key]
        return {key: self.rows.pop(key) for key in expired}

    def add(self, rows: Iterable[tuple[Key, Hashable, int]], now_us: int) -> None:
        """Add the rows of an epoch, as keys, contents and weights."""
        changes: Counter[tuple[Key, Hashable]] = Counter()
        for key, content, weight in rows:
            changes[key, content] += weight
        for (key, content), weight in changes.items():
            count = self.rows.get(key, Counter())[content]
            self.unknown += max(-count - weight, 0)
            weight = max(weight, -count)
            if weight:
                self.rows.setdefault(key, Counter())[content] += weight
                self.touched[key] = now_us

    def current_rows(self) -> list[tuple[Key, Hashable]]:
        """Return all rows with their keys."""
        return [(key, row) for key, rows in self.rows.items() for row in rows.elements()]


@st.composite
def expiring_aggregates(draw: st.DrawFn) -> Scenario:
    """Draw aggregates by key with a time to live, EMIT EVERY, or both."""
    case = draw(scenarios("early", ("NONE",), retracts=draw(st.sampled_from([True, True, False]))))
    assume(case.query.keys)
    query = replace(case.query, ttl_us=draw(INTERVALS), every_us=draw(INTERVALS))
    # Time passes so fast that groups expire and reappear within a few epochs.
    speed = draw(st.integers(1, 4))
    return replace(case, query=query, times=tuple(speed * (us or 0) for us in case.times))


@dataclass
class ChangelogReader:
    """Applies the changelog of one key group and compares the result with the model."""

    case: Scenario
    model: TtlModel
    current: Results = field(default_factory=dict)
    rows: dict[Hashable, Row] = field(default_factory=dict)
    emitted_us: int | None = None

    def add(self, rows: Iterable[Row], now_us: int) -> None:
        """Add rows to the model, identified by the arguments of the aggregates."""
        changes = []
        for row in rows:
            content = repr(self.case.query.arguments_of(row))
            self.rows.setdefault((normalize_keys(row.keys), content), row)
            changes.append((normalize_keys(row.keys), content, row.weight))
        self.model.add(changes, now_us)

    def expected(self, rows: Iterable[tuple[Key, Hashable]]) -> Results:
        assigned = [(replace(self.rows[item], weight=1), NO_WINDOW) for item in rows]
        return batch_results(self.case.query, self.case.texts, assigned)

    def epoch(
        self, rows: list[Row], changes: list[tuple[Any, ...]], now_us: int, ended: bool
    ) -> None:
        """Check that expired groups emit their pending changes before the other groups."""
        expired = self.model.expire(now_us)
        last = self.expected([(key, row) for key, r in expired.items() for row in r.elements()])
        before = {key: value for key, value in self.current.items() if key not in expired}
        self.add(rows, now_us)
        unfinished = set(expired)
        emits = False
        for *row, op in changes:
            key, results = split_row(self.case.query, tuple(row))
            is_final = self._same(self.current.get(key), last.get(key))
            if key in unfinished and op == INSERT and is_final:
                self.current.pop(key, None)
                unfinished.discard(key)
            emits |= key not in unfinished
            if op in (BEFORE, DELETE):
                assert same_cells(self.current.pop(key), results), "the retracted row exists"
            else:
                assert key not in self.current
                self.current[key] = results
        for key in unfinished:
            assert self._same(self.current.pop(key, None), last.get(key)), (
                "the last result is final"
            )
        every = self.case.query.every_us
        is_due = self.emitted_us is None or every is None or now_us >= self.emitted_us + every
        if is_due or ended:
            assert_same_results(self.current, self.expected(self.model.current_rows()))
            self.emitted_us = now_us if emits else self.emitted_us
        else:
            assert_same_results(self.current, before)

    @staticmethod
    def _same(one: tuple[Any, ...] | None, other: tuple[Any, ...] | None) -> bool:
        return one is other is None or (None not in (one, other) and same_cells(one, other))


def is_in_key_group(case: Scenario, key_group: int, keys: Key) -> bool:
    return hash_of(keys) % case.key_groups == key_group


@seed(SEED)
@LIMITS
@given(expiring_aggregates())
def test_aggregates_equal_the_model(case: Scenario) -> None:
    origins = tuple(Origin(origin) for origin in case.origins)
    run = Harness(case.query.operator, case.query.table, case.key_groups, origins)
    ttl_us = case.query.ttl_us
    readers = [ChangelogReader(case, TtlModel(ttl_us)) for _ in range(case.key_groups)]
    with state_limits(case.small):
        for number, step in enumerate(case.steps):
            tasks: list[list[list[Row]]] = [[[], []] for _ in range(3)]
            for row, (task, batch) in zip(step.rows, case.tasks[number], strict=True):
                tasks[task][batch].append(row)
            updates = [WatermarkUpdate(origin, 0, us) for origin, us in case.task_updates[number]]
            now_us = case.times[number]
            assert now_us is not None
            epoch = run.epoch(tasks, updates, now_us)
            rows = [row for batches in tasks for batch_rows in batches for row in batch_rows]
            check(case, readers, rows, epoch, now_us)
            if case.restarts[number]:
                run.restart()


def check(
    case: Scenario, readers: list[ChangelogReader], rows: list[Row], epoch: Epoch, now_us: int
) -> None:
    count = len(case.query.keys)
    for key_group, reader in enumerate(readers):
        group_rows = [row for row in rows if is_in_key_group(case, key_group, row.keys)]
        changes = [row for row in epoch.rows if is_in_key_group(case, key_group, row[:count])]
        reader.epoch(group_rows, changes, now_us, epoch.watermark == END_OF_INPUT_US)
        if case.query.retracts and case.query.ttl_us is not None:
            assert epoch.reports[key_group]["unknown_retractions"] == reader.model.unknown


@seed(SEED)
@LIMITS
@given(st.data(), st.sampled_from(HOWS), st.booleans(), st.booleans())
def test_joins_equal_the_model(data: st.DataObject, how: str, retracts: bool, safe: bool) -> None:
    ttl = data.draw(st.integers(1, 6))
    run = JoinHarness(make_join(how, safe, retracts=retracts, ttl_us=ttl))
    model, now_us = TtlModel(ttl), 100
    for epoch in data.draw(changelogs(retracts)):
        now_us += data.draw(st.integers(0, 4))
        changes = [
            ((item[0],), (side, item), weight)
            for side, items in enumerate(epoch)
            for item, weight in items
            if safe or TRACKS_MATCHES[how][side] or item[0] is not None
        ]
        removed = remove_expired(run, {key for (key,) in model.expire(now_us)})
        model.add(changes, now_us)
        if data.draw(st.booleans()):
            run.restart()
        run.epoch(epoch, now_us=now_us)
        rows = [row for _, row in model.current_rows()]
        sides: list[list[JoinRow]] = [[item for s, item in rows if s == side] for side in (0, 1)]
        assert run.result == batch_join(sides, how, None, safe), removed
        if retracts:
            assert sum(report["unknown_retractions"] for report in run.reports) == model.unknown


def remove_expired(run: JoinHarness, keys: set[str | None]) -> Counter[tuple[Any, ...]]:
    """Remove the output of expired keys, which the join no longer updates; return it."""

    def key_of(row: tuple[Any, ...]) -> str | None:
        # The other side of an unmatched row is NULL.
        return row[0] if len(row) == 3 or row[1] is not None else row[3]

    removed = Counter({row: count for row, count in run.result.items() if key_of(row) in keys})
    run.result -= removed
    return removed


@st.composite
def expiring_top_n(draw: st.DrawFn) -> tuple[Case, list[int]]:
    """Draw a ranking with a time to live, and the processing time of each epoch.

    There are few partitions and few values, so that rows are pruned and retractions find their row.
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
        rows = [Row(0, key, cells, weight, id) for id, (key, cells, weight) in enumerate(epoch)]
        split = draw(st.integers(0, len(rows)))
        epochs.append(([[rows[split:]], [rows[:split]]], 0, draw(st.booleans())))
        now_us += draw(st.integers(0, 3))
        times.append(now_us)
    return Case(query, tuple(epochs), draw(st.booleans())), times


@seed(SEED)
@LIMITS
@given(expiring_top_n())
def test_top_n_equals_the_model(example: tuple[Case, list[int]]) -> None:
    case, times = example
    query, model = case.query, TtlModel(case.query.ttl_us)
    run, rows = query.harness(), list[Row]()
    results: Counter[tuple[Any, ...]] = Counter()
    with state_limits(case.small):
        for (tasks, _, restarts), now_us in zip(case.epochs, times, strict=True):
            expired = model.expire(now_us)
            rows = [row for row in rows if normalize_keys(row.keys) not in expired]
            # The operator no longer updates the output of expired partitions.
            results = Counter(
                {row: n for row, n in results.items() if partition_of(query, row) not in expired}
            )
            changes = rows_of(query, tasks)
            rows, _ = apply_changelog(query, rows, changes)
            model.add(
                [(normalize_keys(row.keys), content_of(query, row), row.weight) for row in changes],
                now_us,
            )
            epoch = run.epoch(tasks, now_us=now_us)
            if query.mode == "end":
                assert epoch.rows == []
            else:
                apply_changes(results, epoch)
                assert +results == in_batch(query, rows)
            if query.retracts:
                assert (
                    sum(report["unknown_retractions"] for report in epoch.reports) == model.unknown
                )
            if restarts:
                run.restart()
        if query.mode == "end":
            last = run.epoch((), [WatermarkUpdate(0, 0, END_OF_INPUT_US)], times[-1])
            assert Counter(map(row_identity, last.rows)) == in_batch(query, rows)


def partition_of(query: Query, row: tuple[Any, ...]) -> Key:
    """Return the partition of an output row, without the sign of its zeros."""
    return tuple(cell[0] if isinstance(cell, tuple) else cell for cell in row[: len(query.keys)])
