"""`tidegate package` writes the package as an archive for clusters."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from tidegate.cli import init as package
from tidegate.errors import RunError


def test_package_writes_a_reproducible_archive(tmp_path: Path) -> None:
    one, two = tmp_path / "one.zip", tmp_path / "two.zip"
    assert (package.package(one), package.package(two)) == (0, 0)
    assert one.read_bytes() == two.read_bytes()
    names = zipfile.ZipFile(one).namelist()
    assert {"tidegate/__init__.py", "tidegate/spark/tasks/step.py", "tidegate/py.typed"} <= set(
        names
    )
    assert not any("__pycache__" in name for name in names)
    with pytest.raises(RunError, match=r"end in \.zip"):
        package.package(tmp_path / "one.pex")
    with pytest.raises(RunError, match="cannot be written"):
        package.package(tmp_path / "nowhere" / "one.zip")
