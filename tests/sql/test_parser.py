"""The parser: statements, their spans, and syntax errors."""

from __future__ import annotations

import dataclasses
import re

import pytest
from sqlglot import exp

from tidegate.errors import TidegateError
from tidegate.sql import statements as st
from tidegate.sql.dialect import to_sql
from tidegate.sql.expressions import spark_functions
from tidegate.sql.parser import parse_script
from tidegate.types import Span


def parse_one(text: str) -> st.Statement:
    """Parse a text with one statement."""
    script = parse_script(text)
    assert not script.errors, script.errors[0]
    (statement,) = script.statements
    return statement


def syntax_error(text: str) -> TidegateError:
    """Return the only error of a text."""
    (error,) = parse_script(text).errors
    assert isinstance(error, TidegateError)
    return error


def source_text(text: str, span: Span | None) -> str:
    assert span is not None
    return text[span.start : span.end]


SOURCE = """CREATE SOURCE IF NOT EXISTS bids (
    auction BIGINT NOT NULL, bidder BIGINT, price DECIMAL(18, 2), channel STRING,
    tags ARRAY<STRUCT<name: STRING, weights: MAP<STRING, DOUBLE>>>,
    ms BIGINT, ts AS timestamp_millis(ms),   -- computed column
    PRIMARY KEY (auction, bidder),
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'kafka', topic = 'bids', format = json, idle_timeout = '30 s', kafka.group.id = x,
        rows = 10, offset = -3);"""


def test_create_source() -> None:
    source = parse_one(SOURCE)
    assert isinstance(source, st.CreateSource)
    assert (source.name, source.if_not_exists) == ("bids", True)
    names = [column.name for column in source.columns]
    assert names == ["auction", "bidder", "price", "channel", "tags", "ms", "ts"]
    types = [column.type for column in source.columns]
    assert types[:4] == ["BIGINT", "BIGINT", "DECIMAL(18, 2)", "STRING"]
    assert types[4] == "ARRAY<STRUCT<name: STRING, weights: MAP<STRING, DOUBLE>>>"
    assert [column.not_null for column in source.columns] == [True] + [False] * 6
    assert source.columns[-1].computed is not None
    assert to_sql(source.columns[-1].computed) == "TIMESTAMP_MILLIS(ms)"
    assert source.primary_key == ("auction", "bidder")
    assert source.watermark is not None
    assert (source.watermark.column, source.watermark.delay_us) == ("ts", 5_000_000)
    options = {option.name: option.value for option in source.options}
    assert options == {
        "connector": "kafka",
        "topic": "bids",
        "format": "json",
        "idle_timeout": "30 s",
        "kafka.group.id": "x",
        "rows": "10",
        "offset": "-3",
    }


def test_spans_of_create_source() -> None:
    source = parse_one(SOURCE)
    assert isinstance(source, st.CreateSource)
    assert source_text(SOURCE, source.span) == SOURCE.rstrip(";") == source.text
    assert source_text(SOURCE, source.name_span) == "bids"
    assert source_text(SOURCE, source.columns[0].span) == "auction BIGINT"
    assert source_text(SOURCE, source.columns[-1].span) == "ts AS timestamp_millis(ms)"
    assert source_text(SOURCE, source.primary_key_span) == "PRIMARY KEY (auction, bidder)"
    assert source.watermark is not None
    assert (
        source_text(SOURCE, source.watermark.span) == "WATERMARK FOR ts AS ts - INTERVAL '5' SECOND"
    )
    assert source_text(SOURCE, source.options[-1].span) == "offset = -3"
    assert source_text(SOURCE, source.options[0].value_span) == "'kafka'"


@pytest.mark.parametrize(
    ("column", "key"),
    [("id BIGINT PRIMARY KEY NOT NULL", ("id",)), ("id BIGINT NOT NULL PRIMARY KEY", ("id",))],
)
def test_primary_key_of_columns(column: str, key: tuple[str, ...]) -> None:
    source = parse_one(f"CREATE SOURCE s ({column}) WITH (connector = 'memory')")
    assert isinstance(source, st.CreateSource)
    assert source.primary_key == key
    assert source.columns[0].not_null


@pytest.mark.parametrize(
    ("watermark", "delay_us"),
    [
        ("ts", 0),
        ("(ts)", 0),
        ("TS - INTERVAL 3 MINUTES", 180_000_000),
        ("ts - INTERVAL '1 hour 30 minutes'", 5_400_000_000),
        ("ts - INTERVAL '250' MILLISECOND", 250_000),
    ],
)
def test_watermark_delays(watermark: str, delay_us: int) -> None:
    text = f"CREATE SOURCE s (ts TIMESTAMP, WATERMARK FOR ts AS {watermark}) WITH (connector = 'm')"
    source = parse_one(text)
    assert isinstance(source, st.CreateSource)
    assert source.watermark is not None
    assert source.watermark.delay_us == delay_us


STREAM = """CREATE STREAM per_minute WITH (state_ttl = '1 day') AS
SELECT auction, window_start, window_end, count(*) AS n, max(price) AS top
FROM bids
GROUP BY auction, TUMBLE(ts, INTERVAL '1' MINUTE)
EMIT ON WINDOW CLOSE ALLOW LATENESS INTERVAL '30' SECOND LATE DATA TO late_bids"""


def test_create_stream() -> None:
    stream = parse_one(STREAM)
    assert isinstance(stream, st.CreateStream)
    assert stream.name == "per_minute"
    assert stream.options[0].name == "state_ttl"
    assert isinstance(stream.query.tree, exp.Select)
    emit = stream.query.emit
    assert emit is not None
    assert emit.mode is st.EmitMode.WINDOW_CLOSE
    assert (emit.lateness_us, emit.late_to) == (30_000_000, "late_bids")
    assert source_text(STREAM, emit.span).startswith("EMIT ON WINDOW CLOSE")
    assert source_text(STREAM, emit.lateness_span) == "ALLOW LATENESS INTERVAL '30' SECOND"
    assert source_text(STREAM, emit.late_to_span) == "late_bids"
    assert source_text(STREAM, stream.query.span).startswith("SELECT auction")


@pytest.mark.parametrize(
    ("clause", "mode", "every_us"),
    [
        ("EMIT ON WINDOW CLOSE", st.EmitMode.WINDOW_CLOSE, None),
        ("EMIT FINAL", st.EmitMode.WINDOW_CLOSE, None),
        ("emit after watermark", st.EmitMode.WINDOW_CLOSE, None),
        ("EMIT ON UPDATE", st.EmitMode.UPDATE, None),
        ("Emit Changes", st.EmitMode.CHANGES, None),
        ("EMIT EVERY INTERVAL '10' SECOND", st.EmitMode.EVERY, 10_000_000),
        ("EMIT EVERY INTERVAL 2 minutes LATE DATA TO x", st.EmitMode.EVERY, 120_000_000),
    ],
)
def test_emit_synonyms(clause: str, mode: st.EmitMode, every_us: int | None) -> None:
    stream = parse_one(f"CREATE STREAM s AS SELECT a FROM t {clause}")
    assert isinstance(stream, st.CreateStream)
    assert stream.query.emit is not None
    assert (stream.query.emit.mode, stream.query.emit.every_us) == (mode, every_us)


def test_late_data_before_lateness() -> None:
    stream = parse_one(
        "CREATE STREAM s AS SELECT a FROM t EMIT FINAL LATE DATA TO l ALLOW LATENESS INTERVAL '1' DAY"
    )
    assert isinstance(stream, st.CreateStream)
    assert stream.query.emit is not None
    assert (stream.query.emit.late_to, stream.query.emit.lateness_us) == ("l", 86_400_000_000)


@pytest.mark.parametrize(
    "select", ["emit", "a AS emit, b", "t.emit", "`emit` AS x", "'EMIT FINAL'"]
)
def test_emit_can_be_a_name(select: str) -> None:
    stream = parse_one(f"CREATE STREAM s AS SELECT {select} FROM t")
    assert isinstance(stream, st.CreateStream)
    assert stream.query.emit is None


def test_create_sink_and_lookup_table() -> None:
    sink = parse_one("CREATE SINK out FROM per_minute WITH (connector = 'kafka')")
    assert isinstance(sink, st.CreateSink)
    assert (sink.name, sink.source) == ("out", "per_minute")
    table = parse_one(
        "CREATE LOOKUP TABLE customers (id BIGINT, name STRING, PRIMARY KEY (id)) "
        "WITH (connector = 'postgres', cache_rows = 100000, cache_ttl = '10 min')"
    )
    assert isinstance(table, st.CreateLookupTable)
    assert table.primary_key == ("id",)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("DROP SOURCE a", (st.ObjectKind.SOURCE, "a", False)),
        ("drop stream if exists `b c`", (st.ObjectKind.STREAM, "b c", True)),
        ("DROP SINK c", (st.ObjectKind.SINK, "c", False)),
        ("DROP LOOKUP TABLE d", (st.ObjectKind.LOOKUP_TABLE, "d", False)),
    ],
)
def test_drop(text: str, expected: tuple[st.ObjectKind, str, bool]) -> None:
    drop = parse_one(text)
    assert isinstance(drop, st.Drop)
    assert (drop.kind, drop.name, drop.if_exists) == expected


@pytest.mark.parametrize("kind", ["SOURCES", "STREAMS", "SINKS", "LOOKUP TABLES", "CHECKPOINTS"])
def test_show(kind: str) -> None:
    show = parse_one(f"show {kind.lower()}")
    assert isinstance(show, st.Show)
    assert show.kind == kind


def test_other_statements() -> None:
    assert isinstance(parse_one("SHOW CREATE bids"), st.ShowCreate)
    assert isinstance(parse_one("DESCRIBE bids"), st.Describe)
    assert isinstance(parse_one("desc bids"), st.Describe)
    assert isinstance(parse_one("CHECKPOINT"), st.CreateCheckpoint)
    restore = parse_one("RESTORE FROM CHECKPOINT 17")
    assert isinstance(restore, st.Restore)
    assert (restore.epoch, restore.name) == (17, None)


def test_checkpoint_names_are_strings() -> None:
    checkpoint = parse_one("CHECKPOINT 'before upgrade'")
    assert isinstance(checkpoint, st.CreateCheckpoint) and checkpoint.name == "before upgrade"
    drop = parse_one("DROP CHECKPOINT IF EXISTS 'x'")
    assert isinstance(drop, st.DropCheckpoint)
    assert (drop.name, drop.if_exists) == ("x", True)
    restore = parse_one("RESTORE FROM CHECKPOINT '17' WITH (sinks = 'keep')")
    assert isinstance(restore, st.Restore)
    assert (restore.epoch, restore.name) == (None, "17")
    assert [(option.name, option.value) for option in restore.options] == [("sinks", "keep")]
    setting = parse_one("SET validator = 'warn'")
    assert isinstance(setting, st.Set)
    assert (setting.key, setting.value) == ("validator", "warn")
    by_name = parse_one("EXPLAIN STREAM s")
    assert isinstance(by_name, st.Explain)
    assert (by_name.stream, by_name.query, by_name.logical) == ("s", None, False)
    by_query = parse_one("EXPLAIN SELECT a FROM t EMIT CHANGES")
    assert isinstance(by_query, st.Explain)
    assert by_query.query is not None
    assert by_query.query.emit is not None
    for text in ("EXPLAIN LOGICAL STREAM s", "EXPLAIN LOGICAL SELECT a FROM t"):
        logical = parse_one(text)
        assert isinstance(logical, st.Explain)
        assert logical.logical


def test_insert() -> None:
    insert = parse_one("INSERT INTO trades (id, name) VALUES (1, 'a'), (2, 'it''s')")
    assert isinstance(insert, st.Insert)
    assert (insert.target, insert.columns) == ("trades", ("id", "name"))
    assert isinstance(insert.tree, exp.Values)
    assert len(insert.tree.expressions) == 2
    assert isinstance(parse_one("INSERT INTO trades SELECT 1, 'a'"), st.Insert)


QUERIES = """
SELECT a, count(*) FROM t GROUP BY a, TUMBLE(ts, INTERVAL '1' MINUTE)
SELECT a FROM t GROUP BY a, TUMBLE(ts, INTERVAL '1' DAY, INTERVAL '-8' HOUR)
SELECT a FROM t GROUP BY a, HOP(ts, INTERVAL '10' SECOND, INTERVAL '1' MINUTE)
SELECT a FROM t GROUP BY a, SESSION(ts, INTERVAL '10' MINUTE)
SELECT a FROM t GROUP BY a, CUMULATE(ts, INTERVAL '1' HOUR, INTERVAL '1' DAY)
SELECT a, session FROM TUMBLE(bids, ts, INTERVAL '1' MINUTE) AS b
SELECT a FROM SESSION(bids, ts, INTERVAL '1' MINUTE) AS b
SELECT a.x FROM a JOIN b ON a.k = b.k AND b.ts BETWEEN a.ts - INTERVAL '1' MINUTE AND a.ts
SELECT a.x FROM TUMBLE(a, ts, INTERVAL '1' DAY) AS a JOIN TUMBLE(b, ts, INTERVAL '1' DAY) AS b ON a.window_start = b.window_start
SELECT r.x FROM orders AS o JOIN rates FOR SYSTEM_TIME AS OF o.ts AS r ON o.currency = r.currency
SELECT r.x FROM o JOIN (SELECT * FROM rates) FOR SYSTEM_TIME AS OF o.ts AS r ON o.c = r.c
SELECT q.x FROM t ASOF JOIN quotes AS q MATCH_CONDITION (t.ts >= q.ts) ON t.symbol = q.symbol
SELECT q.x FROM t ASOF LEFT JOIN quotes AS q MATCH_CONDITION (t.ts >= q.ts) ON t.symbol = q.symbol
SELECT c.name FROM orders AS o LEFT JOIN customers FOR SYSTEM_TIME AS OF PROCTIME() AS c ON o.id = c.id
SELECT a.x FROM a LEFT JOIN b ON true RIGHT JOIN c ON true FULL OUTER JOIN d ON true
SELECT a.x FROM a SEMI JOIN b ON a.k = b.k LEFT ANTI JOIN c ON a.k = c.k
SELECT x FROM a JOIN b USING (k), c CROSS JOIN d
SELECT x FROM t QUALIFY row_number() OVER (PARTITION BY k ORDER BY ts DESC) <= 3
SELECT x FROM (SELECT x, rank() OVER (PARTITION BY k ORDER BY ts) AS r FROM t) WHERE r <= 3
SELECT sum(x) OVER (PARTITION BY k ORDER BY ts ROWS BETWEEN 5 PRECEDING AND CURRENT ROW) FROM t
SELECT sum(x) OVER (ORDER BY ts RANGE BETWEEN INTERVAL '1' HOUR PRECEDING AND CURRENT ROW) FROM t
SELECT DISTINCT a, b FROM t
SELECT a FROM t UNION ALL SELECT a FROM u UNION SELECT a FROM v
SELECT a FROM t INTERSECT SELECT a FROM u EXCEPT SELECT a FROM v
WITH x AS (SELECT * FROM t), y (a, b) AS (SELECT * FROM x) SELECT a FROM y
SELECT x FROM t LATERAL VIEW OUTER explode(xs) e AS x
SELECT a FROM t WHERE a IN (SELECT b FROM u) AND EXISTS (SELECT 1 FROM v) AND c > (SELECT max(d) FROM w)
SELECT a, window_end FROM TUMBLE(t, ts, INTERVAL '1' MINUTE) ORDER BY a DESC NULLS LAST LIMIT 3
SELECT * EXCEPT (a), t.*, s.field.inner, arr[0], map['k'], 1 + 2 AS three FROM t
SELECT count(*) FILTER (WHERE a > 1), count(DISTINCT b), percentile_cont(0.5) WITHIN GROUP (ORDER BY c) FROM t
SELECT CASE WHEN a THEN 1 ELSE 2 END, CAST(b AS DECIMAL(10, 2)), c :: STRING, d <=> e, NOT f FROM t
SELECT transform(xs, x -> x + 1), aggregate(xs, 0, (acc, x) -> acc + x), `quoted name`, r'raw\\n' FROM t
SELECT a FROM VALUES (1, 'x'), (2, 'y') AS v (a, b)
SELECT 1 AS one
(SELECT a FROM t)
""".strip().splitlines()


@pytest.mark.parametrize("query", QUERIES)
def test_query_is_parsed(query: str) -> None:
    stream = parse_one(f"CREATE STREAM s AS {query} EMIT CHANGES;")
    assert isinstance(stream, st.CreateStream)
    printed = to_sql(stream.query.tree)
    reparsed = parse_one(f"EXPLAIN {printed}")
    assert isinstance(reparsed, st.Explain)
    assert reparsed.query is not None
    assert to_sql(reparsed.query.tree) == printed


def test_statements_are_frozen() -> None:
    statement = parse_one("CHECKPOINT")
    with pytest.raises(dataclasses.FrozenInstanceError):
        statement.text = "x"  # type: ignore[misc]


def test_statements_with_comments_between() -> None:
    text = """
    -- one; not two
    CHECKPOINT; /* SHOW
    SINKS; */ SHOW STREAMS;;
    SET validator = 'a;b' -- the end
    """
    script = parse_script(text)
    assert not script.errors
    assert [type(item) for item in script.statements] == [st.CreateCheckpoint, st.Show, st.Set]
    assert [source_text(text, item.span) for item in script.statements] == [
        "CHECKPOINT",
        "SHOW STREAMS",
        "SET validator = 'a;b'",
    ]


@pytest.mark.parametrize("text", ["", "   \n", ";;;", "-- nothing", "/* nothing */"])
def test_empty_text_has_no_statements(text: str) -> None:
    script = parse_script(text)
    assert (script.statements, script.errors) == ((), ())


def test_keywords_ignore_case_and_names_can_be_quoted() -> None:
    text = "create Source `my source` (`a b` bigint not null, primary key (`a b`)) With (Connector = 'm')"
    source = parse_one(text)
    assert isinstance(source, st.CreateSource)
    assert (source.name, source.columns[0].name, source.primary_key) == (
        "my source",
        "a b",
        ("a b",),
    )
    assert source.columns[0].not_null
    assert source_text(text, source.name_span) == "`my source`"


def test_keywords_can_be_names() -> None:
    text = "SELECT session, watermark, source, stream, sink, lookup, checkpoint, late, data FROM t"
    assert isinstance(parse_one(f"CREATE STREAM stream AS {text}"), st.CreateStream)


@pytest.mark.parametrize(
    ("text", "message", "location"),
    [
        ("CREATE STREAM s SELECT 1", "expected AS, found SELECT", "SELECT"),
        ("CREATE STREAM s AS", "expected a query, found the end of the statement", "S"),
        ("CREATE SOURCE s (k BIGINT)", "expected WITH, found the end of the statement", ")"),
        (
            "CREATE SOURCE 1 (k BIGINT) WITH (a = 1)",
            "expected the name of the source, found 1",
            "1",
        ),
        ("CREATE SOURCE a.b WITH (a = 1)", "a.b: qualified names are not supported", "."),
        (
            "CREATE SOURCE s (k BIGINT WITH (a = 1)",
            "BIGINT WITH (a = 1) is not a type",
            "BIGINT WITH (a = 1)",
        ),
        ("CREATE SOURCE s (k) WITH (a = 1)", "the column k needs a type", "k"),
        ("CREATE SOURCE s (k INT) WITH (a 1)", "expected =, found 1", "1"),
        ("CREATE SOURCE s (k INT) WITH (a = )", "expected a value, found )", ")"),
        (
            "CREATE SOURCE s (k INT) WITH (a = 1) x",
            "expected the end of the statement, found x",
            "x",
        ),
        ("CREATE TABLE s (k INT)", "CREATE TABLE is not a statement", "TABLE"),
        ("CREATE STREAM s AS DELETE FROM t", "expected a query, found DELETE", "DELETE"),
        ("DROP", "expected a kind of object after DROP, found the end of the statement", "P"),
        ("INSERT INTO t DELETE", "expected VALUES, found DELETE", "DELETE"),
        ("SHOW", "expected a kind of object after SHOW, found the end of the statement", "W"),
        ("EXPLAIN STREAM", "expected a stream, found the end of the statement", "M"),
        ("CREATE STREAM s AS SELECT a FROM t EMIT ON", "EMIT ON is not a valid EMIT clause", "ON"),
        (
            "CREATE STREAM s AS SELECT a FROM t EMIT FINAL SOON",
            "unexpected SOON in the EMIT clause",
            "SOON",
        ),
        ("CREATE STREAM s AS SELECT a FROM t EMIT EVERY", "EMIT EVERY needs an interval", "Y"),
        ("CREATE STREAM s AS SELECT (a FROM t", "expected )", "FROM"),
        ("CREATE STREAM s AS SELECT 'a FROM t", "this quote is never closed", "'"),
    ],
)
def test_syntax_error_has_message_and_location(text: str, message: str, location: str) -> None:
    error = syntax_error(text)
    assert message in error.message
    assert error.location is not None
    assert text[error.location.start : error.location.end] == location


def test_valid_statements_are_parsed_next_to_an_invalid_one() -> None:
    script = parse_script("CHECKPOINT; CREATE SOURCE bad (k) WITH (a = 1); NONSENSE; SHOW SINKS")
    assert [type(item) for item in script.statements] == [st.CreateCheckpoint, st.Show]
    codes = [error.code for error in script.errors if isinstance(error, TidegateError)]
    assert codes == ["TG-101", "TG-102"]
    assert script.invalid_names == ("bad",)


# Functions with special syntax, which cannot be called with plain arguments.
NOT_CALLS = {"BETWEEN", "CASE", "CAST", "IN", "NOT", "WHEN", "EXTRACT", "OVERLAY", "POSITION"}


def test_every_spark_function_can_be_called() -> None:
    failures = []
    for name in sorted(spark_functions() - NOT_CALLS):
        if not re.fullmatch(r"[A-Z_0-9]+", name):
            continue
        script = parse_script(f"EXPLAIN SELECT {name.lower()}(a, b) FROM t")
        if script.errors:
            failures.append(name)
            continue
        statement = script.statements[0]
        assert isinstance(statement, st.Explain)
        assert statement.query is not None
        printed = to_sql(statement.query.tree).upper()
        if printed not in (f"SELECT {name}(A, B) FROM T", f"SELECT {name} (A, B) FROM T"):
            failures.append(name)
    # trim(a, b) is printed as TRIM(a FROM b), substr as SUBSTRING: the same to Spark.
    assert failures == ["SUBSTR", "TRIM"]


@pytest.mark.parametrize(
    ("written", "value"),
    [("'it''s'", "it's"), (r"'it\'s'", "it's"), ('"a""b"', 'a"b'), (r"'a\\b'", r"a\b"), ("''", "")],
)
def test_quotes_in_strings_match_spark(written: str, value: str) -> None:
    statement = parse_one(f"EXPLAIN SELECT {written} AS x")
    assert isinstance(statement, st.Explain)
    assert statement.query is not None
    literal = statement.query.tree.find(exp.Literal)
    assert literal is not None
    assert literal.this == value
    reparsed = parse_one(f"EXPLAIN {to_sql(statement.query.tree)}")
    assert isinstance(reparsed, st.Explain)
    assert reparsed.query is not None
    assert reparsed.query.tree == statement.query.tree


def test_metadata_columns() -> None:
    script = parse_script(
        "CREATE SOURCE s (a BIGINT, metadata STRING, at TIMESTAMP NOT NULL METADATA FROM 'Timestamp', "
        "offset BIGINT METADATA) WITH (connector = 'kafka');"
    )
    (source,) = script.statements
    assert isinstance(source, st.CreateSource)
    columns = [(c.name, c.type, c.not_null, c.metadata) for c in source.columns]
    assert columns == [
        ("a", "BIGINT", False, None),
        ("metadata", "STRING", False, None),
        ("at", "TIMESTAMP", True, "timestamp"),
        ("offset", "BIGINT", False, "offset"),
    ]
