"""Queries over stored rows of streams: consistent epochs, and errors with their location."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from tests.support.compiling import compile_text
from tests.support.pipelines import PipelineHarness, PythonPipeline
from tidegate.catalog.objects import Sink, Stream
from tidegate.checkpoint.checkpoints import restore
from tidegate.checkpoint.manifests import Manifests
from tidegate.cli.main import app
from tidegate.connectors import view
from tidegate.connectors.base import SinkContext
from tidegate.connectors.memory import connector as memory
from tidegate.connectors.registry import SINKS
from tidegate.connectors.view import COMPACT_AFTER, ViewSchema
from tidegate.errors import RunError
from tidegate.queries.engine import (
    QueryResult,
    explain_not_stored,
    last_rows,
    run_query,
    run_sql,
    tables_of,
)
from tidegate.queries.snapshot import (
    StoredTable,
    load_stored_tables,
    save_stored_tables,
    snapshot,
    stored_tables,
)
from tidegate.runtime.directory import DataDirectory
from tidegate.runtime.reconciliation import view_sink
from tidegate.types import ChangelogKind

TABLE = pa.table({"a": [1, 2, 3], "name": ["x", "y", None]})
SHAPE = ViewSchema(ChangelogKind.APPEND, (), (("a", "BIGINT"), ("id", "STRING")))


class ViewHarness(PipelineHarness):
    """Two streams in a data directory, each with a view and a memory sink."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.directory = DataDirectory(folder / "data")
        self.directory.open()
        self.store = self.directory.pipeline("main")
        for member in self.streams:
            stream = self.catalog.get(member.name)
            assert isinstance(stream, Stream)
            memory_sinks = tuple(s for s in member.sinks if s.connector == "memory")
            implied = view_sink(stream)
            implied = Sink(
                view.sink_name(stream.name),
                implied.options,
                stream.statement,
                stream.script,
                view.CONNECTOR,
                stream.name,
                True,
            )
            implied.options._values["schema"] = SHAPE
            object.__setattr__(member, "sinks", (implied, *memory_sinks))

    def pipeline(self, **config: Any) -> PythonPipeline:
        pipeline = super().pipeline(**config)
        open_sink = lambda sink, stream, member: SINKS[sink.connector](  # noqa: E731
            SinkContext(
                sink,
                self.directory.stream(sink.stream).uri,
                stream,
                lambda *_: None,
                member.sink_columns(sink),
                restorable=self.manifests,
            )
        )
        object.__setattr__(pipeline.context, "open_sink", open_sink)
        return pipeline

    def of(self, name: str, connector: str = "view") -> StoredTable:
        sink = view.sink_name(name) if connector == "view" else f"kept{name[1:]}"
        return StoredTable(name, "main", name, sink, connector, SHAPE)

    def values(self, *items: StoredTable) -> dict[str, list[int]]:
        result = snapshot(self.directory, items)
        return {name: sorted(t.column("a").to_pylist()) for name, t in result.tables.items()}


@pytest.fixture
def harness(tmp_path: Path) -> ViewHarness:
    return ViewHarness(tmp_path)


@pytest.mark.parametrize("connector", ["view", "memory"])
def test_all_emitted_rows_are_returned(harness: ViewHarness, connector: str) -> None:
    item = harness.of("t0", connector)
    assert harness.values(item) == {"t0": []}
    harness.insert(*range(2 * COMPACT_AFTER))
    harness.run()
    expected = sorted(v for n in range(2 * COMPACT_AFTER) for v in (n, -n))
    assert harness.values(item) == {"t0": expected}
    assert snapshot(harness.directory, [item]).epochs == {"main": 2 * COMPACT_AFTER - 1}


def test_streams_agree_while_they_run(harness: ViewHarness) -> None:
    """Both streams read the same source in the same epochs, so every snapshot is equal."""
    snapshots: list[dict[str, list[int]]] = []
    harness.insert(*range(3 * COMPACT_AFTER))
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            snapshots.append(harness.values(harness.of("t0"), harness.of("t1")))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        harness.run()
    finally:
        over.set()
        thread.join()
    assert all(values["t0"] == values["t1"] for values in snapshots)
    assert len({len(values["t0"]) for values in snapshots}) > 1, (
        "the snapshots are all of one epoch"
    )


def test_unpublished_epoch_is_not_read(
    harness: ViewHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.insert(1)
    harness.run(until_end=False).stop()
    harness.insert(2)
    monkeypatch.setattr(view.ViewSink, "publish", lambda *_: None)
    pipeline = harness.run(until_end=False)
    pipeline.wait(20)
    pipeline.stop()
    monkeypatch.undo()
    values = harness.values(harness.of("t0"), harness.of("t1", "memory"))
    assert values["t0"] == values["t1"]
    # The next start publishes the committed epoch.
    harness.run(until_end=False).stop()
    assert harness.values(harness.of("t0")) == {"t0": [-2, -1, 1, 2]}


def test_rows_of_rolled_back_epochs_are_not_returned(harness: ViewHarness) -> None:
    harness.insert(1)
    pipeline = harness.run(until_end=False)
    pipeline.wait(20)
    pipeline.stop()
    manifests = Manifests(harness.store)
    early = manifests.load_newest().manifest
    assert early is not None
    harness.insert(2)
    pipeline = harness.run(until_end=False)
    pipeline.wait(20)
    pipeline.stop()
    newest = manifests.load_newest().manifest
    assert newest is not None and newest.epoch > early.epoch
    restore(manifests, early, keep_sink_rows=False)
    values = harness.values(harness.of("t0"), harness.of("t1", "memory"))
    assert (
        values["t0"]
        == values["t1"]
        == sorted(v for n in range(1, early.epoch + 2) for v in (n, -n))
    )


def test_missing_files_are_an_error(harness: ViewHarness) -> None:
    harness.insert(1, 2)
    harness.run()
    store = harness.directory.stream("t0")
    store.delete([memory.epoch_file(0)])
    with pytest.raises(RunError) as caught:
        harness.values(harness.of("t0", "memory"))
    assert caught.value.code == "TG-802" and "2 of the 4 rows" in caught.value.message
    life = store.child("view").list()
    store.child("view").delete([item.name for item in life if item.name.endswith("-1.arrow")][:1])
    with pytest.raises(RunError) as caught:
        harness.values(harness.of("t0"))
    assert caught.value.code in ("TG-605", "TG-801")


def test_expired_rows_are_an_error(harness: ViewHarness) -> None:
    harness.insert(1)
    harness.run()
    harness.directory.stream("t0").put("out/last_expired", b"0")
    with pytest.raises(RunError) as caught:
        harness.values(harness.of("t0", "memory"))
    assert caught.value.code == "TG-802" and "expired" in caught.value.message


def test_another_process_queries_a_directory_in_use(harness: ViewHarness) -> None:
    harness.insert(1, 2, 3)
    harness.run()
    save_stored_tables(
        harness.directory, {"t0": harness.of("t0"), "kept1": harness.of("t1", "memory")}
    )
    folder = str(harness.directory.path)
    sql = "SELECT count(*) AS n, sum(a) AS s FROM t0 JOIN kept1 USING (a) WHERE a > 0"
    done = CliRunner().invoke(app, ["query", folder, sql, "--format", "json"])
    assert (done.exit_code, done.stdout) == (0, '{"n": 3, "s": 6}\n'), done.stderr
    done = CliRunner().invoke(app, ["query", folder, "SELECT * FROM t9"])
    assert done.exit_code == 2 and "TG-201" in done.stderr and "rows: kept1, t0" in done.stderr


def test_queryable_names_are_stored(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path)
    assert load_stored_tables(directory) == {}
    readables = {"v": StoredTable("V", "main", "v", "view of V", "view", SHAPE)}
    save_stored_tables(directory, readables)
    assert load_stored_tables(directory) == readables


SCRIPT = """
CREATE SOURCE s (k BIGINT, v BIGINT, ts TIMESTAMP, WATERMARK FOR ts AS ts)
    WITH (connector = 'memory', dead_letters = 'bad');
CREATE STREAM plain AS SELECT k FROM s;
CREATE MATERIALIZED VIEW totals AS SELECT k, sum(v) AS total FROM s GROUP BY k EMIT ON UPDATE;
CREATE STREAM counted AS SELECT k, count(*) AS n FROM s GROUP BY k EMIT CHANGES;
CREATE SINK mem FROM counted WITH (connector = 'memory');
CREATE SINK b FROM bad WITH (connector = 'memory');
CREATE SINK shown FROM plain WITH (connector = 'console');
"""


def test_views_and_memory_sinks_are_queryable_by_name() -> None:
    catalog = compile_text(SCRIPT).catalog
    views = [view_sink(stream) for stream in catalog.of_type(Stream) if stream.materialized]
    readables = stored_tables(catalog, [*catalog.of_type(Sink), *views])
    assert sorted(readables) == ["b", "bad", "counted", "mem", "totals"]
    assert readables["totals"].schema.kind is ChangelogKind.UPSERT and readables[
        "totals"
    ].schema.key == ("k",)
    assert readables["mem"] == readables["counted"]
    assert readables["mem"].schema.kind is ChangelogKind.CHANGELOG
    assert readables["bad"].stream == "bad"


@pytest.mark.parametrize(
    ("name", "words", "hint"),
    [
        (
            "plain",
            "the rows of stream plain are not stored",
            "CREATE MATERIALIZED VIEW plain_now AS SELECT * FROM plain;",
        ),
        (
            "s",
            "the rows of source s are not stored",
            "CREATE MATERIALIZED VIEW s_now AS SELECT * FROM s;",
        ),
        (
            "shown",
            "shown is a sink with the connector console",
            "CREATE MATERIALIZED VIEW plain_now AS SELECT * FROM plain;",
        ),
    ],
)
def test_stream_without_stored_rows_is_rejected_with_a_fix(
    tmp_path: Path, name: str, words: str, hint: str
) -> None:
    catalog = compile_text(SCRIPT).catalog
    declared = catalog.get(name)
    assert declared is not None
    with pytest.raises(RunError) as caught:
        run_query(
            DataDirectory(tmp_path),
            {},
            f"SELECT *\nFROM {name};",
            None,
            lambda _: explain_not_stored(declared),
        )
    error = caught.value
    assert error.code == "TG-802" and words in error.message and str(error.hint).startswith(hint)
    assert error.location is not None and (error.location.line, error.location.column) == (2, 6)
    fixed = compile_text(SCRIPT + hint)
    assert not fixed.errors


def failed_query(sql: str) -> tuple[str, str, str | None]:
    with pytest.raises(RunError) as caught:
        run_sql(sql, {"v": TABLE})
    error = caught.value
    assert error.code == "TG-801"
    at = error.location
    return error.message, at.text[at.start : at.end] if at else "", error.hint


def test_errors_have_their_location_in_the_query() -> None:
    assert failed_query("SELECT b\nFROM v") == (
        'referenced column "b" not found in FROM clause',
        "b",
        "did you mean a?",
    )
    message, at, hint = failed_query("SELECT a\nFROM v WHERE floot(a) > 1")
    assert (at, hint) == ("floot(a)", "did you mean floor?") and "floot" in message
    assert failed_query("SELECT a +\nFROM v")[1] == "FROM"
    assert "in double quotes" in str(failed_query("SELECT at FROM v")[2])
    assert failed_query("SELECT CAST(name AS INT) FROM v")[1] in ("CAST(name AS INT)", "")
    long = "SELECT " + ", ".join(f"a AS a{n}" for n in range(80)) + ", wrong FROM v"
    assert failed_query(long)[1] == "wrong"


def test_only_a_single_query_is_accepted(tmp_path: Path) -> None:
    for sql in ("DROP TABLE v", "SELECT 1; SELECT 2", "COPY v TO 'x'", "SET threads = 1", ""):
        with pytest.raises(RunError) as caught:
            tables_of(sql)
        assert caught.value.code == "TG-801"
    (tmp_path / "secret.csv").write_text("a\n1\n")
    for sql in (
        f"SELECT * FROM read_csv('{tmp_path}/secret.csv')",
        f"SELECT * FROM '{tmp_path}/secret.csv'",
        f"SELECT * FROM glob('{tmp_path}/*')",
    ):
        with pytest.raises(RunError):
            run_sql(sql, {})


def test_python_variables_are_not_tables() -> None:
    mine = TABLE
    with pytest.raises(RunError):
        run_sql("SELECT * FROM mine", {"v": mine})


def test_names_are_case_insensitive_and_ctes_are_not_streams() -> None:
    assert tables_of("WITH x AS (SELECT * FROM V) SELECT * FROM x JOIN w USING (a)") == {"V", "w"}
    assert run_sql(
        "select A from V where a > 1 order by a desc limit 1", {"v": TABLE}
    ).to_pylist() == [{"a": 3}]


def test_sums_of_integers_are_integers() -> None:
    huge = pa.table({"a": [2**62, 2**62], "b": [1, 2]})
    result = run_sql("SELECT sum(a) AS a, sum(b) AS b FROM v", {"v": huge})
    assert (
        result.to_pylist() == [{"a": 2**63, "b": 3}] and result.schema.field("b").type == pa.int64()
    )


def test_result_converts_to_arrow_pandas_polars_text_and_html() -> None:
    result = QueryResult(TABLE, {"main": 4})
    assert result.to_arrow() is TABLE and len(result) == 3 and result.columns == ["a", "name"]
    assert list(result) == result.to_pylist() == TABLE.to_pylist()
    assert result.to_pandas().shape == (3, 2)
    assert result.to_polars().to_dicts() == TABLE.to_pylist()
    assert pa.table(result).equals(TABLE)
    assert repr(result) == "a\tname\n1\tx\n2\ty\n3\tNone\n(3 rows; main at epoch 4)"
    wild = QueryResult(pa.table({"<b>": ["<script>"] * 30}))._repr_html_()
    assert "<script>" not in wild and "&lt;script&gt;" in wild and "30 rows, first 20 shown" in wild


def test_last_rows_of_a_stored_stream(harness: ViewHarness) -> None:
    harness.insert(1, 2, 3)
    harness.run()
    assert last_rows(harness.directory, harness.of("t0"), 2).to_arrow().column("a").to_pylist() == [
        3,
        -3,
    ]
