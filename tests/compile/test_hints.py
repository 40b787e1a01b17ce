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
