"""Cases as SQL: the statements, what is added to a query, and what is rejected without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tidegate.errors import TidegateError
from tidegate.testing.case import Case, CaseSource, DeleteAll, Mark, Row
from tidegate.testing.declare import declare
from tidegate.testing.fields import LONG_DELAY_MS
from tidegate.types import ChangelogKind

COLUMNS = (("id", "INT"), ("ts", "TIMESTAMP"))


def case(query: str, *sources: CaseSource, **fields: Any) -> Case:
    sources = sources or (source(),)
    return Case("c", Path("c.yaml"), sources, query=query, expected_rows=(), **fields)


def source(name: str = "t", kind: str = "stream", **fields: Any) -> CaseSource:
    return CaseSource(name, kind, COLUMNS, "ts", 500, **fields)


def rejection(wrong: Case) -> TidegateError:
    with pytest.raises(TidegateError) as caught:
        declare(wrong)
    return caught.value


@pytest.fixture
def all_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that every operator exists."""
    monkeypatch.setattr("tidegate.compile.compiler.Compiled.unrunnable", ())


def test_a_source_and_a_query() -> None:
    found = declare(case("SELECT id FROM t;"))
    assert found.script == (
        "CREATE SOURCE `t` (\n"
        "    `id` INT,\n"
        "    `ts` TIMESTAMP,\n"
        "    WATERMARK FOR `ts` AS `ts` - INTERVAL '500' MILLISECOND\n"
        ") WITH (connector = 'memory', max_future = 'off');\n\n"
        "CREATE STREAM result AS\n"
        "SELECT id FROM t;\n"
    )
    assert (found.stream, found.changelog) == ("result", ChangelogKind.APPEND)
    assert found.source("T").watermark is not None


@pytest.mark.parametrize(
    ("kind", "rows", "signed"),
    [
        ("stream", (), False),
        ("changelog", (), True),
        ("upsert", (), False),
        ("versioned", ({"_op": "-D", "id": 1},), True),
        ("versioned_upsert", ({"_op": "+U", "id": 1},), True),
    ],
)
def test_kinds(kind: str, rows: tuple[Row, ...], signed: bool) -> None:
    keyed = source("other", kind, primary_key=("id",) if "ver" in kind or "up" in kind else ())
    given = CaseSource(**{**vars(keyed), "rows": rows})
    found = declare(case("SELECT id FROM t", source(), given)).source("other")
    assert found.options["changelog"] is signed
    assert found.primary_key == keyed.primary_key


def test_a_source_that_is_emptied_carries_op() -> None:
    keyed = source(kind="upsert", primary_key=("id",))
    found = declare(case("SELECT id, ts FROM t", keyed, steps=(DeleteAll(("t",)),)))
    assert found.source("t").options["changelog"] is True


def test_lookup_tables(all_built: None) -> None:
    table = CaseSource("k", "lookup", (("id", "INT"), ("name", "STRING")), primary_key=("id",))
    found = declare(case("SELECT t.id, k.name FROM t JOIN k ON t.id = k.id", source(), table))
    assert "CREATE LOOKUP TABLE `k` (\n    `id` INT,\n    `name` STRING," in found.script
    assert not found.source("k").carries_op
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
def test_emit_is_added_where_there_is_none(query: str, emit: str | None, end: str) -> None:
    assert declare(case(query, emit=emit)).script.endswith("AS\n" + end)


COUNTS = "SELECT window_start, count(*) AS n FROM t GROUP BY TUMBLE(ts, INTERVAL '5' SECOND)"


def test_lateness_is_added(all_built: None) -> None:
    found = declare(case(COUNTS, allowed_lateness_ms=70, late_rows=({"id": 1},)))
    end = (
        "EMIT ON WINDOW CLOSE\nALLOW LATENESS INTERVAL '70' MILLISECOND\nLATE DATA TO late_rows;\n"
    )
    assert found.script.endswith(f"SECOND)\n{end}")
    assert found.late_stream == "late_rows"
    own = COUNTS + " EMIT ON WINDOW CLOSE ALLOW LATENESS INTERVAL '1' SECOND LATE DATA TO mine"
    found = declare(case(own, allowed_lateness_ms=70, late_rows=({"id": 1},)))
    assert found.script.endswith(f"AS\n{own};\n")
    assert found.late_stream == "mine"


def test_where_nothing_can_be_late_only_the_count_is_checked() -> None:
    found = declare(case("SELECT id FROM t", late_rows=({"id": 1},)))
    assert found.late_stream is None


def test_names_that_are_taken() -> None:
    sources = (source("result"), source("late_rows"))
    assert declare(case("SELECT id FROM result", *sources)).stream == "result_"


def test_nothing_is_late_without_a_watermark_model() -> None:
    found = declare(case("SELECT id FROM t", watermark_model="none")).source("t")
    assert found.watermark is not None
    assert found.watermark.delay_us == LONG_DELAY_MS * 1000


def test_explicit_watermarks_hide_their_rows() -> None:
    found = declare(case("SELECT id FROM t", source(marks=(Mark(0, 5),))))
    assert found.source("t").name == "t_with_marks"
    assert "SELECT `id`, `ts` FROM `t_with_marks` WHERE _mark IS NULL" in found.script


def test_the_state_ttl_of_the_case_is_set_on_the_stream(all_built: None) -> None:
    join = "SELECT t.id FROM t JOIN u ON t.id = u.id"
    sources = (source(), source("u"))
    assert rejection(case(join, *sources)).code == "TG-407"
    script = declare(case(join, *sources, state_ttl="2 hours")).script
    assert "CREATE STREAM result WITH (state_ttl = '2 hours') AS" in script


def test_upserts_know_their_key(all_built: None) -> None:
    found = declare(case(COUNTS + " EMIT ON UPDATE"))
    assert (found.changelog, found.key) == (ChangelogKind.UPSERT, ("window_start",))


def test_what_is_not_built_is_rejected_before_anything_runs() -> None:
    assert (
        rejection(case("SELECT count(*) OVER (ORDER BY ts GROUPS 1 PRECEDING) AS n FROM t")).code
        == "TG-501"
    )


def test_a_wrong_query_is_rejected_with_all_its_errors() -> None:
    error = rejection(case("SELECT idd FROM t ORDER BY ts"))
    assert error.code == "TG-301"


SCRIPT = """
CREATE SOURCE t (id INT) WITH (connector = 'memory', dead_letters = 'bad');
CREATE STREAM s AS SELECT id FROM t;
INSERT INTO t VALUES (1);
"""


def scripted(stream: str) -> Case:
    return Case("c", Path("c.yaml"), (), script=SCRIPT, stream=stream, expected_rows=())


def test_a_script_is_run_as_it_is() -> None:
    found = declare(scripted("S"))
    assert found.script == SCRIPT
    assert found.stream == "s"
    assert declare(scripted("bad")).stream == "bad"


def test_a_script_without_the_stream_is_rejected() -> None:
    error = rejection(scripted("t"))
    assert error.message == "the script has no stream t"
    assert error.hint == "streams: bad, s"
