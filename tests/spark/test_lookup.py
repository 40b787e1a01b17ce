"""Lookup joins with files and memory tables, compared with batch joins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.sessions import bag, open_with, play, rows_of
from tidegate.errors import TidegateError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SCRIPT = """
CREATE SOURCE orders (id BIGINT, customer INT, country STRING, amount DECIMAL(10,2), ts TIMESTAMP,
    WATERMARK FOR ts AS ts) WITH (connector = 'memory');
CREATE LOOKUP TABLE customers (id BIGINT, name STRING, country STRING, age INT, PRIMARY KEY (id)) WITH (connector = 'memory');
CREATE LOOKUP TABLE taxes (country STRING, kind STRING, rate DECIMAL(4,2)) WITH (connector = 'memory');
CREATE STREAM inner_join AS SELECT o.id, c.name FROM orders o JOIN customers c ON o.customer = c.id;
CREATE STREAM left_join AS SELECT o.id, c.name FROM orders o LEFT JOIN customers c ON o.customer = c.id AND c.age > o.amount;
CREATE STREAM both_keys AS SELECT o.id, c.name FROM orders o JOIN customers c ON c.id = o.customer AND o.country = c.country;
CREATE STREAM lookup_of_a_lookup AS SELECT o.id, c.name, t.kind, t.rate FROM orders o
    LEFT JOIN customers c ON o.customer = c.id LEFT JOIN taxes AS t ON c.country = t.country AND t.rate < o.amount;
CREATE STREAM the_same AS SELECT o.id, t.kind FROM orders o LEFT JOIN taxes AS t ON t.country = 'at' AND 20 = t.rate AND o.id < 3;
CREATE STREAM not_equal_types AS SELECT o.id, c.name FROM orders o JOIN customers c ON o.amount = c.age;
CREATE STREAM no_keys AS SELECT o.id, t.kind FROM orders o LEFT JOIN taxes t ON o.amount < t.rate AND t.kind <> o.country;
CREATE STREAM everything AS SELECT o.id, t.kind FROM orders o CROSS JOIN taxes t;
CREATE STREAM counted AS SELECT c.country, window_start, count(*) AS n, sum(o.amount) AS amount FROM orders o
    JOIN customers c ON o.customer = c.id GROUP BY c.country, TUMBLE(o.ts, INTERVAL '1' MINUTE);
CREATE STREAM last_of_country AS SELECT o.id, c.country FROM orders o JOIN customers c ON o.customer = c.id
    QUALIFY row_number() OVER (PARTITION BY c.country ORDER BY o.ts DESC) = 1 EMIT CHANGES;
"""
CUSTOMERS = [
    {"id": 1, "name": "Ann", "country": "at", "age": 30},
    {"id": 2, "name": "Bob", "country": "be", "age": 5},
    {"id": 3, "name": "Cid", "country": None, "age": None},
]
TAXES = [
    {"country": "at", "kind": "low", "rate": "1.5"},
    {"country": "at", "kind": "high", "rate": "20"},
    {"country": None, "kind": "none", "rate": "0"},
]


def order(
    number: int, customer: int | None, amount: str = "10", country: str = "at", minute: int = 0
) -> dict[str, Any]:
    return {
        "id": number,
        "customer": customer,
        "country": country,
        "amount": amount,
        "ts": f"2026-01-01T00:{minute:02d}:00",
    }


def test_lookups_equal_batch_joins(data: Path, spark: SparkSession) -> None:
    """One session runs all queries; each epoch equals a batch join."""
    names = [
        "inner_join",
        "left_join",
        "both_keys",
        "lookup_of_a_lookup",
        "the_same",
        "not_equal_types",
        "no_keys",
        "everything",
        "counted",
        "last_of_country",
    ]
    with open_with(data, spark, SCRIPT) as session:
        subscriptions = {name: session.subscribe(name) for name in names}
        session.insert("customers", CUSTOMERS)
        session.insert("taxes", TAXES)
        session.start()
        play(
            session,
            {
                "orders": [
                    order(1, 1),
                    order(2, 2, "7"),
                    order(3, 3),
                    order(4, None),
                    order(5, 9),
                    order(6, 1, "30", "be"),
                ]
            },
            {
                "customers": [
                    {"id": 9, "name": "Zoe", "country": "be", "age": 99},
                    {"id": 1, "name": "Ann B.", "country": "at", "age": 30},
                ]
            },
            {"orders": [order(7, 1), order(8, 9, "5.00", minute=1)]},
            {"orders": [order(9, 8, minute=5)]},
        )
        results = {
            name: rows_of(subscription.take_all()) for name, subscription in subscriptions.items()
        }

    def pairs(name: str) -> set[tuple[Any, ...]]:
        return {tuple(row.values()) for row in results[name]}

    assert pairs("inner_join") == {
        (1, "Ann"),
        (2, "Bob"),
        (3, "Cid"),
        (6, "Ann"),
        (7, "Ann B."),
        (8, "Zoe"),
    }
    assert pairs("left_join") == {
        (1, "Ann"), (2, None), (3, None), (4, None), (5, None), (6, None), (7, "Ann B."), (8, "Zoe"), (9, None),
    }  # fmt: skip
    assert pairs("both_keys") == {(1, "Ann"), (7, "Ann B.")}
    assert len(results["lookup_of_a_lookup"]) == 10
    assert {(i, k) for i, _, k, _ in pairs("lookup_of_a_lookup")} == {
        (1, "low"), (2, None), (3, None), (4, None), (5, None), (6, "low"), (6, "high"), (7, "low"), (8, None), (9, None),
    }  # fmt: skip
    assert pairs("the_same") == {(1, "high"), (2, "high"), *((i, None) for i in range(3, 10))}
    assert pairs("not_equal_types") == {(6, "Ann"), (8, "Bob")}
    assert pairs("no_keys") == {
        (1, "high"), (2, "high"), (3, "high"), (4, "high"), (5, "high"), (6, None), (7, "high"), (8, "high"), (9, "high"),
    }  # fmt: skip
    assert pairs("everything") == {(i, k) for i in range(1, 10) for k in ("low", "high", "none")}
    assert {(c, n, str(a)) for c, _, n, a in pairs("counted")} == {
        ("at", 3, "50.00"),
        ("be", 1, "7.00"),
        (None, 1, "10.00"),
        ("be", 1, "5.00"),
    }
    assert results["last_of_country"], "a changelog above a lookup failed"


@pytest.mark.parametrize("kind", ["parquet", "json", "csv"])
def test_changed_files_are_read_again(
    data: Path, tmp_path: Path, spark: SparkSession, kind: str
) -> None:
    folder = tmp_path / "customers"
    folder.mkdir()

    def write(name: str, *rows: tuple[int, str]) -> None:
        aside = tmp_path / name
        if kind == "parquet":
            pq.write_table(
                pa.table({"id": [i for i, _ in rows], "name": [n for _, n in rows]}), aside
            )
        elif kind == "json":
            aside.write_text("".join(json.dumps({"id": i, "name": n}) + "\n" for i, n in rows))
        else:
            aside.write_text("id,name\n" + "".join(f"{i},{n}\n" for i, n in rows))
        aside.rename(folder / name)

    script = f"""
    CREATE SOURCE orders (id BIGINT) WITH (connector = 'memory');
    CREATE LOOKUP TABLE customers (id BIGINT, name STRING, PRIMARY KEY (id)) WITH (connector = 'files', path = '{folder}', format = '{kind}');
    CREATE STREAM named AS SELECT o.id, c.name FROM orders o LEFT JOIN customers c ON o.id = c.id;
    """
    write("1", (1, "Ann"), (2, "Bob"))
    with open_with(data, spark, script) as session:
        named = session.subscribe("named")
        session.start()
        play(session, {"orders": [{"id": 1}, {"id": 3}]})
        write("2", (1, "Ann B."), (3, "Cid"))
        play(session, {"orders": [{"id": 1}, {"id": 2}, {"id": 3}]})
        (folder / "1").unlink()
        play(session, {"orders": [{"id": 2}]})
        names = [(row["id"], row["name"]) for row in rows_of(named.take_all())]
    assert sorted(names[:2]) == [(1, "Ann"), (3, None)]
    assert sorted(names[2:5]) == [(1, "Ann B."), (2, "Bob"), (3, "Cid")]
    assert names[5:] == [(2, None)]


def test_unreadable_file_stops_the_stream_and_is_named(
    data: Path, tmp_path: Path, spark: SparkSession
) -> None:
    folder = tmp_path / "customers"
    folder.mkdir()
    (folder / "a.json").write_text('{"id": 1, "name": "Ann"}\n{"id": "x"}\n')
    script = f"""
    CREATE SOURCE orders (id BIGINT) WITH (connector = 'memory');
    CREATE LOOKUP TABLE customers (id BIGINT, name STRING) WITH (connector = 'files', path = '{folder}', format = 'json');
    CREATE STREAM named AS SELECT o.id, c.name FROM orders o LEFT JOIN customers c ON o.id = c.id;
    """
    with open_with(data, spark, script) as session:
        session.subscribe("named")
        session.insert("orders", [{"id": 1}])
        session.start()
        with pytest.raises(TidegateError, match=r"customers cannot be read: line 2 of .*a\.json"):
            session.wait()


def test_inserted_rows_survive_a_restart_and_two_streams_agree(
    data: Path, spark: SparkSession
) -> None:
    script = """
    CREATE SOURCE orders (id BIGINT) WITH (connector = 'memory');
    CREATE LOOKUP TABLE customers (id BIGINT, name STRING, PRIMARY KEY (id)) WITH (connector = 'memory');
    INSERT INTO customers VALUES (1, 'Ann'), (1, 'Ann B.'), (2, 'Bob');
    CREATE STREAM one AS SELECT o.id, c.name FROM orders o JOIN customers c ON o.id = c.id;
    CREATE STREAM other AS SELECT name, id FROM one WHERE id < 3;
    """
    with open_with(data, spark, script) as session:
        streams = [session.subscribe("one"), session.subscribe("other")]
        session.start()
        play(session, {"orders": [{"id": 1}, {"id": 2}, {"id": 3}]})
    with open_with(data, spark, script.replace("INSERT INTO", "-- INSERT INTO")) as session:
        streams = [session.subscribe("one"), session.subscribe("other")]
        session.start()
        play(session, {"orders": [{"id": 1}]})
        first, second = (rows_of(stream.take_all()) for stream in streams)
    assert (
        bag(first)
        == bag(second)
        == bag([{"id": i, "name": n} for i, n in ((1, "Ann B."), (2, "Bob"), (1, "Ann B."))])
    )
