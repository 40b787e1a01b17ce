"""Regression tests for bugs that the fuzzer of statements has found."""

from __future__ import annotations

import pytest

from tests.physical.test_stage_sql import stage_sql
from tests.support.compiling import compile_with_sources, rejected


@pytest.mark.parametrize(
    ("expression", "printed"),
    [
        ("array(price, auction)[0]", "ARRAY(`price`, `auction`)[0]"),
        ("TIME '10:11:12'", "CAST('10:11:12' AS TIME)"),
        ("transform(tags, x -> x)", "TRANSFORM(`tags`, x -> x)"),
        ("transform(tags, price -> price || b.price)", "`price_1` -> `price_1` || `price`"),
        ("transform(tags, X -> x || '!')", "X -> x || '!'"),
        ("transform(tags, info -> struct(info AS info, b.info.a))", "STRUCT(`info_1` AS info"),
    ],
)
def test_expression_is_printed_correctly(expression: str, printed: str) -> None:
    assert printed in stage_sql(f"SELECT {expression} AS c FROM bids AS b")


def test_parenthesized_union_is_typed_first() -> None:
    sql = stage_sql(
        "SELECT k FROM plain UNION ALL (SELECT v FROM plain UNION ALL SELECT 1 FROM plain)"
    )
    assert "UNION ALL SELECT `v_3` AS `k_3` FROM (SELECT `v_1` AS `v_3`" in sql


def test_explode_in_select_becomes_lateral_view() -> None:
    assert stage_sql("SELECT auction, explode(tags) AS t FROM bids") == stage_sql(
        "SELECT auction, t FROM bids LATERAL VIEW explode(tags) v AS t"
    )


def test_where_can_use_columns_of_lateral_views() -> None:
    sql = stage_sql(
        "SELECT t FROM bids LATERAL VIEW posexplode(tags) v AS p, t WHERE t <> '' AND p > 0"
    )
    assert "LATERAL VIEW POSEXPLODE(`tags`) generated AS `p`, `t`) WHERE" in sql
    assert "`pos`, `col`" in stage_sql("SELECT pos, col FROM bids LATERAL VIEW posexplode(tags) v")


@pytest.mark.parametrize("name", ["lag", "lead", "nth_value"])
def test_lag_lead_and_nth_value_need_an_argument(name: str) -> None:
    query = f"CREATE STREAM s AS SELECT {name}() OVER (ORDER BY ts) AS x FROM bids;"
    (error,) = compile_with_sources(query).rejections
    assert error.code == "TG-501" and "an argument is missing" in error.message
    assert error.hint is not None and f"{name}(x" in error.hint


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT * EXCEPT (info.a) FROM bids", "* EXCEPT cannot exclude a field"),
        ("SELECT uuid() AS u, u AS v FROM bids", "u is random"),
        ("SELECT posexplode(tags) AS t FROM bids", "must be an entire column"),
        ("SELECT explode(tags) AS t, explode(tags) AS u FROM bids", "must be an entire column"),
        ("SELECT upper(explode(tags)) AS t FROM bids", "must be an entire column"),
        (
            "SELECT explode(tags) AS t, sum(price) OVER (ORDER BY ts) AS p FROM bids",
            "cannot be combined with OVER",
        ),
        ("SELECT price FROM bids LATERAL VIEW explode(tags) v AS price", "could be a column of"),
    ],
)
def test_query_is_rejected(query: str, message: str) -> None:
    assert message in rejected(query)[0].message
