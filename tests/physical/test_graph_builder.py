"""Job graphs of streams, without Spark: nodes, levels, targets and stages in Spark SQL."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import pyarrow as pa
import pytest

from tests.support.compiling import accepted, compile_with_sources, plan_of, typed
from tidegate.catalog.declare import LATE_COLUMNS
from tidegate.catalog.objects import SideKind, Source, Stream
from tidegate.connectors.base import ScanRequest
from tidegate.operators.operator import NO_LIMITS, Limits
from tidegate.physical import graph_builder
from tidegate.physical.graph_builder import (
    EpochInputs,
    EpochWork,
    GraphOptions,
    SinkInput,
    StreamInput,
    build_graph,
    build_query,
    is_equivalent,
    is_shareable,
    walk_plans,
)
from tidegate.physical.job_graph import (
    FIRST_EXPOSED,
    FIRST_NODE,
    Branch,
    Expose,
    JobGraph,
    Read,
    Rename,
    ScanColumns,
    ShuffleWrite,
    SinkWrite,
    SqlSinks,
    Step,
    TaskProgram,
)
from tidegate.physical.planner import OperatorPlan, ScanPlan, plan_physical
from tidegate.plan import nodes as n
from tidegate.plan.rewrite.optimizer import optimize
from tidegate.plan.side_streams import late_inputs, late_stream

MINUTE = "INTERVAL '1' MINUTE"
COUNT = f"SELECT auction, count(*) AS n FROM bids GROUP BY auction, TUMBLE(ts, {MINUTE})"
FIRST = "SELECT DISTINCT auction, bidder, ts FROM bids"
KEYED = "SELECT auction, count(*) AS n FROM bids GROUP BY auction EMIT CHANGES"
TOP = f"""{COUNT.replace("SELECT", "SELECT window_start, window_end,")} QUALIFY row_number()
    OVER (PARTITION BY window_start, window_end ORDER BY count(*) DESC, auction) <= 2"""
# Only Spark can evaluate upper().
UPPER = "SELECT DISTINCT upper(channel) AS channel, ts FROM bids"
CHANNELS = "SELECT DISTINCT channel, ts FROM bids"
JOIN = (
    "SELECT b.price, a.seller FROM bids AS b JOIN asks AS a "
    f"ON a.auction = b.auction AND a.ts BETWEEN b.ts AND b.ts + {MINUTE}"
)


def last_operators(
    *queries: str, limits: Sequence[Limits] = (), keeps_late: bool = False
) -> list[OperatorPlan]:
    """Return the last operator of each query, which has only sources below it."""
    script = "".join(f"CREATE STREAM s{i} {_stream_body(q)};" for i, q in enumerate(queries))
    compiled = compile_with_sources(script)
    assert not compiled.errors, [error.render() for error in compiled.errors]
    plans = [typed(optimize(plan_of(compiled, f"s{i}"))) for i, _ in enumerate(queries)]
    bounds = limits or [NO_LIMITS] * len(plans)
    pairs = zip(plans, bounds, strict=True)
    return [plan_physical("s", plan, bound, keeps_late).operators[-1] for plan, bound in pairs]


def _stream_body(query: str) -> str:
    return query if query.startswith("WITH") else f"AS {query}"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (COUNT, f"SELECT n * 2 AS m, auction AS a FROM ({COUNT}) WHERE n > 3"),
        (FIRST, f"SELECT bidder, count(*) AS n FROM ({FIRST}) GROUP BY bidder, TUMBLE(ts, {MINUTE})"),
        (FIRST, f"SELECT a.bidder FROM asks AS b JOIN ({FIRST}) AS a ON a.auction = b.auction "
         f"AND a.ts BETWEEN b.ts AND b.ts + {MINUTE}"),
        (JOIN, f"SELECT seller AS x, price AS y FROM ({JOIN})"),
        (KEYED, f"SELECT auction, n + 1 AS n FROM ({KEYED[:-13]}) EMIT CHANGES"),
    ],
)  # fmt: skip
def test_operators_are_equivalent_whatever_is_above_them(first: str, second: str) -> None:
    one, other = last_operators(first, second)
    assert is_shareable(one) and is_shareable(other)
    assert is_equivalent(one, other) and is_equivalent(other, one)


@pytest.mark.parametrize(
    "other",
    [
        COUNT.replace("bids", "asks"),
        COUNT.replace("count(*)", "sum(price)"),
        COUNT.replace("'1'", "'2'"),
        COUNT.replace("FROM bids", "FROM bids WHERE price > 3"),
        f"{COUNT} EMIT ON WINDOW CLOSE ALLOW LATENESS {MINUTE}",
        f"{COUNT} EMIT CHANGES",
    ],
)
def test_operators_are_not_equivalent_if_something_in_or_below_differs(other: str) -> None:
    assert not is_equivalent(*last_operators(COUNT, other))


def test_limits_and_time_to_live_must_be_equal() -> None:
    day, days = (f"WITH (state_ttl = '{ttl}') AS {KEYED}" for ttl in ("1 day", "2 days"))
    first, same, other = last_operators(day, day, days)
    assert is_equivalent(first, same)
    assert first.canonical_form == other.canonical_form and not is_equivalent(first, other)
    free, bounded = last_operators(KEYED, KEYED, limits=(NO_LIMITS, Limits(5, 10)))
    assert free.canonical_form == bounded.canonical_form and not is_equivalent(free, bounded)


def test_operators_with_late_rows_or_lookups_are_not_shareable() -> None:
    late = f"{COUNT} EMIT ON WINDOW CLOSE LATE DATA TO late_rows"
    (without_late_rows,), (with_late_rows,) = (
        last_operators(late),
        last_operators(late, keeps_late=True),
    )
    assert is_shareable(without_late_rows) and not is_shareable(with_late_rows)
    (lookup,) = last_operators(
        "SELECT c.name, count(*) AS n FROM bids AS b JOIN customers AS c ON b.bidder = c.id "
        f"GROUP BY c.name, TUMBLE(b.ts, {MINUTE})"
    )
    assert not is_shareable(lookup)


def test_walk_plans_yields_all_operators_and_leaves() -> None:
    query = f"SELECT bidder, count(*) AS n FROM ({FIRST}) GROUP BY bidder, TUMBLE(ts, {MINUTE})"
    top, distinct = plan_physical("s", typed(accepted(query)), NO_LIMITS).operators
    (port,) = distinct.ports
    assert list(walk_plans(top)) == [top, distinct, *port.leaves]


# ---- Graphs


@dataclass
class FakeSource:
    """A source that tasks read; they read at most `max_columns` columns."""

    max_columns: int = 100

    def create_reader(self, request: ScanRequest) -> Any:
        return request if len(request.columns) <= self.max_columns else None


@dataclass(frozen=True)
class FakeSink:
    """A sink; Spark SQL computes the columns `computed`, if there are any."""

    computed: tuple[tuple[str, str], ...] | None = None

    def columns(self, stream_columns: Any) -> Any:
        return self.computed

    def row_encoder(self, schema: pa.Schema) -> Any:
        return None

    def writer_factory(self, schema: pa.Schema) -> Any:
        return schema


PLAIN, COMPUTED = FakeSink(), FakeSink((("to_json(x)", "value"),))
OPTIONS = GraphOptions(key_groups=4, tasks=2, state="state")


def plan_streams(script: str, sinks: Mapping[str, FakeSink]) -> tuple[list[StreamInput], list[str]]:
    """Plan the streams of a script; return them with the names of the sources.

    `sinks` has the sinks of streams, which otherwise write rows unchanged, and of late streams.
    """
    compiled = compile_with_sources(script)
    assert not compiled.errors, [error.render() for error in compiled.errors]
    streams = [item for item in compiled.declared if isinstance(item, Stream)]
    plans = {s.name: typed(optimize(plan_of(compiled, s.name))) for s in streams}
    late_readers: dict[str, list[str]] = {}
    for name, plan in plans.items():
        for parent in late_inputs(plan.plan).values():
            late_readers.setdefault(parent, []).append(name)
    inputs = []
    for name, plan in plans.items():
        outputs = [SinkInput(f"{name}_out", sinks.get(name, PLAIN))]
        late_sink = sinks.get(f"late {name}")
        if late_sink is not None:
            outputs.append(SinkInput(f"{name}_late", late_sink, SideKind.LATE_ROWS))
        keeps_late = late_sink is not None or name in late_readers
        physical = plan_physical(name, plan, NO_LIMITS, keeps_late)
        late = [*late_stream(plan.plan).columns, *LATE_COLUMNS] if keeps_late else []
        inputs.append(
            StreamInput(
                physical,
                {operator.number: f"{name}.{operator.number}" for operator in physical.operators},
                tuple(outputs),
                tuple(column.name for column in late),
                tuple(late_readers.get(name, ())),
            )
        )
    return inputs, [source.name.lower() for source in compiled.catalog.of_type(Source)]


def epoch_inputs(
    streams: Sequence[StreamInput],
    sources: Sequence[str],
    reader: FakeSource,
    states: Mapping[str, Hashable] | None = None,
    same_ranges: bool = True,
    work: EpochWork | None = None,
) -> EpochInputs:
    def request_of(scan: ScanPlan) -> tuple[Source, ScanRequest]:
        assert isinstance(scan.node, n.Scan)
        columns = {item.name for item in scan.node.fields}
        stored = scan.node.source.stored_columns
        return scan.node.source, ScanRequest(
            tuple((c.name, str(c.type)) for c in stored if c.name in columns)
        )

    first = streams[0].key
    leaders = {(s.key, name): (first, name) for s in streams for name in sources}
    return EpochInputs(
        dict.fromkeys(sources, reader),  # type: ignore[arg-type]
        request_of,
        leaders if same_ranges else {},
        states or {},
        work=work,
    )


def graph_of(
    script: str,
    sinks: Mapping[str, FakeSink] | None = None,
    reader: FakeSource | None = None,
    options: GraphOptions = OPTIONS,
    **inputs: Any,
) -> JobGraph:
    """Build the graph of a script. All streams read the same ranges, and have the same state."""
    streams, sources = plan_streams(script, sinks or {})
    return build_graph(
        streams, epoch_inputs(streams, sources, reader or FakeSource(), **inputs), options
    )


def create(**queries: str) -> str:
    return "".join(f"CREATE STREAM {name} AS {query};" for name, query in queries.items())


def steps(graph: JobGraph) -> list[Step]:
    programs = [program for level in graph.levels for program in level.programs]
    return [program.head for program in programs if isinstance(program.head, Step)]


def program_of(graph: JobGraph, name: str) -> TaskProgram:
    """Return the program of an operator."""
    programs = [program for level in graph.levels[1:] for program in level.programs]
    (program,) = [p for p in programs if cast(Step, p.head).runner.operator.name == name]
    return program


def target_of(branch: Branch) -> int:
    end = branch[-1]
    assert isinstance(end, ShuffleWrite | Expose)
    return end.target


SECOND_COUNT = f"SELECT n * 2 AS m, auction AS a FROM ({COUNT}) WHERE n > 3"


def test_equal_operators_of_two_streams_become_one_step_with_two_keys() -> None:
    graph = graph_of(create(one=COUNT, two=SECOND_COUNT))
    assert graph.description == "level 0: read one/bids\nlevel 1: step window_aggregate"
    (read,) = graph.levels[0].programs
    assert len(read.branches) == 1, "its input is written once"
    (program,) = graph.levels[1].programs
    (step,) = steps(graph)
    assert step.keys == ("one.1000", "two.1000")
    assert step.id == step.runner.origin_id == target_of(read.branches[0]) == FIRST_NODE
    writes = [branch[-1] for branch in program.branches]
    assert [write.stream for write in writes if isinstance(write, SinkWrite)] == ["one", "two"]
    names = [branch[0].names for branch in program.branches if isinstance(branch[0], Rename)]
    assert len(set(names)) == 1 and len(names) == 2
    (scan, *_), (write,) = read.branches[0], [read.branches[0][-1]]
    assert isinstance(scan, ScanColumns) and scan.streams == ("one", "two")
    assert isinstance(write, ShuffleWrite) and write.streams == ("one", "two")


def test_equal_operators_of_one_query_become_one_step() -> None:
    distinct = "SELECT DISTINCT auction, ts FROM bids"
    graph = graph_of(
        create(s=f"SELECT ts, count(*) AS n FROM ({distinct} UNION ALL {distinct}) GROUP BY ts")
    )
    (shared,) = [step for step in steps(graph) if len(step.keys) > 1]
    (port,) = [
        stage.end
        for stage in graph.sql
        if isinstance(stage.end, ShuffleWrite) and stage.end.target != shared.id
    ]
    assert port.positions == {shared.id: (0, 1)}, "it updates the watermark of both inputs"


def test_equal_operators_with_different_state_or_input_run_separately() -> None:
    script = create(one=COUNT, two=SECOND_COUNT)
    behind = graph_of(script, states={"one.1000": "x", "two.1000": "y"})
    assert [step.keys for step in steps(behind)] == [("one.1000",), ("two.1000",)]
    (read,) = behind.levels[0].programs
    assert [target_of(branch) for branch in read.branches] == [FIRST_NODE, FIRST_NODE + 1]
    caught_up = graph_of(script, states={"one.1000": "x", "two.1000": "x"})
    assert len(steps(caught_up)) == 1
    apart = graph_of(script, same_ranges=False)
    assert apart.description == (
        "level 0: read one/bids, read two/bids\nlevel 1: step window_aggregate, "
        "step window_aggregate"
    )


def test_reader_of_equal_operators_runs_once_only_if_the_state_below_is_equal() -> None:
    script = create(one=TOP, two=f"SELECT auction FROM ({TOP})")
    assert len(steps(graph_of(script))) == 2
    # Operators are numbered from the last one down.
    different = {"one.1001": "x", "two.1001": "y"}
    assert len(steps(graph_of(script, states=different))) == 4


def test_operators_of_a_chain_are_in_consecutive_levels() -> None:
    graph = graph_of(create(top=TOP, flat="SELECT auction, price FROM bids WHERE price > 3"))
    assert graph.description.splitlines() == [
        "level 0: read top/bids",
        "level 1: step window_aggregate",
        "level 2: step window_top_n",
    ]
    assert graph.sql == ()
    to_aggregate, to_sink = graph.levels[0].programs[0].branches
    assert isinstance(to_sink[-1], SinkWrite) and to_sink[-1].reads_source
    aggregate, top = (program_of(graph, name) for name in ("window_aggregate", "window_top_n"))
    assert target_of(to_aggregate) == cast(Step, aggregate.head).id
    assert target_of(aggregate.branches[0]) == cast(Step, top.head).id
    assert isinstance(top.branches[0][-1], SinkWrite)


def test_level_relays_rows_of_operators_in_later_levels() -> None:
    distinct = "SELECT DISTINCT auction, bidder, ts FROM bids"
    query = (
        f"SELECT a.seller FROM asks AS a JOIN ({distinct}) AS b ON a.auction = b.auction "
        f"AND b.ts BETWEEN a.ts AND a.ts + {MINUTE}"
    )
    graph = graph_of(create(joined=query))
    assert graph.description.splitlines()[1:] == [
        "level 1: step distinct",
        "level 2: step interval_join",
    ]
    join = cast(Step, program_of(graph, "interval_join").head)
    asks = next(p for p in graph.levels[0].programs if cast(Read, p.head).split == "joined/asks")
    assert target_of(asks.branches[0]) == join.id, "the rows skip level 1"
    assert graph.levels[1].relayed == {join.id}
    assert graph.levels[2].relayed == frozenset()


def test_ranges_without_a_common_reader_are_read_separately() -> None:
    script = create(
        one="SELECT auction, price FROM bids WHERE price > 3",
        two="SELECT bidder, channel FROM bids",
    )
    (shared,) = graph_of(script).levels[0].programs
    assert isinstance(shared.head, Read) and len(shared.branches) == 2
    request = cast(Any, shared.head.reader)
    columns = {name for name, _ in request.columns}
    assert columns == {"auction", "price", "bidder", "channel", "ts"}
    separate = graph_of(script, reader=FakeSource(max_columns=3)).levels[0].programs
    assert [len(program.branches) for program in separate] == [1, 1]
    assert {cast(Read, program.head).split for program in separate} == {"one/bids"}


# ---- Stages in Spark SQL


def test_stage_that_needs_sql_feeds_a_later_level() -> None:
    graph = graph_of(create(s=UPPER))
    assert graph.description == "level 0: relay\nlevel 1: step distinct"
    (stage,) = graph.sql
    assert (stage.reads, stage.feeds) == (0, 1)
    assert list(stage.scans) == [0] and not stage.inputs
    assert isinstance(stage.end, ShuffleWrite) and stage.end.target == steps(graph)[0].id


def test_stage_that_needs_sql_reads_the_exposed_rows_of_an_operator() -> None:
    graph = graph_of(create(s=f"SELECT DISTINCT upper(channel) AS c, ts FROM ({CHANNELS})"))
    assert graph.description.splitlines() == [
        "level 0: read s/bids",
        "level 1: step distinct",
        "level 2: relay",
        "level 3: step distinct",
    ]
    (stage,) = graph.sql
    assert (stage.reads, stage.feeds) == (2, 3)
    (rows,) = stage.inputs.values()
    assert rows.target == target_of(graph.levels[1].programs[0].branches[0]) > FIRST_EXPOSED
    assert graph.levels[1].relayed >= {rows.target}
    assert rows.target not in graph.levels[2].relayed, "the stage has read them"
    assert rows.schema.types == [pa.string(), pa.timestamp("us", "UTC")]


def test_two_stages_read_the_rows_of_an_operator_that_is_exposed_once() -> None:
    upper, lower = (
        f"SELECT DISTINCT {call}(channel) AS c, ts FROM ({CHANNELS})" for call in ("upper", "lower")
    )
    graph = graph_of(create(one=upper, two=lower))
    (program,) = graph.levels[1].programs
    assert [type(branch[-1]) for branch in program.branches] == [Expose]
    assert len({rows.target for stage in graph.sql for rows in stage.inputs.values()}) == 1


def test_sink_whose_columns_spark_computes_reads_the_exposed_result() -> None:
    graph = graph_of(create(s=COUNT), sinks={"s": COMPUTED})
    (program,) = graph.levels[1].programs
    write, expose = (branch[-1] for branch in program.branches)
    assert isinstance(write, SinkWrite) and write.sinks == () and write.counts
    (stage,) = graph.sql
    assert (stage.reads, stage.feeds, stage.leaves) == (2, None, ())
    assert stage.end is not None and isinstance(stage.end, SqlSinks)
    assert (stage.end.rows, stage.end.counts) == (("s_out",), False), "they are counted once"
    assert isinstance(expose, Expose) and stage.inputs[""].target == expose.target


def test_spark_evaluates_all_stages_without_vectorization() -> None:
    options = replace(OPTIONS, vectorized=False)
    graph = graph_of(create(top=TOP), options=options)
    assert [(stage.reads, stage.feeds) for stage in graph.sql] == [(0, 1), (2, 3), (4, None)]
    assert all(
        stage.feeds is None or stage.reads < stage.feeds <= len(graph.levels) for stage in graph.sql
    )
    assert [len(level.programs) for level in graph.levels] == [0, 1, 0, 1, 0]


def test_query_over_the_leaves_of_a_stage_has_no_end() -> None:
    streams, sources = plan_streams(create(s=UPPER), {})
    plan = streams[0].plan
    sql, leaves = plan.operators[0].ports[0].sql, plan.operators[0].ports[0].leaves
    inputs = epoch_inputs(streams, sources, FakeSource())
    graph = build_query(streams, inputs, OPTIONS, sql, leaves)
    (stage,) = [stage for stage in graph.sql if stage.end is None]
    assert (stage.sql, stage.reads, stage.feeds) == (sql, 0, None)


# ---- Epochs in which some sources have no new rows

ASKS = f"SELECT auction, count(*) AS n FROM asks GROUP BY auction, TUMBLE(ts, {MINUTE})"
NEW_BIDS = EpochWork(frozenset({("one", "bids")}))


def test_operators_without_new_input_do_not_run() -> None:
    script = create(one=COUNT, two=ASKS, flat="SELECT seller FROM asks WHERE price > 3")
    assert len(steps(graph_of(script))) == 2
    graph = graph_of(script, work=NEW_BIDS)
    assert graph.description == "level 0: read one/bids\nlevel 1: step window_aggregate"
    assert [step.keys for step in steps(graph)] == [("one.1000",)]


def test_stages_in_spark_sql_without_new_input_do_not_run() -> None:
    asks = "SELECT DISTINCT upper(CAST(seller AS STRING)) AS seller, ts FROM asks"
    script = create(one=UPPER, two=asks)
    assert [stage.stream for stage in graph_of(script).sql] == ["one", "two"]
    graph = graph_of(script, work=NEW_BIDS)
    assert [stage.stream for stage in graph.sql] == ["one"]
    assert [step.keys for step in steps(graph)] == [("one.1000",)]


def test_operators_above_an_operator_with_new_input_run() -> None:
    graph = graph_of(create(one=TOP, two=ASKS), work=NEW_BIDS)
    assert [step.stream for step in steps(graph)] == ["one", "one"]


def test_operators_with_a_due_timer_run_with_all_below_them() -> None:
    script = create(one=COUNT, two=TOP.replace("bids", "asks"))
    graph = graph_of(script, work=replace(NEW_BIDS, due=frozenset({"two.1000"})))
    assert {key for step in steps(graph) for key in step.keys} == {
        "one.1000",
        "two.1000",
        "two.1001",
    }


def test_graph_without_work_is_empty() -> None:
    graph = graph_of(create(one=COUNT, two=UPPER), work=EpochWork(frozenset()))
    assert graph.is_empty


# ---- Late rows

LATE = f"{COUNT} EMIT ON WINDOW CLOSE LATE DATA TO late_rows"


def test_late_rows_go_to_their_sink_without_spark() -> None:
    graph = graph_of(create(s=LATE), sinks={"late s": PLAIN})
    (program,) = graph.levels[1].programs
    ((rename, write),) = program.late
    assert isinstance(write, SinkWrite) and not write.counts, "they are not rows of the stream"
    assert [sink.name for sink in write.sinks] == ["s_late"]
    assert isinstance(rename, Rename) and rename.names == write.sinks[0].columns
    assert graph.sql == ()


def test_late_rows_that_no_one_reads_are_not_sent() -> None:
    (program,) = graph_of(create(s=LATE)).levels[1].programs
    assert program.late == ()


def test_stream_reads_the_exposed_late_rows_of_another_stream() -> None:
    graph = graph_of(create(s=LATE, r="SELECT auction FROM late_rows WHERE price > 3"))
    (program,) = graph.levels[1].programs
    ((expose,),) = program.late
    assert cast(Step, program.head).late_readers == ("r",)
    (stage,) = graph.sql
    assert isinstance(expose, Expose) and stage.inputs["s"].target == expose.target
    assert (stage.stream, stage.reads, stage.feeds) == ("r", 2, None)


# ---- Watermarks


@pytest.mark.parametrize("vectorized", [True, False])
def test_operator_whose_input_never_gets_a_watermark_is_an_error(
    monkeypatch: pytest.MonkeyPatch, vectorized: bool
) -> None:
    """A number in the plan of a stream does not identify a shared operator."""
    monkeypatch.setattr(graph_builder._Builder, "_origin", lambda builder, stream, number: number)
    options = replace(OPTIONS, vectorized=vectorized)
    with pytest.raises(AssertionError, match="window_top_n of s would never get a watermark"):
        graph_of(create(s=TOP), options=options)
