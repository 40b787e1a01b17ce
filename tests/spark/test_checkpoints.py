"""Checkpoints on Spark: totals continue after a restart, and a restore rolls them back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from tests.support.sessions import open_with, rows_of
from tidegate.errors import RunError
from tidegate.session.session import Session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SCRIPT = """
CREATE SOURCE sales (item STRING, amount BIGINT) WITH (connector = 'memory');
CREATE STREAM totals AS SELECT item, sum(amount) AS total FROM sales GROUP BY item EMIT ON UPDATE;
CREATE STREAM large AS SELECT item, amount FROM sales WHERE amount >= 10;
CREATE SINK out FROM large WITH (connector = 'files', format = 'parquet', path = '{out}');
"""


def sell(session: Session, *amounts: int) -> None:
    session.insert("sales", [{"item": "a", "amount": amount} for amount in amounts])
    session.wait()


def last_total(batches: Any) -> int:
    return int(rows_of(batches)[-1]["total"])


def amounts_in(path: Path) -> list[int]:
    files = path.glob("*.parquet")
    return sorted(n for file in files for n in pq.read_table(file).column("amount").to_pylist())


def test_totals_continue_after_restart_and_roll_back_on_restore(
    data: Path, tmp_path: Path, spark: SparkSession
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    script = SCRIPT.format(out=out)
    with open_with(data, spark, script) as session:
        totals = session.subscribe("totals")
        session.start()
        sell(session, 1, 10)
        session.execute("CHECKPOINT 'first';")
        sell(session, 20)
        assert last_total(totals.take_all()) == 31
    with open_with(data, spark, script) as session:
        totals = session.subscribe("totals")
        totals.take_all()
        session.start()
        sell(session, 30)
        assert last_total(totals.take_all()) == 61, "totals did not continue after the restart"
        with pytest.raises(RunError, match="cannot roll them back"):
            session.execute("RESTORE FROM CHECKPOINT 'first';")
        sell(session, 2)
        assert last_total(totals.take_all()) == 63, "the rejection stopped the pipeline"
        # Restore while the pipeline runs: it reads the rows after the checkpoint again.
        session.execute("RESTORE FROM CHECKPOINT 'first' WITH (sinks = 'keep');")
        assert [warning.code for warning in session.warnings] == ["TG-610"]
        session.wait()
        with pytest.raises(RunError, match="was restored to epoch 0"):
            totals.take_all()
        assert last_total(totals.take_all()) == 63, (
            "expected 11 from the checkpoint and 52 read again"
        )
        assert amounts_in(out) == [10, 20, 20, 30, 30]
        assert session.checkpoints()[0].generation == 1
        session.stop()
        session.drop_checkpoint("first")
    with open_with(data, spark, script) as session:
        totals = session.subscribe("totals")
        session.start()
        sell(session, 40)
        batches = totals.take_all()
        assert last_total(batches) == 103, "the new generation did not continue after the restart"
        assert rows_of(batches)[0]["total"] == 11
        assert amounts_in(out) == [10, 20, 20, 30, 30, 40]
