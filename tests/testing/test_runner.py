"""The runner on a fake session: the calls it makes, and the failures it reports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tidegate.errors import RunError
from tidegate.observe.status import State, StreamStatus
from tidegate.session.subscription import Batch
from tidegate.testing.case import (
    Add,
    Case,
    CaseSource,
    DeleteAll,
    EndOfInput,
    ExpectAll,
    ExpectDelta,
    ExpectDropped,
    ExpectNew,
    ExpectWatermark,
    LateReference,
    Outcome,
    Restart,
    Row,
    Verdict,
)
from tidegate.testing.runner import run_case

Rows = list[dict[str, Any]]


def unchanged(rows: Rows) -> Rows:
    return rows


@dataclass
class FakePipeline:
    """State that outlives a session: the inserted rows, the epochs, and a log of the calls."""

    work: Callable[[Rows], Rows] = unchanged
    late: Callable[[Rows], int] = lambda rows: 0
    schema: pa.Schema = field(default_factory=lambda: pa.schema([("n", pa.int64())]))
    waits: bool = True
    loses_rows: bool = False
    late_rows: int = 0
    pending: Rows = field(default_factory=list)
    epochs: list[pa.Table] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)

    def open(self, path: Path) -> FakeSession:
        self.calls.append("open")
        if self.loses_rows:
            self.epochs.clear()
        return FakeSession(self)


@dataclass
class FakeSession:
    """A session in which each start, and each insert while it runs, is an epoch."""

    pipeline: FakePipeline
    running: bool = False

    def execute(self, sql: str, file: str | None = None) -> list[Any]:
        return []

    def insert(self, source: str, rows: Any) -> int:
        self.pipeline.calls.append(f"insert {source} {[row.get('n') for row in rows]}")
        self.pipeline.pending += [dict(row) for row in rows]
        return len(rows)

    def start(self, until_end: bool = False) -> None:
        assert not self.running, "a session starts once"
        self.pipeline.calls.append("start until end" if until_end else "start")
        self.running = True
        self.pipeline.late_rows = 0

    def wait(self, timeout: float | None = None) -> bool:
        if self.pipeline.pending and self.pipeline.waits:
            self.pipeline.late_rows += self.pipeline.late(self.pipeline.pending)
            rows = self.pipeline.work(self.pipeline.pending)
            self.pipeline.epochs.append(pa.Table.from_pylist(rows, self.pipeline.schema))
            self.pipeline.pending = []
        return self.pipeline.waits

    def stop(self) -> None:
        self.pipeline.calls.append("stop")
        self.running = False

    def close(self) -> None:
        self.pipeline.calls.append("close")

    def subscribe(self, stream: str, from_epoch: int | None = None) -> Any:
        return FakeSubscription(self.pipeline)

    def status(self) -> tuple[StreamStatus, ...]:
        if not self.running:
            return ()
        epoch = len(self.pipeline.epochs) - 1
        at = datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
        status = StreamStatus(
            "result",
            State.RUNNING,
            epoch,
            watermark=at,
            late_rows=self.pipeline.late_rows,
        )
        return (status,)


@dataclass
class FakeSubscription:
    pipeline: FakePipeline
    next: int = 0

    def take_all(self) -> list[Batch]:
        batches = [Batch(e, t) for e, t in enumerate(self.pipeline.epochs) if e >= self.next]
        self.next = len(self.pipeline.epochs)
        return batches


SOURCE = CaseSource("t", columns=(("n", "BIGINT"),))
OTHER = CaseSource("u", columns=(("n", "BIGINT"),))
CHANGES = CaseSource("t", "changelog", (("n", "BIGINT"),))


def numbers(*values: int) -> tuple[Row, ...]:
    return tuple({"n": value} for value in values)


def add(*values: int, to: str = "t") -> Add:
    return Add(((to, numbers(*values)),))


def case(*steps: Any, sources: tuple[CaseSource, ...] = (SOURCE,), **fields: Any) -> Case:
    fields.setdefault("flush", False)
    query = fields.pop("query", "SELECT n FROM t")
    return Case("c", Path("c.yaml"), sources, query=query, steps=steps, **fields)


def run(test_case: Case, pipeline: FakePipeline | None = None, **options: Any) -> Outcome:
    return run_case(test_case, (pipeline or FakePipeline()).open, **options)


def test_a_case_of_one_epoch_starts_once() -> None:
    pipeline = FakePipeline()
    rows = (CaseSource("t", columns=SOURCE.columns, rows=numbers(1, 2)),)
    assert run(case(sources=rows, flush=True, expected_rows=numbers(2, 1)), pipeline).passed
    assert pipeline.calls == ["open", "insert t [1, 2]", "start until end", "close"]


def test_one_source_is_filled_while_the_pipeline_runs() -> None:
    pipeline = FakePipeline()
    assert run(case(add(1), ExpectNew(numbers(1)), add(2), ExpectNew(numbers(2))), pipeline).passed
    assert pipeline.calls == ["open", "insert t [1]", "start", "insert t [2]", "close"]
    assert len(pipeline.epochs) == 2


def test_several_sources_are_filled_while_the_pipeline_is_stopped() -> None:
    pipeline = FakePipeline()
    two_sources = Add((("t", numbers(1)), ("u", numbers(2))))
    test_case = case(add(0), two_sources, ExpectAll(numbers(0, 1, 2)), sources=(SOURCE, OTHER))
    assert run(test_case, pipeline).passed
    assert pipeline.calls[1:-1] == [
        "insert t [0]",
        "start",
        "stop",
        "insert t [1]",
        "insert u [2]",
        "start",
    ]
    assert len(pipeline.epochs) == 2


def test_a_restart_opens_a_new_session() -> None:
    pipeline = FakePipeline()
    test_case = case(
        add(1), Restart(), ExpectNew(numbers(1)), add(2), EndOfInput(), ExpectNew(numbers(2))
    )
    assert run(test_case, pipeline).passed
    expected = ["open", "insert t [1]", "start", "stop", "close", "open", "start", "stop"]
    assert pipeline.calls == [*expected, "insert t [2]", "start until end", "close"]


def test_option_restart_adds_a_restart() -> None:
    pipeline = FakePipeline()
    assert run(case(add(1), add(2), ExpectAll(numbers(1, 2))), pipeline, restart=True).passed
    assert pipeline.calls.count("open") == 2


def test_rows_lost_by_a_restart_are_reported() -> None:
    outcome = run(case(add(1), Restart(), ExpectAll(numbers(1))), FakePipeline(loses_rows=True))
    assert (outcome.reason or "").endswith("the rows emitted before the restart have changed")


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ((add(1), ExpectNew(numbers(2))), "expect_new: 1 row missing, 1 row unexpected"),
        ((add(1), ExpectAll(())), "expect_all: 1 row unexpected"),
        ((add(1), ExpectNew(numbers(1)), ExpectNew(numbers(1))), "expect_new: 1 row missing"),
        ((add(1), ExpectDelta(({"_op": "-", "n": 1},))), "expect_delta: 1 row missing, 1 row unex"),
        ((add(1), ExpectDropped(2)), "late rows: expected 2, found 0"),
        ((add(1), ExpectWatermark(7)), "expect_watermark_ms: expected 7, found 1000"),
        ((ExpectWatermark(7), add(1)), "expect_watermark_ms: expected 7, found None"),
    ],
)
def test_a_wrong_expectation_fails(steps: tuple[Any, ...], reason: str) -> None:
    outcome = run(case(*steps))
    assert outcome.verdict is Verdict.FAILED
    step, _, message = (outcome.reason or "").partition(": ")
    assert step in ("steps[0]", "steps[1]", "steps[2]") and message.startswith(reason)


def test_correct_expectations_pass() -> None:
    steps = (
        add(1),
        ExpectDelta(({"_weight": 1, "n": 1},)),
        ExpectDropped(0),
        ExpectWatermark(1000),
    )
    assert run(case(*steps)).passed


def test_dropped_rows_are_counted_since_the_last_check_across_restarts() -> None:
    pipeline = FakePipeline(late=lambda rows: sum(row["n"] < 0 for row in rows))
    two_sources = Add((("t", numbers(-2)), ("u", numbers(-3))))
    steps = (
        add(-1),
        ExpectDropped(1),
        two_sources,
        Restart(),
        add(-4),
        ExpectDropped(3),
        ExpectDropped(0),
    )
    assert run(case(*steps, sources=(SOURCE, OTHER)), pipeline).passed


def test_late_rows_without_a_late_stream_are_counted() -> None:
    pipeline = FakePipeline(late=lambda rows: 1)
    assert run(case(add(1), late_rows=(LateReference("t", 0),)), pipeline).passed
    outcome = run(case(add(1), late_rows=(LateReference("t", 0),)))
    assert outcome.reason == "late rows: expected 1, found 0"


def test_changelogs_are_read_and_compared() -> None:
    schema = pa.schema([("n", pa.int64()), ("_op", pa.string())])
    signed = Add((("t", ({"_op": "-U", "n": 1}, {"_op": "+U", "n": 2})),))
    steps = (add(1), signed, ExpectAll(numbers(2)), DeleteAll(("t",)), ExpectAll(()))
    changelog = [("+I", 1), ("-U", 1), ("+U", 2), ("-D", 2)]
    expected = tuple({"_op": op, "n": n} for op, n in changelog)
    test_case = case(*steps, sources=(CHANGES,), expected_changelog=expected)
    assert run(test_case, FakePipeline(schema=schema)).passed
    upserts = tuple(row for row in expected if row["_op"] != "-U")
    test_case = case(*steps, sources=(CHANGES,), expected_changelog=upserts)
    assert run(test_case, FakePipeline(schema=schema)).passed
    test_case = case(*steps, sources=(CHANGES,), expected_changelog=expected[:3])
    outcome = run(test_case, FakePipeline(schema=schema))
    assert outcome.reason == "expected_changelog: 1 row unexpected"


def test_rows_of_a_lookup_table_can_be_deleted() -> None:
    pipeline = FakePipeline()
    table = CaseSource("k", "lookup_table", (("n", "INT"),), primary_key=("n",))
    query = "SELECT t.n FROM t LEFT JOIN k FOR SYSTEM_TIME AS OF PROCTIME() ON t.n = k.n"
    steps = (add(1, 2, to="k"), DeleteAll(("k",)), add(3))
    assert run(case(*steps, sources=(SOURCE, table), query=query), pipeline).passed
    assert pipeline.calls[1:4] == ["insert k [1, 2]", "insert k [1, 2]", "insert t [3]"]


def test_rows_of_an_append_only_source_cannot_be_retracted() -> None:
    outcome = run(case(add(1), DeleteAll(("t",)), ExpectAll(())))
    assert outcome.reason == "TG-506: delete_all: rows of t cannot be retracted"


def test_an_epoch_that_does_not_finish_fails() -> None:
    outcome = run(case(add(1), ExpectAll(())), FakePipeline(waits=False), timeout_seconds=0.5)
    assert outcome.reason == "the epoch did not finish within 0.5 s"


def test_reasons_of_errors_are_one_line() -> None:
    def fails_to_open(path: Path) -> Any:
        raise RunError("TG-503", "it\nbroke", hint="fix it")

    def has_a_bug(path: Path) -> Any:
        raise ValueError("a\nbug")

    outcome = run_case(case(add(1), ExpectAll(())), fails_to_open)
    assert outcome.reason == "TG-503: it broke"
    assert "fix it" in (outcome.detail or "")
    outcome = run_case(case(add(1), ExpectAll(())), has_a_bug)
    assert outcome.reason == "internal error: ValueError: a bug"
    rejected = run_case(case(query="SELECT a, b FROM t", expected_rows=()), fails_to_open)
    assert rejected.reason == "TG-301: column a does not exist (and 1 more)"


def test_skipped_cases_do_not_run() -> None:
    outcome = run(case(add(1), expected_rows=(), skip="later"))
    assert (outcome.verdict, outcome.reason) == (Verdict.SKIPPED, "later")
