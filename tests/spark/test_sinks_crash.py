"""kill -9 at every step of writing an epoch: every row is there once in the end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.spark.helpers import bag, rows_of, table_rows
from tidegate.connectors import generator
from tidegate.subscription import Subscription

pytestmark = pytest.mark.spark

PROGRAM = Path(__file__).with_name("crash_program.py")
POINTS = [("before_stage", 0), ("after_stage", 1), ("while_renaming", 2), ("after_commit", 3)]
OPTIONS = {
    "kind": "nexmark",
    "table": "bid",
    "rows": 10_000,
    "seed": 42,
    "events_per_second": 10_000,
    "start": "2015-07-15 00:00:00",
    "out_of_order_ms": 0,
    "keys": 10,
}


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PROGRAM), *(str(argument) for argument in arguments)]
    root = PROGRAM.parents[2]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=root)


def test_killed_at_every_step_files_and_subscribers_have_every_row_once(
    spark: Any, data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    for point, epoch in POINTS:
        killed = run(data, out, point, epoch)
        assert killed.returncode == -9, f"{point}: {killed.stdout} {killed.stderr}"
    finished = run(data, out)
    assert finished.stdout.strip() == "done", finished.stderr
    bids = generator.read_batch(spark, OPTIONS)
    expected = bids.selectExpr("auction", "bidder", "price", "auction % 3 AS part").toArrow()
    written = spark.read.parquet(str(out)).select(*expected.column_names)
    written = written.withColumn("part", written["part"].cast("bigint"))
    assert bag(table_rows(written.toArrow())) == bag(table_rows(expected))
    assert bag(rows_of(Subscription(data / "bids" / "out").take_all())) == bag(table_rows(expected))
    epochs = {path.name.split("-")[2] for path in out.glob("part=*/*.parquet")}
    assert epochs == {f"{epoch:012d}" for epoch in range(5)}
    assert not list(out.glob("_tidegate/*/staging/*"))
