"""The data directory of a command: where it is, and how it is emptied without regrets."""

from __future__ import annotations

import shutil
from pathlib import Path

from tidegate.errors import DataDirectoryError
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
