"""What compares sinks with a batch sees a row that is missing, and one that is there twice."""

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


class Fake:
    """Sinks that have what the batch gives, changed by `change`."""

    def __init__(self, change: Any = None) -> None:
        self.change = change

    def rows(self, kind: str, stream: str) -> list[dict[str, Any]]:
        rows = [dict(row) for row in BATCH[stream]]
        if stream == "named":
            rows = [{**row, "dice": row["id"] / 7} for row in rows]
        # JSON leaves out what is NULL.
        rows = [{k: v for k, v in row.items() if v is not None} for row in rows]
        if self.change is not None:
            self.change(kind, stream, rows)
        return rows


def differing(change: Any = None) -> dict[str, Difference]:
    found = compare(Fake(change), KINDS, BATCH)  # type: ignore[arg-type]
    return {name: item for name, item in found.items() if not item.is_none}


def test_what_is_equal_is_equal() -> None:
    assert all(BATCH.values()) and differing() == {}


@pytest.mark.parametrize(("stream", "kind"), [("sales", "kafka"), ("pairs", "files")])
def test_a_lost_and_a_doubled_row_are_seen(stream: str, kind: str) -> None:
    def lose(where: str, what: str, rows: list[Any]) -> None:
        if (what, where) == (stream, kind):
            rows.pop()

    def double(where: str, what: str, rows: list[Any]) -> None:
        if (what, where) == (stream, kind):
            rows.append(rows[0])

    count = len(BATCH[stream])
    name = f"{stream} in {kind}"
    assert differing(lose) == {name: Difference(count - 1, 1, 0)}
    assert differing(double) == {name: Difference(count + 1, 0, 1)}


def test_rows_that_were_computed_again_are_seen() -> None:
    def roll(where: str, what: str, rows: list[Any]) -> None:
        if (what, where) == ("named", "files"):
            rows[3]["dice"] = 0.5

    assert differing(roll) == {"dice in kafka and files": Difference(30, 1, 1)}
