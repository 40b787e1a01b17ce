"""`tidegate init` writes a project that is right, and writes over nothing."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from tidegate.catalog.objects import Sink, Source, Stream
from tidegate.cli.init import FILES
from tidegate.cli.main import app
from tidegate.compile.compiler import Compiler
from tidegate.connectors.registry import CONNECTORS
from tidegate.testing import load_case
from tidegate.testing.declare import declare


def test_the_project_is_right(tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    done = CliRunner().invoke(app, ["init", str(folder)])
    assert done.exit_code == 0 and "tidegate run streams.sql --until-end" in done.stdout
    file = folder / "streams.sql"
    assert CliRunner().invoke(app, ["check", str(file)]).exit_code == 0
    catalog = Compiler(CONNECTORS).compile(file.read_text(), str(file)).catalog
    assert [len(list(catalog.of(kind))) for kind in (Source, Stream, Sink)] == [1, 2, 1]
    case = load_case(folder / "tests" / "revenue.yaml")
    assert declare(case).stream == "revenue"


def test_nothing_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("mine")
    done = CliRunner().invoke(app, ["init", str(tmp_path)])
    assert done.exit_code == 2 and "is there already" in done.stderr
    assert [item.name for item in tmp_path.iterdir()] == ["README.md"]
    assert "README.md" in FILES
