"""Partials that Spark computes in a GROUP BY are the states that `lift` makes of the rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from tests.operators.test_accumulators import rows_of
from tests.spark.test_accumulators_spark import (
    TYPES,
    Asked,
    aggregated,
    agree,
    arrow_type,
    result_types,
    simple,
    table_of,
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

# What has partials, whatever the type of its argument; sums of some types have none.
ALWAYS = {"count", "count_if", "min", "max", "min_by", "max_by", "bool_and", "bool_or", "every"}
ALWAYS |= {"any", "some", "bit_and", "bit_or", "bit_xor"}
WITHOUT = {"DECIMAL(38, 10)", "DECIMAL(30, 0)", "INTERVAL DAY TO SECOND"}
PLACES = [(place, f"{place}-{kind}") for place, (kind, _, _) in enumerate(TYPES)]


def call_of(rows: pa.Table, asked: Asked, result: pa.DataType) -> AggregateCall:
    kinds = tuple(rows.schema.field(name).type for name in asked.arguments)
    return AggregateCall(
        asked.function, asked.sql, kinds, result, asked.distinct, asked.filtered, asked.constants
    )


def lifted(rows: pa.Table, asked: Asked, call: AggregateCall) -> tuple[pa.Table, ...]:
    groups = Aggregator(GroupSpec((pa.int64(),), (call,)))
    columns = {f"a0_{place}": rows[name] for place, name in enumerate(asked.arguments)}
    return groups.pre_aggregate(rows_of(rows["k"].to_pylist(), columns))


def partials(item: PlainAccumulator, asked: Asked) -> Sequence[str] | None:
    """The SQL of a state; the filter is folded in, as in a stage."""
    arguments = list(asked.arguments)
    if asked.filtered:
        *arguments, there = arguments
        place = item.null_argument or 0
        arguments[place] = f"CASE WHEN {there} THEN {arguments[place]} END"
    return item.partial_sql(arguments)


def states(found: pa.Table, item: PlainAccumulator, prefix: str) -> list[tuple[Any, ...]]:
    """The states of the groups as Spark has computed them."""
    names = [name for name in found.column_names if name.startswith(prefix)]
    made = item.from_partials([found[name] for name in names])
    cast = [column.cast(kind) for column, kind in zip(made, item.state_types, strict=True)]
    return sorted(zip(found["k"].to_pylist(), *(c.to_pylist() for c in cast), strict=True))


def same_states(ours: list[tuple[Any, ...]], spark: list[tuple[Any, ...]]) -> bool:
    return len(ours) == len(spark) and all(
        len(one) == len(other) and all(map(agree, one, other, [False] * len(one)))
        for one, other in zip(ours, spark, strict=True)
    )


@pytest.mark.parametrize("place", [p for p, _ in PLACES], ids=[name for _, name in PLACES])
def test_partials_are_what_lift_makes(spark: Any, place: int) -> None:
    sql_type, values, all_asked = TYPES[place]
    kind = arrow_type(spark.sql(f"SELECT CAST(NULL AS {sql_type}) AS x").schema[0].dataType)
    rows = table_of(kind, values, seed=place)
    kinds = result_types(aggregated(spark, rows, all_asked))
    tested: list[tuple[Asked, AggregateCall, PlainAccumulator]] = []
    columns: list[str] = []
    for asked, result in zip(all_asked, kinds, strict=True):
        call = call_of(rows, asked, result)
        item = make_accumulator(call)
        if not isinstance(item, PlainAccumulator) or asked.arguments == ("c",):
            continue
        sql = partials(item, asked)
        if sql is not None:
            columns += [f"{text} AS p{len(tested)}_{place}" for place, text in enumerate(sql)]
            tested.append((asked, call, item))
    query = f"SELECT {', '.join(['k', *columns])} FROM accumulated GROUP BY k"
    together = spark.sql(query).toArrow()
    checked: set[str] = set()
    for number, (asked, call, item) in enumerate(tested):
        found = states(together, item, f"p{number}_")
        main = lifted(rows, asked, call)[0]
        ours = sorted(
            zip(*(main[name].to_pylist() for name in ("k0", *main.column_names[4:])), strict=True)
        )
        assert same_states(ours, found), asked.sql
        checked.add(asked.function)
    asked_for = {one.function for one in all_asked if not one.distinct}
    expected = asked_for & (ALWAYS if sql_type in WITHOUT else ALWAYS | {"sum", "avg", "mean"})
    assert expected <= checked


DISTINCT = [Asked("count(DISTINCT x)", "count", distinct=True)]
DISTINCT += [Asked("count(DISTINCT x, c)", "count", ("x", "c"), distinct=True)]


@pytest.mark.parametrize("place", [3, 4, 5, 9, 16, 17], ids=lambda place: TYPES[place][0])
def test_distinct_is_one_more_key(spark: Any, place: int) -> None:
    sql_type, values, _ = TYPES[place]
    kind = arrow_type(spark.sql(f"SELECT CAST(NULL AS {sql_type}) AS x").schema[0].dataType)
    rows = table_of(kind, values, seed=place)
    aggregated(spark, rows, [simple("count")])
    for asked in DISTINCT:
        call = call_of(rows, asked, pa.int64())
        bag = make_accumulator(call)
        assert isinstance(bag, BagAccumulator)
        keys = bag.partial_keys(asked.arguments)
        assert keys is not None
        there = " AND ".join(f"{keys[place]} IS NOT NULL" for place in bag.required_arguments)
        named = ", ".join(f"{key} AS v{i}" for i, key in enumerate(keys))
        by = ", ".join(keys)
        found = spark.sql(
            f"SELECT k, {named}, count(*) AS n FROM accumulated WHERE {there} GROUP BY k, {by}"
        ).toArrow()
        table = lifted(rows, asked, call)[1].drop_columns([PANE, HASH])
        assert table.column_names[-1] == ROWS
        assert sorted(map(repr, _tuples(table))) == sorted(map(repr, _tuples(found)))


def _tuples(table: pa.Table) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))
