"""The NEXMark benchmark without Spark: queries, comparison of results, Flink, command line."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from benchmarks import nexmark
from benchmarks.nexmark import compare, flink, flink_program, verify
from benchmarks.nexmark.__main__ import app
from benchmarks.nexmark.events import stored_rows
from benchmarks.nexmark.run import Job, Measured, Workload, line, side_input
from benchmarks.nexmark.scripts import Events, Generated, Stored, script, tables
from benchmarks.nexmark.verify import comparable, difference, duckdb_answer
from tests.support.compiling import compile_text, plan_of
from tidegate.connectors.generator.nexmark import TABLES

QUERIES = [f"q{number}" for number in range(23)]
MIDNIGHT = datetime(2015, 7, 15, tzinfo=UTC)


@pytest.fixture
def events(tmp_path: Path) -> Path:
    """Write event tables without rows."""
    arrow = {"BIGINT": pa.int64(), "STRING": pa.string(), "TIMESTAMP": pa.timestamp("us", "UTC")}
    for name, table in TABLES.items():
        (tmp_path / name).mkdir()
        schema = pa.schema([(column, arrow[kind]) for column, kind in table.columns])
        pq.write_table(schema.empty_table(), tmp_path / name / "00000.parquet")
    return tmp_path


# ---- Queries


def test_every_query_exists_for_every_engine_that_supports_it() -> None:
    assert nexmark.names() == QUERIES
    assert nexmark.flink_names() == [name for name in QUERIES if name not in flink.UNSUPPORTED]
    assert all(nexmark.duckdb_query(name) for name in QUERIES)


def test_unknown_query_is_rejected_with_the_existing_names() -> None:
    with pytest.raises(KeyError, match="unknown query q23; the queries are q0"):
        nexmark.duckdb_query("q23")


@pytest.mark.parametrize("name", QUERIES)
@pytest.mark.parametrize("sink", ["blackhole", "files", "memory"])
@pytest.mark.parametrize(
    "events", [Generated(100), Stored(Path("it's"), 2)], ids=["generated", "stored"]
)
def test_queries_compile_with_every_source_and_sink(name: str, sink: str, events: Events) -> None:
    compiled = compile_text(script(name, events, sink, Path("out")), name)
    errors = [*compiled.errors, *compiled.rejections]
    assert not errors, "\n".join(error.render() for error in errors)
    connectors = {
        type(item).__name__: getattr(item, "connector", None) for item in compiled.declared
    }
    assert connectors["Sink"] == sink


def test_tables_returns_the_sources_of_a_query() -> None:
    assert tables("q8") == ["person", "auction"]
    assert tables("q13") == ["bid"]


@pytest.mark.parametrize("name", QUERIES)
def test_duckdb_and_tidegate_return_the_same_columns(name: str, events: Path) -> None:
    answer = duckdb_answer(name, events, side_input())
    fields = plan_of(compile_text(nexmark.query(name)), name).fields
    expected = ["bidder", "bid_count"] if name == "q12" else [field.name for field in fields]
    assert answer.column_names == expected


# ---- Comparison of results


def test_equal_values_of_different_types_are_equal() -> None:
    times = pa.array([MIDNIGHT, MIDNIGHT, None], pa.timestamp("us", "UTC"))
    result = pa.table({"a": [1, 1, 2], "at": times})
    strings = pa.table({"a": ["2", "1", "1"], "at": [None, "2015-07-15T00:00:00", "2015-07-15"]})
    assert not difference(result, strings)


@pytest.mark.parametrize(
    ("values", "summary"),
    [
        ([1, 2], "1 rows missing, 0 extra"),
        ([1, 1, 2, 2], "0 rows missing, 1 extra"),
        ([1, 1, 3], "1 rows missing, 1 extra"),
        ([1, 1, None], "1 rows missing, 1 extra"),
    ],
)
def test_difference_counts_missing_and_extra_rows(values: list[int | None], summary: str) -> None:
    result = difference(pa.table({"a": values}), pa.table({"a": [1, 1, 2]}))
    assert result and str(result) == summary
    assert result.examples


def test_different_column_names_are_a_difference() -> None:
    result = difference(pa.table({"a": [1]}), pa.table({"b": [1]}))
    assert result.examples == ("columns ['b'], not ['a']",)


def test_processing_time_windows_are_compared_by_their_sum() -> None:
    times = [MIDNIGHT] * 3
    windows = pa.table({"bidder": [1, 1, 2], "bid_count": [3, 4, 5], "starttime": times})
    assert sorted(comparable("q12", windows).to_pylist(), key=str) == [
        {"bidder": 1, "bid_count": 7},
        {"bidder": 2, "bid_count": 5},
    ]
    assert comparable("q0", windows) is windows


def test_sessions_are_compared_with_flink_in_milliseconds() -> None:
    ours = pa.table(
        {"bidder": [1], "bid_count": [2], "starttime": [MIDNIGHT], "endtime": [MIDNIGHT]}
    )
    theirs = pa.table(
        {"bidder": ["1"], "bid_count": ["2"], "starttime": ["2015-07-15T00:00:00.000900"]}
        | {"endtime": ["2015-07-15T00:00:00"]}
    )
    assert difference(ours, theirs)
    assert not difference(comparable("q11", ours, True), comparable("q11", theirs, True))
    assert comparable("q11", ours) is ours


@pytest.mark.parametrize(("bids", "code"), [([], 0), ([7], 1)])
def test_verify_fails_if_a_result_differs(
    bids: list[int],
    code: int,
    events: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Without events DuckDB returns no rows, so each row of the result is extra."""
    result = pa.table({"auction": pa.array(bids, pa.int64()), "price": pa.array(bids, pa.int64())})
    monkeypatch.setattr(Job, "result", lambda job, spark: result)
    monkeypatch.setattr(verify, "workspace", lambda: nullcontext((None, events / "work")))
    monkeypatch.setattr(verify, "find_flink", lambda folder: None)
    assert verify.verify(Workload(["q2"], 0, events), None) == code
    output = capsys.readouterr().out
    assert ("extra: (7, 7)" in output) == bool(code)
    assert ("1 of 1 queries differ or failed" in output) == bool(code)


# ---- Measurements


def test_line_shows_throughput_percentiles_state_and_rows() -> None:
    measured = Measured(2.0, (0.1, 0.3, 0.2), 1_000, 7, 0)
    cells = ("q5", "500,000", "200 ms", "300 ms", "1,000 B", "7", "0")
    assert line("q5", 1_000_000, measured) == cells


def test_percentiles_are_none_without_epochs() -> None:
    assert Measured(1.0, (), 0, 0, 0).epoch_percentile(0.5) is None


def test_stored_events_are_counted(events: Path) -> None:
    assert stored_rows(events) == 0


def test_directory_without_events_is_rejected(events: Path) -> None:
    with pytest.raises(SystemExit, match="does not contain NEXMark events"):
        stored_rows(events / "bid")


def measured_engine(name: str, **seconds: list[float]) -> compare.Engine:
    """Create an engine with these measurements; each run has one second of start-up time."""
    return compare.Engine(
        name, lambda query, events: 0.0, set(seconds), {"empty": [1.0], **seconds}
    )


def test_comparison_prints_ratios_and_their_geometric_mean(
    capsys: pytest.CaptureFixture[str],
) -> None:
    engines = [
        measured_engine("tidegate", q0=[2.0, 2.0, 9.0], q1=[2.0], q2=[1.05]),
        measured_engine("flink", q0=[5.0], q1=[1.25], q2=[3.0]),
    ]
    compare.report(engines, ["q0", "q1", "q2", "q6"], 2_000_000)
    output = capsys.readouterr().out
    ratios = {cells[0]: cells[3:] for cells in map(str.split, output.splitlines()) if cells}
    assert ratios["q0"] == ["4.00"]
    assert ratios["q1"] == ["0.25", "below", "1"]
    assert "geometric mean of 2 queries: 1.00" in output
    assert "below 1: 1 of 2 (q1)" in output
    assert "without a ratio (not run by both engines, or too short): q2, q6" in output


def test_failing_query_is_excluded_from_the_comparison(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(query: str, events: Path) -> float:
        raise flink.FlinkError("out of memory")

    engine = compare.Engine("flink", fail, {"q0"})
    engine.measure("q0", Path("events"), counts=True)
    assert engine.supported == set()
    assert engine.net("q0") is None
    assert "q0 fails in flink: out of memory" in capsys.readouterr().err


# ---- Flink


def test_retracted_rows_are_removed_from_flinks_result(tmp_path: Path) -> None:
    lines = [
        '{"before":null,"after":{"a":1,"b":"x"},"op":"c"}',
        '{"before":{"a":1,"b":"x"},"after":null,"op":"d"}',
        '{"before":null,"after":{"a":2,"b":null},"op":"c"}',
        '{"before":null,"after":{"a":2,"b":null},"op":"c"}',
    ]
    (tmp_path / "part-0").write_text("\n".join(lines))
    rows = flink._materialized_rows(tmp_path, ["a", "b"])
    assert rows.to_pylist() == [{"a": "2", "b": None}] * 2


def test_flink_is_optional_unless_a_directory_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(flink.VARIABLE, raising=False)
    assert flink.find_flink(None) is None
    with pytest.raises(SystemExit, match="Flink is not installed in"):
        flink.find_flink(tmp_path)
    monkeypatch.setenv(flink.VARIABLE, str(tmp_path))
    with pytest.raises(SystemExit, match="make nexmark-flink"):
        flink.find_flink(None)


def test_flink_program_returns_errors_of_statements() -> None:
    class Tables:
        def execute_sql(self, statement: str) -> None:
            raise ValueError("no such table")

    assert flink_program.execute(Tables(), ["SELECT 1"]) == {"error": "no such table"}


# ---- Command line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "q23"], "unknown query q23"),
        (["verify", "nonsense"], "unknown query nonsense"),
        (["compare", "q23"], "unknown query q23"),
        (["run", "--source", "kafka"], "--source kafka and --brokers HOST:PORT require each other"),
        (["run", "--source", "files", "--brokers", "b:1"], "require each other"),
        (["run", "--events", "x"], "--events requires --source files or kafka"),
        (["verify", "--flink", "nowhere"], "Flink is not installed in nowhere"),
        (["compare", "--flink", "nowhere"], "Flink is not installed in nowhere"),
    ],
)
def test_invalid_arguments_are_rejected_before_spark_starts(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate.session.session.Session.__init__", None)
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 1
    assert message in done.output
