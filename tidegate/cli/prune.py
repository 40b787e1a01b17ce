"""`tidegate prune`: list and remove data that no declared stream needs."""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.checkpoint.manifests import Manifests
from tidegate.cli import data, scripts
from tidegate.cli.screen import open_screen
from tidegate.cli.text import size
from tidegate.errors import RunError, did_you_mean
from tidegate.runtime.cleanup import Pruning, declared_in, parked_streams
from tidegate.runtime.directory import DataDirectory


def prune(path: str, streams: Sequence[str], files: Sequence[str], dry_run: bool) -> int:
    """Remove the streams that are named, or those that no script declares."""
    data.require(path)
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
