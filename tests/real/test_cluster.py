"""Six streams on a real cluster while executors, workers and the driver are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.real.cluster import ROOT, Cluster
from tests.spark.kill_campaign import Campaign
from tests.support.sessions import eventually

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    running = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        yield running.start()
    finally:
        running.stop()


@pytest.fixture(autouse=True)
def reach_cluster(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in cluster.driver_environment.items():
        monkeypatch.setenv(name, value)


class PipelineRun:
    """A run of the pipeline of a campaign, which ends with its block."""

    def __init__(self, campaign: Campaign, *arguments: str) -> None:
        self.campaign = campaign
        self.process = campaign._start(*arguments)
        assert self.process.stdout is not None, "the output is a pipe"
        assert self.process.stdout.readline().strip() == "running"

    def let_pass(self, epochs: int) -> None:
        goal = self.campaign._epochs() + epochs
        eventually(lambda: self.campaign._epochs() >= goal, 240)

    def in_mid_epoch(self) -> None:
        """Return when the driver has written an epoch spec, which begins a job."""
        specs = self.campaign.data / "_epoch_specs"

        def spec_times() -> list[int]:
            return [path.stat().st_mtime_ns for path in specs.glob("*.json")]

        before = spec_times()
        eventually(lambda: spec_times() != before, 240)

    def __enter__(self) -> PipelineRun:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()


def test_kills_of_executors_workers_and_driver_keep_every_row_once(
    cluster: Cluster, tmp_path: Path
) -> None:
    campaign = Campaign(tmp_path, seed=11, master=cluster.url)
    for _ in range(6):
        campaign.add_file()
    with PipelineRun(campaign) as pipeline:
        pipeline.let_pass(1)
        pipeline.in_mid_epoch()
        before = cluster.executors()
        assert len(before) == 2
        cluster.kill_executor()
        pipeline.let_pass(2)
        assert cluster.executors() != before
    cluster.kill_worker()
    for _ in range(3):
        campaign.add_file()
    # One worker continues the work of two; then another one joins it.
    with PipelineRun(campaign, "--until-end") as pipeline:
        pipeline.let_pass(1)
        assert len(cluster.executors()) == 1
        cluster.add_worker()
        words, _ = pipeline.process.communicate(timeout=240)
    assert words.splitlines()[-1] == "done, 0 late rows"
    assert campaign.differences() == {}


WINDOWS = """
SET shared_disk = true;
CREATE SOURCE g (n BIGINT, at TIMESTAMP, WATERMARK FOR at AS at)
    WITH (connector = 'files', path = '{given}', format = 'json');
CREATE STREAM s AS SELECT n % 7 AS k, window_start, count(*) AS many, sum(n) AS total
    FROM g GROUP BY n % 7, TUMBLE(at, INTERVAL '1' MINUTE);
CREATE SINK o FROM s WITH (connector = 'files', path = '{out}', format = 'json');
"""


def run(*arguments: str) -> list[str]:
    """Run a command and return the lines that it prints."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    completed = subprocess.run(
        [sys.executable, "-m", "tidegate.cli.main", *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        env=environment,
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr
    return completed.stdout.splitlines()


def test_command_line_runs_on_a_cluster_with_a_packaged_tidegate(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs, out, data, archive = (tmp_path / name for name in ("in", "out", "data", "tg.zip"))
    inputs.mkdir()
    script = tmp_path / "windows.sql"
    script.write_text(WINDOWS.format(given=inputs, out=out))
    rows = [{"n": n, "at": f"2026-01-01T00:{n // 20:02d}:00Z"} for n in range(1000)]
    for number in range(2):
        lines = map(json.dumps, rows[500 * number : 500 * (number + 1)])
        (inputs / f"{number}.json").write_text("\n".join(lines))
    run("package", str(archive))
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", f"--py-files {archive} pyspark-shell")
    run("run", str(script), "--master", cluster.url, "--data", str(data), "--until-end")
    assert list(cluster.folder.glob("worker-*/app-*/*/tg.zip"))
    assert "128 key groups" in run("inspect", str(data))[0]
    windows = [json.loads(line) for p in out.glob("*.json") for line in p.read_text().splitlines()]
    totals = sorted((row["k"], row["window_start"], row["many"], row["total"]) for row in windows)
    assert totals == expected(rows)


def expected(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Compute the windows of rows in a batch."""
    groups: dict[tuple[int, str], list[int]] = {}
    for row in rows:
        start = row["at"].replace("00Z", "00.000000Z")
        groups.setdefault((row["n"] % 7, start), []).append(row["n"])
    return sorted((*key, len(numbers), sum(numbers)) for key, numbers in groups.items())
