"""Materialized views on Spark: the current table of a stream, across restarts and restores."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from tests.support.sessions import open_with
from tidegate.cli.main import app
from tidegate.errors import RunError
from tidegate.session.session import Session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SCRIPT = """
CREATE SOURCE sales (item STRING, amount BIGINT, at TIMESTAMP, WATERMARK FOR at AS at)
    WITH (connector = 'memory', max_future = 'off');
CREATE MATERIALIZED VIEW totals AS
    SELECT item, sum(amount) AS total FROM sales GROUP BY item EMIT ON UPDATE;
CREATE MATERIALIZED VIEW history AS
    SELECT item, sum(amount) AS total FROM sales GROUP BY item EMIT CHANGES;
CREATE MATERIALIZED VIEW all_sales AS SELECT item, amount, at FROM sales WHERE amount > 0;
CREATE MATERIALIZED VIEW per_minute AS
    SELECT item, window_start, sum(amount) AS total FROM sales GROUP BY item, TUMBLE(at, INTERVAL '1' MINUTE);
CREATE STREAM large AS SELECT item, amount FROM sales WHERE amount >= 10;
"""


def sell(session: Session, item: str, *amounts: int) -> None:
    session.insert(
        "sales", [{"item": item, "amount": n, "at": "2026-01-01T10:00:00"} for n in amounts]
    )
    session.wait()


def totals(session: Session, view: str = "totals") -> dict[str, int]:
    return {
        row["item"]: row["total"] for row in session.query(f"SELECT * FROM {view} ORDER BY item")
    }


def test_views_contain_the_current_tables_of_their_streams(data: Path, spark: SparkSession) -> None:
    with open_with(data, spark, SCRIPT) as session:
        assert totals(session) == {}
        session.start()
        sell(session, "a", 1, 2)
        sell(session, "b", 10)
        session.execute("CHECKPOINT 'early';")
        for number in range(20):
            sell(session, "a", number, -number)
        assert totals(session) == totals(session, "history") == {"a": 3, "b": 10}
        joined = "SELECT sum(s.amount) AS n, any_value(total) AS t FROM all_sales s JOIN totals USING (item) WHERE item = 'a'"
        assert list(session.query(joined)) == [{"n": 3 + sum(range(20)), "t": 3}]
        assert len(session.query("SELECT * FROM per_minute")) == 0, "the window is still open"
        files = list((data / "totals" / "view").rglob("*-*-*.arrow"))
        assert len(files) < 20, "the changes are folded"
    with open_with(data, spark, SCRIPT) as session:
        assert totals(session) == {"a": 3, "b": 10}, "before the start"
        session.start()
        sell(session, "b", 5)
        assert totals(session) == totals(session, "history") == {"a": 3, "b": 15}
        result = CliRunner().invoke(
            app,
            ["query", str(data), "SELECT total FROM totals WHERE item = 'b'", "--format", "csv"],
        )
        assert result.stdout == "total\n15\n", result.stderr
        session.execute("RESTORE FROM CHECKPOINT 'early';")
        session.wait()
        assert totals(session) == totals(session, "history") == {"a": 3, "b": 15}, (
            "the stream read the new row"
        )
        session.stop()
        session.start(until_end=True)
        session.wait()
        assert totals(session, "per_minute") == {"a": 3, "b": 15}


def test_peek_consumes_no_rows(data: Path, spark: SparkSession) -> None:
    with open_with(data, spark, SCRIPT) as session:
        with pytest.raises(RunError) as caught:
            session.peek("large")
        assert caught.value.code == "TG-506" and "start" in str(caught.value.hint)
        session.start()
        sell(session, "a", 5, 10, 20, 30)
        batches: list[Any] = list(session.peek("large", rows=2, timeout=60))
        assert batches == [{"item": "a", "amount": 10}, {"item": "a", "amount": 20}]
        assert "large" not in [status.name for status in session.status()]
        assert list(session.peek("totals")) == [{"item": "a", "total": 65}]
        with pytest.raises(RunError) as caught:
            session.query("SELECT * FROM large")
        assert caught.value.code == "TG-802"
        session.execute("CREATE SINK kept FROM large WITH (connector = 'memory');")
        assert not session.warnings, "the rows were not read before"
        session.wait()
        assert [row["amount"] for row in session.query("SELECT * FROM kept")] == [10, 20, 30]
        assert session.subscribe("kept").take_all()[0].table.num_rows == 3


def test_changed_query_is_a_new_view(data: Path, spark: SparkSession) -> None:
    with open_with(data, spark, SCRIPT) as session:
        session.start()
        sell(session, "a", 1, 20)
    changed = SCRIPT.replace("amount > 0", "amount > 10")
    with open_with(data, spark, changed) as session:
        with pytest.raises(RunError) as caught:
            session.start()
        assert caught.value.code == "TG-603" and "all_sales" in caught.value.message
    with open_with(data, spark, changed, on_change="restart") as session:
        session.start()
        session.wait()
        assert [row["amount"] for row in session.query("FROM all_sales")] == [20]
        assert totals(session) == {"a": 21}
