"""`tidegate package`: the package as an archive that Spark hands to the machines of a cluster."""

from __future__ import annotations

import zipfile
from pathlib import Path

import tidegate
from tidegate.errors import RunError

# Every archive of the same files has the same bytes.
_TIME = (1980, 1, 1, 0, 0, 0)


def package(target: Path) -> int:
    """Write the archive and say what to do with it."""
    if target.suffix != ".zip":
        hint = f"tidegate package {target.with_suffix('.zip')}"
        raise RunError("TG-506", f"Spark takes archives that end in .zip, not {target}", hint=hint)
    try:
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
            for path, name in _files():
                archive.writestr(zipfile.ZipInfo(name, _TIME), path.read_bytes())
    except OSError as error:
        raise RunError("TG-506", f"{target} cannot be written: {error.strerror}") from None
    print(f"tidegate {tidegate.__version__} is in {target}")
    print(f"Give it to Spark: spark.submit.pyFiles {target.resolve()}")
    return 0


def _files() -> list[tuple[Path, str]]:
    root = Path(tidegate.__file__).parent
    found = (path for path in sorted(root.rglob("*")) if path.is_file())
    return [
        (path, path.relative_to(root.parent).as_posix())
        for path in found
        if "__pycache__" not in path.parts
    ]
