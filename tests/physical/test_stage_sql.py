"""The SQL of stages, and the arithmetic of window assignment."""

from __future__ import annotations

import re

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from tests.support.compiling import TESTS, accepted, compile_text
from tidegate.physical.stage_sql import SqlWriter, may_split_updates, output_sql, window_bounds
from tidegate.physical.stages import all_scans, all_stateful, plan_stages
from tidegate.plan import nodes as n
from tidegate.plan.rewrite.optimizer import optimize
from tidegate.sql.dialect import DIALECT

MINUTE = "INTERVAL '1' MINUTE"


def stage_sql(query: str) -> str:
    """Return the SQL of a plan whose leaves are views named like their sources."""
    plan = accepted(query)
    stage = plan_stages(plan)
    views: dict[n.Node, str] = {}
    for scan in stage.scans:
        assert isinstance(scan, n.Scan)
        views[scan] = scan.source.name
    for index, operator in enumerate(stage.stateful):
        views[operator.node] = f"operator_{index}"
    return output_sql(stage.node, views.get)


def test_struct_fields_have_the_names_of_the_query() -> None:
    """Struct fields do not have the ids of columns."""
    counted = "SELECT auction AS a, count(*) AS n FROM bids GROUP BY auction"
    sql = stage_sql(f"SELECT struct(a, c.n, n + 1, n AS m) AS s FROM ({counted}) AS c EMIT CHANGES")
    assert "STRUCT(`auction` AS `a`, `count` AS `n`, `count` + 1, `count` AS m)" in sql


@pytest.mark.parametrize(
    ("query", "sql"),
    [
        (
            "SELECT price * 2 AS twice FROM asks WHERE seller = 1",
            "SELECT `twice` AS `twice` FROM (SELECT `price` * 2 AS `twice` FROM "
            "(SELECT `auction`, `seller`, `price`, `ts` FROM (SELECT `auction` AS `auction`, "
            "`seller` AS `seller`, `price` AS `price`, `ts` AS `ts` FROM `asks`) WHERE `seller` = 1))",
        ),
        (
            "SELECT id FROM orders",
            "SELECT `id` AS `id`, _op FROM (SELECT `id` AS `id`, _op FROM (SELECT `id` AS `id`, "
            "`state` AS `state`, `ts` AS `ts`, _op FROM `orders`))",
        ),
        (
            "SELECT k FROM plain EMIT CHANGES",
            "SELECT `k` AS `k`, _op FROM (SELECT `k`, '+I' AS _op FROM (SELECT `k` AS `k` FROM "
            "(SELECT `k` AS `k`, `v` AS `v`, `ts` AS `ts` FROM `plain`)))",
        ),
        (
            "SELECT k FROM plain UNION ALL SELECT id FROM orders",
            "SELECT `k_1` AS `k`, _op FROM (SELECT `k` AS `k_1`, '+I' AS _op FROM (SELECT `k` AS `k` "
            "FROM (SELECT `k` AS `k`, `v` AS `v`, `ts` AS `ts` FROM `plain`)) UNION ALL "
            "SELECT `id` AS `k_1`, _op FROM (SELECT `id` AS `id`, _op FROM (SELECT `id` AS `id`, "
            "`state` AS `state`, `ts` AS `ts_1`, _op FROM `orders`)))",
        ),
        (
            "SELECT auction, t FROM bids LATERAL VIEW OUTER explode(tags) x AS t",
            "SELECT `auction` AS `auction`, `t` AS `t` FROM (SELECT `auction` AS `auction`, `t` AS `t` "
            "FROM (SELECT `auction`, `bidder`, `price`, `channel`, `ts`, `other`, `info`, `tags`, `t` "
            "FROM (SELECT `auction` AS `auction`, `bidder` AS `bidder`, `price` AS `price`, `channel` "
            "AS `channel`, `ts` AS `ts`, `other` AS `other`, `info` AS `info`, `tags` AS `tags` FROM "
            "`bids`) LATERAL VIEW OUTER EXPLODE(`tags`) generated AS `t`))",
        ),
        (
            f"SELECT window_end, n FROM (SELECT window_end, count(*) AS n FROM bids GROUP BY TUMBLE(ts, {MINUTE})) AS m WHERE n > 1",
            "SELECT `window_end` AS `window_end`, `count` AS `n` FROM (SELECT `window_end` AS `window_end`, "
            "`count` AS `count` FROM (SELECT `window_end`, `count` FROM (SELECT `window_end` AS "
            "`window_end`, `count` AS `count` FROM (SELECT `window_start` AS `window_start`, `window_end` "
            "AS `window_end`, `window_time` AS `window_time`, `count` AS `count` FROM `operator_0`)) "
            "WHERE `count` > 1))",
        ),
    ],
)
def test_stage_sql(query: str, sql: str) -> None:
    assert stage_sql(query) == sql


def test_names_with_backquotes_are_quoted() -> None:
    compiled = compile_text(
        "CREATE SOURCE s (`a``b` INT) WITH (connector = 'memory');"
        "CREATE STREAM t AS SELECT `a``b` AS `c d` FROM s;"
    )
    assert not compiled.errors
    plan = next(item for item in compiled.declared if item.name == "t").plan  # type: ignore[attr-defined]
    sql = output_sql(plan, lambda node: "s" if isinstance(node, n.Scan) else None)
    assert "SELECT `a``b` AS `a``b` FROM `s`" in sql
    assert sql.startswith("SELECT `a``b` AS `c d`")


def test_stage_ends_at_operators() -> None:
    stage = plan_stages(
        accepted(
            f"SELECT a.price FROM bids AS a JOIN (SELECT window_end, max(price) AS p FROM asks "
            f"GROUP BY TUMBLE(ts, {MINUTE})) AS b ON a.ts = b.window_end WHERE a.price > 1"
        )
    )
    assert [operator.name for operator in all_stateful(stage)] == [
        "interval_join",
        "window_aggregate",
    ]
    assert [type(scan) for scan in all_scans(stage)] == [n.Scan, n.Scan]
    assert stage.scans == ()


def test_numbers_sources_in_query_order() -> None:
    """Offsets are stored by the number of a source in the query."""
    counted = f"SELECT count(*) AS n FROM bids GROUP BY TUMBLE(ts, {MINUTE})"
    members = [counted, "SELECT price FROM asks"]
    for order, expected in ((members, ["bids", "asks"]), (members[::-1], ["asks", "bids"])):
        scans = all_scans(plan_stages(accepted(" UNION ALL ".join(order))))
        assert [scan.source.name for scan in scans if isinstance(scan, n.Scan)] == expected


@pytest.mark.parametrize(
    ("query", "stateless"),
    [
        (f"SELECT * FROM TUMBLE(bids, ts, {MINUTE})", True),
        (f"SELECT * FROM HOP(bids, ts, {MINUTE}, INTERVAL '1' HOUR)", True),
        (f"SELECT * FROM CUMULATE(bids, ts, {MINUTE}, INTERVAL '1' HOUR)", True),
        (f"SELECT * FROM SESSION(bids, ts, {MINUTE})", False),
        (f"SELECT * FROM TUMBLE(bids, PROCTIME(), {MINUTE})", False),
        (f"SELECT * FROM TUMBLE(bids, ts, {MINUTE}) EMIT ON WINDOW CLOSE", False),
        ("SELECT price FROM bids UNION ALL SELECT price FROM asks", True),
        ("SELECT price, ts FROM bids UNION SELECT price, ts FROM asks", False),
        ("SELECT k FROM history WHERE k IN (SELECT v FROM history)", False),
    ],
)
def test_detects_queries_without_operators(query: str, stateless: bool) -> None:
    assert all(node.stateless for node in n.walk(accepted(query))) is stateless


@pytest.mark.parametrize(
    ("query", "may_lose_new_rows"),
    [
        ("SELECT currency, rate FROM rates EMIT ON UPDATE", False),
        ("SELECT currency, rate FROM rates WHERE rate > 1 EMIT ON UPDATE", True),
        ("SELECT * FROM TUMBLE(rates, ts, INTERVAL '1' MINUTE) EMIT ON UPDATE", True),
        (
            "WITH f AS (SELECT * FROM rates WHERE rate > 1) "
            "SELECT * FROM TUMBLE(f, ts, INTERVAL '1' MINUTE) EMIT ON UPDATE",
            True,
        ),
    ],
)
def test_detects_filters_that_may_separate_old_and_new_rows(
    query: str, may_lose_new_rows: bool
) -> None:
    plan = accepted(query)
    assert may_split_updates(plan) is may_lose_new_rows
    assert may_split_updates(optimize(plan)) is may_lose_new_rows


def test_prints_every_plan_for_type_analysis() -> None:
    """Type analysis sends whole plans to Spark, so every node must print as valid SQL."""
    for path in sorted(TESTS.glob("plans/*.sql")):
        for declared in compile_text(path.read_text("utf-8")).declared:
            plan = getattr(declared, "plan", None)
            if plan is None:
                continue
            leaves = (n.Scan, n.SideScan, n.LookupScan)
            writer = SqlWriter(lambda node: "leaf" if isinstance(node, leaves) else None)  # noqa: B023
            trees = DIALECT.parse(writer.write(plan))
            assert len(trees) == 1


# Window assignment, compared with its definition


def duckdb_windows(spec: n.WindowSpec) -> str:
    """Return the expression over _us that assigns windows, in the dialect of DuckDB."""
    text = re.sub(r"\b(\d+)L\b", r"\1::BIGINT", window_bounds(spec))
    text = text.replace("named_struct('s', ", "struct_pack(s := ").replace(", 'e', ", ", e := ")
    text = text.replace("explode(", "unnest(").replace("transform(", "list_transform(")
    text = text.replace("filter(", "list_filter(").replace("sequence(", "generate_series(")
    return re.sub(r"\b(\w) -> ", r"lambda \1: ", text.replace(" div ", " // "))


def assign_windows(spec: n.WindowSpec, moments: list[int]) -> dict[int, set[tuple[int, int]]]:
    connection = duckdb.connect()
    connection.execute("CREATE MACRO pmod(a, b) AS ((a % b) + b) % b")
    values = ", ".join(f"({moment}::BIGINT)" for moment in moments)
    rows = connection.execute(
        f"SELECT _us, w.s, w.e FROM (SELECT _us, {duckdb_windows(spec)} AS w "
        f"FROM (VALUES {values}) AS t (_us))"
    ).fetchall()
    found: dict[int, set[tuple[int, int]]] = {moment: set() for moment in moments}
    for moment, start, end in rows:
        found[moment].add((start, end))
    return found


MOMENTS = some.lists(some.integers(-(10**9), 10**9), min_size=1, max_size=20, unique=True)
SIZES = some.integers(1, 5_000)
OFFSETS = some.integers(-9_000, 9_000)


@given(MOMENTS, SIZES, OFFSETS)
@settings(max_examples=20, deadline=None)
def test_tumble_agrees_with_duckdb(moments: list[int], size: int, offset: int) -> None:
    spec = n.WindowSpec(n.WindowKind.TUMBLE, size, size, offset)
    for moment, windows in assign_windows(spec, moments).items():
        start = (moment - offset) // size * size + offset
        assert windows == {(start, start + size)}


@given(MOMENTS, SIZES, some.integers(0, 9), SIZES, OFFSETS)
@settings(max_examples=20, deadline=None)
def test_hop_agrees_with_duckdb(
    moments: list[int], slide: int, times: int, extra: int, offset: int
) -> None:
    size = slide + slide * times + extra % slide
    spec = n.WindowSpec(n.WindowKind.HOP, size, slide, offset)
    for moment, windows in assign_windows(spec, moments).items():
        last = (moment - offset) // slide * slide + offset
        assert windows == {(start, start + size) for start in range(last, moment - size, -slide)}


@given(MOMENTS, SIZES, some.integers(1, 10), OFFSETS)
@settings(max_examples=20, deadline=None)
def test_cumulate_agrees_with_duckdb(
    moments: list[int], step: int, times: int, offset: int
) -> None:
    size = step * times
    spec = n.WindowSpec(n.WindowKind.CUMULATE, size, step, offset)
    for moment, windows in assign_windows(spec, moments).items():
        base = (moment - offset) // size * size + offset
        ends = range(base + step, base + size + 1, step)
        assert windows == {(base, end) for end in ends if end > moment}


def test_session_starts_as_one_window_per_row() -> None:
    spec = n.WindowSpec(n.WindowKind.SESSION, 5, 5)
    assert assign_windows(spec, [-3, 7]) == {-3: {(-3, 2)}, 7: {(7, 12)}}
