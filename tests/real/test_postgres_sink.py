"""The postgres sink with a real server, without Spark: exactly-once, and rejected tables."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.real.postgres import PASSWORD, Postgres
from tests.support.compiling import compile_text
from tidegate.catalog.objects import Sink
from tidegate.checkpoint.manifest import EpochRange
from tidegate.connectors.base import CommittedState, EpochId, SinkContext, StreamSchema
from tidegate.connectors.postgres.sink import PostgresSink
from tidegate.errors import SystemUnavailable, TidegateError
from tidegate.types import ChangelogKind

ROWS = StreamSchema((("id", "BIGINT"), ("name", "STRING")))
KEYED = StreamSchema(ROWS.columns, ChangelogKind.CHANGELOG, ("id",), True, frozenset())
_numbers = itertools.count()


@pytest.fixture
def table(postgres: Postgres) -> Iterator[str]:
    name = f"t{next(_numbers)}"
    postgres.drop_staged()
    yield name
    postgres.run(f"DROP TABLE IF EXISTS {name}")


def sink_of(
    postgres: Postgres,
    table: str,
    rows: StreamSchema = ROWS,
    stream: str = "abcd1234",
    **options: Any,
) -> PostgresSink:
    clause = postgres.options(table, **{"create_table": "true", **options})
    text = "CREATE SOURCE s (id BIGINT) WITH (connector = 'memory'); CREATE STREAM q AS SELECT * FROM s;"
    compiled = compile_text(f"{text} CREATE SINK out FROM q WITH ({clause});")
    assert not compiled.errors, compiled.errors
    declared = compiled.catalog.get("out")
    assert isinstance(declared, Sink)
    return PostgresSink(SinkContext(declared, "", stream, lambda *_: None, schema=rows))


def staged(sink: PostgresSink, epoch: EpochId, *tasks: list[dict[str, Any]]) -> list[Any]:
    """Stage the rows of an epoch and return the committables."""
    names = [name for name, _ in sink.stream_schema.columns] + (
        ["_op"] if sink.stream_schema.has_op else []
    )
    schema = pa.schema([(name, pa.int64() if name == "id" else pa.string()) for name in names])
    factory = sink.writer_factory(schema)
    committables: list[Any] = []
    for task, rows in enumerate(tasks):
        writer_factory = factory.open(epoch.stamp, task)
        for row in rows:
            writer_factory.add(pa.Table.from_pylist([row], schema))
        committables += writer_factory.finish()
    return committables


def opened(
    postgres: Postgres, table: str, rows: StreamSchema = ROWS, **options: Any
) -> PostgresSink:
    sink = sink_of(postgres, table, rows, **options)
    sink.recover(CommittedState(None))
    return sink


def row(number: int, name: str | None = None, op: str | None = None) -> dict[str, Any]:
    return {"id": number, "name": name, **({"_op": op} if op else {})}


def table_rows(postgres: Postgres, table: str) -> list[tuple[Any, ...]]:
    return sorted(postgres.query(f"SELECT id, name FROM {table}"))


E0, E1, E2 = EpochId(0, 0), EpochId(0, 1), EpochId(0, 2)


def test_rows_are_invisible_before_publish_which_can_be_repeated(
    postgres: Postgres, table: str
) -> None:
    sink = opened(postgres, table)
    committables = staged(sink, E0, [row(1, "a"), row(2, None)], [row(1, "a")], [])
    assert len(committables) == 2
    assert table_rows(postgres, table) == []
    for _ in range(3):
        sink.publish(E0, committables)
    assert sorted(postgres.query(f"SELECT id, count(*) FROM {table} GROUP BY id")) == [
        (1, 2),
        (2, 1),
    ]
    assert postgres.staged() == []
    # A later process publishes the committed epoch, once.
    next_epoch = staged(sink, E1, [row(3, "c")])
    other = sink_of(postgres, table)
    other.recover(CommittedState(E1, next_epoch, E1))
    other.recover(CommittedState(E1, next_epoch, E1))
    sink.publish(E1, next_epoch)
    assert postgres.query(f"SELECT id FROM {table} WHERE id = 3") == [(3,)]


def test_recover_drops_staging_tables_except_of_the_next_epoch(
    postgres: Postgres, table: str
) -> None:
    sink = opened(postgres, table)
    staged(sink, E0, [row(1)])
    committed = staged(sink, E0, [row(2)])
    following = staged(sink, E1, [row(3)])
    sink_of(postgres, table).recover(CommittedState(E0, committed, E0))
    assert postgres.staged() == [following[0]["table"]]
    sink.publish(E1, following)
    assert [
        number for number, _ in postgres.query(f"SELECT id, name FROM {table} ORDER BY id")
    ] == [2, 3]


def test_two_sinks_of_one_task_are_independent(postgres: Postgres, table: str) -> None:
    first = opened(postgres, table)
    other = sink_of(postgres, f"{table}_b")
    other.name = "other"
    other.recover(CommittedState(None))
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    writer_factories = [sink.writer_factory(schema).open(E0.stamp, 0) for sink in (first, other)]
    for number in (1, 2):
        for writer_factory in writer_factories:
            writer_factory.add(pa.Table.from_pylist([row(number, "a")], schema))
    for sink, writer_factory in zip((first, other), writer_factories, strict=True):
        sink.publish(E0, writer_factory.finish())
    assert table_rows(postgres, table) == table_rows(postgres, f"{table}_b") == [(1, "a"), (2, "a")]


def test_staged_rows_survive_a_crash_of_the_server(postgres: Postgres, table: str) -> None:
    sink = opened(postgres, table)
    committables = staged(sink, E0, [row(1, "a")])
    postgres.kill()
    with pytest.raises(SystemUnavailable) as caught:
        sink.publish(E0, committables)
    assert caught.value.retryable and "the sink out" in caught.value.message
    with pytest.raises(SystemUnavailable):
        staged(sink, E1, [row(2)])
    postgres.start()
    sink.publish(E0, committables)
    sink.publish(E1, staged(sink, E1, [row(2, "b")]))
    assert table_rows(postgres, table) == [(1, "a"), (2, "b")]


def test_fences_older_generations(postgres: Postgres, table: str) -> None:
    zombie = opened(postgres, table)
    zombie.publish(E0, staged(zombie, E0, [row(1, "a")]))
    late = staged(zombie, E1, [row(2, "zombie")])
    line = [EpochRange(0, -1, 0), EpochRange(1, 2, 3)]
    newer = sink_of(postgres, table)
    newer.recover(CommittedState(EpochId(1, 3), (), E0, line))
    newer.recover(CommittedState(EpochId(1, 3), (), E0, line))
    with pytest.raises(TidegateError, match="generation 1 of its pipeline"):
        zombie.publish(E1, late)
    newer.publish(EpochId(1, 4), staged(newer, EpochId(1, 4), [row(3, "c")]))
    zombie.publish(E0, [{"table": "_tidegate_gone", "rows": 1}])
    assert table_rows(postgres, table) == [(1, "a"), (3, "c")]


def test_rejects_a_marker_that_is_ahead_or_lost_or_of_another_pipeline(
    postgres: Postgres, table: str
) -> None:
    sink = opened(postgres, table)
    committables = staged(sink, E1, [row(1, "a")])
    sink.publish(E1, committables)
    with pytest.raises(TidegateError, match="contains epoch 1 of generation 0 of the sink out"):
        sink_of(postgres, table).recover(CommittedState(E0, (), E0))
    with pytest.raises(TidegateError, match="contains rows that an earlier pipeline wrote"):
        sink_of(postgres, table, stream="other").recover(CommittedState(None))
    sink_of(postgres, table, stream="other", existing="append").recover(CommittedState(None))
    postgres.run(f"DELETE FROM tidegate_commits WHERE target = 'public.{table}'")
    with pytest.raises(TidegateError, match=r"marker of the sink out is missing"):
        sink_of(postgres, table).recover(CommittedState(E2, committables, E2))
    with pytest.raises(TidegateError, match=r"marker of the sink out is missing"):
        sink.publish(E2, committables)


changes = st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["a", "b", None])), max_size=8)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(changes, min_size=1, max_size=3), st.randoms(use_true_random=False))
def test_changelog_in_any_order_leaves_its_net_rows(
    postgres: Postgres, epochs: list, chance: Any
) -> None:
    """Each step upserts or deletes a key; the tasks get the changes in any order."""
    table = f"t{next(_numbers)}"
    sink = opened(postgres, table, KEYED)
    standing: dict[int, str] = {}
    for number, steps in enumerate(epochs):
        rows = []
        for key, name in steps:
            before = standing.pop(key, None)
            if name is None:
                rows += [row(key, before, "-D")] if before is not None else []
                continue
            rows += (
                [row(key, before, "-U"), row(key, name, "+U")]
                if before is not None
                else [row(key, name, "+I")]
            )
            standing[key] = name
        chance.shuffle(rows)
        half = len(rows) // 2
        epoch = EpochId(0, number)
        committables = staged(sink, epoch, rows[:half], rows[half:])
        sink.publish(epoch, committables)
        sink.publish(epoch, committables)
        assert table_rows(postgres, table) == sorted(standing.items())
    postgres.run(f"DROP TABLE {table}")


def test_updates_rows_with_null_keys_and_upserts_without_op(postgres: Postgres, table: str) -> None:
    rows = StreamSchema(ROWS.columns, ChangelogKind.UPSERT, ("id",), True, frozenset({"id"}))
    sink = opened(postgres, table, rows)
    sink.publish(E0, staged(sink, E0, [row(None, "x", "+I"), row(1, "a", "+I")]))  # type: ignore[arg-type]
    sink.publish(E1, staged(sink, E1, [row(None, "y", "+U"), row(1, "a", "-D")]))  # type: ignore[arg-type]
    assert postgres.query(f"SELECT * FROM {table}") == [(None, "y")]
    plain = StreamSchema(ROWS.columns, ChangelogKind.UPSERT, ("id",))
    other = opened(postgres, f"{table}_b", plain)
    other.publish(E0, staged(other, E0, [row(1, "a"), row(2, "b")]))
    other.publish(E1, staged(other, E1, [row(1, "c")]))
    assert table_rows(postgres, f"{table}_b") == [(1, "c"), (2, "b")]


TYPES: list[tuple[str, pa.DataType, list[Any]]] = [
    ("BOOLEAN", pa.bool_(), [True, None]),
    ("TINYINT", pa.int8(), [-128, None]),
    ("INT", pa.int32(), [-(2**31), 2**31 - 1]),
    ("BIGINT", pa.int64(), [-(2**63), 2**63 - 1]),
    ("FLOAT", pa.float32(), [0.5, float("inf")]),
    ("DOUBLE", pa.float64(), [1e-300, -0.0]),
    ("DECIMAL(20,3)", pa.decimal128(20, 3), [Decimal("12345678901234567.890"), Decimal("-0.001")]),
    ("STRING", pa.string(), ["ä\t\\N\n'\"", ""]),
    ("BINARY", pa.binary(), [b"\x00\xff", b""]),
    ("DATE", pa.date32(), [dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
    (
        "TIMESTAMP",
        pa.timestamp("us", "UTC"),
        [dt.datetime(1969, 12, 31, 23, 59, 59, 999999, dt.UTC), None],
    ),
    ("TIMESTAMP_NTZ", pa.timestamp("us"), [dt.datetime(2026, 3, 29, 2, 30), None]),
    ("ARRAY<INT>", pa.string(), ["[1, 2]", None]),
]


@pytest.mark.parametrize("binary", [True, False])
def test_every_type_round_trips(postgres: Postgres, table: str, binary: bool) -> None:
    kinds = [item for item in TYPES if not binary or not item[0].startswith(("ARRAY", "DECIMAL"))]
    columns = tuple((f"c{place}", kind) for place, (kind, _, _) in enumerate(kinds))
    sink = opened(postgres, table, StreamSchema(columns))
    schema = pa.schema([(f"c{place}", kind) for place, (_, kind, _) in enumerate(kinds)])
    rows = pa.table([pa.array(values, kind) for _, kind, values in kinds], schema=schema)
    writer_factory = sink.writer_factory(schema).open(E0.stamp, 0)
    writer_factory.add(rows)
    sink.publish(E0, writer_factory.finish())
    published = postgres.query(f"SELECT * FROM {table}")
    for place, (kind, _, values) in enumerate(kinds):
        column = [item[place] for item in published]
        expected = [[1, 2], None] if kind.startswith("ARRAY") else values
        assert column == expected, kind


def rejected(
    postgres: Postgres, table: str, rows: StreamSchema = ROWS, **options: Any
) -> TidegateError:
    with pytest.raises(TidegateError) as caught:
        sink_of(postgres, table, rows, **options).recover(CommittedState(None))
    assert PASSWORD not in str(caught.value) and caught.value.hint
    return caught.value


def test_rejects_unsuitable_tables_when_opened(postgres: Postgres, table: str) -> None:
    error = rejected(postgres, table, create_table="false")
    assert f"public.{table}, which does not exist" in error.message
    postgres.run(f"CREATE TABLE {table} (id int, name text)")
    assert "cannot store every BIGINT" in rejected(postgres, table).message
    postgres.run(f"ALTER TABLE {table} ALTER id TYPE numeric(18)")
    assert "cannot store every BIGINT" in rejected(postgres, table).message
    postgres.run(f"ALTER TABLE {table} ALTER id TYPE bigint")
    keyless = rejected(postgres, table, KEYED)
    assert "no unique index on exactly these columns" in keyless.message
    postgres.run((keyless.hint or "").partition(";")[0])
    opened(postgres, table, KEYED)
    postgres.run(f"ALTER TABLE {table} ADD other int NOT NULL")
    assert "other of the table" in rejected(postgres, table).message
    postgres.run(f"ALTER TABLE {table} ALTER other SET DEFAULT 7, DROP COLUMN name")
    assert "has no column name" in rejected(postgres, table).message


def test_rejected_login_is_reported_without_the_password(postgres: Postgres, table: str) -> None:
    wrong = rejected(postgres, table, password="hunter2", connect_timeout="2 s")
    assert wrong.code == "TG-512" and "password authentication failed" in wrong.message
    assert "hunter2" not in str(wrong) and "hunter2" not in repr(
        sink_of(postgres, table, password="hunter2").parameters
    )
    assert rejected(postgres, table, database="nowhere").code == "TG-529"
    assert rejected(postgres, table, port="1").code == "TG-509"


def test_dropped_column_is_an_error_before_the_commit(postgres: Postgres, table: str) -> None:
    sink = opened(postgres, table)
    postgres.run(f"ALTER TABLE {table} DROP COLUMN name")
    with pytest.raises(TidegateError, match="name") as caught:
        staged(sink, E0, [row(1, "a")])
    assert caught.value.code == "TG-529"
    postgres.run(f"ALTER TABLE {table} ADD name text NOT NULL DEFAULT 'x'")
    sink = opened(postgres, table)
    with pytest.raises(TidegateError, match="null value"):
        staged(sink, E0, [row(1, None)])
    assert postgres.staged() == []
