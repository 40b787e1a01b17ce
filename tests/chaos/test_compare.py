"""The comparison of sinks with a batch detects missing, duplicate and changed rows."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chaos.batch import Difference, compare, expected

TOPICS = {
    "bids": [
        {"id": n, "auction": n % 3, "price": n, "ts": f"2026-01-01T00:00:{n:02d}+00:00"}
        for n in range(30)
    ],
    "asks": [{"id": 99, "auction": 0, "price": 5, "ts": "2026-01-01T00:00:04+00:00"}],
}
BATCH = expected(TOPICS, {0: "a", 1: "b"})
KINDS = {"kafka": ("sales", "named"), "files": ("named", "best", "totals", "pairs")}


class FakeSinks:
    """Sinks with the rows of the batch, changed by `change`."""

    def __init__(self, change: Any = None) -> None:
        self.change = change

    def rows(self, kind: str, stream: str) -> list[dict[str, Any]]:
        rows = [dict(row) for row in BATCH[stream]]
        if stream == "named":
            rows = [{**row, "dice": row["id"] / 7} for row in rows]
        # JSON records have no fields for NULL.
        rows = [{k: v for k, v in row.items() if v is not None} for row in rows]
        if self.change is not None:
            self.change(kind, stream, rows)
        return rows


def find_differences(change: Any = None) -> dict[str, Difference]:
    differences = compare(FakeSinks(change), KINDS, BATCH)  # type: ignore[arg-type]
    return {name: item for name, item in differences.items() if not item.is_none}


def test_equal_sinks_have_no_differences() -> None:
    assert all(BATCH.values()) and find_differences() == {}


@pytest.mark.parametrize(("stream", "kind"), [("sales", "kafka"), ("pairs", "files")])
def test_missing_and_duplicate_rows_are_detected(stream: str, kind: str) -> None:
    def lose(sink: str, name_of_stream: str, rows: list[Any]) -> None:
        if (name_of_stream, sink) == (stream, kind):
            rows.pop()

    def double(sink: str, name_of_stream: str, rows: list[Any]) -> None:
        if (name_of_stream, sink) == (stream, kind):
            rows.append(rows[0])

    count = len(BATCH[stream])
    name = f"{stream} in {kind}"
    assert find_differences(lose) == {name: Difference(count - 1, 1, 0)}
    assert find_differences(double) == {name: Difference(count + 1, 0, 1)}


def test_recomputed_rows_are_detected() -> None:
    def roll(sink: str, name_of_stream: str, rows: list[Any]) -> None:
        if (name_of_stream, sink) == ("named", "files"):
            rows[3]["dice"] = 0.5

    assert find_differences(roll) == {"dice in kafka and files": Difference(30, 1, 1)}
