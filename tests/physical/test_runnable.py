"""Accepted queries that cannot run are rejected before they start, with their location."""

from __future__ import annotations

import pytest

from tests.support.compiling import SOURCES, accepted, compile_text, rejected
from tidegate.catalog.objects import Stream
from tidegate.compile.compiler import Compiler
from tidegate.connectors.registry import CONNECTORS
from tidegate.errors import RunError
from tidegate.physical.rejections import find_rejections, require_end
from tidegate.types import ChangelogKind

MINUTE = "INTERVAL '1' MINUTE"
TTL = "WITH (state_ttl = '1 day')"


def stream_of(query: str, options: str = "") -> Stream:
    compiled = compile_text(f"{SOURCES}CREATE STREAM s {options} AS {query};")
    assert not compiled.errors, "\n".join(error.render() for error in compiled.errors)
    stream = compiled.catalog.get("s")
    assert isinstance(stream, Stream)
    return stream


def check_runnable(stream: Stream) -> None:
    """Raise the first error of a stream that cannot run."""
    for error in find_rejections(stream, stream.plan):
        raise error


def check_bounded(stream: Stream) -> None:
    require_end(stream, stream.plan)


def marked_text(error: RunError) -> str:
    assert error.location is not None
    return error.location.text[error.location.start : error.location.end]


def test_rejects_emit_every_over_sessions() -> None:
    sessions = f"SELECT window_start, window_end FROM bids GROUP BY SESSION(ts, {MINUTE}) "
    with pytest.raises(RunError) as caught:
        check_runnable(stream_of(f"{sessions} EMIT EVERY INTERVAL '10' SECOND"))
    assert caught.value.code == "TG-501"
    assert marked_text(caught.value) == "EMIT EVERY INTERVAL '10' SECOND"
    assert "EMIT ON UPDATE" in (caught.value.hint or "")
    check_runnable(stream_of(f"{sessions} EMIT ON UPDATE"))


@pytest.mark.parametrize(
    ("query", "instead"),
    [
        ("SELECT v FROM history LIMIT 3", "row_number() OVER (ORDER BY v) <= 3"),
        (
            "SELECT v FROM history ORDER BY v DESC LIMIT 3 OFFSET 2",
            "row_number() OVER (ORDER BY v DESC) BETWEEN 3 AND 5",
        ),
        (
            "SELECT v FROM history ORDER BY v DESC",
            "row_number() OVER (ORDER BY v DESC) <= 10",
        ),
    ],
)
def test_hints_of_sort_and_limit_run(query: str, instead: str) -> None:
    with pytest.raises(RunError) as caught:
        check_runnable(stream_of(query))
    assert f"QUALIFY {instead}" in (caught.value.hint or "")
    check_runnable(stream_of(f"SELECT v FROM history QUALIFY {instead}"))


@pytest.mark.parametrize(
    ("unbounded", "marked", "alternative"),
    [
        (
            "SELECT k, count(*) AS n FROM history GROUP BY k",
            "GROUP BY",
            "SELECT k, count(*) AS n FROM history GROUP BY k EMIT CHANGES",
        ),
        (
            "SELECT count(*) AS n FROM (SELECT k FROM history GROUP BY k) EMIT ON WINDOW CLOSE",
            "count(*)",
            "SELECT count(*) AS n FROM (SELECT k FROM history GROUP BY k) EMIT ON UPDATE",
        ),
        (
            f"SELECT window_end, count(*) AS n FROM history GROUP BY TUMBLE(ts, {MINUTE})",
            "GROUP BY",
            f"SELECT window_end, count(*) AS n FROM bids GROUP BY TUMBLE(ts, {MINUTE})",
        ),
        (
            f"SELECT k, window_end FROM TUMBLE(history, ts, {MINUTE}) EMIT ON WINDOW CLOSE",
            "TUMBLE",
            f"SELECT auction, window_end FROM TUMBLE(bids, ts, {MINUTE}) EMIT ON WINDOW CLOSE",
        ),
    ],
)
def test_requires_until_end_for_queries_that_wait_for_the_end(
    unbounded: str, marked: str, alternative: str
) -> None:
    with pytest.raises(RunError) as caught:
        check_bounded(stream_of(unbounded))
    assert caught.value.code == "TG-505"
    assert marked in marked_text(caught.value)
    assert "--until-end" in (caught.value.hint or "")
    check_bounded(stream_of(alternative))


def test_points_at_the_name_of_a_stream_from_another_script() -> None:
    first = compile_text(
        f"{SOURCES}CREATE STREAM totals AS SELECT k, count(*) AS n FROM history GROUP BY k;"
    )
    second = Compiler(CONNECTORS, first.catalog).compile(
        "CREATE STREAM s AS SELECT k FROM totals WHERE n > 1;"
    )
    stream = second.catalog.get("s")
    assert isinstance(stream, Stream)
    with pytest.raises(RunError) as caught:
        check_bounded(stream)
    assert marked_text(caught.value) == "totals"


@pytest.mark.parametrize(
    ("rejected", "reason", "runs"),
    [
        (
            "SELECT auction, price FROM (SELECT *, row_number() OVER (PARTITION BY auction "
            "ORDER BY ts) AS n FROM bids) WHERE n <= price + 1 EMIT CHANGES",
            "must be a whole number",
            "SELECT auction, price FROM (SELECT *, row_number() OVER (PARTITION BY auction "
            "ORDER BY ts) AS n FROM bids) WHERE n <= 3 EMIT CHANGES",
        ),
        (
            "SELECT l.w, r.n FROM (SELECT window_end AS w, count(*) AS n FROM bids GROUP BY "
            f"TUMBLE(ts, {MINUTE})) l JOIN (SELECT window_end AS w, count(*) AS n FROM asks GROUP "
            f"BY TUMBLE(ts, {MINUTE})) r ON l.w = r.w EMIT ON WINDOW CLOSE "
            "ALLOW LATENESS INTERVAL '5' SECOND",
            "retracted",
            "SELECT l.w, r.n FROM (SELECT window_end AS w, count(*) AS n FROM bids GROUP BY "
            f"TUMBLE(ts, {MINUTE})) l JOIN (SELECT window_end AS w, count(*) AS n FROM asks GROUP "
            f"BY TUMBLE(ts, {MINUTE})) r ON l.w = r.w EMIT ON WINDOW CLOSE",
        ),
        (
            "SELECT sum(price) OVER (ORDER BY ts GROUPS BETWEEN 1 PRECEDING AND CURRENT ROW) AS x "
            "FROM bids",
            "GROUPS",
            "SELECT sum(price) OVER (ORDER BY ts ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) AS x "
            "FROM bids",
        ),
        (
            "SELECT sum(price) OVER (ORDER BY ts ROWS BETWEEN 1 + 1 PRECEDING AND CURRENT ROW) AS "
            "x FROM bids",
            "must be constants",
            "SELECT sum(price) OVER (ORDER BY ts ROWS 2 PRECEDING) AS x FROM bids",
        ),
        (
            "SELECT lag(price, price) OVER (ORDER BY ts) AS x FROM bids",
            "the number of rows must be a constant",
            "SELECT lag(price, 3, 0) OVER (ORDER BY ts) AS x FROM bids",
        ),
        (
            "SELECT row_number() OVER (ORDER BY PROCTIME() DESC) AS x FROM bids EMIT CHANGES",
            "would renumber all rows",
            "SELECT price FROM bids QUALIFY row_number() OVER (ORDER BY PROCTIME() DESC) <= 10 "
            "EMIT CHANGES",
        ),
        (
            "SELECT nth_value(price, 0) OVER (ORDER BY ts) AS x FROM bids",
            "at least 1",
            "SELECT nth_value(price, 1) OVER (ORDER BY ts) AS x FROM bids",
        ),
        (
            "SELECT histogram_numeric(price, 3) OVER (ORDER BY ts) AS x FROM bids",
            "histogram_numeric is not supported",
            "SELECT count(DISTINCT price) FILTER (WHERE price > 1) OVER (ORDER BY ts) AS x FROM bids",
        ),
    ],
)
def test_rejects_unsupported_joins_and_rankings(rejected: str, reason: str, runs: str) -> None:
    with pytest.raises(RunError) as caught:
        check_runnable(stream_of(rejected, TTL))
    assert caught.value.code == "TG-501"
    assert reason in caught.value.message
    assert caught.value.location is not None and caught.value.hint
    check_runnable(stream_of(runs, TTL))


def test_rejects_emit_every_without_an_aggregate() -> None:
    last = (
        "SELECT auction, price FROM bids "
        "QUALIFY row_number() OVER (PARTITION BY auction ORDER BY ts DESC) = 1 "
    )
    with pytest.raises(RunError) as caught:
        check_runnable(stream_of(f"{last} EMIT EVERY INTERVAL '10' SECOND", TTL))
    assert caught.value.code == "TG-501"
    assert marked_text(caught.value) == "EMIT EVERY INTERVAL '10' SECOND"
    check_runnable(stream_of(f"{last} EMIT ON UPDATE", TTL))
    counts = "SELECT auction, count(*) AS n FROM bids GROUP BY auction"
    check_runnable(stream_of(f"{counts} EMIT EVERY INTERVAL '10' SECOND", TTL))


def test_rejects_distinct_over_changes_for_lack_of_a_key() -> None:
    """DISTINCT emits a delete and an insert in no order, so a key would have no last row."""
    counts = "SELECT k, count(*) AS n FROM plain GROUP BY k"
    options = "state_ttl = '1 day'"
    (error,) = rejected(f"SELECT DISTINCT k, n FROM ({counts}) EMIT ON UPDATE", options)
    assert error.code == "TG-416" and "EMIT CHANGES" in (error.hint or "")
    plan = accepted(f"SELECT DISTINCT k, n FROM ({counts}) EMIT CHANGES", options)
    assert plan.changelog is ChangelogKind.CHANGELOG
    assert plan.key is None
    assert accepted(f"SELECT k, n FROM ({counts}) EMIT ON UPDATE").key is not None


def test_reports_streams_that_cannot_run() -> None:
    compiled = Compiler(CONNECTORS).compile(
        "CREATE SOURCE bids (price BIGINT) WITH (connector = 'memory');"
        + "CREATE STREAM a AS SELECT histogram_numeric(price, 3) AS x FROM bids EMIT CHANGES;"
    )
    assert not compiled.errors
    (error,) = compiled.rejections
    assert (error.code, error.location is not None, bool(error.hint)) == ("TG-501", True, True)
    assert error.message == "the aggregate histogram_numeric is not supported yet"
