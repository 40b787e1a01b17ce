"""Pre-aggregation in Spark SQL returns the same states as pre-aggregation of the rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from tests.operators.aggregate_inputs import input_rows
from tests.spark.test_aggregates import (
    TYPES,
    AggregateCase,
    aggregated,
    arrow_type,
    is_same,
    random_table,
    result_types,
    simple,
)
from tidegate.columns import HASH, PANE, ROWS
from tidegate.operators.aggregate.functions import (
    AggregateCall,
    BagAccumulator,
    PlainAccumulator,
    make_accumulator,
)
from tidegate.operators.aggregate.groups import Aggregator, GroupSpec

pytestmark = pytest.mark.spark

# Functions with partial aggregates in SQL for every argument type. WITHOUT: types whose sums have none.
ALWAYS = {"count", "count_if", "min", "max", "min_by", "max_by", "bool_and", "bool_or", "every"}
ALWAYS |= {"any", "some", "bit_and", "bit_or", "bit_xor"}
WITHOUT = {"DECIMAL(38, 10)", "DECIMAL(30, 0)", "INTERVAL DAY TO SECOND"}
PLACES = [(place, f"{place}-{kind}") for place, (kind, _, _) in enumerate(TYPES)]


def call_of(rows: pa.Table, case: AggregateCase, result: pa.DataType) -> AggregateCall:
    kinds = tuple(rows.schema.field(name).type for name in case.arguments)
    return AggregateCall(
        case.function, case.sql, kinds, result, case.distinct, case.filtered, case.constants
    )


def pre_aggregate(rows: pa.Table, case: AggregateCase, call: AggregateCall) -> tuple[pa.Table, ...]:
    aggregator = Aggregator(GroupSpec((pa.int64(),), (call,)))
    columns = {f"a0_{number}": rows[name] for number, name in enumerate(case.arguments)}
    return aggregator.pre_aggregate(input_rows(rows["k"].to_pylist(), columns))


def partials(item: PlainAccumulator, case: AggregateCase) -> Sequence[str] | None:
    """Return the SQL of a state, with the FILTER folded in as a stage does."""
    arguments = list(case.arguments)
    if case.filtered:
        *arguments, condition = arguments
        index = item.null_argument or 0
        arguments[index] = f"CASE WHEN {condition} THEN {arguments[index]} END"
    return item.partial_sql(arguments)


def states(partials: pa.Table, item: PlainAccumulator, prefix: str) -> list[tuple[Any, ...]]:
    """Return the states of the groups from the partial aggregates of Spark."""
    names = [name for name in partials.column_names if name.startswith(prefix)]
    columns = item.from_partials([partials[name] for name in names])
    cast = [column.cast(kind) for column, kind in zip(columns, item.state_types, strict=True)]
    return sorted(zip(partials["k"].to_pylist(), *(c.to_pylist() for c in cast), strict=True))


def same_states(ours: list[tuple[Any, ...]], spark: list[tuple[Any, ...]]) -> bool:
    return len(ours) == len(spark) and all(
        len(mine) == len(other) and all(map(is_same, mine, other, [False] * len(mine)))
        for mine, other in zip(ours, spark, strict=True)
    )


@pytest.mark.parametrize("place", [p for p, _ in PLACES], ids=[name for _, name in PLACES])
def test_spark_states_equal_pre_aggregated_states(spark: Any, place: int) -> None:
    sql_type, values, cases = TYPES[place]
    kind = arrow_type(spark.sql(f"SELECT CAST(NULL AS {sql_type}) AS x").schema[0].dataType)
    rows = random_table(kind, values, seed=place)
    kinds = result_types(aggregated(spark, rows, cases))
    tested: list[tuple[AggregateCase, AggregateCall, PlainAccumulator]] = []
    columns: list[str] = []
    for case, result in zip(cases, kinds, strict=True):
        call = call_of(rows, case, result)
        item = make_accumulator(call)
        if not isinstance(item, PlainAccumulator) or case.arguments == ("c",):
            continue
        sql = partials(item, case)
        if sql is not None:
            columns += [f"{text} AS p{len(tested)}_{place}" for place, text in enumerate(sql)]
            tested.append((case, call, item))
    query = f"SELECT {', '.join(['k', *columns])} FROM accumulated GROUP BY k"
    result = spark.sql(query).toArrow()
    checked: set[str] = set()
    for number, (case, call, item) in enumerate(tested):
        spark_states = states(result, item, f"p{number}_")
        main = pre_aggregate(rows, case, call)[0]
        ours = sorted(
            zip(*(main[name].to_pylist() for name in ("k0", *main.column_names[4:])), strict=True)
        )
        assert same_states(ours, spark_states), case.sql
        checked.add(case.function)
    functions = {case.function for case in cases if not case.distinct}
    expected = functions & (ALWAYS if sql_type in WITHOUT else ALWAYS | {"sum", "avg", "mean"})
    assert expected <= checked


DISTINCT = [AggregateCase("count(DISTINCT x)", "count", distinct=True)]
DISTINCT += [AggregateCase("count(DISTINCT x, c)", "count", ("x", "c"), distinct=True)]


@pytest.mark.parametrize("place", [3, 4, 5, 9, 16, 17], ids=lambda place: TYPES[place][0])
def test_distinct_values_equal_group_by_of_spark(spark: Any, place: int) -> None:
    sql_type, values, _ = TYPES[place]
    kind = arrow_type(spark.sql(f"SELECT CAST(NULL AS {sql_type}) AS x").schema[0].dataType)
    rows = random_table(kind, values, seed=place)
    aggregated(spark, rows, [simple("count")])
    for case in DISTINCT:
        call = call_of(rows, case, pa.int64())
        bag = make_accumulator(call)
        assert isinstance(bag, BagAccumulator)
        keys = case.arguments
        not_null = " AND ".join(f"{keys[place]} IS NOT NULL" for place in bag.required_arguments)
        named = ", ".join(f"{key} AS v{i}" for i, key in enumerate(keys))
        by = ", ".join(keys)
        expected = spark.sql(
            f"SELECT k, {named}, count(*) AS n FROM accumulated WHERE {not_null} GROUP BY k, {by}"
        ).toArrow()
        table = pre_aggregate(rows, case, call)[1].drop_columns([PANE, HASH])
        assert table.column_names[-1] == ROWS
        assert sorted(map(repr, _tuples(table))) == sorted(map(repr, _tuples(expected)))


def _tuples(table: pa.Table) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))
