"""The runner on a session that only pretends: which calls it makes, and what it finds wrong."""

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


def everything(rows: Rows) -> Rows:
    return rows


@dataclass
class World:
    """What outlives a session: the inserted rows, the epochs, and a log of the calls."""

    work: Callable[[Rows], Rows] = everything
    late: Callable[[Rows], int] = lambda rows: 0
    schema: pa.Schema = field(default_factory=lambda: pa.schema([("n", pa.int64())]))
    waits: bool = True
    forgets: bool = False
    late_rows: int = 0
    pending: Rows = field(default_factory=list)
    epochs: list[pa.Table] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)

    def open(self, path: Path) -> Pretender:
        self.calls.append("open")
        if self.forgets:
            self.epochs.clear()
        return Pretender(self)


@dataclass
class Pretender:
    """A session whose every start and every insert while it runs is an epoch."""

    world: World
    running: bool = False

    def execute(self, sql: str, file: str | None = None) -> list[Any]:
        return []

    def insert(self, source: str, rows: Any) -> int:
        self.world.calls.append(f"insert {source} {[row.get('n') for row in rows]}")
        self.world.pending += [dict(row) for row in rows]
        return len(rows)

    def start(self, until_end: bool = False) -> None:
        assert not self.running, "a session starts once"
        self.world.calls.append("start until end" if until_end else "start")
        self.running = True
        self.world.late_rows = 0

    def wait(self, timeout: float | None = None) -> bool:
        if self.world.pending and self.world.waits:
            self.world.late_rows += self.world.late(self.world.pending)
            rows = self.world.work(self.world.pending)
            self.world.epochs.append(pa.Table.from_pylist(rows, self.world.schema))
            self.world.pending = []
        return self.world.waits

    def stop(self) -> None:
        self.world.calls.append("stop")
        self.running = False

    def close(self) -> None:
        self.world.calls.append("close")

    def subscribe(self, stream: str, from_epoch: int | None = None) -> Any:
        return Reader(self.world)

    def status(self) -> tuple[StreamStatus, ...]:
        if not self.running:
            return ()
        epoch = len(self.world.epochs) - 1
        at = datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
        status = StreamStatus(
            "result",
            State.RUNNING,
            epoch,
            watermark=at,
            late_rows=self.world.late_rows,
        )
        return (status,)


@dataclass
class Reader:
    world: World
    next: int = 0

    def take_all(self) -> list[Batch]:
        found = [Batch(e, t) for e, t in enumerate(self.world.epochs) if e >= self.next]
        self.next = len(self.world.epochs)
        return found


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


def run(given: Case, world: World | None = None, **options: Any) -> Outcome:
    return run_case(given, (world or World()).open, **options)


def test_one_epoch_to_the_end_is_one_start() -> None:
    world = World()
    rows = (CaseSource("t", columns=SOURCE.columns, rows=numbers(1, 2)),)
    assert run(case(sources=rows, flush=True, expected_rows=numbers(2, 1)), world).passed
    assert world.calls == ["open", "insert t [1, 2]", "start until end", "close"]


def test_one_source_is_filled_while_the_stream_runs() -> None:
    world = World()
    assert run(case(add(1), ExpectNew(numbers(1)), add(2), ExpectNew(numbers(2))), world).passed
    assert world.calls == ["open", "insert t [1]", "start", "insert t [2]", "close"]
    assert len(world.epochs) == 2


def test_several_sources_are_filled_while_nothing_runs() -> None:
    world = World()
    both = Add((("t", numbers(1)), ("u", numbers(2))))
    given = case(add(0), both, ExpectAll(numbers(0, 1, 2)), sources=(SOURCE, OTHER))
    assert run(given, world).passed
    assert world.calls[1:-1] == [
        "insert t [0]",
        "start",
        "stop",
        "insert t [1]",
        "insert u [2]",
        "start",
    ]
    assert len(world.epochs) == 2


def test_a_restart_closes_and_opens_again() -> None:
    world = World()
    given = case(
        add(1), Restart(), ExpectNew(numbers(1)), add(2), EndOfInput(), ExpectNew(numbers(2))
    )
    assert run(given, world).passed
    expected = ["open", "insert t [1]", "start", "stop", "close", "open", "start", "stop"]
    assert world.calls == [*expected, "insert t [2]", "start until end", "close"]


def test_restart_in_the_middle_of_any_case() -> None:
    world = World()
    assert run(case(add(1), add(2), ExpectAll(numbers(1, 2))), world, restart=True).passed
    assert world.calls.count("open") == 2


def test_rows_lost_by_a_restart_are_found() -> None:
    outcome = run(case(add(1), Restart(), ExpectAll(numbers(1))), World(forgets=True))
    assert (outcome.reason or "").endswith("the rows emitted before the restart have changed")


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ((add(1), ExpectNew(numbers(2))), "expect_new: 1 row missing, 1 row unexpected"),
        ((add(1), ExpectAll(())), "expect_all: 1 row unexpected"),
        ((add(1), ExpectNew(numbers(1)), ExpectNew(numbers(1))), "expect_new: 1 row missing"),
        ((add(1), ExpectDelta(({"_op": "-", "n": 1},))), "expect_delta: 1 row missing, 1 row unex"),
        ((add(1), ExpectDropped(2)), "expected 2 rows to be too late, found 0"),
        ((add(1), ExpectWatermark(7)), "expect_watermark_ms: expected 7, found 1000"),
        ((ExpectWatermark(7), add(1)), "expect_watermark_ms: expected 7, found None"),
    ],
)
def test_a_wrong_expectation_fails(steps: tuple[Any, ...], reason: str) -> None:
    outcome = run(case(*steps))
    assert outcome.verdict is Verdict.FAILED
    said = outcome.reason or ""
    place, _, rest = said.partition(": ")
    assert place in ("steps[0]", "steps[1]", "steps[2]") and rest.startswith(reason)


def test_right_expectations_pass() -> None:
    steps = (
        add(1),
        ExpectDelta(({"_weight": 1, "n": 1},)),
        ExpectDropped(0),
        ExpectWatermark(1000),
    )
    assert run(case(*steps)).passed


def test_dropped_rows_are_counted_since_the_last_check_also_over_stops() -> None:
    world = World(late=lambda rows: sum(row["n"] < 0 for row in rows))
    both = Add((("t", numbers(-2)), ("u", numbers(-3))))
    steps = (
        add(-1),
        ExpectDropped(1),
        both,
        Restart(),
        add(-4),
        ExpectDropped(3),
        ExpectDropped(0),
    )
    assert run(case(*steps, sources=(SOURCE, OTHER)), world).passed


def test_late_rows_without_a_late_stream_are_counted() -> None:
    world = World(late=lambda rows: 1)
    assert run(case(add(1), late_rows=(LateReference("t", 0),)), world).passed
    outcome = run(case(add(1), late_rows=(LateReference("t", 0),)))
    assert outcome.reason == "expected 1 rows to be too late, found 0"


def test_signed_rows_in_and_out() -> None:
    schema = pa.schema([("n", pa.int64()), ("_op", pa.string())])
    signed = Add((("t", ({"_op": "-U", "n": 1}, {"_op": "+U", "n": 2})),))
    steps = (add(1), signed, ExpectAll(numbers(2)), DeleteAll(("t",)), ExpectAll(()))
    changelog = [("+I", 1), ("-U", 1), ("+U", 2), ("-D", 2)]
    expected = tuple({"_op": op, "n": n} for op, n in changelog)
    given = case(*steps, sources=(CHANGES,), expected_changelog=expected)
    assert run(given, World(schema=schema)).passed
    upserts = tuple(row for row in expected if row["_op"] != "-U")
    given = case(*steps, sources=(CHANGES,), expected_changelog=upserts)
    assert run(given, World(schema=schema)).passed
    given = case(*steps, sources=(CHANGES,), expected_changelog=expected[:3])
    assert run(given, World(schema=schema)).reason == "expected_changelog: 1 row unexpected"


def test_a_lookup_table_can_be_emptied() -> None:
    world = World()
    table = CaseSource("k", "lookup_table", (("n", "INT"),), primary_key=("n",))
    query = "SELECT t.n FROM t LEFT JOIN k FOR SYSTEM_TIME AS OF PROCTIME() ON t.n = k.n"
    steps = (add(1, 2, to="k"), DeleteAll(("k",)), add(3))
    assert run(case(*steps, sources=(SOURCE, table), query=query), world).passed
    assert world.calls[1:4] == ["insert k [1, 2]", "insert k [1, 2]", "insert t [3]"]


def test_rows_of_an_append_only_source_cannot_be_retracted() -> None:
    outcome = run(case(add(1), DeleteAll(("t",)), ExpectAll(())))
    assert outcome.reason == "TG-506: delete_all: rows of t cannot be retracted"


def test_a_case_that_hangs_fails() -> None:
    outcome = run(case(add(1), ExpectAll(())), World(waits=False), timeout_seconds=0.5)
    assert outcome.reason == "not done within 0.5 s"


def test_errors_are_one_line() -> None:
    def broken(path: Path) -> Any:
        raise RunError("TG-503", "it\nbroke", hint="mend it")

    def bug(path: Path) -> Any:
        raise ValueError("a\nbug")

    outcome = run_case(case(add(1), ExpectAll(())), broken)
    assert outcome.reason == "TG-503: it broke"
    assert "mend it" in (outcome.detail or "")
    outcome = run_case(case(add(1), ExpectAll(())), bug)
    assert outcome.reason == "internal error: ValueError: a bug"
    rejected = run_case(case(query="SELECT a, b FROM t", expected_rows=()), broken)
    assert rejected.reason == "TG-301: column a does not exist (and 1 more)"


def test_skipped_cases_do_not_run() -> None:
    outcome = run(case(add(1), expected_rows=(), skip="later"))
    assert (outcome.verdict, outcome.reason) == (Verdict.SKIPPED, "later")
