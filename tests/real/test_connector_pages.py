"""The examples of the connector pages run unchanged."""

from __future__ import annotations

import datetime as dt
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.real.postgres import PASSWORD, Postgres
from tests.support.sessions import open_with, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.real.kafka import Broker

pytestmark = pytest.mark.spark

PAGES = Path(__file__).parents[2] / "docs" / "connectors"


def example(page: str) -> str:
    match = re.search(r"```sql\n(.*?)```", (PAGES / page).read_text("utf-8"), re.DOTALL)
    assert match is not None
    return match.group(1)


def test_delta_example(data: Path, spark: SparkSession, tmp_path: Path) -> None:
    from decimal import Decimal

    import pyarrow as pa
    from deltalake import write_deltalake

    from tests.support.delta import table_rows

    text = example("delta.md").replace("path = '", f"path = '{tmp_path}/")
    schema = pa.schema(
        [("id", pa.int64()), ("customer", pa.int64()), ("amount", pa.decimal128(10, 2)), ("day", pa.date32())]
    )  # fmt: skip

    def order(number: int, customer: int, amount: str) -> None:
        day = dt.date(2026, 1, number)
        row = {"id": number, "customer": customer, "amount": Decimal(amount), "day": day}
        write_deltalake(tmp_path / "orders", pa.Table.from_pylist([row], schema), mode="append")

    order(1, 7, "10.00")
    order(2, 8, "2.50")
    with open_with(data, spark, text) as session:
        session.start()
        session.wait()
        order(3, 7, "5.00")
        session.wait()
    large = [
        (number, str(amount), day.day)
        for number, _, amount, day in table_rows(tmp_path / "large_orders")
    ]
    assert large == [(1, "10.00", 1), (3, "5.00", 3)]
    totals = [(c, n, str(amount)) for c, n, amount in table_rows(tmp_path / "orders_by_customer")]
    assert totals == [(7, 2, "15.00"), (8, 1, "2.50")]


def test_kafka_to_postgres_example(
    data: Path,
    spark: SparkSession,
    broker: Broker,
    postgres: Postgres,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The example that `make demo-kafka` runs."""
    from examples.kafka_to_postgres import run

    for name in ("KAFKA_BROKERS", "SHOP_PORT", "SHOP_PASSWORD"):
        monkeypatch.setenv(name, "")
    run(data, broker, postgres, spark=spark)
    minutes = postgres.query("SELECT orders FROM orders_per_minute")
    assert minutes == [(100,)] * 10
    countries = postgres.query("SELECT country, orders FROM orders_by_country ORDER BY 1")
    assert countries == [(name, 250) for name in ("at", "be", "ch", "dk")]
    for table in ("customers", "orders_per_minute", "orders_by_country", "tidegate_commits"):
        postgres.run(f"DROP TABLE {table}")


def test_lookup_table_example(data: Path, spark: SparkSession) -> None:
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


def test_postgres_example(
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
