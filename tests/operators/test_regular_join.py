"""Regular joins: after every epoch the materialized changelog equals a batch join of all rows."""

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

from tests.operators.harness import L, S, hash_of
from tests.operators.join_harness import HOWS, JoinHarness, JoinRow, batch_join
from tidegate.columns import HASH, STORE_TIME, WEIGHT
from tidegate.operators.join.regular import RegularJoin
from tidegate.operators.kernels.join_condition import JoinCondition
from tidegate.operators.watermark import END_OF_INPUT_US

EXAMPLES = int(os.environ.get("TIDEGATE_EXAMPLES", "200"))
SEED = int(os.environ.get("TIDEGATE_SEED", "20261115"))
ROWS = st.tuples(st.sampled_from(["a", "b", None]), st.integers(0, 6), st.integers(0, 2))
# A row and its weight.
Change = tuple[JoinRow, int]


def make_join(how: str, null_safe: bool = False, **options: Any) -> RegularJoin:
    lower, upper = options.pop("bounds", (0, 0))
    condition = JoinCondition((S,), (null_safe,), lower, upper)
    return RegularJoin(condition, ((S, L, L), (S, L, L)), how, **options)


class Harness(JoinHarness):
    """A join with its materialized output."""

    join: RegularJoin

    def __init__(self, join: RegularJoin, key_groups: int = 2) -> None:
        super().__init__(join, key_groups=key_groups)
        self.result: Counter[tuple[Any, ...]] = Counter()

    def table(self, changes: Sequence[Change]) -> pa.Table:
        keys, times, values = ([row[index] for row, _ in changes] for index in range(3))
        has_time = self.join.close_delay_us is not None
        return pa.table(
            {
                STORE_TIME: pa.array(times if has_time else np.zeros(len(changes), np.int64), L),
                HASH: pa.array([hash_of((key,)) for key in keys], L),
                "k0": pa.array(keys, S),
                "c0": pa.array(keys, S),
                "c1": pa.array(times, L),
                "c2": pa.array(values, L),
                WEIGHT: pa.array([weight for _, weight in changes], L),
            }
        )

    def epoch(
        self,
        sides: Sequence[Sequence[Change]],
        watermark_us: int | None = None,
        now_us: int | None = None,
    ) -> list[tuple[Any, ...]]:
        tables = [self.table(changes) for changes in sides]
        emitted = self.step(tables, (watermark_us, watermark_us), now_us)
        for row in emitted:
            if not self.join.with_op:
                self.result[row] += 1
            elif row[-1] == "+I":
                self.result[row[:-1]] += 1
            else:
                assert self.result[row[:-1]] > 0, "only emitted rows are retracted"
                self.result[row[:-1]] -= 1
        self.result = +self.result
        return emitted


def test_retracts_an_unmatched_row_when_it_gets_a_match() -> None:
    run = Harness(make_join("LEFT"))
    row: JoinRow = ("a", 0, 1)
    assert run.epoch([[(row, 1)], []]) == [("a", 0, 1, None, None, None, "+I")]
    assert run.epoch([[], [(("a", 5, 2), 1)]]) == [
        ("a", 0, 1, None, None, None, "-D"),
        ("a", 0, 1, "a", 5, 2, "+I"),
    ]


def test_row_that_is_added_and_retracted_in_one_epoch_emits_nothing() -> None:
    run = Harness(make_join("FULL", retracts=True))
    row: JoinRow = ("a", 0, 1)
    assert run.epoch([[(row, 1), (row, -1)], []]) == []


def test_time_to_live_drops_a_key_on_both_sides() -> None:
    run = Harness(make_join("LEFT", ttl_us=10))
    run.epoch([[(("a", 0, 1), 1)], [(("b", 0, 1), 1)]], now_us=100)
    run.epoch([[], [(("a", 0, 2), 1)]], now_us=105)
    assert len(run.epoch([[(("a", 0, 3), 1)], []], now_us=114)) == 1
    assert run.epoch([[(("b", 0, 3), 1)], []], now_us=114)[0][3:] == (None, None, None, "+I")
    run.epoch([[], []], now_us=200)
    assert run.total("rows") == 0


def test_row_that_cannot_match_anymore_can_be_retracted() -> None:
    run = Harness(make_join("LEFT", retracts=True, bounds=(1, 3), close_delay_us=1))
    row: JoinRow = ("a", 5, 1)
    assert len(run.epoch([[(row, 1)], []], 5)) == 1
    assert run.epoch([[(row, -1)], []], 5) == [("a", 5, 1, None, None, None, "-D")]
    run.epoch([[], []], 6)
    assert run.total("rows") == 0


@pytest.mark.parametrize("how", ["LEFT", "FULL", "SEMI", "ANTI"])
def test_remembers_the_match_of_a_row_that_can_match_again(how: str) -> None:
    run = Harness(make_join(how, retracts=True, bounds=(-2, 1), close_delay_us=1))
    run.epoch([[(("b", 1, 0), 1)], [(("b", 0, 0), 1)]], 2)
    second = run.epoch([[], [(("b", 3, 0), 1)]], 5)
    assert second == ([("b", 1, 0, "b", 3, 0, "+I")] if how in ("LEFT", "FULL") else [])
    run.epoch([[], []], 9)
    assert run.total("rows") == 0


def test_bounded_inputs_emit_their_join_once_at_the_end() -> None:
    run = Harness(make_join("FULL", at_end=True, with_op=False))
    assert run.epoch([[(("a", 0, 1), 1)], []]) == []
    assert run.epoch([[], [(("a", 0, 2), 1), (("b", 0, 3), 1)]]) == []
    run.restart()
    run.epoch([[], []], END_OF_INPUT_US)
    assert run.result == Counter([("a", 0, 1, "a", 0, 2), (None, None, None, "b", 0, 3)])
    assert run.epoch([[], []], END_OF_INPUT_US) == []


def test_append_only_semi_join_emits_each_row_once() -> None:
    run = Harness(make_join("SEMI", retracts=False, with_op=False))
    run.epoch([[(("a", 1, 1), 1), (("b", 1, 2), 1)], [(("a", 1, 1), 1)]], -100)
    run.epoch([[(("a", 1, 3), 1)], [(("a", 1, 1), 1), (("b", 1, 1), 1)]], -100)
    assert run.result == Counter([("a", 1, 1), ("a", 1, 3), ("b", 1, 2)])


@st.composite
def changelogs(draw: st.DrawFn, retracts: bool) -> list[list[list[Change]]]:
    """Draw epochs of changes on both sides; only existing rows are retracted."""
    existing: list[list[JoinRow]] = [[], []]
    epochs = []
    for _ in range(draw(st.integers(1, 8))):
        epoch: list[list[Change]] = [[], []]
        for _ in range(draw(st.integers(0, 8))):
            side = draw(st.integers(0, 1))
            if retracts and existing[side] and draw(st.booleans()):
                index = draw(st.integers(0, len(existing[side]) - 1))
                epoch[side].append((existing[side].pop(index), -1))
            else:
                row = draw(ROWS)
                existing[side].append(row)
                epoch[side].append((row, 1))
        epochs.append(epoch)
    return epochs


@seed(SEED)
@settings(deadline=None, max_examples=EXAMPLES, database=None)
@given(st.data(), st.sampled_from(HOWS), st.booleans(), st.booleans(), st.booleans())
def test_equals_a_batch_join_after_every_epoch(
    data: st.DataObject, how: str, retracts: bool, has_time: bool, null_safe: bool
) -> None:
    epochs = data.draw(changelogs(retracts))
    options: dict[str, Any] = {}
    bounds = None
    if has_time:
        bounds = (data.draw(st.integers(-4, 4)), data.draw(st.integers(-4, 4)))
        options = {"bounds": bounds, "close_delay_us": 1}
    append_only = how in ("INNER", "SEMI") and not retracts
    with_op = not append_only or data.draw(st.booleans())
    run = Harness(make_join(how, null_safe, retracts=retracts, with_op=with_op, **options))
    rows: list[Counter[JoinRow]] = [Counter(), Counter()]
    for epoch in epochs:
        for side, changes in enumerate(epoch):
            for row, weight in changes:
                rows[side][row] += weight
        if data.draw(st.booleans()):
            run.restart()
        run.epoch(epoch, -100)
        assert run.result == batch_join([side.elements() for side in rows], how, bounds, null_safe)
    if has_time:
        run.epoch([[], []], END_OF_INPUT_US)
        assert run.total("rows") == 0


@seed(SEED)
@settings(deadline=None, max_examples=max(EXAMPLES // 4, 10), database=None)
@given(st.data(), st.sampled_from(HOWS), st.sampled_from([(-2, 1), (1, 3), (-4, -2)]))
def test_rows_dropped_by_the_watermark_do_not_change_the_result(
    data: st.DataObject, how: str, bounds: tuple[int, int]
) -> None:
    run = Harness(make_join(how, retracts=True, bounds=bounds, close_delay_us=1))
    rows: list[Counter[JoinRow]] = [Counter(), Counter()]
    retractable: list[list[JoinRow]] = [[], []]
    for at in range(0, 30, 3):
        epoch: list[list[Change]] = [[], []]
        for side in (0, 1):
            for key, shift, value in data.draw(st.lists(ROWS, max_size=4)):
                row = (key, at + shift, value)
                retractable[side].append(row)
                epoch[side].append((row, 1))
            retractable[side] = [row for row in retractable[side] if row[1] >= at]
            if retractable[side] and data.draw(st.booleans()):
                epoch[side].append((retractable[side].pop(), -1))
            for row, weight in epoch[side]:
                rows[side][row] += weight
        run.epoch(epoch, at + 2)
        assert run.late == 0
        assert run.result == batch_join([side.elements() for side in rows], how, bounds, False)
