"""Syntax of other systems: functions and types get hints, Flink's windows the same plan."""

from __future__ import annotations

import re

import pytest

from tests.support.compiling import accepted, compile_text, rejected
from tidegate.catalog.objects import Source
from tidegate.physical.explain import explain
from tidegate.sql import expressions as ex
from tidegate.sql.dialect import DIALECT, FOREIGN_TYPES
from tidegate.sql.query import rewrite_flink_windows
from tidegate.sql.suggestions import FUNCTIONS, function_hint

# Words before a parenthesis in a hint that are not in Spark's list of functions.
GRAMMAR = ex.UNIT_FUNCTIONS | ex.TIDEGATE_FUNCTIONS | {"CAST", "TRY_CAST", "OVER", "BY"}


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_function_hint_uses_existing_functions(name: str) -> None:
    assert name not in ex.spark_functions() | ex.TIDEGATE_FUNCTIONS, "the function exists"
    called = re.findall(r"(\w+) ?\(", FUNCTIONS[name])
    unknown = {word.upper() for word in called} - ex.spark_functions() - GRAMMAR
    assert unknown == set()


@pytest.mark.parametrize("name", sorted(set(FUNCTIONS) - {"UNNEST"}))
def test_function_of_another_system_gets_hint(name: str) -> None:
    (error,) = rejected(f"SELECT {name}(price, 1) AS x FROM bids")
    assert (error.code, error.hint) == ("TG-303", function_hint(name))


def test_unknown_function_reports_one_error() -> None:
    window = "TUMBLE(ts, INTERVAL '1' MINUTE)"
    (error,) = rejected(f"SELECT upper(group_concat(channel)) AS c FROM bids GROUP BY {window}")
    assert error.code == "TG-303"
    codes = [
        e.code for e in rejected(f"SELECT nope(channel) AS c, price FROM bids GROUP BY {window}")
    ]
    assert codes == ["TG-303", "TG-304"]


GROUPED = "SELECT window_start, window_end, count(*) AS n FROM {} GROUP BY window_start, window_end"


@pytest.mark.parametrize(
    ("flink", "tidegate"),
    [
        (
            "TABLE(TUMBLE(TABLE bids, DESCRIPTOR(ts), INTERVAL '1' MINUTE))",
            "TUMBLE(bids, ts, INTERVAL '1' MINUTE)",
        ),
        (
            "TUMBLE(TABLE bids, DESCRIPTOR(ts), INTERVAL '1' MINUTE, INTERVAL '5' SECOND)",
            "TUMBLE(bids, ts, INTERVAL '1' MINUTE, INTERVAL '5' SECOND)",
        ),
        (
            "TABLE(HOP(TABLE bids, DESCRIPTOR(`ts`), INTERVAL '1' MINUTE, INTERVAL '3' MINUTES))",
            "HOP(bids, ts, INTERVAL '1' MINUTE, INTERVAL '3' MINUTE)",
        ),
        (
            "table (cumulate(table bids, descriptor(ts), interval '1' minute, interval '1' hour))",
            "CUMULATE(bids, ts, INTERVAL '1' MINUTE, INTERVAL '1' HOUR)",
        ),
        (
            "TABLE(SESSION(TABLE bids, DESCRIPTOR(ts), INTERVAL '1' MINUTE))",
            "SESSION(bids, ts, INTERVAL '1' MINUTE)",
        ),
        ("TUMBLE(bids, ts, '1 minute')", "TUMBLE(bids, ts, INTERVAL '1' MINUTE)"),
        ("HOP(bids, ts, \"30 s\", '1 min')", "HOP(bids, ts, INTERVAL '30' SECOND, '60 s')"),
    ],
)
def test_flink_window_has_the_same_plan(flink: str, tidegate: str) -> None:
    assert explain(accepted(GROUPED.format(flink)), "s") == explain(
        accepted(GROUPED.format(tidegate)), "s"
    )


def test_flink_session_keys_become_arguments() -> None:
    window = "TABLE(SESSION(TABLE bids PARTITION BY (auction, `b`), DESCRIPTOR(ts), gap)) AS w"
    words = [token.text for token in rewrite_flink_windows(list(DIALECT.tokenize(window)))]
    assert " ".join(words) == "SESSION ( bids PARTITION BY auction , b , ts , gap ) AS w"


def test_flink_window_can_be_joined() -> None:
    window = "TABLE(TUMBLE(TABLE {}, DESCRIPTOR(ts), INTERVAL '1' MINUTE)) AS {}"
    accepted(
        f"SELECT b.price FROM {window.format('bids', 'b')} JOIN {window.format('asks', 'a')} ON "
        "a.auction = b.auction AND a.window_start = b.window_start AND a.window_end = b.window_end"
    )


def test_flink_keywords_can_be_column_names() -> None:
    compiled = compile_text(
        "CREATE SOURCE t (`table` BIGINT, descriptor BIGINT) WITH (connector = 'memory');"
        "CREATE STREAM s AS SELECT `table`, descriptor FROM t;"
    )
    assert not compiled.errors


@pytest.mark.parametrize("size", ["'a minute'", "'1 month'", "'1'", "''"])
def test_window_size_that_is_not_a_duration_is_rejected(size: str) -> None:
    (error,) = rejected(f"SELECT count(*) AS n FROM bids GROUP BY TUMBLE(ts, {size})")
    assert error.code == "TG-105"


def test_string_is_not_an_interval_in_a_join() -> None:
    (error,) = rejected(
        "SELECT b.price FROM bids AS b JOIN asks AS a ON a.auction = b.auction AND "
        "a.ts BETWEEN b.ts - '1 minute' AND b.ts + '1 minute'"
    )
    assert error.code == "TG-407"


def test_option_names_can_be_quoted() -> None:
    compiled = compile_text(
        "CREATE SOURCE t (id BIGINT) WITH ('connector' = 'files', \"path\" = 'in', `format` = json);"
        "SET 'validator' = 'warn';"
    )
    assert not compiled.errors
    source = compiled.catalog.get("t")
    assert isinstance(source, Source)
    assert dict(source.options.masked_texts()) == {
        "connector": "files",
        "path": "in",
        "format": "json",
    }
    assert compiled.settings["validator"] == "warn"


def test_primary_key_not_enforced() -> None:
    compiled = compile_text(
        "CREATE SOURCE t (id BIGINT, PRIMARY KEY (id) NOT ENFORCED) WITH (connector = 'memory');"
    )
    source = compiled.catalog.get("t")
    assert isinstance(source, Source) and source.primary_key == ("id",)


def test_explain_accepts_a_stream_name() -> None:
    script = (
        "CREATE SOURCE t (id BIGINT) WITH (connector = 'memory');"
        "CREATE STREAM s AS SELECT id FROM t;"
    )
    named, plain = (compile_text(script + f"EXPLAIN {target};") for target in ("STREAM s", "s"))
    assert not plain.errors
    assert explain(plain.explained[0][1], "s") == explain(named.explained[0][1], "s")


def test_emit_can_be_a_column_name() -> None:
    compiled = compile_text(
        "CREATE SOURCE t (emit BIGINT) WITH (connector = 'memory');"
        "CREATE STREAM a AS SELECT emit FROM t WHERE 0 < emit;"
        "CREATE STREAM b AS SELECT emit AS emit FROM t AS emit;"
    )
    assert not compiled.errors


def test_secret_with_quoted_option_name_is_masked() -> None:
    compiled = compile_text(
        "CREATE SOURCE t (id BIGINT) WITH ('connector' = 'kafak', 'password' = 'hunter2');"
    )
    (error,) = compiled.errors
    assert "hunter2" not in error.render()


@pytest.mark.parametrize("word", sorted(FOREIGN_TYPES))
def test_types_of_other_systems_can_be_column_names(word: str) -> None:
    compiled = compile_text(
        f"CREATE SOURCE t ({word} BIGINT) WITH (connector = 'memory');"
        f"CREATE STREAM s AS SELECT {word}, t.{word} + 1 AS more FROM t WHERE {word} > 0;"
    )
    assert not compiled.errors, compiled.errors[0]


_NAMES = """BOOLEAN TINYINT SMALLINT INT BIGINT FLOAT DOUBLE DECIMAL(18,2) STRING VARCHAR(3) CHAR(3)
BINARY DATE TIMESTAMP TIMESTAMP_NTZ TIMESTAMP_LTZ TIME VARIANT ARRAY<INT> MAP<STRING,INT>
STRUCT<a:INT,b:ARRAY<STRING>> TEXT INTEGER LONG NUMERIC(3,1) BYTEA"""
TYPES = [*_NAMES.split(), "INTERVAL DAY TO SECOND", "DOUBLE PRECISION"]


@pytest.mark.parametrize("kind", TYPES)
def test_spark_type_is_accepted(kind: str) -> None:
    compiled = compile_text(f"CREATE SOURCE t (x {kind}) WITH (connector = 'memory');")
    assert not compiled.errors, compiled.errors[0]
