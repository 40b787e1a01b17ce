"""Hints that are pasted: the statement must then be accepted, and must be able to run."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests.support.compiling import compile_with_sources

MINUTE = "INTERVAL '1' MINUTE"
TTL = "WITH (state_ttl = '1 day')"
IN_MINUTES = f"TUMBLE(bids, ts, {MINUTE})"
PER_MINUTE = f"FROM bids GROUP BY auction, TUMBLE(ts, {MINUTE})"
LATE = f"EMIT ON WINDOW CLOSE ALLOW LATENESS {MINUTE}"
TOP_3 = "CREATE STREAM s AS SELECT auction, price FROM bids ORDER BY price DESC LIMIT 3"
AVERAGE = "SELECT price FROM bids WHERE price > (SELECT avg(price) FROM asks)"
FILES = "CREATE SINK o FROM s WITH (connector = 'files', path = 'o');"
FILES_WITH_OP = FILES.replace("'o');", "'o', changelog = 'column');")
KAFKA = "CREATE SINK o FROM s WITH (connector = 'kafka', topic = 't', brokers = 'b:9092');"
POSTGRES = "CREATE SINK o FROM s WITH (connector = 'postgres', database = 'd', table = 't');"
BY_ARRIVAL = "OVER (PARTITION BY auction ORDER BY PROCTIME())"

BY_MINUTE = f"GROUP BY TUMBLE(ts, {MINUTE})"
VALUES_AS_TABLE = (
    "CREATE LOOKUP TABLE v (n INT, name STRING, PRIMARY KEY (n)) WITH (connector = 'memory'); "
    "INSERT INTO v VALUES (1, 'one')"
)
CONDITIONAL_JOIN = (
    "FROM {} AS b LEFT JOIN asks AS a "
    "ON a.auction = b.auction AND a.ts = b.ts AND a.price < b.price"
)
NEXT = "lead(price){} OVER (PARTITION BY auction ORDER BY ts)"
JOINED = "FROM bids AS b LEFT JOIN asks AS a ON a.auction = b.auction"


@dataclass(frozen=True)
class Pasted:
    """A rejected script, its error code, a part of its hint, and the script with that part."""

    rejected: str
    code: str
    hint: str
    fixed: str


CASES = {
    "select_event_time": Pasted(
        "CREATE STREAM s AS SELECT auction FROM bids EMIT ON WINDOW CLOSE;",
        "TG-404",
        "SELECT …, ts",
        "CREATE STREAM s AS SELECT auction, ts FROM bids EMIT ON WINDOW CLOSE;",
    ),
    "close_without_event_time": Pasted(
        "CREATE STREAM s AS SELECT k FROM plain EMIT ON WINDOW CLOSE;",
        "TG-404",
        "remove EMIT ON WINDOW CLOSE",
        "CREATE STREAM s AS SELECT k FROM plain;",
    ),
    "close_of_a_regular_join": Pasted(
        f"CREATE STREAM s {TTL} AS SELECT b.price FROM bids AS b JOIN asks AS a "
        "ON a.auction = b.auction EMIT ON WINDOW CLOSE;",
        "TG-404",
        "remove EMIT ON WINDOW CLOSE",
        f"CREATE STREAM s {TTL} AS SELECT b.price FROM bids AS b JOIN asks AS a "
        "ON a.auction = b.auction;",
    ),
    "close_of_a_changelog": Pasted(
        "CREATE STREAM s AS SELECT id FROM orders EMIT ON WINDOW CLOSE;",
        "TG-404",
        "EMIT CHANGES",
        "CREATE STREAM s AS SELECT id FROM orders EMIT CHANGES;",
    ),
    "close_of_a_ranking": Pasted(
        "CREATE STREAM s AS SELECT auction, price FROM bids QUALIFY row_number() "
        "OVER (PARTITION BY auction ORDER BY price) = 1 EMIT ON WINDOW CLOSE;",
        "TG-404",
        "EMIT CHANGES",
        "CREATE STREAM s AS SELECT auction, price FROM bids QUALIFY row_number() "
        "OVER (PARTITION BY auction ORDER BY price) = 1 EMIT CHANGES;",
    ),
    "distinct_without_event_time": Pasted(
        "CREATE STREAM s AS SELECT DISTINCT k FROM plain;",
        "TG-408",
        TTL,
        f"CREATE STREAM s {TTL} AS SELECT DISTINCT k FROM plain;",
    ),
    "sort_without_event_time": Pasted(
        "CREATE STREAM s AS SELECT k FROM plain ORDER BY k;",
        "TG-401",
        "ORDER BY … LIMIT 10 EMIT CHANGES",
        "CREATE STREAM s AS SELECT k FROM plain ORDER BY k LIMIT 10 EMIT CHANGES;",
    ),
    "limit_without_emit": Pasted(
        f"{TOP_3};", "TG-402", "end the statement with EMIT CHANGES", f"{TOP_3} EMIT CHANGES;"
    ),
    "limit_in_windows": Pasted(
        f"{TOP_3};",
        "TG-402",
        f"SELECT …, window_end FROM {IN_MINUTES}",
        f"CREATE STREAM s AS SELECT auction, price, window_end FROM {IN_MINUTES} "
        "ORDER BY price DESC LIMIT 3;",
    ),
    "limit_without_order": Pasted(
        "CREATE STREAM s AS SELECT auction FROM bids LIMIT 10;",
        "TG-402",
        "ORDER BY … LIMIT 10 EMIT CHANGES",
        "CREATE STREAM s AS SELECT auction FROM bids ORDER BY price LIMIT 10 EMIT CHANGES;",
    ),
    "offset_without_limit": Pasted(
        "CREATE STREAM s AS SELECT auction FROM bids ORDER BY price OFFSET 5 EMIT CHANGES;",
        "TG-402",
        "ORDER BY … LIMIT 10 OFFSET 5 EMIT CHANGES",
        "CREATE STREAM s AS SELECT auction FROM bids ORDER BY price LIMIT 10 OFFSET 5 EMIT CHANGES;",
    ),
    "limit_on_update": Pasted(
        f"{TOP_3} EMIT ON UPDATE;", "TG-416", "use EMIT CHANGES", f"{TOP_3} EMIT CHANGES;"
    ),
    "ranking_on_update": Pasted(
        "CREATE STREAM s AS SELECT auction, price FROM bids QUALIFY row_number() "
        "OVER (PARTITION BY auction ORDER BY price) <= 3 EMIT ON UPDATE;",
        "TG-416",
        "use EMIT CHANGES",
        "CREATE STREAM s AS SELECT auction, price FROM bids QUALIFY row_number() "
        "OVER (PARTITION BY auction ORDER BY price) <= 3 EMIT CHANGES;",
    ),
    "hidden_key_on_update": Pasted(
        "CREATE STREAM s AS SELECT count(*) AS n FROM bids GROUP BY auction EMIT ON UPDATE;",
        "TG-416",
        "add the key to SELECT: auction",
        "CREATE STREAM s AS SELECT auction, count(*) AS n FROM bids GROUP BY auction "
        "EMIT ON UPDATE;",
    ),
    "scalar_subquery": Pasted(
        f"CREATE STREAM s AS {AVERAGE};",
        "TG-407",
        f"CREATE STREAM … {TTL} AS … EMIT CHANGES",
        f"CREATE STREAM s {TTL} AS {AVERAGE} EMIT CHANGES;",
    ),
    "scalar_subquery_without_emit": Pasted(
        f"CREATE STREAM s {TTL} AS {AVERAGE};",
        "TG-403",
        "end the statement with EMIT CHANGES",
        f"CREATE STREAM s {TTL} AS {AVERAGE} EMIT CHANGES;",
    ),
    "aggregate_without_its_key": Pasted(
        "CREATE STREAM s AS SELECT count(*) AS n FROM bids GROUP BY auction;",
        "TG-403",
        "EMIT CHANGES",
        "CREATE STREAM s AS SELECT count(*) AS n FROM bids GROUP BY auction EMIT CHANGES;",
    ),
    "predicate_with_or": Pasted(
        "CREATE STREAM s AS SELECT price FROM bids WHERE price = 1 "
        "OR auction IN (SELECT auction FROM asks);",
        "TG-410",
        "write two queries that select the event time, and combine them with UNION",
        "CREATE STREAM s AS SELECT price, ts FROM bids WHERE price = 1 "
        "UNION SELECT b.price, b.ts FROM bids AS b WHERE auction IN "
        f"(SELECT auction FROM asks AS a WHERE a.ts BETWEEN b.ts AND b.ts + {MINUTE});",
    ),
    "view_without_ttl": Pasted(
        "CREATE MATERIALIZED VIEW s AS SELECT DISTINCT auction FROM bids;",
        "TG-408",
        f"CREATE MATERIALIZED VIEW … {TTL} AS …",
        f"CREATE MATERIALIZED VIEW s {TTL} AS SELECT DISTINCT auction FROM bids;",
    ),
    "view_of_failing_rows": Pasted(
        "CREATE STREAM v WITH (on_error = 'dead_letter') AS SELECT 1 / v AS x FROM plain;"
        "CREATE MATERIALIZED VIEW s AS SELECT x FROM v;",
        "TG-422",
        "CREATE MATERIALIZED VIEW s WITH (on_error = 'dead_letter') AS …",
        "CREATE STREAM v WITH (on_error = 'dead_letter') AS SELECT 1 / v AS x FROM plain;"
        "CREATE MATERIALIZED VIEW s WITH (on_error = 'dead_letter') AS SELECT x FROM v;",
    ),
    "over_by_arrival": Pasted(
        f"CREATE STREAM s AS SELECT sum(price) {BY_ARRIVAL} AS x FROM bids;",
        "TG-411",
        f"CREATE STREAM … {TTL} AS …",
        f"CREATE STREAM s {TTL} AS SELECT sum(price) {BY_ARRIVAL} AS x FROM bids;",
    ),
    "rank_by_arrival": Pasted(
        f"CREATE STREAM s AS SELECT rank() {BY_ARRIVAL} AS x FROM bids;",
        "TG-411",
        f"CREATE STREAM … {TTL} AS …",
        f"CREATE STREAM s {TTL} AS SELECT rank() {BY_ARRIVAL} AS x FROM bids;",
    ),
    "over_without_event_time": Pasted(
        "CREATE STREAM s AS SELECT sum(v) OVER (PARTITION BY k) AS x FROM plain;",
        "TG-411",
        f"CREATE STREAM … {TTL} AS … EMIT CHANGES",
        f"CREATE STREAM s {TTL} AS SELECT sum(v) OVER (PARTITION BY k) AS x FROM plain EMIT CHANGES;",
    ),
    "late_data_of_a_plain_query": Pasted(
        "CREATE STREAM s AS SELECT price FROM bids LATE DATA TO late;",
        "TG-412",
        "SELECT …, ts … EMIT ON WINDOW CLOSE LATE DATA TO late",
        "CREATE STREAM s AS SELECT price, ts FROM bids EMIT ON WINDOW CLOSE LATE DATA TO late;",
    ),
    "late_data_without_event_time": Pasted(
        "CREATE STREAM s AS SELECT v FROM plain LATE DATA TO late;",
        "TG-412",
        "remove LATE DATA TO late",
        "CREATE STREAM s AS SELECT v FROM plain;",
    ),
    "files_with_lateness": Pasted(
        f"CREATE STREAM s AS SELECT auction, count(*) AS n {PER_MINUTE} {LATE}; {FILES}",
        "TG-413",
        "remove ALLOW LATENESS",
        f"CREATE STREAM s AS SELECT auction, count(*) AS n {PER_MINUTE} EMIT ON WINDOW CLOSE; "
        f"{FILES}",
    ),
    "kafka_with_lateness": Pasted(
        f"CREATE STREAM s AS SELECT auction, window_end, count(*) AS n {PER_MINUTE} {LATE}; "
        f"{KAFKA}",
        "TG-413",
        "EMIT ON UPDATE",
        f"CREATE STREAM s AS SELECT auction, window_end, count(*) AS n {PER_MINUTE} "
        f"EMIT ON UPDATE ALLOW LATENESS {MINUTE}; {KAFKA}",
    ),
    "postgres_with_lateness": Pasted(
        f"CREATE STREAM s AS SELECT auction, count(*) AS n {PER_MINUTE} {LATE}; {POSTGRES}",
        "TG-413",
        "add the key to SELECT: window_end",
        f"CREATE STREAM s AS SELECT auction, window_end, count(*) AS n {PER_MINUTE} {LATE}; "
        f"{POSTGRES}",
    ),
    "files_of_windows": Pasted(
        f"CREATE STREAM s AS SELECT auction, count(*) AS n {PER_MINUTE} EMIT CHANGES; {FILES}",
        "TG-413",
        "EMIT ON WINDOW CLOSE",
        f"CREATE STREAM s AS SELECT auction, count(*) AS n {PER_MINUTE} EMIT ON WINDOW CLOSE; "
        f"{FILES}",
    ),
    "files_of_a_top_n": Pasted(
        f"{TOP_3} EMIT CHANGES; {FILES}",
        "TG-413",
        "changelog = 'column'",
        f"{TOP_3} EMIT CHANGES; {FILES_WITH_OP}",
    ),
    "kafka_of_groups": Pasted(
        f"CREATE STREAM s AS SELECT auction, count(*) AS n FROM bids GROUP BY auction "
        f"EMIT CHANGES; {KAFKA}",
        "TG-413",
        "EMIT ON UPDATE",
        f"CREATE STREAM s AS SELECT auction, count(*) AS n FROM bids GROUP BY auction "
        f"EMIT ON UPDATE; {KAFKA}",
    ),
    "postgres_of_a_top_n": Pasted(
        "CREATE STREAM s AS SELECT auction, price FROM bids QUALIFY row_number() "
        f"OVER (PARTITION BY auction ORDER BY price) <= 3; {POSTGRES}",
        "TG-413",
        "row_number() OVER (…) = 1",
        "CREATE STREAM s AS SELECT auction, price FROM bids QUALIFY row_number() "
        f"OVER (PARTITION BY auction ORDER BY price) = 1; {POSTGRES}",
    ),
    "window_in_select": Pasted(
        f"CREATE STREAM s AS SELECT TUMBLE(ts, {MINUTE}) AS w, count(*) AS n {PER_MINUTE};",
        "TG-306",
        "select window_start or window_end",
        f"CREATE STREAM s AS SELECT window_start AS w, count(*) AS n {PER_MINUTE};",
    ),
    "newest_numbered": Pasted(
        f"CREATE STREAM s {TTL} AS SELECT row_number() OVER (PARTITION BY auction "
        "ORDER BY PROCTIME() DESC) AS n FROM bids;",
        "TG-501",
        "QUALIFY row_number() OVER (… ORDER BY PROCTIME() DESC) <= 10",
        f"CREATE STREAM s {TTL} AS SELECT row_number() OVER (PARTITION BY auction "
        "ORDER BY PROCTIME() DESC) AS n FROM bids QUALIFY n <= 10;",
    ),
    "emit_update": Pasted(
        "CREATE STREAM s AS SELECT auction, count(*) AS n FROM bids GROUP BY auction EMIT UPDATE;",
        "TG-101",
        "EMIT ON UPDATE",
        "CREATE STREAM s AS SELECT auction, count(*) AS n FROM bids GROUP BY auction "
        "EMIT ON UPDATE;",
    ),
    "asof_without_condition": Pasted(
        "CREATE STREAM s AS SELECT b.price FROM bids AS b ASOF JOIN asks AS a "
        "ON a.auction = b.auction;",
        "TG-417",
        "MATCH_CONDITION (b.ts >= a.ts) ON …",
        "CREATE STREAM s AS SELECT b.price FROM bids AS b ASOF JOIN asks AS a "
        "MATCH_CONDITION (b.ts >= a.ts) ON a.auction = b.auction;",
    ),
    "window_of_months": Pasted(
        "CREATE STREAM s AS SELECT count(*) AS n FROM bids GROUP BY TUMBLE(ts, INTERVAL '1' MONTH);",
        "TG-105",
        "INTERVAL '30' DAY",
        "CREATE STREAM s AS SELECT count(*) AS n FROM bids GROUP BY TUMBLE(ts, INTERVAL '30' DAY);",
    ),
    "quantile_in_an_order": Pasted(
        "CREATE STREAM s AS SELECT auction, percentile_cont(0.5) WITHIN GROUP (ORDER BY price) "
        "AS x FROM bids GROUP BY auction EMIT CHANGES;",
        "TG-501",
        "percentile(price, 0.5)",
        "CREATE STREAM s AS SELECT auction, percentile(price, 0.5) AS x FROM bids "
        "GROUP BY auction EMIT CHANGES;",
    ),
    "top_in_select": Pasted(
        "CREATE STREAM s AS SELECT TOP 3 auction FROM bids ORDER BY price EMIT CHANGES;",
        "TG-101",
        "ORDER BY … LIMIT 3 EMIT CHANGES",
        "CREATE STREAM s AS SELECT auction FROM bids ORDER BY price LIMIT 3 EMIT CHANGES;",
    ),
    "ntile_in_windows": Pasted(
        "CREATE STREAM s AS SELECT ntile(4) OVER (PARTITION BY auction ORDER BY ts) AS x FROM bids;",
        "TG-411",
        f"OVER (PARTITION BY …, window_end ORDER BY ts) FROM {IN_MINUTES}",
        "CREATE STREAM s AS SELECT ntile(4) OVER (PARTITION BY auction, window_end ORDER BY ts) "
        f"AS x FROM {IN_MINUTES};",
    ),
    "lead_over_nulls": Pasted(
        f"CREATE STREAM s AS SELECT {NEXT.format(' IGNORE NULLS')} AS x FROM bids;",
        "TG-411",
        "remove IGNORE NULLS",
        f"CREATE STREAM s AS SELECT {NEXT.format('')} AS x FROM bids;",
    ),
    "random_sample": Pasted(
        f"CREATE STREAM s AS SELECT count(*) AS n FROM bids WHERE rand() < 0.1 {BY_MINUTE};",
        "TG-414",
        "WHERE pmod(hash(auction), 10) = 0",
        "CREATE STREAM s AS SELECT count(*) AS n FROM bids WHERE pmod(hash(auction), 10) = 0 "
        f"{BY_MINUTE};",
    ),
    "rows_of_the_last_hour": Pasted(
        "CREATE STREAM s AS SELECT count(*) AS n FROM bids "
        f"WHERE ts > now() - INTERVAL '1' HOUR {BY_MINUTE};",
        "TG-414",
        "remove the condition",
        f"CREATE STREAM s AS SELECT count(*) AS n FROM bids {BY_MINUTE};",
    ),
    "distinct_in_windows": Pasted(
        f"CREATE STREAM s AS SELECT DISTINCT price FROM {IN_MINUTES};",
        "TG-408",
        "SELECT DISTINCT …, window_end",
        f"CREATE STREAM s AS SELECT DISTINCT price, window_end FROM {IN_MINUTES};",
    ),
    "updates_of_sessions": Pasted(
        f"CREATE STREAM s AS SELECT count(*) AS n FROM bids GROUP BY SESSION(ts, {MINUTE}) "
        "EMIT ON UPDATE;",
        "TG-416",
        "add the key to SELECT: window_start, window_end",
        "CREATE STREAM s AS SELECT window_start, window_end, count(*) AS n FROM bids "
        f"GROUP BY SESSION(ts, {MINUTE}) EMIT ON UPDATE;",
    ),
    "postgres_of_sessions": Pasted(
        "CREATE STREAM s AS SELECT auction, window_end, count(*) AS n FROM bids "
        f"GROUP BY auction, SESSION(ts, {MINUTE}) EMIT CHANGES; {POSTGRES}",
        "TG-413",
        "add the key to SELECT: window_start",
        "CREATE STREAM s AS SELECT auction, window_start, window_end, count(*) AS n FROM bids "
        f"GROUP BY auction, SESSION(ts, {MINUTE}) EMIT CHANGES; {POSTGRES}",
    ),
    "sessions_every_ten_seconds": Pasted(
        f"CREATE STREAM s AS SELECT window_end, count(*) AS n FROM bids "
        f"GROUP BY SESSION(ts, {MINUTE}) EMIT EVERY INTERVAL '10' SECOND;",
        "TG-416",
        "add the key to SELECT: window_start, and use EMIT ON UPDATE",
        "CREATE STREAM s AS SELECT window_start, window_end, count(*) AS n FROM bids "
        f"GROUP BY SESSION(ts, {MINUTE}) EMIT ON UPDATE;",
    ),
    "files_of_groups": Pasted(
        "CREATE STREAM s AS SELECT auction, count(*) AS n FROM bids GROUP BY auction "
        f"EMIT CHANGES; {FILES}",
        "TG-413",
        f"add TUMBLE(ts, {MINUTE}) to GROUP BY, and end the query without EMIT",
        f"CREATE STREAM s AS SELECT auction, count(*) AS n {PER_MINUTE}; {FILES}",
    ),
    "natural_join": Pasted(
        "CREATE STREAM s AS SELECT price FROM bids NATURAL JOIN asks;",
        "TG-103",
        "JOIN asks USING (auction, price, ts)",
        "CREATE STREAM s AS SELECT price FROM bids JOIN asks USING (auction, price, ts);",
    ),
    "values_in_a_join": Pasted(
        "CREATE STREAM s AS SELECT name FROM bids JOIN (VALUES (1, 'one')) AS v (n, name) "
        "ON auction = n;",
        "TG-103",
        VALUES_AS_TABLE,
        f"{VALUES_AS_TABLE}; CREATE STREAM s AS SELECT name FROM bids JOIN v ON auction = n;",
    ),
    "unnest": Pasted(
        "CREATE STREAM s AS SELECT tag FROM bids CROSS JOIN UNNEST(tags) AS t(tag);",
        "TG-103",
        "LATERAL VIEW explode(tags) t AS tag",
        "CREATE STREAM s AS SELECT tag FROM bids LATERAL VIEW explode(tags) t AS tag;",
    ),
    "pivot": Pasted(
        "CREATE STREAM s AS SELECT * FROM bids PIVOT (sum(price) FOR channel IN ('a', 'b'));",
        "TG-103",
        "sum(price) FILTER (WHERE channel = 'a') AS a",
        "CREATE STREAM s AS SELECT sum(price) FILTER (WHERE channel = 'a') AS a FROM bids "
        "EMIT CHANGES;",
    ),
    "position_of_a_key": Pasted(
        "CREATE STREAM s AS SELECT price FROM bids GROUP BY 7 EMIT CHANGES;",
        "TG-301",
        "GROUP BY 1 or GROUP BY price",
        "CREATE STREAM s AS SELECT price FROM bids GROUP BY 1 EMIT CHANGES;",
    ),
    "names_of_columns": Pasted(
        "CREATE STREAM s AS SELECT x FROM (SELECT auction, price FROM bids) AS t (x);",
        "TG-308",
        "AS t (auction, price)",
        "CREATE STREAM s AS SELECT price FROM (SELECT auction, price FROM bids) "
        "AS t (auction, price);",
    ),
    "windows_per_row": Pasted(
        "CREATE STREAM s AS SELECT count(*) AS n FROM bids "
        "GROUP BY HOP(ts, INTERVAL '1' MILLISECOND, INTERVAL '1' DAY);",
        "TG-306",
        "HOP(…, INTERVAL '10' SECOND, INTERVAL '1' DAY)",
        "CREATE STREAM s AS SELECT count(*) AS n FROM bids "
        "GROUP BY HOP(ts, INTERVAL '10' SECOND, INTERVAL '1' DAY);",
    ),
    "window_without_size": Pasted(
        "CREATE STREAM s AS SELECT count(*) AS n FROM bids GROUP BY TUMBLE(ts);",
        "TG-306",
        f"for example TUMBLE(ts, {MINUTE})",
        f"CREATE STREAM s AS SELECT count(*) AS n FROM bids GROUP BY TUMBLE(ts, {MINUTE});",
    ),
    "subquery_in_an_aggregate": Pasted(
        "CREATE STREAM s AS SELECT sum(price - (SELECT min(price) FROM asks)) AS t FROM bids;",
        "TG-103",
        "WITH (state_ttl = '1 day') before AS and EMIT CHANGES at the end",
        f"CREATE STREAM s {TTL} AS SELECT sum(price - m) AS t "
        "FROM (SELECT *, (SELECT min(price) FROM asks) AS m FROM bids) EMIT CHANGES;",
    ),
    "predicate_in_an_aggregate": Pasted(
        "CREATE STREAM s AS SELECT count_if(auction IN (SELECT auction FROM asks)) AS t FROM bids "
        "EMIT CHANGES;",
        "TG-103",
        "WITH (state_ttl = '1 day') before AS",
        f"CREATE STREAM s {TTL} AS SELECT count_if(match_k IS NOT NULL) AS t FROM bids LEFT JOIN "
        "(SELECT DISTINCT auction AS match_k FROM asks) ON auction = match_k EMIT CHANGES;",
    ),
    "options_after_the_query": Pasted(
        f"CREATE STREAM s AS SELECT DISTINCT auction FROM bids {TTL};",
        "TG-101",
        f"CREATE STREAM s {TTL} AS SELECT …;",
        f"CREATE STREAM s {TTL} AS SELECT DISTINCT auction FROM bids;",
    ),
    "options_after_emit": Pasted(
        f"CREATE MATERIALIZED VIEW s AS SELECT max(price) AS x FROM bids EMIT CHANGES {TTL};",
        "TG-101",
        f"CREATE MATERIALIZED VIEW s {TTL} AS SELECT …;",
        f"CREATE MATERIALIZED VIEW s {TTL} AS SELECT max(price) AS x FROM bids EMIT CHANGES;",
    ),
    "name_with_a_hyphen": Pasted(
        "CREATE STREAM my-top-bids AS SELECT price FROM bids;",
        "TG-101",
        "quote it with backticks: `my-top-bids`",
        "CREATE STREAM `my-top-bids` AS SELECT price FROM bids;",
    ),
    "table_with_a_hyphen": Pasted(
        "CREATE STREAM `my-bids` AS SELECT price FROM bids;"
        "CREATE STREAM s AS SELECT price FROM my-bids;",
        "TG-101",
        "quote it with backticks: `my-bids`",
        "CREATE STREAM `my-bids` AS SELECT price FROM bids;"
        "CREATE STREAM s AS SELECT price FROM `my-bids`;",
    ),
    "join_of_arrays": Pasted(
        f"CREATE STREAM s AS SELECT b.tags {CONDITIONAL_JOIN.format('bids')};",
        "TG-103",
        "FROM (SELECT …, tags[0] AS x FROM …)",
        "CREATE STREAM s AS SELECT b.x "
        f"{CONDITIONAL_JOIN.format('(SELECT auction, price, ts, tags[0] AS x FROM bids)')};",
    ),
    "option_as_a_setting": Pasted(
        "SET state_ttl = '1 day'; CREATE STREAM s AS SELECT price FROM bids;",
        "TG-212",
        f"CREATE STREAM … {TTL} AS …",
        f"CREATE STREAM s {TTL} AS SELECT price FROM bids;",
    ),
    "options_of_flink": Pasted(
        "CREATE SOURCE k (v STRING) WITH (connector = 'kafka', topic = 't', brokers = 'b:9092', "
        "scan.startup.mode = 'earliest-offset');",
        "TG-206",
        "write start = 'earliest'",
        "CREATE SOURCE k (v STRING) WITH (connector = 'kafka', topic = 't', brokers = 'b:9092', "
        "start = 'earliest');",
    ),
    "required_option_of_flink": Pasted(
        "CREATE SOURCE k (v STRING) WITH (connector = 'kafka', topic = 't', "
        "properties.bootstrap.servers = 'b:9092');",
        "TG-206",
        "write brokers = 'b:9092'",
        "CREATE SOURCE k (v STRING) WITH (connector = 'kafka', topic = 't', brokers = 'b:9092');",
    ),
    "postgres_of_a_join": Pasted(
        f"CREATE STREAM s {TTL} AS SELECT b.auction, a.seller {JOINED} EMIT CHANGES; {POSTGRES}",
        "TG-413",
        "aggregate the rows of the join",
        f"CREATE STREAM s {TTL} AS SELECT b.auction, max(a.seller) AS seller {JOINED} "
        f"GROUP BY b.auction EMIT CHANGES; {POSTGRES}",
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_pasted_hint_is_accepted(case: Pasted) -> None:
    compiled = compile_with_sources(case.rejected)
    errors = compiled.errors or list(compiled.rejections)
    assert [error.code for error in errors] == [case.code], "one error for one mistake"
    assert case.hint in (errors[0].hint or "")
    fixed = compile_with_sources(case.fixed)
    problems = [*fixed.errors, *fixed.rejections]
    assert not problems, "\n".join(error.render() for error in problems)
