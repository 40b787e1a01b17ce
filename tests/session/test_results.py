"""Results of SHOW statements."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import tidegate
from tests.support.compiling import compile_text
from tidegate.observe.status import State, StreamStatus
from tidegate.session.results import listing, status_listing

SQL = """
CREATE SOURCE bids (auction BIGINT, ts TIMESTAMP, WATERMARK FOR ts AS ts)
WITH (connector = 'memory', dead_letters = 'bad_bids');
CREATE LOOKUP TABLE names (id BIGINT, PRIMARY KEY (id)) WITH (connector = 'memory');
CREATE STREAM dear AS SELECT auction FROM bids;
CREATE MATERIALIZED VIEW counts AS SELECT auction, count(*) AS n FROM bids GROUP BY auction EMIT CHANGES;
CREATE SINK out FROM dear WITH (connector = 'console');
"""


def test_show_tables_lists_everything_that_a_query_can_read() -> None:
    catalog = compile_text(SQL).catalog
    assert listing(catalog, "TABLES").to_pylist() == [
        {"name": "bids", "kind": "source", "description": "memory"},
        {"name": "bad_bids", "kind": "stream", "description": "dead letters of bids"},
        {"name": "names", "kind": "lookup table", "description": "memory"},
        {"name": "dear", "kind": "stream", "description": "append stream"},
        {"name": "counts", "kind": "stream", "description": "materialized view (changelog)"},
    ]


def test_show_materialized_views_lists_only_views() -> None:
    catalog = compile_text(SQL).catalog
    assert [row[0] for row in listing(catalog, "MATERIALIZED VIEWS").rows] == ["counts"]


def test_show_status_lists_progress_of_streams() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    shown = status_listing([StreamStatus("s", State.RUNNING, 3, 10, 7, watermark=at, late_rows=1)])
    (row,) = shown.to_pylist()
    assert (row["name"], row["state"], row["epoch"], row["rows_in"]) == ("s", "running", 3, 10)
    assert (row["rows_out"], row["late_rows"], row["watermark"]) == (7, 1, at)


def test_show_settings_and_status_of_a_session(tmp_path: Path) -> None:
    with tidegate.open(tmp_path) as db:
        settings, status = db.execute("SET validator = 'warn'; SHOW SETTINGS; SHOW STATUS;")
        values = {row[0]: row[1] for row in settings.rows}
        assert (values["validator"], values["target_epoch"]) == ("warn", "1 s")
        assert (values["shared_disk"], values["key_groups"]) == ("false", "")
        assert status.rows == []
