"""Temporal and ASOF joins by event time: equal to a model and to DuckDB for any split into epochs."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from tests.operators.asof_model import AsofModel, LeftRow, Pair, RightRow
from tests.operators.harness import D, L, S, hash_of, rows_of, state_limits
from tests.operators.join_harness import JoinHarness, batch_query, split_at
from tidegate.columns import ARRIVAL_FILE, ARRIVAL_ROW, HASH, STORE_TIME, WEIGHT
from tidegate.operators.join.asof import (
    BACKWARD,
    FORWARD,
    IS_VERSION,
    NEAREST,
    AsofBounds,
    AsofJoin,
)
from tidegate.operators.kernels.join_condition import JoinCondition
from tidegate.operators.kernels.keys import hash_rows
from tidegate.operators.late_rows import LateRowFormat
from tidegate.operators.runner import OperatorRunner
from tidegate.operators.watermark import END_OF_INPUT_US, Origin, WatermarkUpdate
from tidegate.state.memory import MemoryStore

EXAMPLES = int(os.environ.get("TIDEGATE_EXAMPLES", "200"))
SEED = int(os.environ.get("TIDEGATE_SEED", "20261115"))
AS_OF = AsofBounds(BACKWARD, 0, None)


def make_join(bounds: AsofBounds, how: str = "LEFT", **options: Any) -> AsofJoin:
    options = {"versions": True, **options}
    condition = JoinCondition((S,), (False,))
    return AsofJoin(condition, bounds, ((S, L, L), (S, L, L)), how, **options)


class Harness(JoinHarness):
    """Rows have a number, which is also the order of their arrival."""

    join: AsofJoin

    def epoch(
        self,
        left: Sequence[LeftRow],
        right: Sequence[RightRow],
        watermarks: Sequence[int | None] = (None, None),
    ) -> list[tuple[Any, ...]]:
        return self.step([join_table(left), join_table(right)], watermarks)


def join_table(rows: Sequence[LeftRow | RightRow], weight: int = 1) -> pa.Table:
    keys, times = [row.key for row in rows], [row.at for row in rows]
    numbers = pa.array([row.number for row in rows], L)
    return pa.table(
        {
            STORE_TIME: pa.array(times, L),
            HASH: pa.array([hash_of((key,)) for key in keys], L),
            "k0": pa.array(keys, S),
            "c0": pa.array(keys, S),
            "c1": pa.array(times, L),
            "c2": numbers,
            IS_VERSION: pa.array([getattr(row, "alive", True) for row in rows], pa.bool_()),
            WEIGHT: pa.array([weight] * len(rows), L),
            ARRIVAL_FILE: pa.array([""] * len(rows), S),
            ARRIVAL_ROW: numbers,
        }
    )


def test_emits_a_row_with_the_version_of_its_time_when_the_watermark_has_passed_it() -> None:
    run = Harness(make_join(AS_OF))
    right = [RightRow("a", 1, 1), RightRow("a", 5, 2), RightRow("a", 5, 3), RightRow("a", 9, 4)]
    assert run.epoch([LeftRow("a", 5, 1), LeftRow("b", 5, 2)], right, (5, 5)) == []
    run.restart()
    assert Counter(run.epoch([], [], (6, 6))) == Counter(
        [("a", 5, 1, "a", 5, 3), ("b", 5, 2, None, None, None)]
    )
    assert run.epoch([LeftRow("a", 7, 3), LeftRow("a", 9, 4)], [], (20, 20)) == [
        ("a", 7, 3, "a", 5, 3),
        ("a", 9, 4, "a", 9, 4),
    ]
    assert run.total("rows") == 1, "only the latest version is kept"


def test_tombstone_ends_the_previous_version() -> None:
    right = [RightRow("a", 1, 1), RightRow("a", 5, 2, alive=False), RightRow("a", 8, 3)]
    left = [LeftRow("a", at, at) for at in (4, 5, 7, 8)]
    rows = Harness(make_join(AS_OF)).epoch(left, right, (9, 9))
    assert [row[-1] for row in sorted(rows)] == [1, None, None, 3]
    inner = Harness(make_join(AS_OF, "INNER")).epoch(left, right, (9, 9))
    assert [row[1] for row in sorted(inner)] == [4, 8]


def test_tombstone_is_kept_for_versions_that_arrive_later() -> None:
    run = Harness(make_join(AS_OF))
    run.epoch([], [RightRow("a", 1, 1), RightRow("a", 5, 2, alive=False)], (10, 10))
    assert run.epoch([], [RightRow("a", 3, 3)], (10, 10)) == []
    assert run.late == 1
    assert run.epoch([LeftRow("a", 12, 1)], [], (20, 20)) == [("a", 12, 1, None, None, None)]


def test_late_version_is_used_if_rows_can_still_match_it() -> None:
    run = Harness(make_join(AS_OF))
    run.epoch([LeftRow("a", 9, 1)], [RightRow("a", 3, 1)], (10, 10))
    assert run.epoch([LeftRow("a", 11, 2)], [RightRow("a", 7, 2)], (20, 20)) == [
        ("a", 11, 2, "a", 7, 2)
    ]
    assert run.late == 0
    run.epoch([], [RightRow("a", 6, 3)], (20, 20))
    assert run.late == 1, "the version at 7 is after it"


def test_emits_late_rows_of_both_sides() -> None:
    late_rows = tuple(
        LateRowFormat(f"join ({side})", pa.schema([]), (S, L, L)) for side in ("left", "right")
    )
    run = Harness(make_join(AS_OF, late_rows=late_rows))
    run.epoch([], [RightRow("a", 8, 1)], (10, 10))
    run.epoch([LeftRow("a", 9, 1)], [RightRow("a", 7, 2)], (10, 10))
    late = [tuple(row[name] for name in ("l1", "l2", "late_operator")) for row in run.late_rows]
    assert sorted(late) == [(7, 2, "join (right)"), (9, 1, "join (left)")]


def test_forward_lookup_waits_for_a_final_match_or_the_end_of_its_bounds() -> None:
    run = Harness(make_join(AsofBounds(FORWARD, -5, 0), versions=False))
    left = [LeftRow("a", 3, 1), LeftRow("b", 3, 2), LeftRow(None, 3, 3)]
    assert run.epoch(left, [RightRow("a", 6, 1)], (6, 6)) == [(None, 3, 3, None, None, None)]
    run.restart()
    late = [RightRow("a", 4, 2), RightRow("a", 5, 3)]
    assert run.epoch([], late, (8, 8)) == [("a", 3, 1, "a", 4, 2)]
    assert run.late == 1, "the late row that has become a match is not counted"
    assert run.epoch([], [], (9, 9)) == [("b", 3, 2, None, None, None)]
    assert run.total("rows") == 0


def test_nearest_row_may_be_before_or_after() -> None:
    run = Harness(make_join(AsofBounds(NEAREST, None, None), versions=False))
    right = [RightRow("a", 0, 1), RightRow("a", 10, 2)]
    left = [LeftRow("a", 4, 1), LeftRow("a", 5, 2), LeftRow("a", 6, 3), LeftRow("a", 10, 4)]
    rows = run.epoch(left, right, (11, 11))
    assert [row[-1] for row in sorted(rows)] == [1, 1, 2, 2]


def test_drops_right_rows_that_are_out_of_bounds() -> None:
    run = Harness(make_join(AsofBounds(BACKWARD, 0, 5), versions=False))
    for at in range(0, 100, 2):
        run.epoch([], [RightRow(f"k{at}", at, at)], (at, at))
    assert run.total("rows") <= 6


def test_left_row_that_is_retracted_while_pending_is_not_emitted() -> None:
    run = Harness(make_join(AS_OF, retracts=True, with_op=True))
    stays, retracted = LeftRow("a", 5, 1), LeftRow("a", 5, 2)
    left = join_table([stays, stays, retracted])
    run.step([left, join_table([RightRow("a", 1, 1)])], (5, 5))
    rows = run.step([join_table([retracted], weight=-1), join_table([])], (6, 6))
    assert rows == [("a", 5, 1, "a", 1, 1, "+I")] * 2


def test_matches_keys_that_are_equal_in_sql() -> None:
    """0.0 equals −0.0, and NaN equals NaN."""
    join = AsofJoin(JoinCondition((D,), (False,)), AS_OF, ((D,), (D,)), "LEFT")
    nan = float("nan")

    def table(keys: list[float | None], at: int) -> pa.Table:
        count = len(keys)
        columns = {
            STORE_TIME: pa.array([at] * count, L),
            HASH: pa.array([0] * count, L),
            "k0": pa.array(keys, D),
            "c0": pa.array(keys, D),
            ARRIVAL_FILE: pa.array([""] * count, S),
            ARRIVAL_ROW: pa.array(range(count), L),
        }
        rows = pa.table(columns)
        hashes = hash_rows([join.pre_aggregate(0, rows)[0].column("k0")], count)
        return rows.set_column(1, HASH, pa.array(hashes))

    inputs = [
        [join.pre_aggregate(0, table([0.0, nan, None], 5))],
        [join.pre_aggregate(1, table([-0.0, nan, None], 1))],
    ]
    runner = OperatorRunner(9, join, ((Origin(0),), (Origin(1),)))
    updates = [WatermarkUpdate(port, 0, 9) for port in (0, 1)]
    result = runner.run_epoch(MemoryStore().backend(1, 0), inputs, updates, None)
    assert [str(row) for row in rows_of(result.output.rows[0])] == [
        "(0.0, -0.0)",
        "(nan, nan)",
        "(None, None)",
    ]


WIDTHS = st.one_of(st.none(), st.integers(0, 9))


@st.composite
def asof_bounds(draw: st.DrawFn) -> AsofBounds:
    direction = draw(st.sampled_from([BACKWARD, BACKWARD, FORWARD, NEAREST]))
    width = draw(WIDTHS)
    if direction == BACKWARD:
        lower = draw(st.sampled_from([0, 0, 1, 3, -2]))
        first = draw(st.integers(0, 5)) == 0
        upper = None if width is None or first else lower + width
        return AsofBounds(direction, lower, upper, only_first_version=first)
    if direction == FORWARD:
        upper = draw(st.sampled_from([0, 0, -1, -3, 2]))
        return AsofBounds(direction, None if width is None else upper - width, upper)
    return AsofBounds(direction, None if width is None else -width, draw(WIDTHS))


# A side, a key, a time, and whether a right row is a version.
ROWS = st.tuples(
    st.sampled_from([0, 1]),
    st.sampled_from(["a", "b", "é", None]),
    st.integers(-9, 9),
    st.integers(0, 4).map(bool),
)


@st.composite
def scenarios(draw: st.DrawFn) -> dict[str, Any]:
    """Draw rows that advance in time, a split into epochs, and watermarks that may lag."""
    rows = draw(st.lists(ROWS, max_size=50))
    drift = draw(st.integers(0, 3))
    return {
        "rows": [
            (side, key, at + index * drift, alive)
            for index, (side, key, at, alive) in enumerate(rows)
        ],
        "cuts": draw(st.lists(st.integers(0, 50), max_size=20)),
        "delays": draw(st.tuples(st.integers(0, 12), st.integers(0, 12))),
        "bounds": draw(asof_bounds()),
        "how": draw(st.sampled_from(["INNER", "LEFT"])),
        "restart_every": draw(st.integers(0, 4)),
        "small": draw(st.booleans()),
    }


@seed(SEED)
@settings(deadline=None, max_examples=EXAMPLES, database=None)
@given(scenarios())
def test_emits_what_the_model_emits_in_every_epoch(case: dict[str, Any]) -> None:
    with state_limits(case["small"]):
        check_equals_model(case)


def check_equals_model(case: dict[str, Any]) -> None:
    bounds, versions = case["bounds"], case["bounds"].direction == BACKWARD
    has_lower = bounds.lower is not None
    run = Harness(
        make_join(bounds, case["how"], versions=versions),
        max(0, -bounds.lower) if has_lower else 0,
    )
    model = AsofModel(bounds, case["how"])
    watermarks: list[int | None] = [None, None]
    watermark: int | None = None
    number = 0
    for count, epoch in enumerate([*split_at(case["rows"], case["cuts"]), None]):
        left: list[LeftRow] = []
        right: list[RightRow] = []
        for side, key, at, alive in epoch or []:
            number += 1
            if side == 0:
                left.append(LeftRow(key, at, number))
            else:
                right.append(RightRow(key, at, number, alive or not versions))
        for side, rows in enumerate((left, right)):
            times = [row.at - case["delays"][side] for row in rows]
            times += [at for at in [watermarks[side]] if at is not None]
            watermarks[side] = max(times, default=None)
        watermarks = watermarks if epoch is not None else [END_OF_INPUT_US, END_OF_INPUT_US]
        previous = watermark
        if None not in watermarks:
            lowest = min(item for item in watermarks if item is not None)
            watermark = lowest if watermark is None else max(lowest, watermark)
        if case["restart_every"] and count % case["restart_every"] == 0:
            run.restart()
        promised = run.update.watermark_us if run.update is not None else None
        emitted = run.epoch(left, right, watermarks)
        expected = model.epoch(left, right, previous, watermark)
        assert Counter(emitted) == Counter(as_row(pair) for pair in expected)
        assert run.late == model.late
        if promised is not None and has_lower:
            # A downstream operator must not take any result as late.
            assert all(row[1] >= promised for row in emitted)
    assert run.epoch([], [], (END_OF_INPUT_US, END_OF_INPUT_US)) == []


def as_row(pair: Pair) -> tuple[Any, ...]:
    left, right = pair
    return (*left, *(right[:3] if right is not None else (None, None, None)))


SIGNS = {">=": (BACKWARD, 0), ">": (BACKWARD, 1), "<=": (FORWARD, 0), "<": (FORWARD, -1)}


@seed(SEED)
@settings(deadline=None, max_examples=EXAMPLES, database=None)
@given(
    st.lists(ROWS, max_size=50),
    st.lists(st.integers(0, 50), max_size=20),
    st.sampled_from(sorted(SIGNS)),
    st.sampled_from(["INNER", "LEFT"]),
    st.integers(0, 3),
)
def test_equals_the_asof_join_of_duckdb(
    rows: list[tuple[int, str | None, int, bool]],
    cuts: list[int],
    sign: str,
    how: str,
    restart_every: int,
) -> None:
    """No row is late here. DuckDB does not define which of equal times matches."""
    direction, bound = SIGNS[sign]
    is_backward = direction == BACKWARD
    bounds = AsofBounds(direction, bound if is_backward else None, None if is_backward else bound)
    run = Harness(make_join(bounds, how, versions=False))
    emitted: list[tuple[Any, ...]] = []
    sides: tuple[list[LeftRow], list[RightRow]] = ([], [])
    for count, epoch in enumerate(split_at(list(enumerate(rows)), cuts)):
        left = [LeftRow(key, at, n) for n, (side, key, at, _) in epoch if side == 0]
        right = [RightRow(key, at, n) for n, (side, key, at, _) in epoch if side == 1]
        sides[0].extend(left)
        sides[1].extend(right)
        emitted += run.epoch(left, right, (-9, -9))
        if restart_every and count % restart_every == 0:
            run.restart()
    emitted += run.epoch([], [], (END_OF_INPUT_US, END_OF_INPUT_US))
    sql = f"SELECT l.v, r.t FROM l ASOF {how} JOIN r ON l.k = r.k AND l.t {sign} r.t"
    assert run.late == 0
    assert Counter((row[2], row[4]) for row in emitted) == batch_query(sides, sql)


@pytest.mark.parametrize("direction", [BACKWARD, FORWARD, NEAREST])
def test_replayed_epoch_emits_the_same_rows(direction: str) -> None:
    bounds = AsofBounds(
        direction, 0 if direction == BACKWARD else None, 0 if direction == FORWARD else None
    )
    run = Harness(make_join(bounds, versions=False))
    run.epoch([LeftRow("a", 3, 1)], [RightRow("a", 2, 1), RightRow("a", 6, 2)], (1, 1))
    snapshot = run.store.snapshot()
    first = run.epoch([LeftRow("a", 4, 2)], [RightRow("a", 5, 3)], (8, 8))
    run.store = MemoryStore.restore(snapshot)
    replayed = run.epoch([LeftRow("a", 4, 2)], [RightRow("a", 5, 3)], (8, 8))
    assert replayed == first != []
