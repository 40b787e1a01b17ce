"""Names, stars, scopes, event-time lineage and the properties of plans."""

from __future__ import annotations

import pytest
from sqlglot import exp

from tests.compiling import accepted, compile_with_sources, find, plan_of, refused
from tidegate.plan import nodes as n
from tidegate.plan.optimise import optimise
from tidegate.plan.scope import referenced
from tidegate.sql import expressions as ex
from tidegate.sql.dialect import to_sql
from tidegate.types import ChangelogKind

MINUTE = "INTERVAL '1' MINUTE"
SOON = "b.ts BETWEEN a.ts AND a.ts + INTERVAL '1' MINUTE"


def names(query: str, options: str = "") -> list[str]:
    return [item.name for item in accepted(query, options).fields]


def roles(query: str, options: str = "") -> dict[str, n.Role]:
    return {item.name: item.role for item in accepted(query, options).fields}


def codes(query: str) -> list[str]:
    return [error.code for error in refused(query)]


# Names


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("SELECT * FROM asks", ["auction", "seller", "price", "ts"]),
        ("SELECT a.* FROM asks AS a", ["auction", "seller", "price", "ts"]),
        ("SELECT * EXCEPT (ts, PRICE) FROM asks", ["auction", "seller"]),
        ("SELECT *, price * 2 AS twice FROM asks", ["auction", "seller", "price", "ts", "twice"]),
        ("SELECT x.q FROM (SELECT price AS q FROM asks) AS x", ["q"]),
        ("SELECT c FROM asks AS t (a, b, c, d)", ["c"]),
        ("SELECT PRICE, Seller FROM Asks", ["PRICE", "Seller"]),
        ("SELECT `price` AS `my price` FROM `asks`", ["my price"]),
        ("SELECT info.a, bids.info.b AS c FROM bids", ["a", "c"]),
        ("WITH x (p, q) AS (SELECT auction, price FROM asks) SELECT q, p FROM x", ["q", "p"]),
        ("WITH asks AS (SELECT price FROM asks) SELECT * FROM asks", ["price"]),
        ("WITH x AS (SELECT 1 AS a), y AS (SELECT a + 1 AS b FROM x) SELECT b FROM y", ["b"]),
        ("SELECT auction FROM bids UNION ALL SELECT seller FROM asks", ["auction"]),
        ("SELECT * FROM VALUES (1, 2) AS v (a, b)", ["a", "b"]),
        ("SELECT t FROM bids LATERAL VIEW explode(tags) x AS t", ["t"]),
        ("SELECT x.t, auction FROM bids LATERAL VIEW explode(tags) x AS t", ["t", "auction"]),
        ("SELECT b.auction FROM bids AS b SEMI JOIN asks AS a ON a.ts = b.ts", ["auction"]),
    ],
)
def test_output_names(query: str, expected: list[str]) -> None:
    assert names(query) == expected


def test_using_merges_the_column() -> None:
    query = "SELECT * FROM (SELECT auction, ts FROM bids) AS b JOIN asks AS a USING (auction, ts)"
    assert names(query) == ["auction", "ts", "seller", "price"]


def test_using_goes_on_with_the_merged_column() -> None:
    query = (
        "SELECT auction, ts FROM (SELECT auction, ts FROM bids) AS a JOIN (SELECT auction, ts FROM "
        "asks) AS b USING (auction, ts) JOIN (SELECT auction, ts FROM bids) AS c USING (auction, ts)"
    )
    assert names(query) == ["auction", "ts"]


def test_a_cte_hides_a_source_from_all_but_itself() -> None:
    compiled = compile_with_sources(
        "CREATE STREAM s AS WITH bids AS (SELECT price FROM bids) SELECT * FROM bids; "
        "DROP SOURCE bids; "
        "CREATE STREAM t AS WITH later AS (SELECT k FROM later) SELECT k FROM later; "
        "CREATE SOURCE later (k INT) WITH (connector = 'memory');"
    )
    assert [error.code for error in compiled.errors] == ["TG-204"]


@pytest.mark.parametrize(
    ("query", "code", "message"),
    [
        ("SELECT nope FROM bids", "TG-301", "there is no column nope"),
        ("SELECT b.nope FROM bids AS b", "TG-301", "b has no column nope"),
        ("SELECT bids.price FROM bids AS b", "TG-301", "there is no column bids.price"),
        ("SELECT p FROM bids WHERE p > 1", "TG-301", "there is no column p"),
        ("SELECT a.* FROM bids AS b", "TG-301", "a.*: there is no table a"),
        (f"SELECT price FROM bids AS b JOIN asks AS a ON {SOON}", "TG-302", "of b or of a"),
        ("SELECT a.x FROM bids AS b ANTI JOIN asks AS a ON a.ts = b.ts", "TG-301", "column a.x"),
        ("SELECT x FROM (SELECT price FROM bids)", "TG-301", "there is no column x"),
        ("WITH x AS (SELECT * FROM y), y AS (SELECT 1 AS a) SELECT a FROM x", "TG-201", "table y"),
        ("SELECT 1 AS a, 2 AS A", "TG-308", "two columns of the result are named A"),
    ],
)
def test_names_that_are_not_there(query: str, code: str, message: str) -> None:
    errors = refused(query)
    assert code in {error.code for error in errors}
    assert any(message in error.message for error in errors)


def test_a_query_reports_all_its_unknown_names() -> None:
    errors = refused("SELECT u FROM bids WHERE v = 1 GROUP BY w HAVING x > 1 ORDER BY y")
    assert [error.message[-1] for error in errors] == ["u", "v", "w", "x", "y"]


def test_later_columns_may_use_earlier_aliases_and_keep_their_meaning() -> None:
    plan = accepted("SELECT price + 1 AS p, p * 2 AS q, -p AS r FROM bids")
    project = find(plan, n.Project)
    assert isinstance(project, n.Project)
    texts = [expression.sql(dialect="spark") for expression in project.expressions]
    assert texts == ["`price` + 1", "(`price` + 1) * 2", "-(`price` + 1)"]


def test_a_column_wins_over_an_alias_of_the_same_name() -> None:
    plan = accepted("SELECT seller AS price, price * 2 AS twice FROM asks")
    project = find(plan, n.Project)
    assert isinstance(project, n.Project)
    assert referenced(project.expressions[1]) == {"price"}


def test_lambda_variables_are_no_columns() -> None:
    accepted(
        "SELECT transform(tags, t -> upper(t)) AS x, filter(tags, price -> true) AS y FROM bids"
    )


def test_ids_are_unique_where_a_source_is_read_twice() -> None:
    plan = accepted(f"SELECT a.price, b.price AS p FROM bids AS a JOIN bids AS b ON {SOON}")
    join = find(plan, n.Join)
    ids = [item.id for item in join.fields]
    assert len(set(ids)) == len(ids) == 16


def test_a_bare_window_end_is_that_of_group_by() -> None:
    compiled = compile_with_sources(
        f"CREATE STREAM m AS SELECT window_start, window_end, window_time, count(*) AS n FROM bids "
        f"GROUP BY TUMBLE(ts, {MINUTE}); "
        "CREATE STREAM s AS SELECT window_start, window_end, sum(n) AS n FROM m "
        "GROUP BY TUMBLE(window_time, INTERVAL '1' HOUR);"
    )
    assert not compiled.errors
    end = plan_of(compiled, "s").fields[1]
    assert end.window is not None
    assert str(end.window) == "TUMBLE(1 h)"


def test_group_by_the_same_twice_is_one_key() -> None:
    plan = accepted(
        "SELECT auction, count(*) AS n FROM bids GROUP BY auction, 1, auction EMIT CHANGES"
    )
    aggregate = find(plan, n.Aggregate)
    assert isinstance(aggregate, n.Aggregate)
    assert len(aggregate.keys) == 1


def test_order_by_a_qualified_column_is_not_the_alias() -> None:
    plan = accepted("SELECT v AS k, h.k AS j FROM history AS h ORDER BY h.k")
    sort = find(plan, n.Sort)
    assert isinstance(sort, n.Sort)
    assert sort.field(next(iter(referenced(sort.order[0])))).name == "j"


@pytest.mark.parametrize(
    ("query", "position"),
    [
        ("SELECT k, v FROM history ORDER BY 2", "v"),
        ("SELECT k, v FROM history UNION ALL SELECT v, k FROM history ORDER BY 2 DESC", "v"),
    ],
)
def test_order_by_position(query: str, position: str) -> None:
    sort = find(accepted(query), n.Sort)
    assert isinstance(sort, n.Sort)
    assert sort.field(next(iter(referenced(sort.order[0])))).name == position


def test_except_is_not_associative() -> None:
    left = "SELECT k FROM history EXCEPT SELECT v FROM history EXCEPT SELECT 1"
    right = "SELECT k FROM history EXCEPT (SELECT v FROM history EXCEPT SELECT 1)"
    flat = find(accepted(left), n.SetOperation)
    assert len(flat.inputs) == 3
    nested = [node for node in n.walk(accepted(right)) if isinstance(node, n.SetOperation)]
    assert [len(node.inputs) for node in nested] == [2, 2]


def test_statements_may_stand_in_any_order() -> None:
    compiled = compile_with_sources(
        "CREATE SINK out FROM two WITH (connector = 'console'); "
        "CREATE STREAM two AS SELECT price FROM one; CREATE STREAM three AS SELECT reason FROM bad; "
        "CREATE STREAM four AS SELECT auction FROM late_bids; "
        "CREATE STREAM one AS SELECT price FROM bids; "
        "CREATE SOURCE more (k INT) WITH (connector = 'memory', dead_letters = 'bad'); "
        f"CREATE STREAM five AS SELECT window_end, count(*) AS n FROM bids GROUP BY TUMBLE(ts, {MINUTE}) "
        "EMIT ON WINDOW CLOSE LATE DATA TO late_bids;"
    )
    assert not compiled.errors


def test_a_stream_that_reads_its_own_late_rows_is_a_cycle() -> None:
    compiled = compile_with_sources(
        f"CREATE STREAM s AS SELECT window_end, count(*) AS n FROM late GROUP BY TUMBLE(ts, {MINUTE}) "
        "EMIT ON WINDOW CLOSE LATE DATA TO late;"
    )
    assert [error.code for error in compiled.errors] == ["TG-203"]


# Event time


def test_the_event_time_is_passed_on_by_name_only() -> None:
    found = roles("SELECT ts, ts AS at, other, ts + INTERVAL '1' SECOND AS later FROM bids")
    assert [found[name] for name in ("ts", "at")] == [n.Role.TIME] * 2
    assert [found[name] for name in ("other", "later")] == [n.Role.PLAIN] * 2


def test_windows_have_times() -> None:
    found = roles(
        f"SELECT window_start, window_end, window_time, ts FROM TUMBLE(bids, ts, {MINUTE})"
    )
    assert list(found.values()) == [
        n.Role.WINDOW_START,
        n.Role.WINDOW_END,
        n.Role.TIME,
        n.Role.TIME,
    ]


def test_groups_keep_the_times_they_are_grouped_by() -> None:
    query = f"SELECT window_end, max(ts) AS last FROM bids GROUP BY TUMBLE(ts, {MINUTE})"
    assert roles(query) == {"window_end": n.Role.WINDOW_END, "last": n.Role.PLAIN}
    assert roles("SELECT ts, count(*) AS n FROM bids GROUP BY ts")["ts"] is n.Role.TIME


@pytest.mark.parametrize(
    ("join", "left", "right"),
    [
        (f"JOIN asks AS b ON {SOON}", n.Role.TIME, n.Role.TIME),
        (f"LEFT JOIN asks AS b ON {SOON}", n.Role.TIME, n.Role.PLAIN),
        (f"RIGHT JOIN asks AS b ON {SOON}", n.Role.PLAIN, n.Role.TIME),
        (f"FULL JOIN asks AS b ON {SOON}", n.Role.PLAIN, n.Role.PLAIN),
        ("JOIN asks AS b ON a.auction = b.auction", n.Role.PLAIN, n.Role.PLAIN),
        (
            "ASOF JOIN asks AS b MATCH_CONDITION (a.ts >= b.ts) ON a.auction = b.auction",
            n.Role.TIME,
            n.Role.PLAIN,
        ),
        (
            "JOIN rates FOR SYSTEM_TIME AS OF a.ts AS b ON a.channel = b.currency",
            n.Role.TIME,
            n.Role.PLAIN,
        ),
    ],
)
def test_joins_keep_time_where_it_still_means_something(
    join: str, left: n.Role, right: n.Role
) -> None:
    found = roles(f"SELECT a.ts AS l, b.ts AS r FROM bids AS a {join}", "state_ttl = '1 h'")
    assert found == {"l": left, "r": right}


def test_a_union_has_a_time_if_all_its_members_do() -> None:
    assert roles("SELECT ts FROM bids UNION ALL SELECT ts FROM asks") == {"ts": n.Role.TIME}
    assert roles("SELECT ts FROM bids UNION ALL SELECT ts FROM plain") == {"ts": n.Role.PLAIN}


def field_of(query: str, name: str) -> n.Field:
    return next(item for item in accepted(query).fields if item.name == name)


def test_what_is_on_time_and_what_closes() -> None:
    tumble = f"SELECT * FROM TUMBLE(bids, ts, {MINUTE})"
    session = f"SELECT * FROM SESSION(bids, ts, {MINUTE})"
    clock = f"SELECT * FROM TUMBLE(bids, PROCTIME(), {MINUTE})"
    assert [field_of(tumble, name).on_time for name in ("window_start", "window_end")] == [
        False,
        True,
    ]
    assert field_of(tumble, "window_start").closes
    assert not field_of(session, "window_start").closes
    assert field_of(session, "window_end").closes
    assert not field_of(clock, "window_time").on_time
    assert field_of(clock, "window_end").closes
    assert not field_of(tumble, "other").closes


# Joins


@pytest.mark.parametrize(
    ("condition", "lower", "upper"),
    [
        (
            "a.ts BETWEEN b.ts - INTERVAL '1' SECOND AND b.ts + INTERVAL '2' SECOND",
            -1_000_000,
            2_000_000,
        ),
        (
            "b.ts BETWEEN a.ts - INTERVAL '1' SECOND AND a.ts + INTERVAL '2' SECOND",
            -2_000_000,
            1_000_000,
        ),
        ("a.ts > b.ts AND a.ts < b.ts + INTERVAL '1' SECOND", 1, 999_999),
        ("a.ts - INTERVAL '1' SECOND <= b.ts AND b.ts <= a.ts", 0, 1_000_000),
        ("a.ts = b.ts", 0, 0),
        ("a.ts + INTERVAL '1' SECOND = b.ts - INTERVAL '1' SECOND", -2_000_000, -2_000_000),
        (
            "a.ts BETWEEN b.ts AND b.ts + INTERVAL '9' SECOND AND a.ts <= b.ts + INTERVAL '1' SECOND",
            0,
            1_000_000,
        ),
    ],
)
def test_the_bounds_of_an_interval_join(condition: str, lower: int, upper: int) -> None:
    plan = accepted(
        f"SELECT a.price FROM bids AS a JOIN asks AS b ON a.auction = b.auction AND {condition}"
    )
    join = find(plan, n.Join)
    assert isinstance(join, n.Join)
    assert join.kind is n.JoinKind.INTERVAL
    assert join.bounds is not None
    assert (join.bounds.lower_us, join.bounds.upper_us) == (lower, upper)
    assert join.residual is None


def test_the_start_of_a_window_bounds_a_join_by_its_end() -> None:
    plan = accepted(
        f"SELECT a.price FROM asks AS a JOIN TUMBLE(bids, ts, {MINUTE}) AS w "
        "ON a.ts >= w.window_start AND a.ts < w.window_end"
    )
    join = find(plan, n.Join)
    assert isinstance(join, n.Join)
    assert join.bounds is not None
    assert join.right.field(join.bounds.right_id).role is n.Role.WINDOW_END
    assert (join.bounds.lower_us, join.bounds.upper_us) == (-60_000_000, -1)


@pytest.mark.parametrize(
    ("tables", "kind"),
    [
        (f"bids AS a JOIN asks AS b ON {SOON}", n.JoinKind.INTERVAL),
        (f"bids AS a, asks AS b WHERE {SOON}", n.JoinKind.INTERVAL),
        ("bids AS a JOIN asks AS b ON a.auction = b.auction", n.JoinKind.REGULAR),
        (
            f"bids AS a LEFT JOIN asks AS b ON a.auction = b.auction WHERE {SOON}",
            n.JoinKind.REGULAR,
        ),
        (
            f"TUMBLE(bids, ts, {MINUTE}) AS a JOIN TUMBLE(asks, ts, {MINUTE}) AS b "
            "ON a.window_end = b.window_end",
            n.JoinKind.WINDOW,
        ),
        (
            f"SESSION(bids, ts, {MINUTE}) AS a JOIN SESSION(asks, ts, {MINUTE}) AS b "
            "ON a.window_end = b.window_end AND a.window_start = b.window_start",
            n.JoinKind.WINDOW,
        ),
        ("bids AS a JOIN customers AS b ON a.bidder = b.id", n.JoinKind.LOOKUP),
        (
            "bids AS a JOIN rates FOR SYSTEM_TIME AS OF a.ts AS b ON a.channel = b.currency",
            n.JoinKind.TEMPORAL,
        ),
        (
            "bids AS a ASOF JOIN asks AS b ON a.auction = b.auction AND a.ts >= b.ts",
            n.JoinKind.ASOF,
        ),
    ],
)
def test_the_kind_of_a_join(tables: str, kind: n.JoinKind) -> None:
    join = find(accepted(f"SELECT 1 AS one FROM {tables}", "state_ttl = '1 h'"), n.Join)
    assert isinstance(join, n.Join)
    assert join.kind is kind


@pytest.mark.parametrize(
    "query",
    [
        "SELECT price FROM bids WHERE rand() BETWEEN 0.25 AND 0.75",
        "SELECT price FROM bids WHERE price > 1 AND (rand() * price) BETWEEN 1 AND auction",
        "SELECT price FROM bids WHERE rand() BETWEEN price AND auction AND channel = 'web'",
    ],
)
def test_a_random_value_between_two_is_drawn_once(query: str) -> None:
    plan = accepted(query)
    for shown in (plan, optimise(plan)):
        (condition,) = [node.condition for node in n.walk(shown) if isinstance(node, n.Filter)]
        assert [name for name, _ in ex.calls(condition)] == ["RAND"]


def test_a_value_between_two_is_a_bound_of_each_side() -> None:
    pieces = ex.conjuncts(exp.column("price").between(exp.column("low"), exp.column("high")))
    assert [to_sql(piece) for piece in pieces] == ["price >= low", "price <= high"]


# Properties


def promise(query: str, options: str = "") -> tuple[str, list[str] | None]:
    """The changelog kind of a stream, and the names of its key."""
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
    assert promise(query) == (kind, key)


def test_regular_outer_joins_take_rows_back() -> None:
    join = "SELECT a.price FROM bids AS a {} JOIN asks AS b ON a.auction = b.auction"
    for how, kind in (
        ("INNER", "append"),
        ("SEMI", "append"),
        ("LEFT", "changelog"),
        ("ANTI", "changelog"),
    ):
        assert promise(join.format(how), "state_ttl = '1 h'")[0] == kind


@pytest.mark.parametrize(
    ("query", "bounded", "watermark"),
    [
        ("SELECT * FROM bids", False, True),
        ("SELECT * FROM plain", False, False),
        ("SELECT * FROM history", True, False),
        ("SELECT ts FROM bids UNION ALL SELECT ts FROM history", False, True),
        ("SELECT ts FROM bids UNION ALL SELECT ts FROM plain", False, False),
        ("SELECT b.ts, c.name FROM bids AS b JOIN customers AS c ON b.bidder = c.id", False, True),
        ("SELECT 1 AS one", True, False),
    ],
)
def test_boundedness_and_watermark(query: str, bounded: bool, watermark: bool) -> None:
    plan = accepted(query)
    assert (plan.bounded, plan.has_watermark) == (bounded, watermark)


@pytest.mark.parametrize(
    ("query", "kind", "state"),
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
def test_what_bounds_the_state(query: str, kind: type[n.Node], state: str) -> None:
    plan = accepted(query, "state_ttl = '1 hour'")
    assert find(plan, kind).state_bound == state


def test_stateless_plans_keep_nothing() -> None:
    plan = accepted(
        f"SELECT price + 1 AS p FROM TUMBLE(bids, ts, {MINUTE}) LATERAL VIEW explode(tags) t AS x "
        "WHERE price > 1 UNION ALL SELECT price FROM asks"
    )
    assert {node.state_bound for node in n.walk(plan)} == {None}


def test_upserts_become_changelogs_except_as_versions() -> None:
    def normalized(query: str) -> bool:
        return any(isinstance(node, n.Normalize) for node in n.walk(accepted(query)))

    assert normalized("SELECT currency, rate * 2 AS twice FROM rates")
    assert not normalized(
        "SELECT b.price FROM bids AS b JOIN rates FOR SYSTEM_TIME AS OF b.ts AS r ON b.channel = r.currency"
    )
    assert normalized("SELECT avg(rate) AS x FROM rates EMIT CHANGES")
    assert normalized("SELECT currency FROM rates WHERE rate > 1")
    assert normalized("SELECT currency, rate FROM rates EMIT CHANGES")


def test_volatile_values_are_traced_through_streams() -> None:
    compiled = compile_with_sources(
        "CREATE STREAM marked AS SELECT auction, rand() AS mark, ts FROM bids; "
        "CREATE STREAM s AS SELECT mark * 2 AS twice, auction FROM marked;"
    )
    assert not compiled.errors
    assert [item.volatile for item in plan_of(compiled, "s").fields] == [True, False]


def test_changelog_kinds_are_those_of_the_design() -> None:
    assert [kind.value for kind in ChangelogKind] == ["append", "upsert", "changelog"]
