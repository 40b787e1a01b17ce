"""The first rows of each partition, by example."""

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
from tidegate.columns import ARRIVAL_FILE, ARRIVAL_ROW, HASH, OP, PANE
from tidegate.errors import RunError
from tidegate.operators.kernels.ordering import Ordering, sort_codes
from tidegate.operators.late_rows import LateRows
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
    """The columns of a row are its keys, then its values; `order` names values by their place.

    The id of a row is its place in its epoch, unless `places` is off; its time is its pane.
    """

    keys: tuple[pa.DataType, ...] = (S,)
    values: tuple[pa.DataType, ...] = (L, S)
    order: tuple[tuple[int, bool, bool], ...] = ((0, False, True),)
    limit: int = 1
    function: str = "ROW_NUMBER"
    ranked: bool = False
    mode: str = "changes"
    retracts: bool = False
    ttl_us: int | None = None
    keeps_late: bool = False
    places: bool = True
    limits: Limits = NO_LIMITS
    # The values that come out.
    shown: tuple[int, ...] | None = None
    latest: bool = False

    @property
    def _shown(self) -> tuple[int, ...]:
        return tuple(range(len(self.values))) if self.shown is None else self.shown

    @property
    def ranking(self) -> Ranking:
        return Ranking(
            self.keys,
            tuple(Ordering(self.values[i], desc, first) for i, desc, first in self.order),
            (*self.keys, *(self.values[i] for i in self._shown)),
            self.limit,
            self.function,
            pa.int32() if self.ranked else None,
            latest=self.latest,
        )

    def operator(self) -> Operator:
        """As `spark.top_n` chooses it."""
        needed = pa.schema([f for f in self.table([]).schema if not f.name.startswith("l")])
        late = LateRows("top_n", needed, (L, L)) if self.keeps_late else None
        if self.mode == "windows":
            return WindowTopN(self.ranking, late_rows=late, limits=self.limits)
        return UpdatingTopN(
            self.ranking,
            self.retracts,
            self.mode == "closing",
            self.mode == "end",
            self.mode != "end",
            self.ttl_us,
            late,
            self.limits,
        )

    def table(self, rows: Sequence[Row]) -> pa.Table:
        columns: dict[str, tuple[pa.DataType, list[Any]]] = {
            PANE: (L, [row.ts for row in rows]),
            HASH: (L, [hash_of(row.keys) for row in rows]),
        }
        for index, kind in enumerate(self.keys):
            columns[f"k{index}"] = columns[f"c{index}"] = kind, [row.keys[index] for row in rows]
        for index, (place, *_) in enumerate(self.order):
            columns[f"o{index}"] = self.values[place], [row.values[place] for row in rows]
        for index, place in enumerate(self._shown, len(self.keys)):
            columns[f"c{index}"] = self.values[place], [row.values[place] for row in rows]
        if self.retracts:
            columns[OP] = S, [_op(row) for row in rows]
        columns[ARRIVAL_FILE] = S, [f"{row.id // 3:05}" if self.places else "" for row in rows]
        columns[ARRIVAL_ROW] = L, [row.id % 3 if self.places else 0 for row in rows]
        if self.keeps_late:
            columns["l0"] = L, [row.id for row in rows]
            columns["l1"] = L, [row.ts for row in rows]
        return pa.table({name: pa.array(values, kind) for name, (kind, values) in columns.items()})

    def harness(self, **options: Any) -> Harness:
        return Harness(self.operator, self.table, **options)


def _op(row: Row) -> str:
    ops = ("+I", "+U") if row.weight > 0 else ("-U", "-D")
    return ops[row.id % 2]


def rows(*items: tuple[Any, ...], weight: int = 1, ts: int = 0) -> list[Row]:
    """Each item is the key and the values; they came in this order."""
    return [Row(ts, item[:1], item[1:], weight, id) for id, item in enumerate(items)]


# Order


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
def test_values_are_ordered_as_spark_does_it(kind: pa.DataType, ascending: list[Any]) -> None:
    column = pa.array([None, *reversed(ascending)], kind)
    for descending in (False, True):
        for first in (False, True):
            found = np.argsort(sort_codes(column, Ordering(kind, descending, first)))
            wanted = list(range(1, len(column)))
            wanted = wanted if descending else wanted[::-1]
            assert found.tolist() == ([0, *wanted] if first else [*wanted, 0])


def test_zeros_are_peers_and_so_are_nan() -> None:
    column = pa.array([0.0, -0.0, NAN, -NAN, None, None])
    assert sort_codes(column, Ordering(D)).tolist() == [1, 1, 7, 7, -8, -8]


def test_what_has_no_order_is_rejected() -> None:
    with pytest.raises(RunError, match="ORDER BY is not supported over list"):
        Ranking((S,), (Ordering(LISTS),), (S,), 1)
    with pytest.raises(RunError, match="PARTITION BY is not supported over map"):
        Ranking((pa.map_(S, L),), (Ordering(L),), (S,), 1)


# Changes


def test_the_first_row_of_a_key_comes_and_changes() -> None:
    run = Query().harness()
    assert run.rows(rows(("a", 5, "x"), ("a", 7, "y"))).main == [("a", 5, "x", "+I")]
    assert run.rows(rows(("a", 6, "z"))).main == []
    run.restart()
    assert run.rows(rows(("a", 3, "w"), ("b", 1, "v"))).main == [
        ("a", 5, "x", "-U"),
        ("a", 3, "w", "+U"),
        ("b", 1, "v", "+I"),
    ]


def test_of_peers_the_one_that_came_first_wins() -> None:
    query = Query(limit=1, values=(L, S))
    first, second, third = rows(("a", 1, "first"), ("a", 1, "second"), ("a", 1, "third"))
    run = query.harness()
    # Tasks and batches come in any order.
    assert run.epoch([[[third]], [[second], [first]]]).main == [("a", 1, "first", "+I")]
    assert run.rows([replace(first, values=(1, "later"))]).main == []
    run = replace(query, places=False).harness()
    assert run.epoch([[[third, first]], [[second]]]).main == [("a", 1, "third", "+I")]


@pytest.mark.parametrize("mode", ["changes", "end", "windows"])
def test_the_rows_that_came_last_can_be_the_first(mode: str) -> None:
    query = Query(order=(), limit=2, ranked=True, mode=mode, values=(L,), latest=True)
    run = query.harness()
    first, second, third = rows(("a", 1), ("a", 2), ("a", 3))
    # Tasks and batches come in any order.
    told = [*run.epoch([[[third]], [[second], [first]]]).main]
    run.restart()
    told += [*run.rows(rows(("b", 4), ("a", 5))).main, *run.end().main]
    changes = [row for row in told if row[-1] in ("-U", "-D")]
    left = {row[:3] for row in told} - {row[:3] for row in changes}
    assert left == {("a", 5, 1), ("a", 3, 2), ("b", 4, 1)}


def test_with_a_rank_rows_are_known_by_it() -> None:
    run = Query(limit=2, ranked=True).harness()
    assert run.rows(rows(("a", 5, "x"), ("a", 7, "y"))).main == [
        ("a", 5, "x", 1, "+I"),
        ("a", 7, "y", 2, "+I"),
    ]
    assert run.rows(rows(("a", 6, "z"))).main == [("a", 7, "y", 2, "-U"), ("a", 6, "z", 2, "+U")]
    assert run.rows(rows(("a", 6, "later"))).main == []
    assert run.rows(rows(("a", 1, "w"))).main == [
        ("a", 5, "x", 1, "-U"),
        ("a", 1, "w", 1, "+U"),
        ("a", 6, "z", 2, "-U"),
        ("a", 5, "x", 2, "+U"),
    ]


def test_without_a_rank_rows_leave_and_come() -> None:
    run = Query(limit=2).harness()
    assert len(run.rows(rows(("a", 5, "x"), ("a", 7, "y"))).main) == 2
    assert run.rows(rows(("a", 6, "z"))).main == [("a", 7, "y", "-D"), ("a", 6, "z", "+I")]


def test_equal_rows_cancel_out() -> None:
    run = Query(limit=2, shown=(1,)).harness()
    assert len(run.rows(rows(("a", 5, "x"), ("a", 7, "y"))).main) == 2
    assert run.rows(rows(("a", 6, "y"))).main == [], "another row that looks the same"
    assert run.rows(rows(("a", 1, "w"), ("a", 2, "w"))).main == [
        ("a", "x", "-D"),
        ("a", "y", "-D"),
        ("a", "w", "+I"),
        ("a", "w", "+I"),
    ]


def test_as_many_equal_rows_cancel_out_as_there_are() -> None:
    run = Query(limit=2, shown=(1,)).harness()
    assert len(run.rows(rows(("a", 5, "x"), ("a", 7, "y"))).main) == 2
    assert run.rows(rows(("a", 1, "y"), ("a", 2, "y"))).main == [("a", "x", "-D"), ("a", "y", "+I")]


def test_peers_share_a_rank_and_all_of_them_count() -> None:
    given = rows(("a", 1, "x"), ("a", 1, "y"), ("a", 2, "z"), ("a", 3, "w"))
    found = {
        function: [
            row[2:4]
            for row in Query(limit=2, function=function, ranked=True).harness().rows(given).main
        ]
        for function in FUNCTIONS
    }
    assert found == {
        "ROW_NUMBER": [("x", 1), ("y", 2)],
        "RANK": [("x", 1), ("y", 1)],
        "DENSE_RANK": [("x", 1), ("y", 1), ("z", 2)],
    }


def test_null_nan_and_zero_are_partitions() -> None:
    run = Query(keys=(D,)).harness()
    first = run.rows(rows((None, 5, "x"), (NAN, 5, "x"), (0.0, 5, "x"))).main
    assert len(first) == 3
    run.restart()
    again = run.rows(rows((None, 4, "y"), (-NAN, 4, "y"), (-0.0, 4, "y"))).main
    assert [row[-1] for row in again] == ["-U", "+U"] * 3


def test_without_keys_all_rows_are_one_partition() -> None:
    run = Query(keys=(), values=(L,)).harness()
    assert run.rows([Row(0, (), (3,)), Row(0, (), (2,), id=1)]).main == [(2, "+I")]


# Rows that are retracted


def test_a_row_that_goes_makes_room_for_the_next() -> None:
    run = Query(retracts=True).harness()
    assert len(run.rows(rows(("a", 5, "x"), ("a", 7, "y"))).main) == 1
    gone = run.rows(rows(("a", 5, "x"), weight=-1))
    assert gone.main == [("a", 5, "x", "-U"), ("a", 7, "y", "+U")]
    run.restart()
    assert run.rows(rows(("a", 7, "y"), weight=-1)).main == [("a", 7, "y", "-D")]
    assert run.rows(rows(("a", 9, "z"))).main == [("a", 9, "z", "+I")]


def test_a_row_retracted_in_its_epoch_was_never_there() -> None:
    run = Query(retracts=True).harness()
    (row,) = rows(("a", 5, "x"))
    assert run.epoch([[[replace(row, weight=-1)]], [[row]]]).main == []
    assert run.rows([row, replace(row, weight=-1)]).main == []
    assert sum(report["unknown"] for report in run.epochs[-1].reports) == 0


def test_a_row_that_comes_back_in_the_same_epoch_keeps_its_place() -> None:
    run = Query(retracts=True).harness()
    (x, y) = rows(("a", 1, "x"), ("a", 1, "y"))
    run.rows([x])
    run.rows([y])
    assert run.epoch([[[x]], [[replace(x, weight=-1)]]]).main == []


def test_of_equal_rows_the_last_one_is_retracted() -> None:
    run = Query(retracts=True, values=(L, S), shown=(1,)).harness()
    run.rows(rows(("a", 1, "x")))
    run.rows(rows(("a", 1, "y")))
    run.rows(rows(("a", 1, "x")))
    assert run.rows(rows(("a", 1, "x"), weight=-1)).main == [], "the first x still stands"
    assert len(run.rows(rows(("a", 1, "x"), weight=-1)).main) == 2


def test_rows_that_differ_only_in_their_order_are_told_apart() -> None:
    run = Query(retracts=True, limit=1, shown=()).harness()
    run.rows(rows(("a", 1, "x"), ("a", 2, "x")))
    run.rows(rows(("a", 1, "x"), weight=-1))
    assert run.rows(rows(("a", 2, "x"), weight=-1)).main == [("a", "-D")]
    assert sum(report["unknown"] for report in run.epochs[-1].reports) == 0


def test_retractions_of_what_is_not_there_are_counted() -> None:
    run = Query(retracts=True).harness()
    assert run.rows(rows(("a", 5, "x"), ("b", 1, "y"), weight=-1)).main == []
    run.rows(rows(("a", 5, "x")))
    run.restart()
    assert len(run.rows(rows(("a", 5, "x"), ("a", 5, "x"), weight=-1)).main) == 1
    assert sum(report["unknown"] for report in run.epochs[-1].reports) == 3


def test_rows_with_lists_can_be_retracted() -> None:
    query = Query(retracts=True, values=(L, LISTS), function="RANK", limit=2)
    run = query.harness()
    given = rows(("a", 1, [NAN, 1.0]), ("a", 1, None), ("a", 1, []))
    assert len(run.rows(given).main) == 3
    assert run.rows(rows(("a", 1, [NAN, 1.0]), weight=-1)).main[0][-1] == "-D"
    assert run.rows(rows(("a", 1, None), weight=-1)).main == [("a", 1, None, "-D")]
    assert sum(report["unknown"] for report in run.epochs[-1].reports) == 0


# The end, time, and limits


@pytest.mark.parametrize("retracts", [False, True])
def test_a_bounded_input_comes_out_once(retracts: bool) -> None:
    run = Query(mode="end", limit=2, ranked=True, retracts=retracts).harness(key_groups=1)
    assert run.rows(rows(("a", 5, "x"), ("b", 7, "y"))).main == []
    run.restart()
    assert run.rows(rows(("a", 4, "z"), ("a", 4, "w"))).main == []
    given = sorted(run.end().main, key=lambda row: (row[0], row[3]))
    assert given == [("a", 4, "z", 1), ("a", 4, "w", 2), ("b", 7, "y", 1)]
    assert run.end().main == []


def test_partitions_that_are_not_touched_are_forgotten() -> None:
    run = Query(ttl_us=10).harness(key_groups=1)
    run.rows(rows(("a", 5, "x"), ("b", 5, "x")), now_us=100)
    assert run.rows(rows(("a", 9, "loses, and keeps it alive")), now_us=105).main == []
    run.restart()
    run.epoch(now_us=111)
    late = run.rows(rows(("a", 6, "y"), ("b", 6, "y")), now_us=112).main
    assert late == [("b", 6, "y", "+I")], "b is new again"
    run.epoch(now_us=130)
    assert run.stored_names() == []


def test_state_keeps_only_rows_that_can_come_out() -> None:
    run = Query(limit=2).harness(key_groups=1)
    with state_limits(True):
        for number in range(50):
            found = run.rows(rows(("a", -number, "x"), ("a", 99, "y"), ("b", number, "z")))
    assert found.reports[0]["rows"] <= 12, "compaction cuts what has lost"


def test_too_much_state_is_an_error() -> None:
    run = Query(limit=3, limits=Limits(groups=2)).harness(key_groups=1)
    run.rows(rows(("a", 5, "x"), ("a", 6, "x")))
    with pytest.raises(RunError, match="top_n keeps 3 groups"):
        run.rows(rows(("a", 7, "x")))


def test_another_limit_is_another_state() -> None:
    run = Query().harness()
    run.rows(rows(("a", 5, "x")))
    run.make = Query(limit=2).operator
    run.restart()
    assert any(report["discarded"] for report in run.rows(rows(("a", 6, "x"))).reports)


# Windows


def test_windows_come_out_when_they_close() -> None:
    run = Query(mode="windows", limit=2, ranked=True).harness(key_groups=1)
    one = rows(("a", 5, "x"), ("b", 1, "v"), ("a", 3, "y"), ("a", 4, "z"), ts=10)
    assert run.rows([*rows(("a", 9, "w"), ts=20), *one], watermark_us=9).main == []
    run.restart()
    assert run.rows(rows(("a", 3, "later"), ts=10), watermark_us=10).main == [
        ("b", 1, "v", 1),
        ("a", 3, "y", 1),
        ("a", 3, "later", 2),
    ]
    assert run.rows(rows(("a", 1, "q"), ts=20), watermark_us=12).main == []
    assert run.end().main == [("a", 1, "q", 1), ("a", 9, "w", 2)]
    assert run.stored_names() == []


def test_windows_whose_rows_retract_change_until_they_close() -> None:
    run = Query(mode="closing", retracts=True, keeps_late=True).harness(key_groups=1)
    one, other = rows(("a", 5, "x"), ("a", 7, "y"), ts=10)
    assert run.rows([one, other], watermark_us=5).main == [("a", 5, "x", "+I")]
    later = run.rows(rows(("a", 1, "z"), ts=20), watermark_us=9).main
    assert later == [("a", 1, "z", "+I")], "another window is another partition"
    run.restart()
    changed = run.rows([replace(one, weight=-1)], watermark_us=10).main
    assert changed == [("a", 5, "x", "-U"), ("a", 7, "y", "+U")]
    late = run.rows([replace(other, weight=-1)], watermark_us=10)
    assert late.main == [] and late.late_rows == 1 and late.late[0]["l0"] == 1
    assert run.end().main == [] and run.stored_names() == []


def test_a_window_can_open_and_close_in_one_epoch() -> None:
    run = Query(mode="windows").harness(key_groups=1)
    given = [*rows(("a", 5, "x"), ts=20), *rows(("a", 6, "y"), ts=10)]
    assert run.rows(given, watermark_us=30).main == [("a", 6, "y"), ("a", 5, "x")]


@pytest.mark.parametrize("mode", ["windows", "closing"])
def test_all_late_rows_are_counted(mode: str) -> None:
    run = Query(mode=mode).harness(key_groups=1)
    run.rows([], watermark_us=10)
    late = rows(("a", 5, "x"), ("a", 6, "y"), ("a", 4, "z"), ("b", 4, "z"), ts=10)
    epoch = run.epoch([[late[:2], late[2:]], [late]], [WatermarkUpdate(0, 0, 11)])
    assert epoch.main == [] and epoch.late_rows == 8 and epoch.late == []


def test_late_rows_are_kept_if_asked() -> None:
    run = Query(mode="windows", keeps_late=True).harness(key_groups=1)
    assert run.rows(rows(("a", 5, "x"), ("a", 4, "y"), ts=10), watermark_us=10).main == [
        ("a", 4, "y")
    ]
    late = run.rows([*rows(("a", 5, "x"), ("a", 6, "y"), ts=10), *rows(("a", 1, "z"), ts=11)])
    assert [row["l0"] for row in late.late] == [0, 1] and late.late_rows == 2
    assert late.late[0]["late_operator"] == "top_n"
    assert run.end().main == [("a", 1, "z")]
