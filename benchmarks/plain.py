"""Plain PySpark in a process and a JVM of its own, with Spark's own settings.

What Tidegate sets for its sessions must neither speed up nor slow down what it is compared with.
Only what a comparison names is set: the cores, the RocksDB state store, the number of partitions.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from pyspark.sql import SparkSession

CONF = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "2g",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}
# Runs something on a Spark and says how many seconds it took.
Work = Callable[..., float]


def plain_session() -> SparkSession:
    builder = SparkSession.builder.master("local[2]")
    for key, value in CONF.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


class PlainSpark:
    """Calls `work(spark, …)` over there; between calls it is idle. `start` starts that Spark."""

    def __init__(self, work: Work, start: Callable[[], SparkSession] = plain_session) -> None:
        context = multiprocessing.get_context("spawn")
        self.ours, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, work, start), daemon=True)
        self.process.start()

    def __call__(self, *arguments: Any) -> float:
        self.ours.send(arguments)
        answer = self.ours.recv()
        if isinstance(answer, str):
            raise RuntimeError(answer)
        return float(answer)

    def close(self) -> None:
        self.ours.send(None)
        self.process.join(30)


def _serve(connection: Connection, work: Work, start: Callable[[], SparkSession]) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 2)
    spark = start()
    while (arguments := connection.recv()) is not None:
        try:
            connection.send(work(spark, *arguments))
        except Exception as error:
            connection.send(f"{work.__name__} failed: {error}")
    spark.stop()
