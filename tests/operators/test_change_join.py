"""Joins whose result changes: after every epoch it is what a batch join of all rows gives."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from tests.operators.harness import L, S, hash_of, rows_of
from tests.operators.joined import joined
from tidegate.columns import HASH, PANE, WEIGHT
from tidegate.operators.join.regular import RegularJoin
from tidegate.operators.kernels.matching import JoinCondition
from tidegate.operators.runner import Runner
from tidegate.operators.watermark import END_US, Origin, WatermarkUpdate
from tidegate.state.memory import MemoryStore

EXAMPLES = int(os.environ.get("TIDEGATE_EXAMPLES", "200"))
SEED = int(os.environ.get("TIDEGATE_SEED", "20261115"))
HOWS = ("INNER", "LEFT", "RIGHT", "FULL", "SEMI", "ANTI")
# A key, a time, and a value.
Item = tuple[str | None, int, int]
ITEMS = st.tuples(st.sampled_from(["a", "b", None]), st.integers(0, 6), st.integers(0, 2))


def make(how: str, safe: bool = False, **more: Any) -> RegularJoin:
    lower, upper = more.pop("bounds", (0, 0))
    columns = ((S, L, L), (S, L, L))
    return RegularJoin(JoinCondition((S,), (safe,), lower, upper), columns, how, **more)


class Harness:
    """A join with its state, and what it has given out so far."""

    def __init__(self, join: RegularJoin, key_groups: int = 2) -> None:
        self.join, self.key_groups = join, key_groups
        self.store = MemoryStore()
        self.standing: Counter[tuple[Any, ...]] = Counter()
        self.reports: list[dict[str, Any]] = []

    def restart(self) -> None:
        self.store = MemoryStore.restore(self.store.snapshot())

    def table(self, rows: Sequence[tuple[Item, int]]) -> pa.Table:
        keys = [item[0] for item, _ in rows]
        times = [item[1] for item, _ in rows]
        columns = {
            PANE: pa.array(times if self.join.close_delay_us is not None else [0] * len(rows), L),
            HASH: pa.array([hash_of((key,)) for key in keys], L),
            "k0": pa.array(keys, S),
            "c0": pa.array(keys, S),
            "c1": pa.array(times, L),
            "c2": pa.array([item[2] for item, _ in rows], L),
            WEIGHT: pa.array([weight for _, weight in rows], L),
        }
        return pa.table(columns)

    def epoch(
        self,
        sides: Sequence[Sequence[tuple[Item, int]]],
        mark: int | None = None,
        now_us: int | None = None,
    ) -> list[tuple[Any, ...]]:
        """What came out, and what now stands of it."""
        runner = Runner(9, self.join, ((Origin(0),), (Origin(1),)))
        updates = [WatermarkUpdate(port, 0, mark) for port in (0, 1)] if mark is not None else []
        lifted = [self.join.pre_aggregate(p, self.table(rows)) for p, rows in enumerate(sides)]
        given_out: list[tuple[Any, ...]] = []
        self.reports = []
        for key_group in range(self.key_groups):
            inputs = []
            for (table,) in lifted:
                owner = np.mod(table.column(HASH).to_numpy(), self.key_groups)
                cut = table.filter(pa.array(owner == key_group))
                inputs.append([(cut,)] if cut.num_rows else [])
            result = runner.run(self.store.backend(1, key_group), inputs, updates, now_us)
            self.reports.append(result.report)
            for table in result.output.main:
                assert table.schema.equals(self.join.output)
                given_out += rows_of(table)
        self._apply(given_out)
        return given_out

    def _apply(self, changes: list[tuple[Any, ...]]) -> None:
        for row in changes:
            if not self.join.with_op:
                self.standing[row] += 1
            elif row[-1] == "+I":
                self.standing[row[:-1]] += 1
            else:
                assert self.standing[row[:-1]] > 0, "only what stands is retracted"
                self.standing[row[:-1]] -= 1

    @property
    def stands(self) -> Counter[tuple[Any, ...]]:
        return +self.standing


def test_a_row_without_a_match_is_retracted_when_it_gets_one() -> None:
    run = Harness(make("LEFT"))
    one: Item = ("a", 0, 1)
    assert run.epoch([[(one, 1)], []]) == [("a", 0, 1, None, None, None, "+I")]
    changed = run.epoch([[], [(("a", 5, 2), 1)]])
    assert changed == [
        ("a", 0, 1, None, None, None, "-D"),
        ("a", 0, 1, "a", 5, 2, "+I"),
    ]


def test_what_comes_and_goes_in_one_epoch_says_nothing() -> None:
    run = Harness(make("FULL", retracts=True))
    one: Item = ("a", 0, 1)
    assert run.epoch([[(one, 1), (one, -1)], []]) == []


def test_a_key_is_forgotten_on_both_sides_after_its_time_to_live() -> None:
    run = Harness(make("LEFT", ttl_us=10))
    run.epoch([[(("a", 0, 1), 1)], [(("b", 0, 1), 1)]], now_us=100)
    run.epoch([[], [(("a", 0, 2), 1)]], now_us=105)
    assert len(run.epoch([[(("a", 0, 3), 1)], []], now_us=114)) == 1
    assert run.epoch([[(("b", 0, 3), 1)], []], now_us=114)[0][3:] == (None, None, None, "+I")
    run.epoch([[], []], now_us=200)
    assert sum(report["rows"] for report in run.reports) == 0


def test_a_row_that_can_match_no_more_can_still_be_retracted() -> None:
    run = Harness(make("LEFT", retracts=True, bounds=(1, 3), close_delay_us=1))
    one: Item = ("a", 5, 1)
    assert len(run.epoch([[(one, 1)], []], 5)) == 1
    assert run.epoch([[(one, -1)], []], 5) == [("a", 5, 1, None, None, None, "-D")]
    run.epoch([[], []], 6)
    assert sum(report["rows"] for report in run.reports) == 0


@pytest.mark.parametrize("how", ["LEFT", "FULL", "SEMI", "ANTI"])
def test_a_row_whose_match_is_past_has_still_had_one(how: str) -> None:
    run = Harness(make(how, retracts=True, bounds=(-2, 1), close_delay_us=1))
    run.epoch([[(("b", 1, 0), 1)], [(("b", 0, 0), 1)]], 2)
    later = run.epoch([[], [(("b", 3, 0), 1)]], 5)
    assert later == ([("b", 1, 0, "b", 3, 0, "+I")] if how in ("LEFT", "FULL") else [])
    run.epoch([[], []], 9)
    assert sum(report["rows"] for report in run.reports) == 0


def test_bounded_inputs_give_their_join_at_the_end() -> None:
    run = Harness(make("FULL", at_end=True, with_op=False))
    assert run.epoch([[(("a", 0, 1), 1)], []]) == []
    assert run.epoch([[], [(("a", 0, 2), 1), (("b", 0, 3), 1)]]) == []
    run.restart()
    run.epoch([[], []], END_US)
    expected = [("a", 0, 1, "a", 0, 2), (None, None, None, "b", 0, 3)]
    assert run.stands == Counter(expected)
    assert run.epoch([[], []], END_US) == []


@st.composite
def changes(draw: st.DrawFn, retracts: bool) -> list[list[list[tuple[Item, int]]]]:
    """Epochs of changes on both sides; only what is there is retracted."""
    there: list[list[Item]] = [[], []]
    epochs = []
    for _ in range(draw(st.integers(1, 8))):
        epoch: list[list[tuple[Item, int]]] = [[], []]
        for _ in range(draw(st.integers(0, 8))):
            side = draw(st.integers(0, 1))
            if retracts and there[side] and draw(st.booleans()):
                place = draw(st.integers(0, len(there[side]) - 1))
                epoch[side].append((there[side].pop(place), -1))
            else:
                item = draw(ITEMS)
                there[side].append(item)
                epoch[side].append((item, 1))
        epochs.append(epoch)
    return epochs


def test_a_semi_join_of_rows_that_stay_gives_each_of_them_once() -> None:
    run = Harness(make("SEMI", retracts=False, with_op=False))
    run.epoch([[(("a", 1, 1), 1), (("b", 1, 2), 1)], [(("a", 1, 1), 1)]], -100)
    run.epoch([[(("a", 1, 3), 1)], [(("a", 1, 1), 1), (("b", 1, 1), 1)]], -100)
    assert run.stands == Counter([("a", 1, 1), ("a", 1, 3), ("b", 1, 2)])


@seed(SEED)
@settings(deadline=None, max_examples=EXAMPLES, database=None)
@given(st.data(), st.sampled_from(HOWS), st.booleans(), st.booleans(), st.booleans())
def test_after_every_epoch_it_is_the_join_of_all_rows(
    data: st.DataObject, how: str, retracts: bool, timed: bool, safe: bool
) -> None:
    epochs = data.draw(changes(retracts))
    more: dict[str, Any] = {}
    bounds = None
    if timed:
        bounds = (data.draw(st.integers(-4, 4)), data.draw(st.integers(-4, 4)))
        more = {"bounds": bounds, "close_delay_us": 1}
    appends = how in ("INNER", "SEMI") and not retracts
    with_op = not appends or data.draw(st.booleans())
    run = Harness(make(how, safe, retracts=retracts, with_op=with_op, **more))
    rows: list[Counter[Item]] = [Counter(), Counter()]
    for epoch in epochs:
        for side, items in enumerate(epoch):
            for item, weight in items:
                rows[side][item] += weight
        if data.draw(st.booleans()):
            run.restart()
        run.epoch(epoch, -100)
        assert run.stands == joined([side.elements() for side in rows], how, bounds, safe)
    if timed:
        run.epoch([[], []], END_US)
        assert sum(report["rows"] for report in run.reports) == 0


@seed(SEED)
@settings(deadline=None, max_examples=max(EXAMPLES // 4, 10), database=None)
@given(st.data(), st.sampled_from(HOWS), st.sampled_from([(-2, 1), (1, 3), (-4, -2)]))
def test_what_the_watermark_forgets_changes_nothing(
    data: st.DataObject, how: str, bounds: tuple[int, int]
) -> None:
    """Rows that move with time: forgetting by the watermark gives the same as keeping all."""
    run = Harness(make(how, retracts=True, bounds=bounds, close_delay_us=1))
    rows: list[Counter[Item]] = [Counter(), Counter()]
    fresh: list[list[Item]] = [[], []]
    for at in range(0, 30, 3):
        epoch: list[list[tuple[Item, int]]] = [[], []]
        for side in (0, 1):
            for key, shift, value in data.draw(st.lists(ITEMS, max_size=4)):
                item = (key, at + shift, value)
                fresh[side].append(item)
                epoch[side].append((item, 1))
            fresh[side] = [item for item in fresh[side] if item[1] >= at]
            if fresh[side] and data.draw(st.booleans()):
                epoch[side].append((fresh[side].pop(), -1))
            for item, weight in epoch[side]:
                rows[side][item] += weight
        run.epoch(epoch, at + 2)
        assert sum(report["late_rows"] for report in run.reports) == 0
        assert run.stands == joined([side.elements() for side in rows], how, bounds, False)
