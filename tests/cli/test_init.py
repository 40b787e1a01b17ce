"""`tidegate init` and `tidegate package`."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tidegate.catalog.objects import Sink, Source, Stream
from tidegate.cli.init import FILES, package
from tidegate.cli.main import app
from tidegate.compile.compiler import Compiler
from tidegate.connectors.registry import CONNECTORS
from tidegate.errors import RunError
from tidegate.testing import load_case
from tidegate.testing.declare import declare


def test_init_writes_valid_project(tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    result = CliRunner().invoke(app, ["init", str(folder)])
    assert result.exit_code == 0 and "tidegate run streams.sql --available-now" in result.stdout
    file = folder / "streams.sql"
    assert CliRunner().invoke(app, ["check", str(file)]).exit_code == 0
    catalog = Compiler(CONNECTORS).compile(file.read_text(), str(file)).catalog
    assert [len(list(catalog.of_type(kind))) for kind in (Source, Stream, Sink)] == [1, 2, 1]
    case = load_case(folder / "tests" / "revenue.yaml")
    assert declare(case).stream == "revenue"


def test_init_does_not_replace_files(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("mine")
    result = CliRunner().invoke(app, ["init", str(tmp_path)])
    assert result.exit_code == 2 and "already exists" in result.stderr
    assert [item.name for item in tmp_path.iterdir()] == ["README.md"]
    assert "README.md" in FILES


def test_package_writes_a_reproducible_archive(tmp_path: Path) -> None:
    first, second = tmp_path / "one.zip", tmp_path / "two.zip"
    assert (package(first), package(second)) == (0, 0)
    assert first.read_bytes() == second.read_bytes()
    names = zipfile.ZipFile(first).namelist()
    assert {"tidegate/__init__.py", "tidegate/spark/tasks/step.py", "tidegate/py.typed"} <= set(
        names
    )
    assert not any("__pycache__" in name for name in names)
    with pytest.raises(RunError, match=r"end in \.zip"):
        package(tmp_path / "one.pex")
    with pytest.raises(RunError, match="cannot be written"):
        package(tmp_path / "nowhere" / "one.zip")
