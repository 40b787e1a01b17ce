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


def open_snapshots(postgres: Postgres) -> int:
    sql = "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction'"
    return int(postgres.query(sql)[0][0])


def test_streams_at_different_offsets_read_in_one_epoch(postgres: Postgres, table: str) -> None:
    """A stream with unread rows, and a new stream that reads from the beginning."""
    source = source_of(postgres, table, increasing="id")
    postgres.run(f"INSERT INTO {table} (name) VALUES ('a'), ('b')")
    first = source.plan_range(None, 2)
    assert first is not None
    source.on_commit(first.offset)
    assert open_snapshots(postgres) == 0
    postgres.run(f"INSERT INTO {table} (name) VALUES ('c')")
    # The job of the first attempt fails, and all ranges are planned again.
    for _ in range(2):
        unread = source.plan_range(first.offset, 2)
        new = source.plan_range(None, 2)
        assert unread is not None and new is not None
        assert open_snapshots(postgres) == 2
        for _ in range(2):
            assert ids(source, unread) == [3] and ids(source, new) == [1, 2, 3]
    source.on_commit(unread.offset)
    source.on_commit(new.offset)
    assert open_snapshots(postgres) == 0
    assert source.plan_range(unread.offset, 2) is None


def test_releases_the_snapshots_of_streams_that_were_dropped(
    postgres: Postgres, table: str
) -> None:
    """Their ranges are neither committed nor planned again."""
    source = source_of(postgres, table, increasing="id")
    postgres.run(f"INSERT INTO {table} (name) VALUES ('a'), ('b')")
    dropped, kept = source.plan_range({"upto": "1"}, 2), source.plan_range(None, 2)
    assert dropped is not None and kept is not None
    for _ in range(2):
        kept = source.plan_range(None, 2)
    assert open_snapshots(postgres) == 1
    assert ids(source, kept) == [1, 2] and kept is not None
    source.on_commit(kept.offset)
    assert open_snapshots(postgres) == 0


def test_each_offset_waits_for_its_own_slow_transactions(postgres: Postgres, table: str) -> None:
    """A value that is safe for one stream must not move another one back."""
    source = source_of(postgres, table, increasing="id")
    postgres.run(f"INSERT INTO {table} (name) VALUES ('a'), ('b')")
    with closing(postgres.connect()) as slow:
        slow.execute("BEGIN")
        slow.execute(f"INSERT INTO {table} (name) VALUES ('slow')")
        postgres.run(f"INSERT INTO {table} (name) VALUES ('d')")
        assert source.plan_range(None, 2) is None
        postgres.run(f"INSERT INTO {table} (name) VALUES ('e'), ('f')")
        assert source.plan_range({"upto": "5"}, 2) is None
        slow.execute("COMMIT")
    ahead, behind = source.plan_range({"upto": "5"}, 2), source.plan_range(None, 2)
    assert ahead is not None and behind is not None
    assert (ahead.offset, behind.offset) == ({"upto": "6"}, {"upto": "4"})
    assert ids(source, ahead) == [6] and ids(source, behind) == [1, 2, 3, 4]
    source.on_commit(ahead.offset)
    source.on_commit(behind.offset)
    rest = source.plan_range(behind.offset, 2)
    assert ids(source, rest) == [5, 6] and rest is not None
    source.on_commit(rest.offset)


def test_whole_table_is_read_again_after_a_failed_plan(
    postgres: Postgres, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = source_of(postgres, table)
    postgres.run(f"INSERT INTO {table} (name) VALUES ('a')")

    def fail(*_: Any) -> int:
        raise SystemUnavailable("the server does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(source, "_pages", fail)
        with pytest.raises(SystemUnavailable):
            source.plan_range(None, 2)
    assert open_snapshots(postgres) == 0
    assert ids(source, source.plan_range(None, 2)) == [1]


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
