"""The examples of the connector pages run as they are written."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.real.postgres import PASSWORD, Postgres
from tests.spark.helpers import open_with, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

PAGES = Path(__file__).parents[2] / "docs" / "connectors"


def example(page: str) -> str:
    found = re.search(r"```sql\n(.*?)```", (PAGES / page).read_text("utf-8"), re.DOTALL)
    assert found is not None
    return found.group(1)


def test_lookup_tables(data: Path, spark: SparkSession) -> None:
    with open_with(data, spark, example("lookup.md")) as session:
        taxed = session.subscribe("taxed")
        session.start(until_end=True)
        session.wait()
        rows = sorted((r["id"], r["name"], r["kind"], r["tax"]) for r in rows_of(taxed.take_all()))
    table = re.findall(
        r"^\| (\d) \| (\S+) \| (\S+) \| (\S+) \|$", (PAGES / "lookup.md").read_text("utf-8"), re.M
    )
    shown = [
        tuple("NULL" if v is None else str(v) for v in (*r[:3], r[3] and round(r[3], 2)))
        for r in rows
    ]
    assert shown == table and len(table) == 3


def test_postgres(
    data: Path, spark: SparkSession, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", PASSWORD)
    text = (
        example("postgres.md")
        .replace("port = 5432", f"port = {postgres.port}")
        .replace("'localhost'", "'127.0.0.1'")
    )
    postgres.run("CREATE DATABASE shop")
    postgres.run(f"CREATE ROLE shop SUPERUSER LOGIN PASSWORD '{PASSWORD}'")
    shop = postgres.in_database("shop")
    shop.run("CREATE TABLE customers (id bigint PRIMARY KEY, name text, country text)")
    shop.run(
        "CREATE TABLE orders (id bigserial PRIMARY KEY, customer bigint, amount numeric(10,2), at timestamptz DEFAULT now())"
    )
    shop.run("INSERT INTO customers VALUES (1, 'Ann', 'at'), (2, 'Bob', 'be')")
    shop.run("INSERT INTO orders (customer, amount) VALUES (1, 10), (2, 5), (3, 7)")
    with open_with(data, spark, text) as session:
        session.start()
        session.wait()
        shop.run("INSERT INTO orders (customer, amount) VALUES (1, 2.5)")
        session.wait()
    assert sorted(shop.query("SELECT id, name, amount::text FROM named_orders"), key=lambda row: row[0]) == [
        (1, "Ann", "10.00"), (2, "Bob", "5.00"), (3, None, "7.00"), (4, "Ann", "2.50"),
    ]  # fmt: skip
    assert sorted(shop.query("SELECT country, orders, amount::text FROM orders_by_country")) == [
        ("at", 2, "12.50"),
        ("be", 1, "5.00"),
    ]
