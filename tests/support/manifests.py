"""Manifests in a folder, without a pipeline that writes them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tidegate.checkpoint.manifest import Manifest
from tidegate.checkpoint.manifests import Manifests
from tidegate.storage import open_store

FIRST = Manifest(0, 0, 16, 1)


def open_manifests(path: Path, max_retained: int = 3) -> Manifests:
    return Manifests(open_store(str(path)), max_retained)


def create_manifests(path: Path, *contents: Manifest | int, generation: int = 0) -> Manifests:
    """Create manifests; a number is an empty manifest of that epoch."""
    manifests = open_manifests(path)
    for content in contents:
        if isinstance(content, int):
            content = replace(FIRST, generation=generation, epoch=content)
        manifests.create(content)
    return manifests
