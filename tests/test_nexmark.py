"""The NEXMark queries compile over every source and sink; a wrong row is noticed."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from tests.compiling import compile_text, plan_of
from tidegate import nexmark
from tidegate.cli.main import app
from tidegate.connectors.generator.nexmark import TABLES
from tidegate.errors import RunError
from tidegate.nexmark import commands, flink_home, flink_program
from tidegate.nexmark.comparing import batch_answer, comparable, difference
from tidegate.nexmark.events import stored_rows
from tidegate.nexmark.running import Job, Measured, line, side_input
from tidegate.nexmark.scripts import Events, Generated, Stored, script, tables

ALL = [f"q{number}" for number in range(23)]
AT = datetime(2015, 7, 15, tzinfo=UTC)


@pytest.fixture
def events(tmp_path: Path) -> Path:
    """Tables of events without rows."""
    arrow = {"BIGINT": pa.int64(), "STRING": pa.string(), "TIMESTAMP": pa.timestamp("us", "UTC")}
    for name, table in TABLES.items():
        (tmp_path / name).mkdir()
        schema = pa.schema([(column, arrow[kind]) for column, kind in table.columns])
        pq.write_table(schema.empty_table(), tmp_path / name / "00000.parquet")
    return tmp_path


def test_there_are_all_queries_in_every_dialect() -> None:
    assert nexmark.names() == ALL
    assert nexmark.flink_names() == [name for name in ALL if name not in flink_home.UNABLE]
    assert all(nexmark.batch(name) for name in ALL)
    with pytest.raises(KeyError, match="there is no query q23; there are q0"):
        nexmark.batch("q23")


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("sink", ["blackhole", "files", "memory"])
@pytest.mark.parametrize("events", [Generated(100), Stored(Path("it's"), 2)], ids=["made", "files"])
def test_queries_compile_over_other_sources_and_sinks(name: str, sink: str, events: Events) -> None:
    compiled = compile_text(script(name, events, sink, Path("out")), name)
    errors = [*compiled.errors, *compiled.unrunnable]
    assert not errors, "\n".join(error.render() for error in errors)
    connectors = {
        type(item).__name__: getattr(item, "connector", None) for item in compiled.declared
    }
    assert connectors["Sink"] == sink


def test_the_tables_that_a_query_reads() -> None:
    assert tables("q8") == ["person", "auction"]
    assert tables("q13") == ["bid"]


@pytest.mark.parametrize("name", ALL)
def test_the_batch_query_has_the_columns_of_ours(name: str, events: Path) -> None:
    answer = batch_answer(name, events, side_input())
    ours = [field.name for field in plan_of(compile_text(nexmark.query(name)), name).fields]
    assert answer.column_names == (["bidder", "bid_count"] if name == "q12" else ours)


def test_equal_results_are_equal_however_they_are_stored() -> None:
    ours = pa.table({"a": [1, 1, 2], "at": pa.array([AT, AT, None], pa.timestamp("us", "UTC"))})
    texts = pa.table({"a": ["2", "1", "1"], "at": [None, "2015-07-15T00:00:00", "2015-07-15"]})
    assert not difference(ours, texts)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ([1, 2], "1 rows missing, 0 too many"),
        ([1, 1, 2, 2], "0 rows missing, 1 too many"),
        ([1, 1, 3], "1 rows missing, 1 too many"),
        ([1, 1, None], "1 rows missing, 1 too many"),
    ],
)
def test_a_wrong_row_is_noticed(wrong: list[int | None], said: str) -> None:
    found = difference(pa.table({"a": wrong}), pa.table({"a": [1, 1, 2]}))
    assert found and str(found) == said
    assert found.examples


def test_other_columns_are_a_difference() -> None:
    found = difference(pa.table({"a": [1]}), pa.table({"b": [1]}))
    assert found.examples == ("columns ['b'], not ['a']",)


def test_of_windows_of_processing_time_the_sum_is_compared() -> None:
    windows = pa.table({"bidder": [1, 1, 2], "bid_count": [3, 4, 5], "starttime": [AT, AT, AT]})
    assert sorted(comparable("q12", windows).to_pylist(), key=str) == [
        {"bidder": 1, "bid_count": 7},
        {"bidder": 2, "bid_count": 5},
    ]
    assert comparable("q0", windows) is windows


def test_of_sessions_flink_knows_the_milliseconds() -> None:
    ours = pa.table({"bidder": [1], "bid_count": [2], "starttime": [AT], "endtime": [AT]})
    flinks = pa.table(
        {"bidder": ["1"], "bid_count": ["2"], "starttime": ["2015-07-15T00:00:00.000900"]}
        | {"endtime": ["2015-07-15T00:00:00"]}
    )
    assert difference(ours, flinks)
    assert not difference(comparable("q11", ours, True), comparable("q11", flinks, True))
    assert comparable("q11", ours) is ours


def test_a_line_of_the_table() -> None:
    measured = Measured(2.0, (0.1, 0.3, 0.2), 1_000, 7, 0)
    cells = ("q5", "500,000", "200 ms", "300 ms", "1,000 B", "7", "0")
    assert line("q5", 1_000_000, measured) == cells
    assert Measured(1.0, (), 0, 0, 0).epoch_percentile(0.5) is None


def test_events_are_counted_and_other_folders_refused(events: Path, tmp_path: Path) -> None:
    assert stored_rows(events) == 0
    with pytest.raises(RunError, match="no NEXMark events"):
        stored_rows(tmp_path / "bid")


def test_what_is_left_of_changes_that_flink_tells(tmp_path: Path) -> None:
    lines = [
        '{"before":null,"after":{"a":1,"b":"x"},"op":"c"}',
        '{"before":{"a":1,"b":"x"},"after":null,"op":"d"}',
        '{"before":null,"after":{"a":2,"b":null},"op":"c"}',
        '{"before":null,"after":{"a":2,"b":null},"op":"c"}',
    ]
    (tmp_path / "part-0").write_text("\n".join(lines))
    left = flink_home._standing(tmp_path, ["a", "b"])
    assert left.to_pylist() == [{"a": "2", "b": None}] * 2


def test_a_flink_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(flink_home.VARIABLE, raising=False)
    assert flink_home.find_flink(None) is None
    with pytest.raises(RunError, match="there is no Flink in"):
        flink_home.find_flink(tmp_path)
    monkeypatch.setenv(flink_home.VARIABLE, str(tmp_path))
    with pytest.raises(RunError, match="make nexmark-flink"):
        flink_home.find_flink(None)


def test_the_program_for_flink_tells_what_went_wrong() -> None:
    class Tables:
        def execute_sql(self, statement: str) -> None:
            raise ValueError("no such table")

    assert flink_program.execute(Tables(), ["SELECT 1"]) == {"error": "no such table"}


@pytest.mark.parametrize(("bids", "code"), [([], 0), ([7], 1)])
def test_verify_fails_if_a_result_differs(
    bids: list[int],
    code: int,
    events: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Of no events there is no answer, so any row is one too many."""
    result = pa.table({"auction": pa.array(bids, pa.int64()), "price": pa.array(bids, pa.int64())})
    monkeypatch.setattr(Job, "result", lambda job, spark: result)
    monkeypatch.setattr(commands, "_workshop", lambda: nullcontext((None, events / "work")))
    monkeypatch.setattr(commands, "find_flink", lambda given: None)
    assert commands.verify(commands.Wanted(["q2"], 0, events), None) == code
    said = capsys.readouterr().out
    assert ("too many: (7, 7)" in said) == bool(code)
    assert ("1 of 1 queries differ or failed" in said) == bool(code)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "q23"], "there is no query q23"),
        (["verify", "nonsense"], "there is no query nonsense"),
        (["run", "--source", "kafka"], "events from Kafka need brokers"),
        (["run", "--source", "files", "--brokers", "b:1"], "events from Kafka need brokers"),
        (["run", "--events", "x"], "the generator makes its own events"),
        (["verify", "--flink", "nowhere"], "there is no Flink in nowhere"),
    ],
)
def test_mistakes_are_told_before_spark_starts(arguments: list[str], said: str) -> None:
    done = CliRunner().invoke(app, ["nexmark", *arguments])
    assert done.exit_code == 2
    assert said in done.stderr and "Hint: " in done.stderr
