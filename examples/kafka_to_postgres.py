"""Starts a broker and a database, puts orders into a topic, runs the pipeline and shows its tables.

python -m examples.kafka_to_postgres
"""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

import tidegate
from examples.systems import PASSWORD, Broker, Postgres

SCRIPT = Path(__file__).with_suffix(".sql")
COUNTRIES = ("at", "be", "ch", "dk")
ORDERS = 1_000
PARTITIONS = 3


def fill(broker: Broker) -> None:
    """Ten minutes of orders, the same every time."""
    admin = AdminClient({"bootstrap.servers": broker.brokers})
    admin.create_topics([NewTopic("orders", PARTITIONS, 1)])["orders"].result(30)
    producer = Producer({"bootstrap.servers": broker.brokers})
    start = datetime(2026, 1, 1, 12, tzinfo=UTC)
    for number in range(ORDERS):
        order = {
            "id": number,
            "customer": number * 7 % 100,
            "amount": number * 37 % 10_000 / 100,
            "ts": (start + timedelta(seconds=0.6 * number)).isoformat(),
        }
        producer.produce("orders", json.dumps(order), partition=number % PARTITIONS)
    assert producer.flush(60) == 0, "the broker takes all of them"


def show(connection: psycopg.Connection, table: str) -> None:
    rows = connection.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall()
    print(f"\n{table}")
    for row in rows:
        print("  ", *row, sep="  ")


def run(data: Path, broker: Broker, database: Postgres, **how: Any) -> None:
    os.environ["KAFKA_BROKERS"] = broker.brokers
    os.environ["SHOP_PORT"] = str(database.port)
    os.environ["SHOP_PASSWORD"] = PASSWORD
    login = f"host=127.0.0.1 port={database.port} dbname=postgres user=postgres"
    with closing(psycopg.connect(login, password=PASSWORD, autocommit=True)) as connection:
        connection.execute("CREATE TABLE customers (id bigint PRIMARY KEY, country text)")
        for number in range(100):
            row = (number, COUNTRIES[number % len(COUNTRIES)])
            connection.execute("INSERT INTO customers VALUES (%s, %s)", row)
        fill(broker)
        with tidegate.open(data, **how) as session:
            session.execute(SCRIPT.read_text("utf-8"))
            session.start(until_end=True)
            session.wait()
        show(connection, "orders_per_minute")
        show(connection, "orders_by_country")


def main() -> None:
    print("Starting a broker (its jars are fetched once) and a database …", flush=True)
    with tempfile.TemporaryDirectory(prefix="tidegate-demo-") as name:
        folder = Path(name)
        database = Postgres()
        broker = Broker(folder)
        try:
            broker.start()
            print(f"{ORDERS} orders go through {SCRIPT.name} …", flush=True)
            run(folder / "data", broker, database, master="local[2]")
        finally:
            broker.kill()
            database.close()


if __name__ == "__main__":
    main()
