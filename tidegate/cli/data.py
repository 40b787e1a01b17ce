"""The data directory of a command: where it is, and how it is emptied without regrets."""

from __future__ import annotations

import shutil
from pathlib import Path

from tidegate.errors import DataDirectoryError
from tidegate.names import LOCK
from tidegate.runtime.directory import DataDirectory

HOME = Path(".tidegate")


def default_directory(stem: str) -> Path:
    return HOME / stem


def remove(path: Path, script: Path | None) -> None:
    """Remove a data directory with all it remembers; refused if it might be something else."""
    if not path.exists():
        return
    directory = path.resolve()
    reason = _not_ours(directory, script)
    if reason is not None:
        raise DataDirectoryError(
            "TG-601",
            f"--fresh does not remove {path}: {reason}",
            hint="name another directory with --data DIR, or remove it yourself.",
        )
    # The lock is taken first, so that nothing is removed under a running pipeline.
    lock = DataDirectory(directory)
    lock.open(any_format=True)
    try:
        shutil.rmtree(directory)
    except OSError as error:
        raise DataDirectoryError(
            "TG-601", f"{path} cannot be removed: {error.strerror or error}"
        ) from None
    finally:
        lock.close()


def _not_ours(directory: Path, script: Path | None) -> str | None:
    if not directory.is_dir():
        return "it is not a directory"
    if any(directory.iterdir()) and not (directory / LOCK).is_file():
        return f"it is not a data directory of Tidegate (it has no file {LOCK})"
    # `--data .` makes a project its own data directory, lock and all.
    if Path.cwd().is_relative_to(directory):
        return "the current directory is in it"
    if script is not None and script.resolve().is_relative_to(directory):
        return f"{script} is in it"
    return None
