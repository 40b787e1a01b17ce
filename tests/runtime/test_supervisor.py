"""Which pipelines run what, which are stopped, and that none is forgotten."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.compiling import compile_with_sources
from tidegate.catalog.settings import Settings
from tidegate.checkpoint.checkpoints import RestoreRequest
from tidegate.checkpoint.manifest import Manifest, StreamState
from tidegate.checkpoint.manifests import Manifests
from tidegate.errors import RunError
from tidegate.observe.status import State, StreamStatus
from tidegate.observe.timeline import Timeline
from tidegate.runtime.directory import DataDirectory
from tidegate.runtime.supervisor import Supervisor

LATE = (
    "CREATE STREAM s AS SELECT window_end, count(*) AS n FROM bids "
    "GROUP BY TUMBLE(ts, INTERVAL '1' MINUTE) EMIT ON WINDOW CLOSE LATE DATA TO late_bids;"
    "CREATE STREAM apart WITH (pipeline = 'Own') AS SELECT k FROM plain;"
)


class Running:
    """A pipeline that is stopped once, and may fail at it."""

    def status(self) -> list[StreamStatus]:
        state = State.STOPPED if self.stopped else State.RUNNING
        return [StreamStatus("s", state, rows_in=5)]

    def __init__(self, fails: bool = False) -> None:
        self.fails = fails
        self.timeline = Timeline("main")
        self.stopped = 0
        self.forgotten: list[str] = []

    def stop(self) -> None:
        self.stopped += 1
        if self.fails:
            raise RunError("TG-503", "it does not stop")

    def forget(self, stream: str) -> None:
        self.forgotten.append(stream)


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


def test_streams_that_stop_to_go_back_have_not_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor = supervising(tmp_path, main=Running())
    supervisor.until_end = False
    seen: list[tuple[StreamStatus, ...]] = []
    allowed = SimpleNamespace(check=lambda wanted: None, restore=lambda wanted: [])

    def looking(settings: Settings) -> Any:
        seen.append(supervisor.status())
        return allowed

    monkeypatch.setattr(supervisor, "checkpoints", looking)
    monkeypatch.setattr(supervisor, "start", lambda *_: seen.append(supervisor.status()))
    supervisor.restore(cast(Any, None), Settings.of(None), RestoreRequest(1))
    states = [(status.state, status.rows_in) for statuses in seen for status in statuses]
    assert states == [(State.RUNNING, 5), (State.STARTING, 5), (State.STARTING, 5)]
    assert [status.state for status in supervisor.status()] == [State.STOPPED]
    assert [timeline.pipeline for timeline in supervisor.timelines()] == ["main"]


def test_a_sink_of_late_rows_belongs_to_the_stream_that_finds_them(tmp_path: Path) -> None:
    catalog = compile_with_sources(
        LATE + "CREATE SINK kept FROM late_bids WITH (connector = 'memory');"
    ).catalog
    supervisor = supervising(tmp_path)
    assert supervisor.wanted(catalog) == ["s"]
    assert [sink.name for sink in supervisor._sinks_of(catalog, "S")] == ["kept"]


def test_streams_whose_late_rows_are_read_run_too(tmp_path: Path) -> None:
    catalog = compile_with_sources(
        LATE + "CREATE STREAM over_late AS SELECT auction FROM late_bids;"
        "CREATE STREAM over_that AS SELECT auction FROM over_late;"
        "CREATE SINK kept FROM over_that WITH (connector = 'memory');"
    ).catalog
    assert supervising(tmp_path).wanted(catalog) == ["s", "over_that"]


def test_a_pipeline_without_streams_is_stopped_and_the_others_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = compile_with_sources(
        LATE + "CREATE SINK kept FROM s WITH (connector = 'memory');"
    ).catalog
    running = {"main": Running(), "own": Running()}
    supervisor = supervising(tmp_path, **running)
    supervisor.until_end = False
    monkeypatch.setattr(supervisor, "start_missing", lambda *_: None)
    supervisor.restart_without(catalog, Settings())
    assert [item.stopped for item in running.values()] == [0, 1]


def test_a_dropped_stream_is_forgotten_by_pipelines_that_run_and_by_those_that_do_not(
    tmp_path: Path,
) -> None:
    running = {"main": Running()}
    supervisor = supervising(tmp_path, **running)
    streams = {"s": StreamState("1"), "t": StreamState("2")}
    for name in ("main", "own"):
        store = supervisor.directory.pipeline(name)
        Manifests(store).create(Manifest(0, 4, 16, 0, streams=streams))
    supervisor.forget(compile_with_sources("").catalog, Settings(), "S")
    assert running["main"].forgotten == ["S"]
    found = Manifests(supervisor.directory.pipeline("own")).load_newest().manifest
    assert found is not None and (found.epoch, found.streams.keys()) == (5, {"t"})
    untouched = Manifests(supervisor.directory.pipeline("main")).load_newest().manifest
    assert untouched is not None and untouched.epoch == 4
