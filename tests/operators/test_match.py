"""MATCH_RECOGNIZE equals a plain matcher for any rows, split into epochs and tasks, and restarts.

TIDEGATE_EXAMPLES is twice the number of examples (100), TIDEGATE_SEED the seed of hypothesis.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from tests.operators.harness import Row, state_limits
from tests.operators.match_model import SECOND, Expression, MatchQuery, Pattern, pattern_sql
from tidegate.errors import RunError
from tidegate.operators.match import search
from tidegate.operators.watermark import END_OF_INPUT_US, WatermarkUpdate
from tidegate.sql import match_recognize as pt
from tidegate.sql.dialect import DIALECT

EXAMPLES = int(os.environ.get("TIDEGATE_EXAMPLES", "100"))
SEED = int(os.environ.get("TIDEGATE_SEED", "20261116"))


def less(one: Any, other: Any) -> Any:
    return None if one is None or other is None else one < other


def equal(one: Any, other: Any) -> Any:
    return None if one is None or other is None else one == other


def both(one: Any, other: Any) -> Any:
    if one is False or other is False:
        return False
    return None if one is None or other is None else True


def either(one: Any, other: Any) -> Any:
    return opposite(both(opposite(one), opposite(other)))


def opposite(one: Any) -> Any:
    return None if one is None else not one


def total(prices: list[Any]) -> Any:
    return sum(prices) if prices else None


def minus(one: Any, other: Any) -> Any:
    return None if one is None or other is None else one - other


def near(one: Any, other: Any) -> Any:
    return None if one is None or other is None else abs(one - other) <= 1


CONDITIONS: list[Expression] = [
    ("{v}.price > 2", lambda r, v, w: less(2, r.last())),
    ("price IS NOT NULL", lambda r, v, w: r.last() is not None),
    ("{v}.price < PREV({v}.price)", lambda r, v, w: less(r.last(), r.last(v, 0, 1))),
    ("price >= PREV(price, 2)", lambda r, v, w: opposite(less(r.last(), r.last(None, 0, 2)))),
    (
        "coalesce(PREV({v}.price), 1) = 1",
        lambda r, v, w: (1 if r.last(v, 0, 1) is None else r.last(v, 0, 1)) == 1,
    ),
    ("{v}.price > {w}.price", lambda r, v, w: less(r.last(w), r.last())),
    ("{w}.price + 1 >= LAST({v}.price, 1)", lambda r, v, w: near_above(r, v, w)),
    (
        "LAST({v}.price, 1) IS NULL OR LAST({v}.price, 1) < {v}.price",
        lambda r, v, w: either(r.last(v, 1) is None, less(r.last(v, 1), r.last())),
    ),
    ("FIRST({v}.price) <= {v}.price", lambda r, v, w: opposite(less(r.last(), r.first(v)))),
    ("FIRST({w}.price, 1) = {v}.price", lambda r, v, w: equal(r.first(w, 1), r.last())),
    (
        "NOT (PREV(LAST({w}.price), 1) = {v}.price)",
        lambda r, v, w: opposite(equal(r.last(w, 0, 1), r.last())),
    ),
    ("sum({v}.price) < 6", lambda r, v, w: less(total(r.prices(v)), 6)),
    ("count({v}.price) < 3", lambda r, v, w: len(r.prices(v)) < 3),
    ("count(*) < 4", lambda r, v, w: len(r.positions(None)) < 4),
    (
        "avg({w}.price) > 1",
        lambda r, v, w: less(1, total(r.prices(w)) / len(r.prices(w))) if r.prices(w) else None,
    ),
    (
        "max({v}.price) - min({v}.price) < 3",
        lambda r, v, w: less(max(r.prices(v)) - min(r.prices(v)), 3) if r.prices(v) else None,
    ),
    ("abs({v}.price - {w}.price) <= 1", lambda r, v, w: near(r.last(), r.last(w))),
    (
        "{v}.price IN (PREV({v}.price), 2)",
        lambda r, v, w: either(equal(r.last(), r.last(v, 0, 1)), equal(r.last(), 2)),
    ),
    (
        "{v}.price BETWEEN {w}.price AND LAST(price, 1)",
        lambda r, v, w: both(
            opposite(less(r.last(), r.last(w))), opposite(less(r.last(None, 1), r.last()))
        ),
    ),
    (
        "{v}.price <=> {w}.price AND {v}.price <> 0",
        lambda r, v, w: both(r.last() == r.last(w), opposite(equal(r.last(), 0))),
    ),
]


def near_above(r: Any, v: str, w: str) -> Any:
    if r.last(w) is None or r.last(v, 1) is None:
        return None
    return r.last(w) + 1 >= r.last(v, 1)


MEASURES: list[Expression] = [
    ("{v}.price", lambda r, v, w: r.last(v)),
    ("price", lambda r, v, w: r.last()),
    ("FIRST({v}.price)", lambda r, v, w: r.first(v)),
    ("FIRST(price, 1)", lambda r, v, w: r.first(None, 1)),
    ("LAST({w}.price, 1)", lambda r, v, w: r.last(w, 1)),
    ("PREV({v}.price)", lambda r, v, w: r.last(v, 0, 1)),
    ("PREV(FIRST({v}.price), 2)", lambda r, v, w: r.first(v, 0, 2)),
    ("count(*)", lambda r, v, w: len(r.positions(None))),
    ("count({v}.*)", lambda r, v, w: len(r.positions(v))),
    ("sum({v}.price)", lambda r, v, w: total(r.prices(v))),
    ("max(price)", lambda r, v, w: max(r.prices(), default=None)),
    ("collect_list({w}.price)", lambda r, v, w: r.prices(w)),
    (
        "sum({v}.price) FILTER (WHERE {v}.price > 1)",
        lambda r, v, w: total([p for p in r.prices(v) if p > 1]),
    ),
]


@dataclass(frozen=True)
class Case:
    """A query and its epochs: rows by task, the watermark, whether a restart follows."""

    query: MatchQuery
    epochs: list[tuple[list[list[list[Row]]], int, bool]]
    small: bool


def variables() -> st.SearchStrategy[Pattern]:
    return st.sampled_from("ABC").map(lambda name: ("var", name))


def repeated(part: st.SearchStrategy[Pattern]) -> st.SearchStrategy[Pattern]:
    bounds = st.sampled_from([(0, 1), (0, None), (1, None), (2, 3), (1, 2), (2, None), (0, 2)])
    return st.tuples(part, bounds, st.booleans()).map(lambda t: ("rep", t[0], *t[1], t[2]))


def patterns() -> st.SearchStrategy[Pattern]:
    parts = st.one_of(variables(), repeated(variables()))
    some = st.lists(parts, min_size=1, max_size=3).map(lambda parts: ("seq", *parts))
    alternatives = st.lists(some, min_size=2, max_size=2).map(lambda parts: ("or", *parts))
    # A quantifier over a pattern that may be empty is rejected.
    non_empty = st.lists(variables(), min_size=1, max_size=2).map(lambda parts: ("seq", *parts))
    nested = st.lists(st.one_of(parts, alternatives, repeated(non_empty)), min_size=1, max_size=3)
    return nested.map(lambda parts: ("seq", *parts))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    pattern = draw(patterns().filter(lambda pattern: pt.min_length(parse(pattern)) > 0))
    names = pt.variables(parse(pattern))
    variable = st.sampled_from(names)
    defined = draw(st.lists(st.sampled_from(names), unique=True))
    conditions = tuple(
        (name, draw(variable), draw(st.sampled_from(CONDITIONS))) for name in sorted(defined)
    )
    drawn = [
        (draw(variable), draw(variable), draw(st.sampled_from(MEASURES)))
        for _ in range(draw(st.integers(0, 3)))
    ]
    # Equal measures are one column of the operator.
    measures = tuple({s[0].format(v=v, w=w): (v, w, s) for v, w, s in drawn}.values())
    query = MatchQuery(
        pattern,
        conditions,
        measures,
        draw(st.sampled_from(skips(pattern, names))),
        draw(st.sampled_from([None, 1, 3, 6])),
        keeps_late=draw(st.booleans()),
    )
    return Case(query, draw(epochs()), draw(st.booleans()))


def skips(pattern: Pattern, names: tuple[str, ...]) -> list[str]:
    """Return the AFTER MATCH clauses that are valid for a pattern."""
    clauses = ["PAST LAST ROW", "TO NEXT ROW"]
    tree = parse(pattern)
    for name in names:
        group = frozenset([name])
        if pt.always_occurs(tree, group) and pt.first_position(tree, group):
            clauses.append(f"TO FIRST {name}")
        if pt.always_occurs(tree, group) and (
            pt.last_position(tree, group) or pt.first_position(tree, group)
        ):
            clauses.append(f"TO LAST {name}")
    return clauses


def parse(pattern: Pattern) -> pt.Pattern:
    sql = f"SELECT 1 FROM t MATCH_RECOGNIZE (ORDER BY ts PATTERN ({pattern_sql(pattern)}))"
    tree = DIALECT.parse(sql)[0]
    assert tree is not None
    result: pt.Pattern = tree.args["from_"].this.args["match"].args["pattern"]
    return result


@st.composite
def epochs(draw: st.DrawFn) -> list[tuple[list[list[list[Row]]], int, bool]]:
    keys = st.sampled_from(draw(st.sampled_from([[1], [1, 2], [None, 1, 2]])))
    prices = st.sampled_from([None, 0, 1, 2, 3, 4])
    row = st.tuples(st.integers(-2, 9), keys, prices, st.integers(0, 3))
    result, number = [], 0
    for drawn in draw(st.lists(st.lists(row, max_size=7), max_size=6)):
        tasks: list[list[list[Row]]] = [[[], []], [[], []]]
        for ts, key, price, task in drawn:
            tasks[task // 2][task % 2].append(Row(ts * SECOND, (key,), (price,), 1, number))
            number += 1
        watermark_us = draw(st.integers(-3, 12)) * SECOND + draw(st.integers(-1, 1))
        result.append((tasks, watermark_us, draw(st.booleans())))
    return result


def with_micros(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a match with its time in microseconds."""
    key, at, *rest = row
    return (key, int(at.timestamp()) * SECOND + at.microsecond, *rest)


@seed(SEED)
@settings(
    max_examples=-(-EXAMPLES // 2),
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(cases())
def test_emits_the_matches_of_a_plain_matcher(case: Case) -> None:
    query = case.query
    run, late, watermark = query.harness(), 0, None
    on_time: list[Row] = []
    emitted: list[tuple[Any, ...]] = []
    with state_limits(case.small):
        for tasks, update_us, restarts in [*case.epochs, ([], END_OF_INPUT_US, False)]:
            epoch = run.epoch(tasks, [WatermarkUpdate(0, 0, update_us)], now_us=1)
            new = [row for batches in tasks for batch in batches for row in batch]
            accepted = [row for row in new if watermark is None or row.ts >= watermark]
            late += len(new) - len(accepted)
            on_time += accepted
            assert epoch.late_rows == late
            assert len(epoch.late) == (len(new) - len(accepted)) * query.keeps_late
            matches = [with_micros(row) for row in epoch.rows]
            if watermark is not None and query.has_bounded_delay:
                # A downstream operator must not take any match as late.
                earliest = watermark - (query.within or 0) * SECOND
                assert all(match[1] >= earliest for match in matches)
            watermark = update_us if watermark is None else max(watermark, update_us)
            emitted += matches
            if restarts:
                run.restart()
    assert sorted(emitted, key=repr) == sorted(query.in_batch(on_time), key=repr), query.sql
    assert run.stored_names() == []


V = ("seq", ("var", "A"), ("rep", ("var", "B"), 1, None, False), ("var", "C"))
FALLS: Expression = ("{v}.price < PREV({v}.price)", lambda r, v, w: less(r.last(), r.last(v, 0, 1)))
RISES: Expression = ("{v}.price > PREV({v}.price)", lambda r, v, w: less(r.last(v, 0, 1), r.last()))
COUNT: Expression = ("count(*)", lambda r, v, w: len(r.positions(None)))
SHAPES = MatchQuery(V, (("B", "B", FALLS), ("C", "C", RISES)), (("A", "A", COUNT),))


def prices(*drawn: int | None, start: int = 0) -> list[Row]:
    return [Row((start + i) * SECOND, (1,), (p,), 1, start + i) for i, p in enumerate(drawn)]


def test_time_to_live_drops_the_rows_of_an_open_match() -> None:
    for ttl_us, counts in ((None, [4]), (10, [])):
        query = MatchQuery(V, SHAPES.conditions, SHAPES.measures, ttl_us=ttl_us)
        run = query.harness()
        run.rows(prices(9, 8, 7), watermark_us=10 * SECOND, now_us=1)
        run.restart()
        assert run.rows([], watermark_us=10 * SECOND, now_us=20).rows == []
        assert (run.stored_names() == []) is (ttl_us is not None)
        run.rows(prices(8, start=11), watermark_us=11 * SECOND, now_us=21)
        assert [row[2] for row in run.end().rows] == counts


def test_within_drops_the_rows_of_a_match_that_cannot_complete() -> None:
    query = MatchQuery(V, SHAPES.conditions, SHAPES.measures, within=5)
    run = query.harness()
    run.rows(prices(9, 8, 7), watermark_us=4 * SECOND)
    assert run.stored_names()
    run.rows([], watermark_us=7 * SECOND)
    assert run.stored_names() == []


def test_search_above_the_step_limit_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Conditions that depend on earlier variables cause a search through all alternatives."""
    always: Expression = ("count({v}.price) >= 0", lambda r, v, w: True)
    never: Expression = ("{v}.price > 9 + count({v}.price)", lambda r, v, w: False)
    many = ("rep", ("var", "A"), 0, None, False)
    pattern = ("seq", many, many, many, many, ("var", "B"))
    monkeypatch.setattr(search, "MAX_STEPS", 10_000)
    run = MatchQuery(pattern, (("A", "A", always), ("B", "B", never)), ()).harness()
    run.rows(prices(*[1] * 30))
    with pytest.raises(RunError, match="needs more than 10,000 steps") as caught:
        run.end()
    assert caught.value.code == "TG-503"


def test_search_with_local_conditions_is_linear(monkeypatch: pytest.MonkeyPatch) -> None:
    never: Expression = ("{v}.price > 9", lambda r, v, w: False)
    many = ("rep", ("var", "A"), 0, None, False)
    pattern = ("seq", many, many, many, many, ("var", "B"))
    monkeypatch.setattr(search, "MAX_STEPS", 1_000)
    run = MatchQuery(pattern, (("B", "B", never),), ()).harness()
    run.rows(prices(*[1] * 30))
    assert run.end().rows == []


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("{v}.price / PREV({v}.price) > 1", "is a division by zero"),
        ("{v}.price * PREV({v}.price) * 9223372036854775807 > 1", "overflows 64 bits"),
    ],
)
def test_failing_condition_is_an_error(condition: str, message: str) -> None:
    failing: Expression = (condition, lambda r, v, w: None)
    run = MatchQuery(("seq", ("var", "A"), ("var", "B")), (("B", "B", failing),), ()).harness()
    run.rows(prices(0, 5) if "/" in condition else prices(2, 5))
    with pytest.raises(RunError, match=message) as caught:
        run.end()
    assert caught.value.code == "TG-503"
