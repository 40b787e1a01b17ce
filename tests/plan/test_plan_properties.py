"""Properties of plans: changelog kind, key, bounds of state, late rows."""

from __future__ import annotations

import pytest

from tests.support.compiling import accepted, compile_with_sources, find, plan_of
from tidegate.plan import nodes as n
from tidegate.types import ChangelogKind

MINUTE = "INTERVAL '1' MINUTE"
SOON = "b.ts BETWEEN a.ts AND a.ts + INTERVAL '1' MINUTE"


def changelog_and_key(query: str, options: str = "") -> tuple[str, list[str] | None]:
    """Return the changelog kind of a stream and the names of its key."""
    plan = accepted(query, options)
    key = None if plan.key is None else [plan.field(column).name for column in plan.key]
    return plan.changelog.value, key


@pytest.mark.parametrize(
    ("query", "kind", "key"),
    [
        ("SELECT price FROM bids", "append", None),
        ("SELECT price FROM bids EMIT CHANGES", "changelog", None),
        ("SELECT * FROM rates", "changelog", ["currency"]),
        ("SELECT rate FROM rates", "changelog", None),
        ("SELECT currency FROM rates WHERE currency > 'B'", "changelog", ["currency"]),
        ("SELECT currency FROM rates WHERE rate > 1", "changelog", ["currency"]),
        ("SELECT currency, rate FROM rates EMIT CHANGES", "changelog", ["currency"]),
        ("SELECT currency, explode(array(1, 2)) AS x FROM rates", "changelog", None),
        ("SELECT id FROM orders", "changelog", None),
        (
            "SELECT auction AS a, count(*) AS n FROM bids GROUP BY auction EMIT ON UPDATE",
            "upsert",
            ["a"],
        ),
        ("SELECT count(*) AS n FROM bids EMIT ON UPDATE", "upsert", []),
        (
            "SELECT auction, count(*) AS n FROM bids GROUP BY auction EMIT CHANGES",
            "changelog",
            ["auction"],
        ),
        ("SELECT count(*) AS n FROM bids GROUP BY auction EMIT CHANGES", "changelog", None),
        (
            f"SELECT window_end, count(*) AS n FROM bids GROUP BY TUMBLE(ts, {MINUTE})",
            "append",
            ["window_end"],
        ),
        (
            f"SELECT window_start, window_end, count(*) AS n FROM bids GROUP BY SESSION(ts, {MINUTE}) "
            "EMIT ON UPDATE",
            "upsert",
            ["window_start", "window_end"],
        ),
        (
            f"SELECT window_end, count(*) AS n FROM bids GROUP BY SESSION(ts, {MINUTE}) EMIT CHANGES",
            "changelog",
            None,
        ),
        (
            f"SELECT window_end, count(*) AS n FROM bids GROUP BY TUMBLE(ts, {MINUTE}) "
            "EMIT ON WINDOW CLOSE ALLOW LATENESS INTERVAL '1' HOUR",
            "changelog",
            ["window_end"],
        ),
        ("SELECT price FROM bids UNION ALL SELECT id FROM orders", "changelog", None),
        ("SELECT k, count(*) AS n FROM history GROUP BY k", "append", ["k"]),
        ("SELECT a.k FROM history AS a LEFT JOIN history AS b ON a.k = b.k", "append", None),
        (
            "SELECT price FROM bids QUALIFY row_number() OVER (PARTITION BY auction ORDER BY ts) <= 2",
            "changelog",
            None,
        ),
        (
            "SELECT auction FROM bids QUALIFY row_number() OVER (PARTITION BY auction ORDER BY ts) = 1",
            "changelog",
            ["auction"],
        ),
        (
            f"SELECT price FROM TUMBLE(bids, ts, {MINUTE}) QUALIFY "
            "row_number() OVER (PARTITION BY window_end ORDER BY price) <= 2",
            "append",
            None,
        ),
    ],
)
def test_changelog_kind_and_key(query: str, kind: str, key: list[str] | None) -> None:
    assert changelog_and_key(query) == (kind, key)


def test_regular_outer_and_anti_joins_are_changelogs() -> None:
    join = "SELECT a.price FROM bids AS a {} JOIN asks AS b ON a.auction = b.auction"
    for how, kind in (
        ("INNER", "append"),
        ("SEMI", "append"),
        ("LEFT", "changelog"),
        ("ANTI", "changelog"),
    ):
        assert changelog_and_key(join.format(how), "state_ttl = '1 h'")[0] == kind


@pytest.mark.parametrize(
    ("query", "bounded", "watermark"),
    [
        ("SELECT * FROM bids", False, True),
        ("SELECT * FROM plain", False, False),
        ("SELECT * FROM history", True, False),
        ("SELECT ts FROM bids UNION ALL SELECT ts FROM history", False, True),
        ("SELECT ts FROM bids UNION ALL SELECT ts FROM plain", False, False),
        ("SELECT b.ts, c.name FROM bids AS b JOIN customers AS c ON b.bidder = c.id", False, True),
    ],
)
def test_boundedness_and_watermark(query: str, bounded: bool, watermark: bool) -> None:
    plan = accepted(query)
    assert (plan.bounded, plan.has_watermark) == (bounded, watermark)


@pytest.mark.parametrize(
    ("query", "kind", "description"),
    [
        (
            "SELECT count(*) AS n FROM bids EMIT CHANGES",
            n.Aggregate,
            "one entry per group for 1 h (state_ttl)",
        ),
        (
            f"SELECT count(*) AS n FROM plain GROUP BY TUMBLE(ts, {MINUTE}) EMIT CHANGES",
            n.Aggregate,
            "one entry per group for 1 h (state_ttl)",
        ),
        (
            f"SELECT count(*) AS n FROM bids GROUP BY TUMBLE(PROCTIME(), {MINUTE})",
            n.Aggregate,
            "one entry per group and open window, until the clock passes its end",
        ),
        (
            f"SELECT count(*) AS n FROM history GROUP BY TUMBLE(ts, {MINUTE})",
            n.Aggregate,
            "one entry per group and open window, until the input ends",
        ),
        ("SELECT DISTINCT auction FROM bids", n.Distinct, "rows for 1 h (state_ttl)"),
        (
            "SELECT a.price FROM bids AS a JOIN asks AS b ON a.auction = b.auction",
            n.Join,
            "rows of both sides for 1 h (state_ttl)",
        ),
        (
            f"SELECT a.price FROM bids AS a JOIN asks AS b ON {SOON}",
            n.Join,
            "left rows for 1 min, right rows for 0 s of event time",
        ),
        (
            "SELECT price FROM bids QUALIFY row_number() OVER (ORDER BY price) <= 3",
            n.TopN,
            "the first rows of each partition for 1 h (state_ttl)",
        ),
        (
            "SELECT id FROM orders QUALIFY row_number() OVER (ORDER BY id) <= 3",
            n.TopN,
            "the rows of each partition for 1 h (state_ttl)",
        ),
        (
            "SELECT o.id FROM orders AS o LEFT JOIN asks AS a ON o.id = a.auction AND o.ts BETWEEN "
            "a.ts - INTERVAL '2' MINUTE AND a.ts + INTERVAL '1' MINUTE",
            n.Join,
            "left rows for 2 min, right rows for 3 min of event time",
        ),
        (
            "SELECT b.price FROM bids AS b LEFT JOIN asks AS a ON b.auction = a.auction AND b.ts "
            "BETWEEN a.ts - INTERVAL '2' MINUTE AND a.ts + INTERVAL '1' MINUTE",
            n.Join,
            "left rows for 2 min, right rows for 1 min of event time",
        ),
    ],
)
def test_state_bound_is_described(query: str, kind: type[n.Node], description: str) -> None:
    plan = accepted(query, "state_ttl = '1 hour'")
    assert find(plan, kind).state_bound == description


def test_stateless_plans_have_no_state_bound() -> None:
    plan = accepted(
        f"SELECT price + 1 AS p FROM TUMBLE(bids, ts, {MINUTE}) LATERAL VIEW explode(tags) t AS x "
        "WHERE price > 1 UNION ALL SELECT price FROM asks"
    )
    assert {node.state_bound for node in n.walk(plan)} == {None}


def test_normalizes_upserts_except_as_versions() -> None:
    def normalized(query: str) -> bool:
        return any(isinstance(node, n.Normalize) for node in n.walk(accepted(query)))

    assert normalized("SELECT currency, rate * 2 AS twice FROM rates")
    assert not normalized(
        "SELECT b.price FROM bids AS b JOIN rates FOR SYSTEM_TIME AS OF b.ts AS r ON b.channel = r.currency"
    )
    assert normalized("SELECT avg(rate) AS x FROM rates EMIT CHANGES")
    assert normalized("SELECT currency FROM rates WHERE rate > 1")
    assert normalized("SELECT currency, rate FROM rates EMIT CHANGES")


def test_volatile_columns_stay_volatile_through_streams() -> None:
    compiled = compile_with_sources(
        "CREATE STREAM marked AS SELECT auction, rand() AS mark, ts FROM bids; "
        "CREATE STREAM s AS SELECT mark * 2 AS twice, auction FROM marked;"
    )
    assert not compiled.errors
    assert [item.volatile for item in plan_of(compiled, "s").fields] == [True, False]


def test_changelog_kind_values() -> None:
    assert [kind.value for kind in ChangelogKind] == ["append", "upsert", "changelog"]


@pytest.mark.parametrize(
    "query",
    [
        "SELECT p.id, q.id AS other FROM u p JOIN w q ON p.h = q.h AND p.v < q.v",
        "SELECT p.id, q.id AS other FROM u p, w q WHERE p.h = q.h AND p.v < q.v",
        "SELECT p.id, q.id AS other FROM u p JOIN w q ON TRUE",
        "SELECT id, h, v FROM u UNION SELECT id, h, v FROM w",
        "SELECT id, v FROM u ORDER BY v LIMIT 3 OFFSET 1",
        "SELECT h, count(*) AS n FROM (SELECT h FROM u UNION ALL SELECT h FROM w) GROUP BY h",
    ],
)
def test_operators_never_read_bare_upserts(query: str) -> None:
    compiled = compile_with_sources(
        "CREATE SOURCE u (id INT PRIMARY KEY, h STRING, v INT) WITH (connector = 'memory');\n"
        "CREATE SOURCE w (id INT PRIMARY KEY, h STRING, v INT) WITH (connector = 'memory');\n"
        f"CREATE STREAM r WITH (state_ttl = '1 day') AS {query} EMIT CHANGES;"
    )
    assert not compiled.errors, compiled.errors
    for node in n.walk(plan_of(compiled, "r")):
        rows_only = isinstance(node, n.Normalize | n.Project | n.Filter)
        for child in node.inputs:
            assert rows_only or child.changelog is not ChangelogKind.UPSERT, node.label()


@pytest.mark.parametrize(
    ("columns", "holds_union"),
    [("ts, window_end", True), ("window_end", True), ("ts", False), ("window_time", False)],
)
def test_hold_above_a_union_waits_for_the_window_if_its_end_is_selected(
    columns: str, holds_union: bool
) -> None:
    """If the end of the window is not selected, each member holds its own rows."""
    members = (f"SELECT {columns} FROM TUMBLE({name}, ts, {MINUTE})" for name in ("bids", "asks"))
    plan = accepted(f"{' UNION ALL '.join(members)} EMIT ON WINDOW CLOSE")
    holds = [node for node in n.walk(plan) if isinstance(node, n.Hold)]
    assert all(hold.spec is not None for hold in holds)
    assert [isinstance(hold.input, n.SetOperation) for hold in holds] == (
        [True] if holds_union else [False] * 2
    )
