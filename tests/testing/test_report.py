"""`tidegate test` without Spark: lines, counts and exit codes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.testing.test_runner import FakePipeline
from tidegate.testing import main, report

SOURCE = {"name": "t", "schema": [{"name": "n", "type": "BIGINT"}], "rows": [{"n": 1}]}


def write(directory: Path, name: str, **fields: Any) -> Path:
    case = {"sources": [SOURCE], "query": "SELECT n FROM t", "expected_rows": [{"n": 1}], **fields}
    path = directory / f"{name}.json"
    path.write_text(json.dumps(case), "utf-8")
    return path


@pytest.fixture(autouse=True)
def use_fake_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each case on a new fake pipeline instead of Spark."""
    monkeypatch.setattr(report._SharedSpark, "open", lambda self, path: FakePipeline().open(path))


def test_passed_cases_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, "one")
    write(tmp_path, "two")
    assert main([tmp_path]) == 0
    assert capsys.readouterr().out == "2 passed, 0 failed, 0 skipped\n"
    assert main([tmp_path], verbose=True) == 0
    shown = r"ok one \(\d\.\d s\)\nok two \(\d\.\d s\)\n2 passed, 0 failed, 0 skipped\n"
    assert re.fullmatch(shown, capsys.readouterr().out)


def test_a_failure_shows_its_diff(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, "good")
    write(tmp_path, "wrong", expected_rows=[{"n": 2}])
    assert main([tmp_path]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "FAIL wrong: expected_rows: 1 row missing, 1 row unexpected",
        "    n",
        "  − 2",
        "  + 1",
        "1 passed, 1 failed, 0 skipped",
    ]


def test_an_unsupported_query_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "count", query="SELECT histogram_numeric(n, 3) AS n FROM t", emit="changelog")
    assert main([tmp_path]) == 1
    first, *middle, last = capsys.readouterr().out.splitlines()
    assert any("histogram_numeric(n, 3)" in line for line in middle), (
        "the output shows the position in the SQL"
    )
    assert first.startswith(
        "FAIL count: TG-501: the aggregate histogram_numeric is not supported yet"
    )
    assert last == "0 passed, 1 failed, 0 skipped"
    assert main([tmp_path], verbose=True) == 1
    assert "Hint:" in capsys.readouterr().out


def test_skipped_cases_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, "one", skip="not ours")
    write(tmp_path, "two")
    (tmp_path / "skips.yaml").write_text("two: another reason\n", "utf-8")
    assert main([tmp_path]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "skip one: not ours",
        "skip two: another reason",
        "0 passed, 0 failed, 2 skipped",
    ]


def test_an_invalid_file_does_not_stop_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, "good")
    write(tmp_path, "odd", expected_row="?")
    assert main([tmp_path]) == 2
    failure, hint, last = capsys.readouterr().out.splitlines()
    assert hint.startswith("Hint: did you mean expected_")
    assert failure.startswith("FAIL odd: TG-701: ")
    assert failure.endswith("odd.json: expected_row: unknown field")
    assert last == "1 passed, 1 failed, 0 skipped"


def test_no_case_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([tmp_path]) == 2
    assert "no case found" in capsys.readouterr().out
    assert main([tmp_path / "nowhere"]) == 2
    assert "no such file or directory" in capsys.readouterr().out
