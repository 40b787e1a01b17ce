"""The postgres lookup table with a real server: batches, cache and concurrent queries."""

from __future__ import annotations

import datetime as dt
import threading
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tests.real.postgres import Postgres
from tests.support.compiling import compile_text
from tidegate.catalog.objects import LookupTable
from tidegate.connectors.base import LookupContext
from tidegate.connectors.postgres.lookup import (
    PostgresLookup,
    PostgresLookupReaderFactory,
    WorkerLookup,
)
from tidegate.errors import SystemUnavailable, TidegateError

COLUMNS = "id BIGINT, part STRING, price DECIMAL(10,2), code STRING, at TIMESTAMP"
KINDS = [
    ("id", "BIGINT"),
    ("part", "STRING"),
    ("price", "DECIMAL(10,2)"),
    ("code", "STRING"),
    ("at", "TIMESTAMP"),
]
CODE = "0b9c7a6e-3f5d-4c1b-9a8e-7d6c5b4a3f2e"
NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)


@pytest.fixture(scope="module")
def stock(postgres: Postgres) -> str:
    postgres.run(
        "CREATE TABLE stock (id int, part varchar(9), price numeric(8,2), code uuid, at timestamptz, kind text)"
    )
    postgres.run(
        f"INSERT INTO stock SELECT n, 'p' || n % 2, n / 4.0, CASE WHEN n = 1 THEN '{CODE}'::uuid END, '2026-01-01 12:00Z' FROM generate_series(0, 2999) n"
    )
    postgres.run("INSERT INTO stock VALUES (1, 'p1', 9, NULL, NULL), (NULL, 'p1', 8, NULL, NULL)")
    return "stock"


def lookup_of(postgres: Postgres, columns: str = COLUMNS, **options: Any) -> PostgresLookup:
    clause = postgres.options(options.pop("table", "stock"), **options)
    compiled = compile_text(f"CREATE LOOKUP TABLE stock ({columns}) WITH ({clause});")
    assert not compiled.errors and not compiled.rejections
    table = compiled.catalog.get("stock")
    assert isinstance(table, LookupTable)
    return PostgresLookup(LookupContext(table, "", ""))


def reader_of(postgres: Postgres, *keys: str, **options: Any) -> PostgresLookupReaderFactory:
    return lookup_of(postgres, **options).reader_factory(KINDS, keys)


def look_up(reader: PostgresLookupReaderFactory, now_us: int, *keys: pa.Array) -> list[list[Any]]:
    """Return the ids and prices for each key."""
    result = reader.open(None, now_us).find(list(keys))
    rows = result.rows.to_pylist()
    spans = zip(result.starts.tolist(), result.counts.tolist(), strict=True)
    return [sorted((row["id"], str(row["price"])) for row in rows[at : at + n]) for at, n in spans]


def test_looks_up_by_one_key_two_keys_and_keys_of_other_types(
    postgres: Postgres, stock: str
) -> None:
    by_id = reader_of(postgres, "id")
    assert look_up(by_id, 0, pa.array([1, 2, 5_000_000_000, 1])) == [
        [(1, "0.25"), (1, "9.00")], [(2, "0.50")], [], [(1, "0.25"), (1, "9.00")],
    ]  # fmt: skip
    two_keys = reader_of(postgres, "part", "id")
    assert look_up(two_keys, 0, pa.array(["p0", "p1", "p0"]), pa.array([2, 2, 4])) == [
        [(2, "0.50")],
        [],
        [(4, "1.00")],
    ]
    texts = pa.array([CODE, "no uuid", CODE.upper()])
    assert look_up(reader_of(postgres, "code"), 0, texts) == [[(1, "0.25")], [], []]
    prices = pa.array([Decimal("0.50"), Decimal("0.51")], pa.decimal128(10, 2))
    assert look_up(reader_of(postgres, "price"), 0, prices) == [[(2, "0.50")], []]
    times = pa.array([NOON], pa.timestamp("us", "UTC"))
    assert len(look_up(reader_of(postgres, "at"), 0, times)[0]) == 3_000


def test_queries_a_thousand_keys_at_once_and_cached_keys_not_at_all(
    postgres: Postgres, stock: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch_sizes: list[int] = []
    under_way = threading.Semaphore(0)
    plain = WorkerLookup._query

    def counted(self: WorkerLookup, keys: list[pa.Array]) -> pa.Table:
        batch_sizes.append(len(keys[0]))
        under_way.release()
        # The barrier is passed only if all three queries run concurrently.
        if len(keys[0]) > 100:
            under_way.acquire()
        return plain(self, keys)

    monkeypatch.setattr(WorkerLookup, "_query", counted)
    reader = reader_of(postgres, "id", cache_ttl="1 s", async_capacity=3)
    keys = pa.array([*range(1_500), *range(1_500), *range(2_900, 3_900)])
    assert [len(rows) for rows in look_up(reader, 0, keys)][-900:] == [0] * 900
    assert sorted(batch_sizes) == [500, 1_000, 1_000]
    look_up(reader, 999_999, keys)
    assert len(batch_sizes) == 3, "missing keys are cached, too"
    postgres.run("UPDATE stock SET price = 7 WHERE id = 42")
    assert look_up(reader, 999_999, pa.array([42])) == [[(42, "10.50")]]
    assert look_up(reader, 1_000_000, pa.array([42])) == [[(42, "7.00")]]
    assert batch_sizes[3:] == [1]


def test_unavailable_database_is_transient_and_queried_again(
    postgres: Postgres, stock: str
) -> None:
    reader = reader_of(postgres, "id", cache_rows=0)
    assert look_up(reader, 0, pa.array([3])) == [[(3, "0.75")]]
    postgres.kill()
    with pytest.raises(SystemUnavailable, match="the lookup table stock"):
        look_up(reader, 0, pa.array([3]))
    postgres.start()
    assert look_up(reader, 0, pa.array([3])) == [[(3, "0.75")]]


@pytest.mark.parametrize(
    ("columns", "why", "hint"),
    [
        ("id BIGINT, colour STRING", "declares the column colour", "columns it has"),
        ("id STRING", "it is integer", "declare id INT."),
        ("price DOUBLE", "it is numeric(8,2)", "declare price DECIMAL(8,2)."),
        ("at TIMESTAMP_NTZ", "it is timestamp with time zone", "declare at TIMESTAMP."),
    ],
)
def test_rejects_unsuitable_columns(
    postgres: Postgres, stock: str, columns: str, why: str, hint: str
) -> None:
    with pytest.raises(TidegateError) as caught:
        lookup_of(postgres, columns)
    assert why in caught.value.message and hint in (caught.value.hint or "")


def test_value_out_of_range_is_an_error(postgres: Postgres, stock: str) -> None:
    lookup = lookup_of(postgres, "id BIGINT, price DECIMAL(3,2)")
    with pytest.raises(TidegateError, match="a value of the column price does not fit"):
        lookup.reader_factory([("id", "BIGINT"), ("price", "DECIMAL(3,2)")], ["id"]).open(
            None, 0
        ).find([pa.array([2_999])])


def test_rejects_queries_that_read_looked_up_rows_twice(postgres: Postgres) -> None:
    script = f"""
    CREATE SOURCE o (id BIGINT, ts TIMESTAMP, WATERMARK FOR ts AS ts) WITH (connector = 'memory');
    CREATE LOOKUP TABLE stock (id BIGINT, part STRING) WITH ({postgres.options("stock")});
    CREATE STREAM named AS SELECT o.id, o.ts, s.part FROM o JOIN stock s ON o.id = s.id;
    CREATE STREAM twice AS SELECT a.id FROM named a JOIN named b ON a.part = b.part AND a.ts = b.ts;
    CREATE STREAM two AS SELECT o.id, s.part, t.part AS other FROM o JOIN stock s ON o.id = s.id JOIN stock t ON o.id + 1 = t.id;
    """
    errors = compile_text(script).rejections
    assert [error.code for error in errors] == ["TG-501"]
    assert "reads the result of the lookup in stock twice" in errors[0].message
    assert not compile_text(
        script.replace("postgres", "memory").replace(
            postgres.options("stock"), "connector = 'memory'"
        )
    ).rejections
