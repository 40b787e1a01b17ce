"""The list of functions that `tidegate check` knows is Spark's own."""

from __future__ import annotations

from typing import Any

import pytest

from tidegate.sql.expressions import AGGREGATE_FUNCTIONS, spark_functions

pytestmark = pytest.mark.spark


def test_the_list_is_the_one_of_this_spark(spark: Any) -> None:
    shown = {row[0].upper() for row in spark.sql("SHOW SYSTEM FUNCTIONS").collect()}
    named = {name for name in shown if name.replace("_", "a").isalnum()}
    assert spark_functions() == named


def test_every_aggregate_of_spark_is_known_as_one(spark: Any) -> None:
    """A missing one would be taken for a scalar function and be accepted in the wrong place."""
    registry = spark._jsparkSession.sessionState().functionRegistry()
    package = "org.apache.spark.sql.catalyst.expressions.aggregate."
    missing = []
    for name in sorted(spark_functions()):
        info = registry.lookupFunction(spark._jvm.org.apache.spark.sql.catalyst.FunctionIdentifier(name.lower()))
        group = info.get().getGroup() if info.isDefined() else ""
        class_name = info.get().getClassName() if info.isDefined() else ""
        if (group == "agg_funcs" or class_name.startswith(package)) and name not in AGGREGATE_FUNCTIONS:
            missing.append(name)
    assert missing == []
