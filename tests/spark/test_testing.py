"""The test kit on Spark: cases with and without restarts."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tidegate.testing import load_case, main, run_case
from tidegate.testing.loader import find_cases

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
CASES = ROOT / "tests" / "cases"


@pytest.mark.parametrize("path", find_cases([CASES]), ids=lambda path: path.stem)
@pytest.mark.parametrize("restart", [False, True], ids=["straight", "restarted"])
def test_cases_pass(path: Path, restart: bool, spark: SparkSession) -> None:
    case = load_case(path)
    outcome = run_case(case, spark=spark, restart=restart)
    assert outcome.passed, f"{outcome.reason}\n{outcome.detail or ''}"


WRONG = {
    "projection": (
        'doubled: "21.00"',
        'doubled: "21.01"',
        "expected_rows: 1 row missing, 1 row un",
    ),
    "steps_and_restart": (
        "id: 3, state: SENT}, {id: 2",
        "id: 3, state: SENT}, {id: 9",
        "expect_new",
    ),
    "two_sources_one_epoch": ("[{who: eve, via: app}, ", "[", "expect_new: 1 row unexpected"),
    "one_row_per_epoch": ("{n: 1}, {n: 10}, {n: 2}", "{n: 1}, {n: 2}, {n: 10}", "different order"),
    "changelog": (
        "expect_all: []",
        "expect_all: [{item: tea, amount: 4}]",
        "expect_all: 1 row miss",
    ),
    "dead_letters": ("ts is NULL", "ts is missing", "expect_new: 1 row missing, 1 row unexpected"),
    "watermark": ("expect_watermark_ms: 8000", "expect_watermark_ms: 9000", "9000, found 8000"),
    "script": ("product: tea", "product: coffee", "expected_rows: 1 row missing, 1 row unexpected"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_expectation_fails(name: str, tmp_path: Path, spark: SparkSession) -> None:
    """Each of the cases above fails if one thing in the file is wrong."""
    right, wrong, reason = WRONG[name]
    text = (CASES / f"{name}.yaml").read_text("utf-8")
    assert right in text
    path = tmp_path / f"{name}.yaml"
    path.write_text(text.replace(right, wrong, 1), "utf-8")
    outcome = run_case(load_case(path), spark=spark)
    assert not outcome.passed
    assert reason in (outcome.reason or "")


def test_command_counts_cases_and_sets_the_exit_code(
    tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(CASES / "windows.yaml", tmp_path)
    assert main([tmp_path], spark=spark) == 0
    assert capsys.readouterr().out == "1 passed, 0 failed, 0 skipped\n"
    text = (CASES / "windows.yaml").read_text("utf-8")
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(text.replace("{id: 3, window", "{id: 4, window"), "utf-8")
    assert main([tmp_path], spark=spark) == 1
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "FAIL windows: expected_rows: 1 row missing, 1 row unexpected"
    assert out[-1] == "1 passed, 1 failed, 0 skipped"


@pytest.mark.parametrize("number", [0, 1])
def test_examples_of_the_documentation_pass(
    number: int, tmp_path: Path, spark: SparkSession
) -> None:
    text = (ROOT / "docs" / "TESTING_SQL.md").read_text("utf-8")
    blocks = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == 2
    path = tmp_path / "example.yaml"
    path.write_text(blocks[number], "utf-8")
    outcome = run_case(load_case(path), spark=spark)
    assert outcome.passed, f"{outcome.reason}\n{outcome.detail or ''}"
