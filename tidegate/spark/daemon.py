"""The daemon from which Spark forks Python workers, with the modules they need imported.

Importing in each worker would take a second. Spark ends workers that are idle for a minute, so the
first rows after a pause would wait for new workers.
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
    "tidegate.spark.tasks.task_functions",
)


def without_archive(path: list[str]) -> list[str]:
    """Return the path without PySpark's archive if the same PySpark is installed and compiled."""
    others = [item for item in path if Path(item).name != "pyspark.zip"]
    installed = PathFinder.find_spec("pyspark", others)
    if installed is None or installed.origin is None:
        return path
    archive = Path(installed.origin).parent / "python" / "lib" / "pyspark.zip"
    return others if str(archive) in path else path


def main() -> None:
    """Import the modules of tasks and run Spark's daemon."""
    # Only one thread exists before the fork, so no lock can be held.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    sys.path[:] = without_archive(sys.path)
    for name in _NEEDED:
        importlib.import_module(name)
    # Workers collect garbage after every task; exclude the modules loaded here.
    gc.collect()
    gc.freeze()
    from pyspark.daemon import manager

    manager()


if __name__ == "__main__":
    main()
