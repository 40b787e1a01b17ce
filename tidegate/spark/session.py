"""The SparkSession: UTC, without log output, tuned for small epochs."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark import SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from tidegate.errors import RunError

if TYPE_CHECKING:
    import pyarrow as pa


# ---- Warm-up while streams are declared and planned, so that the first epoch does not wait.
#
# The daemon of Python workers imports modules for a second or two, and Java loads the classes for
# JSON, CSV and Python workers on first use.

_COLUMNS = (
    "from_json(concat('{\"a\": ', id, '}'), 'a BIGINT, b STRING').a AS a",
    "from_csv(CAST(id AS STRING), 'a BIGINT').a AS b",
)


def warm_up(spark: SparkSession) -> None:
    """Run a job of two rows in the background, to start Spark and Python workers early."""
    threading.Thread(target=_run, args=(spark,), name="tidegate-warm-up", daemon=True).start()


def _run(spark: SparkSession) -> None:
    # Ignore errors: the first epoch will report them.
    with suppress(Exception):
        spark.sparkContext.setJobDescription("tidegate: starts Python workers")
        rows = spark.range(0, 2, 1, 2).selectExpr(*_COLUMNS)
        rows.mapInArrow(_same, "a BIGINT, b BIGINT").toArrow()


def _same(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


JAVA_MINIMUM = 17

# The configuration of Tidegate's own session; the master URL and spark-defaults may add to it.
BUILD_CONF = {
    "spark.app.name": "tidegate",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "2g",
    # Saves about 40 ms in every small job with a Python task.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}
# Most Java code runs rarely in small epochs, so only hot code is worth the optimizing compiler.
# Otherwise compilation takes most of the time in the first minutes.
_LATER = {
    "Tier4InvocationThreshold": 50_000,
    "Tier4MinInvocationThreshold": 10_000,
    "Tier4CompileThreshold": 100_000,
    "Tier4BackEdgeThreshold": 400_000,
}
# Local mode: workers use the driver's Python, and tasks run in its JVM.
LOCAL_CONF = {
    "spark.python.daemon.module": "tidegate.spark.daemon",
    "spark.driver.defaultJavaOptions": " ".join(f"-XX:{k}={v}" for k, v in _LATER.items()),
}
# Settings of every session, including borrowed ones.
SESSION_CONF = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    # With its own folder for files, each session would start its own Python workers.
    "spark.sql.artifact.isolation.enabled": "false",
    "spark.sql.adaptive.enabled": "false",
    # With a byte limit, Spark computes the size of a batch again for every row.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
    "spark.sql.legacy.charVarcharAsString": "true",
}
# All other SQL settings are reset to their defaults, so that a query means the same in every
# session; these only configure catalogs, file access and split sizes.
_KEPT = ("spark.sql.catalog", "spark.sql.defaultCatalog", "spark.sql.files.", "spark.sql.hive.")
# On a cluster a task may run again after others have read its output. If the new output differs
# (a lookup returned other rows), the readers must run again too.
CLUSTER_CONF = {
    "spark.sql.shuffle.orderIndependentChecksum.enabled": "true",
    "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch": "true",
    "spark.sql.shuffle.orderIndependentChecksum.enableQueryLevelRollbackOnMismatch": "true",
}


def own_session(
    master: str | None, log_file: Path, conf: Mapping[str, str] | None = None
) -> SparkSession:
    """Start Spark, or use the session that this process already has.

    Spark's output goes to the log file.
    """
    if (master or "").startswith("sc:") or "SPARK_REMOTE" in os.environ:
        raise _connect_rejected()
    settings = dict(conf or {})
    _require_free(settings)
    if SparkContext._active_spark_context is not None:
        return _joined(master, settings)
    require_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = SparkSession.builder.master(master or "local[*]")
    local = master is None or master.startswith("local")
    defaults = {**BUILD_CONF, **SESSION_CONF, **(LOCAL_CONF if local else {})}
    for key, value in {**defaults, **settings}.items():
        if local or key in settings or not key.startswith("spark.driver."):
            builder = builder.config(key, value)
    try:
        with _stderr_to(log_file), _own_interrupts():
            spark = builder.getOrCreate()
    except PySparkRuntimeError as error:
        if error.getCondition() != "JAVA_GATEWAY_EXITED":
            raise
        raise RunError(
            "TG-502",
            "Java ended before Spark had started",
            hint=f"see {log_file}.",
        ) from None
    session = _configured(spark)
    if local:
        warm_up(session)
    return session


@contextlib.contextmanager
def _own_interrupts() -> Iterator[None]:
    """Keep this process's handler of Ctrl-C. Spark's handler would cancel running jobs."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if handler is not None:
            signal.signal(signal.SIGINT, handler)


def _joined(master: str | None, settings: Mapping[str, str]) -> SparkSession:
    """Return a session on the Spark that this process already runs, as for a borrowed session."""
    session = SparkSession.builder.getOrCreate()
    running = session.sparkContext.master
    if master is not None and not master.startswith("local") and running != master:
        raise RunError(
            "TG-506",
            f"this process already runs Spark, on {running}",
            hint="stop that session first, or use another process for the cluster.",
        )
    if settings:
        raise RunError(
            "TG-506",
            f"this process already runs Spark, without the settings {', '.join(settings)}",
            hint="pass the settings when that Spark session is started.",
        )
    return borrowed_session(session)


def _require_free(settings: Mapping[str, str]) -> None:
    """Reject SQL settings that Tidegate fixes, because they change the meaning of queries."""
    for key in settings:
        if key.startswith("spark.sql.") and not key.startswith(_KEPT):
            raise RunError(
                "TG-207",
                f"{key} cannot be set: Tidegate fixes it, so that queries mean the same everywhere",
                hint="remove this setting.",
            )


def borrowed_session(spark: SparkSession) -> SparkSession:
    """Return a session on the user's Spark with its own settings.

    The user's session is not changed.
    """
    if not isinstance(spark, SparkSession):
        raise _connect_rejected()
    clone = spark._jsparkSession.cloneSession()
    session = SparkSession(spark.sparkContext, clone)
    return _configured(session)


def _connect_rejected() -> RunError:
    return RunError(
        "TG-501",
        "Tidegate does not run over Spark Connect",
        hint="give it a session with a master, SparkSession.builder.master('spark://host:7077'), "
        "and leave SPARK_REMOTE unset.",
    )


def _configured(spark: SparkSession) -> SparkSession:
    # PySpark logs every rejected statement as JSON with a stack trace; Tidegate reports the error.
    logging.getLogger("SQLQueryContextLogger").disabled = True
    logging.getLogger("DataFrameQueryContextLogger").disabled = True
    for key in spark.conf.getAll:
        is_fixed = key.startswith("spark.sql.") and not key.startswith(_KEPT)
        if is_fixed and spark.conf.isModifiable(key):
            spark.conf.unset(key)
    local = (spark.sparkContext.master or "").startswith("local")
    for key, value in {**SESSION_CONF, **({} if local else CLUSTER_CONF)}.items():
        spark.conf.set(key, value)
    return spark


def require_java() -> None:
    """Raise an error if Java is missing or too old."""
    if SparkContext._gateway is not None:
        return
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None or not Path(java).exists():
        where = f" at JAVA_HOME={home}" if home else ""
        raise RunError(
            "TG-502",
            f"Spark needs Java {JAVA_MINIMUM} or newer, and no Java was found{where}",
            hint="install it, for example apt-get install openjdk-17-jre-headless, or set "
            "JAVA_HOME to its directory.",
        )
    shown = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    match = re.search(r'version "(\d+)(?:\.(\d+))?', shown)
    major = int(match.group(1)) if match else 0
    major = int(match.group(2) or 0) if match and major == 1 else major
    if major < JAVA_MINIMUM:
        raise RunError(
            "TG-502",
            f"Spark needs Java {JAVA_MINIMUM} or newer, but {java} is Java {major}",
            hint="install a newer version, or set JAVA_HOME to its directory.",
        )


@contextlib.contextmanager
def _stderr_to(log_file: Path) -> Iterator[None]:
    """Redirect stdout and stderr to a log file while the JVM starts and inherits them."""
    if SparkContext._gateway is not None:
        yield
        return
    sys.stdout.flush()
    sys.stderr.flush()
    with log_file.open("ab") as log:
        saved = [(fd, os.dup(fd)) for fd in (1, 2)]
        try:
            for fd, _ in saved:
                os.dup2(log.fileno(), fd)
            yield
        finally:
            for fd, copy in saved:
                os.dup2(copy, fd)
                os.close(copy)
