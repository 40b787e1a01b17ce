"""The postgres source with a real server: a whole table, or new rows by an increasing column."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from tests.real.postgres import Postgres
from tests.support.compiling import compile_text
from tidegate.catalog.objects import Source
from tidegate.catalog.settings import Settings
from tidegate.connectors.base import InputRange, ScanRequest, SourceContext
from tidegate.connectors.postgres import source as postgres_source
from tidegate.connectors.postgres.source import PostgresSource
from tidegate.errors import SystemUnavailable, TidegateError

_numbers = itertools.count()


@pytest.fixture
def table(postgres: Postgres) -> Iterator[str]:
    name = f"s{next(_numbers)}"
    postgres.run(
        f"CREATE TABLE {name} (id bigserial NOT NULL, name text, at timestamptz NOT NULL DEFAULT now())"
    )
    yield name
    postgres.run(f"DROP TABLE {name}")


def source_of(
    postgres: Postgres, table: str, columns: str = "id BIGINT, name STRING", **options: Any
) -> PostgresSource:
    compiled = compile_text(
        f"CREATE SOURCE s ({columns}) WITH ({postgres.options(table, **options)});"
    )
    assert not compiled.errors and not compiled.rejections
    declared = compiled.catalog.get("s")
    assert isinstance(declared, Source)
    return PostgresSource(SourceContext(declared, "", "", Settings()))


def rows_of(
    source: PostgresSource, input_range: InputRange | None, arrival: bool = False
) -> list[list[dict[str, Any]]]:
    """Return the rows that each task reads."""
    assert input_range is not None
    reader = source.create_reader(ScanRequest((("id", "BIGINT"), ("name", "STRING")), arrival))
    return [
        [row for part in split for batch, _ in reader.read(part) for row in batch.to_pylist()]
        for split in input_range.splits
    ]


def test_all_tasks_read_a_table_in_one_snapshot(
    postgres: Postgres, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_source, "_MIN_SPLIT_PAGES", 1)
    postgres.run(f"INSERT INTO {table} (name) SELECT repeat('x', 500) FROM generate_series(1, 100)")
    source = source_of(postgres, table)
    assert source.source.bounded
    input_range = source.plan_range(None, 3)
    # Later changes are not visible to any task attempt.
    postgres.run(f"DELETE FROM {table} WHERE id < 50; INSERT INTO {table} (name) VALUES ('late')")
    for _ in range(2):
        splits = rows_of(source, input_range, arrival=True)
        assert len(splits) == 3 and all(splits)
        assert sorted(row["id"] for split in splits for row in split) == list(range(1, 101))
    assert input_range is not None
    source.on_commit(input_range.offset)
    assert source.plan_range(input_range.offset, 3) is None
    with pytest.raises(SystemUnavailable, match="the snapshot of this epoch no longer exists"):
        rows_of(source, input_range)


def ids(source: PostgresSource, input_range: InputRange | None) -> list[int]:
    return [row["id"] for split in rows_of(source, input_range) for row in split]


@pytest.mark.parametrize("column", ["id", "at"])
def test_reads_new_rows_without_missing_those_of_slow_transactions(
    postgres: Postgres, table: str, column: str
) -> None:
    source = source_of(postgres, table, increasing=column)
    assert not source.source.bounded
    assert source.plan_range(None, 2) is None
    postgres.run(f"INSERT INTO {table} (name) VALUES ('a'), ('b')")
    first = source.plan_range(None, 2)
    assert ids(source, first) == [1, 2] and first is not None
    assert source.plan_range(first.offset, 2) is None
    with closing(postgres.connect()) as slow:
        slow.execute("BEGIN")
        slow.execute(f"INSERT INTO {table} (name) VALUES ('slow')")
        postgres.run(f"INSERT INTO {table} (name) VALUES ('fast')")
        # Row 4 is committed before row 3. Reading up to 4 would miss row 3 permanently.
        assert source.plan_range(first.offset, 2) is None
        assert source.plan_range(first.offset, 2) is None
        slow.execute("COMMIT")
    second = source.plan_range(first.offset, 2)
    assert ids(source, second) == [3, 4] and second is not None
    postgres.run(f"INSERT INTO {table} (name) VALUES ('e')")
    # After a restart only the offset is known.
    restarted = source_of(postgres, table, increasing=column)
    assert ids(restarted, restarted.plan_range(first.offset, 2)) == [3, 4, 5]
    assert ids(restarted, restarted.plan_range(second.offset, 2)) == [5]


@pytest.mark.parametrize(
    ("column", "why"), [("nothing", "does not have"), ("name", "may be NULL"), ("day", "is date")]
)
def test_rejects_columns_by_which_rows_would_be_missed(
    postgres: Postgres, table: str, column: str, why: str
) -> None:
    postgres.run(f"ALTER TABLE {table} ADD day date NOT NULL DEFAULT now()")
    with pytest.raises(TidegateError, match=why) as caught:
        source_of(postgres, table, increasing=column)
    assert caught.value.code == "TG-523" and caught.value.hint
