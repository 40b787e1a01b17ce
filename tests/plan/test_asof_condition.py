"""What ASOF and temporal joins mean by near, and what stands around their operator."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.compiling import compile_text
from tidegate.catalog.objects import Stream
from tidegate.physical.registry import kind_of
from tidegate.plan import nodes as n
from tidegate.plan.rewrite.optimizer import optimize

SOURCES = """
CREATE SOURCE l (k BIGINT, v BIGINT, ts TIMESTAMP, WATERMARK FOR ts AS ts) WITH (connector = 'memory');
CREATE SOURCE r (k BIGINT, v BIGINT, ts TIMESTAMP, WATERMARK FOR ts AS ts) WITH (connector = 'memory');
CREATE SOURCE u (k BIGINT, v BIGINT, ts TIMESTAMP, PRIMARY KEY (k), WATERMARK FOR ts AS ts)
WITH (connector = 'memory', changelog = true);
"""
SECOND = 1_000_000


def plan_of(query: str, options: str = "") -> n.Emit:
    compiled = compile_text(f"{SOURCES}CREATE STREAM s {options} AS {query};")
    problems = [*compiled.errors, *compiled.unrunnable]
    assert not problems, "\n".join(error.render() for error in problems)
    (stream,) = (item for item in compiled.declared if isinstance(item, Stream))
    return stream.plan


def codes_of(query: str, options: str = "") -> list[str]:
    compiled = compile_text(f"{SOURCES}CREATE STREAM s {options} AS {query};")
    return [error.code for error in (*compiled.errors, *compiled.unrunnable)]


def join_of(plan: n.Node) -> n.Join:
    return next(node for node in n.walk(plan) if isinstance(node, n.Join))


@pytest.mark.parametrize(
    ("clause", "direction", "lower", "upper", "opened"),
    [
        ("MATCH_CONDITION (l.ts >= r.ts) ON l.k = r.k", "backward", 0, None, ""),
        ("MATCH_CONDITION (r.ts < l.ts) ON l.k = r.k", "backward", 0, None, "("),
        ("MATCH_CONDITION (l.ts <= r.ts) ON l.k = r.k", "forward", None, 0, ""),
        ("ON l.k = r.k AND r.ts > l.ts", "forward", None, 0, ")"),
        (
            "MATCH_CONDITION (l.ts >= r.ts + INTERVAL '2' SECOND) ON l.k = r.k",
            "backward",
            2 * SECOND,
            None,
            "",
        ),
        (
            "MATCH_CONDITION (l.ts >= r.ts) TOLERANCE INTERVAL '5' SECOND ON l.k = r.k",
            "backward",
            0,
            5 * SECOND,
            "",
        ),
        (
            "MATCH_CONDITION (l.ts < r.ts) TOLERANCE INTERVAL '5' SECOND ON l.k = r.k",
            "forward",
            -5 * SECOND,
            0,
            ")",
        ),
        (
            "ON l.k = r.k AND l.ts <= r.ts + INTERVAL '5' SECOND AND l.ts >= r.ts",
            "backward",
            0,
            5 * SECOND,
            "",
        ),
        (
            "MATCH_CONDITION (l.ts > r.ts) ON l.k = r.k AND l.ts - r.ts < INTERVAL '5' SECOND",
            "backward",
            0,
            5 * SECOND,
            "()",
        ),
        (
            "MATCH_CONDITION (l.ts <= r.ts) ON l.k = r.k AND r.ts - l.ts <= INTERVAL '5' SECOND",
            "forward",
            -5 * SECOND,
            0,
            "",
        ),
        (
            "MATCH_CONDITION (l.ts >= r.ts AND r.ts BETWEEN l.ts - INTERVAL '5' SECOND AND l.ts) "
            "ON l.k = r.k",
            "backward",
            0,
            5 * SECOND,
            "",
        ),
    ],
)
def test_a_match_condition_says_where_to_look_and_how_far(
    clause: str, direction: str, lower: Any, upper: Any, opened: str
) -> None:
    near = join_of(plan_of(f"SELECT l.v FROM l ASOF JOIN r {clause}")).asof_condition
    assert near is not None
    assert (near.direction, near.lower, near.upper) == (direction, lower, upper)
    assert (near.lower_open, near.upper_open) == ("(" in opened, ")" in opened)


@pytest.mark.parametrize(
    "distance",
    [
        "TOLERANCE INTERVAL '5' SECOND ON l.k = r.k",
        "ON l.k = r.k AND abs(l.ts - r.ts) <= INTERVAL '5' SECOND",
    ],
)
def test_the_nearest_row_may_be_bounded_on_both_sides(distance: str) -> None:
    near = join_of(
        plan_of(
            f"SELECT l.v FROM l ASOF NEAREST LEFT JOIN r MATCH_CONDITION (l.ts = r.ts) {distance}"
        )
    ).asof_condition
    assert near is not None
    assert (near.direction, near.lower, near.upper) == ("nearest", -5 * SECOND, 5 * SECOND)


def test_a_row_that_may_wait_for_ever_has_no_event_time() -> None:
    windowed = (
        "SELECT window_end, count(*) AS n FROM ({0}) GROUP BY TUMBLE(ts, INTERVAL '1' MINUTE)"
    )
    waits = "SELECT l.ts FROM l ASOF JOIN r MATCH_CONDITION (l.ts <= r.ts) {0} ON l.k = r.k"
    assert codes_of(windowed.format(waits.format("")))
    assert not codes_of(windowed.format(waits.format("TOLERANCE INTERVAL '5' SECOND")))


def test_what_no_watermark_makes_final_gives_changes_or_is_rejected() -> None:
    by_number = "SELECT l.v, r.v AS w FROM l ASOF JOIN r ON l.k = r.k AND l.v >= r.v"
    of_changes = "SELECT l.v, u.v AS w FROM l ASOF JOIN u ON l.k = u.k AND l.ts >= u.ts"
    for query in (by_number, of_changes):
        assert codes_of(query) == ["TG-417"]
        assert codes_of(f"{query} EMIT CHANGES") == ["TG-417"]
        assert not codes_of(f"{query} EMIT CHANGES", "WITH (state_ttl = '1 day')")
    off = "WITH (validator = 'off')"
    assert codes_of(f"{by_number} EMIT CHANGES", off) == ["TG-501"]


def test_other_conditions_on_both_sides_are_rejected() -> None:
    query = (
        "SELECT l.v FROM l ASOF JOIN r MATCH_CONDITION (l.ts >= r.ts) ON l.k = r.k AND l.v < r.v"
    )
    assert codes_of(query) == ["TG-501"]


def test_rows_without_a_key_are_no_versions_and_the_hint_makes_them_some() -> None:
    query = "SELECT l.v FROM l JOIN r FOR SYSTEM_TIME AS OF l.ts AS h ON l.k = h.k"
    compiled = compile_text(f"{SOURCES}CREATE STREAM s AS {query};")
    (error,) = compiled.errors
    assert error.code == "TG-415" and error.hint is not None
    written = error.hint.split("write ")[1].split(" in place of r")[0]
    assert not codes_of(query.replace("JOIN r ", f"JOIN {written} "))
    assert codes_of(query, "WITH (validator = 'off')") == ["TG-501"]


@pytest.mark.parametrize(
    "right",
    [
        "(SELECT k, max(v) AS v, ts FROM r GROUP BY k, ts)",
        "(SELECT * FROM r QUALIFY row_number() OVER (PARTITION BY k ORDER BY v DESC) = 1)",
        "(SELECT * FROM r QUALIFY row_number() OVER (PARTITION BY k ORDER BY ts DESC) = 2)",
        "(SELECT * FROM r QUALIFY rank() OVER (PARTITION BY k ORDER BY ts DESC) = 1)",
        "(SELECT * FROM u QUALIFY row_number() OVER (PARTITION BY k ORDER BY ts DESC) = 1)",
        "(SELECT DISTINCT k, ts FROM r)",
    ],
)
def test_changes_that_depend_on_arrival_are_no_versions(right: str) -> None:
    query = f"SELECT l.v FROM l JOIN {right} FOR SYSTEM_TIME AS OF l.ts AS h ON l.k = h.k"
    assert "TG-415" in codes_of(query)


def test_versions_are_read_below_what_would_only_tell_the_last() -> None:
    """Neither a stream over upserts nor the last row of a key may hide older versions."""
    for right in (
        "(SELECT v, k, ts FROM u WHERE v > 3)",
        "(SELECT * FROM r QUALIFY row_number() OVER (PARTITION BY k ORDER BY ts DESC) = 1)",
    ):
        query = f"SELECT l.v, h.v AS w FROM l LEFT JOIN {right} FOR SYSTEM_TIME AS OF l.ts AS h"
        plan = plan_of(f"{query} ON l.k = h.k")
        kinds = {type(node) for node in n.walk(join_of(plan).right)}
        assert kinds <= {n.Project, n.Scan}


def test_a_condition_on_the_version_is_asked_after_it_is_found() -> None:
    """Of a LEFT join a row without an answer stays, with NULL in place of the version."""
    on = "FOR SYSTEM_TIME AS OF l.ts AS h ON l.k = h.k AND h.v > 3 AND l.v = h.v"
    inner = plan_of(f"SELECT l.v, h.ts FROM l JOIN u {on}")
    assert any(isinstance(node, n.Filter) for node in n.walk(inner))
    left = plan_of(f"SELECT l.v, h.ts FROM l LEFT JOIN u {on}")
    assert not any(isinstance(node, n.Filter) for node in n.walk(left))
    for plan in (inner, left):
        join = join_of(optimize(plan))
        assert [pair.right.name for pair in join.key_pairs] == ["k_1"] and join.residual is None


@pytest.mark.parametrize(
    ("match", "behind"),
    [
        ("MATCH_CONDITION (l.ts >= r.ts)", 0),
        ("MATCH_CONDITION (l.ts >= r.ts - INTERVAL '2' SECOND)", 2 * SECOND),
        ("MATCH_CONDITION (l.ts <= r.ts) TOLERANCE INTERVAL '5' SECOND", 5 * SECOND),
        ("MATCH_CONDITION (l.ts <= r.ts AND l.ts > r.ts - INTERVAL '5' SECOND)", 5 * SECOND - 1),
    ],
)
def test_whoever_reads_the_rows_waits_as_long_as_they_do(match: str, behind: int) -> None:
    join = join_of(plan_of(f"SELECT l.v, l.ts FROM l ASOF JOIN r {match} ON l.k = r.k"))
    assert kind_of(join).output_watermark_delay_us(join) == behind
