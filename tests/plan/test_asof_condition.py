"""The match conditions of ASOF and temporal joins, and the nodes around these joins."""

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
    errors = [*compiled.errors, *compiled.rejections]
    assert not errors, "\n".join(error.render() for error in errors)
    (stream,) = (item for item in compiled.declared if isinstance(item, Stream))
    return stream.plan


def codes_of(query: str, options: str = "") -> list[str]:
    compiled = compile_text(f"{SOURCES}CREATE STREAM s {options} AS {query};")
    return [error.code for error in (*compiled.errors, *compiled.rejections)]


def join_of(plan: n.Node) -> n.Join:
    return next(node for node in n.walk(plan) if isinstance(node, n.Join))


@pytest.mark.parametrize(
    ("clause", "direction", "lower", "upper", "open_ends"),
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
def test_match_condition_sets_direction_and_bounds(
    clause: str, direction: str, lower: Any, upper: Any, open_ends: str
) -> None:
    condition = join_of(plan_of(f"SELECT l.v FROM l ASOF JOIN r {clause}")).asof_condition
    assert condition is not None
    assert (condition.direction, condition.lower, condition.upper) == (direction, lower, upper)
    assert (condition.lower_open, condition.upper_open) == ("(" in open_ends, ")" in open_ends)


@pytest.mark.parametrize(
    "distance",
    [
        "TOLERANCE INTERVAL '5' SECOND ON l.k = r.k",
        "ON l.k = r.k AND abs(l.ts - r.ts) <= INTERVAL '5' SECOND",
    ],
)
def test_tolerance_bounds_nearest_on_both_sides(distance: str) -> None:
    condition = join_of(
        plan_of(
            f"SELECT l.v FROM l ASOF NEAREST LEFT JOIN r MATCH_CONDITION (l.ts = r.ts) {distance}"
        )
    ).asof_condition
    assert condition is not None
    assert (condition.direction, condition.lower, condition.upper) == (
        "nearest",
        -5 * SECOND,
        5 * SECOND,
    )


def test_forward_join_without_tolerance_has_no_event_time() -> None:
    window_query = (
        "SELECT window_end, count(*) AS n FROM ({0}) GROUP BY TUMBLE(ts, INTERVAL '1' MINUTE)"
    )
    join = "SELECT l.ts FROM l ASOF JOIN r MATCH_CONDITION (l.ts <= r.ts) {0} ON l.k = r.k"
    assert codes_of(window_query.format(join.format("")))
    assert not codes_of(window_query.format(join.format("TOLERANCE INTERVAL '5' SECOND")))


def test_join_that_is_not_final_at_the_watermark_needs_emit_changes_and_ttl() -> None:
    by_number = "SELECT l.v, r.v AS w FROM l ASOF JOIN r ON l.k = r.k AND l.v >= r.v"
    of_changes = "SELECT l.v, u.v AS w FROM l ASOF JOIN u ON l.k = u.k AND l.ts >= u.ts"
    for query in (by_number, of_changes):
        assert codes_of(query) == ["TG-417"]
        assert codes_of(f"{query} EMIT CHANGES") == ["TG-417"]
        assert not codes_of(f"{query} EMIT CHANGES", "WITH (state_ttl = '1 day')")
    off = "WITH (validator = 'off')"
    assert codes_of(f"{by_number} EMIT CHANGES", off) == ["TG-501"]


def test_rejects_residual_conditions_on_both_sides() -> None:
    query = (
        "SELECT l.v FROM l ASOF JOIN r MATCH_CONDITION (l.ts >= r.ts) ON l.k = r.k AND l.v < r.v"
    )
    assert codes_of(query) == ["TG-501"]


def test_rejects_rows_without_key_as_versions_with_a_hint_that_works() -> None:
    query = "SELECT l.v FROM l JOIN r FOR SYSTEM_TIME AS OF l.ts AS h ON l.k = h.k"
    compiled = compile_text(f"{SOURCES}CREATE STREAM s AS {query};")
    (error,) = compiled.errors
    assert error.code == "TG-415" and error.hint is not None
    replacement = error.hint.split("write ")[1].split(" in place of r")[0]
    assert not codes_of(query.replace("JOIN r ", f"JOIN {replacement} "))
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
def test_rejects_right_sides_that_depend_on_order_of_arrival(right: str) -> None:
    query = f"SELECT l.v FROM l JOIN {right} FOR SYSTEM_TIME AS OF l.ts AS h ON l.k = h.k"
    assert "TG-415" in codes_of(query)


def test_temporal_join_reads_all_versions_below_filters_and_last_rows() -> None:
    """A stream over upserts, or a query for the last row of a key, must not hide older versions."""
    for right in (
        "(SELECT v, k, ts FROM u WHERE v > 3)",
        "(SELECT * FROM r QUALIFY row_number() OVER (PARTITION BY k ORDER BY ts DESC) = 1)",
    ):
        query = f"SELECT l.v, h.v AS w FROM l LEFT JOIN {right} FOR SYSTEM_TIME AS OF l.ts AS h"
        plan = plan_of(f"{query} ON l.k = h.k")
        kinds = {type(node) for node in n.walk(join_of(plan).right)}
        assert kinds <= {n.Project, n.Scan}


def test_condition_on_the_version_is_applied_after_the_join() -> None:
    """A LEFT join keeps a row without a match, with NULL in place of the version."""
    on = "FOR SYSTEM_TIME AS OF l.ts AS h ON l.k = h.k AND h.v > 3 AND l.v = h.v"
    inner = plan_of(f"SELECT l.v, h.ts FROM l JOIN u {on}")
    assert any(isinstance(node, n.Filter) for node in n.walk(inner))
    left = plan_of(f"SELECT l.v, h.ts FROM l LEFT JOIN u {on}")
    assert not any(isinstance(node, n.Filter) for node in n.walk(left))
    for plan in (inner, left):
        join = join_of(optimize(plan))
        assert [pair.right.name for pair in join.key_pairs] == ["k_1"] and join.residual is None


@pytest.mark.parametrize(
    ("match", "delay_us"),
    [
        ("MATCH_CONDITION (l.ts >= r.ts)", 0),
        ("MATCH_CONDITION (l.ts >= r.ts - INTERVAL '2' SECOND)", 2 * SECOND),
        ("MATCH_CONDITION (l.ts <= r.ts) TOLERANCE INTERVAL '5' SECOND", 5 * SECOND),
        ("MATCH_CONDITION (l.ts <= r.ts AND l.ts > r.ts - INTERVAL '5' SECOND)", 5 * SECOND - 1),
    ],
)
def test_output_watermark_is_delayed_by_the_bounds(match: str, delay_us: int) -> None:
    join = join_of(plan_of(f"SELECT l.v, l.ts FROM l ASOF JOIN r {match} ON l.k = r.k"))
    assert kind_of(join).output_watermark_delay_us(join) == delay_us
