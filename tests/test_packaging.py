"""The wheel and the sdist are complete, and the wheel runs without the rest of the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import tidegate
from tests.support.doc_blocks import ROOT
from tests.support.install import copy_checkout


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of what a build needs, so that building leaves nothing in this checkout."""
    return copy_checkout(tmp_path_factory.mktemp("build") / "checkout")


@pytest.fixture(scope="module")
def dist(checkout: Path) -> Path:
    """Return the directory with the wheel and the sdist."""
    call_backend(checkout, "build_wheel", "dist")
    call_backend(checkout, "build_sdist", "dist")
    return checkout / "dist"


def call_backend(checkout: Path, function: str, target: str) -> None:
    """Call the build backend of pyproject.toml as pip does, but without downloading it."""
    program = (
        "import hatchling.build as backend, os;"
        f"os.makedirs({target!r}, exist_ok=True); backend.{function}({target!r})"
    )
    build = subprocess.run(
        [sys.executable, "-c", program], cwd=checkout, capture_output=True, text=True, check=False
    )
    assert build.returncode == 0, build.stderr[-2000:]


def test_wheel_contains_all_modules_and_data_files(dist: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    assert wheel.name == f"tidegate-{tidegate.__version__}-py3-none-any.whl"
    packaged = set(zipfile.ZipFile(wheel).namelist())
    files = {str(p.relative_to(ROOT)) for p in (ROOT / "tidegate").rglob("*") if p.is_file()}
    files = {name for name in files if "__pycache__" not in name}
    assert files <= packaged, sorted(files - packaged)
    rest = {name.partition("/")[0] for name in packaged - files}
    assert rest == {f"tidegate-{tidegate.__version__}.dist-info"}


def test_sdist_contains_what_a_build_needs(dist: Path) -> None:
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    data = {"tidegate/py.typed", "tidegate/sql/spark_functions.txt"}
    assert {"pyproject.toml", "README.md", "LICENSE", *data} <= names
    assert any(name.startswith("tidegate/console/static/") for name in names)


def test_editable_install_is_a_path_that_type_checkers_follow(checkout: Path) -> None:
    call_backend(checkout, "build_editable", "editable")
    (wheel,) = (checkout / "editable").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        files = [name for name in archive.namelist() if ".dist-info/" not in name]
        assert files == ["_tidegate.pth"]
        assert Path(archive.read("_tidegate.pth").decode().strip()) == checkout


def test_dependencies_have_lower_and_upper_bounds() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    names = sorted(extras.keys() - {"dev"})
    for text in [*project["dependencies"], *(each for name in names for each in extras[name])]:
        operators = {each.operator for each in Requirement(text).specifier}
        assert operators == {">=", "<"}, text


def test_constraints_pin_every_dependency_to_an_allowed_version() -> None:
    """`make lock` was run after the last change of pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pins: dict[str, list[str]] = {}
    for line in lines:
        if not line.startswith("#"):
            pin = Requirement(line)
            (version,) = pin.specifier
            assert version.operator == "==" and pin.url is None, line
            pins.setdefault(canonical(pin.name), []).append(version.version)
    extras = project["optional-dependencies"].values()
    for text in [*project["dependencies"], *(each for extra in extras for each in extra)]:
        requirement = Requirement(text)
        if requirement.name != "tidegate":
            versions = pins.get(canonical(requirement.name), [])
            assert versions, f"{text} is not in constraints.txt: run make lock"
            assert all(requirement.specifier.contains(each) for each in versions), text


def canonical(name: str) -> str:
    return name.lower().replace("_", "-")


def test_wheel_runs_without_the_checkout(dist: Path, tmp_path: Path) -> None:
    """Unpack the wheel as pip does and run commands where only it and the demo are."""
    (wheel,) = dist.glob("*.whl")
    home = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(home)
    demo = tmp_path / "demo.sql"
    demo.write_text((ROOT / "examples" / "demo.sql").read_text("utf-8"), "utf-8")
    environment = {**os.environ, "PYTHONPATH": str(home)}

    def python(*arguments: str) -> str:
        process = subprocess.run(
            [sys.executable, *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert process.returncode == 0, process.stderr
        return process.stdout

    assert python("-c", "import tidegate; print(tidegate.__file__)").startswith(str(home))
    assert python("-m", "tidegate", "--version") == f"tidegate {tidegate.__version__}\n"
    check = python("-m", "tidegate", "check", "demo.sql")
    assert check.startswith("demo.sql: ok, 1 source, 2 streams")
    assert "price_bands" in python("-m", "tidegate", "explain", "demo.sql")
    assert "wrote shop/streams.sql" in python("-m", "tidegate", "init", "shop")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_can_complete_commands(shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    from tidegate.cli.main import app

    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    result = CliRunner().invoke(app, ["--show-completion", shell], prog_name="tidegate")
    assert "TIDEGATE_COMPLETE" in result.stdout, result.output
