"""Which condition goes first, and where nobody must count the rows that come out."""

from __future__ import annotations

import pytest

from tests.compiling import accepted
from tidegate.physical.first_filter import by_name, first_filter, keeps_rows

GOES_FIRST = {
    "SELECT k FROM plain WHERE v > 1 AND k IS NOT NULL": "`v` > 1 AND NOT `k` IS NULL",
    "SELECT x + 1 AS y FROM (SELECT k AS x FROM plain WHERE v > 1) WHERE x > 2": "`v` > 1",
    "SELECT p.k FROM plain AS p WHERE p.v = p.k": "`v` = `k`",
    "SELECT k FROM plain WHERE exists(array(v), x -> x > k)": "EXISTS(ARRAY(`v`), x -> x > `k`)",
}
STAYS = (
    "SELECT k FROM plain",
    "SELECT k FROM plain WHERE rand() < 0.5",
    "SELECT k FROM plain WHERE exists(array(v), k -> k > 1)",
    "SELECT k FROM plain WHERE v > 1 UNION ALL SELECT k FROM plain WHERE v > 2",
    "SELECT t FROM bids LATERAL VIEW explode(tags) x AS t WHERE t = 'a'",
)


@pytest.mark.parametrize("query", GOES_FIRST)
def test_a_condition_right_above_the_source_goes_first(query: str) -> None:
    found = first_filter(accepted(query))
    assert found is not None
    assert by_name(found) == GOES_FIRST[query]


@pytest.mark.parametrize("query", STAYS)
def test_other_conditions_stay_where_they_are(query: str) -> None:
    assert first_filter(accepted(query)) is None


def test_rows_are_kept_by_projections_and_what_went_first() -> None:
    plan = accepted("SELECT k + 1 AS k FROM (SELECT * FROM plain WHERE v > 1)")
    assert keeps_rows(plan, first_filter(plan))
    assert not keeps_rows(plan, None)
    twice = accepted("SELECT x FROM (SELECT k AS x FROM plain WHERE v > 1) WHERE x > 2")
    assert not keeps_rows(twice, first_filter(twice))
    assert keeps_rows(accepted("SELECT k FROM plain"), None)


def test_a_generator_makes_more_rows_or_fewer() -> None:
    assert not keeps_rows(accepted("SELECT explode(tags) AS t FROM bids"), None)
