"""A copy of the checkout, to build and install Tidegate from as a user does."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.support.doc_blocks import ROOT

_FILES = ("tidegate", "pyproject.toml", ".gitignore", "README.md", "CHANGELOG.md", "LICENSE")


def copy_checkout(target: Path) -> Path:
    """Copy the files that a build needs, so that it does not change the checkout of the tests."""
    target.mkdir(parents=True)
    for name in _FILES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target / name)
    return target
