"""The SQL files in examples/ are valid, and the generator of the live shop writes their input."""

from __future__ import annotations

import importlib.util
import json
from datetime import datetime, timedelta
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.compiling import compile_text

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("name", ["demo.sql", "shop/live.sql", "shop/shop.sql"])
def test_example_is_valid(name: str) -> None:
    assert compile_text((EXAMPLES / name).read_text("utf-8"), name).errors == ()


@pytest.fixture(scope="module")
def rows() -> ModuleType:
    spec = importlib.util.spec_from_file_location("rows", EXAMPLES / "shop" / "rows.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_live_shop_writes_clicks_and_due_orders(rows: ModuleType, tmp_path: Path) -> None:
    shop = rows.LiveShop(tmp_path, clicks_per_second=200, seed=1)
    start = datetime(2026, 1, 1, 12)
    for second in range(40):
        shop.write_second(start + timedelta(seconds=second))
    lines = [
        line
        for file in sorted((tmp_path / "clicks").iterdir())
        for line in file.read_text().splitlines()
    ]
    assert len(lines) > 4000
    clicks = [json.loads(line) for line in lines if line.endswith("}}") or line.endswith('"}')]
    assert 0 < len(lines) - len(clicks) < len(lines) // 100, "one line in 500 is malformed"
    orders = [line for file in (tmp_path / "orders").iterdir() for line in file.read_text().split()]
    assert "id,user_id,amount,ts" in orders
    buyers = {line.split(",")[1] for line in orders if not line.startswith("id")}
    visitors = {str(click["user_id"]) for click in clicks if click["page"] == "/checkout"}
    assert buyers and buyers <= visitors
