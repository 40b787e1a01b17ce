"""Fixtures for benchmarks that need Spark or a Kafka broker."""

from tests.real.conftest import broker
from tests.spark.conftest import data, spark

__all__ = ["broker", "data", "spark"]
