"""The generator source as far as it can be tested without Spark."""

import subprocess
import sys
from itertools import pairwise
from typing import Any

import pytest

from tidegate.connectors.generator import generator
from tidegate.connectors.generator.nexmark import TABLES, CycleSlice


def test_importing_the_module_loads_no_pyspark() -> None:
    program = (
        "import sys, tidegate.connectors.generator.generator; sys.exit('pyspark' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"kind": "series"}, "n key value ts"),
        ({"kind": "nexmark"}, "auction bidder price channel url date_time extra"),
        (
            {"kind": "nexmark", "table": "person"},
            "id name email_address credit_card city state date_time extra",
        ),
        (
            {"kind": "nexmark", "table": "auction"},
            "id item_name description initial_bid reserve date_time expires seller category extra",
        ),
    ],
)
def test_columns(options: dict[str, Any], expected: str) -> None:
    columns = generator.columns(options)
    assert [name for name, _ in columns] == expected.split()
    assert {sql_type for _, sql_type in columns} <= {"BIGINT", "STRING", "TIMESTAMP", "DOUBLE"}


@pytest.mark.parametrize(
    "options",
    [
        {"kind": "random"},
        {"kind": "nexmark", "table": "bids"},
        {"kind": "series", "keys": 0},
        {"rows": -1},
        {"events_per_second": 0},
        {"out_of_order_ms": -1},
        {"start": "tomorrow"},
    ],
)
def test_rejects_invalid_options(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        generator.columns(options)


def test_every_event_belongs_to_exactly_one_table() -> None:
    for event in range(120):
        takers = [
            name
            for name, table in TABLES.items()
            if table.cycle_slice.rank(event + 1) > table.cycle_slice.rank(event)
        ]
        assert takers == ["person" if event % 50 == 0 else "auction" if event % 50 < 4 else "bid"]


def test_rows_between_offsets_add_up() -> None:
    offsets: list[dict[str, int] | None] = [None, *({"event": n} for n in (3, 4, 57, 1000))]
    bids = [
        generator.rows_between({"table": "bid"}, start, end)
        for start, end in pairwise(offsets)
        if end is not None
    ]
    assert bids == [0, 0, 46 + 3, 920 - 49]


def test_rejects_a_slice_outside_of_its_cycle() -> None:
    with pytest.raises(ValueError, match="within its cycle"):
        CycleSlice(cycle=50, first=4, width=47)
