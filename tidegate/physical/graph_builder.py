"""Builds the job graph of a pipeline from the physical plans of its streams.

Operators that do the same work on the same ranges with the same state become one node with several
readers, and streams that read the same range share one `Read`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from tidegate.catalog.objects import SideKind, Source
from tidegate.columns import CONTROL, DEAD_LETTER_FIELDS, EVENT_TIME, OP, ORIGIN, SELECTED
from tidegate.operators.vectorized import VectorStage
from tidegate.physical.job_graph import (
    FIRST_EXPOSED,
    FIRST_NODE,
    Branch,
    DecodedRows,
    Evaluate,
    Expose,
    ExposedRows,
    InputKey,
    JobGraph,
    Level,
    Read,
    Rename,
    ScanColumns,
    Select,
    ShuffleWrite,
    SinkTarget,
    SinkWrite,
    SqlScan,
    SqlSinks,
    SqlStage,
    Step,
    StreamNames,
    TaskProgram,
)
from tidegate.physical.planner import (
    FIRST_OPERATOR,
    InputPlan,
    LeafPlan,
    OperatorPlan,
    PhysicalPlan,
    ScanPlan,
    input_origin_id,
    is_equivalent,
    is_shareable,
    runner_of,
    scans_and_operators,
    walk_plans,
)
from tidegate.physical.stage_sql import carries_op, emits_upserts, may_split_updates
from tidegate.physical.stages import node_calls_udf, stage_calls_udf
from tidegate.physical.vectorized import source_vectors
from tidegate.plan import nodes as n

if TYPE_CHECKING:
    from tidegate.connectors.base import (
        InputRange,
        ScanRequest,
        SinkConnector,
        SourceConnector,
    )

FAILED_SCHEMA = pa.schema([pa.field(name, pa.string()) for name in DEAD_LETTER_FIELDS])


@dataclass(frozen=True)
class SinkInput:
    """An open sink and the rows of the stream that it takes."""

    name: str
    sink: SinkConnector
    takes: SideKind | None = None

    def target(self, schema: pa.Schema) -> SinkTarget | None:
        """Return how tasks write rows to the sink; None if Spark SQL computes what is written."""
        encoder = None
        if self.sink.columns([]) is not None:
            encoder = self.sink.row_encoder(schema)
            if encoder is None:
                return None
        names = tuple(schema.names)
        factory = self.sink.writer_factory(schema)
        return SinkTarget(self.name, factory, names, names, encoder=encoder)


@dataclass(frozen=True)
class StreamInput:
    """A stream with its sinks and the readers of its late rows."""

    plan: PhysicalPlan
    # The names of its operators in manifests, by number.
    keys: Mapping[int, str]
    sinks: tuple[SinkInput, ...]
    late_columns: tuple[str, ...] = ()
    # The streams that read its late rows.
    late_readers: StreamNames = ()

    @property
    def name(self) -> str:
        return self.plan.stream

    @property
    def key(self) -> str:
        return self.plan.stream.lower()

    def sinks_of(self, kind: SideKind | None) -> list[SinkInput]:
        return [item for item in self.sinks if item.takes is kind]


@dataclass(frozen=True)
class GraphOptions:
    """How to build a graph."""

    key_groups: int
    tasks: int
    # The folder of the state of all operators, as a URI.
    state: str
    vectorized: bool = True
    large: bool = False
    # The operators whose input Spark pre-aggregates.
    pre_aggregate: frozenset[str] = frozenset()


@dataclass(frozen=True)
class EpochWork:
    """The inputs with new rows, and the operators that run in any case, by name.

    The latter have a due timer or have never run. The state of all others would not change.
    """

    inputs: frozenset[InputKey]
    due: frozenset[str] = frozenset()


@dataclass(frozen=True)
class EpochInputs:
    """What the streams read in the current epoch and which state they have."""

    sources: Mapping[str, SourceConnector]
    # Returns the source of a scan, and the columns to read.
    request_of: Callable[[ScanPlan], tuple[Source, ScanRequest]]
    # The first input with the same range, by stream and source.
    leaders: Mapping[InputKey, InputKey]
    # A value that is equal for operators with the same state, by their names in manifests.
    states: Mapping[str, Hashable]
    # The ranges that Spark's own readers can read. If they have no splits, tasks cannot.
    by_spark: Mapping[InputKey, InputRange] = field(default_factory=dict)
    # The operators and inputs with something to do, by name; None if that is all of them.
    work: EpochWork | None = None

    def leader(self, stream: str, source: str) -> InputKey:
        key = (stream.lower(), source.lower())
        return self.leaders.get(key, key)


def build_graph(
    streams: Sequence[StreamInput], inputs: EpochInputs, options: GraphOptions
) -> JobGraph:
    """Build the graph of these streams."""
    return _Builder(streams, inputs, options).build()


def build_query(
    streams: Sequence[StreamInput],
    inputs: EpochInputs,
    options: GraphOptions,
    sql: str,
    leaves: tuple[LeafPlan, ...],
) -> JobGraph:
    """Build the graph of SQL over the leaves of the last of these streams, without its sinks."""
    return _Builder(streams, inputs, options).build_query(sql, leaves)


# ---- Building


@dataclass(eq=False)
class _Node:
    """An operator of the graph while it is built."""

    id: int
    stream: StreamInput
    plan: OperatorPlan
    # Ranges and state of the operator and of everything below it.
    inputs: tuple[Hashable, ...]
    keys: dict[str, None] = field(default_factory=dict)
    streams: dict[str, None] = field(default_factory=dict)
    level: int = 0
    branches: list[Branch] = field(default_factory=list)
    late: list[Branch] = field(default_factory=list)
    exposed: int | None = None

    @property
    def stream_names(self) -> StreamNames:
        return tuple(self.streams)


@dataclass(eq=False)
class _RangeBranch:
    """A branch that reads a range; `read` has the instruction for this branch alone."""

    read: Read
    request: ScanRequest
    branch: Branch


@dataclass(eq=False)
class _DecodedBranch:
    """A branch over records that Spark decodes."""

    stream: StreamInput
    scan: ScanPlan
    sql_scan: SqlScan
    streams: StreamNames
    stage: VectorStage
    write: ShuffleWrite

    @property
    def columns(self) -> list[tuple[str, str]]:
        """The columns of the scan: their names in the source and in the plan."""
        columns = [(item.name, item.id) for item in self.scan.node.fields]
        return [*columns, (OP, OP)] if carries_op(self.scan.node) else columns


class _Builder:
    """Plans nodes bottom up: the level of an operator follows from those that it reads."""

    def __init__(
        self, streams: Sequence[StreamInput], inputs: EpochInputs, options: GraphOptions
    ) -> None:
        self.streams = streams
        self.inputs = inputs
        self.options = options
        self.nodes: dict[tuple[str, int], _Node] = {}
        self.by_form: dict[str, list[_Node]] = {}
        self.count = 0
        self.planned: set[int] = set()
        self.reads: list[_RangeBranch] = []
        self.decoded: list[_DecodedBranch] = []
        self.sql: list[SqlStage] = []
        self.exposed = FIRST_EXPOSED
        # The last level that needs the rows of a target.
        self.until: dict[int, int] = {}
        # The targets of late rows and of dead letters, by stream.
        self.late_rows: dict[str, int] = {}
        self.dead_letters: dict[str, int] = {}
        # The nodes that send rows to stages that only compute what sinks write.
        self.exposing: dict[int, list[int]] = {}
        # The nodes that run in this epoch.
        self.active: set[int] = set()

    def build(self) -> JobGraph:
        self._find_nodes()
        for stream in self.streams:
            self._plan_operators(stream)
        for stream in self.streams:
            self._plan_late_rows(stream)
        for stream in self.streams:
            self._plan_last_stage(stream)
            self._plan_dead_letters(stream)
        return self._graph()

    def build_query(self, sql: str, leaves: tuple[LeafPlan, ...]) -> JobGraph:
        *others, last = self.streams
        self._find_nodes()
        for stream in self.streams:
            self._plan_operators(stream)
        for stream in others:
            self._plan_late_rows(stream)
        self._add_sql(last, (last.name,), sql, leaves, None, None)
        return self._graph()

    # Nodes

    def _find_nodes(self) -> None:
        """Assign each operator of each stream to a node."""
        for stream in self.streams:
            for plan in stream.plan.operators:
                node = self._node(stream, plan)
                node.keys[stream.keys[plan.number]] = None
                node.streams[stream.name] = None
                self.nodes[stream.key, plan.number] = node

    def _node(self, stream: StreamInput, plan: OperatorPlan) -> _Node:
        shareable = not stream.plan.filters_failed_rows and is_shareable(plan)
        inputs = tuple(self._leaf_inputs(stream, plan)) if shareable else ()
        candidates = self.by_form.setdefault(plan.canonical_form, []) if shareable else []
        for node in candidates:
            if node.inputs == inputs and is_equivalent(node.plan, plan):
                return node
        node = _Node(FIRST_NODE + self.count, stream, plan, inputs)
        self.count += 1
        candidates.append(node)
        return node

    def _leaf_inputs(self, stream: StreamInput, plan: OperatorPlan) -> Iterator[Hashable]:
        """Yield the ranges and the state that an operator and those below it read."""
        for leaf in walk_plans(plan):
            if isinstance(leaf, OperatorPlan):
                yield self.inputs.states.get(stream.keys[leaf.number])
            elif isinstance(leaf, ScanPlan) and isinstance(leaf.node, n.Scan):
                yield self.inputs.leader(stream.key, leaf.node.source.name)

    def _of(self, stream: StreamInput, plan: OperatorPlan) -> _Node:
        return self.nodes[stream.key, plan.number]

    # Operators

    def _plan_operators(self, stream: StreamInput) -> None:
        for plan in stream.plan.operators:
            self._plan_node(self._of(stream, plan))

    def _plan_node(self, node: _Node) -> None:
        """Plan the ports of a node after the nodes that it reads."""
        if node.id in self.planned:
            return
        self.planned.add(node.id)
        stream = node.stream
        for fed in node.plan.ports:
            for leaf in scans_and_operators(fed.leaves):
                if isinstance(leaf, OperatorPlan):
                    self._plan_node(self._of(stream, leaf))
                elif leaf.late_rows_of is not None:
                    self._plan_late_rows(self._stream(leaf.late_rows_of))
        node.level = max(self._port_level(stream, fed) for fed in node.plan.ports)
        for number, fed in enumerate(node.plan.ports):
            self._plan_port(node, number, fed)
        self.until[node.id] = node.level

    def _stream(self, key: str) -> StreamInput:
        return next(stream for stream in self.streams if stream.key == key)

    def _port_level(self, stream: StreamInput, fed: InputPlan) -> int:
        """Return the first level that can receive the rows of a port."""
        if self._is_vectorized(stream, fed.vectors, fed.leaves):
            (leaf,) = fed.leaves
            return self._of(stream, leaf).level + 1 if isinstance(leaf, OperatorPlan) else 1
        # Stages that only read sources write to the first shuffle, too.
        return self._available_at(stream, fed.leaves) + 1

    def _available_at(self, stream: StreamInput, leaves: Iterable[LeafPlan]) -> int:
        """Return the level before which Spark SQL can read these leaves."""
        levels = [0]
        for leaf in scans_and_operators(tuple(leaves)):
            if isinstance(leaf, OperatorPlan):
                levels.append(self._of(stream, leaf).level + 1)
            elif leaf.late_rows_of is not None:
                levels.append(self._late_level(self._stream(leaf.late_rows_of)))
        return max(levels)

    def _is_vectorized(
        self, stream: StreamInput, stage: VectorStage | None, leaves: Sequence[LeafPlan]
    ) -> bool:
        if stage is None or not self.options.vectorized:
            return False
        (leaf,) = leaves
        if isinstance(leaf, ScanPlan):
            return self._direct(stream, leaf, ()) is not None
        return isinstance(leaf, OperatorPlan)

    def _plan_port(self, node: _Node, number: int, fed: InputPlan) -> None:
        stream = node.stream
        write = self._shuffle_write(node, number, fed)
        if self._is_vectorized(stream, fed.vectors, fed.leaves):
            assert fed.vectors is not None, "the stage is vectorized"
            (leaf,) = fed.leaves
            if isinstance(leaf, OperatorPlan):
                evaluate = Evaluate(fed.vectors, (EVENT_TIME, SELECTED, CONTROL))
                self._of(stream, leaf).branches.append((Rename(leaf.columns), evaluate, write))
            elif isinstance(leaf, ScanPlan):
                self._read(stream, leaf, node.stream_names, fed.vectors, write)
            return
        udf = node_calls_udf(node.plan.node) or _calls_udf(fed.port.node, fed.leaves)
        sql, key = fed.sql, stream.keys[node.plan.number]
        grouped = fed.pre_aggregated_sql is not None and key in self.options.pre_aggregate
        if fed.vectors is not None and self.options.vectorized and not grouped:
            (leaf,) = fed.leaves
            if isinstance(leaf, ScanPlan) and isinstance(leaf.node, n.Scan):
                scan, names = self._sql_scan(stream, leaf), node.stream_names
                branch = _DecodedBranch(stream, leaf, scan, names, fed.vectors, write)
                self.decoded.append(branch)
                return
        if grouped and not udf:
            assert fed.pre_aggregated_sql is not None, "Spark can pre-aggregate the rows"
            sql, write = fed.pre_aggregated_sql, replace(write, pre_aggregated=key)
        if stream.plan.filters_failed_rows:
            write = replace(write, dead_letters=self._dead_letter_target(stream))
            self._keep_until(self._dead_letter_target(stream), node.level)
        stage = self._add_sql(
            stream, node.stream_names, sql, fed.leaves, write, node.level, calls_udf=udf
        )
        assert stage.feeds is not None and stage.reads < stage.feeds, "rows flow down the chain"

    def _shuffle_write(self, node: _Node, number: int, fed: InputPlan) -> ShuffleWrite:
        port, stream = fed.port, node.stream
        origin_ids = {o.id: self._origin(stream, o.id) for o in fed.origins}
        local = [
            (origin_ids[o.id], input_origin_id(number, position))
            for position, o in enumerate(fed.origins)
        ]
        write = ShuffleWrite(
            node.id,
            node.stream_names,
            node.plan.operator,
            number,
            port.columns,
            tuple((origin_ids[origin], delay) for origin, delay in fed.delays),
            tuple(o.id for o in fed.origins if o.id < FIRST_OPERATOR),
            tuple(local),
            self.options.key_groups,
            port.grid,
            port.hash_columns,
        )
        self._require_watermarks(node, number, fed, write)
        return write

    def _require_watermarks(
        self, node: _Node, number: int, fed: InputPlan, write: ShuffleWrite
    ) -> None:
        """Raise an error if the operator waits for watermark updates that no input sends.

        Its watermark would never advance: it would buffer all rows and emit none, without an error.
        """
        senders = {
            self._of(node.stream, leaf).id if isinstance(leaf, OperatorPlan) else leaf.index
            for leaf in scans_and_operators(fed.leaves)
        }
        sent = {origin_id for s in senders for origin_id in write.positions.get(s, ())}
        awaited = {origin.id for origin in runner_of(node.plan).ports[number]}
        if awaited - sent or not awaited:
            what = f"port {number} of the operator {node.plan.name} of {node.stream.name}"
            raise AssertionError(f"{what} would never get a watermark: {sorted(awaited - sent)}")

    def _origin(self, stream: StreamInput, number: int) -> int:
        """Return the origin of watermark updates of a source or operator of a stream."""
        return number if number < FIRST_OPERATOR else self.nodes[stream.key, number].id

    # Reading

    def _read(
        self,
        stream: StreamInput,
        scan: ScanPlan,
        streams: StreamNames,
        stage: VectorStage,
        end: ShuffleWrite | SinkWrite,
    ) -> None:
        direct = self._direct(stream, scan, streams)
        assert direct is not None, "tasks read the source"
        read, request, columns = direct
        if isinstance(end, SinkWrite):
            hidden: tuple[str, ...] = (ORIGIN, EVENT_TIME, SELECTED, CONTROL)
        else:
            # The origin is omitted if there is only one.
            hidden = (*([ORIGIN] if scan.partitioned else []), EVENT_TIME, SELECTED, CONTROL)
        self.reads.append(_RangeBranch(read, request, (columns, Evaluate(stage, hidden), end)))

    def _direct(
        self, stream: StreamInput, scan: ScanPlan, streams: StreamNames
    ) -> tuple[Read, ScanRequest, ScanColumns] | None:
        """Return how tasks read a source; None if Spark has to read it."""
        if scan.late_rows_of is not None:
            return None
        source, request = self.inputs.request_of(scan)
        input_range = self.inputs.by_spark.get((stream.key, source.name.lower()))
        if input_range is not None and not input_range.splits:
            return None
        reader = self.inputs.sources[source.name.lower()].create_reader(request)
        vectors = source_vectors(scan.node, source)
        if reader is None or vectors is None:
            return None
        leader = self.inputs.leader(stream.key, source.name)
        read = Read(leader, reader, vectors.required, vectors.time, vectors.max_future_us)
        return read, request, ScanColumns(scan.index, streams, vectors.columns, scan.partitioned)

    def _read_programs(self, level: int) -> Iterator[TaskProgram]:
        """Yield a program for each range, with one reader for all columns if there is one."""
        ranges: dict[InputKey, list[_RangeBranch]] = {}
        for item in self.reads:
            if self._reading_level(item) != level:
                continue
            ranges.setdefault(item.read.range_key, []).append(item)
        for key, items in ranges.items():
            source = self.inputs.sources[key[1]]
            reader = source.create_reader(merged_request([item.request for item in items]))
            if reader is None:
                yield from (TaskProgram(item.read, (item.branch,)) for item in items)
                continue
            read = replace(items[0].read, reader=reader)
            yield TaskProgram(read, tuple(item.branch for item in items))

    def _reading_level(self, item: _RangeBranch) -> int:
        """Return the level whose tasks read for a branch, or that it is read for directly."""
        end = item.branch[-1]
        if not (self.options.large and isinstance(end, ShuffleWrite)):
            return 0
        level = self.until[end.target]
        return level if level > 1 else 0

    def _decoded_stages(self) -> Iterator[SqlStage]:
        """Yield a stage for each range that Spark decodes for vectorized branches."""
        ranges: dict[Hashable, list[_DecodedBranch]] = {}
        for item in self.decoded:
            key = (item.sql_scan.range_key, item.scan.partitioned)
            ranges.setdefault(key, []).append(item)
        for items in ranges.values():
            names = [name for item in items for name, _ in item.columns]
            columns = tuple({name.lower(): name for name in names}.values())
            positions = {name.lower(): index for index, name in enumerate(columns)}
            partitioned = items[0].scan.partitioned
            hidden = (*([ORIGIN] if partitioned else []), EVENT_TIME, SELECTED, CONTROL)
            branches = []
            for item in items:
                select = Select(
                    item.scan.index,
                    tuple(column for _, column in item.columns),
                    tuple(positions[name.lower()] for name, _ in item.columns),
                )
                branches.append((select, Evaluate(item.stage, hidden), item.write))
            request = merged_request([item.sql_scan.request for item in items])
            first = items[0]
            end = DecodedRows(
                columns,
                tuple(branches),
                any(item.scan.arrival for item in items),
                any(item.scan.has_processing_time for item in items),
                partitioned,
            )
            yield SqlStage(
                first.stream.name,
                tuple(name for item in items for name in item.streams),
                "",
                (first.scan,),
                {},
                {first.scan.index: replace(first.sql_scan, request=request)},
                0,
                1,
                end,
            )

    # Late rows

    def _late_nodes(self, stream: StreamInput) -> list[_Node]:
        return [self._of(stream, p) for p in stream.plan.operators if p.operator.late is not None]

    def _late_level(self, stream: StreamInput) -> int:
        return max((node.level + 1 for node in self._late_nodes(stream)), default=0)

    def _plan_late_rows(self, stream: StreamInput) -> None:
        """Send the late rows of a stream to its sinks, and to stages that read them."""
        if stream.key in self.late_rows:
            return
        for plan in stream.plan.operators:
            self._plan_node(self._of(stream, plan))
        sinks = stream.sinks_of(SideKind.LATE_ROWS)
        if not sinks and not stream.late_readers:
            return
        assert stream.plan.late_schema is not None, "the plan has a late stream"
        target = self.late_rows[stream.key] = self._new_target()
        schema = _renamed(stream.plan.late_schema, stream.late_columns)
        targets, by_spark = self._targets(sinks, schema)
        for node in self._late_nodes(stream):
            if targets:
                write = SinkWrite(stream.name, targets, counts=False)
                node.late.append((Rename(stream.late_columns), write))
            if by_spark or stream.late_readers:
                node.late.append((Expose(target),))
        if by_spark:
            rows = ExposedRows(target, schema)
            self._add_sink_sql(
                stream, by_spark, rows, self._late_level(stream), self._late_nodes(stream)
            )

    def _targets(
        self, sinks: Sequence[SinkInput], schema: pa.Schema
    ) -> tuple[tuple[SinkTarget, ...], list[SinkInput]]:
        """Return how tasks write rows to sinks, and the sinks for which Spark SQL is needed."""
        targets = {
            item.name: item.target(schema) if self.options.vectorized else None for item in sinks
        }
        by_spark = [item for item in sinks if targets[item.name] is None]
        return tuple(target for target in targets.values() if target is not None), by_spark

    def _plan_dead_letters(self, stream: StreamInput) -> None:
        """Send dead letters of stages below operators to their sinks."""
        sinks = stream.sinks_of(SideKind.FAILED_ROWS)
        target = self.dead_letters.get(stream.key)
        if target is not None and sinks:
            rows = ExposedRows(target, FAILED_SCHEMA)
            nodes = [self._of(stream, plan) for plan in stream.plan.operators]
            self._add_sink_sql(stream, sinks, rows, self.until[target], nodes)

    def _dead_letter_target(self, stream: StreamInput) -> int:
        if stream.key not in self.dead_letters:
            self.dead_letters[stream.key] = self._new_target()
        return self.dead_letters[stream.key]

    def _add_sink_sql(
        self,
        stream: StreamInput,
        sinks: Sequence[SinkInput],
        rows: ExposedRows,
        level: int,
        nodes: Sequence[_Node],
    ) -> None:
        """Add a stage that only computes what sinks write, over rows that nodes expose."""
        end = SqlSinks(stream.name, tuple(item.name for item in sinks), counts=False)
        self._keep_until(rows.target, level)
        self.exposing[rows.target] = [node.id for node in nodes]
        names = (stream.name,)
        self.sql.append(SqlStage(stream.name, names, "", (), {"": rows}, {}, level, None, end))

    # The last stage

    def _plan_last_stage(self, stream: StreamInput) -> None:
        plan, sinks = stream.plan, stream.sinks_of(None)
        if not self._is_vectorized(stream, plan.vectors, plan.leaves):
            self._plan_last_sql(stream, sinks)
            return
        assert plan.vectors is not None, "the stage is vectorized"
        (leaf,) = plan.leaves
        schema = pa.schema([pa.field(name, kind) for name, _, kind in plan.vectors.columns])
        targets, by_spark = self._targets(sinks, schema)
        if isinstance(leaf, ScanPlan):
            if by_spark:
                self._plan_last_sql(stream, sinks)
                return
            write = SinkWrite(stream.name, targets, reads_source=True)
            self._read(stream, leaf, (stream.name,), plan.vectors, write)
            return
        assert isinstance(leaf, OperatorPlan), "the only leaf is a source or an operator"
        node = self._of(stream, leaf)
        evaluate = Evaluate(plan.vectors, (SELECTED, CONTROL))
        write = SinkWrite(stream.name, targets)
        node.branches.append((Rename(leaf.columns), evaluate, write))
        if by_spark:
            rows = ExposedRows(self._new_target(), schema)
            node.branches.append((Rename(leaf.columns), evaluate, Expose(rows.target)))
            self._add_sink_sql(stream, by_spark, rows, node.level + 1, [node])

    def _plan_last_sql(self, stream: StreamInput, sinks: Sequence[SinkInput]) -> None:
        plan, node = stream.plan, stream.plan.node
        filters = plan.filters_failed_rows or may_split_updates(node)
        deletes = node if filters and emits_upserts(node) and carries_op(node) else None
        end = SqlSinks(
            stream.name,
            tuple(item.name for item in sinks),
            tuple(item.name for item in stream.sinks_of(SideKind.FAILED_ROWS)),
            any(isinstance(leaf, ScanPlan) for leaf in scans_and_operators(plan.leaves)),
        )
        self._add_sql(
            stream,
            (stream.name,),
            plan.sql,
            plan.leaves,
            end,
            None,
            calls_udf=_calls_udf(node, plan.leaves),
            deletes=deletes,
        )

    # Stages in Spark SQL

    def _add_sql(
        self,
        stream: StreamInput,
        streams: StreamNames,
        sql: str,
        leaves: tuple[LeafPlan, ...],
        end: ShuffleWrite | SqlSinks | None,
        feeds: int | None,
        calls_udf: bool = False,
        deletes: n.Emit | None = None,
    ) -> SqlStage:
        level = self._available_at(stream, leaves)
        exposed: dict[int | str, ExposedRows] = {}
        scans: dict[int, SqlScan] = {}
        for leaf in scans_and_operators(leaves):
            if isinstance(leaf, OperatorPlan):
                exposed[leaf.number] = self._expose(self._of(stream, leaf), leaf, level)
            elif leaf.late_rows_of is not None:
                owner = self._stream(leaf.late_rows_of)
                assert owner.plan.late_schema is not None, "the plan has a late stream"
                target = self.late_rows[owner.key]
                self._keep_until(target, level)
                schema = _renamed(owner.plan.late_schema, owner.late_columns)
                exposed[owner.key] = ExposedRows(target, schema, with_now=True)
            else:
                scans[leaf.index] = self._sql_scan(stream, leaf)
        stage = SqlStage(
            stream.name, streams, sql, leaves, exposed, scans, level, feeds, end, calls_udf, deletes
        )
        self.sql.append(stage)
        return stage

    def _sql_scan(self, stream: StreamInput, scan: ScanPlan) -> SqlScan:
        source, request = self.inputs.request_of(scan)
        input_range = self.inputs.by_spark.get((stream.key, source.name.lower()))
        return SqlScan(source, request, self.inputs.leader(stream.key, source.name), input_range)

    def _expose(self, node: _Node, plan: OperatorPlan, level: int) -> ExposedRows:
        """Expose the rows of an operator until a level."""
        if node.exposed is None:
            node.exposed = self._new_target()
            node.branches.append((Expose(node.exposed),))
        self._keep_until(node.exposed, level)
        schema = _renamed(node.plan.operator.output, plan.columns)
        return ExposedRows(node.exposed, schema, plan.arrival, plan.has_processing_time)

    def _new_target(self) -> int:
        self.exposed += 1
        return self.exposed

    def _keep_until(self, target: int, level: int) -> None:
        self.until[target] = max(level, self.until.get(target, 0))

    # The graph

    def _graph(self) -> JobGraph:
        nodes = list({node.id: node for node in self.nodes.values()}.values())
        if self.inputs.work is not None:
            nodes = self._keep_active(nodes, self.inputs.work)
        self.sql += self._decoded_stages()
        depth = max(
            (*(node.level for node in nodes), *(stage.reads for stage in self.sql)), default=0
        )
        levels = []
        for number in range(depth + 1):
            programs = [self._step_program(node) for node in nodes if node.level == number]
            reads = tuple(self._read_programs(number))
            if number == 0:
                programs, reads = list(reads), ()
            relayed = frozenset(t for t, until in self.until.items() if until > number)
            levels.append(Level(tuple(programs), relayed, reads))
        options = self.options
        return JobGraph(
            tuple(stream.name for stream in self.streams),
            tuple(levels),
            tuple(self.sql),
            options.key_groups,
            options.tasks,
            options.large,
        )

    def _keep_active(self, nodes: Sequence[_Node], work: EpochWork) -> list[_Node]:
        """Remove what has nothing to do in this epoch; return the nodes that run."""
        active = self._active_nodes(nodes, work)

        def feeds_active(end: object, has_input: bool) -> bool:
            return end.target in active if isinstance(end, ShuffleWrite) else has_input

        self.reads = [
            item
            for item in self.reads
            if feeds_active(item.branch[-1], item.read.range_key in work.inputs)
        ]
        self.decoded = [item for item in self.decoded if item.write.target in active]
        self.sql = [
            stage for stage in self.sql if feeds_active(stage.end, self._has_input(stage, work))
        ]
        return [node for node in nodes if node.id in active]

    def _active_nodes(self, nodes: Sequence[_Node], work: EpochWork) -> set[int]:
        """Return the nodes with new input or a due timer, and all nodes below the latter."""
        active: set[int] = set()
        for node in sorted(nodes, key=lambda item: item.level):
            leaves = [leaf for fed in node.plan.ports for leaf in scans_and_operators(fed.leaves)]
            if any(self._leaf_is_active(node.stream, leaf, work, active) for leaf in leaves):
                active.add(node.id)
        due = [node for node in nodes if not work.due.isdisjoint(node.keys)]
        while due:
            node = due.pop()
            active.add(node.id)
            for fed in node.plan.ports:
                for leaf in scans_and_operators(fed.leaves):
                    below = self._nodes_of(node.stream, leaf)
                    due += [item for item in below if item.id not in active]
        # Their readers run, too.
        for node in sorted(nodes, key=lambda item: item.level):
            leaves = [leaf for fed in node.plan.ports for leaf in scans_and_operators(fed.leaves)]
            if any(self._leaf_is_active(node.stream, leaf, work, active) for leaf in leaves):
                active.add(node.id)
        self.active = active
        return active

    def _nodes_of(self, stream: StreamInput, leaf: ScanPlan | OperatorPlan) -> list[_Node]:
        """Return the nodes whose rows a leaf reads."""
        if isinstance(leaf, OperatorPlan):
            return [self._of(stream, leaf)]
        owner = leaf.late_rows_of
        return self._late_nodes(self._stream(owner)) if owner is not None else []

    def _leaf_is_active(
        self,
        stream: StreamInput,
        leaf: ScanPlan | OperatorPlan,
        work: EpochWork,
        active: set[int],
    ) -> bool:
        if isinstance(leaf, ScanPlan) and leaf.late_rows_of is None:
            source, _ = self.inputs.request_of(leaf)
            return self.inputs.leader(stream.key, source.name) in work.inputs
        return any(node.id in active for node in self._nodes_of(stream, leaf))

    def _has_input(self, stage: SqlStage, work: EpochWork) -> bool:
        """Return whether a stage that writes to sinks can have rows."""
        if not stage.leaves:
            (rows,) = stage.inputs.values()
            return not self.active.isdisjoint(self.exposing[rows.target])
        stream = self._stream(stage.stream.lower())
        return any(
            self._leaf_is_active(stream, leaf, work, self.active)
            for leaf in scans_and_operators(stage.leaves)
        )

    def _step_program(self, node: _Node) -> TaskProgram:
        plan = node.plan
        readers = node.stream.late_readers if plan.operator.late is not None else ()
        step = Step(
            node.id,
            node.stream.name,
            tuple(node.keys),
            replace(runner_of(plan), origin_id=node.id),
            self.options.state,
            plan.columns,
            plan.arrival,
            plan.has_processing_time,
            readers,
        )
        return TaskProgram(step, tuple(node.branches), tuple(node.late))


def _renamed(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    return pa.schema([pa.field(n, f.type) for n, f in zip(names, schema, strict=True)])


def _calls_udf(node: n.Node, leaves: Iterable[LeafPlan]) -> bool:
    return stage_calls_udf(node, {leaf.node for leaf in leaves})


def merged_request(requests: Sequence[ScanRequest]) -> ScanRequest:
    """Return a request for the columns of all requests."""
    columns = tuple(dict.fromkeys(column for read in requests for column in read.columns))
    arrival = any(request.with_arrival for request in requests)
    located = any(request.with_location for request in requests)
    return replace(requests[0], columns=columns, with_arrival=arrival, with_location=located)
