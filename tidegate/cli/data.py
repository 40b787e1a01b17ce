"""The data directory of a command: where it is, and how it is emptied without regrets."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from tidegate.checkpoint.manifests import Manifests
from tidegate.cli import scripts
from tidegate.cli.screen import open_screen
from tidegate.cli.text import size
from tidegate.errors import DataDirectoryError, RunError, did_you_mean
from tidegate.runtime.cleanup import Pruning, declared_in, parked_streams
from tidegate.runtime.directory import DataDirectory

HOME = Path(".tidegate")


def default_directory(script: Path | None, name: str) -> str:
    """Beside the file, so that it is the same one wherever the command is given."""
    return str((script.parent if script is not None else Path()) / HOME / name)


def require(path: str) -> None:
    """Reject what is not a data directory, before one is made of it."""
    directory = DataDirectory(path)
    if not directory.is_initialized:
        raise DataDirectoryError(
            "TG-601",
            f"{path} is not a data directory of Tidegate (it has no file {directory.marker_file})",
            hint=directory.suggestion()
            or "name the directory that was given to run with --data; by default it is "
            ".tidegate/<file>, beside the file.",
        )


def remove(place: str, script: Path | None) -> None:
    """Remove a data directory with all it remembers; rejected if it might be something else."""
    directory = DataDirectory(place)
    if directory.store.local and not directory.path.exists():
        return
    reason = _not_ours(directory, script)
    if reason is not None:
        raise DataDirectoryError(
            "TG-601",
            f"--fresh does not remove {place}: {reason}",
            hint="name another directory with --data DIR, or remove it yourself.",
        )
    # The lock is taken first, so that nothing is removed under a running pipeline.
    directory.open(any_format=True)
    try:
        if directory.store.local:
            shutil.rmtree(directory.path)
        else:
            directory.clear()
    except OSError as error:
        raise DataDirectoryError(
            "TG-601", f"{place} cannot be removed: {error.strerror or error}"
        ) from None
    finally:
        directory.close()


def _not_ours(data: DataDirectory, script: Path | None) -> str | None:
    if data.store.local and not data.path.is_dir():
        return "it is not a directory"
    if data.has_files() and not data.is_initialized:
        return f"it is not a data directory of Tidegate (it has no file {data.marker_file})"
    if not data.store.local:
        return None
    directory = data.path
    # `--data .` makes a project its own data directory, lock and all.
    if Path.cwd().is_relative_to(directory):
        return "the current directory is in it"
    if script is not None and script.resolve().is_relative_to(directory):
        return f"{script} is in it"
    return None


def prune(path: str, streams: Sequence[str], files: Sequence[str], dry_run: bool) -> int:
    """Remove the streams that are named, or those that no script declares."""
    require(path)
    directory = DataDirectory(path)
    # The lock prevents runs between the search and the removal.
    directory.open()
    try:
        if streams and files:
            raise RunError("TG-506", "name streams, or give a script: choose one of both")
        pruning = _by_script(directory, files) if files else _by_name(directory, streams)
        pruning.plan()
        _show(path, pruning, dry_run)
        if not dry_run:
            pruning.run()
        if not streams and not files:
            _tell_streams(path, directory)
    finally:
        directory.close()
    return 0


def _known(directory: DataDirectory) -> dict[str, set[str]]:
    """By pipeline, the streams that it knows."""
    found = {}
    for name in directory.pipeline_names():
        manifest = Manifests(directory.pipeline(name)).load_newest_readable()
        found[name] = set(manifest.streams) if manifest is not None else set()
    return found


def _by_name(directory: DataDirectory, streams: Sequence[str]) -> Pruning:
    known = _known(directory)
    names = {name.lower() for name in streams}
    there = set(directory.stream_sizes()).union(*known.values())
    for name in streams:
        if name.lower() not in there:
            message = f"{directory.path} keeps nothing of a stream {name}"
            raise RunError("TG-201", message, hint=did_you_mean(name, there, "streams"))
    return Pruning(directory, {pipeline: names & own for pipeline, own in known.items()}, names)


def _by_script(directory: DataDirectory, files: Sequence[str]) -> Pruning:
    catalogs = [scripts.require_valid(scripts.read(file)).catalog for file in files]
    known = _known(directory)
    gone = {
        name: set(own) for name, own in parked_streams(directory, declared_in(*catalogs)).items()
    }
    kept = {name: own - gone.get(name, set()) for name, own in known.items()}
    if any(gone.values()) and not any(kept.values()):
        all_known = sorted(set().union(*known.values()))
        raise RunError(
            "TG-506",
            f"{' and '.join(files)} declares none of the streams of {directory.path}, so all of "
            "them would go",
            hint=f"give the script that runs there, or name what should go: {', '.join(all_known)}",
        )
    rows = {n for n in directory.stream_sizes() if all(c.get(n) is None for c in catalogs)}
    return Pruning(directory, gone, rows)


def _show(path: str, pruning: Pruning, dry_run: bool) -> None:
    screen = open_screen()
    if not pruning.items:
        screen.line(f"there is nothing to remove in {path}")
    else:
        title = "would be removed:" if dry_run else "removed:"
        rows = [(item.name, item.description, size(item.size)) for item in pruning.items]
        screen.table(title, ("name", "what", "bytes"), rows)
    for name, pipeline, streams in pruning.checkpoints:
        screen.line(
            f"the checkpoint '{name}' of {pipeline} still keeps {', '.join(streams)}: DROP "
            f"CHECKPOINT '{name}'; lets it go"
        )


def _tell_streams(path: str, directory: DataDirectory) -> None:
    names = sorted(set(directory.stream_sizes()).union(*_known(directory).values()))
    if names:
        open_screen().line(
            f"streams are kept: {', '.join(names)}. tidegate prune {path} NAME… removes some, "
            f"tidegate prune {path} --script FILE those that the file does not declare"
        )
