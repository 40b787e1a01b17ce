"""`tidegate prune`: parked streams and what no epoch needs go, everything else stays."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.support.compiling import compile_text
from tests.support.lossy_disk import LossyDisk, PowerLost, lose_power
from tidegate.checkpoint.manifest import (
    Manifest,
    OperatorState,
    SinkState,
    SourceState,
    StreamState,
)
from tidegate.checkpoint.manifests import Manifests
from tidegate.cli.main import app
from tidegate.connectors.memory import connector as memory
from tidegate.errors import DataDirectoryError
from tidegate.runtime.cleanup import Pruning, parked_warning
from tidegate.runtime.directory import DataDirectory
from tidegate.storage import Store
from tidegate.storage import local as disk

SCRIPT = """
CREATE SOURCE s (a BIGINT) WITH (connector = 'memory', dead_letters = 'bad');
CREATE STREAM live AS SELECT a FROM s;
CREATE STREAM own WITH (pipeline = 'apart') AS SELECT a FROM s;
"""


def epoch(number: int, *streams: str) -> Manifest:
    """An epoch in which every stream has state of its own, of this epoch and of the one before."""
    states, operators, sinks = {}, {}, {}
    for name in streams:
        offsets = {"s": {"files": [], "recent": [], "older": [f"names-{name}"]}}
        states[name] = StreamState(name, {"s": SourceState("memory", {})}, offsets)
        files = {f"000-{n:012d}-{name}": 5 for n in (number - 1, number) if n >= 0}
        operators[f"{name}.1"] = OperatorState(name, "w", "1", {}, files)
        sinks[f"sink of {name}"] = SinkState(name, "memory", number)
    return Manifest(0, number, 16, 0, states, operators, sinks)


def fill(store: Store, epochs: int, *streams: str) -> None:
    """A pipeline that has run for some epochs, of which the last three are kept."""
    manifests = Manifests(store)
    for number in range(epochs):
        for name in streams:
            store.put(f"state/000-{number:012d}-{name}", b"state")
        manifests.create(epoch(number, *streams))
        manifests.expire()
    for name in streams:
        store.put(f"offsets/s/names-{name}", b"[]")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """live and old run together, own and moved apart; moved was in the other pipeline once."""
    path = tmp_path / "data"
    directory = DataDirectory(path)
    directory.open()
    fill(directory.pipeline("main"), 5, "live", "old")
    fill(directory.pipeline("apart"), 4, "own", "live")
    for name in ("live", "old", "late"):
        directory.stream(name).put(memory.epoch_file(0), b"rows")
    directory.source("s").put("rows/000000000000.arrow", b"rows")
    directory.close()
    (tmp_path / "script.sql").write_text(SCRIPT)
    return path


def ran(*args: object) -> Result:
    return CliRunner().invoke(app, ["prune", *map(str, args)])


def files(path: Path) -> set[str]:
    return {str(item.relative_to(path)) for item in path.rglob("*") if item.is_file()}


def last(path: Path, pipeline: str) -> Manifest:
    found = Manifests(DataDirectory(path).pipeline(pipeline)).load_newest().manifest
    assert found is not None
    return found


def test_streams_that_a_script_does_not_declare_go(data: Path, tmp_path: Path) -> None:
    before = files(data)
    result = ran(data, "--script", tmp_path / "script.sql", "--dry-run")
    assert result.exit_code == 0 and files(data) == before
    listed = re.sub(r" +", " ", result.stdout)
    assert "would be removed:" in listed
    # In the other pipeline live is not what the script means.
    for line in (
        "old | offsets and state in main | 10 B",
        "live | offsets and state in apart | 10 B",
        "old | rows for subscribers | 4 B",
        "late | rows for subscribers | 4 B",
    ):
        assert line in listed, line
    result = ran(data, "--script", tmp_path / "script.sql")
    assert result.exit_code == 0 and "\nremoved:" in "\n" + result.stdout
    for pipeline, stream in (("main", "live"), ("apart", "own")):
        manifest = last(data, pipeline)
        assert set(manifest.streams) == {stream}
        assert {o.stream for o in manifest.operators.values()} == {stream}
        assert set(manifest.sinks) == {f"sink of {stream}"}
        store = DataDirectory(data).pipeline(pipeline)
        assert len(Manifests(store).load_all()) == 3, "as many as before"
        needed = {f"state/{f}" for o in manifest.operators.values() for f in o.files}
        assert {item.name for item in store.list("state")} == needed
        assert [item.name for item in store.list("offsets")] == [f"offsets/s/names-{stream}"]
    assert set(DataDirectory(data).stream_sizes()) == {"live"}
    # Rows that were inserted are somebody's.
    assert (data / "_sources" / "s" / "rows" / "000000000000.arrow").exists()
    again = ran(data, "--script", tmp_path / "script.sql")
    assert "there is nothing to remove" in again.stdout


def test_streams_can_be_named(data: Path) -> None:
    live = last(data, "main").streams["live"]
    assert ran(data, "OLD").exit_code == 0
    assert last(data, "main").streams == {"live": live} and last(data, "main").epoch == 7
    assert set(last(data, "apart").streams) == {"own", "live"}
    assert set(DataDirectory(data).stream_sizes()) == {"late", "live"}
    result = ran(data, "odl")
    assert result.exit_code and "keeps nothing of a stream odl" in result.stderr


def test_without_names_only_what_no_epoch_needs_goes(data: Path) -> None:
    store = DataDirectory(data).pipeline("main")
    assert "2 files that no epoch needs" in ran(data).stdout
    before = files(data)
    store.put("state/000-000000000001-of-a-dead-task", b"state")
    store.put("state/000-000000000099-of-a-later-epoch", b"state")
    half = data / "_pipelines" / "main" / "state" / ".tidegate-1-0123456789abcdef"
    half.write_bytes(b"half")
    result = ran(data)
    assert "2 files that no epoch needs" in result.stdout
    assert "streams are kept: late, live, old, own" in result.stdout
    assert files(data) - before == {"_pipelines/main/state/000-000000000099-of-a-later-epoch"}
    assert before - files(data) == set()


def test_a_script_of_something_else_is_rejected(data: Path, tmp_path: Path) -> None:
    before = files(data)
    other = tmp_path / "other.sql"
    other.write_text(SCRIPT.replace("live", "another").replace("own", "mine"))
    result = ran(data, "--script", other)
    assert result.exit_code and "declares none of the streams" in result.stderr
    assert "live, old, own" in result.stderr
    other.write_text("CREATE STREAM x AS SELECT;")
    assert ran(data, "--script", other).exit_code == 2
    result = ran(data, "old", "--script", tmp_path / "script.sql")
    assert "choose one of both" in result.stderr
    assert files(data) == before


def test_a_directory_in_use_and_one_that_is_none_are_rejected(data: Path, tmp_path: Path) -> None:
    before = files(data)
    running = DataDirectory(data)
    running.open()
    result = ran(data, "old")
    assert result.exit_code and "TG-602" in result.stderr and files(data) == before
    running.close()
    result = ran(tmp_path / "nowhere", "old")
    assert "TG-601" in result.stderr and not (tmp_path / "nowhere").exists()


def test_a_named_checkpoint_keeps_what_it_needs_and_that_is_said(data: Path) -> None:
    store = DataDirectory(data).pipeline("main")
    Manifests(store).name_newest("before")
    named = last(data, "main")
    result = ran(data, "old")
    assert "checkpoint 'before' of main still keeps old" in result.stdout
    kept = Manifests(store).load_usable()
    assert named in kept and "old" not in kept[0].streams
    assert (data / "_pipelines" / "main" / "offsets" / "s" / "names-old").exists()


@pytest.mark.parametrize("loses", [False, True])
def test_dead_after_any_step_the_directory_is_whole(tmp_path: Path, loses: bool) -> None:
    steps, died = 0, True
    while died:
        path, journal = tmp_path / str(steps), tmp_path / "journal"
        directory = DataDirectory(path)
        fill(directory.pipeline("main"), 4, "live", "old")
        directory.stream("old").put(memory.epoch_file(0), b"rows")
        live = last(path, "main")
        before = disk.use_disk(LossyDisk(journal, steps))
        try:
            Pruning(directory, {"main": {"old"}}, {"old"}).run()
            died = False
        except PowerLost:
            pass
        finally:
            disk.use_disk(before)
        if loses:
            lose_power(journal)
        for _ in range(2):
            manifest = last(path, "main")
            assert manifest.streams["live"] == live.streams["live"], f"after {steps} steps"
            assert manifest.operators["live.1"] == live.operators["live.1"]
            Pruning(directory, {"main": {"old"}}, {"old"}).run()
        assert set(manifest.streams) == {"live"} and directory.stream_sizes() == {}
        steps += 1
    assert steps > 20


def test_parked_streams_are_named_with_what_removes_them(data: Path) -> None:
    directory = DataDirectory(data)

    def warned(script: str) -> tuple[str, str]:
        warning = parked_warning(directory, compile_text(script).catalog)
        assert warning is not None and warning.code == "TG-614"
        return warning.message, str(warning.hint).partition("tidegate prune ")[2]

    message, command = warned(SCRIPT)
    assert message.startswith("the streams live, old are parked: no longer declared in apart and")
    assert command == f"{data} --script FILE", "live is declared elsewhere, and must stay there"
    assert ran(data, "old").exit_code == 0
    assert warned(SCRIPT)[0].startswith("the stream live is parked: no longer declared in apart,")
    message, command = warned("SHOW SOURCES;")
    assert "the streams live, own are parked" in message and command == f"{data} live own"
    assert ran(*command.split()).exit_code == 0
    assert parked_warning(directory, compile_text("SHOW SOURCES;").catalog) is None


def test_a_directory_of_data_directories_says_which_is_meant(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "tidegate.lock").touch()
    for command in (["prune", str(tmp_path), "s"], ["query", str(tmp_path), "SELECT 1"]):
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 2 and "TG-601" in result.stderr
        assert f"Hint: did you mean {tmp_path / 'shop'}?" in result.stderr
    with pytest.raises(DataDirectoryError) as caught:
        DataDirectory(tmp_path).open()
    assert caught.value.hint == f"did you mean {tmp_path / 'shop'}?"
