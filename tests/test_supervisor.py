"""Which pipelines are stopped, and that none is forgotten."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from tests.compiling import compile_with_sources
from tidegate.errors import RunError
from tidegate.runtime.directory import DataDirectory
from tidegate.supervisor import Supervisor


class Running:
    """A pipeline that is stopped once, and may fail at it."""

    def __init__(self, fails: bool = False) -> None:
        self.fails = fails
        self.stopped = 0

    def stop(self) -> None:
        self.stopped += 1
        if self.fails:
            raise RunError("TG-503", "it does not stop")


def supervising(path: Path, **running: Running) -> Supervisor:
    supervisor = Supervisor(DataDirectory(path), lambda: None, lambda *_: None)
    supervisor._pipelines = cast(Any, dict(running))
    return supervisor


def test_a_pipeline_that_fails_to_stop_does_not_keep_the_others_running(tmp_path: Path) -> None:
    running = {"a": Running(fails=True), "b": Running(), "c": Running(fails=True)}
    supervisor = supervising(tmp_path, **running)
    with pytest.raises(RunError, match="it does not stop"):
        supervisor.stop()
    assert [item.stopped for item in running.values()] == [1, 1, 1]
    assert not supervisor.running


def test_a_sink_of_late_rows_belongs_to_the_pipeline_that_finds_them(tmp_path: Path) -> None:
    catalog = compile_with_sources(
        "CREATE STREAM s AS SELECT window_end, count(*) AS n FROM bids "
        "GROUP BY TUMBLE(ts, INTERVAL '1' MINUTE) EMIT ON WINDOW CLOSE LATE DATA TO late_bids;"
    ).catalog
    running = {"s": Running(), "other": Running()}
    supervising(tmp_path, **running).stop_owner(catalog, "late_bids")
    assert [item.stopped for item in running.values()] == [1, 0]
