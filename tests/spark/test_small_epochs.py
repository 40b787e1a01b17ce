"""Small epochs run in one task and one stage; others have one shuffle between two levels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.sessions import open_with, rows_of
from tidegate.runtime import epoch as cutting

pytestmark = pytest.mark.spark

SCRIPT = """
CREATE SOURCE s (k BIGINT, v BIGINT, at TIMESTAMP, WATERMARK FOR at AS at)
    WITH (connector = 'memory', inserts_per_epoch = 1);
CREATE STREAM best AS SELECT k, window_end, sum(v) AS total FROM s
    GROUP BY k, TUMBLE(at, INTERVAL '10' SECONDS)
    QUALIFY row_number() OVER (PARTITION BY window_end ORDER BY sum(v) DESC, k) <= 2;
"""
OTHER = (
    "CREATE STREAM pairs AS SELECT a.k, b.v FROM s AS a JOIN s AS b ON a.k = b.k AND a.at = b.at;"
)


def _rows(first: int) -> list[dict[str, Any]]:
    return [
        {"k": n % 5, "v": n, "at": f"2026-01-01T00:{n // 60:02}:{n % 60:02}Z"}
        for n in range(first, first + 40)
    ]


def _run(path: Path, spark: Any, script: str, names: list[str]) -> dict[str, list[Any]]:
    with open_with(path, spark, script) as session:
        outs = {name: session.subscribe(name) for name in names}
        for first in (0, 40, 80):
            session.insert("s", _rows(first))
        session.start(until_end=True)
        session.wait()
        return {name: rows_of(out.take_all()) for name, out in outs.items()}


def _best() -> list[tuple[int, int]]:
    best = []
    for start in range(0, 120, 10):
        sums = {k: sum(n for n in range(start, start + 10) if n % 5 == k) for k in range(5)}
        best += sorted(sums.items(), key=lambda item: (-item[1], item[0]))[:2]
    return sorted(best)


def test_small_epoch_of_chained_operators_is_one_stage(
    spark: Any, data: Path, plans: list[str]
) -> None:
    emitted = _run(data, spark, SCRIPT, ["best"])["best"]
    assert sorted((row["k"], row["total"]) for row in emitted) == _best()
    assert len(plans) == 3
    _assert_one_call(plans)


def _assert_one_call(plans: list[str]) -> None:
    """Check that all levels of each job run in one call of Python, without a shuffle."""
    for plan in plans:
        counts = [plan.count(name) for name in ("Range (", "MapInArrow", "Exchange")]
        assert counts == [1, 1, 0], plan


def test_small_epoch_of_several_streams_is_one_stage(
    spark: Any, data: Path, plans: list[str]
) -> None:
    emitted = _run(data, spark, SCRIPT + OTHER, ["best", "pairs"])
    assert sorted((row["k"], row["total"]) for row in emitted["best"]) == _best()
    assert sorted(row["v"] for row in emitted["pairs"]) == list(range(120))
    _assert_one_call(plans)


def test_larger_epoch_has_one_shuffle_between_two_levels(
    spark: Any, data: Path, plans: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cutting, "_SMALL_BYTES", -1)
    emitted = _run(data, spark, SCRIPT + OTHER, ["best", "pairs"])
    assert sorted((row["k"], row["total"]) for row in emitted["best"]) == _best()
    assert sorted(row["v"] for row in emitted["pairs"]) == list(range(120))
    assert len(plans) == 3
    for plan in plans:
        # The read; the window aggregate and the join; the top-N.
        counts = [plan.count(name) for name in ("Range (", "MapInArrow", "Exchange")]
        assert counts == [1, 3, 2], plan
