"""Binding: names, stars, scopes, and the lineage of event time."""

from __future__ import annotations

import pytest

from tests.support.compiling import accepted, compile_with_sources, find, plan_of, rejected
from tidegate.plan import nodes as n
from tidegate.plan.bind.scope import referenced_ids
from tidegate.sql.dialect import to_sql

MINUTE = "INTERVAL '1' MINUTE"
SOON = "b.ts BETWEEN a.ts AND a.ts + INTERVAL '1' MINUTE"


def names(query: str, options: str = "") -> list[str]:
    return [item.name for item in accepted(query, options).fields]


def roles(query: str, options: str = "") -> dict[str, n.Role]:
    return {item.name: item.role for item in accepted(query, options).fields}


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
        (
            "WITH x AS (SELECT k AS a FROM plain), y AS (SELECT a + 1 AS b FROM x) SELECT b FROM y",
            ["b"],
        ),
        ("SELECT auction FROM bids UNION ALL SELECT seller FROM asks", ["auction"]),
        ("SELECT t FROM bids LATERAL VIEW explode(tags) x AS t", ["t"]),
        ("SELECT x.t, auction FROM bids LATERAL VIEW explode(tags) x AS t", ["t", "auction"]),
        ("SELECT b.auction FROM bids AS b SEMI JOIN asks AS a ON a.ts = b.ts", ["auction"]),
    ],
)
def test_output_names(query: str, expected: list[str]) -> None:
    assert names(query) == expected


def test_using_merges_columns() -> None:
    query = "SELECT * FROM (SELECT auction, ts FROM bids) AS b JOIN asks AS a USING (auction, ts)"
    assert names(query) == ["auction", "ts", "seller", "price"]


def test_second_using_refers_to_the_merged_column() -> None:
    query = (
        "SELECT auction, ts FROM (SELECT auction, ts FROM bids) AS a JOIN (SELECT auction, ts FROM "
        "asks) AS b USING (auction, ts) JOIN (SELECT auction, ts FROM bids) AS c USING (auction, ts)"
    )
    assert names(query) == ["auction", "ts"]


def test_cte_hides_a_source_except_in_its_own_query() -> None:
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
        ("SELECT nope FROM bids", "TG-301", "column nope does not exist"),
        ("SELECT b.nope FROM bids AS b", "TG-301", "b has no column nope"),
        ("SELECT bids.price FROM bids AS b", "TG-301", "column bids.price does not exist"),
        ("SELECT p FROM bids WHERE p > 1", "TG-301", "column p does not exist"),
        ("SELECT a.* FROM bids AS b", "TG-301", "a.*: table a does not exist"),
        (f"SELECT price FROM bids AS b JOIN asks AS a ON {SOON}", "TG-302", "of b or of a"),
        ("SELECT a.x FROM bids AS b ANTI JOIN asks AS a ON a.ts = b.ts", "TG-301", "column a.x"),
        ("SELECT x FROM (SELECT price FROM bids)", "TG-301", "column x does not exist"),
        (
            "WITH x AS (SELECT * FROM y), y AS (SELECT k FROM plain) SELECT k FROM x",
            "TG-201",
            "table y",
        ),
        ("SELECT 1 AS a, 2 AS A FROM bids", "TG-308", "two columns of the result are named A"),
    ],
)
def test_reports_unknown_and_ambiguous_names(query: str, code: str, message: str) -> None:
    errors = rejected(query)
    assert code in {error.code for error in errors}
    assert any(message in error.message for error in errors)


RANKED = "(SELECT auction, row_number() OVER (PARTITION BY auction ORDER BY ts) AS r FROM asks)"
HIGHEST = f"(SELECT max(r) FROM {RANKED})"


@pytest.mark.parametrize(
    "query",
    [
        f"SELECT price FROM bids WHERE auction IN (SELECT auction FROM {RANKED} WHERE r = 1)",
        f"SELECT price FROM bids WHERE price > {HIGHEST}",
        "SELECT (SELECT max(e) FROM (SELECT explode(array(price)) AS e FROM asks)) AS m FROM bids",
        f"SELECT channel FROM bids GROUP BY channel HAVING sum(price) > {HIGHEST}",
        "SELECT channel, sum(price) - (SELECT avg(price) FROM asks) AS m FROM bids GROUP BY channel",
        "SELECT price FROM bids WHERE EXISTS (SELECT 1 FROM asks GROUP BY seller "
        "HAVING count(*) > (SELECT max(price) FROM asks))",
        "SELECT price FROM bids ORDER BY price % (SELECT max(price) FROM asks) LIMIT 3",
        "SELECT price % (SELECT max(price) FROM asks) AS m FROM bids ORDER BY m LIMIT 3",
    ],
)
def test_subquery_may_contain_over_and_aggregates(query: str) -> None:
    accepted(f"{query} EMIT CHANGES", "state_ttl = '1 day'")


def test_over_in_a_scalar_subquery_is_planned_once() -> None:
    plan = accepted(f"SELECT {HIGHEST} AS m FROM bids EMIT CHANGES", "state_ttl = '1 day'")
    assert [type(node) for node in n.walk(plan)].count(n.Over) == 1


def test_reports_all_unknown_names_of_a_query() -> None:
    errors = rejected("SELECT u FROM bids WHERE v = 1 GROUP BY w HAVING x > 1 ORDER BY y")
    assert [error.message.split()[1] for error in errors] == ["u", "v", "w", "x", "y"]


def test_later_columns_may_use_earlier_aliases() -> None:
    plan = accepted("SELECT price + 1 AS p, p * 2 AS q, -p AS r FROM bids")
    project = find(plan, n.Project)
    assert isinstance(project, n.Project)
    texts = [expression.sql(dialect="spark") for expression in project.expressions]
    assert texts == ["`price` + 1", "(`price` + 1) * 2", "-(`price` + 1)"]


def test_column_takes_precedence_over_alias() -> None:
    plan = accepted("SELECT seller AS price, price * 2 AS twice FROM asks")
    project = find(plan, n.Project)
    assert isinstance(project, n.Project)
    assert referenced_ids(project.expressions[1]) == {"price"}


def test_lambda_parameters_are_not_columns() -> None:
    accepted(
        "SELECT transform(tags, t -> upper(t)) AS x, filter(tags, price -> true) AS y FROM bids"
    )


def test_column_ids_are_unique_in_a_self_join() -> None:
    plan = accepted(f"SELECT a.price, b.price AS p FROM bids AS a JOIN bids AS b ON {SOON}")
    join = find(plan, n.Join)
    ids = [item.id for item in join.fields]
    assert len(set(ids)) == len(ids) == 16


def test_unqualified_window_end_refers_to_group_by() -> None:
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


def test_equal_group_by_expressions_are_one_key() -> None:
    plan = accepted(
        "SELECT auction, count(*) AS n FROM bids GROUP BY auction, 1, auction EMIT CHANGES"
    )
    aggregate = find(plan, n.Aggregate)
    assert isinstance(aggregate, n.Aggregate)
    assert len(aggregate.keys) == 1


def test_order_by_qualified_column_ignores_alias() -> None:
    plan = accepted("SELECT v AS k, h.k AS j FROM history AS h ORDER BY h.k")
    sort = find(plan, n.Sort)
    assert isinstance(sort, n.Sort)
    assert sort.field(next(iter(referenced_ids(sort.order[0])))).name == "j"


@pytest.mark.parametrize(
    ("query", "position"),
    [
        ("SELECT k, v FROM history ORDER BY 2", "v"),
        ("SELECT k, v FROM history UNION ALL SELECT v, k FROM history ORDER BY 2 DESC", "v"),
    ],
)
def test_order_by_position_refers_to_the_select_list(query: str, position: str) -> None:
    sort = find(accepted(query), n.Sort)
    assert isinstance(sort, n.Sort)
    assert sort.field(next(iter(referenced_ids(sort.order[0])))).name == position


def test_except_is_flattened_to_the_left_only() -> None:
    left = "SELECT k FROM history EXCEPT SELECT v FROM history EXCEPT SELECT 1 FROM history"
    right = "SELECT k FROM history EXCEPT (SELECT v FROM history EXCEPT SELECT 1 FROM history)"
    flat = find(accepted(left), n.SetOperation)
    assert len(flat.inputs) == 3
    nested = [node for node in n.walk(accepted(right)) if isinstance(node, n.SetOperation)]
    assert [len(node.inputs) for node in nested] == [2, 2]


def test_accepts_statements_in_any_order() -> None:
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


def test_rejects_a_stream_that_reads_its_own_late_rows() -> None:
    compiled = compile_with_sources(
        f"CREATE STREAM s AS SELECT window_end, count(*) AS n FROM late GROUP BY TUMBLE(ts, {MINUTE}) "
        "EMIT ON WINDOW CLOSE LATE DATA TO late;"
    )
    assert [error.code for error in compiled.errors] == ["TG-203"]


# Event time


def test_only_plain_columns_keep_the_event_time_role() -> None:
    role_of = roles("SELECT ts, ts AS at, other, ts + INTERVAL '1' SECOND AS later FROM bids")
    assert [role_of[name] for name in ("ts", "at")] == [n.Role.TIME] * 2
    assert [role_of[name] for name in ("other", "later")] == [n.Role.PLAIN] * 2


def test_window_columns_have_roles() -> None:
    role_of = roles(
        f"SELECT window_start, window_end, window_time, ts FROM TUMBLE(bids, ts, {MINUTE})"
    )
    assert list(role_of.values()) == [
        n.Role.WINDOW_START,
        n.Role.WINDOW_END,
        n.Role.TIME,
        n.Role.TIME,
    ]


def test_group_keys_keep_their_roles() -> None:
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
def test_event_time_roles_after_joins(join: str, left: n.Role, right: n.Role) -> None:
    role_of = roles(f"SELECT a.ts AS l, b.ts AS r FROM bids AS a {join}", "state_ttl = '1 h'")
    assert role_of == {"l": left, "r": right}


def test_union_has_event_time_if_all_members_have() -> None:
    assert roles("SELECT ts FROM bids UNION ALL SELECT ts FROM asks") == {"ts": n.Role.TIME}
    assert roles("SELECT ts FROM bids UNION ALL SELECT ts FROM plain") == {"ts": n.Role.PLAIN}


def field_of(query: str, name: str) -> n.Field:
    return next(item for item in accepted(query).fields if item.name == name)


def test_event_time_and_closing_columns_of_windows() -> None:
    tumble = f"SELECT * FROM TUMBLE(bids, ts, {MINUTE})"
    session = f"SELECT * FROM SESSION(bids, ts, {MINUTE})"
    clock = f"SELECT * FROM TUMBLE(bids, PROCTIME(), {MINUTE})"
    assert [field_of(tumble, name).is_event_time for name in ("window_start", "window_end")] == [
        False,
        True,
    ]
    assert field_of(tumble, "window_start").closed_by_watermark
    assert not field_of(session, "window_start").closed_by_watermark
    assert field_of(session, "window_end").closed_by_watermark
    assert not field_of(clock, "window_time").is_event_time
    assert field_of(clock, "window_end").closed_by_watermark
    assert not field_of(tumble, "other").closed_by_watermark


@pytest.mark.parametrize(
    ("call", "expanded"),
    [
        ("concat_ws(',', *)", "concat_ws(',', a, s)"),
        ("concat_ws(',', x.*)", "concat_ws(',', a, s)"),
        ("to_json(struct(*))", "to_json(struct(a, s))"),
        ("struct(* EXCEPT (a))", "struct(s)"),
        ("count(DISTINCT *)", "count(DISTINCT a, s)"),
        ("max(struct(x.*)) FILTER (WHERE a > 1)", "max(struct(a, s)) FILTER (WHERE a > 1)"),
    ],
)
def test_star_in_arguments_expands_to_columns(call: str, expanded: str) -> None:
    source = "CREATE SOURCE x (a INT, s STRUCT<b: INT, c: STRING>) WITH (connector = 'memory');"

    def expressions(call: str) -> list[str]:
        emit = " EMIT CHANGES" if "DISTINCT" in call or "max" in call else ""
        stream = f"CREATE STREAM r AS SELECT {call} AS f FROM x{emit};"
        compiled = compile_with_sources(f"{source}\n{stream}")
        assert not compiled.errors, compiled.errors
        nodes = n.walk(plan_of(compiled, "r"))
        trees = [part for node in nodes if isinstance(node, n.Project) for part in node.expressions]
        trees += [
            part for node in nodes if isinstance(node, n.Aggregate) for part in node.aggregates
        ]
        return [to_sql(part) for part in trees]

    assert expressions(call) == expressions(expanded)


def test_star_expands_to_fields_of_a_struct() -> None:
    source = "CREATE SOURCE x (a INT, s STRUCT<b: INT, c: STRING>) WITH (connector = 'memory');"
    stream = "CREATE STREAM r AS SELECT a, y.s.* EXCEPT (c) FROM x AS y;"
    plan = plan_of(compile_with_sources(f"{source}\n{stream}"), "r")
    assert [item.name for item in plan.fields] == ["a", "b"]
