"""Cases as SQL: statements, clauses that are added to a query, and rejections."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tidegate.errors import TidegateError
from tidegate.testing.case import Case, CaseSource, DeleteAll, ExplicitWatermark, Row
from tidegate.testing.declare import declare
from tidegate.testing.fields import LONG_DELAY_MS
from tidegate.types import ChangelogKind

COLUMNS = (("id", "INT"), ("ts", "TIMESTAMP"))


def case(query: str, *sources: CaseSource, **fields: Any) -> Case:
    sources = sources or (source(),)
    return Case("c", Path("c.yaml"), sources, query=query, expected_rows=(), **fields)


def source(name: str = "t", kind: str = "stream", **fields: Any) -> CaseSource:
    return CaseSource(name, kind, COLUMNS, "ts", 500, **fields)


def rejection(invalid: Case) -> TidegateError:
    with pytest.raises(TidegateError) as caught:
        declare(invalid)
    return caught.value


@pytest.fixture
def every_operator_supported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not reject plans whose operators are not supported yet."""
    monkeypatch.setattr("tidegate.compile.compiler.Compiled.rejections", ())


def test_sources_and_the_query_become_statements() -> None:
    declared = declare(case("SELECT id FROM t;"))
    assert declared.script == (
        "CREATE SOURCE `t` (\n"
        "    `id` INT,\n"
        "    `ts` TIMESTAMP,\n"
        "    WATERMARK FOR `ts` AS `ts` - INTERVAL '500' MILLISECOND\n"
        ") WITH (connector = 'memory', max_future = 'off');\n\n"
        "CREATE STREAM result AS\n"
        "SELECT id FROM t;\n"
    )
    assert (declared.stream, declared.changelog) == ("result", ChangelogKind.APPEND)
    assert declared.source("T").watermark is not None


@pytest.mark.parametrize(
    ("kind", "rows", "carries_op"),
    [
        ("stream", (), False),
        ("changelog", (), True),
        ("upsert", (), False),
        ("versioned", ({"_op": "-D", "id": 1},), True),
        ("versioned_upsert", ({"_op": "+U", "id": 1},), True),
    ],
)
def test_kind_decides_whether_rows_carry_op(
    kind: str, rows: tuple[Row, ...], carries_op: bool
) -> None:
    keyed = source("other", kind, primary_key=("id",) if "ver" in kind or "up" in kind else ())
    with_rows = CaseSource(**{**vars(keyed), "rows": rows})
    declared = declare(case("SELECT id FROM t", source(), with_rows)).source("other")
    assert declared.options["changelog"] is carries_op
    assert declared.primary_key == keyed.primary_key


def test_rows_of_a_source_with_delete_all_carry_op() -> None:
    keyed = source(kind="upsert", primary_key=("id",))
    declared = declare(case("SELECT id, ts FROM t", keyed, steps=(DeleteAll(("t",)),)))
    assert declared.source("t").options["changelog"] is True


def test_lookup_tables_carry_op_only_with_delete_all(every_operator_supported: None) -> None:
    table = CaseSource("k", "lookup", (("id", "INT"), ("name", "STRING")), primary_key=("id",))
    declared = declare(case("SELECT t.id, k.name FROM t JOIN k ON t.id = k.id", source(), table))
    assert "CREATE LOOKUP TABLE `k` (\n    `id` INT,\n    `name` STRING," in declared.script
    assert not declared.source("k").carries_op
    query = "SELECT t.id, k.name FROM t JOIN k ON t.id = k.id"
    assert declare(case(query, source(), table, steps=(DeleteAll(("k",)),))).source("k").carries_op


@pytest.mark.parametrize(
    ("query", "emit", "end"),
    [
        ("SELECT id FROM t", None, "SELECT id FROM t;\n"),
        ("SELECT id FROM t", "update", "SELECT id FROM t\nEMIT CHANGES;\n"),
        ("SELECT id FROM t -- all\n;", "changelog", "SELECT id FROM t -- all\nEMIT CHANGES;\n"),
        ("SELECT id FROM t EMIT CHANGES", "changelog", "SELECT id FROM t EMIT CHANGES;\n"),
    ],
)
def test_emit_is_added_to_a_query_without_one(query: str, emit: str | None, end: str) -> None:
    assert declare(case(query, emit=emit)).script.endswith("AS\n" + end)


COUNTS = "SELECT window_start, count(*) AS n FROM t GROUP BY TUMBLE(ts, INTERVAL '5' SECOND)"


def test_lateness_is_added_to_a_query_without_it(every_operator_supported: None) -> None:
    declared = declare(case(COUNTS, allowed_lateness_ms=70, late_rows=({"id": 1},)))
    end = (
        "EMIT ON WINDOW CLOSE\nALLOW LATENESS INTERVAL '70' MILLISECOND\nLATE DATA TO late_rows;\n"
    )
    assert declared.script.endswith(f"SECOND)\n{end}")
    assert declared.late_stream == "late_rows"
    query = COUNTS + " EMIT ON WINDOW CLOSE ALLOW LATENESS INTERVAL '1' SECOND LATE DATA TO mine"
    declared = declare(case(query, allowed_lateness_ms=70, late_rows=({"id": 1},)))
    assert declared.script.endswith(f"AS\n{query};\n")
    assert declared.late_stream == "mine"


def test_a_query_that_cannot_emit_late_rows_has_no_late_stream() -> None:
    declared = declare(case("SELECT id FROM t", late_rows=({"id": 1},)))
    assert declared.late_stream is None


def test_the_stream_gets_an_unused_name() -> None:
    sources = (source("result"), source("late_rows"))
    assert declare(case("SELECT id FROM result", *sources)).stream == "result_"


def test_watermark_model_none_has_a_long_delay() -> None:
    declared = declare(case("SELECT id FROM t", watermark_model="none")).source("t")
    assert declared.watermark is not None
    assert declared.watermark.delay_us == LONG_DELAY_MS * 1000


def test_rows_of_explicit_watermarks_are_hidden_from_the_query() -> None:
    declared = declare(
        case("SELECT id FROM t", source(explicit_watermarks=(ExplicitWatermark(0, 5),)))
    )
    assert declared.source("t").name == "t_with_watermarks"
    select = "SELECT `id`, `ts` FROM `t_with_watermarks` WHERE _is_watermark IS NULL"
    assert select in declared.script


def test_the_state_ttl_of_the_case_is_set_on_the_stream(every_operator_supported: None) -> None:
    join = "SELECT t.id FROM t JOIN u ON t.id = u.id"
    sources = (source(), source("u"))
    assert rejection(case(join, *sources)).code == "TG-407"
    script = declare(case(join, *sources, state_ttl="2 hours")).script
    assert "CREATE STREAM result WITH (state_ttl = '2 hours') AS" in script


def test_upserts_have_a_key(every_operator_supported: None) -> None:
    declared = declare(case(COUNTS + " EMIT ON UPDATE"))
    assert (declared.changelog, declared.key) == (ChangelogKind.UPSERT, ("window_start",))


def test_unsupported_functions_are_rejected_before_the_run() -> None:
    assert (
        rejection(case("SELECT count(*) OVER (ORDER BY ts GROUPS 1 PRECEDING) AS n FROM t")).code
        == "TG-501"
    )


def test_an_invalid_query_is_rejected() -> None:
    error = rejection(case("SELECT idd FROM t ORDER BY ts"))
    assert error.code == "TG-301"


SCRIPT = """
CREATE SOURCE t (id INT) WITH (connector = 'memory', dead_letters = 'bad');
CREATE STREAM s AS SELECT id FROM t;
INSERT INTO t VALUES (1);
"""


def scripted(stream: str) -> Case:
    return Case("c", Path("c.yaml"), (), script=SCRIPT, stream=stream, expected_rows=())


def test_a_script_is_not_changed() -> None:
    declared = declare(scripted("S"))
    assert declared.script == SCRIPT
    assert declared.stream == "s"
    assert declare(scripted("bad")).stream == "bad"


def test_a_script_without_the_stream_is_rejected() -> None:
    error = rejection(scripted("t"))
    assert error.message == "the script has no stream t"
    assert error.hint == "streams: bad, s"
