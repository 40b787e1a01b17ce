"""Golden rejections: the scripts in tests/compile/rejections, with their errors."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conftest import Golden
from tests.support.compiling import TESTS, compile_text
from tidegate.errors import TITLES

REJECTIONS = TESTS / "compile" / "rejections"
SCRIPTS = sorted(REJECTIONS.glob("*.sql"))
# Only Spark detects type errors.
NEEDS_SPARK = {"TG-307"}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_rejection(script: Path, golden: Golden) -> None:
    compiled = compile_text(script.read_text("utf-8"), script.name)
    assert compiled.errors, f"{script.name} is accepted"
    for error in compiled.errors:
        assert error.location is not None, error.message
        assert error.code.startswith("TG-1") or error.hint, f"no hint: {error.message}"
    text = "\n\n".join(error.render() for error in compiled.errors) + "\n"
    assert "hunter2" not in text
    golden(script.with_suffix(".txt"), text)


def test_every_golden_has_a_script() -> None:
    assert {path.stem for path in REJECTIONS.glob("*.txt")} == {path.stem for path in SCRIPTS}


def test_rejections_cover_all_error_codes_of_sql() -> None:
    covered = set()
    for path in REJECTIONS.glob("*.txt"):
        covered |= set(re.findall(r"error\[(TG-\d+)\]", path.read_text("utf-8")))
    expected = {code for code in TITLES if code[3] in "1234"} - NEEDS_SPARK
    assert expected - covered == set()


def test_reports_all_errors_of_a_script_in_order() -> None:
    script = REJECTIONS / "five_errors_at_once.sql"
    errors = compile_text(script.read_text("utf-8")).errors
    codes = [error.code for error in errors]
    assert codes == ["TG-301", "TG-101", "TG-205", "TG-407", "TG-303", "TG-212"]
    starts = [error.location.start for error in errors if error.location]
    assert starts == sorted(starts)


TTL = "WITH (state_ttl = '1 day')"
IN_MINUTES = "TUMBLE(bids, ts, INTERVAL '1' MINUTE)"
WITHIN = "b.ts BETWEEN a.ts - INTERVAL '10' MINUTE AND a.ts + INTERVAL '10' MINUTE"
# A rejected script, a part of its hint, and the change that follows the hint.
FIXES: list[tuple[str, str, str, str]] = [
    (
        "aggregate_without_emit",
        "add TUMBLE(ts, INTERVAL '1' MINUTE) to GROUP BY",
        "GROUP BY auction",
        "GROUP BY auction, TUMBLE(ts, INTERVAL '1' MINUTE)",
    ),
    ("aggregate_without_emit", "EMIT CHANGES", "GROUP BY auction", "GROUP BY auction EMIT CHANGES"),
    (
        "deduplicate_without_bound",
        "WITH (state_ttl = '1 day') AS",
        "first_by_arrival AS",
        "first_by_arrival WITH (state_ttl = '1 day') AS",
    ),
    (
        "deduplicate_without_bound",
        "PARTITION BY …, ts",
        "PARTITION BY id",
        "PARTITION BY id, ts",
    ),
    (
        "deduplicate_by_time_without_bound",
        "PARTITION BY …, ts",
        "PARTITION BY id",
        "PARTITION BY id, ts",
    ),
    (
        "aggregate_of_session_starts",
        "add window_end to GROUP BY",
        "GROUP BY window_start",
        "GROUP BY window_start, window_end",
    ),
    (
        "sort_unbounded",
        f"…, window_end FROM {IN_MINUTES}",
        "price FROM bids",
        f"price, window_end FROM {IN_MINUTES}",
    ),
    ("emit_close_without_window", "SELECT …, ts", "auction, price FROM", "auction, price, ts FROM"),
    (
        "emit_close_without_watermark",
        "WATERMARK FOR at AS at - INTERVAL '5' SECOND",
        "at TIMESTAMP",
        "at TIMESTAMP, WATERMARK FOR at AS at - INTERVAL '5' SECOND",
    ),
    ("window_not_event_time", "use the event time ts", "TUMBLE(other", "TUMBLE(ts"),
    (
        "window_over_window_start",
        "use window_time",
        "SELECT window_start, count(*) AS n FROM bids",
        "SELECT window_time AS window_start, count(*) AS n FROM bids",
    ),
    (
        "join_without_bound",
        f"AND {WITHIN}",
        "a.auction = b.auction",
        f"a.auction = b.auction AND {WITHIN}",
    ),
    ("join_without_bound", TTL, "STREAM s AS", f"STREAM s {TTL} AS"),
    (
        "join_bounded_on_one_side",
        "AND a.ts <= b.ts + INTERVAL '10' MINUTE",
        "a.ts > b.ts",
        "a.ts > b.ts AND a.ts <= b.ts + INTERVAL '10' MINUTE",
    ),
    ("join_cross", f"ON {WITHIN}", "CROSS JOIN asks AS a", f"JOIN asks AS a ON {WITHIN}"),
    ("distinct_without_bound", "SELECT DISTINCT …, ts", "DISTINCT auction", "DISTINCT auction, ts"),
    ("distinct_without_bound", TTL, "STREAM s AS", f"STREAM s {TTL} AS"),
    ("union_without_bound", "use UNION ALL", "UNION SELECT", "UNION ALL SELECT"),
    (
        "subquery_in",
        "asks.ts BETWEEN bids.ts - INTERVAL '10' MINUTE AND bids.ts + INTERVAL '10' MINUTE",
        "FROM asks)",
        "FROM asks WHERE asks.ts BETWEEN bids.ts - INTERVAL '10' MINUTE AND bids.ts + "
        "INTERVAL '10' MINUTE)",
    ),
    ("subquery_in", TTL, "STREAM s AS", f"STREAM s {TTL} AS"),
    (
        "match_without_bound",
        "PATTERN (A B* C) WITHIN INTERVAL '1' HOUR",
        "PATTERN (A B* C)",
        "PATTERN (A B* C) WITHIN INTERVAL '1' HOUR",
    ),
    ("match_without_bound", TTL, "STREAM s AS", f"STREAM s {TTL} AS"),
    ("over_of_a_changelog", TTL, "STREAM s AS", f"STREAM s {TTL} AS"),
    ("over_unbounded_following", "10 FOLLOWING", "UNBOUNDED FOLLOWING", "10 FOLLOWING"),
    ("top_n_by_row", TTL, "STREAM s AS", f"STREAM s {TTL} AS"),
    ("lateness_in_processing_time", "GROUP BY TUMBLE(ts, ", "TUMBLE(PROCTIME(), ", "TUMBLE(ts, "),
    (
        "hop_of_odd_sizes",
        "INTERVAL '1001' MILLISECOND, INTERVAL '10010' MILLISECOND",
        "HOP(ts, INTERVAL '1001' MILLISECOND, INTERVAL '10' SECOND)",
        "HOP(ts, INTERVAL '1001' MILLISECOND, INTERVAL '10010' MILLISECOND)",
    ),
    (
        "late_rows_in_windows",
        "end the statement with EMIT CHANGES",
        "FROM late_bids GROUP BY TUMBLE(ts, INTERVAL '1' MINUTE)",
        "FROM late_bids GROUP BY TUMBLE(ts, INTERVAL '1' MINUTE) EMIT CHANGES",
    ),
    (
        "late_rows_of_several_inputs",
        "(SELECT price AS other_price, … FROM …)",
        "count(price) AS top FROM asks",
        "count(other_price) AS top FROM (SELECT auction, price AS other_price, ts FROM asks)",
    ),
    ("sink_of_a_changelog", "changelog = 'column'", "'files'", "'files', changelog = 'column'"),
    ("emit_update_without_key", "EMIT CHANGES", "EMIT EVERY INTERVAL '10' SECOND", "EMIT CHANGES"),
    (
        "emit_close_of_retracted_rows",
        "add window_end to PARTITION BY",
        "PARTITION BY auction",
        "PARTITION BY window_end",
    ),
    ("column_not_grouped", "max(price)", "auction, price", "auction, max(price) AS price"),
    ("ambiguous_column", "write b.price", "SELECT price", "SELECT b.price"),
    ("unknown_column_of_alias", "did you mean seller?", "sellr", "seller"),
    ("unknown_table", "did you mean bids?", "bidz", "bids"),
    ("unknown_setting", "did you mean validator?", "validater", "validator"),
    ("misplaced_proctime", "current_timestamp()", "PROCTIME()", "current_timestamp()"),
    ("table_with_schema", "write bids", "shop.bids", "bids"),
]
FOR_EACH_STATE = """s.state, c.name FROM (SELECT DISTINCT state FROM cities) AS s,
    LATERAL (SELECT name FROM cities WHERE state = s.state ORDER BY pop DESC LIMIT 3) AS c
"""
FIRST_OF_EACH_STATE = """state, name FROM cities
QUALIFY row_number() OVER (PARTITION BY state ORDER BY pop DESC) <= 3
"""
SUMS = (
    "sum(price) OVER (PARTITION BY auction ORDER BY PROCTIME() "
    "ROWS BETWEEN 9 PRECEDING AND CURRENT ROW"
)
HAS_MATCH = "match_k IS NOT NULL"
LEFT_JOIN = (
    "FROM bids LEFT JOIN (SELECT DISTINCT auction AS match_k FROM asks) ON auction = match_k"
)


def with_scalar_subquery(value: str, table: str = "bids") -> str:
    return f"FROM (SELECT *, (SELECT {value} FROM asks) AS m FROM {table})"


# Rejected scripts with several errors, and the change that follows each hint.
SEVERAL_FIXES: list[tuple[str, list[tuple[str, str]]]] = [
    (
        "group_by_all",
        [
            ("GROUP BY ALL channel", "GROUP BY auction, channel"),
            ("price + count(*)", "max(price) + count(*)"),
            ("ALL EMIT ON WINDOW", "TUMBLE(ts, INTERVAL '1' MINUTE) EMIT ON WINDOW"),
        ],
    ),
    (
        "trailing_comma",
        [
            ("price, FROM", "price FROM"),
            ("auction, HAVING", "auction HAVING"),
            ("auction, EMIT", "auction EMIT"),
            ("2,)", "2)"),
            ("0,)", "0)"),
            ("auction,, price", "auction, price"),
            ("SELECT , price", "SELECT price"),
            ("bids, WHERE", "bids WHERE"),
            ("auction, ORDER", "auction ORDER"),
            ("bids), SELECT", "bids) SELECT"),
            ("00',)", "00')"),
            ("00'),", "00')"),
        ],
    ),
    (
        "missing_comma",
        [
            ("id BIGINT user_id BIGINT", "id BIGINT, user_id BIGINT"),
            ("BIGINT NOT NULL name STRING", "BIGINT NOT NULL, name STRING"),
            (
                "timestamp_millis(ms) WATERMARK FOR ts AS ts",
                "timestamp_millis(ms), WATERMARK FOR ts AS ts",
            ),
            ("BIGINT PRIMARY KEY (id)", "BIGINT, PRIMARY KEY (id)"),
            ("id * 2 name STRING", "id * 2, name STRING"),
        ],
    ),
    (
        "missing_semicolon",
        [("bids\nCREATE SINK", "bids;\nCREATE SINK"), ("S\nCREATE", "S;\nCREATE")],
    ),
    (
        "misspelt_keywords",
        [
            ("SELEC price", "SELECT price"),
            ("FORM", "FROM"),
            ("WERE", "WHERE"),
            ("GRUOP", "GROUP"),
            ("CREAT STREAM", "CREATE STREAM"),
            ("STRAEM", "STREAM"),
        ],
    ),
    (
        "quoted_names",
        [
            ('"user id"', "`user id`"),
            ('"my source"', "`my source`"),
            ("(user id", "(`user id`"),
            ("user-id", "`user-id`"),
        ],
    ),
    (
        "event_time_of_another_type",
        [
            (
                "WATERMARK FOR ts AS ts",
                "event_time AS to_timestamp(ts), WATERMARK FOR event_time AS event_time - "
                "INTERVAL '5' SECOND",
            ),
            (
                "WATERMARK FOR day AS day",
                "ts AS CAST(day AS TIMESTAMP), WATERMARK FOR ts AS ts - INTERVAL '5' SECOND",
            ),
            (
                "WATERMARK FOR ms AS ms",
                "ts AS timestamp_millis(ms), WATERMARK FOR ts AS ts - INTERVAL '5' SECOND",
            ),
            (
                "WATERMARK FOR event_time AS event_time)",
                "ts_2 AS timestamp_seconds(event_time), WATERMARK FOR ts_2 AS ts_2 - INTERVAL '5' "
                "SECOND)",
            ),
        ],
    ),
    (
        "functions_of_other_systems",
        [
            ("group_concat(channel)", "string_agg(channel, ',')"),
            ("json_extract(", "get_json_object("),
            ("epoch_ms(", "timestamp_millis("),
            ("latest_by_offset(", "last("),
            ("TUMBLE_START(ts, INTERVAL '1' MINUTE)", "window_start"),
        ],
    ),
    (
        "windows_of_other_systems",
        [
            (
                "WINDOW TUMBLING (SIZE 1 MINUTE) GROUP BY auction",
                "GROUP BY auction, TUMBLE(ts, INTERVAL '1' MINUTE)",
            ),
            (
                "WINDOW HOPPING (SIZE 1 MINUTE, ADVANCE BY 10 SECONDS) GROUP BY auction",
                "GROUP BY auction, HOP(ts, INTERVAL '10' SECOND, INTERVAL '1' MINUTE)",
            ),
            (
                "WINDOW SESSION (60 SECONDS) GROUP BY auction",
                "GROUP BY auction, SESSION(ts, INTERVAL '1' MINUTE)",
            ),
            (
                "TUMBLE(SIZE => INTERVAL '1' MINUTE, DATA => bids, TIMECOL => ts)",
                "TUMBLE(bids, ts, INTERVAL '1' MINUTE) AS w",
            ),
        ],
    ),
    (
        "text_in_double_quotes",
        [
            ('SELECT "price"', "SELECT `price`"),
            ('WHERE "price"', "WHERE `price`"),
            ('"n"', "`n`"),
            ('"ts"', "`ts`"),
            ('"ms"', "`ms`"),
        ],
    ),
    (
        "table_for_each_row",
        [
            (FOR_EACH_STATE, FIRST_OF_EACH_STATE),
            (
                "cities CROSS JOIN UNNEST(tags) AS t(tag)",
                "cities LATERAL VIEW explode(tags) t AS tag",
            ),
        ],
    ),
    (
        "subquery_in_the_wrong_place",
        [
            (
                "price - (SELECT min(price) FROM asks)) AS t FROM bids",
                f"price - m) AS t {with_scalar_subquery('min(price)')}",
            ),
            (
                "auction IN (SELECT auction FROM asks)) AS t FROM bids",
                f"{HAS_MATCH}) AS t {LEFT_JOIN}",
            ),
            (
                "EXISTS (SELECT 1 FROM asks AS a WHERE a.auction = b.auction)) AS t FROM bids AS b",
                f"{HAS_MATCH}) AS t {LEFT_JOIN}",
            ),
            (
                "FROM bids GROUP BY channel HAVING sum(price - (SELECT avg(price) FROM asks))",
                f"{with_scalar_subquery('avg(price)')} GROUP BY channel HAVING sum(price - m)",
            ),
            (
                "FROM bids GROUP BY (SELECT max(price) FROM asks)",
                f"{with_scalar_subquery('max(price)')} GROUP BY m",
            ),
            (
                "FROM bids GROUP BY ROLLUP(channel, (SELECT 2 * max(price) FROM asks))",
                f"{with_scalar_subquery('2 * max(price)')} GROUP BY ROLLUP(channel, m)",
            ),
            (
                "(SELECT 3 * max(price) FROM asks) AS m, count(*) AS t FROM bids",
                f"m, count(*) AS t {with_scalar_subquery('3 * max(price)')}",
            ),
            (
                "ORDER BY ts, (SELECT max(ts) FROM asks)) AS t FROM bids",
                f"ORDER BY ts, m) AS t {with_scalar_subquery('max(ts)')}",
            ),
            (
                "FROM bids\nQUALIFY max(price - (SELECT 4 * max(price) FROM asks))",
                f"{with_scalar_subquery('4 * max(price)')} QUALIFY max(price - m)",
            ),
            (
                "FROM bids LATERAL VIEW explode(array((SELECT 5 * max(price) FROM asks)))",
                f"{with_scalar_subquery('5 * max(price)')} LATERAL VIEW explode(array(m))",
            ),
            (
                "array((SELECT 6 * max(price) FROM asks))) AS e FROM bids",
                f"array(m)) AS e {with_scalar_subquery('6 * max(price)')}",
            ),
        ],
    ),
    (
        "over_by_arrival",
        [
            ("sum(price) OVER (PARTITION BY auction ORDER BY PROCTIME() DESC", SUMS),
            ("RANGE INTERVAL '1' MINUTE PRECEDING", "ROWS BETWEEN 9 PRECEDING AND CURRENT ROW"),
        ],
    ),
    (
        "select_without_from",
        [
            ("alone AS SELECT 1 AS one", "alone AS SELECT 1 AS one FROM bids"),
            ("SELECT price WHERE", "SELECT price FROM bids WHERE"),
            ("SELECT 5, 100", "SELECT 5, 100 FROM bids"),
            (
                "c.five FROM bids AS b CROSS JOIN (SELECT 5 AS five) AS c",
                "5 AS five FROM bids AS b",
            ),
            ("WITH c AS (SELECT 5 AS five)", "WITH c AS (SELECT 5 AS five FROM bids)"),
            ("(SELECT 1) AS one", "1 AS one"),
            ("IN (SELECT 5)", "IN (5)"),
            ("EXISTS (SELECT 7)", "EXISTS (SELECT 7 FROM bids)"),
            ("EXPLAIN SELECT 1 AS one", "EXPLAIN SELECT 1 AS one FROM bids"),
        ],
    ),
    (
        "comparison_with_null",
        [("channel = NULL", "channel IS NULL"), ("NULL <> channel", "channel IS NOT NULL")],
    ),
    (
        "types_of_other_systems",
        [
            ("payload JSON", "payload STRING"),
            ("UUID", "STRING"),
            ("id INT8", "id BIGINT"),
            ("UBIGINT", "DECIMAL(20, 0)"),
            ("INTERVAL", "INTERVAL DAY TO SECOND"),
            ("AS JSON", "AS STRING"),
            ("::INT8", "::BIGINT"),
        ],
    ),
]


@pytest.mark.parametrize(("name", "hint", "old", "new"), FIXES)
def test_script_is_accepted_after_following_the_hint(
    name: str, hint: str, old: str, new: str
) -> None:
    text = (REJECTIONS / f"{name}.sql").read_text("utf-8")
    assert any(hint in (error.hint or "") for error in compile_text(text).errors)
    assert text.count(old) == 1, f"{old} is not unique in {name}.sql"
    compiled = compile_text(text.replace(old, new))
    assert not compiled.errors, "\n".join(error.render() for error in compiled.errors)


@pytest.mark.parametrize(
    ("name", "changes"), SEVERAL_FIXES, ids=[name for name, _ in SEVERAL_FIXES]
)
def test_script_is_accepted_after_following_all_hints(
    name: str, changes: list[tuple[str, str]]
) -> None:
    text = (REJECTIONS / f"{name}.sql").read_text("utf-8")
    assert len(compile_text(text).errors) == len(changes), "a change for each error"
    for old, new in changes:
        assert text.count(old) == 1, f"{old} is not unique in {name}.sql"
        text = text.replace(old, new)
    compiled = compile_text(text)
    assert not compiled.errors, "\n".join(error.render() for error in compiled.errors)


def test_invalid_statement_reports_one_error_and_its_readers_none() -> None:
    script = REJECTIONS / "five_errors_without_cascades.sql"
    errors = compile_text(script.read_text("utf-8")).errors
    codes = [error.code for error in errors]
    assert codes == ["TG-101", "TG-303", "TG-311", "TG-101", "TG-205"]
