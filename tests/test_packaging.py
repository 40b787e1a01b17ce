"""The wheel holds what it must, and works where nothing else of the project is."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import tidegate

ROOT = Path(__file__).parents[1]
COPIED = ("tidegate", "pyproject.toml", "README.md", "LICENSE")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist, built from a copy so that nothing is left here."""
    import shutil

    folder = tmp_path_factory.mktemp("build")
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=ignored)
        else:
            shutil.copy(source, folder / name)
    # The back end of pyproject.toml, called as pip would, without a download.
    program = (
        "from setuptools import build_meta as b; import os; os.makedirs('dist');"
        "b.build_wheel('dist'); b.build_sdist('dist')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return folder / "dist"


def test_the_wheel_holds_all_modules_and_what_they_read(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    assert wheel.name == f"tidegate-{tidegate.__version__}-py3-none-any.whl"
    names = set(zipfile.ZipFile(wheel).namelist())
    wanted = {str(p.relative_to(ROOT)) for p in (ROOT / "tidegate").rglob("*") if p.is_file()}
    wanted = {name for name in wanted if "__pycache__" not in name}
    assert wanted <= names, sorted(wanted - names)
    assert not any(name.startswith(("tests/", "benchmarks/")) for name in names)


def test_the_sdist_can_be_built_again(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "tidegate/py.typed"} <= names


def test_the_wheel_works_on_its_own(built: Path, tmp_path: Path) -> None:
    """Unpacked as pip would, with nothing of this project on the path but the demo."""
    (wheel,) = built.glob("*.whl")
    home = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(home)
    demo = tmp_path / "demo.sql"
    demo.write_text((ROOT / "examples" / "demo.sql").read_text("utf-8"), "utf-8")
    environment = {**os.environ, "PYTHONPATH": str(home)}

    def command(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "tidegate", *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert command("--version") == f"tidegate {tidegate.__version__}\n"
    assert command("check", "demo.sql").startswith("demo.sql: ok, 1 source, 2 streams")
    assert "price_bands" in command("explain", "demo.sql")
    assert "wrote shop/streams.sql" in command("init", "shop")
    where = subprocess.run(
        [sys.executable, "-c", "import tidegate; print(tidegate.__file__)"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert where.stdout.startswith(str(home)), "it was the one of the wheel"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_can_complete_commands(shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    from tidegate.cli.main import app

    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    done = CliRunner().invoke(app, ["--show-completion", shell], prog_name="tidegate")
    assert "TIDEGATE_COMPLETE" in done.stdout, done.output
