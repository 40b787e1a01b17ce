"""`tidegate checkpoints` and `tidegate inspect`: what a data directory holds, without Spark.

They only read, and take no lock, so another process may be using the directory.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import datetime
from typing import Any

from tidegate.checkpoint.checkpoints import COLUMNS, Checkpoints, describe, summarize
from tidegate.checkpoint.manifest import DamagedManifest, Manifest
from tidegate.checkpoint.manifests import Manifests
from tidegate.cli import data, report
from tidegate.cli.screen import open_screen
from tidegate.errors import RunError, TidegateError, did_you_mean
from tidegate.runtime.directory import DataDirectory
from tidegate.storage import NotFound


def checkpoints(path: str, as_json: bool) -> int:
    """List everything that can be restored."""
    pipelines = _pipelines(path)
    report.show(_damaged(pipelines), "warning")
    listed = Checkpoints(pipelines, lambda connector: True).list_all()
    if as_json:
        print(_json([asdict(item) for item in listed]))
    elif listed:
        rows = [tuple(asdict(item).values()) for item in listed]
        open_screen().table("", COLUMNS, [_blank(row) for row in rows])
    else:
        print(f"{path} has no checkpoints: no epoch was run")
    return 0


def inspect(path: str, epoch: int | None, pipeline: str | None, as_json: bool) -> int:
    """Show what one epoch of each pipeline has decided; the newest by default."""
    pipelines = _chosen(_pipelines(path), pipeline)
    report.show(_damaged(pipelines), "warning")
    manifests = {name: _manifest(name, item, epoch) for name, item in pipelines.items()}
    if as_json:
        print(_json({name: asdict(item) for name, item in manifests.items()}))
        return 0
    if not manifests:
        print(f"{path} has no epochs yet")
    for name, manifest in manifests.items():
        _show(name, pipelines[name], manifest)
    return 0


def _show(name: str, manifests: Manifests, manifest: Manifest) -> None:
    screen = open_screen()
    about = summarize(name, None, manifest)
    names = [n.name for n in manifests.checkpoint_names.all() if n.stamp == manifest.stamp]
    kept = f", kept as {', '.join(names)}" if names else ""
    screen.line(
        f"pipeline {name}: epoch {manifest.epoch} of generation {manifest.generation}, "
        f"{about.time:%Y-%m-%d %H:%M:%S} UTC, {manifest.key_groups} key groups{kept}"
    )
    for generation, left, first in manifest.restores:
        screen.line(f"went back to epoch {left} of generation {generation} before epoch {first}")
    for section in describe(manifest):
        if section.rows:
            screen.table(section.title, section.columns, [_blank(row) for row in section.rows])


def _pipelines(path: str) -> dict[str, Manifests]:
    data.require(path)
    directory = DataDirectory(path)
    return {name: Manifests(directory.pipeline(name)) for name in directory.pipeline_names()}


def _chosen(pipelines: dict[str, Manifests], pipeline: str | None) -> dict[str, Manifests]:
    if pipeline is None:
        return pipelines
    if pipeline.lower() not in pipelines:
        hint = did_you_mean(pipeline, pipelines, "pipelines")
        raise RunError("TG-609", f"unknown pipeline {pipeline}", hint=hint)
    return {pipeline.lower(): pipelines[pipeline.lower()]}


def _manifest(name: str, manifests: Manifests, epoch: int | None) -> Manifest:
    kept = manifests.load_all()
    manifest = next((m for m in kept if epoch is None or m.epoch == epoch), None)
    if manifest is None:
        there = ", ".join(str(m.epoch) for m in kept) or "none"
        what = f"epoch {epoch}" if epoch is not None else "an epoch that can be read"
        raise RunError(
            "TG-609",
            f"the pipeline {name} does not keep {what}",
            hint=f"epochs that are kept: {there}.",
        )
    return manifest


def _damaged(pipelines: dict[str, Manifests]) -> list[TidegateError]:
    """Manifests that cannot be read."""
    problems: list[TidegateError] = []
    for pipeline, manifests in pipelines.items():
        for name in manifests.names():
            try:
                manifests.load(name)
            except DamagedManifest as error:
                message = f"{name} of the pipeline {pipeline} cannot be used: {error}"
                problems.append(RunError("TG-605", message))
            except NotFound:
                # It has expired meanwhile.
                continue
    return problems


def _blank(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """What is not there is left empty: NULL is a value of SQL."""
    return tuple("" if item is None else item for item in row)


def _json(content: Any) -> str:
    def plain(item: Any) -> str:
        assert isinstance(item, datetime), f"{item!r} has no place in a manifest"
        return item.isoformat()

    return json.dumps(content, indent=2, default=plain)
