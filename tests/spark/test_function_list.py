"""`tidegate check` knows the functions of Spark."""

from __future__ import annotations

from typing import Any

import pytest

from tidegate.sql.expressions import aggregate_functions, spark_functions

pytestmark = pytest.mark.spark


def test_function_list_equals_spark(spark: Any) -> None:
    shown = {row[0].upper() for row in spark.sql("SHOW SYSTEM FUNCTIONS").collect()}
    named = {name for name in shown if name.replace("_", "a").isalnum()}
    assert spark_functions() == named


def test_every_aggregate_of_spark_is_known(spark: Any) -> None:
    """A missing aggregate would be accepted as a scalar function in the wrong place."""
    entries = spark._jvm.org.apache.spark.sql.catalyst.analysis.FunctionRegistry.expressions()
    iterator = entries.iterator()
    package = "org.apache.spark.sql.catalyst.expressions.aggregate."
    aggregates = set()
    while iterator.hasNext():
        entry = iterator.next()
        info = entry._2()._1()
        if info.getGroup() == "agg_funcs" or info.getClassName().startswith(package):
            aggregates.add(entry._1().upper())
    assert {"SUM", "COUNT", "MAX_BY"} <= aggregates
    assert aggregates - aggregate_functions() == set()
