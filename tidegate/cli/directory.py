"""Data directories, and the commands that work on them without Spark.

`tidegate checkpoints`, `inspect` and `query` only read and take no lock, so another process may be
using the directory. `tidegate prune` takes the lock.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidegate.checkpoint.checkpoints import COLUMNS, Checkpoints, checkpoint_row, manifest_tables
from tidegate.checkpoint.manifest import DamagedManifest, Manifest
from tidegate.checkpoint.manifests import Manifests
from tidegate.cli import scripts
from tidegate.cli.errors import print_diagnostics
from tidegate.cli.screen import open_screen, to_rows
from tidegate.cli.text import RowFormat, format_rows, format_size
from tidegate.errors import DataDirectoryError, RunError, TidegateError, did_you_mean
from tidegate.runtime.directory import DataDirectory
from tidegate.storage import NotFound

if TYPE_CHECKING:
    from tidegate.runtime.cleanup import Pruning

# ---- Finding and removing data directories

DEFAULT_FOLDER = Path(".tidegate")


def default_directory(script: Path | None, name: str) -> str:
    """Return the default data directory of a script: it is next to the script."""
    return str((script.parent if script is not None else Path()) / DEFAULT_FOLDER / name)


def require_data_directory(path: str) -> None:
    """Raise an error if a path is not a data directory; opening it would create one."""
    directory = DataDirectory(path)
    if not directory.is_initialized:
        raise DataDirectoryError(
            "TG-601",
            f"{path} is not a data directory of Tidegate: it has no file {directory.marker_file}",
            hint=directory.nearby_directories_hint()
            or "pass the data directory of the run: its --data, or by default .tidegate/<file> "
            "next to the SQL file.",
        )


def remove_data_directory(path: str, script: Path | None) -> None:
    """Remove a data directory with all its data; `script` is the file that will run."""
    directory = DataDirectory(path)
    if directory.store.local and not directory.path.exists():
        return
    reason = _reason_to_keep(directory, script)
    if reason is not None:
        raise DataDirectoryError(
            "TG-601",
            f"--fresh does not remove {path}: {reason}",
            hint="choose another directory with --data DIR, or remove this one yourself.",
        )
    # The lock prevents a removal under a running pipeline.
    directory.open(skip_format_check=True)
    try:
        if directory.store.local:
            shutil.rmtree(directory.path)
        else:
            directory.clear()
    except OSError as error:
        raise DataDirectoryError(
            "TG-601", f"{path} cannot be removed: {error.strerror or error}"
        ) from None
    finally:
        directory.close()


def _reason_to_keep(directory: DataDirectory, script: Path | None) -> str | None:
    """Return why a directory must not be removed: it may contain files of the user."""
    if directory.store.local and not directory.path.is_dir():
        return "it is not a directory"
    if directory.has_files() and not directory.is_initialized:
        return f"it is not a data directory of Tidegate: it has no file {directory.marker_file}"
    if not directory.store.local:
        return None
    # After `run --data .`, the directory of the user's project has the lock file of Tidegate.
    if Path.cwd().is_relative_to(directory.path):
        return "it contains the current directory"
    if script is not None and script.resolve().is_relative_to(directory.path):
        return f"it contains {script}"
    return None


# ---- tidegate checkpoints, tidegate inspect


def checkpoints(path: str, as_json: bool) -> int:
    """List the checkpoints that can be restored."""
    pipelines = _pipelines(path)
    print_diagnostics(_damaged_manifests(pipelines), "warning")
    listed = Checkpoints(pipelines, lambda connector: True).list_all()
    if as_json:
        print(_to_json([asdict(item) for item in listed]))
    elif listed:
        rows = [tuple(asdict(item).values()) for item in listed]
        open_screen().print_table("", COLUMNS, [_nulls_as_blanks(row) for row in rows])
    else:
        print(f"{path} has no checkpoints: no epoch was run")
    return 0


def inspect(path: str, epoch: int | None, pipeline: str | None, as_json: bool) -> int:
    """Print the manifest of an epoch of each pipeline, by default of the newest epoch."""
    pipelines = _select_pipeline(_pipelines(path), pipeline)
    print_diagnostics(_damaged_manifests(pipelines), "warning")
    loaded = {name: _load_manifest(name, item, epoch) for name, item in pipelines.items()}
    if as_json:
        print(_to_json({name: asdict(manifest) for name, manifest in loaded.items()}))
        return 0
    if not loaded:
        print(f"{path} has no epochs yet")
    for name, manifest in loaded.items():
        _print_manifest(name, pipelines[name], manifest)
    return 0


def _print_manifest(name: str, manifests: Manifests, manifest: Manifest) -> None:
    screen = open_screen()
    summary = checkpoint_row(name, None, manifest)
    names = [n.name for n in manifests.checkpoint_names.all() if n.stamp == manifest.stamp]
    checkpoint = f", checkpoint {', '.join(names)}" if names else ""
    screen.print_line(
        f"pipeline {name}: epoch {manifest.epoch} of generation {manifest.generation}, "
        f"{summary.time:%Y-%m-%d %H:%M:%S} UTC, {manifest.key_groups} key groups{checkpoint}"
    )
    for restore in manifest.restores:
        screen.print_line(
            f"epoch {restore.next_epoch} was restored from epoch {restore.epoch} of generation "
            f"{restore.generation}"
        )
    for section in manifest_tables(manifest):
        if section.rows:
            rows = [_nulls_as_blanks(row) for row in section.rows]
            screen.print_table(section.title, section.columns, rows)


def _pipelines(path: str) -> dict[str, Manifests]:
    require_data_directory(path)
    directory = DataDirectory(path)
    return {name: Manifests(directory.pipeline(name)) for name in directory.pipeline_names()}


def _select_pipeline(pipelines: dict[str, Manifests], name: str | None) -> dict[str, Manifests]:
    if name is None:
        return pipelines
    if name.lower() not in pipelines:
        hint = did_you_mean(name, pipelines, "pipelines")
        raise RunError("TG-609", f"unknown pipeline {name}", hint=hint)
    return {name.lower(): pipelines[name.lower()]}


def _load_manifest(pipeline: str, manifests: Manifests, epoch: int | None) -> Manifest:
    stored = manifests.load_all()
    manifest = next((m for m in stored if epoch is None or m.epoch == epoch), None)
    if manifest is None:
        missing = f"epoch {epoch} is not stored" if epoch is not None else "no epoch can be read"
        epochs = ", ".join(str(m.epoch) for m in stored) or "none"
        message = f"{missing} in pipeline {pipeline}"
        raise RunError("TG-609", message, hint=f"stored epochs: {epochs}.")
    return manifest


def _damaged_manifests(pipelines: dict[str, Manifests]) -> list[TidegateError]:
    """Return a warning for each manifest that cannot be read."""
    warnings: list[TidegateError] = []
    for pipeline, manifests in pipelines.items():
        for name in manifests.names():
            try:
                manifests.load(name)
            except DamagedManifest as error:
                message = f"{name} of pipeline {pipeline} cannot be used: {error}"
                warnings.append(RunError("TG-605", message))
            except NotFound:
                # The manifest has expired in the meantime.
                continue
    return warnings


def _nulls_as_blanks(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Replace None by an empty text, because tables print None as the SQL value NULL."""
    return tuple("" if item is None else item for item in row)


def _to_json(content: Any) -> str:
    def encode(item: Any) -> str:
        assert isinstance(item, datetime), f"manifests have no value like {item!r}"
        return item.isoformat()

    return json.dumps(content, indent=2, default=encode)


# ---- tidegate query


def query(path: str, sql: str, row_format: RowFormat | None) -> int:
    """Print the result of a query over the stored rows."""
    from tidegate.queries.engine import run_query
    from tidegate.queries.snapshot import load_stored_tables

    require_data_directory(path)
    directory = DataDirectory(path)
    streams = load_stored_tables(directory)
    if not streams:
        raise RunError(
            "TG-802",
            f"{path} has no stored rows that can be queried",
            hint="CREATE MATERIALIZED VIEW my_view AS SELECT …; in the script that runs there.",
        )
    result = run_query(directory, streams, sys.stdin.read() if sql == "-" else sql)
    columns, rows = to_rows(result.to_arrow())
    if row_format is None or row_format is RowFormat.TABLE:
        open_screen().print_table("", columns, rows)
    elif text := format_rows(row_format, columns, rows):
        print(text)
    return 0


# ---- tidegate prune


def prune(path: str, streams: Sequence[str], files: Sequence[str], dry_run: bool) -> int:
    """Remove the named streams, or those that no script declares, and files without use."""
    require_data_directory(path)
    directory = DataDirectory(path)
    # The lock prevents runs between the search and the removal.
    directory.open()
    try:
        if streams and files:
            raise RunError(
                "TG-506",
                "stream names and --script cannot be combined",
                hint="name the streams to remove, or pass the scripts whose streams to keep.",
            )
        pruning = _undeclared(directory, files) if files else _named(directory, streams)
        pruning.plan()
        _print_pruning(path, pruning, dry_run)
        if not dry_run:
            pruning.run()
        if not streams and not files:
            _print_stored_streams(path, directory)
    finally:
        directory.close()
    return 0


def _streams_by_pipeline(directory: DataDirectory) -> dict[str, set[str]]:
    """Return the streams in the newest manifest of each pipeline."""
    streams = {}
    for pipeline in directory.pipeline_names():
        manifest = Manifests(directory.pipeline(pipeline)).load_newest_without_state_check()
        streams[pipeline] = set(manifest.streams) if manifest is not None else set()
    return streams


def _named(directory: DataDirectory, names: Sequence[str]) -> Pruning:
    """Return a pruning of the streams with these names."""
    from tidegate.runtime.cleanup import Pruning

    pipelines = _streams_by_pipeline(directory)
    stored = set(directory.stream_sizes()).union(*pipelines.values())
    for name in names:
        if name.lower() not in stored:
            message = f"no data of a stream {name} is stored in {directory.path}"
            raise RunError("TG-201", message, hint=did_you_mean(name, stored, "streams"))
    removed = {name.lower() for name in names}
    by_pipeline = {pipeline: removed & streams for pipeline, streams in pipelines.items()}
    return Pruning(directory, by_pipeline, removed)


def _undeclared(directory: DataDirectory, files: Sequence[str]) -> Pruning:
    """Return a pruning of the streams that none of these scripts declares."""
    from tidegate.runtime.cleanup import Pruning, declared_in, parked_streams

    catalogs = [scripts.require_valid(scripts.read(file)).catalog for file in files]
    pipelines = _streams_by_pipeline(directory)
    parked = parked_streams(directory, declared_in(*catalogs))
    removed = {pipeline: set(streams) for pipeline, streams in parked.items()}
    remaining = [pipelines[pipeline] - removed.get(pipeline, set()) for pipeline in pipelines]
    if removed and not any(remaining):
        streams = ", ".join(sorted(set().union(*pipelines.values())))
        raise RunError(
            "TG-506",
            f"{' and '.join(files)} declares none of the streams in {directory.path}: all of them "
            "would be removed",
            hint=f"pass the script that runs there, or name the streams to remove: {streams}",
        )
    stored = directory.stream_sizes()
    rows = {name for name in stored if all(catalog.get(name) is None for catalog in catalogs)}
    return Pruning(directory, removed, rows)


def _print_pruning(path: str, pruning: Pruning, dry_run: bool) -> None:
    screen = open_screen()
    if not pruning.items:
        screen.print_line(f"there is nothing to remove in {path}")
    else:
        title = "would be removed:" if dry_run else "removed:"
        rows = [(item.name, item.description, format_size(item.size)) for item in pruning.items]
        screen.print_table(title, ("name", "data", "size"), rows)
    for name, pipeline, streams in pruning.checkpoints:
        screen.print_line(
            f"checkpoint '{name}' of pipeline {pipeline} still contains {', '.join(streams)}. To "
            f"remove it: DROP CHECKPOINT '{name}';"
        )


def _print_stored_streams(path: str, directory: DataDirectory) -> None:
    pipelines = _streams_by_pipeline(directory)
    names = sorted(set(directory.stream_sizes()).union(*pipelines.values()))
    if names:
        open_screen().print_line(
            f"stored streams: {', '.join(names)}. To remove some by name: tidegate prune {path} "
            f"STREAM…. To remove those that a script does not declare: tidegate prune {path} "
            "--script FILE"
        )
