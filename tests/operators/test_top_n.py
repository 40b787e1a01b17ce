"""Top-N, by example."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.operators.harness import B, D, Harness, L, Row, S, hash_of, state_limits
from tidegate.columns import ARRIVAL_FILE, ARRIVAL_ROW, HASH, OP, STORE_TIME
from tidegate.errors import RunError
from tidegate.operators.kernels.ordering import Ordering, sort_codes
from tidegate.operators.late_rows import LateRowFormat
from tidegate.operators.operator import NO_LIMITS, Limits, Operator
from tidegate.operators.top_n.updating import UpdatingTopN
from tidegate.operators.top_n.window import Ranking, WindowTopN
from tidegate.operators.watermark import WatermarkUpdate

FUNCTIONS = ("ROW_NUMBER", "RANK", "DENSE_RANK")
DEC, BIN, DATE = pa.decimal128(10, 2), pa.binary(), pa.date32()
NAN = float("nan")
LISTS = pa.list_(D)


@dataclass(frozen=True)
class Query:
    """The columns of a row are its keys, then its values; `order` refers to values by index.

    The id of a row is its input position in the epoch, unless `with_positions` is off; its time is
    its pane.
    """

    keys: tuple[pa.DataType, ...] = (S,)
    values: tuple[pa.DataType, ...] = (L, S)
    order: tuple[tuple[int, bool, bool], ...] = ((0, False, True),)
    limit: int = 1
    function: str = "ROW_NUMBER"
    with_rank: bool = False
    mode: str = "changes"
    retracts: bool = False
    ttl_us: int | None = None
    keeps_late: bool = False
    with_positions: bool = True
    limits: Limits = NO_LIMITS
    # The values in the result.
    selected: tuple[int, ...] | None = None
    latest: bool = False

    @property
    def _selected(self) -> tuple[int, ...]:
        return tuple(range(len(self.values))) if self.selected is None else self.selected

    @property
    def ranking(self) -> Ranking:
        return Ranking(
            self.keys,
            tuple(Ordering(self.values[i], desc, first) for i, desc, first in self.order),
            (*self.keys, *(self.values[i] for i in self._selected)),
            self.limit,
            self.function,
            pa.int32() if self.with_rank else None,
            latest=self.latest,
        )

    def operator(self) -> Operator:
        """Return the operator that `physical.top_n` would choose."""
        required = pa.schema([f for f in self.table([]).schema if not f.name.startswith("l")])
        late_rows = LateRowFormat("top_n", required, (L, L)) if self.keeps_late else None
        if self.mode == "windows":
            return WindowTopN(self.ranking, late_rows=late_rows, limits=self.limits)
        return UpdatingTopN(
            self.ranking,
            self.retracts,
            self.mode == "closing",
            self.mode == "end",
            self.mode != "end",
            self.ttl_us,
            late_rows,
            self.limits,
        )

    def table(self, rows: Sequence[Row]) -> pa.Table:
        columns: dict[str, tuple[pa.DataType, list[Any]]] = {
            STORE_TIME: (L, [row.ts for row in rows]),
            HASH: (L, [hash_of(row.keys) for row in rows]),
        }
        for index, kind in enumerate(self.keys):
            columns[f"k{index}"] = columns[f"c{index}"] = kind, [row.keys[index] for row in rows]
        for index, (value, *_) in enumerate(self.order):
            columns[f"o{index}"] = self.values[value], [row.values[value] for row in rows]
        for index, value in enumerate(self._selected, len(self.keys)):
            columns[f"c{index}"] = self.values[value], [row.values[value] for row in rows]
        if self.retracts:
            columns[OP] = S, [_op(row) for row in rows]
        columns[ARRIVAL_FILE] = (
            S,
            [f"{row.id // 3:05}" if self.with_positions else "" for row in rows],
        )
        columns[ARRIVAL_ROW] = L, [row.id % 3 if self.with_positions else 0 for row in rows]
        if self.keeps_late:
            columns["l0"] = L, [row.id for row in rows]
            columns["l1"] = L, [row.ts for row in rows]
        return pa.table({name: pa.array(values, kind) for name, (kind, values) in columns.items()})

    def harness(self, **options: Any) -> Harness:
        return Harness(self.operator, self.table, **options)


def _op(row: Row) -> str:
    ops = ("+I", "+U") if row.weight > 0 else ("-U", "-D")
    return ops[row.id % 2]


def make_rows(*items: tuple[Any, ...], weight: int = 1, ts: int = 0) -> list[Row]:
    """Return rows in the order of their arrival; each item is the key and the values."""
    return [Row(ts, item[:1], item[1:], weight, id) for id, item in enumerate(items)]


# ---- Order


@pytest.mark.parametrize(
    ("kind", "ascending"),
    [
        (D, [-math.inf, -1.0, 0.0, 1.5, math.inf, NAN]),
        (pa.float32(), [-1.0, 0.5, NAN]),
        (S, ["", "a", "b", "é", "\uffff", "\U00010000"]),
        (BIN, [b"", b"a", b"\x7f", b"\xff"]),
        (B, [False, True]),
        (DEC, [Decimal("-10.00"), Decimal("-9.00"), Decimal("2.00"), Decimal("10.00")]),
        (DATE, [-3, 0, 5]),
        (pa.timestamp("us", "UTC"), [-3, 0, 5]),
        (L, [-(2**63), -1, 2**62, 2**63 - 1]),
    ],
)
def test_sort_codes_order_values_like_spark(kind: pa.DataType, ascending: list[Any]) -> None:
    column = pa.array([None, *reversed(ascending)], kind)
    for descending in (False, True):
        for first in (False, True):
            order = np.argsort(sort_codes(column, Ordering(kind, descending, first)))
            expected = list(range(1, len(column)))
            expected = expected if descending else expected[::-1]
            assert order.tolist() == ([0, *expected] if first else [*expected, 0])


def test_zeros_are_peers_and_nan_are_peers() -> None:
    column = pa.array([0.0, -0.0, NAN, -NAN, None, None])
    assert sort_codes(column, Ordering(D)).tolist() == [1, 1, 7, 7, -8, -8]


def test_rejects_types_without_an_order() -> None:
    with pytest.raises(RunError, match="ORDER BY is not supported over list"):
        Ranking((S,), (Ordering(LISTS),), (S,), 1)
    with pytest.raises(RunError, match="PARTITION BY is not supported over map"):
        Ranking((pa.map_(S, L),), (Ordering(L),), (S,), 1)


# ---- Changes


def test_updates_the_first_row_of_a_key() -> None:
    run = Query().harness()
    assert run.rows(make_rows(("a", 5, "x"), ("a", 7, "y"))).rows == [("a", 5, "x", "+I")]
    assert run.rows(make_rows(("a", 6, "z"))).rows == []
    run.restart()
    assert run.rows(make_rows(("a", 3, "w"), ("b", 1, "v"))).rows == [
        ("a", 5, "x", "-U"),
        ("a", 3, "w", "+U"),
        ("b", 1, "v", "+I"),
    ]


def test_first_arrival_wins_among_peers() -> None:
    query = Query(limit=1, values=(L, S))
    first, second, third = make_rows(("a", 1, "first"), ("a", 1, "second"), ("a", 1, "third"))
    run = query.harness()
    # Tasks and batches are shuffled in any order.
    assert run.epoch([[[third]], [[second], [first]]]).rows == [("a", 1, "first", "+I")]
    assert run.rows([replace(first, values=(1, "later"))]).rows == []
    run = replace(query, with_positions=False).harness()
    assert run.epoch([[[third, first]], [[second]]]).rows == [("a", 1, "third", "+I")]


@pytest.mark.parametrize("mode", ["changes", "end", "windows"])
def test_latest_ranks_the_last_arrival_first(mode: str) -> None:
    query = Query(order=(), limit=2, with_rank=True, mode=mode, values=(L,), latest=True)
    run = query.harness()
    first, second, third = make_rows(("a", 1), ("a", 2), ("a", 3))
    # Tasks and batches are shuffled in any order.
    emitted = [*run.epoch([[[third]], [[second], [first]]]).rows]
    run.restart()
    emitted += [*run.rows(make_rows(("b", 4), ("a", 5))).rows, *run.end().rows]
    retracted = {row[:3] for row in emitted if row[-1] in ("-U", "-D")}
    assert {row[:3] for row in emitted} - retracted == {("a", 5, 1), ("a", 3, 2), ("b", 4, 1)}


def test_with_rank_updates_the_row_of_each_rank() -> None:
    run = Query(limit=2, with_rank=True).harness()
    assert run.rows(make_rows(("a", 5, "x"), ("a", 7, "y"))).rows == [
        ("a", 5, "x", 1, "+I"),
        ("a", 7, "y", 2, "+I"),
    ]
    assert run.rows(make_rows(("a", 6, "z"))).rows == [
        ("a", 7, "y", 2, "-U"),
        ("a", 6, "z", 2, "+U"),
    ]
    assert run.rows(make_rows(("a", 6, "later"))).rows == []
    assert run.rows(make_rows(("a", 1, "w"))).rows == [
        ("a", 5, "x", 1, "-U"),
        ("a", 1, "w", 1, "+U"),
        ("a", 6, "z", 2, "-U"),
        ("a", 5, "x", 2, "+U"),
    ]


def test_without_rank_deletes_and_inserts_rows() -> None:
    run = Query(limit=2).harness()
    assert len(run.rows(make_rows(("a", 5, "x"), ("a", 7, "y"))).rows) == 2
    assert run.rows(make_rows(("a", 6, "z"))).rows == [("a", 7, "y", "-D"), ("a", 6, "z", "+I")]


def test_identical_rows_cancel_out() -> None:
    run = Query(limit=2, selected=(1,)).harness()
    assert len(run.rows(make_rows(("a", 5, "x"), ("a", 7, "y"))).rows) == 2
    assert run.rows(make_rows(("a", 6, "y"))).rows == [], "an identical row takes its value"
    assert run.rows(make_rows(("a", 1, "w"), ("a", 2, "w"))).rows == [
        ("a", "x", "-D"),
        ("a", "y", "-D"),
        ("a", "w", "+I"),
        ("a", "w", "+I"),
    ]


def test_identical_rows_cancel_out_one_by_one() -> None:
    run = Query(limit=2, selected=(1,)).harness()
    assert len(run.rows(make_rows(("a", 5, "x"), ("a", 7, "y"))).rows) == 2
    assert run.rows(make_rows(("a", 1, "y"), ("a", 2, "y"))).rows == [
        ("a", "x", "-D"),
        ("a", "y", "+I"),
    ]


def test_rank_functions_differ_for_peers() -> None:
    peers = make_rows(("a", 1, "x"), ("a", 1, "y"), ("a", 2, "z"), ("a", 3, "w"))
    results = {
        function: [
            row[2:4]
            for row in Query(limit=2, function=function, with_rank=True).harness().rows(peers).rows
        ]
        for function in FUNCTIONS
    }
    assert results == {
        "ROW_NUMBER": [("x", 1), ("y", 2)],
        "RANK": [("x", 1), ("y", 1)],
        "DENSE_RANK": [("x", 1), ("y", 1), ("z", 2)],
    }


def test_null_nan_and_zero_are_partition_keys() -> None:
    run = Query(keys=(D,)).harness()
    first = run.rows(make_rows((None, 5, "x"), (NAN, 5, "x"), (0.0, 5, "x"))).rows
    assert len(first) == 3
    run.restart()
    again = run.rows(make_rows((None, 4, "y"), (-NAN, 4, "y"), (-0.0, 4, "y"))).rows
    assert [row[-1] for row in again] == ["-U", "+U"] * 3


def test_without_keys_all_rows_are_one_partition() -> None:
    run = Query(keys=(), values=(L,)).harness()
    assert run.rows([Row(0, (), (3,)), Row(0, (), (2,), id=1)]).rows == [(2, "+I")]


# ---- Retractions


def test_retraction_promotes_the_next_row() -> None:
    run = Query(retracts=True).harness()
    assert len(run.rows(make_rows(("a", 5, "x"), ("a", 7, "y"))).rows) == 1
    retracted = run.rows(make_rows(("a", 5, "x"), weight=-1))
    assert retracted.rows == [("a", 5, "x", "-U"), ("a", 7, "y", "+U")]
    run.restart()
    assert run.rows(make_rows(("a", 7, "y"), weight=-1)).rows == [("a", 7, "y", "-D")]
    assert run.rows(make_rows(("a", 9, "z"))).rows == [("a", 9, "z", "+I")]


def test_row_that_is_added_and_retracted_in_one_epoch_emits_nothing() -> None:
    run = Query(retracts=True).harness()
    (row,) = make_rows(("a", 5, "x"))
    assert run.epoch([[[replace(row, weight=-1)]], [[row]]]).rows == []
    assert run.rows([row, replace(row, weight=-1)]).rows == []
    assert sum(report["unknown_retractions"] for report in run.epochs[-1].reports) == 0


def test_row_that_is_retracted_and_added_again_keeps_its_rank() -> None:
    run = Query(retracts=True).harness()
    (x, y) = make_rows(("a", 1, "x"), ("a", 1, "y"))
    run.rows([x])
    run.rows([y])
    assert run.epoch([[[x]], [[replace(x, weight=-1)]]]).rows == []


def test_retracts_the_last_of_identical_rows() -> None:
    run = Query(retracts=True, values=(L, S), selected=(1,)).harness()
    run.rows(make_rows(("a", 1, "x")))
    run.rows(make_rows(("a", 1, "y")))
    run.rows(make_rows(("a", 1, "x")))
    assert run.rows(make_rows(("a", 1, "x"), weight=-1)).rows == [], (
        "the first x is still in the result"
    )
    assert len(run.rows(make_rows(("a", 1, "x"), weight=-1)).rows) == 2


def test_retraction_distinguishes_rows_by_order_columns() -> None:
    run = Query(retracts=True, limit=1, selected=()).harness()
    run.rows(make_rows(("a", 1, "x"), ("a", 2, "x")))
    run.rows(make_rows(("a", 1, "x"), weight=-1))
    assert run.rows(make_rows(("a", 2, "x"), weight=-1)).rows == [("a", "-D")]
    assert sum(report["unknown_retractions"] for report in run.epochs[-1].reports) == 0


def test_counts_retractions_of_unknown_rows() -> None:
    run = Query(retracts=True).harness()
    assert run.rows(make_rows(("a", 5, "x"), ("b", 1, "y"), weight=-1)).rows == []
    run.rows(make_rows(("a", 5, "x")))
    run.restart()
    assert len(run.rows(make_rows(("a", 5, "x"), ("a", 5, "x"), weight=-1)).rows) == 1
    assert sum(report["unknown_retractions"] for report in run.epochs[-1].reports) == 3


def test_retracts_rows_with_lists() -> None:
    query = Query(retracts=True, values=(L, LISTS), function="RANK", limit=2)
    run = query.harness()
    rows = make_rows(("a", 1, [NAN, 1.0]), ("a", 1, None), ("a", 1, []))
    assert len(run.rows(rows).rows) == 3
    assert run.rows(make_rows(("a", 1, [NAN, 1.0]), weight=-1)).rows[0][-1] == "-D"
    assert run.rows(make_rows(("a", 1, None), weight=-1)).rows == [("a", 1, None, "-D")]
    assert sum(report["unknown_retractions"] for report in run.epochs[-1].reports) == 0


# ---- The end of the input, time to live, and limits


@pytest.mark.parametrize("retracts", [False, True])
def test_bounded_input_emits_its_result_once_at_the_end(retracts: bool) -> None:
    run = Query(mode="end", limit=2, with_rank=True, retracts=retracts).harness(key_groups=1)
    assert run.rows(make_rows(("a", 5, "x"), ("b", 7, "y"))).rows == []
    run.restart()
    assert run.rows(make_rows(("a", 4, "z"), ("a", 4, "w"))).rows == []
    result = sorted(run.end().rows, key=lambda row: (row[0], row[3]))
    assert result == [("a", 4, "z", 1), ("a", 4, "w", 2), ("b", 7, "y", 1)]
    assert run.end().rows == []


def test_time_to_live_drops_partitions_without_new_rows() -> None:
    run = Query(ttl_us=10).harness(key_groups=1)
    run.rows(make_rows(("a", 5, "x"), ("b", 5, "x")), now_us=100)
    assert (
        run.rows(make_rows(("a", 9, "not in the result, but keeps a alive")), now_us=105).rows == []
    )
    run.restart()
    run.epoch(now_us=111)
    late = run.rows(make_rows(("a", 6, "y"), ("b", 6, "y")), now_us=112).rows
    assert late == [("b", 6, "y", "+I")], "b is new again"
    run.epoch(now_us=130)
    assert run.stored_names() == []


def test_state_keeps_only_rows_that_can_be_in_the_result() -> None:
    run = Query(limit=2).harness(key_groups=1)
    with state_limits(True):
        for number in range(50):
            epoch = run.rows(make_rows(("a", -number, "x"), ("a", 99, "y"), ("b", number, "z")))
    assert epoch.reports[0]["rows"] <= 12, "compaction drops rows beyond the limit"


def test_state_above_the_limit_is_an_error() -> None:
    run = Query(limit=3, limits=Limits(max_groups=2)).harness(key_groups=1)
    run.rows(make_rows(("a", 5, "x"), ("a", 6, "x")))
    with pytest.raises(RunError, match="top_n keeps 3 groups"):
        run.rows(make_rows(("a", 7, "x")))


def test_changed_limit_discards_the_state() -> None:
    run = Query().harness()
    run.rows(make_rows(("a", 5, "x")))
    run.make = Query(limit=2).operator
    run.restart()
    assert any(report["discarded"] for report in run.rows(make_rows(("a", 6, "x"))).reports)


# ---- Windows


def test_emits_a_window_when_it_closes() -> None:
    run = Query(mode="windows", limit=2, with_rank=True).harness(key_groups=1)
    one = make_rows(("a", 5, "x"), ("b", 1, "v"), ("a", 3, "y"), ("a", 4, "z"), ts=10)
    assert run.rows([*make_rows(("a", 9, "w"), ts=20), *one], watermark_us=9).rows == []
    run.restart()
    assert run.rows(make_rows(("a", 3, "later"), ts=10), watermark_us=10).rows == [
        ("b", 1, "v", 1),
        ("a", 3, "y", 1),
        ("a", 3, "later", 2),
    ]
    assert run.rows(make_rows(("a", 1, "q"), ts=20), watermark_us=12).rows == []
    assert run.end().rows == [("a", 1, "q", 1), ("a", 9, "w", 2)]
    assert run.stored_names() == []


def test_window_with_retractions_changes_until_it_closes() -> None:
    run = Query(mode="closing", retracts=True, keeps_late=True).harness(key_groups=1)
    one, other = make_rows(("a", 5, "x"), ("a", 7, "y"), ts=10)
    assert run.rows([one, other], watermark_us=5).rows == [("a", 5, "x", "+I")]
    later = run.rows(make_rows(("a", 1, "z"), ts=20), watermark_us=9).rows
    assert later == [("a", 1, "z", "+I")], "another window is another partition"
    run.restart()
    changed = run.rows([replace(one, weight=-1)], watermark_us=10).rows
    assert changed == [("a", 5, "x", "-U"), ("a", 7, "y", "+U")]
    late = run.rows([replace(other, weight=-1)], watermark_us=10)
    assert late.rows == [] and late.late_rows == 1 and late.late[0]["l0"] == 1
    assert run.end().rows == [] and run.stored_names() == []


def test_window_opens_and_closes_in_one_epoch() -> None:
    run = Query(mode="windows").harness(key_groups=1)
    rows = [*make_rows(("a", 5, "x"), ts=20), *make_rows(("a", 6, "y"), ts=10)]
    assert run.rows(rows, watermark_us=30).rows == [("a", 6, "y"), ("a", 5, "x")]


@pytest.mark.parametrize("mode", ["windows", "closing"])
def test_counts_all_late_rows(mode: str) -> None:
    run = Query(mode=mode).harness(key_groups=1)
    run.rows([], watermark_us=10)
    late = make_rows(("a", 5, "x"), ("a", 6, "y"), ("a", 4, "z"), ("b", 4, "z"), ts=10)
    epoch = run.epoch([[late[:2], late[2:]], [late]], [WatermarkUpdate(0, 0, 11)])
    assert epoch.rows == [] and epoch.late_rows == 8 and epoch.late == []


def test_emits_late_rows_if_there_is_a_late_stream() -> None:
    run = Query(mode="windows", keeps_late=True).harness(key_groups=1)
    assert run.rows(make_rows(("a", 5, "x"), ("a", 4, "y"), ts=10), watermark_us=10).rows == [
        ("a", 4, "y")
    ]
    late = run.rows(
        [*make_rows(("a", 5, "x"), ("a", 6, "y"), ts=10), *make_rows(("a", 1, "z"), ts=11)]
    )
    assert [row["l0"] for row in late.late] == [0, 1] and late.late_rows == 2
    assert late.late[0]["late_operator"] == "top_n"
    assert run.end().rows == [("a", 1, "z")]
