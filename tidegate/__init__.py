"""Tidegate: streaming SQL for Python on Apache Spark. Accepted means right.

    import tidegate

    with tidegate.open("data") as db:
        db.execute("CREATE SOURCE …; CREATE STREAM …; CREATE SINK …;")
        db.start(until_end=True)
        db.wait()

Everything heavy is imported when it is first used: `import tidegate` loads neither Spark nor Arrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from os import PathLike

    from pyspark.sql import SparkSession

    from tidegate.errors import RunError, ScriptError, TidegateError
    from tidegate.session import Session

__version__ = "0.1.0"
__all__ = ["RunError", "ScriptError", "Session", "TidegateError", "__version__", "open"]


def open(
    path: str | PathLike[str],
    spark: SparkSession | None = None,
    master: str | None = None,
    config: Mapping[str, Any] | None = None,
    show: Callable[[str, int, Any], None] | None = None,
) -> Session:
    """Open a data directory and return a session on it.

    `spark` is a SparkSession of yours to run on, `master` the URL of a cluster; with neither, Spark
    runs in this process on all cores. `config` holds settings as SET would; `show` gets the rows of
    console sinks (stream, epoch, Arrow table).
    """
    from tidegate.session import Session

    return Session(path, spark=spark, master=master, config=config, show=show)


def __getattr__(name: str) -> Any:
    if name == "Session":
        from tidegate.session import Session

        return Session
    if name in {"TidegateError", "RunError", "ScriptError"}:
        import tidegate.errors

        return getattr(tidegate.errors, name)
    raise AttributeError(f"module 'tidegate' has no attribute {name!r}")
