"""The SparkSession: quiet, in UTC, with the settings that matter for small epochs."""

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


# ---- What the first epoch would have to wait for, begun while streams are declared and planned.
#
# The process that Python workers are forked from imports for a second or two, and Java loads what
# reads JSON and CSV, and those for Python workers, on first use.

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

# What a session of ours is built with; a master URL or spark-defaults may say more.
BUILD_CONF = {
    "spark.app.name": "tidegate",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "2g",
    # Takes some 40 ms off every small job that has a Python task.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}
# Most of Java runs once in a while here, and is compiled for the long run only if it is really hot:
# else the compiler takes more time in the first minutes than everything else.
_LATER = {
    "Tier4InvocationThreshold": 50_000,
    "Tier4MinInvocationThreshold": 10_000,
    "Tier4CompileThreshold": 100_000,
    "Tier4BackEdgeThreshold": 400_000,
}
# Where workers have the Python of the driver, and tasks run in its Java.
LOCAL_CONF = {
    "spark.python.daemon.module": "tidegate.spark.daemon",
    "spark.driver.defaultJavaOptions": " ".join(f"-XX:{k}={v}" for k, v in _LATER.items()),
}
# What every session needs, also a borrowed one.
SESSION_CONF = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    # With a folder for files of its own each session would start Python workers of its own.
    "spark.sql.artifact.isolation.enabled": "false",
    "spark.sql.adaptive.enabled": "false",
    # With a byte limit, Spark computes the size of a batch again for every row.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
    "spark.sql.legacy.charVarcharAsString": "true",
}
# Other settings of SQL go back to their defaults, so that a query means the same on every session;
# these only say where tables and files are, and how large parts of them are read.
_KEPT = ("spark.sql.catalog", "spark.sql.defaultCatalog", "spark.sql.files.", "spark.sql.hive.")
# On a cluster a task may run again after others have read what it gave. If it gives something else
# then (a lookup found another answer), all that read it must run again too.
CLUSTER_CONF = {
    "spark.sql.shuffle.orderIndependentChecksum.enabled": "true",
    "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch": "true",
    "spark.sql.shuffle.orderIndependentChecksum.enableQueryLevelRollbackOnMismatch": "true",
}


def own_session(
    master: str | None, log_file: Path, conf: Mapping[str, str] | None = None
) -> SparkSession:
    """Start Spark, or join the one this process already has; its noise goes to the log file."""
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
            hint=f"what it said is in {log_file}.",
        ) from None
    session = _configured(spark)
    if local:
        warm_up(session)
    return session


@contextlib.contextmanager
def _own_interrupts() -> Iterator[None]:
    """Ctrl-C stays what it was: Spark's handler cancels jobs in the middle of whatever runs."""
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
    """The Spark that this process has already is as good as one that was lent."""
    session = SparkSession.builder.getOrCreate()
    running = session.sparkContext.master
    if master is not None and not master.startswith("local") and running != master:
        raise RunError(
            "TG-506",
            f"Spark runs in this process already, on {running}",
            hint="stop it first, or start another process for the cluster.",
        )
    if settings:
        raise RunError(
            "TG-506",
            f"Spark runs in this process already, without {', '.join(settings)}",
            hint="give it these settings when it is started.",
        )
    return borrowed_session(session)


def _require_free(settings: Mapping[str, str]) -> None:
    """Set the SQL configuration that determines the meaning of queries."""
    for key in settings:
        if key.startswith("spark.sql.") and not key.startswith(_KEPT):
            raise RunError(
                "TG-207",
                f"{key} is the same for every stream, and cannot be set",
                hint="leave it out.",
            )


def borrowed_session(spark: SparkSession) -> SparkSession:
    """A session on the user's Spark with settings of its own; the user's stays as it is."""
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
    # PySpark prints every rejected statement as JSON with a stack trace; we render our own.
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
    """One clear sentence if Java is missing or too old."""
    if SparkContext._gateway is not None:
        return
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None or not Path(java).exists():
        where = f" at JAVA_HOME={home}" if home else ""
        raise RunError(
            "TG-502",
            f"Tidegate runs on Spark, which needs Java {JAVA_MINIMUM} or newer, and there is none"
            f"{where}",
            hint="install one, for example apt-get install openjdk-17-jre-headless, or point "
            "JAVA_HOME to it.",
        )
    shown = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    match = re.search(r'version "(\d+)(?:\.(\d+))?', shown)
    major = int(match.group(1)) if match else 0
    major = int(match.group(2) or 0) if match and major == 1 else major
    if major < JAVA_MINIMUM:
        raise RunError(
            "TG-502",
            f"Spark needs Java {JAVA_MINIMUM} or newer, but {java} is Java {major}",
            hint="install a newer one, or point JAVA_HOME to it.",
        )


@contextlib.contextmanager
def _stderr_to(log_file: Path) -> Iterator[None]:
    """Let the JVM inherit a log file as its stderr and stdout; ours come back at once."""
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
