"""Physical planning of GROUP BY: panes, keys, aggregate calls and the operator that groups rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidegate.columns import NOW, OP
from tidegate.physical.canonical_form import CanonicalWriter, canonical_emit, canonical_ttl
from tidegate.physical.expressions import CallPlan, plan_call, text_of
from tidegate.physical.operator_kind import (
    BuildContext,
    BuiltOperator,
    OperatorKind,
    Rejection,
    Unrunnable,
)
from tidegate.physical.stage_sql import (
    PortColumns,
    SqlWriter,
    carries_op,
    column_sql,
    unix_micros_sql,
)
from tidegate.physical.typed import Operands, Types
from tidegate.plan import nodes as n
from tidegate.sql.dialect import to_sql
from tidegate.sql.quoting import quote_identifier
from tidegate.sql.statements import EmitMode

if TYPE_CHECKING:
    from tidegate.operators.aggregate.groups import Aggregator, GroupSpec, OutputColumn, WindowPanes
    from tidegate.operators.late_rows import LateRowFormat
    from tidegate.operators.operator import Operator

# 1 for a row that is added, −1 for one that is retracted.
WEIGHT_SQL = f"CASE WHEN {OP} IN ('+I', '+U') THEN 1L ELSE -1L END"
_UPDATE_MODES = (EmitMode.UPDATE, EmitMode.CHANGES, EmitMode.EVERY)


@dataclass(frozen=True)
class OutputField:
    """Where an output field comes from: a key, a result, or a time of the window."""

    kind: str
    index: int = 0
    offset_us: int = 0


@dataclass(frozen=True, eq=False)
class AggregatePlan:
    """An aggregate divided into the parts that its operator needs.

    `input` is the node whose rows it reads. Windows that consist of panes are not part of it.
    """

    node: n.Aggregate
    input: n.Node
    # None without windows, when groups are never closed. CLOSING_TIME: a column contains the time.
    window: n.WindowSpec | None
    by_pane: bool
    by_processing_time: bool
    # The time of a row in microseconds.
    time: str | None
    keys: tuple[str, ...]
    outputs: tuple[OutputField, ...]
    calls: tuple[CallPlan, ...]

    @property
    def time_id(self) -> str | None:
        """The column with the time of a row, if the time is a plain column."""
        window = self.node.grouped_window
        return window.time_id if window is not None and not self.by_processing_time else None

    @property
    def retracts(self) -> bool:
        return carries_op(self.input)

    @property
    def emits_updates(self) -> bool:
        """Whether the operator emits updates in every epoch, not only final rows."""
        return self.node.emit is not None and self.node.emit.mode in _UPDATE_MODES

    @property
    def session_gap_us(self) -> int | None:
        return self.window.size_us if self.node.merges_sessions and self.window else None


def plan_aggregate(node: n.Aggregate) -> AggregatePlan:
    """Divide an aggregate into panes, keys and calls."""
    rows = node.input
    calls = tuple(plan_call(call, rows) for call in node.aggregates)
    if node.grouped_window is not None:
        return _windowed(node, node.grouped_window, calls)
    return _closed_by_key(node, calls)


def _windowed(node: n.Aggregate, window: n.Window, calls: tuple[CallPlan, ...]) -> AggregatePlan:
    spec = window.spec
    time = NOW if spec.processing_time else unix_micros_sql(to_sql(window.time))
    derived = _window_columns(spec, [item.id for item in window.fields[-3:]])
    keys, outputs = _keys(node, derived)
    by_processing_time = spec.processing_time
    return AggregatePlan(
        node, window.input, spec, True, by_processing_time, time, keys, outputs, calls
    )


def _window_columns(spec: n.WindowSpec, names: list[str]) -> dict[str, OutputField]:
    start, end, time = names
    fixed = spec.kind in (n.WindowKind.TUMBLE, n.WindowKind.HOP)
    return {
        start: OutputField("end", offset_us=-spec.size_us) if fixed else OutputField("start"),
        end: OutputField("end"),
        time: OutputField("end", offset_us=-1),
    }


def _closed_by_key(node: n.Aggregate, calls: tuple[CallPlan, ...]) -> AggregatePlan:
    """Plan groups that the watermark closes at a time in one of their keys, or never."""
    item = node.closing_key
    if item is None:
        keys, outputs = _keys(node, {})
        return AggregatePlan(node, node.input, None, False, False, None, keys, outputs, calls)
    delta = _closes_after_us(item)
    at = unix_micros_sql(to_sql(node.keys[node.key_fields.index(item)]))
    keys, outputs = _keys(node, {item.id: OutputField("end", offset_us=-delta)})
    pane = f"{at} + {delta}L" if delta else at
    by_processing_time = item.has_processing_time_window
    return AggregatePlan(
        node, node.input, None, True, by_processing_time, pane, keys, outputs, calls
    )


def _closes_after_us(item: n.Field) -> int:
    """Return how long after the value of a key the watermark closes its group."""
    if item.role is n.Role.WINDOW_END:
        return 0
    if item.role is n.Role.TIME:
        return 1
    assert item.window is not None, "the start of a window belongs to one"
    return item.window.size_us


def _keys(
    node: n.Aggregate, derived: dict[str, OutputField]
) -> tuple[tuple[str, ...], tuple[OutputField, ...]]:
    keys: list[str] = []
    outputs: list[OutputField] = []
    for item, tree in zip(node.key_fields, node.keys, strict=True):
        output = derived.get(item.id)
        if output is None:
            output = OutputField("key", len(keys))
            keys.append(to_sql(tree))
        outputs.append(output)
    outputs += [OutputField("result", index) for index, _ in enumerate(node.aggregates)]
    return tuple(keys), tuple(outputs)


# Operand types and rejections


def operands(node: n.Aggregate) -> Iterator[Operands]:
    plan = plan_aggregate(node)
    arguments = [sql for call in plan.calls for sql in call.argument_sql]
    yield Operands((plan.input,), (*plan.keys, *arguments))


def rejections(node: n.Aggregate) -> Iterator[Rejection]:
    try:
        plan_aggregate(node)
    except Unrunnable as error:
        yield error.rejection
    if node.merges_sessions and node.emit is not None and node.emit.mode is EmitMode.EVERY:
        yield Rejection(
            "EMIT EVERY of sessions cannot run yet",
            "use EMIT ON UPDATE, which emits the changes of each epoch.",
            node.emit.span,
        )
    if output_watermark_delay_us(node) is None:
        yield Rejection(
            "sessions of rows that keep another event time cannot run yet",
            "leave that column out of GROUP BY.",
        )


def output_watermark_delay_us(node: n.Aggregate) -> int | None:
    # A session that ends at the watermark is still open, and is emitted later.
    late = node.lateness_us + (1 if node.merges_sessions else 0)
    if node.closing_key is None:
        return late
    behind = node.closing_key.output_watermark_delay_us(node.key_fields)
    return None if behind is None else behind + late


def emits_only_at_end(node: n.Aggregate, has_watermark: bool) -> bool:
    if node.emit is not None and node.emit.mode in _UPDATE_MODES:
        return False
    return not node.windowed or not (node.by_processing_time or node.input.has_watermark)


def operator_name(node: n.Aggregate) -> str:
    if node.merges_sessions:
        return "session_aggregate"
    return "window_aggregate" if node.windowed else "group_aggregate"


def describe(node: n.Aggregate) -> str:
    keys = ", ".join(text_of(key) for key in node.keys) or "()"
    calls = ", ".join(text_of(call) for call in node.aggregates) or "none"
    return f"Aggregate by {keys}: {calls}"


def canonical_form(node: n.Aggregate, writer: CanonicalWriter) -> list[str]:
    parts = [f"keys={writer.texts(node.keys)}", f"calls={writer.texts(node.aggregates)}"]
    parts += ["from_start"] if node.emits_initial_row else []
    return [*parts, *canonical_emit(node.emit), *canonical_ttl(node)]


def sql(node: n.Aggregate, writer: SqlWriter) -> str:
    parts = [*node.keys, *node.aggregates]
    columns = [
        f"{to_sql(part)} AS {quote_identifier(item.id)}"
        for item, part in zip(node.fields, parts, strict=True)
    ]
    if carries_op(node):
        columns.append(f"'+I' AS {OP}")
    columns = columns or ["1 AS one"]
    keys = ", ".join(to_sql(key) for key in node.keys)
    group = f" GROUP BY {keys}" if keys else ""
    return f"SELECT {', '.join(columns)} FROM {writer.child(node.input)}{group}"


# Building


def build(node: n.Aggregate, context: BuildContext) -> BuiltOperator:
    return build_groups(plan_aggregate(node), context, operator_name(node), carries_op(node))


def build_groups(
    plan: AggregatePlan, context: BuildContext, name: str, with_op: bool
) -> BuiltOperator:
    """Build the operator of an aggregate or of DISTINCT."""
    from tidegate.columns import PANE, WEIGHT
    from tidegate.operators.aggregate.groups import Aggregator, PaneGrid

    columns = PortColumns()
    if plan.time is not None:
        columns.add(PANE, plan.time)
    columns.add_all("k", plan.keys)
    if plan.retracts:
        columns.add(WEIGHT, WEIGHT_SQL)
    for index, call in enumerate(plan.calls):
        columns.add_all(f"a{index}_", call.argument_sql)
    late = _late(plan, columns, context.types, name) if context.keeps_late else None
    spec = _spec(plan, context.types)
    # Create the accumulators here to reject unsupported calls before anything starts.
    groups = Aggregator(spec)
    operator = _operator(plan, spec, late, context, name, with_op)
    made_of_panes = plan.window is not None and plan.session_gap_us is None
    grid = None
    if made_of_panes and plan.window is not None:
        grid = PaneGrid(_panes(plan).width_us, plan.window.offset_us)
    partials = _partials(plan, columns, groups) if late is None else None
    port = columns.port(
        plan.input,
        grid=grid,
        time_id=plan.time_id,
        hash_columns=columns.keys,
        partials=partials,
    )
    return BuiltOperator(operator, (port,), plan.by_processing_time)


def _partials(
    plan: AggregatePlan, columns: PortColumns, groups: Aggregator
) -> tuple[tuple[str, str], ...] | None:
    """Return the partial aggregates that Spark computes before the shuffle; sessions have none."""
    from tidegate.operators.aggregate.groups import partial_sql

    if plan.session_gap_us is not None or plan.node.ttl_us is not None:
        return None
    names = dict(columns.named)
    arguments = [
        [names[f"a{index}_{position}"] for position, _ in enumerate(call.argument_sql)]
        for index, call in enumerate(plan.calls)
    ]
    partials = partial_sql(groups, arguments)
    return tuple(partials) if partials is not None else None


def _spec(plan: AggregatePlan, types: Types) -> GroupSpec:
    from tidegate.operators.aggregate.functions import AggregateCall
    from tidegate.operators.aggregate.groups import GroupSpec

    results = types.columns(plan.node)[len(plan.node.keys) :]
    calls = tuple(
        AggregateCall(
            call.function,
            call.text,
            tuple(types.all(call.argument_sql)),
            result,
            call.distinct,
            call.filtered,
            call.constants,
            plan.retracts,
        )
        for call, result in zip(plan.calls, results, strict=True)
    )
    return GroupSpec(tuple(types.all(plan.keys)), calls, plan.retracts, _first_grouping_set(plan))


def _first_grouping_set(plan: AggregatePlan) -> tuple[int, int] | None:
    """Return the key that identifies the grouping set, and its value where a row is counted.

    A filter in between may drop that set: then a row is counted in each set that it is in.
    """
    rows = plan.input
    while isinstance(rows, n.Project):
        rows = rows.input
    first = rows.first_set if isinstance(rows, n.Explode) else None
    keys = list(plan.keys)
    if first is None or quote_identifier(first[0]) not in keys:
        return None
    return keys.index(quote_identifier(first[0])), first[1]


def _panes(plan: AggregatePlan) -> WindowPanes:
    from tidegate.operators.aggregate.groups import WindowPanes

    spec = plan.window
    if spec is None:
        item = plan.node.closing_key
        whole = item.window if item is not None and item.has_fixed_length_window else None
        return (
            WindowPanes("CLOSING_TIME")
            if whole is None
            else WindowPanes("CLOSING_TIME", whole.size_us)
        )
    if plan.session_gap_us is not None:
        return WindowPanes("CLOSING_TIME")
    return WindowPanes(spec.kind.value, spec.size_us, spec.slide_us, spec.offset_us)


def _operator(
    plan: AggregatePlan,
    spec: GroupSpec,
    late: LateRowFormat | None,
    context: BuildContext,
    name: str,
    with_op: bool,
) -> Operator:
    from tidegate.operators.aggregate.groups import OutputLayout
    from tidegate.operators.aggregate.sessions import RetractingSessionAggregate, SessionAggregate
    from tidegate.operators.aggregate.updating import UpdatingAggregate
    from tidegate.operators.aggregate.window import WindowAggregate

    node, limits = plan.node, context.limits
    emit = node.emit
    panes = _panes(plan)
    layout = OutputLayout(_output(plan, context.types), panes, with_op)
    gap = plan.session_gap_us
    if gap is not None:
        sessions = RetractingSessionAggregate if spec.retracts else SessionAggregate
        return sessions(spec, gap, layout, node.lateness_us, plan.emits_updates, late, limits)
    if plan.by_pane and not plan.emits_updates:
        return WindowAggregate(spec, panes, layout, node.lateness_us, late, limits, name)
    every = emit.every_us if emit is not None and emit.mode is EmitMode.EVERY else None
    at_end = not plan.emits_updates and not plan.by_pane
    return UpdatingAggregate(
        spec,
        layout,
        panes if plan.by_pane else None,
        node.lateness_us,
        every,
        at_end,
        node.ttl_us,
        late,
        limits,
        name,
        node.emits_initial_row and not at_end,
    )


def _output(plan: AggregatePlan, types: Types) -> tuple[OutputColumn, ...]:
    from tidegate.operators.aggregate.groups import OutputColumn

    data_types = types.columns(plan.node)
    return tuple(
        OutputColumn(output.kind, output.index, data_type, output.offset_us)
        for output, data_type in zip(plan.outputs, data_types, strict=True)
    )


def _late(plan: AggregatePlan, columns: PortColumns, types: Types, name: str) -> LateRowFormat:
    """Return late rows with all columns of the node."""
    import pyarrow as pa

    from tidegate.columns import HASH, PANE, WEIGHT
    from tidegate.operators.late_rows import LateRowFormat

    fields = [
        pa.field(name, pa.int64() if name == WEIGHT else types.of(columns.sql_of(column)))
        for name, column in columns.named
        if name != PANE
    ]
    needed = pa.schema([(PANE, pa.int64()), (HASH, pa.int64()), *fields])
    late_columns = column_sql(plan.input)
    columns.add_all("l", late_columns)
    return LateRowFormat(name, needed, tuple(types.all(late_columns)))


KIND = OperatorKind(
    name=operator_name,
    describe=describe,
    build=build,
    canonical_form=canonical_form,
    sql=sql,
    operands=operands,
    rejections=rejections,
    output_watermark_delay_us=output_watermark_delay_us,
    emits_only_at_end=emits_only_at_end,
    supports_emit_every=True,
)
