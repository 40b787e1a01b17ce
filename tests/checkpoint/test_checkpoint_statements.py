"""Checkpoint statements in a session that is not running, and the commands that use them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import tidegate
from tidegate.checkpoint.manifest import (
    Manifest,
    OperatorState,
    SinkState,
    SourceIdentity,
    StreamState,
)
from tidegate.checkpoint.manifests import Manifests
from tidegate.cli.main import app
from tidegate.errors import RunError, ScriptError
from tidegate.runtime.directory import DataDirectory
from tidegate.session.session import Session

MANIFEST = Manifest(
    0,
    0,
    16,
    1_767_225_600_000_000,
    {
        "s": StreamState(
            "0a1b2c3d",
            {"bids": SourceIdentity("files", {"path": "in"}), "asks": SourceIdentity("memory", {})},
            {"bids": {"files": ["a.json", "b.json"], "recent": []}},
            rows_in=1200,
            rows_out=34,
        )
    },
    {
        "s.ff": OperatorState(
            "s",
            "window_aggregate",
            "ff",
            report={"rows": 5, "bytes": 640, "groups": 7, "watermark_us": 1_767_225_540_000_000},
        )
    },
    {
        "out": SinkState("s", "files", 0, [{}, {}]),
        "kept": SinkState("s", "memory", 0, [{}]),
    },
)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    directory = DataDirectory(path)
    directory.open()
    manifests = Manifests(directory.pipeline("main"))
    manifests.create(MANIFEST)
    sinks = {"out": SinkState("s", "files", 1, [{}]), "kept": MANIFEST.sinks["kept"]}
    manifests.create(replace(MANIFEST, epoch=1, sinks=sinks))
    directory.close()
    return path


def execute(session: Session, sql: str) -> list[str]:
    return [result.text or "" for result in session.execute(sql)]


def test_creates_lists_and_drops_checkpoints(data: Path) -> None:
    with tidegate.open(data) as session:
        assert execute(session, "CHECKPOINT 'Before'; CHECKPOINT;") == [
            "checkpoint 'Before': main at epoch 1",
            "checkpoint 'checkpoint-1': main at epoch 1",
        ]
        (shown,) = session.execute("SHOW CHECKPOINTS;")
        assert shown.columns[:4] == ("pipeline", "name", "generation", "epoch")
        assert sorted((row[1] or "", row[3], row[6]) for row in shown.rows) == [
            ("", 0, 1200),
            ("Before", 1, 1200),
            ("checkpoint-1", 1, 1200),
        ]
        execute(session, "DROP CHECKPOINT 'before'; DROP CHECKPOINT IF EXISTS 'before';")
        assert [c.name for c in session.checkpoints()] == ["checkpoint-1", None]
        assert session.checkpoint("again") == "again"
        session.drop_checkpoint("again")


@pytest.mark.parametrize(
    ("sql", "code", "caret", "hint"),
    [
        ("DROP CHECKPOINT 'befor';", "TG-609", "'befor'", "did you mean before?"),
        ("RESTORE FROM CHECKPOINT 'befor';", "TG-609", "'befor'", "did you mean before?"),
        ("RESTORE FROM CHECKPOINT 7;", "TG-609", "7", "available epochs: 0, 1."),
        ("CHECKPOINT 'before';", "TG-202", "'before'", "DROP CHECKPOINT 'before';"),
        ("RESTORE FROM CHECKPOINT 0;", "TG-610", "0", "0 WITH (sinks = 'keep');"),
        (
            "RESTORE FROM CHECKPOINT 0 WITH (pipeline = 'mian');",
            "TG-609",
            "0",
            "did you mean main?",
        ),
    ],
)
def test_rejection_has_position_and_hint(
    data: Path, sql: str, code: str, caret: str, hint: str
) -> None:
    with tidegate.open(data) as session:
        session.checkpoint("before")
        files = sorted(data.rglob("*.json"))
        with pytest.raises(RunError) as caught:
            session.execute(sql)
        error = caught.value
        assert error.code == code and hint in (error.hint or ""), error.render()
        assert error.location is not None
        assert error.location.text[error.location.start : error.location.end] == caret
        assert sorted(data.rglob("*.json")) == files


def test_restore_with_keep_warns_and_starts_generation(data: Path) -> None:
    with tidegate.open(data) as session:
        (text,) = execute(session, "RESTORE FROM CHECKPOINT 0 WITH (sinks = 'keep');")
        assert text == "main was restored to epoch 0 and continues with epoch 4 in generation 1"
        (warning,) = session.warnings
        assert warning.code == "TG-610" and "out (files) up to epoch 1" in warning.message
        assert "kept" not in warning.message, "memory sinks can roll back"
        newest = session.checkpoints()[0]
        assert (newest.generation, newest.epoch) == (1, 3)


def test_python_api_rejects_like_statements(data: Path) -> None:
    with tidegate.open(data) as session:
        with pytest.raises(RunError, match="cannot roll them back"):
            session.restore(0)
        with pytest.raises(RunError, match="'keep' or None"):
            session.restore(0, sinks="drop")
        with pytest.raises(RunError, match="numbers identify epochs"):
            session.checkpoint("2026")
        session.restore(0, sinks="keep", pipeline="main")
        assert session.checkpoints()[0].generation == 1
        with pytest.raises(ScriptError, match="expected a quoted name"):
            session.execute("RESTORE FROM CHECKPOINT yesterday;")


def test_rejects_statements_before_first_epoch(tmp_path: Path) -> None:
    with tidegate.open(tmp_path / "new") as session:
        assert session.checkpoints() == []
        for sql in ("CHECKPOINT;", "RESTORE FROM CHECKPOINT 0;"):
            with pytest.raises(RunError) as caught:
                session.execute(sql)
            assert caught.value.code == "TG-609" and caught.value.hint


def output(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return result.stdout


def test_checkpoints_command_works_while_directory_is_in_use(data: Path) -> None:
    with tidegate.open(data) as session:
        session.checkpoint("before")
        text = output("checkpoints", str(data))
    lines = [line.split("|") for line in text.splitlines()]
    assert [part.strip() for part in lines[0]][:4] == ["pipeline", "name", "generation", "epoch"]
    assert [part.strip() for part in lines[2]][:4] == ["main", "before", "0", "1"]
    listed = json.loads(output("checkpoints", str(data), "--json"))
    assert [(c["name"], c["epoch"], c["rows_in"]) for c in listed] == [
        ("before", 1, 1200),
        (None, 0, 1200),
    ]
    assert listed[0]["time"] == "2026-01-01T00:00:00+00:00"


def test_inspect_shows_sources_streams_operators_and_sinks(data: Path) -> None:
    text = output("inspect", str(data), "--epoch", "0")
    assert "pipeline main: epoch 0 of generation 0, 2026-01-01 00:00:00 UTC" in text
    for row in (
        "bids   | files     | s      | files 2, recent 0",
        "asks   | memory    | s      | nothing read yet",
        "s      |    1200 |       34 |            0 | false",
        "out  | files     | s      |            2 |          0",
    ):
        assert row in text, text
    operator = next(line for line in text.splitlines() if "window_aggregate" in line)
    parts = [part.strip() for part in operator.split("|")]
    assert parts == ["s", "window_aggregate", "7", "5", "640", "0", "0", "2025-12-31 23:59:00"]
    stored = json.loads(output("inspect", str(data), "--json"))
    assert stored["main"]["epoch"] == 1
    assert stored["main"]["streams"]["s"]["offsets"]["bids"]["files"] == ["a.json", "b.json"]


def test_commands_warn_about_damaged_manifests(data: Path) -> None:
    newest = sorted(data.rglob("manifests/*.json"))[-1]
    newest.write_bytes(b"{")
    for command in ("checkpoints", "inspect"):
        result = CliRunner().invoke(app, [command, str(data)])
        assert (
            result.exit_code == 0 and "warning[TG-605]: manifests/000-000000000001" in result.stderr
        )
        assert "main" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["checkpoints", "nowhere"], "is not a data directory"),
        (["inspect", "nowhere"], "is not a data directory"),
        (["inspect", "DATA", "--epoch", "9"], "stored epochs: 1, 0."),
        (["inspect", "DATA", "--pipeline", "mian"], "did you mean main?"),
    ],
)
def test_commands_reject_missing_directory_epoch_or_pipeline(
    data: Path, arguments: list[str], message: str
) -> None:
    command = [str(data) if item == "DATA" else item for item in arguments]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 2 and message in result.stderr
