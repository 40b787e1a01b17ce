"""The process from which Spark forks our Python workers: what they need is imported before.

A worker that imports for itself takes a second, and Spark ends workers that had nothing to do for a
minute, so that the first row after a pause would wait for them.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path

_NEEDED = (
    "pyspark.worker",
    "pyspark.sql.pandas.serializers",
    "pandas",
    "pyarrow.compute",
    "pyarrow.parquet",
    "tidegate.spark.tasks.read",
    "tidegate.spark.tasks.step",
)


def without_archive(path: list[str]) -> list[str]:
    """The path without the archive of PySpark, if the same PySpark is installed, and compiled."""
    others = [item for item in path if Path(item).name != "pyspark.zip"]
    installed = PathFinder.find_spec("pyspark", others)
    if installed is None or installed.origin is None:
        return path
    archive = Path(installed.origin).parent / "python" / "lib" / "pyspark.zip"
    return others if str(archive) in path else path


def main() -> None:
    """Import, and be Spark's daemon."""
    # Only one thread exists before the fork, so no lock can be held.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    sys.path[:] = without_archive(sys.path)
    for name in _NEEDED:
        importlib.import_module(name)
    # Workers collect after every task; what is here stays.
    gc.collect()
    gc.freeze()
    from pyspark.daemon import manager

    manager()


if __name__ == "__main__":
    main()
