"""`tidegate prune` removes parked streams and unneeded files, and keeps all other data."""

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
    SourceIdentity,
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


def manifest_of(number: int, *streams: str) -> Manifest:
    """Return a manifest in which each stream has state of this and the previous epoch."""
    states, operators, sinks = {}, {}, {}
    for name in streams:
        offsets = {"s": {"files": [], "recent": [], "older": [f"names-{name}"]}}
        states[name] = StreamState(name, {"s": SourceIdentity("memory", {})}, offsets)
        files = {f"000-{n:012d}-{name}": 5 for n in (number - 1, number) if n >= 0}
        operators[f"{name}.1"] = OperatorState(name, "w", "1", {}, files)
        sinks[f"sink of {name}"] = SinkState(name, "memory", number)
    return Manifest(0, number, 16, 0, states, operators, sinks)


def fill(store: Store, epochs: int, *streams: str) -> None:
    """Write the files of a pipeline after some epochs; the last three manifests are kept."""
    manifests = Manifests(store)
    for number in range(epochs):
        for name in streams:
            store.put(f"state/000-{number:012d}-{name}", b"state")
        manifests.create(manifest_of(number, *streams))
        manifests.expire()
    for name in streams:
        store.put(f"offsets/s/names-{name}", b"[]")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory: live and old run in pipeline main, own and an older live in apart."""
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


def run_prune(*args: object) -> Result:
    return CliRunner().invoke(app, ["prune", *map(str, args)])


def files(path: Path) -> set[str]:
    return {str(item.relative_to(path)) for item in path.rglob("*") if item.is_file()}


def newest(path: Path, pipeline: str) -> Manifest:
    manifest = Manifests(DataDirectory(path).pipeline(pipeline)).load_newest().manifest
    assert manifest is not None
    return manifest


def test_removes_streams_that_a_script_does_not_declare(data: Path, tmp_path: Path) -> None:
    before = files(data)
    result = run_prune(data, "--script", tmp_path / "script.sql", "--dry-run")
    assert result.exit_code == 0 and files(data) == before
    listed = re.sub(r" +", " ", result.stdout)
    assert "would be removed:" in listed
    # The script declares live in pipeline main, not in apart.
    for line in (
        "old | offsets and state in main | 10 B",
        "live | offsets and state in apart | 10 B",
        "old | rows for subscribers | 4 B",
        "late | rows for subscribers | 4 B",
    ):
        assert line in listed, line
    result = run_prune(data, "--script", tmp_path / "script.sql")
    assert result.exit_code == 0 and "\nremoved:" in "\n" + result.stdout
    for pipeline, stream in (("main", "live"), ("apart", "own")):
        manifest = newest(data, pipeline)
        assert set(manifest.streams) == {stream}
        assert {o.stream for o in manifest.operators.values()} == {stream}
        assert set(manifest.sinks) == {f"sink of {stream}"}
        store = DataDirectory(data).pipeline(pipeline)
        assert len(Manifests(store).load_all()) == 3, "the number of manifests has changed"
        needed = {f"state/{f}" for o in manifest.operators.values() for f in o.files}
        assert {item.name for item in store.list("state")} == needed
        assert [item.name for item in store.list("offsets")] == [f"offsets/s/names-{stream}"]
    assert set(DataDirectory(data).stream_sizes()) == {"live"}
    # Inserted rows are input and are kept.
    assert (data / "_sources" / "s" / "rows" / "000000000000.arrow").exists()
    again = run_prune(data, "--script", tmp_path / "script.sql")
    assert "there is nothing to remove" in again.stdout


def test_removes_named_streams(data: Path) -> None:
    live = newest(data, "main").streams["live"]
    assert run_prune(data, "OLD").exit_code == 0
    assert newest(data, "main").streams == {"live": live} and newest(data, "main").epoch == 7
    assert set(newest(data, "apart").streams) == {"own", "live"}
    assert set(DataDirectory(data).stream_sizes()) == {"late", "live"}
    result = run_prune(data, "odl")
    assert result.exit_code and "no data of a stream odl is stored" in result.stderr


def test_without_names_removes_only_unneeded_files(data: Path) -> None:
    store = DataDirectory(data).pipeline("main")
    assert "2 files that no epoch needs" in run_prune(data).stdout
    before = files(data)
    store.put("state/000-000000000001-of-a-failed-task", b"state")
    store.put("state/000-000000000099-of-a-later-epoch", b"state")
    half = data / "_pipelines" / "main" / "state" / ".tidegate-1-0123456789abcdef"
    half.write_bytes(b"half")
    result = run_prune(data)
    assert "2 files that no epoch needs" in result.stdout
    assert "stored streams: late, live, old, own" in result.stdout
    assert files(data) - before == {"_pipelines/main/state/000-000000000099-of-a-later-epoch"}
    assert before - files(data) == set()


def test_rejects_script_of_other_streams(data: Path, tmp_path: Path) -> None:
    before = files(data)
    other = tmp_path / "other.sql"
    other.write_text(SCRIPT.replace("live", "another").replace("own", "mine"))
    result = run_prune(data, "--script", other)
    assert result.exit_code and "declares none of the streams" in result.stderr
    assert "live, old, own" in result.stderr
    other.write_text("CREATE STREAM x AS SELECT;")
    assert run_prune(data, "--script", other).exit_code == 2
    result = run_prune(data, "old", "--script", tmp_path / "script.sql")
    assert "cannot be combined" in result.stderr
    assert files(data) == before


def test_rejects_directory_in_use_and_missing_directory(data: Path, tmp_path: Path) -> None:
    before = files(data)
    running = DataDirectory(data)
    running.open()
    result = run_prune(data, "old")
    assert result.exit_code and "TG-602" in result.stderr and files(data) == before
    running.close()
    result = run_prune(tmp_path / "nowhere", "old")
    assert "TG-601" in result.stderr and not (tmp_path / "nowhere").exists()


def test_keeps_files_of_named_checkpoint_and_prints_it(data: Path) -> None:
    store = DataDirectory(data).pipeline("main")
    Manifests(store).name_newest("before")
    named = newest(data, "main")
    result = run_prune(data, "old")
    assert "checkpoint 'before' of pipeline main still contains old" in result.stdout
    kept = Manifests(store).load_usable()
    assert named in kept and "old" not in kept[0].streams
    assert (data / "_pipelines" / "main" / "offsets" / "s" / "names-old").exists()


@pytest.mark.parametrize("power_loss", [False, True])
def test_directory_is_intact_after_crash_at_any_step(tmp_path: Path, power_loss: bool) -> None:
    steps, crashed = 0, True
    while crashed:
        path, journal = tmp_path / str(steps), tmp_path / "journal"
        directory = DataDirectory(path)
        fill(directory.pipeline("main"), 4, "live", "old")
        directory.stream("old").put(memory.epoch_file(0), b"rows")
        live = newest(path, "main")
        previous_disk = disk.use_disk(LossyDisk(journal, steps))
        try:
            Pruning(directory, {"main": {"old"}}, {"old"}).run()
            crashed = False
        except PowerLost:
            pass
        finally:
            disk.use_disk(previous_disk)
        if power_loss:
            lose_power(journal)
        for _ in range(2):
            manifest = newest(path, "main")
            assert manifest.streams["live"] == live.streams["live"], f"after {steps} steps"
            assert manifest.operators["live.1"] == live.operators["live.1"]
            Pruning(directory, {"main": {"old"}}, {"old"}).run()
        assert set(manifest.streams) == {"live"} and directory.stream_sizes() == {}
        steps += 1
    assert steps > 20


def test_warning_about_parked_streams_has_command_that_removes_them(data: Path) -> None:
    directory = DataDirectory(data)

    def warning_for(script: str) -> tuple[str, str]:
        warning = parked_warning(directory, compile_text(script).catalog)
        assert warning is not None and warning.code == "TG-614"
        return warning.message, str(warning.hint).partition("tidegate prune ")[2]

    message, command = warning_for(SCRIPT)
    assert message.startswith("the streams live, old are parked: no longer declared in apart and")
    assert command == f"{data} --script FILE", (
        "live is declared in another pipeline and must be kept there"
    )
    assert run_prune(data, "old").exit_code == 0
    assert warning_for(SCRIPT)[0].startswith(
        "the stream live is parked: no longer declared in apart,"
    )
    message, command = warning_for("SHOW SOURCES;")
    assert "the streams live, own are parked" in message and command == f"{data} live own"
    assert run_prune(*command.split()).exit_code == 0
    assert parked_warning(directory, compile_text("SHOW SOURCES;").catalog) is None


def test_suggests_data_directories_in_a_folder(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "tidegate.lock").touch()
    for command in (["prune", str(tmp_path), "s"], ["query", str(tmp_path), "SELECT 1"]):
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 2 and "TG-601" in result.stderr
        assert f"Hint: did you mean {tmp_path / 'shop'}?" in result.stderr
    with pytest.raises(DataDirectoryError) as caught:
        DataDirectory(tmp_path).open()
    assert caught.value.hint == f"did you mean {tmp_path / 'shop'}?"
