"""Job graphs of a pipeline, cached over epochs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tidegate.catalog.objects import Sink, Source
from tidegate.checkpoint.manifest import Manifest
from tidegate.connectors.base import InputRange, ScanRequest, SinkConnector, SourceConnector
from tidegate.physical.graph_builder import (
    EpochInputs,
    EpochWork,
    GraphOptions,
    SinkInput,
    StreamInput,
    build_graph,
    build_query,
)
from tidegate.physical.job_graph import InputKey, JobGraph
from tidegate.physical.planner import LeafPlan, ScanPlan, is_shareable
from tidegate.plan import nodes as n
from tidegate.runtime.epoch import EpochPlan, EpochReport
from tidegate.runtime.planning import PipelineStream
from tidegate.spark.errors import JobFailed
from tidegate.spark.sql_stages import stored_columns

OpenSinks = Mapping[str, tuple[PipelineStream, Sink, SinkConnector]]

# Spark's pre-aggregation pays off if it reduces the rows at least by this factor.
_MIN_REDUCTION = 4

# What a graph depends on, apart from the streams: whether the epoch is large; the number of tasks;
# the inputs that Spark's own readers can read, and whether tasks can read them, too; inputs with
# equal offsets; operators with equal state; what has something to do in this epoch.
_GraphKey = tuple[
    bool,
    int,
    frozenset[tuple[InputKey, bool]],
    tuple[tuple[InputKey, ...], ...],
    tuple[tuple[str, ...], ...],
    EpochWork | None,
]
# Which sources have new rows varies from epoch to epoch. A graph of a part of the operators is
# built only for a combination that occurs often, because building it takes longer than running all
# of them; and at most this many graphs are kept.
_MIN_OCCURRENCES = 3
_MAX_GRAPHS = 16
_MAX_COUNTED = 1_000


@dataclass(frozen=True)
class EpochJob:
    """What an epoch reads and writes: open sources and sinks, ranges, state."""

    sources: Mapping[str, SourceConnector]
    sinks: OpenSinks
    epoch: EpochPlan
    manifest: Manifest
    tasks: int
    now_us: int


@dataclass
class GraphCache:
    """Builds and caches graphs; small and large epochs have separate ones."""

    source_of: Callable[[ScanPlan], Source]
    state_uri: str
    graphs: dict[_GraphKey, JobGraph] = field(default_factory=dict)
    # Operators with almost as many groups as rows.
    not_reducing: set[str] = field(default_factory=set)
    # Whether tasks evaluate vectorized expressions, and decode records.
    vectorized: bool = True
    decoding: bool = True
    # The operators that can be one node of the graph, by their names in manifests.
    _shareable: set[str] | None = None
    # How often the same part of the operators had work to do since the streams changed.
    _occurrences: Counter[EpochWork] = field(default_factory=Counter)

    def invalidate(self) -> None:
        """Drop all graphs, because the streams changed."""
        self.graphs.clear()
        self._shareable = None
        self._occurrences.clear()

    def graph(self, streams: Sequence[PipelineStream], job: EpochJob) -> JobGraph:
        """Return the graph of an epoch. It is cached unless it is valid for one epoch only."""
        epoch = job.epoch
        native = frozenset(
            (read, bool(input_range.splits)) for read, input_range in epoch.read_by_spark.items()
        )
        if self._shareable is None:
            self._shareable = _shareable_operators(streams)
        states = tuple(_equal_states(job.manifest, self._shareable))
        work = self._worthwhile(_work(job))
        key = (epoch.is_large, job.tasks, native, epoch.shared_inputs, states, work)
        graph = self.graphs.get(key)
        if graph is None:
            graph = self.build(streams, job, work)
            if not graph.is_single_use:
                while len(self.graphs) >= _MAX_GRAPHS:
                    self.graphs.pop(next(iter(self.graphs)))
                self.graphs[key] = graph
        return graph

    def _worthwhile(self, work: EpochWork | None) -> EpochWork | None:
        """Return None, for all operators, until the same work has occurred several times."""
        if work is None:
            return None
        if len(self._occurrences) > _MAX_COUNTED:
            self._occurrences.clear()
        self._occurrences[work] += 1
        return work if self._occurrences[work] >= _MIN_OCCURRENCES else None

    def build(
        self, streams: Sequence[PipelineStream], job: EpochJob, work: EpochWork | None = None
    ) -> JobGraph:
        """Build the graph of these streams, or of the part of it that has work to do."""
        inputs = [_stream_input(stream, streams, job.sinks) for stream in streams]
        epoch_inputs = replace(self._epoch_inputs(job), work=work)
        return build_graph(inputs, epoch_inputs, self._options(job))

    def build_query(
        self,
        streams: Sequence[PipelineStream],
        job: EpochJob,
        sql: str,
        leaves: tuple[LeafPlan, ...],
    ) -> JobGraph:
        """Build the graph of a query over leaves of the last of these streams."""
        inputs = [_stream_input(stream, streams, {}) for stream in streams]
        return build_query(inputs, self._epoch_inputs(job), self._options(job), sql, leaves)

    def learn_reduction(self, reports: EpochReport) -> None:
        """Disable pre-aggregation for operators where it did not reduce the rows."""
        for operator, (groups, rows) in reports.pre_aggregated.items():
            if groups * _MIN_REDUCTION > rows:
                self.not_reducing.add(operator)
                self.graphs = {key: graph for key, graph in self.graphs.items() if not key[0]}

    def fall_back_to_spark(self, error: JobFailed) -> bool:
        """Return whether to run the job again because only Spark can decode or evaluate a value.

        From then on Spark decodes all records, or evaluates all expressions.
        """
        if error.by_records and self.vectorized and self.decoding:
            self.decoding = False
        elif error.by_vectors and self.vectorized:
            self.vectorized = False
        else:
            return False
        self.graphs.clear()
        return True

    def _options(self, job: EpochJob) -> GraphOptions:
        manifest, large = job.manifest, job.epoch.is_large
        return GraphOptions(
            manifest.key_groups,
            job.tasks,
            self.state_uri,
            self.vectorized,
            large,
            frozenset(manifest.operators) - self.not_reducing if large else frozenset(),
        )

    def _epoch_inputs(self, job: EpochJob) -> EpochInputs:
        leaders = {key: group[0] for group in job.epoch.shared_inputs for key in group}
        by_spark: Mapping[InputKey, InputRange] = job.epoch.read_by_spark
        states = {
            key: json.dumps(operator.state_handles, sort_keys=True)
            for key, operator in job.manifest.operators.items()
        }
        return EpochInputs(job.sources, self._scan_request, leaders, states, by_spark)

    def _scan_request(self, scan: ScanPlan) -> tuple[Source, ScanRequest]:
        source = self.source_of(scan)
        located = isinstance(scan.node, n.SideScan)
        names = {c.name for c in source.columns} if located else {f.name for f in scan.node.fields}
        decoding = self.vectorized and self.decoding
        return source, ScanRequest(stored_columns(source, names), scan.arrival, located, decoding)


def _work(job: EpochJob) -> EpochWork | None:
    """Return what has something to do in an epoch; None if all operators run."""
    epoch, manifest = job.epoch, job.manifest
    if epoch.reaches_end:
        return None
    leaders = {key: group[0] for group in epoch.shared_inputs for key in group}
    inputs = frozenset(leaders.get(key, key) for key in epoch.ranges)
    if len(inputs) == len(set(leaders.values())):
        return None
    # Operators that have never run emit what an aggregate has for no rows.
    due = frozenset(
        key
        for key, operator in manifest.operators.items()
        if not operator.state_handles
        or ((timer_us := operator.report.get("timer_us")) is not None and timer_us <= job.now_us)
    )
    return EpochWork(inputs, due)


def _shareable_operators(streams: Sequence[PipelineStream]) -> set[str]:
    """Return the operators that can be one node of the graph, by their names in manifests."""
    return {
        key
        for stream in streams
        if not stream.plan.filters_failed_rows
        for plan, (key, _) in zip(stream.plan.operators, stream.operators().values(), strict=True)
        if is_shareable(plan)
    }


def _equal_states(manifest: Manifest, keys: set[str]) -> list[tuple[str, ...]]:
    """Return groups of these operators with the same state."""
    groups: dict[tuple[object, ...], list[str]] = {}
    for key, operator in manifest.operators.items():
        if key not in keys:
            continue
        handles = operator.state_handles
        state = tuple((name, *handle) for name, handle in sorted(handles.items()))
        groups.setdefault((operator.fingerprint, *state), []).append(key)
    return sorted(tuple(sorted(keys)) for keys in groups.values())


def _stream_input(
    stream: PipelineStream, streams: Sequence[PipelineStream], sinks: OpenSinks
) -> StreamInput:
    keys = {number: key for number, (key, _) in stream.operators().items()}
    late = tuple(c.name for c in stream.late_rows.columns) if stream.late_rows is not None else ()
    readers = tuple(s.name for s in streams if stream.key in s.late_inputs.values())
    inputs = tuple(
        SinkInput(sink.name, connector, stream.side_kind(sink))
        for owner, sink, connector in sinks.values()
        if owner.key == stream.key
    )
    return StreamInput(stream.plan, keys, inputs, late, readers)
