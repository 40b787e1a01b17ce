"""Lowering: build the DataFrame of a physical plan from stages in Spark SQL and operators."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructField

from tidegate.columns import ARRIVAL, CONTROL, EVENT_TIME, NOW, ORIGIN, SELECTED
from tidegate.operators.vectorized import VectorStage
from tidegate.physical.lookup import MATCHES
from tidegate.physical.planner import (
    FIRST_OPERATOR,
    InputPlan,
    LeafPlan,
    LookupPlan,
    OperatorPlan,
    PhysicalPlan,
    ScanPlan,
    input_origin_id,
    runner_of,
    scans_and_operators,
)
from tidegate.physical.stages import node_calls_udf, stage_calls_udf
from tidegate.physical.typed import arrow_type
from tidegate.spark.sharing import (
    SENT_SCHEMA,
    ReceiveSpec,
    SharedOperator,
    SharedOperators,
    StreamNames,
    sender,
)
from tidegate.spark.tasks.lookup_join import LookupTaskSpec, enriching
from tidegate.spark.tasks.protocol import EpochSpecStore
from tidegate.spark.tasks.read import DirectScan, Reading, ReadPort, ReadRange, reading
from tidegate.spark.tasks.shuffle import SHUFFLE_SCHEMA, ShuffleSpec, shuffle_writer
from tidegate.spark.tasks.step import GivesRows, StepSpec, step_and_pack, stepper
from tidegate.sql.expressions import calls_for_selected_rows
from tidegate.sql.quoting import quote_identifier

if TYPE_CHECKING:
    from tidegate.connectors.base import LookupConnector

Leaves = tuple[LeafPlan, ...]
_HIDDEN = (ORIGIN, EVENT_TIME, SELECTED, CONTROL, NOW, *ARRIVAL)


@dataclass(frozen=True)
class LoweringContext:
    """The parts of a pipeline that lowering needs."""

    spark: SparkSession
    # Returns the rows of a scan and attributes them to streams.
    scan: Callable[[ScanPlan, StreamNames], DataFrame]
    # Returns how tasks read a source directly; None if Spark has to read it.
    direct: Callable[[ScanPlan, StreamNames], DirectScan | None]
    epoch_specs: EpochSpecStore
    key_groups: int
    tasks: int
    # The folder of the state of all operators, as a URI.
    state: str
    # The names of the operators of this stream in manifests, by number.
    keys: Mapping[int, str]
    # Open lookup tables by name.
    lookups: Mapping[str, LookupConnector]
    # The operators whose input Spark pre-aggregates.
    grouped: frozenset[str] = frozenset()
    # Frames with several readers, which are cached while the job runs.
    shared: list[DataFrame] = field(default_factory=list)
    # True if tasks compute stages that do not need Spark SQL.
    vectors: bool = True
    # The shared operators, and their rows by number.
    shared_operators: SharedOperators = field(default_factory=dict)
    sent: dict[int, DataFrame] = field(default_factory=dict)
    reading: Reading = field(default_factory=Reading)

    def read_frame(self, ranges: Sequence[ReadRange], schema: str) -> DataFrame:
        """Return the frame in which each task reads its splits and sends rows or reports."""
        numbers = self.spark.range(0, self.tasks, 1, self.tasks)
        return numbers.mapInArrow(reading(ranges, self.epoch_specs), schema)


@dataclass(frozen=True)
class Stepped:
    """A shuffle, and the specification of the operator that consumes it."""

    packed: DataFrame
    spec: GivesRows

    def frame(self, epoch_specs: EpochSpecStore) -> DataFrame:
        """Return the rows of the operator."""
        return self.packed.mapInArrow(
            stepper(self.spec, epoch_specs), from_arrow_schema(self.spec.output)
        )


@dataclass(frozen=True)
class Lowered:
    """A lowered stream: its rows; or, if tasks compute the last stage, that stage and its input."""

    frame: DataFrame | None
    below: Stepped | None = None
    stage: VectorStage | None = None


def lower(plan: PhysicalPlan, context: LoweringContext, may_fuse: bool) -> Lowered:
    """Build the frame; the views that hold it together are dropped when it is done."""
    lowering = _Lowering(plan, context)
    stage = plan.vectors if context.vectors and may_fuse else None
    try:
        if stage is not None:
            (last,) = plan.leaves
            if isinstance(last, OperatorPlan):
                return Lowered(None, lowering.operator(last), stage)
        user = stage_calls_udf(plan.node, {leaf.node for leaf in plan.leaves})
        return Lowered(lowering.stage(plan.sql, plan.leaves, user))
    finally:
        for view in lowering.views:
            context.spark.catalog.dropTempView(view)


def lower_stage(
    plan: PhysicalPlan, context: LoweringContext, sql: str, leaves: Leaves
) -> DataFrame:
    """Return the frame of other SQL over the leaves of one of its stages."""
    lowering = _Lowering(plan, context)
    try:
        return lowering.stage(sql, leaves, user=False)
    finally:
        for view in lowering.views:
            context.spark.catalog.dropTempView(view)


def read_ports(
    plan: PhysicalPlan, context: LoweringContext
) -> list[tuple[Hashable, Hashable | None, tuple[ReadPort, ...]]]:
    """Return the ports whose rows tasks read: index, shared shuffle and parts of each operator."""
    return list(_Lowering(plan, context).read_ports(plan.leaves))


class _Lowering:
    """Creates a view of each leaf of a stage, bottom up."""

    def __init__(self, plan: PhysicalPlan, context: LoweringContext) -> None:
        self.plan = plan
        self.context = context
        self.views: list[str] = []
        # Shuffled rows of shared operators.
        self.packed: dict[Hashable, DataFrame] = {}
        # The origin of the watermark updates of each lowered operator, by its number.
        self.senders: dict[int, int] = {}
        # The streams that the records of the current plan are counted for.
        self.stream_names: StreamNames = (plan.stream,)

    def stage(self, sql: str, leaves: Leaves, user: bool) -> DataFrame:
        """Return the rows of a stage; `user` is true if it calls user functions.

        Spark calls Python functions for every row, even inside CASE. So rows that are not selected
        bypass the stage; leaves with state are cached, because they are read twice.
        """
        frames = [self._leaf(leaf) for leaf in leaves]
        if not user:
            self._views(leaves, frames)
            return self.context.spark.sql(sql)
        for leaf, frame in zip(leaves, frames, strict=True):
            if isinstance(leaf, OperatorPlan | LookupPlan):
                self.context.shared.append(frame)
        self._views(leaves, [frame.where(SELECTED) for frame in frames])
        rows = self.context.spark.sql(calls_for_selected_rows(sql, SELECTED))
        for frame in frames:
            hidden = {name for name in frame.columns if name in _HIDDEN}
            columns = [_passed(item, hidden) for item in rows.schema.fields]
            rows = rows.union(frame.where(f"NOT {SELECTED}").selectExpr(*columns))
        return rows

    def _leaf(self, leaf: LeafPlan) -> DataFrame:
        if isinstance(leaf, ScanPlan):
            return self.context.scan(leaf, self.stream_names)
        if isinstance(leaf, LookupPlan):
            return self._enriched(leaf)
        return self.operator(leaf).frame(self.context.epoch_specs)

    def _enriched(self, plan: LookupPlan) -> DataFrame:
        """Join the matching rows of a lookup table to the input."""
        user = stage_calls_udf(plan.node.left, {leaf.node for leaf in plan.leaves})
        user = user or node_calls_udf(plan.node)
        input_rows = self.stage(plan.input_sql, plan.leaves, user)
        name = plan.table.name.lower()
        lookup = plan.lookup
        reader = self.context.lookups[name].reader_factory(lookup.columns, lookup.keys)
        input_schema = to_arrow_schema(input_rows.schema, timezone="UTC")
        fields = [
            input_schema.field(n).with_nullable(True)
            for n in input_schema.names
            if n not in plan.keys
        ]
        table_fields = [
            pa.field(f"f{index}", arrow_type(kind))
            for index, (_, kind) in enumerate(lookup.columns)
        ]
        fields.append(pa.field(MATCHES, pa.list_(pa.field("element", pa.struct(table_fields)))))
        spec = LookupTaskSpec(name, reader, plan.keys, pa.schema(fields))
        enriched = input_rows.mapInArrow(
            enriching(spec, self.context.epoch_specs), from_arrow_schema(spec.output)
        )
        enriched.createOrReplaceTempView(plan.enriched_view)
        self.views.append(plan.enriched_view)
        return self.context.spark.sql(plan.output_sql)

    def _views(self, leaves: Leaves, frames: list[DataFrame]) -> None:
        for leaf, frame in zip(leaves, frames, strict=True):
            frame.createOrReplaceTempView(leaf.view)
            self.views.append(leaf.view)

    def operator(self, plan: OperatorPlan) -> Stepped:
        """Lower an operator, and remember the origin of its watermark updates."""
        stepped = self._operator(plan)
        self.senders[plan.number] = stepped.spec.origin
        return stepped

    def _operator(self, plan: OperatorPlan) -> Stepped:
        """Lower an operator; a shared one is lowered by the first stream that needs it."""
        shared = self._shared(plan.number)
        if shared is None:
            spec, packed = self._stepped(plan)
            return Stepped(packed, spec)
        context = self.context
        sent = context.sent.get(shared.id)
        received = ReceiveSpec(self._spec(plan).output, sent is None, shared.id)
        if sent is None:
            with self._attributed_to(shared.streams):
                spec, packed = self._stepped(plan)
            others = tuple(key for key in shared.keys if key != spec.key)
            spec = replace(spec, runner=replace(spec.runner, origin_id=shared.id), others=others)
            rows = packed.mapInArrow(sender(spec, context.epoch_specs), SENT_SCHEMA)
            sent = context.sent[shared.id] = rows.repartitionById(context.tasks, F.expr("task"))
        return Stepped(sent, received)

    def read_ports(
        self, leaves: Leaves
    ) -> Iterator[tuple[Hashable, Hashable | None, tuple[ReadPort, ...]]]:
        """Yield the operators below; shared operators once for each stream."""
        for leaf in leaves:
            if isinstance(leaf, LookupPlan):
                yield from self.read_ports(leaf.leaves)
            elif isinstance(leaf, OperatorPlan):
                shared = self._shared(leaf.number)
                with self._attributed_to(shared.streams if shared else self.stream_names):
                    ports = [self._read_port(leaf, *each) for each in enumerate(leaf.ports)]
                    read = tuple(port for port in ports if port is not None)
                    if len(read) == len(ports):
                        yield self._place(leaf), self._alike(leaf), read
                    for fed in leaf.ports:
                        yield from self.read_ports(fed.leaves)

    def _read_port(self, plan: OperatorPlan, number: int, fed: InputPlan) -> ReadPort | None:
        """Return a port whose rows tasks read and compute; None for others."""
        if fed.vectors is None or not self.context.vectors:
            return None
        (leaf,) = fed.leaves
        scan = self.context.direct(leaf, self.stream_names) if isinstance(leaf, ScanPlan) else None
        if scan is None:
            return None
        return ReadPort(scan, fed.vectors, self._shuffle_spec(plan, number, fed))

    def _place(self, plan: OperatorPlan) -> Hashable:
        """Return the key of an operator in its pipeline."""
        shared = self._shared(plan.number)
        return (self.plan.stream.lower(), plan.number) if shared is None else shared.id

    def _shared(self, number: int) -> SharedOperator | None:
        return self.context.shared_operators.get((self.plan.stream.lower(), number))

    @contextmanager
    def _attributed_to(self, streams: StreamNames) -> Iterator[None]:
        before, self.stream_names = self.stream_names, streams
        try:
            yield
        finally:
            self.stream_names = before

    def _known_as(self, origin: int) -> int:
        """Return the number of an origin in watermark updates."""
        shared = self._shared(origin)
        return origin if shared is None else shared.id

    def _stepped(self, plan: OperatorPlan) -> tuple[StepSpec, DataFrame]:
        """Return the specification of an operator and its shuffled input."""
        alike = self._alike(plan)
        shared = self.packed.get(alike) if alike is not None else None
        shuffled = shared if shared is not None else self._packed(plan)
        if alike is not None:
            self.packed[alike] = shuffled
        spec = replace(self._spec(plan), passes=shared is None)
        self._require_watermarks(plan, spec)
        return spec, shuffled

    def _require_watermarks(self, plan: OperatorPlan, spec: StepSpec) -> None:
        """Raise an error if the operator waits for watermark updates that no input sends.

        Its watermark would never advance: it would buffer all rows and emit none, without an error.
        """
        for number, (fed, origins) in enumerate(zip(plan.ports, spec.runner.ports, strict=True)):
            origin_ids = self._shuffle_spec(plan, number, fed).positions
            senders = [
                leaf.index if isinstance(leaf, ScanPlan) else self.senders.get(leaf.number, -1)
                for leaf in scans_and_operators(fed.leaves)
            ]
            sent = {origin_id for sender in senders for origin_id in origin_ids.get(sender, ())}
            missing = {origin.id for origin in origins} - sent
            if missing or not origins:
                what = f"port {number} of the operator {spec.key}"
                raise AssertionError(f"{what} would never get a watermark: {sorted(missing)}")

    def _spec(self, plan: OperatorPlan) -> StepSpec:
        context = self.context
        return StepSpec(
            self.plan.stream,
            context.keys[plan.number],
            runner_of(plan),
            context.state,
            plan.columns,
            plan.arrival,
            plan.has_processing_time,
        )

    def _packed(self, plan: OperatorPlan) -> DataFrame:
        """Return the shuffled input of an operator."""
        context = self.context
        read = context.reading
        operator_index = read.operator_indexes.get(self._place(plan))
        if operator_index is not None:
            if read.shuffled is None:
                rows = context.read_frame(read.ranges, SHUFFLE_SCHEMA)
                read.shuffled = self._shuffled(rows, once=len(read.operator_indexes) == 1)
            return read.packed(operator_index)
        packed: DataFrame | None = None
        for number, port in enumerate(plan.ports):
            frame = self._port(plan, number, port)
            packed = frame if packed is None else packed.union(frame)
        assert packed is not None, "an operator has inputs"
        return self._shuffled(packed, once=self._alike(plan) is None)

    def _shuffled(self, packed: DataFrame, once: bool) -> DataFrame:
        """Shuffle packed rows to the tasks of the operator; `once`: they have one reader.

        A single task has all rows already, and a job with one stage is faster. Rows with two
        readers need the shuffle, because Spark then computes them once.
        """
        tasks = self.context.tasks
        if tasks == 1 and once:
            return packed.coalesce(1)
        return packed.repartitionById(tasks, F.expr(f"key_group % {tasks}"))

    def _alike(self, plan: OperatorPlan) -> Hashable | None:
        """Return a key that is equal for operators of a stream that can share one shuffle.

        Spark runs equal parts of a plan once. Inputs with operators are excluded, because each
        operator has its own state.
        """
        leaves = [leaf for fed in plan.ports for leaf in scans_and_operators(fed.leaves)]
        if any(isinstance(leaf, OperatorPlan) for leaf in leaves):
            return None
        schemas = [str(schema) for port in plan.operator.shuffle_schemas for schema in port]
        return (plan.canonical_form, type(plan.operator), *schemas)

    def _shuffle_spec(self, plan: OperatorPlan, number: int, fed: InputPlan) -> ShuffleSpec:
        port = fed.port
        return ShuffleSpec(
            self.stream_names,
            plan.operator,
            number,
            port.columns,
            tuple((self._known_as(origin), delay) for origin, delay in fed.delays),
            tuple(origin.id for origin in fed.origins if origin.id < FIRST_OPERATOR),
            tuple(
                (self._known_as(origin.id), input_origin_id(number, position))
                for position, origin in enumerate(fed.origins)
            ),
            self.context.key_groups,
            port.grid,
            port.hash_columns,
        )

    def _port(self, plan: OperatorPlan, number: int, fed: InputPlan) -> DataFrame:
        """Return the packed rows of one port."""
        spec = self._shuffle_spec(plan, number, fed)
        below = self._computed(plan, number, fed)
        if below is not None:
            return below
        user = self._user(plan, fed)
        pre_aggregates = self.context.keys[plan.number] in self.context.grouped and not user
        if fed.pre_aggregated_sql is not None and pre_aggregates:
            spec = replace(spec, grouped=True, key=self.context.keys[plan.number])
            groups = self.stage(fed.pre_aggregated_sql, fed.leaves, False)
            return groups.mapInArrow(shuffle_writer(spec, self.context.epoch_specs), SHUFFLE_SCHEMA)
        rows = self.stage(fed.sql, fed.leaves, user)
        return rows.mapInArrow(shuffle_writer(spec, self.context.epoch_specs), SHUFFLE_SCHEMA)

    def _computed(self, plan: OperatorPlan, number: int, fed: InputPlan) -> DataFrame | None:
        """Return the packed rows of a port whose stage tasks compute; None if Spark computes it."""
        context = self.context
        if fed.vectors is None or not context.vectors:
            return None
        (leaf,) = fed.leaves
        if isinstance(leaf, OperatorPlan):
            stepped = self.operator(leaf)
            spec = self._shuffle_spec(plan, number, fed)
            work = step_and_pack(stepped.spec, fed.vectors, spec, context.epoch_specs)
            return stepped.packed.mapInArrow(work, SHUFFLE_SCHEMA)
        port = self._read_port(plan, number, fed)
        if port is None:
            return None
        return context.read_frame([ReadRange(port.scan.reader, (port,))], SHUFFLE_SCHEMA)

    def _user(self, plan: OperatorPlan, fed: InputPlan) -> bool:
        leaves = {leaf.node for leaf in fed.leaves}
        return node_calls_udf(plan.node) or stage_calls_udf(fed.port.node, leaves)


def _passed(item: StructField, hidden: set[str]) -> str:
    """Return a column of rows that bypass a stage; only hidden columns keep their values."""
    value = item.name if item.name in hidden else "NULL"
    return f"CAST({value} AS {item.dataType.simpleString()}) AS {quote_identifier(item.name)}"
