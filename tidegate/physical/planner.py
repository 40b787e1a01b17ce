"""The physical plan of a stream: everything that an epoch needs, without Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tidegate.catalog.objects import Column, LookupTable, SideStream
from tidegate.columns import CONTROL, EVENT_TIME, MALFORMED_EVENT_TIME, OP, ORIGIN, SELECTED
from tidegate.errors import RunError
from tidegate.operators.operator import Limits, Operator
from tidegate.operators.vectorized import VectorStage
from tidegate.operators.watermark import Origin
from tidegate.physical.canonical_form import canonical_form
from tidegate.physical.lookup import (
    LookupColumns,
    lookup_columns,
    lookup_scan,
    lookup_sql,
    require_known_types,
)
from tidegate.physical.operator_kind import BuildContext, BuiltOperator, Rejection, Unrunnable
from tidegate.physical.stage_sql import (
    FailedRowFilter,
    OutputStageSqlWriter,
    PortSchema,
    StageSqlWriter,
    carries_op,
    output_sql,
    unix_micros_sql,
)
from tidegate.physical.stages import (
    LeafNode,
    LookupNode,
    ScanNode,
    Stage,
    StatefulNode,
    all_scans,
    node_calls_udf,
    plan_stages,
    stage_calls_udf,
)
from tidegate.physical.typed import TypedPlan, Types
from tidegate.physical.vectorized import last_stage, port_stage
from tidegate.plan import nodes as n
from tidegate.plan.side_streams import LateStream, late_stream
from tidegate.sql.quoting import quote_identifier

if TYPE_CHECKING:
    import pyarrow as pa

    from tidegate.operators.runner import OperatorRunner


# ---- LATE DATA TO: the late rows of operators, with the columns of one stream.


def require_same_types(late: LateStream, node: n.Node) -> None:
    """Reject columns with equal names and different types.

    The validator only knows declared types; Spark determines all others.
    """
    for one, other in late.clashes:
        error = Unrunnable(
            Rejection(
                f"{len(late.inputs)} inputs of this query can have late rows, and their "
                f"columns {one.name} have the types {one.type} and {other.type}",
                "CAST one of them to the type of the other, or rename it, in a subquery.",
            )
        )
        error.node = node
        raise error


def typed_side_stream(side: SideStream, plan: n.Emit) -> SideStream:
    """Return a late stream with the types of its columns and the canonical form of its rows."""
    late = late_stream(plan)
    late_columns = [Column(item.name, item.type) for item in late.columns]
    nodes = dict.fromkeys(item.operator for item in late.inputs)
    lines = [line for node in nodes for line in canonical_form(node).splitlines()]
    columns = (*late_columns, *side.columns[len(late_columns) :])
    return replace(side, columns=columns, canonical_form="; ".join(lines))


def is_late_operator(late: LateStream | None, node: n.Node) -> bool:
    """Return whether a node produces rows of a late stream."""
    return late is not None and any(item.operator is node for item in late.inputs)


def with_late_stream(operator: Operator, node: n.Node, late: LateStream, types: Types) -> Operator:
    """Return the operator with its late rows in the columns of the late stream."""
    from tidegate.operators.late_rows import with_late_columns

    if len(late.inputs) == 1:
        return operator
    stream_types = tuple(types.all([quote_identifier(item.id) for item in late.columns]))
    inputs = [item for item in late.inputs if item.operator is node]
    return with_late_columns(
        operator, stream_types, {item.port: late.sources(item.rows) for item in inputs}
    )


# Operators are numbered from here on, sources from 0.
FIRST_OPERATOR = 1_000


@dataclass(frozen=True, eq=False)
class ScanPlan:
    """A scan of a source or side stream, and the view of its rows."""

    index: int
    node: ScanNode
    view: str
    # True if rows have their arrival position.
    arrival: bool
    # True if rows have the column of the processing time.
    has_processing_time: bool

    @property
    def columns(self) -> list[str]:
        """The columns by id, and _op if it has one."""
        columns = [
            f"{quote_identifier(item.name)} AS {quote_identifier(item.id)}"
            for item in self.node.fields
        ]
        return [*columns, OP] if carries_op(self.node) else columns

    def event_time_sql(self, bad: str | None) -> str:
        """Return the SQL of the event time in microseconds; `bad` is true for malformed records."""
        watermark = self.node.source.watermark if isinstance(self.node, n.Scan) else None
        time = (
            unix_micros_sql(quote_identifier(watermark.column))
            if watermark
            else "CAST(NULL AS BIGINT)"
        )
        return (
            time
            if bad is None
            else f"CASE WHEN {bad} THEN {MALFORMED_EVENT_TIME + 1}L - 1L ELSE {time} END"
        )

    @property
    def late_rows_of(self) -> str | None:
        """The stream whose late rows are read, if it is not a source."""
        node = self.node
        if isinstance(node, n.SideScan) and node.side.is_late:
            return node.side.parent.lower()
        return None

    @property
    def has_event_time(self) -> bool:
        return isinstance(self.node, n.Scan) and self.node.source.watermark is not None

    @property
    def partitioned(self) -> bool:
        """Whether rows contain their partition, because each partition has its own watermark."""
        return (
            self.has_event_time and isinstance(self.node, n.Scan) and self.node.source.partitioned
        )

    @property
    def delay_us(self) -> int:
        watermark = self.node.source.watermark if isinstance(self.node, n.Scan) else None
        return watermark.delay_us if watermark is not None else 0


@dataclass(frozen=True, eq=False)
class LookupPlan:
    """A lookup: its input, the columns it reads, and its view in the next stage."""

    node: n.Join
    table: LookupTable
    lookup: LookupColumns
    input_sql: str
    leaves: tuple[LeafPlan, ...]
    # The view of the input rows with their matching table rows, and the SQL over it.
    enriched_view: str
    output_sql: str
    view: str
    # The names of the keys in the input rows.
    keys: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class InputPlan:
    """An input port with the SQL of its rows and the origins of its event time."""

    port: PortSchema
    sql: str
    leaves: tuple[LeafPlan, ...]
    origins: tuple[Origin, ...]
    # The watermark delay of each origin.
    delays: tuple[tuple[int, int], ...]
    # The SQL of its groups, if Spark can pre-aggregate the rows.
    pre_aggregated_sql: str | None = None
    # The stage as Arrow expressions, if no SQL is needed.
    vectors: VectorStage | None = None


@dataclass(frozen=True, eq=False)
class OperatorPlan:
    """An operator, its inputs, and the view of its rows in the next stage."""

    number: int
    name: str
    node: n.Node
    operator: Operator
    ports: tuple[InputPlan, ...]
    by_processing_time: bool
    output_watermark_delay_us: int
    # The canonical form of the operator and of everything below it.
    canonical_form: str
    view: str
    arrival: bool
    has_processing_time: bool

    @property
    def columns(self) -> tuple[str, ...]:
        """The column names of its rows for the next stage."""
        names = tuple(item.id for item in self.node.fields)
        return (*names, OP) if OP in self.operator.output.names else names


LeafPlan = ScanPlan | OperatorPlan | LookupPlan


def scans_and_operators(leaves: Sequence[LeafPlan]) -> tuple[ScanPlan | OperatorPlan, ...]:
    """Return the scans and operators that a stage reads, directly or through lookups."""
    plans: list[ScanPlan | OperatorPlan] = []
    for leaf in leaves:
        plans += scans_and_operators(leaf.leaves) if isinstance(leaf, LookupPlan) else [leaf]
    return tuple(plans)


@dataclass(frozen=True, eq=False)
class PhysicalPlan:
    """How a stream runs: its operators, scans and lookups, and the SQL of its last stage."""

    stream: str
    node: n.Emit
    sql: str
    leaves: tuple[LeafPlan, ...]
    scans: tuple[ScanPlan, ...]
    operators: tuple[OperatorPlan, ...]
    lookups: tuple[LookupPlan, ...]
    # The schema of late rows, if a late stream is declared.
    late_schema: pa.Schema | None
    # The last stage as Arrow expressions, if no SQL is needed.
    vectors: VectorStage | None = None
    # True if rows on which an expression fails become dead letters.
    filters_failed_rows: bool = False


def plan_physical(
    stream: str,
    typed: TypedPlan,
    limits: Limits,
    keeps_late: bool = False,
    filters_failed_rows: bool = False,
) -> PhysicalPlan:
    """Plan a stream whose types are known.

    `keeps_late`: late rows are emitted to a late stream. `filters_failed_rows`: a failing row does
    not stop it.
    """
    late = late_stream(typed.plan) if keeps_late else None
    if late is not None:
        require_same_types(late, typed.plan)
    failed_row_filter = FailedRowFilter(stream, typed.types) if filters_failed_rows else None
    return _Planner(stream, typed, limits, late, failed_row_filter).plan()


class _Planner:
    """Numbers scans and operators from the last stage down."""

    def __init__(
        self,
        stream: str,
        typed: TypedPlan,
        limits: Limits,
        late_stream: LateStream | None,
        failed_row_filter: FailedRowFilter | None,
    ) -> None:
        self.failed_row_filter = failed_row_filter
        self.stream = stream
        self.root = typed.plan
        self.types: Types = typed.types
        self.limits = limits
        self.late_stream = late_stream
        self.stage = plan_stages(typed.plan)
        self.has_processing_time = any(_uses_processing_time(node) for node in n.walk(typed.plan))
        self.scans: list[ScanPlan] = []
        self.operators: list[OperatorPlan] = []
        self.lookups: list[LookupPlan] = []
        self.operator_count = 0
        self.late_schema: pa.Schema | None = None

    def plan(self) -> PhysicalPlan:
        leaves = self._leaves(self.stage, False)
        views = _views(leaves)
        only = _only_leaf(leaves)
        samples = any(
            isinstance(leaf, ScanPlan) and leaf.has_event_time
            for leaf in scans_and_operators(leaves)
        )
        writer = OutputStageSqlWriter(
            views.get, self.has_processing_time, samples, self.failed_row_filter
        )
        sql = output_sql(self.root, views.get, writer, (ORIGIN, EVENT_TIME, SELECTED, CONTROL))
        operators = tuple(sorted(self.operators, key=lambda item: item.number))
        assert len(self.scans) == len(list(all_scans(self.stage))), "every scan is planned once"
        return PhysicalPlan(
            self.stream,
            self.root,
            sql,
            leaves,
            tuple(self.scans),
            operators,
            tuple(self.lookups),
            self.late_schema,
            last_stage(self.root, only, self.types) if only is not None else None,
            self.failed_row_filter is not None,
        )

    def _leaves(self, stage: Stage, arrival: bool) -> tuple[LeafPlan, ...]:
        return tuple(self._leaf(leaf, arrival) for leaf in stage.leaves)

    def _leaf(self, leaf: LeafNode, arrival: bool) -> LeafPlan:
        if isinstance(leaf, StatefulNode):
            return self._operator(leaf, arrival)
        if isinstance(leaf, LookupNode):
            return self._lookup(leaf, arrival)
        return self._scan(leaf, arrival)

    def _lookup(self, leaf: LookupNode, arrival: bool) -> LookupPlan:
        node = leaf.node
        table = lookup_scan(node).table
        leaves = self._leaves(leaf.input, arrival)
        writer = StageSqlWriter(
            _views(leaves).get, arrival, self.has_processing_time, self.failed_row_filter
        )
        try:
            lookup = lookup_columns(node, self.types)
            require_known_types(lookup.columns, table.name)
            sql = lookup_sql(node, self.types, writer)
        except Unrunnable as error:
            error.node = node
            raise
        number = len(self.lookups)
        view = self._view("enriched", number)
        plan = LookupPlan(
            node,
            table,
            lookup,
            sql.input_sql(writer.without_failed_rows(node.left, [key for _, key in sql.keys])),
            leaves,
            view,
            sql.output_sql(view),
            self._view("lookup", number),
            tuple(name for name, _ in sql.keys),
        )
        self.lookups.append(plan)
        return plan

    def _view(self, kind: str, number: int) -> str:
        slug = "".join(c if c.isascii() and c.isalnum() else "_" for c in self.stream.lower())
        return f"_tidegate_{slug}_{kind}_{number}"

    def _scan(self, node: ScanNode, arrival: bool) -> ScanPlan:
        index = len(self.scans)
        plan = ScanPlan(index, node, self._view("source", index), arrival, self.has_processing_time)
        self.scans.append(plan)
        return plan

    def _operator(self, leaf: StatefulNode, arrival: bool) -> OperatorPlan:
        number = FIRST_OPERATOR + self.operator_count
        self.operator_count += 1
        built = self._build(leaf, is_late_operator(self.late_stream, leaf.node))
        operator = built.operator
        if self.late_stream is not None and is_late_operator(self.late_stream, leaf.node):
            operator = with_late_stream(operator, leaf.node, self.late_stream, self.types)
            self.late_schema = operator.late
        ports = tuple(
            self._port(port, stage) for port, stage in zip(built.ports, leaf.inputs, strict=True)
        )
        plan = OperatorPlan(
            number,
            leaf.name,
            leaf.node,
            operator,
            ports,
            built.by_processing_time,
            leaf.kind.output_watermark_delay_us(leaf.node) or 0,
            canonical_form(leaf.node),
            self._view("operator", number - FIRST_OPERATOR),
            arrival,
            self.has_processing_time,
        )
        self.operators.append(plan)
        return plan

    def _build(self, leaf: StatefulNode, keeps_late: bool) -> BuiltOperator:
        try:
            return leaf.kind.build(leaf.node, BuildContext(self.types, self.limits, keeps_late))
        except Unrunnable as error:
            error.node = leaf.node
            raise
        except RunError as error:
            rejection = Unrunnable(Rejection(error.message, error.hint))
            rejection.node = leaf.node
            raise rejection from None

    def _port(self, port: PortSchema, stage: Stage) -> InputPlan:
        leaves = self._leaves(stage, port.arrival)
        origins = _origins(leaves)
        if _is_event_time(stage, port.time_id):
            port = port.with_pane(EVENT_TIME)
        writer = StageSqlWriter(
            _views(leaves).get, port.arrival, self.has_processing_time, self.failed_row_filter
        )
        hidden = [EVENT_TIME, SELECTED, CONTROL]
        has_partitions = any(isinstance(leaf, ScanPlan) and leaf.partitioned for leaf in leaves)
        hidden += [ORIGIN] if has_partitions or len(origins) > 1 else []
        rows = writer.without_failed_rows(port.node, [column_sql for _, column_sql in port.stage])
        sql = f"SELECT {', '.join([*hidden, *port.select()])} FROM {rows}"
        scans = [leaf for leaf in scans_and_operators(leaves) if isinstance(leaf, ScanPlan)]
        delays = {scan.index: scan.delay_us for scan in scans}
        watermark_delays = tuple((o.id, delays.get(o.id, 0)) for o in origins)
        only = _only_leaf(leaves)
        vectors = port_stage(port, only, self.types) if only is not None else None
        # With groups, equal rows would become one dead letter.
        groups = port.pre_aggregated_sql(sql, hidden) if self.failed_row_filter is None else None
        return InputPlan(port, sql, leaves, origins, watermark_delays, groups, vectors)


def _uses_processing_time(node: n.Node) -> bool:
    return isinstance(node, n.Window) and node.spec.processing_time


def _only_leaf(leaves: Sequence[LeafPlan]) -> n.Node | None:
    """Return the only leaf of a stage if tasks read its rows; None behind a lookup."""
    plain = len(leaves) == 1 and not isinstance(leaves[0], LookupPlan)
    return leaves[0].node if plain else None


def _views(leaves: Sequence[LeafPlan]) -> dict[n.Node, str]:
    return {leaf.node: leaf.view for leaf in leaves}


def _origins(stage: Sequence[LeafPlan]) -> tuple[Origin, ...]:
    """Return the origins of the event time of a stage."""
    leaves = scans_and_operators(stage)
    origins: list[Origin] = []
    for leaf in leaves:
        if isinstance(leaf, OperatorPlan):
            origins.append(Origin(leaf.number))
        elif isinstance(leaf.node, n.Scan) and leaf.node.source.watermark is not None:
            origins.append(Origin(leaf.index, leaf.node.source.options["idle_timeout"]))
    scans = [leaf for leaf in leaves if isinstance(leaf, ScanPlan)]
    if scans and not any(origin.id < FIRST_OPERATOR for origin in origins):
        # Without event time, sources still report their end.
        origins = [*(Origin(scan.index) for scan in scans), *origins]
    return tuple(origins)


def _is_event_time(stage: Stage, time_id: str | None) -> bool:
    """Return whether a column is the event time of the only source, a hidden column anyway."""
    scan = stage.leaves[0] if len(stage.leaves) == 1 else None
    if time_id is None or not isinstance(scan, n.Scan) or scan.source.watermark is None:
        return False
    name = scan.source.watermark.column.lower()
    return any(item.id == time_id and item.name.lower() == name for item in scan.fields)


# ---- The runner of an operator.


def runner_of(plan: OperatorPlan) -> OperatorRunner:
    """Return the runner of an operator. It identifies origins by their port and position."""
    from tidegate.operators.runner import OperatorRunner

    origins = tuple(
        tuple(
            replace(origin, id=input_origin_id(number, position))
            for position, origin in enumerate(port.origins)
        )
        for number, port in enumerate(plan.ports)
    )
    return OperatorRunner(
        plan.number,
        plan.operator,
        origins,
        plan.by_processing_time,
        plan.output_watermark_delay_us,
        plan.canonical_form,
    )


def input_origin_id(port: int, position: int) -> int:
    """Return the id of an origin within its operator, which the rest of the query cannot change."""
    return port * FIRST_OPERATOR + position


# ---- Operators that do the same work
#
# Two operators can be one node if their canonical forms are equal, and everything that the
# canonical form omits: limits, time to live, `max_future`.


def is_shareable(plan: OperatorPlan) -> bool:
    """Return whether several readers can share an operator.

    Late rows belong to one stream. Lookups may return other results for each call, and functions of
    the user may differ although they have the same name.
    """
    if plan.operator.late is not None or node_calls_udf(plan.node):
        return False
    return all(_is_plain(input_plan) for input_plan in plan.ports)


def _is_plain(input_plan: InputPlan) -> bool:
    if stage_calls_udf(input_plan.port.node, {leaf.node for leaf in input_plan.leaves}):
        return False
    return all(
        is_shareable(leaf)
        if isinstance(leaf, OperatorPlan)
        else isinstance(leaf, ScanPlan) and isinstance(leaf.node, n.Scan)
        for leaf in input_plan.leaves
    )


def is_equivalent(one: OperatorPlan, other: OperatorPlan) -> bool:
    """Return whether two shareable operators emit the same rows for the same input."""
    if (one.canonical_form, *_settings(one)) != (other.canonical_form, *_settings(other)):
        return False
    ports = zip(one.ports, other.ports, strict=True)
    return one.operator == other.operator and all(_ports_equal(a, b) for a, b in ports)


def _settings(plan: OperatorPlan) -> tuple[object, ...]:
    return (
        plan.by_processing_time,
        plan.output_watermark_delay_us,
        plan.arrival,
        plan.has_processing_time,
        len(plan.ports),
    )


def _ports_equal(one: InputPlan, other: InputPlan) -> bool:
    times = [(o.idle_timeout_us, d) for o, (_, d) in zip(one.origins, one.delays, strict=True)]
    others = [(o.idle_timeout_us, d) for o, (_, d) in zip(other.origins, other.delays, strict=True)]
    if times != others or len(one.leaves) != len(other.leaves):
        return False
    return all(_leaves_equal(a, b) for a, b in zip(one.leaves, other.leaves, strict=True))


def _leaves_equal(one: LeafPlan, other: LeafPlan) -> bool:
    if isinstance(one, OperatorPlan) and isinstance(other, OperatorPlan):
        return is_equivalent(one, other)
    if not (isinstance(one, ScanPlan) and isinstance(other, ScanPlan)):
        return False
    if not (isinstance(one.node, n.Scan) and isinstance(other.node, n.Scan)):
        return False
    same = (one.arrival, one.has_processing_time) == (other.arrival, other.has_processing_time)
    return same and one.node.source == other.node.source


def walk_plans(plan: OperatorPlan) -> Iterator[LeafPlan]:
    """Yield a shareable operator and all plans that it reads, in a fixed order."""
    yield plan
    for input_plan in plan.ports:
        for leaf in input_plan.leaves:
            yield from walk_plans(leaf) if isinstance(leaf, OperatorPlan) else [leaf]
