"""Operators from plan nodes: Spark says which types the columns have."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import SparkSession

from tidegate.catalog.catalog import Catalog
from tidegate.columns import ARRIVAL_FILE, ARRIVAL_ROW, OP
from tidegate.errors import RunError
from tidegate.operators.accumulators import Call, ignores_nulls
from tidegate.operators.contract import Operator
from tidegate.operators.group_kernels import HASH, PANE, WEIGHT, Groups, GroupSpec
from tidegate.operators.hold import Hold
from tidegate.operators.keyed_aggregate import KeyedAggregate
from tidegate.operators.late import LateRows
from tidegate.operators.layout import Layout, OutputColumn
from tidegate.operators.limits import Limits
from tidegate.operators.normalize import Normalize
from tidegate.operators.panes import Panes
from tidegate.operators.session_aggregate import SessionAggregate
from tidegate.operators.window_aggregate import WindowAggregate
from tidegate.physical.aggregates import (
    WEIGHT_SQL,
    AggregatePlan,
    CallPlan,
    as_aggregate,
    plan_aggregate,
)
from tidegate.physical.stage_sql import carries_op, quoted
from tidegate.physical.times import aggregate_behind_us, behind_us
from tidegate.plan import nodes as n
from tidegate.spark.joins import build_join
from tidegate.spark.ports import Built, Columns, Types, hash_columns
from tidegate.spark.top_n import build_top_n
from tidegate.sql.statements import EmitMode


class OperatorBuilder:
    """Makes the operators of one pipeline."""

    def __init__(self, spark: SparkSession, catalog: Catalog, limits: Limits) -> None:
        self.types = Types(spark, catalog)
        self.limits = limits

    def build(self, node: n.Node, keeps_late: bool) -> Built:
        if isinstance(node, n.Aggregate):
            return self._aggregate(plan_aggregate(node), keeps_late, None, carries_op(node))
        if isinstance(node, n.Hold):
            return self._hold(node, keeps_late)
        if isinstance(node, n.Normalize):
            return self._normalize(node)
        if isinstance(node, n.Join):
            return build_join(node, self.types, self.limits)
        if isinstance(node, n.Distinct):
            plan = plan_aggregate(as_aggregate(node))
            return self._aggregate(plan, keeps_late, "distinct", carries_op(node))
        if isinstance(node, n.TopN):
            return build_top_n(node, self.types, self.limits, keeps_late)
        raise RunError("TG-501", f"{node.label()} cannot run yet")

    # Aggregates

    def _aggregate(
        self, plan: AggregatePlan, keeps_late: bool, name: str | None, with_op: bool
    ) -> Built:
        columns = Columns()
        keys = list(plan.keys)
        if plan.time is not None:
            columns.add(PANE, plan.time)
        for index, key in enumerate(keys):
            columns.add(f"k{index}", key)
        if plan.retracts:
            columns.add(WEIGHT, WEIGHT_SQL)
        arguments = [_argument_sql(call) for call in plan.calls]
        for index, parts in enumerate(arguments):
            for place, sql in enumerate(parts):
                columns.add(f"a{index}_{place}", sql)
        types = dict(
            zip(columns.by_sql, self.types.of(plan.input, list(columns.by_sql)), strict=True)
        )
        late = self._late(plan, columns, types, name) if keeps_late else None
        spec = self._spec(plan, keys, arguments, types)
        operator = self._operator(plan, spec, late, name, with_op)
        # Making the accumulators here refuses what cannot run before anything starts.
        Groups(spec)
        hashed = hash_columns(columns, keys, [types[key] for key in keys])
        port = columns.port(plan.input, grid=plan.grid, time_id=plan.time_id, hashed=hashed)
        return Built(operator, (port,), plan.processing_time, aggregate_behind_us(plan.node) or 0)

    def _spec(
        self,
        plan: AggregatePlan,
        keys: list[str],
        arguments: list[list[str]],
        types: dict[str, pa.DataType],
    ) -> GroupSpec:
        results = self._result_types(plan)
        calls = tuple(
            Call(
                call.function,
                call.text,
                tuple(types[sql] for sql in parts),
                result,
                call.distinct,
                call.filter is not None and not _folds(call),
                call.constants,
                plan.retracts,
            )
            for call, parts, result in zip(plan.calls, arguments, results, strict=True)
        )
        for key in keys:
            if pa.types.is_nested(types[key]):
                raise RunError(
                    "TG-501",
                    f"{key.replace('`', '')}: groups by {types[key]} cannot run yet",
                    hint="take the parts of it, or to_json(…).",
                )
        kinds = tuple(types[key] for key in keys)
        return GroupSpec(kinds, calls, plan.retracts, plan.meaning)

    def _operator(
        self,
        plan: AggregatePlan,
        spec: GroupSpec,
        late: LateRows | None,
        name: str | None,
        with_op: bool,
    ) -> Operator:
        node = plan.node
        emit = node.emit
        mode = emit.mode if emit is not None else None
        layout = Layout(self._output(plan), plan.panes or Panes("DUE"), with_op)
        lateness = (emit.lateness_us or 0) if emit is not None else 0
        early = mode in (EmitMode.UPDATE, EmitMode.CHANGES, EmitMode.EVERY)
        if plan.session_gap_us is not None:
            return SessionAggregate(
                spec, plan.session_gap_us, layout, lateness, early, late, self.limits
            )
        if plan.panes is not None and not early:
            return WindowAggregate(
                spec, plan.panes, layout, lateness, late, self.limits, name or "window_aggregate"
            )
        every = emit.every_us if emit is not None and mode is EmitMode.EVERY else None
        at_end = not early and plan.panes is None
        name = name or ("window_aggregate" if plan.panes is not None else "group_aggregate")
        return KeyedAggregate(
            spec, layout, plan.panes, lateness, every, at_end, node.ttl_us, late, self.limits, name
        )

    def _output(self, plan: AggregatePlan) -> tuple[OutputColumn, ...]:
        kinds = self.types.columns(plan.node)
        return tuple(
            OutputColumn(output.kind, output.index, kind)
            for output, kind in zip(plan.outputs, kinds, strict=True)
        )

    def _result_types(self, plan: AggregatePlan) -> list[pa.DataType]:
        kinds = self.types.columns(plan.node)
        return kinds[len(plan.node.keys) :]

    # Rows that wait

    def _hold(self, node: n.Hold, keeps_late: bool) -> Built:
        columns = Columns()
        delta = 1 if node.field(node.end_id).role is n.Role.TIME else 0
        end = f"unix_micros(CAST({quoted(node.end_id)} AS TIMESTAMP))"
        columns.add(PANE, f"{end} + {delta}L" if delta else end)
        names = [quoted(item.id) for item in node.fields]
        for index, name in enumerate(names):
            columns.add(f"c{index}", name)
        if carries_op(node.input):
            columns.add(OP, OP)
        kinds = self.types.columns(node.input)
        fields = [pa.field(f"c{i}", kind) for i, kind in enumerate(kinds)]
        fields += [pa.field(OP, pa.string())] if carries_op(node.input) else []
        output = pa.schema(fields)
        # A late stream has the columns that rows had before windows were put on them.
        window = node.input if isinstance(node.input, n.Window) else None
        original = len(window.input.fields) if window is not None else len(names)
        types = tuple(output.types[:original])
        late = LateRows("hold_until_close", output, types) if keeps_late else None
        start = f"c{len(names) - 3}" if window is not None else None
        port = columns.port(node.input, hashed=(PANE,))
        meaning = (node.end_id, *(item.name for item in node.fields))
        hold = Hold(output, start=start, late_rows=late, limits=self.limits, meaning=meaning)
        behind = behind_us(node.fields, node.field(node.end_id)) or 0
        return Built(hold, (port,), held_back_us=behind)

    # Upserts

    def _normalize(self, node: n.Normalize) -> Built:
        columns = Columns()
        keys = [quoted(column) for column in node.key]
        for index, key in enumerate(keys):
            columns.add(f"k{index}", key)
        names = [quoted(item.id) for item in node.fields]
        for index, name in enumerate(names):
            columns.add(f"c{index}", name)
        columns.add(OP, OP if carries_op(node.input) else "'+U'")
        columns.add(ARRIVAL_FILE, ARRIVAL_FILE)
        columns.add(ARRIVAL_ROW, ARRIVAL_ROW)
        types = self.types.of(node.input, [*keys, *names])
        kinds, rows = tuple(types[: len(keys)]), tuple(types[len(keys) :])
        meaning = tuple(node.field(column).name for column in node.key)
        meaning += tuple(item.name for item in node.fields)
        operator = Normalize(kinds, rows, self.limits, meaning)
        hashed = hash_columns(columns, keys, types[: len(keys)])
        return Built(operator, (columns.port(node.input, hashed=hashed, arrival=True),))

    # Types

    def _late(
        self,
        plan: AggregatePlan,
        columns: Columns,
        types: dict[str, pa.DataType],
        name: str | None,
    ) -> LateRows:
        """What comes too late is kept with all the columns its node has."""
        fields = [pa.field(own, types[_sql(columns, given)]) for own, given in columns.named]
        fields = [field for field in fields if field.name not in (PANE, HASH)]
        needed = pa.schema([(PANE, pa.int64()), (HASH, pa.int64()), *fields])
        own = [quoted(item.id) for item in plan.input.fields]
        kinds = self.types.of(plan.input, own)
        for index, sql in enumerate(own):
            columns.add(f"l{index}", sql)
        usual = "session_aggregate" if plan.session_gap_us is not None else "window_aggregate"
        return LateRows(name or usual, needed, tuple(kinds))


def _sql(columns: Columns, given: str) -> str:
    return next(sql for sql, name in columns.by_sql.items() if name == given)


def _folds(call: CallPlan) -> bool:
    """Whether FILTER can be had by making the argument NULL."""
    return call.function == "count" or ignores_nulls(call.function, call.constants)


def _argument_sql(call: CallPlan) -> list[str]:
    """The arguments of a call, with its FILTER folded in or as one more of them."""
    if call.filter is None:
        return list(call.arguments)
    if not _folds(call):
        return [*call.arguments, f"coalesce({call.filter}, false)"]
    arguments = call.arguments or ("1",)
    return [f"CASE WHEN {call.filter} THEN {argument} END" for argument in arguments]
