"""Streaming SQL for Python on Apache Spark.

A query that Tidegate accepts returns the rows that a batch run over the same on-time rows returns.
Other queries are rejected before they run.

    import tidegate

    with tidegate.open("data") as db:
        db.execute("CREATE SOURCE …; CREATE STREAM …; CREATE SINK …;")
        db.start(until_end=True)
        db.wait()

Spark and Arrow are imported on first use, so `import tidegate` is fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from os import PathLike

    from pyspark.sql import SparkSession

    from tidegate.checkpoint.checkpoints import Checkpoint
    from tidegate.errors import (
        CatalogError,
        DataDirectoryError,
        Location,
        RunError,
        ScriptError,
        SqlError,
        TidegateError,
        ValidationError,
    )
    from tidegate.observe.status import OperatorStatus, State, StreamStatus
    from tidegate.queries.engine import QueryResult
    from tidegate.session.results import Result
    from tidegate.session.session import Session
    from tidegate.session.subscription import Batch, Subscription

__version__ = "0.1.0"
__all__ = [
    "Batch",
    "CatalogError",
    "Checkpoint",
    "DataDirectoryError",
    "Location",
    "OperatorStatus",
    "QueryResult",
    "Result",
    "RunError",
    "ScriptError",
    "Session",
    "SqlError",
    "State",
    "StreamStatus",
    "Subscription",
    "TidegateError",
    "ValidationError",
    "__version__",
    "open",
]
_HOMES = {
    "tidegate.checkpoint.checkpoints": ("Checkpoint",),
    "tidegate.errors": (
        "CatalogError",
        "DataDirectoryError",
        "Location",
        "RunError",
        "ScriptError",
        "SqlError",
        "TidegateError",
        "ValidationError",
    ),
    "tidegate.observe.status": ("OperatorStatus", "State", "StreamStatus"),
    "tidegate.queries.engine": ("QueryResult",),
    "tidegate.session.results": ("Result",),
    "tidegate.session.session": ("Session",),
    "tidegate.session.subscription": ("Batch", "Subscription"),
}


def open(
    path: str | PathLike[str],
    spark: SparkSession | None = None,
    master: str | None = None,
    config: Mapping[str, Any] | None = None,
    show: Callable[[str, int, Any], None] | None = None,
    conf: Mapping[str, str] | None = None,
) -> Session:
    """Open a data directory and return a session on it.

    * `path`: the data directory, a path or a URI. It is created if it does not exist.
    * `spark`: an existing SparkSession to use. By default, Spark is started in this process.
    * `master`: the URL of a Spark cluster. By default, Spark runs in this process on all cores.
    * `config`: settings of Tidegate, as with SET: `{"max_retained": 10}`.
    * `conf`: settings of Spark, if Spark is started here: `{"spark.driver.memory": "4g"}`.
    * `show`: a function that receives the rows of console sinks: (stream, epoch, Arrow table).
      By default, they are printed.
    """
    from tidegate.session.session import Session

    return Session(path, spark=spark, master=master, config=config, show=show, conf=conf)


def __getattr__(name: str) -> Any:
    import importlib

    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(home), name)
    raise AttributeError(f"module 'tidegate' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
