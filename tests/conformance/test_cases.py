"""Conformance cases: their translation to the format of `tidegate test`, and their discovery."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.conformance import cases
from tests.conformance.cases import (
    STATE_TTL,
    VARIABLE,
    case_files,
    explicit_watermarks,
    folds_spaces,
    load_conformance_case,
)
from tests.conformance.sessions import fold_spaces
from tidegate.errors import TidegateError
from tidegate.testing.case import Add, ExplicitWatermark
from tidegate.testing.declare import declare
from tidegate.testing.runner import epochs_of

COLUMNS = [{"name": "id", "type": "INT"}, {"name": "ts", "type": "TIMESTAMP"}]
ROWS = [{"id": 1, "ts": "2024-01-01T00:00:01"}, {"id": 2, "ts": "2024-01-01T00:00:02"}]
COUNTS = "SELECT window_time AS at, count(*) AS n FROM t GROUP BY TUMBLE(ts, INTERVAL '5' SECOND)"


def source(name: str = "t", **fields: Any) -> dict[str, Any]:
    return {"name": name, "schema": COLUMNS, "time_column": "ts", "rows": ROWS, **fields}


def write(folder: Path, query: str = "SELECT id FROM t", **fields: Any) -> Path:
    """Write a case that other systems share."""
    document = {"sources": [source()], "query_neutral": query, "expected_rows": [], **fields}
    path = folder / "case.json"
    path.write_text(json.dumps(document), "utf-8")
    return path


# ---- Neutral queries


@pytest.mark.parametrize(
    "query",
    [
        "SELECT t.id FROM t JOIN u ON t.id = u.id",
        "SELECT DISTINCT id FROM t",
        "SELECT * FROM t MATCH_RECOGNIZE (ORDER BY ts MEASURES count(*) AS n PATTERN (A+ B) "
        "DEFINE A AS id > 1, B AS id = 1)",
    ],
    ids=["join", "distinct", "pattern"],
)
def test_neutral_query_without_a_bound_gets_a_state_ttl(tmp_path: Path, query: str) -> None:
    case = load_conformance_case(write(tmp_path, query, sources=[source(), source("u")]))
    assert case.state_ttl == STATE_TTL
    assert f"WITH (state_ttl = '{STATE_TTL}')" in declare(case).script


def test_neutral_query_with_a_bound_gets_no_state_ttl(tmp_path: Path) -> None:
    assert load_conformance_case(write(tmp_path, COUNTS, emit="update")).state_ttl is None


def test_plain_query_is_not_changed(tmp_path: Path) -> None:
    path = write(tmp_path)
    document = json.loads(path.read_text("utf-8"))
    document["query"] = document.pop("query_neutral").replace("id", "DISTINCT id")
    path.write_text(json.dumps(document), "utf-8")
    case = load_conformance_case(path)
    assert case.state_ttl is None
    with pytest.raises(TidegateError, match="TG-408"):
        declare(case)


def test_neutral_query_runs_without_emit_changes_if_only_that_is_accepted(tmp_path: Path) -> None:
    pattern = f"SELECT * FROM ({COUNTS}) MATCH_RECOGNIZE (ORDER BY at MEASURES A.n AS n "
    pattern += "PATTERN (A B) DEFINE B AS B.n < A.n)"
    case = load_conformance_case(write(tmp_path, pattern, emit="update"))
    assert "EMIT" not in declare(case).script


def test_neutral_query_keeps_emit_changes_if_it_is_accepted(tmp_path: Path) -> None:
    endless = "SELECT id, count(*) AS n FROM t GROUP BY id"
    case = load_conformance_case(write(tmp_path, endless, emit="update"))
    assert declare(case).script.endswith("EMIT CHANGES;\n")


def test_join_columns_become_the_key_of_a_versioned_source(tmp_path: Path) -> None:
    query = "SELECT t.id FROM t JOIN u FOR SYSTEM_TIME AS OF t.ts AS v ON t.id = v.id"
    case = load_conformance_case(write(tmp_path, query, sources=[source(), source("u")]))
    assert [item.primary_key for item in case.sources] == [(), ("id",)]


# ---- Fields


@pytest.mark.parametrize("lateness", ["drops", "unclosed", "refires"])
def test_restart_does_not_split_an_epoch_with_late_rows(tmp_path: Path, lateness: str) -> None:
    case = load_conformance_case(write(tmp_path, lateness=lateness))
    steps = epochs_of(case, restart=True)
    assert [type(step).__name__ for step in steps] == ["Add", "Restart", "EndOfInput"]
    assert steps[0] == Add((("t", tuple(ROWS)),))


def test_restart_splits_an_epoch_without_late_rows(tmp_path: Path) -> None:
    steps = epochs_of(load_conformance_case(write(tmp_path, lateness="none")), restart=True)
    assert [type(step).__name__ for step in steps] == ["Add", "Restart", "Add", "EndOfInput"]


def test_unknown_lateness_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(TidegateError, match="lateness: expected one of none, drops"):
        load_conformance_case(write(tmp_path, lateness="some"))


def test_cases_with_a_watermark_per_key_are_skipped_with_the_reason(tmp_path: Path) -> None:
    case = load_conformance_case(write(tmp_path, watermark_model="per_key"))
    assert case.skip == "per-key watermarks: Tidegate has one watermark per source partition"


def test_remarks_are_accepted(tmp_path: Path) -> None:
    remarks = {"engine": "flink", "area": "hop", "portable": "exact", "partially_late_rows": []}
    assert load_conformance_case(write(tmp_path, **remarks)).name == "case"


@pytest.mark.parametrize(
    "marks",
    [
        [{"row_index": 1, "watermark": 5000}],
        [{"after_row": 1, "watermark_ms": 5000}],
        [[1, 5000]],
        {"1": 5000},
    ],
)
def test_every_form_of_explicit_watermarks_is_read(tmp_path: Path, marks: Any) -> None:
    assert explicit_watermarks(marks) == [{"row_index": 1, "watermark": 5000}]
    path = write(tmp_path, sources=[source(explicit_watermarks=marks)])
    assert load_conformance_case(path).sources[0].explicit_watermarks == (
        ExplicitWatermark(1, 5000),
    )


def test_rows_files_are_relative_to_the_directory_of_the_cases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "conformance"
    (root / "data").mkdir(parents=True)
    (root / "data" / "t.jsonl").write_text('{"id": 7}\n', "utf-8")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setenv(VARIABLE, str(root))
    rows_file = source(rows=None, rows_file="data/t.jsonl")
    case = load_conformance_case(write(tmp_path / "elsewhere", sources=[rows_file]))
    assert case.sources[0].rows == ({"id": 7},)


def test_runs_of_spaces_are_folded_in_cases_of_sqllogictest(tmp_path: Path) -> None:
    assert folds_spaces(write(tmp_path, origin="risingwave e2e_test/nexmark/q0.slt.part"))
    assert not folds_spaces(write(tmp_path, origin="flink WindowAggregateITCase"))
    table = pa.table({"n": [1, 2], "s": ["a  b   c", None]})
    assert fold_spaces(table).to_pylist() == [{"n": 1, "s": "a b c"}, {"n": 2, "s": None}]


# ---- Discovery


def test_variable_selects_the_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cases").mkdir()
    path = write(tmp_path / "cases")
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    assert case_files() == [path]


def test_there_are_no_cases_without_a_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(cases, "DEFAULT_DIRECTORY", tmp_path / "none")
    assert case_files() == []


def test_every_conformance_case_can_be_read() -> None:
    files = case_files()
    if not files:
        pytest.skip(f"no conformance cases: set {VARIABLE} to their directory")
    assert [load_conformance_case(file).name for file in files] == [file.stem for file in files]
