"""Each check of the validator with a rejected and an accepted query, in all modes."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests.support.compiling import accepted, as_stream, compile_with_sources, rejected
from tidegate.compile.validate.validator import CHECKS
from tidegate.errors import ValidationError

MINUTE = "INTERVAL '1' MINUTE"


@dataclass(frozen=True)
class Case:
    """A query that a check rejects, and a similar query that it accepts."""

    check: str
    code: str
    rejected: str
    accepted: str
    options: str = ""


CASES = [
    Case(
        "sort_unbounded",
        "TG-401",
        "SELECT price FROM bids ORDER BY price",
        f"SELECT price, window_end FROM TUMBLE(bids, ts, {MINUTE}) ORDER BY price",
    ),
    Case(
        "sort_unbounded",
        "TG-401",
        "SELECT k FROM plain ORDER BY k",
        "SELECT k FROM history ORDER BY k",
    ),
    Case(
        "limit_unbounded", "TG-402", "SELECT k FROM plain LIMIT 3", "SELECT k FROM history LIMIT 3"
    ),
    Case(
        "limit_unbounded",
        "TG-402",
        "SELECT price FROM bids LIMIT 3",
        f"SELECT price, window_end FROM TUMBLE(bids, ts, {MINUTE}) LIMIT 3",
    ),
    Case(
        "aggregate_without_emit",
        "TG-403",
        "SELECT auction, count(*) AS n FROM bids GROUP BY auction",
        "SELECT auction, count(*) AS n FROM bids GROUP BY auction EMIT CHANGES",
    ),
    Case(
        "aggregate_without_emit",
        "TG-403",
        "SELECT count(*) AS n FROM plain",
        "SELECT count(*) AS n FROM history",
    ),
    Case(
        "emit_close_without_window",
        "TG-404",
        "SELECT price FROM bids EMIT ON WINDOW CLOSE",
        f"SELECT price FROM TUMBLE(bids, ts, {MINUTE}) EMIT ON WINDOW CLOSE",
    ),
    Case(
        "emit_close_without_window",
        "TG-404",
        "SELECT auction, count(*) AS n FROM bids GROUP BY auction EMIT FINAL",
        f"SELECT auction, count(*) AS n FROM bids GROUP BY auction, TUMBLE(ts, {MINUTE}) EMIT FINAL",
    ),
    Case(
        "emit_close_without_window",
        "TG-404",
        f"SELECT price FROM TUMBLE(bids, ts, {MINUTE}) UNION ALL SELECT price FROM asks EMIT FINAL",
        f"SELECT price FROM TUMBLE(bids, ts, {MINUTE}) UNION ALL "
        f"SELECT price FROM TUMBLE(asks, ts, {MINUTE}) EMIT FINAL",
    ),
    Case(
        "emit_close_without_watermark",
        "TG-405",
        f"SELECT count(*) AS n FROM plain GROUP BY TUMBLE(ts, {MINUTE})",
        f"SELECT count(*) AS n FROM plain GROUP BY TUMBLE(ts, {MINUTE}) EMIT CHANGES",
    ),
    Case(
        "emit_close_without_watermark",
        "TG-405",
        f"SELECT DISTINCT k, window_end FROM TUMBLE(plain, ts, {MINUTE}) EMIT CHANGES",
        f"SELECT DISTINCT k, window_end FROM TUMBLE(history, ts, {MINUTE}) EMIT CHANGES",
    ),
    Case(
        "window_not_event_time",
        "TG-406",
        f"SELECT count(*) AS n FROM bids GROUP BY TUMBLE(other, {MINUTE})",
        f"SELECT count(*) AS n FROM bids GROUP BY TUMBLE(ts, {MINUTE})",
    ),
    Case(
        "window_not_event_time",
        "TG-406",
        f"SELECT max(n) AS n FROM (SELECT window_start AS t, count(*) AS n FROM bids "
        f"GROUP BY TUMBLE(ts, {MINUTE})) AS m GROUP BY HOP(t, {MINUTE}, INTERVAL '1' HOUR)",
        f"SELECT max(n) AS n FROM (SELECT window_time AS t, count(*) AS n FROM bids "
        f"GROUP BY TUMBLE(ts, {MINUTE})) AS m GROUP BY HOP(t, {MINUTE}, INTERVAL '1' HOUR)",
    ),
    Case(
        "join_without_bound",
        "TG-407",
        "SELECT b.price FROM bids AS b JOIN asks AS a ON a.auction = b.auction",
        "SELECT b.price FROM bids AS b JOIN asks AS a ON a.auction = b.auction AND a.ts = b.ts",
    ),
    Case(
        "join_without_bound",
        "TG-407",
        "SELECT b.price FROM bids AS b JOIN history AS h ON b.auction = h.k",
        "SELECT g.v FROM history AS g JOIN history AS h ON g.k = h.k",
    ),
    Case(
        "join_sides",
        "TG-417",
        "SELECT c.name FROM bids AS b FULL JOIN customers AS c ON b.bidder = c.id",
        "SELECT c.name FROM bids AS b LEFT JOIN customers AS c ON b.bidder = c.id",
    ),
    Case(
        "join_sides",
        "TG-417",
        "SELECT b.price FROM bids AS b ASOF JOIN asks AS a MATCH_CONDITION (b.price > a.price) "
        "ON b.auction = a.auction",
        "SELECT b.price FROM bids AS b ASOF JOIN asks AS a MATCH_CONDITION (b.ts > a.ts) "
        "ON b.auction = a.auction",
    ),
    Case(
        "temporal_join_versions",
        "TG-415",
        "SELECT r.rate FROM bids AS b JOIN rates FOR SYSTEM_TIME AS OF b.other AS r "
        "ON b.channel = r.currency",
        "SELECT r.rate FROM bids AS b JOIN rates FOR SYSTEM_TIME AS OF b.ts AS r "
        "ON b.channel = r.currency",
    ),
    Case(
        "distinct_without_bound",
        "TG-408",
        "SELECT DISTINCT auction FROM bids",
        "SELECT DISTINCT auction, ts FROM bids",
    ),
    Case(
        "distinct_without_bound",
        "TG-408",
        f"SELECT DISTINCT window_start FROM SESSION(bids, ts, {MINUTE})",
        f"SELECT DISTINCT window_end FROM SESSION(bids, ts, {MINUTE})",
    ),
    Case(
        "set_operation_without_bound",
        "TG-409",
        "SELECT auction FROM bids UNION SELECT auction FROM asks",
        "SELECT auction FROM bids UNION ALL SELECT auction FROM asks",
    ),
    Case(
        "set_operation_without_bound",
        "TG-409",
        "SELECT auction FROM bids EXCEPT SELECT auction FROM asks",
        "SELECT k FROM history EXCEPT SELECT v FROM history",
    ),
    Case(
        "subquery_predicate",
        "TG-410",
        "SELECT price FROM bids WHERE price = 1 OR auction IN (SELECT auction FROM asks)",
        "SELECT k FROM history WHERE k IN (SELECT v FROM history)",
    ),
    Case(
        "over_unsupported",
        "TG-411",
        "SELECT ntile(4) OVER (ORDER BY ts) AS x FROM bids",
        "SELECT lead(price) OVER (ORDER BY ts) AS x FROM bids",
    ),
    Case(
        "over_unsupported",
        "TG-411",
        "SELECT sum(price) OVER (ORDER BY price) AS x FROM bids",
        "SELECT sum(v) OVER (ORDER BY v DESC) AS x FROM history",
    ),
    Case(
        "match_unsupported",
        "TG-420",
        "SELECT * FROM bids MATCH_RECOGNIZE (ORDER BY ts MEASURES A.price AS p PATTERN (A B+))",
        "SELECT * FROM bids MATCH_RECOGNIZE (ORDER BY ts MEASURES A.price AS p PATTERN (A B{1,9}))",
    ),
    Case(
        "match_unsupported",
        "TG-421",
        "SELECT * FROM orders MATCH_RECOGNIZE (ORDER BY ts MEASURES A.id AS i PATTERN (A B))",
        "SELECT * FROM asks MATCH_RECOGNIZE (ORDER BY ts MEASURES A.price AS p PATTERN (A B))",
    ),
    Case(
        "lateness_without_window",
        "TG-412",
        "SELECT price FROM bids EMIT CHANGES LATE DATA TO late_rows",
        f"SELECT count(*) AS n FROM bids GROUP BY TUMBLE(ts, {MINUTE}) EMIT CHANGES "
        "LATE DATA TO late_rows",
    ),
    Case(
        "late_rows_of_several",
        "TG-418",
        "SELECT max(price) AS m FROM (SELECT channel AS price, ts FROM bids) "
        f"GROUP BY TUMBLE(ts, {MINUTE}) UNION ALL SELECT max(channel) AS m FROM bids "
        f"GROUP BY TUMBLE(ts, {MINUTE}) EMIT ON WINDOW CLOSE LATE DATA TO late_rows",
        f"SELECT max(channel) AS m FROM bids GROUP BY TUMBLE(ts, {MINUTE}) UNION ALL "
        f"SELECT max(channel) AS m FROM bids GROUP BY TUMBLE(ts, {MINUTE}) EMIT ON WINDOW CLOSE "
        "LATE DATA TO late_rows",
    ),
    Case(
        "late_rows_of_several",
        "TG-418",
        "SELECT a.seller FROM asks AS a JOIN (SELECT auction, channel AS price, ts FROM bids) AS b "
        f"ON a.auction = b.auction AND b.ts BETWEEN a.ts AND a.ts + {MINUTE} "
        "EMIT ON WINDOW CLOSE LATE DATA TO late_rows",
        "SELECT a.seller FROM asks AS a JOIN (SELECT auction, channel AS other, ts FROM bids) AS b "
        f"ON a.auction = b.auction AND b.ts BETWEEN a.ts AND a.ts + {MINUTE} "
        "EMIT ON WINDOW CLOSE LATE DATA TO late_rows",
    ),
    Case(
        "late_rows_of_several",
        "TG-418",
        "SELECT a.seller FROM asks AS a JOIN orders AS o ON a.auction = o.id "
        f"AND o.ts BETWEEN a.ts AND a.ts + {MINUTE} EMIT CHANGES LATE DATA TO late_rows",
        "SELECT a.seller FROM asks AS a JOIN bids AS b ON a.auction = b.auction "
        f"AND b.ts BETWEEN a.ts AND a.ts + {MINUTE} EMIT ON WINDOW CLOSE LATE DATA TO late_rows",
    ),
    Case(
        "volatile_in_state",
        "TG-414",
        "SELECT rand() AS r, count(*) AS n FROM bids GROUP BY rand() EMIT CHANGES",
        "SELECT rand() AS r, auction FROM bids",
    ),
    Case(
        "volatile_in_state",
        "TG-414",
        "SELECT id FROM orders WHERE rand() < 0.5",
        "SELECT auction FROM bids WHERE rand() < 0.5",
    ),
    Case(
        "emit_nothing_to_update",
        "TG-416",
        "SELECT price FROM bids EMIT ON UPDATE",
        "SELECT currency, rate FROM rates EMIT ON UPDATE",
    ),
    Case(
        "emit_nothing_to_update",
        "TG-416",
        "SELECT count(*) AS n FROM bids GROUP BY auction EMIT ON UPDATE",
        "SELECT auction, count(*) AS n FROM bids GROUP BY auction EMIT ON UPDATE",
    ),
]
IDS = [f"{item.check}-{index}" for index, item in enumerate(CASES)]


def test_every_check_has_a_case() -> None:
    assert {check.__name__ for check in CHECKS} == {item.check for item in CASES}


@pytest.mark.parametrize("item", CASES, ids=IDS)
def test_rejected(item: Case) -> None:
    errors = rejected(item.rejected, item.options)
    assert {error.code for error in errors} == {item.code}
    for error in errors:
        assert isinstance(error, ValidationError)
        assert error.location is not None
        assert error.location.line > 1, "the location is in the stream, not in its sources"
        assert error.path is not None
        assert "Source(" in error.path
        assert error.hint


@pytest.mark.parametrize("item", CASES, ids=IDS)
def test_accepted(item: Case) -> None:
    accepted(item.accepted, item.options)


@pytest.mark.parametrize("item", CASES, ids=IDS)
@pytest.mark.parametrize("by", ["session", "stream"])
def test_warn(item: Case, by: str) -> None:
    script = as_stream(item.rejected, "validator = 'warn'" if by == "stream" else "")
    compiled = compile_with_sources(("SET validator = 'warn';" if by == "session" else "") + script)
    assert not compiled.errors
    assert {warning.code for warning in compiled.warnings} == {item.code}
    assert compiled.warnings[0].render("warning").startswith(f"warning[{item.code}]: ")
    assert compiled.catalog.get("s") is not None


@pytest.mark.parametrize("item", CASES, ids=IDS)
@pytest.mark.parametrize("by", ["session", "stream"])
def test_off(item: Case, by: str) -> None:
    script = as_stream(item.rejected, "validator = 'off'" if by == "stream" else "")
    compiled = compile_with_sources(("SET validator = 'off';" if by == "session" else "") + script)
    assert not compiled.errors
    assert not compiled.warnings
    assert compiled.catalog.get("s") is not None


def test_stream_option_overrides_session_setting() -> None:
    item = CASES[0]
    off_but_strict = "SET validator = 'off';" + as_stream(item.rejected, "validator = 'reject'")
    assert [error.code for error in compile_with_sources(off_but_strict).errors] == [item.code]


SINK = "CREATE SINK out FROM s WITH (connector = 'files', path = 'x'{});"
CHANGES = "SELECT auction, count(*) AS n FROM bids GROUP BY auction EMIT CHANGES"


def test_sink_changelog_in_all_modes() -> None:
    rejection = compile_with_sources(as_stream(CHANGES) + SINK.format("")).errors
    assert [error.code for error in rejection] == ["TG-413"]
    assert rejection[0].path == "Emit → Aggregate → Source(bids)"
    column = compile_with_sources(as_stream(CHANGES) + SINK.format(", changelog = 'column'"))
    assert not column.errors
    closed = f"SELECT count(*) AS n FROM bids GROUP BY TUMBLE(ts, {MINUTE})"
    assert not compile_with_sources(as_stream(closed) + SINK.format("")).errors
    warned = compile_with_sources(as_stream(CHANGES, "validator = 'warn'") + SINK.format(""))
    assert not warned.errors
    assert [warning.code for warning in warned.warnings] == ["TG-413"]
    off = compile_with_sources("SET validator = 'off';" + as_stream(CHANGES) + SINK.format(""))
    assert not off.errors
    assert not off.warnings


def test_reports_all_findings_in_the_order_of_the_text() -> None:
    errors = rejected(
        "SELECT DISTINCT b.auction FROM bids AS b JOIN asks AS a ON a.auction = b.auction "
        "ORDER BY b.auction LIMIT 3"
    )
    assert [error.code for error in errors] == ["TG-408", "TG-407", "TG-402"]


def test_does_not_check_streams_that_a_query_reads() -> None:
    compiled = compile_with_sources(
        "CREATE STREAM open WITH (validator = 'off') AS SELECT DISTINCT auction FROM bids;"
        "CREATE STREAM s AS SELECT auction FROM open;"
    )
    assert not compiled.errors


def test_readers_of_an_invalid_stream_report_no_errors() -> None:
    compiled = compile_with_sources(
        "CREATE STREAM one AS SELECT prise FROM bids; CREATE STREAM two AS SELECT * FROM one;"
        "CREATE SINK out FROM two WITH (connector = 'console');"
    )
    assert [error.code for error in compiled.errors] == ["TG-301"]


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM bids",
        "SELECT k, count(*) AS n, max(v) AS top FROM history GROUP BY k ORDER BY n DESC LIMIT 10",
        "SELECT count(*) AS n FROM history",
        "SELECT DISTINCT k FROM history ORDER BY k",
        "SELECT k, sum(v) OVER (PARTITION BY k) AS total FROM history",
        "SELECT a.k FROM history AS a LEFT JOIN history AS b ON a.k = b.v",
        f"SELECT window_end, count(*) AS n FROM history GROUP BY TUMBLE(ts, {MINUTE}) ORDER BY n",
        "SELECT k FROM history INTERSECT SELECT v FROM history",
    ],
)
def test_bounded_input_is_accepted(query: str) -> None:
    accepted(query)


@pytest.mark.parametrize(
    ("query", "code"),
    [
        # Each of these was accepted once, with wrong results.
        (
            "SELECT b.price FROM bids AS b JOIN asks AS a ON max(b.price) = a.price AND a.ts = b.ts",
            "TG-305",
        ),
        ("SELECT price FROM bids QUALIFY price > 3", "TG-305"),
        ("SELECT max(lag(price) OVER (ORDER BY ts)) AS x FROM bids EMIT CHANGES", "TG-305"),
        ("SELECT TUMBLE(ts, INTERVAL '1' MINUTE) AS w FROM bids", "TG-306"),
        ("SELECT PROCTIME() AS p FROM bids", "TG-305"),
        ("SELECT auction, count(*) AS n FROM bids GROUP BY ALL bidder EMIT CHANGES", "TG-103"),
        ("SELECT * FROM TUMBLE(customers, id, INTERVAL '1' MINUTE)", "TG-417"),
        (
            "SELECT r.rate FROM (SELECT channel, window_start AS t, max(price) AS p FROM bids "
            "GROUP BY channel, TUMBLE(ts, INTERVAL '1' MINUTE)) AS b "
            "JOIN rates FOR SYSTEM_TIME AS OF b.t AS r ON b.channel = r.currency",
            "TG-415",
        ),
        (
            "SELECT sum(n) OVER (ORDER BY window_start) AS x FROM (SELECT window_start, "
            "count(*) AS n FROM bids GROUP BY TUMBLE(ts, INTERVAL '1' MINUTE)) AS m",
            "TG-411",
        ),
        (
            "SELECT x.k FROM TUMBLE(plain, ts, INTERVAL '1' MINUTE) AS x JOIN "
            "TUMBLE(plain, ts, INTERVAL '1' MINUTE) AS y ON x.window_end = y.window_end EMIT CHANGES",
            "TG-405",
        ),
        (
            "SELECT auction, price FROM TUMBLE(bids, ts, INTERVAL '1' MINUTE) QUALIFY "
            "row_number() OVER (PARTITION BY auction ORDER BY price) = 1 EMIT ON WINDOW CLOSE",
            "TG-404",
        ),
        (
            "SELECT auction, price FROM bids QUALIFY "
            "row_number() OVER (PARTITION BY auction ORDER BY price) <= rand() * 3",
            "TG-414",
        ),
        (
            "SELECT auction, count(*) AS n, uuid() AS u FROM bids GROUP BY auction EMIT CHANGES",
            "TG-414",
        ),
        ("SELECT TRANSFORM (price) USING 'cat' AS (x) FROM bids", "TG-103"),
    ],
)
def test_query_without_defined_result_is_rejected(query: str, code: str) -> None:
    assert code in {error.code for error in rejected(query)}
