"""DISTINCT by event time: each row is emitted once, and its state expires with the watermark."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.event_time import START, at
from tests.support.sessions import open_with, play, rows_of

pytestmark = pytest.mark.spark

SCRIPT = (
    "CREATE SOURCE s (k STRING, ts TIMESTAMP, WATERMARK FOR ts AS ts - INTERVAL '5' SECOND) "
    "WITH (connector = 'memory', inserts_per_epoch = 1);"
    "CREATE STREAM once AS SELECT DISTINCT k, ts FROM s;"
    "CREATE STREAM closed AS SELECT DISTINCT k, window_end FROM TUMBLE(s, ts, INTERVAL '10' SECOND) "
    "EMIT ON WINDOW CLOSE LATE DATA TO too_late;"
    "CREATE STREAM early AS SELECT DISTINCT k, window_start FROM TUMBLE(s, ts, INTERVAL '10' SECOND);"
    "CREATE STREAM counted AS SELECT window_end, count(*) AS n FROM (SELECT DISTINCT k, ts FROM s) "
    "GROUP BY TUMBLE(ts, INTERVAL '10' SECOND);"
)
NAMES = ("once", "closed", "early", "counted", "too_late")
# Key and second; each line is an epoch.
EPOCHS: list[list[tuple[str | None, int]]] = [
    [("a", 1), ("a", 1), (None, 2), ("b", 3)],
    [("a", 1), ("a", 4), (None, 2)],
    [("b", 3), ("b", 17)],
    [("a", 1), ("a", 12)],
    [("c", 40)],
]


def test_each_row_is_emitted_once_and_late_rows_separately(spark: Any, data: Path) -> None:
    emitted: dict[str, list[list[tuple[Any, ...]]]] = {name: [] for name in NAMES}
    last_epochs: dict[str, int] = {}
    for start in (0, 2):
        # Restart after two epochs.
        with open_with(data, spark, SCRIPT, key_groups=2) as session:
            readers = {
                name: session.subscribe(name, from_epoch=last_epochs.get(name, -1) + 1)
                for name in NAMES
            }
            session.start()
            for epoch in EPOCHS[:2] if start == 0 else EPOCHS[2:]:
                play(session, {"s": [{"k": k, "ts": at(second)} for k, second in epoch]})
                for name, reader in readers.items():
                    batches = reader.take_all()
                    last_epochs[name] = max(
                        [last_epochs.get(name, -1), *(batch.epoch for batch in batches)]
                    )
                    emitted[name].append([tuple(row.values()) for row in rows_of(batches)])
            late = {item.name: item.late_rows for item in session.status()}
    # Epoch 3 begins with the watermark at 12: the rows at 1 and 3 are late, the row at 12 is not.
    assert [len(rows) for rows in emitted["once"]] == [3, 1, 1, 1, 1]
    assert Counter(row for rows in emitted["once"] for row in rows) == Counter(
        (k, at(second))
        for k, second in [("a", 1), (None, 2), ("b", 3), ("a", 4), ("b", 17), ("a", 12), ("c", 40)]
    )
    first, second = at(10), at(20)
    assert [Counter(rows) for rows in emitted["closed"]] == [
        Counter(),
        Counter(),
        Counter([("a", first), (None, first), ("b", first)]),
        Counter(),
        Counter([("a", second), ("b", second)]),
    ]
    assert [Counter(rows) for rows in emitted["early"]] == [
        Counter([("a", START), (None, START), ("b", START)]),
        Counter(),
        Counter([("b", first)]),
        Counter([("a", first)]),
        Counter([("c", at(40))]),
    ]
    assert [row for rows in emitted["counted"] for row in rows] == [(first, 4), (second, 2)]
    # Late rows have the columns that DISTINCT compares.
    assert [row[:2] for rows in emitted["too_late"] for row in rows] == [("a", first)]
    assert late == {"once": 1, "closed": 1, "early": 1, "counted": 1}
