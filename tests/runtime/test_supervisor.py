"""The supervisor: which streams run, and how pipelines are stopped."""

from __future__ import annotations

import threading
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


class FakePipeline:
    """A pipeline that counts how often it is stopped, and may fail to stop."""

    def status(self) -> list[StreamStatus]:
        state = State.STOPPED if self.stopped else State.RUNNING
        return [StreamStatus("s", state, rows_in=5)]

    def __init__(self, fails: bool = False) -> None:
        self.fails = fails
        self.timeline = Timeline("main")
        self.stopped = 0
        self.dropped: list[str] = []

    def stop(self) -> None:
        self.stopped += 1
        if self.fails:
            raise RunError("TG-503", "it does not stop")

    def drop_stream(self, stream: str) -> None:
        self.dropped.append(stream)


def create_supervisor(path: Path, **pipelines: FakePipeline) -> Supervisor:
    supervisor = Supervisor(DataDirectory(path), lambda: None, lambda *_: None)
    supervisor._pipelines = cast(Any, dict(pipelines))
    return supervisor


def test_stop_stops_all_pipelines_if_one_fails(tmp_path: Path) -> None:
    pipelines = {"a": FakePipeline(fails=True), "b": FakePipeline(), "c": FakePipeline(fails=True)}
    supervisor = create_supervisor(tmp_path, **pipelines)
    with pytest.raises(RunError, match="it does not stop"):
        supervisor.stop()
    assert [item.stopped for item in pipelines.values()] == [1, 1, 1]
    assert not supervisor.running


def test_status_is_starting_during_restore(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    supervisor = create_supervisor(tmp_path, main=FakePipeline())
    supervisor.until_end = False
    recorded: list[tuple[StreamStatus, ...]] = []
    checkpoints = SimpleNamespace(check=lambda request: None, restore=lambda request: [])

    def record_status(settings: Settings) -> Any:
        recorded.append(supervisor.status())
        return checkpoints

    monkeypatch.setattr(supervisor, "checkpoints", record_status)
    monkeypatch.setattr(supervisor, "start", lambda *_: recorded.append(supervisor.status()))
    supervisor.restore(cast(Any, None), Settings.from_config(None), RestoreRequest(1))
    states = [(status.state, status.rows_in) for statuses in recorded for status in statuses]
    assert states == [(State.RUNNING, 5), (State.STARTING, 5), (State.STARTING, 5)]
    assert [status.state for status in supervisor.status()] == [State.STOPPED]
    assert [timeline.pipeline for timeline in supervisor.timelines()] == ["main"]


def test_sink_of_late_rows_requires_their_parent(tmp_path: Path) -> None:
    catalog = compile_with_sources(
        LATE + "CREATE SINK kept FROM late_bids WITH (connector = 'memory');"
    ).catalog
    supervisor = create_supervisor(tmp_path)
    assert supervisor.required_streams(catalog) == ["s"]
    assert [sink.name for sink in supervisor._sinks_of(catalog, "S")] == ["kept"]


def test_parents_of_late_rows_are_required(tmp_path: Path) -> None:
    catalog = compile_with_sources(
        LATE + "CREATE STREAM over_late AS SELECT auction FROM late_bids;"
        "CREATE STREAM over_that AS SELECT auction FROM over_late;"
        "CREATE SINK kept FROM over_that WITH (connector = 'memory');"
    ).catalog
    assert create_supervisor(tmp_path).required_streams(catalog) == ["s", "over_that"]


def test_stops_pipelines_without_streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = compile_with_sources(
        LATE + "CREATE SINK kept FROM s WITH (connector = 'memory');"
    ).catalog
    pipelines = {"main": FakePipeline(), "own": FakePipeline()}
    supervisor = create_supervisor(tmp_path, **pipelines)
    supervisor.until_end = False
    monkeypatch.setattr(supervisor, "start_or_update", lambda *_: None)
    supervisor.apply_changes(catalog, Settings())
    assert [item.stopped for item in pipelines.values()] == [0, 1]


def test_drops_stream_from_running_and_stopped_pipelines(
    tmp_path: Path,
) -> None:
    pipelines = {"main": FakePipeline()}
    supervisor = create_supervisor(tmp_path, **pipelines)
    streams = {"s": StreamState("1"), "t": StreamState("2")}
    for name in ("main", "own"):
        store = supervisor.directory.pipeline(name)
        Manifests(store).create(Manifest(0, 4, 16, 0, streams=streams))
    supervisor.drop_stream(compile_with_sources("").catalog, Settings(), "S")
    assert pipelines["main"].dropped == ["S"]
    own = Manifests(supervisor.directory.pipeline("own")).load_newest().manifest
    assert own is not None and (own.epoch, own.streams.keys()) == (5, {"t"})
    main = Manifests(supervisor.directory.pipeline("main")).load_newest().manifest
    assert main is not None and main.epoch == 4


def peekable_supervisor(path: Path, monkeypatch: pytest.MonkeyPatch) -> Supervisor:
    """Return a supervisor whose running pipeline "own" has committed the stream "apart"."""
    supervisor = create_supervisor(path)
    supervisor.directory.open()
    supervisor.until_end = False
    monkeypatch.setattr(supervisor, "start_or_update", lambda *_: None)
    monkeypatch.setattr(supervisor, "check_runnable", lambda *_: None)
    streams = {"apart": StreamState("1")}
    Manifests(supervisor.directory.pipeline("own")).create(Manifest(0, 0, 16, 0, streams=streams))
    return supervisor


def committed_streams(supervisor: Supervisor) -> set[str]:
    newest = Manifests(supervisor.directory.pipeline("own")).load_newest().manifest
    assert newest is not None
    return set(newest.streams)


def test_concurrent_peeks_at_a_stream_do_not_end_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor = peekable_supervisor(tmp_path, monkeypatch)
    catalog = compile_with_sources(LATE).catalog
    peeks = [supervisor.peek(catalog, Settings(), "APART", 5, lambda *_: None) for _ in range(3)]
    peeks[0].__enter__()
    peeks[1].__enter__()
    assert len({sink.name for sink in supervisor.sinks(catalog)}) == 2
    peeks[0].__exit__(None, None, None)
    assert supervisor.required_streams(catalog) == ["apart"]
    assert committed_streams(supervisor) == {"apart"}
    peeks[2].__enter__()
    names = {sink.name for sink in supervisor.sinks(catalog)}
    assert names == {"peek at apart", "peek at apart (2)"}, "manifests keep only few names"
    peeks[2].__exit__(None, None, None)
    peeks[1].__exit__(None, None, None)
    assert supervisor.sinks(catalog) == [] and supervisor._peek_callbacks == {}
    assert committed_streams(supervisor) == set(), "a later consumer gets all rows"


def test_peek_keeps_a_stream_that_has_got_a_consumer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor = peekable_supervisor(tmp_path, monkeypatch)
    catalog = compile_with_sources(LATE).catalog
    with supervisor.peek(catalog, Settings(), "apart", 5, lambda *_: None):
        declared = catalog.get("apart")
        assert declared is not None and supervisor.subscribe(catalog, declared)
    assert [sink.connector for sink in supervisor.sinks(catalog)] == ["memory"]
    assert committed_streams(supervisor) == {"apart"}


def test_peek_that_ends_after_the_session_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor = peekable_supervisor(tmp_path, monkeypatch)
    catalog = compile_with_sources(LATE).catalog
    with supervisor.peek(catalog, Settings(), "apart", 5, lambda *_: None):
        supervisor.stop()
        supervisor.directory.close()
    assert committed_streams(supervisor) == {"apart"}
    with (
        pytest.raises(RunError, match="the session is not running"),
        supervisor.peek(catalog, Settings(), "apart", 5, lambda *_: None),
    ):
        pass


def test_stop_ends_a_change_that_waits_for_a_pipeline(tmp_path: Path) -> None:
    """A DROP STREAM waits for storage until its pipeline stops."""
    pipeline = FakePipeline()
    supervisor = create_supervisor(tmp_path, main=pipeline)
    changing, stopping = threading.Event(), threading.Event()
    monitored = pipeline.stop

    def stop() -> None:
        stopping.set()
        monitored()

    def change() -> None:
        with supervisor._lock:
            changing.set()
            assert stopping.wait(30)

    pipeline.stop = stop  # type: ignore[method-assign]
    thread = threading.Thread(target=change)
    thread.start()
    assert changing.wait(30)
    supervisor.stop()
    thread.join(30)
    assert pipeline.stopped == 1 and not supervisor.running
