"""JSON in Kafka through a window into Kafka: Tidegate and plain PySpark, side by side in one run.

    python -m benchmarks.kafka_window [--rows 1000000] [--rounds 2] [--rows-per-epoch 250000]
        [--only-ours]

Both read the same topic of three partitions on two cores in the same epochs and write the windows
into a topic of their own, from building the query to the end of the last epoch. Plain PySpark has
Spark's own connector and a JVM of its own, and writes at least once; Tidegate writes exactly once.
The connector is not built for every Spark: the newest jars that work are fetched by Ivy, once.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
import uuid
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyspark
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

import tidegate
from benchmarks.plain import CONF, PlainSpark
from examples.systems import Broker

COLUMNS = "auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, ts TIMESTAMP"
PARTITIONS = 3
EVENTS_PER_SECOND = 10_000
JARS = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0"),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    ("org.apache.kafka", "kafka-clients", "3.9.2"),
    ("org.apache.commons", "commons-pool2", "2.13.1"),
)
_IVY = (
    '<ivysettings><settings defaultResolver="central"/><resolvers>'
    '<ibiblio name="central" m2compatible="true"/></resolvers></ivysettings>'
)


def connector_jars() -> list[str]:
    """Spark's connector for Kafka; fetched if this user does not have it yet."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tidegate"
    folder = cache / "spark-kafka"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "ivysettings.xml").write_text(_IVY)
    shipped = Path(pyspark.__file__).parent / "jars"
    ivy = [str(next(shipped.glob(f"{name}-*.jar"))) for name in ("ivy", "commons-cli")]
    found = []
    for group, name, version in JARS:
        jar = folder / f"{name}-{version}.jar"
        if not jar.exists():
            command = ["java", "-cp", ":".join(ivy), "org.apache.ivy.Main", "-m2compatible"]
            command += ["-settings", str(folder / "ivysettings.xml"), "-cache", str(folder / "ivy")]
            command += ["-dependency", group, name, version, "-confs", "default", "-notransitive"]
            command += ["-retrieve", f"{folder}/[artifact]-[revision].[ext]"]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        found.append(str(jar))
    return found


def session_with(jars: list[str]) -> SparkSession:
    builder = SparkSession.builder.master("local[2]").config("spark.jars", ",".join(jars))
    for key, value in CONF.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def plain_query(
    spark: SparkSession, brokers: str, given: str, out: str, limit: int, work: str
) -> float:
    """The query as a PySpark user would write it."""
    started = time.perf_counter()
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", brokers)
    reader = reader.option("subscribe", given).option("startingOffsets", "earliest")
    frame = reader.option("maxOffsetsPerTrigger", limit).load()
    rows = frame.select(F.from_json(F.col("value").cast("string"), COLUMNS).alias("r")).select(
        "r.*"
    )
    window = F.window("ts", "10 seconds")
    grouped = rows.withWatermark("ts", "2 seconds").groupBy(window, "auction")
    counted = grouped.agg(
        F.count("*").alias("n"), F.sum("price").alias("total"), F.max("price").alias("top")
    )
    value = F.to_json(F.struct("auction", F.col("window.start"), "n", "total", "top"))
    writer = counted.select(value.alias("value")).writeStream.format("kafka").outputMode("append")
    writer = writer.option("kafka.bootstrap.servers", brokers).option("topic", out)
    run = writer.option("checkpointLocation", work).start()
    run.processAllAvailable()
    took = time.perf_counter() - started
    run.stop()
    return took


def our_query(
    spark: SparkSession, brokers: str, given: str, out: str, limit: int, work: str
) -> float:
    """The query in Tidegate."""
    with tidegate.open(work, spark=spark) as session:
        started = time.perf_counter()
        # Epochs as long as the plain query has them, however busy the machine is.
        session.execute(
            f"""SET target_epoch = '1 hour';
            CREATE SOURCE bids ({COLUMNS}, WATERMARK FOR ts AS ts - INTERVAL '2' SECOND)
            WITH (connector = 'kafka', topic = '{given}', brokers = '{brokers}',
            rows_per_epoch = {limit});
            CREATE STREAM q AS SELECT auction, window_start, count(*) AS n, sum(price) AS total,
            max(price) AS top FROM bids GROUP BY auction, TUMBLE(ts, INTERVAL '10' SECOND);
            CREATE SINK s FROM q
            WITH (connector = 'kafka', topic = '{out}', brokers = '{brokers}');"""
        )
        session.start()
        session.wait()
        return time.perf_counter() - started


def fill(brokers: str, topic: str, rows: int) -> None:
    """Bids in the order of their time, in turns to the partitions."""
    producer = Producer(
        {
            "bootstrap.servers": brokers,
            "linger.ms": 50,
            "queue.buffering.max.messages": 500_000,
            "log_level": 0,
        }
    )
    for number in range(rows):
        ms = 1_700_000_000_000 + number * 1000 // EVENTS_PER_SECOND
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(ms // 1000))
        row = {"auction": number * 7 % 100, "bidder": number % 300_007, "price": number % 9973}
        row |= {"channel": "Google", "ts": f"{at}.{ms % 1000:03d}Z"}  # type: ignore[dict-item]
        producer.produce(topic, json.dumps(row), partition=number % PARTITIONS)
        if number % 10_000 == 0:
            producer.poll(0.2)
    assert producer.flush(120) == 0


@dataclass(frozen=True)
class Bench:
    """The topic that all runs read."""

    brokers: str
    admin: AdminClient
    topic: str
    limit: int
    base: Path

    def run(self, label: str, query: Any) -> float:
        name = f"{label}-{uuid.uuid4().hex[:8]}"
        self.admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(30)
        return float(query(self.brokers, self.topic, name, self.limit, str(self.base / name)))


def compare(bench: Bench, rows: int, rounds: int, plain: Any, ours: Any) -> None:
    """Alternate the two, leave the first round out, print a line for each and the ratio."""
    times: dict[str, list[float]] = {"plain": [], "ours": []}
    for number in range(rounds + 1):
        order = [("plain", plain), ("ours", ours)]
        for label, query in order if number % 2 else order[::-1]:
            took = bench.run(label, query)
            print(f"  round {number} {label:6} {rows / took / 1000:8.0f} K rows/s", flush=True)
            if number:
                times[label].append(took)
    ratio = statistics.median(a / b for a, b in zip(times["plain"], times["ours"], strict=True))
    for label, taken in times.items():
        print(f"{label:6} {rows / statistics.median(taken) / 1000:8.0f} K rows/s")
    print(f"ratio {ratio:.2f} (wanted: 2)")


def alone(bench: Bench, rows: int, rounds: int, ours: Any) -> None:
    """Tidegate by itself."""
    for number in range(rounds + 1):
        took = bench.run("ours", ours)
        print(
            f"  round {number} ours   {rows / took / 1000:8.0f} K rows/s, {took:.2f} s", flush=True
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--rows-per-epoch", type=int, default=250_000)
    parser.add_argument("--only-ours", action="store_true", help="to profile it")
    arguments = parser.parse_args()
    base = Path(tempfile.mkdtemp(prefix="tidegate-bench-"))
    (base / "kafka").mkdir()
    broker = Broker(base / "kafka")
    try:
        broker.start()
        admin = AdminClient({"bootstrap.servers": broker.brokers, "log_level": 0})
        admin.create_topics([NewTopic("bids", PARTITIONS, 1)])["bids"].result(30)
        fill(broker.brokers, "bids", arguments.rows)
        bench = Bench(broker.brokers, admin, "bids", arguments.rows_per_epoch, base)
        print(f"{arguments.rows:,} bids, epochs of {arguments.rows_per_epoch:,}")
        with tidegate.open(base / "spark") as session:
            ours = partial(our_query, session.spark)
            if arguments.only_ours:
                alone(bench, arguments.rows, arguments.rounds, ours)
            else:
                plain = PlainSpark(plain_query, partial(session_with, connector_jars()))
                compare(bench, arguments.rows, arguments.rounds, plain, ours)
                plain.close()
    finally:
        broker.kill()
        shutil.rmtree(base, ignore_errors=True)


if __name__ == "__main__":
    main()
