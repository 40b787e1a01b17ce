"""Case files: fields and defaults, and rejections of invalid files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tidegate.catalog.objects import Source
from tidegate.compile.compiler import Compiler
from tidegate.connectors.registry import CONNECTORS
from tidegate.errors import TidegateError
from tidegate.testing import load_case
from tidegate.testing.case import (
    Add,
    DeleteAll,
    EndOfInput,
    ExpectAll,
    ExpectDelta,
    ExpectDropped,
    ExpectWatermark,
    ExplicitWatermark,
    LateReference,
    Restart,
)
from tidegate.testing.fields import LONG_DELAY_MS, WATERMARK_COLUMN
from tidegate.testing.loader import Skips, find_cases
from tidegate.testing.runner import epochs_of

SOURCE = {"name": "t", "schema": [{"name": "id", "type": "INT"}], "rows": [{"id": 1}, {"id": 2}]}
TIMED = {
    "name": "t",
    "schema": [{"name": "id", "type": "INT"}, {"name": "ts", "type": "TIMESTAMP"}],
    "time_column": "ts",
}


def write(directory: Path, content: Any = None, /, name: str = "case.json", **fields: Any) -> Path:
    path = directory / name
    if content is None:
        content = {"sources": [SOURCE], "query": "SELECT id FROM t", "expected_rows": [], **fields}
        content = {key: value for key, value in content.items() if value is not ...}
    path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    return path


def rejection(directory: Path, content: Any = None, /, **fields: Any) -> TidegateError:
    with pytest.raises(TidegateError) as caught:
        load_case(write(directory, content, **fields))
    assert caught.value.code == "TG-701"
    assert "case." in caught.value.message, "the message names the file"
    return caught.value


def test_a_case_without_steps_is_one_epoch(tmp_path: Path) -> None:
    case = load_case(write(tmp_path))
    assert (case.name, case.watermark_model, case.flush) == ("case", "per_batch", True)
    assert epochs_of(case) == (Add((("t", ({"id": 1}, {"id": 2})),)), EndOfInput())


def test_yaml_is_the_same_format(tmp_path: Path) -> None:
    text = "name: y\nsources: [{name: t, schema: [{name: id, type: INT}]}]\n"
    text += "query: SELECT id FROM t\nsteps: [{add: {t: [{id: 1}]}}, {expect_all: [{id: 1}]}]\n"
    case = load_case(write(tmp_path, text, name="case.yaml"))
    assert case.steps == (Add((("t", ({"id": 1},)),)), ExpectAll(({"id": 1},)))
    assert not case.flush, "steps end the input explicitly"


def test_all_steps_are_read(tmp_path: Path) -> None:
    steps = [
        {"add": [{"source": "T", "rows": [{"ID": 1}]}]},
        {"expect_delta": [{"_op": "+I", "id": 1}, {"_diff": -2, "id": 1}]},
        {"expect_dropped": 0},
        {"expect_watermark_ms": 5},
        {"expect_watermark_ms": None},
        {"restart": True},
        {"delete_all": "t"},
        {"end_of_input": True},
    ]
    source = {**SOURCE, "rows": None}
    case = load_case(write(tmp_path, sources=[source], steps=steps))
    assert case.steps == (
        Add((("t", ({"ID": 1},)),)),
        ExpectDelta(({"_op": "+I", "id": 1}, {"_weight": -2, "id": 1})),
        ExpectDropped(0),
        ExpectWatermark(5),
        ExpectWatermark(None),
        Restart(),
        DeleteAll(("t",)),
        EndOfInput(),
    )


@pytest.mark.parametrize(
    ("fields", "message", "hint"),
    [
        ({"expcted_rows": []}, "expcted_rows: unknown field", "did you mean expected"),
        ({"query": ...}, "query: expected a string, found nothing", ""),
        ({"state_ttl": 5}, "state_ttl: expected a string, found 5", ""),
        ({"query": 5}, "query: expected a string, found 5", ""),
        ({"ordered": "yes"}, 'ordered: expected true or false, found "yes"', ""),
        ({"allowed_lateness_ms": -1}, "allowed_lateness_ms: expected a non-negative", ""),
        (
            {"emit": "updates"},
            'emit: expected window_close | update | changelog, found "upd',
            "upd",
        ),
        ({"watermark_model": "per_rwo"}, "watermark_model: expected per_row |", "per_row"),
        ({"watermark_model": "per_key"}, "watermark_model: expected per_row |", ""),
        ({"expected_rows": ...}, "the case has no expectation", "expected_rows"),
        ({"expected_rows": {}}, "expected_rows: expected a list of rows, found a mapping", ""),
        ({"expected_rows": [1]}, "expected_rows[0]: expected a row", ""),
        ({"expected_rows_file": "x.jsonl"}, "expected expected_rows or expected_rows_file", ""),
        ({"expected_changelog": [{"id": 1}]}, "expected_changelog[0]._op: expected one of", ""),
        ({"late_rows": [{"source": "t", "row_index": 2}]}, "expected an index below 2", ""),
        ({"late_rows": [{"source": "u", "row_index": 0}]}, "unknown source u", "sources: t"),
        ({"sources": []}, "sources: expected at least one source", ""),
        ({"sources": [SOURCE, SOURCE]}, "sources[1].name: duplicate source t", ""),
        ({"stream": "x"}, "stream: unknown field", ""),
        ({"steps": []}, "steps: expected at least one step", ""),
        ({"steps": [{}]}, "steps[0]: expected one action, found none", ""),
        ({"steps": [{"adds": []}]}, "steps[0].adds: unknown field", "did you mean add"),
        ({"steps": [{"restart": False}]}, "steps[0].restart: expected true", ""),
        ({"steps": [{"add": {"u": []}}]}, "steps[0].add[0].source: unknown source u", "t"),
        ({"steps": [{"add": {"t": [{"id": 9}]}}]}, "sources[0].rows: the rows differ", "add"),
        ({"steps": [{"expect_delta": [{"id": 1}]}]}, "expect_delta[0]: expected _op or", ""),
        ({"steps": [{"expect_dropped": None}]}, "expected a number of rows", ""),
        ({"steps": [{"end_of_input": True}, {"add": {"t": []}}]}, "steps[1]: the input has", ""),
        ({"steps": [{"delete_all": 3}]}, "delete_all: expected the name of a source", ""),
        ({"skip": ""}, 'skip: expected a string, found ""', ""),
    ],
)
def test_invalid_fields_are_rejected(
    tmp_path: Path, fields: dict[str, Any], message: str, hint: str
) -> None:
    error = rejection(tmp_path, **fields)
    assert message in error.message
    assert hint in (error.hint or "")


@pytest.mark.parametrize(
    ("changes", "message", "hint"),
    [
        ({"kind": "table"}, "sources[0].kind: expected stream | changelog", ""),
        ({"schema": None}, "sources[0].schema: expected a list, found nothing", ""),
        ({"schema": []}, "sources[0].schema: expected at least one column", ""),
        ({"schema": [{"name": "id"}]}, "sources[0].schema[0].type: expected a string", ""),
        ({"rows": [{"idd": 1}]}, "sources[0].rows[0].idd: t has no such column", "mean id"),
        ({"rows": [{"_op": "-D", "id": 1}]}, "kind stream accepts only +I, found -D", "changelog"),
        ({"kind": "changelog", "rows": [{"_op": "I"}]}, "rows[0]._op: expected one of +I", ""),
        ({"rows_file": "a.jsonl"}, "sources[0].rows: expected rows or rows_file, found both", ""),
        ({"rows": None, "rows_file": "a.jsonl"}, "rows_file: file a.jsonl was not found", ""),
        ({"time_column": "tss"}, "time_column: tss is not a column", ""),
        ({"kind": "upsert"}, "primary_key: required for a source of kind upsert", ""),
        ({"primary_key": ["x"]}, "primary_key: x is not a column", "id"),
        ({"explicit_watermarks": [{}]}, "explicit_watermarks: requires time_column", ""),
    ],
)
def test_invalid_sources_are_rejected(
    tmp_path: Path, changes: dict[str, Any], message: str, hint: str
) -> None:
    error = rejection(tmp_path, sources=[{**SOURCE, **changes}])
    assert message in error.message
    assert hint in (error.hint or "")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("case.json", "{", "line 1: invalid JSON"),
        ("case.json", "[]", "expected a mapping, found a list"),
        ("case.json", '{"name": "a", "name": "b"}', "name: duplicate field"),
        ("case.yaml", "a: [", "line 1: invalid YAML"),
        (
            "case.yaml",
            "steps:\n - restart: true\n   restart: true",
            "line 3: invalid YAML: duplicate field restart",
        ),
        ("case.yaml", "", "expected a mapping, found nothing"),
        ("case.yaml", "- !!python/object:os.system {}", "invalid YAML"),
    ],
)
def test_malformed_files_are_rejected(tmp_path: Path, name: str, text: str, message: str) -> None:
    assert message in rejection(tmp_path, text, name=name).message


def test_rows_files_are_found_next_to_the_case_or_above(tmp_path: Path) -> None:
    inner = tmp_path / "cases" / "area"
    inner.mkdir(parents=True)
    source = {**SOURCE, "rows": None, "rows_file": "data/t.jsonl"}
    path = write(inner, sources=[source])
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "t.jsonl").write_text('{"id": 7}\n\n{"id": 8}\n', "utf-8")
    assert load_case(path).sources[0].rows == ({"id": 7}, {"id": 8})
    (inner / "data").mkdir()
    (inner / "data" / "t.jsonl").write_text('{"id": 1}\n{"id"\n', "utf-8")
    with pytest.raises(TidegateError, match=r"t\.jsonl: line 2: invalid JSON"):
        load_case(path)


def test_a_script_replaces_schema_and_query(tmp_path: Path) -> None:
    script = "CREATE SOURCE t (id INT) WITH (connector = 'memory'); CREATE STREAM s AS SELECT 1;"
    content = {"script": script, "stream": "s", "expected_rows": []}
    content["sources"] = [{"name": "t", "rows": [{"id": 1}]}]
    assert load_case(write(tmp_path, content)).rows_of("t") == ({"id": 1},)
    assert "emit: unknown" in rejection(tmp_path, {**content, "emit": "update"}).message
    assert "sources[0].schema" in rejection(tmp_path, {**content, "sources": [SOURCE]}).message
    assert "stream: expected a string" in rejection(tmp_path, {**content, "stream": None}).message


def test_late_rows_are_references_or_rows(tmp_path: Path) -> None:
    late_rows = [{"source": "t", "row_index": 1, "why": "closed", "window": "[0, 5)"}, {"id": 5}]
    case = load_case(write(tmp_path, late_rows=late_rows))
    assert case.late_rows == (LateReference("t", 1), {"id": 5})


def test_the_state_ttl_of_a_query_is_read(tmp_path: Path) -> None:
    assert load_case(write(tmp_path, state_ttl="2 hours")).state_ttl == "2 hours"


@pytest.mark.parametrize("watermark", ["1970-01-01T00:00:05", "1970-01-01T00:00:05Z", 5000])
def test_an_explicit_watermark_becomes_a_hidden_row(tmp_path: Path, watermark: Any) -> None:
    explicit_watermarks = [{"row_index": 1, "watermark": watermark}]
    rows = [{"id": 1, "ts": "1970-01-01T00:00:01"}, {"id": 2, "ts": None}, {"id": 3, "ts": None}]
    source = {**TIMED, "rows": rows, "explicit_watermarks": explicit_watermarks}
    case = load_case(write(tmp_path, sources=[source], watermark_model="explicit"))
    assert case.sources[0].explicit_watermarks == (ExplicitWatermark(1, 5000),)
    first, second, _ = epochs_of(case)
    assert isinstance(first, Add) and isinstance(second, Add)
    assert first.rows[0][1][:2] == (rows[0], rows[1])
    hidden = first.rows[0][1][2]
    assert hidden[WATERMARK_COLUMN] is True
    assert hidden["ts"].timestamp() * 1000 == 5000 + LONG_DELAY_MS
    assert second.rows == (("t", (rows[2],)),)


@pytest.mark.parametrize(
    ("watermark", "message"),
    [
        ([1, 5000], "explicit_watermarks[0]: expected a mapping, found a list"),
        ({"row": 1, "watermark": 5}, "explicit_watermarks[0].row: unknown field"),
        ({"row_index": "1", "watermark": 5}, "[0].row_index: expected an integer"),
        ({"row_index": 1, "watermark": "soon"}, "[0].watermark: expected a time or milliseconds"),
    ],
)
def test_invalid_explicit_watermarks_are_rejected(
    tmp_path: Path, watermark: Any, message: str
) -> None:
    source = {**TIMED, "rows": [], "explicit_watermarks": [watermark]}
    assert message in rejection(tmp_path, sources=[source]).message


def test_skips_are_read_next_to_the_cases_and_above(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    (tmp_path / "skips.yaml").write_text("case: not built yet\n", "utf-8")
    path = write(inner)
    assert find_cases([tmp_path, path]) == [path], "skips.yaml is not a case; a file counts once"
    assert Skips().apply(load_case(path)).skip == "not built yet"
    case_with_skip = load_case(write(inner, skip="own reason"))
    assert Skips().apply(case_with_skip).skip == "own reason"
    (tmp_path / "skips.yaml").write_text("case:\n", "utf-8")
    with pytest.raises(TidegateError, match=r"skips\.yaml: case: expected a reason"):
        Skips().apply(load_case(write(inner)))
    (tmp_path / "skips.yaml").unlink()
    (tmp_path / "other.yaml").write_text("case: elsewhere\n", "utf-8")
    assert Skips(tmp_path / "other.yaml").apply(load_case(write(inner))).skip == "elsewhere"


def test_data_next_to_cases_is_ignored(tmp_path: Path) -> None:
    for directory in ("tests", "orders", ".tidegate/streams"):
        (tmp_path / directory).mkdir(parents=True)
    (tmp_path / "orders" / "rows.json").write_text('{"id": 1}\n{"id": 2}\n', "utf-8")
    (tmp_path / "orders" / "row.json").write_text('{"id": 1}\n', "utf-8")
    (tmp_path / "compose.yaml").write_text("services: {}\n", "utf-8")
    write(tmp_path / ".tidegate" / "streams")
    case = write(tmp_path / "tests")
    broken = write(tmp_path / "tests", '{"query": "SELECT', name="broken.json")
    yaml = write(tmp_path / "tests", "sources: []\n", name="of_yaml.yaml")
    assert find_cases([tmp_path]) == [broken, case, yaml]
    data = tmp_path / "orders" / "rows.json"
    assert find_cases([data]) == [data], "a file in the arguments is always a case"


def test_a_script_file_reads_rows_of_the_case_and_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "streams.sql").write_text(
        """
        CREATE SOURCE IF NOT EXISTS o (id BIGINT, ts TIMESTAMP, WATERMARK FOR ts AS ts) -- here
            WITH (connector = 'files', path = '${NOWHERE}/in', format = 'csv', dead_letters = 'bad');
        CREATE SOURCE g WITH (connector = 'generator', rows = 5);
        CREATE MATERIALIZED VIEW s AS SELECT id FROM o;
        CREATE SINK out FROM s WITH (connector = 'files', path = '/nowhere');
        SET validator = 'warn';
        """
    )
    rows = [{"id": 1}]
    content = {"script_file": "streams.sql", "stream": "s", "expected_rows": rows}
    path = write(tmp_path, {**content, "sources": [{"name": "o", "rows": rows}]})
    case = load_case(path)
    assert case.script is not None and "/nowhere" not in case.script
    catalog = Compiler(CONNECTORS).compile(case.script).catalog
    assert catalog.names() == ["o", "bad", "g", "s"]
    source = catalog.get("o")
    assert isinstance(source, Source) and source.insertable and source.options["max_future"] is None
    with pytest.raises(TidegateError) as caught:
        load_case(write(tmp_path, {**content, "script_file": "nothing.sql"}))
    assert "script_file: cannot read" in caught.value.message
