"""The stored state of each operator, as an earlier version wrote it, can still be read.

If the format must change, raise the version in the operator's `state_format`, regenerate the files
with `pytest --regenerate`, and note in the changelog that saved state becomes invalid.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.operators.harness import D, L, Query, S, rows_of
from tidegate.columns import AFTER, ARRIVAL_FILE, ARRIVAL_ROW, HASH, INSERT, OP, PANE, WEIGHT
from tidegate.operators.aggregate.functions import AggregateCall
from tidegate.operators.aggregate.groups import WindowPanes
from tidegate.operators.hold import HoldOperator
from tidegate.operators.join.asof import IS_VERSION, AsofBounds, AsofJoin
from tidegate.operators.join.asof_updating import VALUE, UpdatingAsofJoin
from tidegate.operators.join.interval import IntervalJoin
from tidegate.operators.join.regular import RegularJoin
from tidegate.operators.kernels.join_condition import JoinCondition
from tidegate.operators.kernels.keys import hash_rows
from tidegate.operators.kernels.ordering import Ordering
from tidegate.operators.match.matcher import (
    TIME,
    AggregateMeasure,
    MatchOperator,
    MatchSpec,
    RowMeasure,
)
from tidegate.operators.match.search import (
    Accept,
    Compare,
    CompiledCondition,
    CurrentValue,
    Fork,
    InputValue,
    Program,
    Take,
)
from tidegate.operators.normalize import NormalizeOperator
from tidegate.operators.operator import Operator
from tidegate.operators.over.frames import Frame
from tidegate.operators.over.functions import OverFunction, OverSpec
from tidegate.operators.over.streaming import OverOperator
from tidegate.operators.runner import OperatorRunner
from tidegate.operators.top_n.dedup import Deduplicate
from tidegate.operators.top_n.updating import UpdatingTopN
from tidegate.operators.top_n.window import Ranking, WindowTopN
from tidegate.operators.watermark import END_OF_INPUT_US, Origin, WatermarkUpdate
from tidegate.state.memory import MemoryStore

STORED = Path(__file__).parent / "stored"
CALLS = (
    AggregateCall("count", "count(*)", (), L),
    AggregateCall("sum", "sum(v)", (D,), D),
    AggregateCall("min", "min(v)", (D,), D),
    AggregateCall("collect_list", "collect_list(v)", (D,), pa.list_(D)),
)
GROUPS: dict[str, Any] = {
    "keys": (S,),
    "calls": CALLS,
    "arguments": ((), (0,), (0,), (0,)),
    "filters": (None,) * 4,
}
RANKING = Ranking((S,), (Ordering(D, descending=True, nulls_first=False),), (S, D), 2)
FIRST = Ranking((S,), (), (S, D), 1)
# A rank, a running sum, a running count of distinct values, and the previous row.
FUNCTIONS = (
    OverFunction("ROW_NUMBER", pa.int32()),
    OverFunction("SUM", D, frame=Frame(False, None, 0), call=CALLS[1]),
    OverFunction(
        "COUNT",
        L,
        frame=Frame(False, None, 0),
        call=AggregateCall("count", "count(DISTINCT v)", (D,), L, distinct=True),
    ),
    OverFunction("LAG", D, shift=-1, argument=D),
)
# A row, then any number of rows that are larger than the previous one.
RISING = Program(
    (Accept(), Take(1, 2), Fork(1, 0), Take(0, 2)),
    3,
    (
        None,
        CompiledCondition(
            Compare(">", InputValue(0), InputValue(1), True), (CurrentValue(0), CurrentValue(0, 1))
        ),
    ),
    (),
    9,
)
MEASURED = (RowMeasure(0, D, frozenset([0])), AggregateMeasure(CALLS[1], (0,), frozenset([0, 1])))
MATCHING = JoinCondition((S,), (False,), -5, 5)
KEYS = JoinCondition((S,), (False,))
COLUMNS = ((S, D), (S, D))
OPERATORS: dict[str, tuple[Operator, int]] = {
    "tumbling": (Query(**GROUPS, panes=WindowPanes("TUMBLE", 10, 10)).operator(), 1),
    "hopping_with_lateness": (
        Query(**GROUPS, panes=WindowPanes("HOP", 10, 5), lateness_us=5).operator(),
        1,
    ),
    "sessions": (Query(**GROUPS, gap_us=4).operator(), 1),
    "sessions_of_changes": (
        Query(**GROUPS, gap_us=4, mode="early", retracts=True).operator(),
        1,
    ),
    "groups": (Query(**GROUPS, mode="early").operator(), 1),
    "groups_of_changes_with_ttl": (
        Query(**GROUPS, mode="early", retracts=True, ttl_us=100).operator(),
        1,
    ),
    "groups_every_interval": (Query(**GROUPS, mode="early", every_us=50).operator(), 1),
    "hold": (HoldOperator(pa.schema([("c0", S), ("c1", D)])), 1),
    "normalize": (NormalizeOperator((S,), (S, D)), 1),
    "interval_join": (IntervalJoin(MATCHING, COLUMNS, "LEFT"), 2),
    "regular_join_with_ttl": (
        RegularJoin(JoinCondition((S,), (False,)), COLUMNS, "FULL", True, ttl_us=100),
        2,
    ),
    "temporal_join": (
        AsofJoin(KEYS, AsofBounds("backward", 0, None), COLUMNS, "LEFT", True, True, True),
        2,
    ),
    "asof_join_nearest": (AsofJoin(KEYS, AsofBounds("nearest", -9, 9), COLUMNS, "LEFT"), 2),
    "asof_join_of_changes_with_ttl": (
        UpdatingAsofJoin(KEYS, AsofBounds("forward", None, 0), D, COLUMNS, "LEFT", ttl_us=100),
        2,
    ),
    "over": (
        OverOperator(OverSpec((S,), (Ordering(L),), ((0,),), FUNCTIONS, (S, D)), ttl_us=100),
        1,
    ),
    "match": (
        MatchOperator(MatchSpec((S,), (), (D,), RISING, MEASURED, rows_back=1), ttl_us=100),
        1,
    ),
    "window_top_n": (WindowTopN(RANKING), 1),
    "changing_top_n": (UpdatingTopN(RANKING), 1),
    "deduplicate": (Deduplicate(FIRST, ttl_us=100), 1),
}


def input_rows(*rows: tuple[str, float, int], first: int = 0) -> pa.Table:
    """Return rows of (key, value, time) with the columns of all operators."""
    keys, values = [key for key, _, _ in rows], [value for _, value, _ in rows]
    count = len(rows)
    columns: dict[str, Any] = {
        PANE: pa.array([ts for _, _, ts in rows], L),
        HASH: pa.array(hash_rows([pa.array(keys, S)], count)),
        "k0": pa.array(keys, S),
        "c0": pa.array(keys, S),
        WEIGHT: pa.array([1] * count, L),
        IS_VERSION: pa.array([True] * count),
        ARRIVAL_FILE: pa.array([""] * count, S),
        ARRIVAL_ROW: pa.array(range(first, first + count), L),
    }
    for name in ("c1", "o0", VALUE, "a1_0", "a2_0", "a3_0", "v0"):
        columns[name] = pa.array(values, D)
    columns[TIME] = pa.array([ts - 1 for _, _, ts in rows], L)
    return pa.table(columns)


STORED_ROWS = (
    input_rows(("a", 1.5, 12), ("b", 2.0, 14), ("a", -0.0, 17)),
    input_rows(("a", 3.0, 18), first=3),
)
LATER_ROWS = input_rows(("a", 9.0, 19), ("c", 4.0, 21), first=4)


def step(
    store: MemoryStore,
    operator: Operator,
    ports: int,
    table: pa.Table | None,
    watermark_us: int,
    now: int,
) -> list[tuple[Any, ...]]:
    origins = tuple((Origin(port),) for port in range(ports))
    runner = OperatorRunner(1, operator, origins, canonical_form="as it was")
    inputs: list[Any] = [[] for _ in range(ports)]
    if table is not None:
        op = AFTER if isinstance(operator, NormalizeOperator) else INSERT
        rows = table.append_column(OP, pa.repeat(pa.scalar(op), table.num_rows))
        if isinstance(operator, OverOperator):
            rows = rows.drop_columns("o0").append_column("o0", rows.column(PANE))
        inputs = [[operator.pre_aggregate(port, rows)] for port in range(ports)]
    updates = [WatermarkUpdate(port, 0, watermark_us) for port in range(ports)]
    result = runner.run_epoch(store.backend(1, 0), inputs, updates, now, key_group=0)
    assert not result.report["discarded"], "the state has another fingerprint"
    return [row for table in result.output.rows for row in rows_of(table)]


def outputs(store: MemoryStore, operator: Operator, ports: int) -> list[list[tuple[Any, ...]]]:
    """Return the output after the state has been stored: with more rows, and at the end."""
    return [
        step(store, operator, ports, LATER_ROWS, 16, 60),
        step(store, operator, ports, None, END_OF_INPUT_US, 70),
    ]


@pytest.mark.parametrize("name", OPERATORS)
def test_stored_state_can_be_read(name: str, request: pytest.FixtureRequest) -> None:
    operator, ports = OPERATORS[name]
    path = STORED / f"{name}.state"
    store = MemoryStore()
    for number, table in enumerate(STORED_ROWS):
        # OVER has emitted some rows, and some matches are incomplete.
        watermark_us = (14 if isinstance(operator, OverOperator | MatchOperator) else 10) + number
        step(store, operator, ports, table, watermark_us, 10 + number)
    stored = store.snapshot()
    if request.config.getoption("--regenerate"):
        path.write_bytes(stored)
    assert path.exists(), f"{path.name} is missing: pytest --regenerate writes it"
    restored = outputs(MemoryStore.restore(path.read_bytes()), operator, ports)
    assert repr(restored) == repr(outputs(store, operator, ports))
    assert any(restored), "the state affects the output"


def test_every_operator_has_a_stored_state() -> None:
    assert {path.stem for path in STORED.iterdir()} == set(OPERATORS)
    kinds = {type(operator).__name__ for operator, _ in OPERATORS.values()}
    assert kinds == {
        "RegularJoin",
        "UpdatingAsofJoin",
        "RetractingSessionAggregate",
        "UpdatingTopN",
        "Deduplicate",
        "HoldOperator",
        "UpdatingAggregate",
        "MatchOperator",
        "AsofJoin",
        "NormalizeOperator",
        "OverOperator",
        "SessionAggregate",
        "IntervalJoin",
        "WindowAggregate",
        "WindowTopN",
    }
