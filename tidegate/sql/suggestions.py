"""Hints for the functions, statements and keywords of other systems, and for misspelt keywords."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterable, Sequence

from sqlglot.tokenizer_core import Token, TokenType

# Functions of PostgreSQL, MySQL, DuckDB, Flink, ksqlDB, Snowflake, BigQuery and others, with the
# equivalent expression in Spark SQL.
FUNCTIONS: dict[str, str] = {
    # texts
    "GROUP_CONCAT": "string_agg(x, ',')",
    "STRPOS": "instr(text, part)",
    "CHARINDEX": "locate(part, text)",
    "STRING_SPLIT": "split(text, ',')",
    "STR_SPLIT": "split(text, ',')",
    "STRING_TO_ARRAY": "split(text, ',')",
    "SPLIT_INDEX": "split_part(text, ',', 1), which counts from 1",
    "ARRAY_TO_STRING": "array_join(list, ',')",
    "REGEXP_MATCHES": "regexp_like(text, pattern)",
    "REGEXP_CONTAINS": "regexp_like(text, pattern)",
    "REGEXP_MATCH": "regexp_extract(text, pattern, 0)",
    "REGEXP_SPLIT_TO_ARRAY": "split(text, pattern)",
    "STARTS_WITH": "startswith(text, part)",
    "ENDS_WITH": "endswith(text, part)",
    "PREFIX": "startswith(text, part)",
    "SUFFIX": "endswith(text, part)",
    "PROPER": "initcap(text)",
    "REPLICATE": "repeat(text, 3)",
    "FORMAT": "format_string('%s', x)",
    "SPRINTF": "printf('%s', x)",
    "TO_HEX": "hex(x)",
    "FROM_HEX": "unhex(text)",
    "TO_BASE64": "base64(x)",
    "FROM_BASE64": "unbase64(text)",
    "SHA256": "sha2(text, 256)",
    "SHA512": "sha2(text, 512)",
    "STRLEN": "length(text)",
    "BYTE_LENGTH": "octet_length(text)",
    "SAFE_CAST": "TRY_CAST(x AS INT)",
    "CONVERT": "CAST(x AS INT)",
    # JSON
    "JSON_EXTRACT": "get_json_object(text, '$.a')",
    "JSON_EXTRACT_STRING": "get_json_object(text, '$.a')",
    "JSON_EXTRACT_SCALAR": "get_json_object(text, '$.a')",
    "JSON_EXTRACT_PATH": "get_json_object(text, '$.a')",
    "JSON_EXTRACT_PATH_TEXT": "get_json_object(text, '$.a')",
    "JSON_VALUE": "get_json_object(text, '$.a')",
    "JSON_QUERY": "get_json_object(text, '$.a')",
    "JSONB_EXTRACT_PATH_TEXT": "get_json_object(text, '$.a')",
    "EXTRACTJSONFIELD": "get_json_object(text, '$.a')",
    "JSON_EXISTS": "get_json_object(text, '$.a') IS NOT NULL",
    "JSON_KEYS": "json_object_keys(text)",
    "JSON_LENGTH": "json_array_length(text)",
    "JSON_OBJECT": "to_json(named_struct('a', x))",
    "JSON_BUILD_OBJECT": "to_json(named_struct('a', x))",
    "OBJECT_CONSTRUCT": "named_struct('a', x)",
    "TO_JSON_STRING": "to_json(x)",
    "ROW_TO_JSON": "to_json(x)",
    "STRUCT_PACK": "named_struct('a', x)",
    "ROW": "struct(a, b)",
    # times
    "EPOCH_MS": "timestamp_millis(ms), or unix_millis(ts) for the number",
    "EPOCH": "unix_seconds(ts)",
    "EPOCH_US": "unix_micros(ts)",
    "STRPTIME": "to_timestamp(text, 'yyyy-MM-dd HH:mm:ss')",
    "STR_TO_DATE": "to_date(text, 'yyyy-MM-dd')",
    "PARSE_TIMESTAMP": "to_timestamp(text, 'yyyy-MM-dd HH:mm:ss')",
    "PARSE_DATE": "to_date(text, 'yyyy-MM-dd')",
    "STRINGTOTIMESTAMP": "to_timestamp(text, 'yyyy-MM-dd HH:mm:ss')",
    "TIMESTAMPTOSTRING": "date_format(ts, 'yyyy-MM-dd HH:mm:ss')",
    "STRFTIME": "date_format(ts, 'yyyy-MM-dd HH:mm:ss')",
    "FORMAT_TIMESTAMP": "date_format(ts, 'yyyy-MM-dd HH:mm:ss')",
    "FORMAT_DATE": "date_format(day, 'yyyy-MM-dd')",
    "FORMAT_DATETIME": "date_format(ts, 'yyyy-MM-dd HH:mm:ss')",
    "TIMESTAMP_TRUNC": "date_trunc('HOUR', ts)",
    "DATETIME_TRUNC": "date_trunc('HOUR', ts)",
    "TIMESTAMP_DIFF": "timestampdiff(SECOND, a, b)",
    "TIMESTAMP_ADD": "timestampadd(SECOND, 1, ts)",
    "TIMESTAMP_SUB": "ts - INTERVAL '1' SECOND",
    "DAYOFWEEK_ISO": "weekday(ts) + 1",
    "AGE": "timestampdiff(SECOND, a, b)",
    "SYSDATE": "current_timestamp()",
    "GETDATE": "current_timestamp()",
    "CLOCK_TIMESTAMP": "current_timestamp()",
    "CONVERT_TZ": "convert_timezone('UTC', 'Europe/Berlin', ts)",
    "TIMEZONE": "from_utc_timestamp(ts, 'Europe/Berlin')",
    # conditions and numbers
    "IIF": "if(condition, a, b)",
    "IFF": "if(condition, a, b)",
    "DIV0": "coalesce(try_divide(a, b), 0)",
    "SAFE_DIVIDE": "try_divide(a, b)",
    "TRUNCATE": "CAST(x AS BIGINT), or round(x, 2)",
    "IS_NAN": "isnan(x)",
    "GEN_RANDOM_UUID": "uuid()",
    "GENERATE_UUID": "uuid()",
    "NEWID": "uuid()",
    "UUID_STRING": "uuid()",
    # aggregates
    "COUNT_DISTINCT": "count(DISTINCT x)",
    "COUNTIF": "count_if(condition)",
    "APPROX_DISTINCT": "approx_count_distinct(x)",
    "NDV": "approx_count_distinct(x)",
    "HLL": "approx_count_distinct(x)",
    "APPROX_QUANTILE": "approx_percentile(x, 0.5)",
    "APPROX_QUANTILES": "approx_percentile(x, array(0.25, 0.5, 0.75))",
    "QUANTILE": "percentile(x, 0.5)",
    "QUANTILE_CONT": "percentile(x, 0.5)",
    "ARG_MAX": "max_by(x, y)",
    "ARGMAX": "max_by(x, y)",
    "ARG_MIN": "min_by(x, y)",
    "ARGMIN": "min_by(x, y)",
    "LATEST_BY_OFFSET": "last(x)",
    "EARLIEST_BY_OFFSET": "first(x)",
    "LIST": "collect_list(x)",
    "ARRAYAGG": "collect_list(x)",
    "COLLECT": "collect_list(x)",
    "LOGICAL_AND": "bool_and(x)",
    "LOGICAL_OR": "bool_or(x)",
    "BOOLAND_AGG": "bool_and(x)",
    "BOOLOR_AGG": "bool_or(x)",
    "STDEV": "stddev(x)",
    "MATCH_NUMBER": "row_number() OVER (PARTITION BY … ORDER BY …)",
    "TOPK": "QUALIFY row_number() OVER (PARTITION BY … ORDER BY …) <= 3",
    # lists and maps
    "ARRAY_LENGTH": "size(list)",
    "LIST_LENGTH": "size(list)",
    "LIST_CONTAINS": "array_contains(list, x)",
    "LIST_VALUE": "array(a, b)",
    "ARRAY_CONSTRUCT": "array(a, b)",
    "ARRAY_CAT": "concat(a, b)",
    "ARRAY_CONCAT": "concat(a, b)",
    "LIST_TRANSFORM": "transform(list, x -> x + 1)",
    "LIST_FILTER": "filter(list, x -> x > 0)",
    "LIST_SORT": "sort_array(list)",
    "LIST_DISTINCT": "array_distinct(list)",
    "UNNEST": "LATERAL VIEW explode(list) v AS x",
    "GENERATE_SERIES": "explode(sequence(1, 10))",
    "AS_MAP": "map_from_arrays(keys, values)",
    # windows
    "TIME_BUCKET_GAPFILL": "GROUP BY TUMBLE(ts, INTERVAL '1' MINUTE)",
    "TUMBLE_START": "window_start",
    "TUMBLE_END": "window_end",
    "TUMBLE_ROWTIME": "window_time",
    "HOP_START": "window_start",
    "HOP_END": "window_end",
    "HOP_ROWTIME": "window_time",
    "SESSION_START": "window_start",
    "SESSION_END": "window_end",
    "SESSION_ROWTIME": "window_time",
    "WINDOWSTART": "window_start",
    "WINDOWEND": "window_end",
}

# Hints for a query that cannot be parsed, by a word that it contains.
_WORD_HINTS: dict[str, str] = {
    "TUMBLING": "GROUP BY TUMBLE(ts, INTERVAL '1' MINUTE), where ts is the event time.",
    "HOPPING": "GROUP BY HOP(ts, INTERVAL '10' SECOND, INTERVAL '1' MINUTE): slide, then size.",
    "DESCRIPTOR": "use a window function in FROM: TUMBLE(my_source, ts, INTERVAL '1' MINUTE) AS w.",
    "LATENESS": "EMIT ON WINDOW CLOSE ALLOW LATENESS INTERVAL '30' SECOND, at the end.",
    "GRACE": "EMIT ON WINDOW CLOSE ALLOW LATENESS INTERVAL '30' SECOND, at the end.",
}
# Hints by two words: SESSION alone is also a window function of Tidegate.
_PHRASE_HINTS: dict[tuple[str, str], str] = {
    ("SELECT", "TOP"): "write SELECT … ORDER BY … LIMIT 3 EMIT CHANGES, without TOP.",
    ("WINDOW", "SESSION"): "GROUP BY SESSION(ts, INTERVAL '1' MINUTE), where ts is the event time.",
}
# Keywords that BY must follow.
_WITH_BY = ("GROUP", "ORDER", "PARTITION")

# Hints for statements of other systems, by their first word.
_STATEMENT_HINTS: dict[str, str] = {
    "LIST": "SHOW TABLES; or SHOW STREAMS;",
    "PRINT": "TAIL name; in the shell, db.subscribe(name) in Python.",
    "DELETE": "declare a source that retracts rows, with changelog = true or a PRIMARY KEY.",
    "UPDATE": "declare the source with PRIMARY KEY, and insert the new row: INSERT INTO …;",
    "UPSERT": "declare the source with PRIMARY KEY, and insert the new row: INSERT INTO …;",
    "MERGE": "declare the source with PRIMARY KEY, and insert the new row: INSERT INTO …;",
    "INSERT": "INSERT INTO name VALUES (1, 'a');",
    "RESTORE": "RESTORE FROM CHECKPOINT 'name';",
    "TRUNCATE": "drop the source with its rows, and create it again: DROP SOURCE name;",
    "USE": "a data directory has one catalog: tidegate sql --data DIR opens another one.",
    "START": "tidegate run FILE; in the shell \\start, in Python db.start().",
    "RUN": "tidegate run FILE; in the shell \\start, in Python db.start().",
    "STOP": "in the shell \\stop, in Python db.stop(); DROP STREAM name; removes a stream.",
    "TERMINATE": "DROP STREAM name; stops and removes a stream.",
    "REFRESH": "materialized views are always up to date: SELECT … FROM name;",
}
# Hints for SHOW, by the word after it.
_SHOW_HINTS: dict[str, str] = {
    "VIEWS": "SHOW MATERIALIZED VIEWS;",
    "JOBS": "SHOW STATUS;",
    "QUERIES": "SHOW STATUS;",
    "PIPELINES": "SHOW STATUS;",
    "COLUMNS": "DESCRIBE name;",
    "ALL": "SHOW TABLES; or SHOW SETTINGS;",
    "VARIABLES": "SHOW SETTINGS;",
    "DATABASES": "a data directory has one catalog: SHOW TABLES;",
    "SCHEMAS": "a data directory has one catalog: SHOW TABLES;",
    "CATALOGS": "a data directory has one catalog: SHOW TABLES;",
    "TOPICS": "SHOW SOURCES; and SHOW SINKS;",
    "CONNECTORS": "SHOW SOURCES; and SHOW SINKS;",
}
# Hints for DROP, by the word after it.
_DROP_HINTS: dict[str, str] = {
    "TABLE": "DROP SOURCE name; or DROP LOOKUP TABLE name; SHOW TABLES; lists both.",
    "VIEW": "DROP STREAM name; or DROP MATERIALIZED VIEW name;",
}


def statement_hint(word: str) -> str | None:
    """Return the hint for a statement of another system."""
    return _STATEMENT_HINTS.get(word.upper())


def show_hint(word: str) -> str | None:
    """Return the hint for SHOW and a word of another system."""
    return _SHOW_HINTS.get(word.upper())


def drop_hint(word: str) -> str | None:
    """Return the hint for DROP and a word of another system."""
    return _DROP_HINTS.get(word.upper())


def function_hint(name: str) -> str | None:
    """Return the hint for a function of another system."""
    equivalent = FUNCTIONS.get(name.upper())
    if equivalent is None:
        return None
    verb = "select" if equivalent.startswith("window_") else "write"
    return f"{verb} {equivalent}."


def word_hint(words: Iterable[str]) -> str | None:
    """Return a hint for a query that cannot be parsed, by the words that it contains."""
    keywords = [word.upper() for word in words]
    pairs = list(itertools.pairwise(keywords))
    phrase = next((hint for pair, hint in _PHRASE_HINTS.items() if pair in pairs), None)
    without_by = next(
        (first for first, second in pairs if first in _WITH_BY and second not in ("BY", "(")), None
    )
    by = f"write {without_by} BY." if without_by is not None else None
    return (
        phrase or by or next((hint for word, hint in _WORD_HINTS.items() if word in keywords), None)
    )


# ---- Misspelt keywords: the parser reads them as names, and fails at the next word

_QUERY_WORDS = """SELECT FROM WHERE GROUP HAVING ORDER QUALIFY JOIN LEFT RIGHT INNER UNION BETWEEN
INTERVAL DISTINCT PARTITION LIMIT EMIT CHANGES"""
_KEYWORDS = tuple(_QUERY_WORDS.split())
# How many words before the error the misspelt keyword can be, as in GRUOP BY or b JION asks.
_WORDS_BACK = 3


def similar_keyword(token: Token, keywords: Sequence[str] = _KEYWORDS) -> str | None:
    """Return the keyword that a word is similar to, if it is not one itself."""
    word = token.text.upper()
    if token.token_type in (TokenType.STRING, TokenType.IDENTIFIER) or word in keywords:
        return None
    if not word.isalpha():
        return None
    # Swapped letters count as one mistake: FORM has the letters of FROM.
    anagram = next((key for key in keywords if sorted(key) == sorted(word)), None)
    similar = difflib.get_close_matches(word, keywords, n=1, cutoff=0.8)
    return anagram or (similar[0] if similar else None)


def find_misspelt_keyword(tokens: Sequence[Token], end: int) -> tuple[Token, str] | None:
    """Return the last misspelt keyword at or before a syntax error."""
    preceding = [token for token in tokens if token.start < end]
    for token in reversed(preceding[-_WORDS_BACK:]):
        keyword = similar_keyword(token)
        if keyword is not None:
            return token, keyword
    return None
