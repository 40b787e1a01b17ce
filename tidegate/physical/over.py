"""OVER: window functions, the time when a row is final, and the operator."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from tidegate.columns import OP
from tidegate.physical.canonical_form import CanonicalWriter, canonical_ttl
from tidegate.physical.expressions import (
    CallPlan,
    expression_text,
    ordered_by,
    ordering,
    plan_call,
    text_of,
)
from tidegate.physical.join import closing_sql
from tidegate.physical.operator_kind import (
    BuildContext,
    BuiltOperator,
    OperatorKind,
    Rejection,
    Unrunnable,
)
from tidegate.physical.stage_sql import PortColumns, SqlWriter, carries_op, column_sql
from tidegate.physical.typed import Operands, Types
from tidegate.plan import nodes as n
from tidegate.plan.bind.functions import NEWEST_FIRST
from tidegate.plan.nodes.over import (
    FrameBound,
    WindowFunction,
    leading_event_time,
    parse_window_function,
    whole_number,
)
from tidegate.sql.dialect import own_span, to_sql
from tidegate.sql.quoting import quote_identifier
from tidegate.types import RANK_FUNCTIONS, WHOLE_PARTITION_FUNCTIONS

if TYPE_CHECKING:
    import pyarrow as pa

    from tidegate.operators.kernels.ordering import Ordering
    from tidegate.operators.late_rows import LateRowFormat
    from tidegate.operators.operator import Operator
    from tidegate.operators.over.frames import Frame
    from tidegate.operators.over.functions import OverFunction, OverSpec

_RANKS = RANK_FUNCTIONS | WHOLE_PARTITION_FUNCTIONS
_DAY_US = 86_400_000_000


@dataclass(frozen=True)
class FunctionPlan:
    """A window function: the SQL of its arguments and of its default value."""

    function: WindowFunction
    text: str
    arguments: tuple[str, ...] = ()
    default: str | None = None
    shift: int | None = None
    number: int = 0
    call: CallPlan | None = None


def plan_function(function: WindowFunction, below: n.Node) -> FunctionPlan:
    """Analyze a window function; raise an error if it cannot run."""
    text = expression_text(function.window, below)
    if any(part.meta.get(NEWEST_FIRST) for part in function.order):
        raise Unrunnable(
            Rejection(
                "ORDER BY PROCTIME() DESC would renumber all rows of a partition for each new row",
                "keep only the newest rows: QUALIFY row_number() OVER (… ORDER BY PROCTIME() DESC) "
                "<= 10; or number the rows in the order of arrival: ORDER BY PROCTIME().",
                own_span(function.window),
            )
        )
    _reject_frame(function, text)
    numbers = [
        bound for bound in (function.start, function.end) if bound.value and not bound.is_interval
    ]
    if (
        function.by_rows is False
        and numbers
        and leading_event_time(function, below.fields) is not None
    ):
        raise _unrunnable(function, f"{text}: the bounds of RANGE over times must be intervals")
    parts = function.call.expressions
    if function.name in _RANKS:
        number = _number(function, 0, 1, text) if function.name == "NTILE" else 0
        return FunctionPlan(function, text, number=number)
    if function.name in ("LAG", "LEAD", "NTH_VALUE") and not parts:
        name = function.name.lower()
        hint = f"name the column: {name}(x{', 2' if name == 'nth_value' else ''}) OVER (…)."
        raise Unrunnable(
            Rejection(f"{text}: an argument is missing", hint, own_span(function.window))
        )
    if function.name in ("LAG", "LEAD"):
        if function.shift is None:
            raise _unrunnable(function, f"{text}: the number of rows must be a constant", _NUMBER)
        default = to_sql(parts[2]) if len(parts) > 2 and not _is_null(parts[2]) else None
        return FunctionPlan(function, text, (to_sql(parts[0]),), default, function.shift)
    if function.name == "NTH_VALUE":
        number = _number(function, 1, None, text)
        return FunctionPlan(function, text, (to_sql(parts[0]),), number=number)
    call = plan_call(function.window.this, below)
    return FunctionPlan(function, text, tuple(call.argument_sql), call=call)


def _reject_frame(function: WindowFunction, text: str) -> None:
    spec = function.window.args.get("spec")
    kind = str(spec.args.get("kind")).upper() if spec is not None else "RANGE"
    if kind not in ("ROWS", "RANGE") or (spec is not None and spec.args.get("exclude")):
        raise _unrunnable(function, f"{text}: GROUPS and EXCLUDE are not supported")
    if not (function.start.is_constant and function.end.is_constant):
        message = "the bounds of this frame must be constants, without months"
        raise _unrunnable(function, f"{text}: {message}")


def _number(function: WindowFunction, position: int, default: int | None, text: str) -> int:
    parts = function.call.expressions
    number = whole_number(parts[position]) if len(parts) > position else default
    if number is None or number < 1:
        raise _unrunnable(function, f"{text}: the number must be a constant of at least 1", _NUMBER)
    return number


def _is_null(tree: exp.Expr) -> bool:
    return isinstance(tree.unnest(), exp.Null)


_FRAME = (
    "write ROWS BETWEEN 10 PRECEDING AND CURRENT ROW, or RANGE BETWEEN INTERVAL '1' HOUR PRECEDING "
    "AND CURRENT ROW."
)
_NUMBER = "write a number, such as lag(x, 2), nth_value(x, 2) or ntile(4)."


def _unrunnable(function: WindowFunction, message: str, hint: str = _FRAME) -> Unrunnable:
    return Unrunnable(Rejection(message, hint, own_span(function.window)))


# Operand types and rejections


def operands(node: n.Over) -> Iterator[Operands]:
    plans = [plan_function(function, node.input) for function in node.window_functions]
    texts = [to_sql(part) for part in node.partition]
    texts += [ordered_by(part) for function in node.window_functions for part in function.order]
    texts += [text for plan in plans for text in plan.arguments]
    yield Operands((node.input,), tuple(texts))


def rejections(node: n.Over) -> Iterator[Rejection]:
    for function in node.window_functions:
        try:
            plan_function(function, node.input)
        except Unrunnable as error:
            yield error.rejection
    if output_watermark_delay_us(node) is None:
        yield Rejection(
            "OVER over sessions whose rows keep another event time cannot run yet",
            "leave that column out.",
        )


def output_watermark_delay_us(node: n.Over) -> int | None:
    if node.mode is n.OverMode.TIME and node.time_field is not None:
        if node.rows_ahead:
            # No node above uses event time.
            return 0
        behind = node.time_field.output_watermark_delay_us(node.fields)
        return None if behind is None else behind + node.time_ahead_us
    return (
        0
        if node.closing_field is None
        else node.closing_field.output_watermark_delay_us(node.fields)
    )


def emits_only_at_end(node: n.Over, has_watermark: bool) -> bool:
    if node.mode is n.OverMode.CHANGES:
        return False
    return node.mode is n.OverMode.END or not has_watermark


def operator_name(node: n.Over) -> str:
    return "over"


def describe(node: n.Over) -> str:
    return "Over " + ", ".join(text_of(function) for function in node.functions)


def canonical_form(node: n.Over, writer: CanonicalWriter) -> list[str]:
    return [node.mode.name.lower(), writer.texts(node.functions), *canonical_ttl(node)]


def sql(node: n.Over, writer: SqlWriter) -> str:
    added = node.fields[len(node.input.fields) :]
    computed = [
        f"{to_sql(typed_function(function))} AS {quote_identifier(item.id)}"
        for item, function in zip(added, node.functions, strict=True)
    ]
    input_columns = [quote_identifier(item.id) for item in node.input.fields]
    op = [OP if carries_op(node.input) else f"'+I' AS {OP}"] if carries_op(node) else []
    columns = [*input_columns, *computed, *op, *writer.hidden]
    return f"SELECT {', '.join(columns)} FROM {writer.child(node.input)}"


def typed_function(function: exp.Expr) -> exp.Expr:
    """Return the function without options that Spark rejects with OVER; its type is the same."""

    def plain(part: exp.Expr) -> exp.Expr:
        if isinstance(part, exp.Filter) and isinstance(part.this, exp.Expr):
            return part.this
        if isinstance(part, exp.Anonymous) and part.expressions:
            first = part.expressions[0]
            if isinstance(first, exp.Distinct):
                part.set("expressions", first.expressions)
        return part

    typed = function.copy().transform(plain)
    if parse_window_function(typed).name in RANK_FUNCTIONS and typed.args.get("order") is None:
        # Without ORDER BY, rows rank in arrival order.
        typed.set("order", exp.Order(expressions=[exp.Ordered(this=exp.Null())]))
    return typed


# Building


def build(node: n.Over, context: BuildContext) -> BuiltOperator:
    from tidegate.columns import STORE_TIME
    from tidegate.operators.over.history import ENDS

    columns = PortColumns()
    store_time = _store_time_sql(node)
    if store_time is not None:
        columns.add(STORE_TIME, store_time)
    closes = node.closing_field
    by_time = node.mode is n.OverMode.TIME
    if by_time and closes is not None:
        columns.add(ENDS, _moment(closes))
    plans = [plan_function(function, node.input) for function in node.window_functions]
    spec = _spec(node, plans, context.types)
    columns.add_all("k", [to_sql(part) for part in node.partition])
    columns.add_all("o", [ordered_by(part) for sort in _sorts(node) for part in sort])
    results = _added(node, context.types)
    for index, (plan, name) in enumerate(zip(plans, results, strict=True)):
        default = [f"CAST({plan.default} AS {name})"] if plan.default is not None else []
        columns.add_all(f"a{index}_", [*plan.arguments, *default])
    columns.add_all("c", column_sql(node.input))
    if carries_op(node.input):
        columns.add(OP, OP)
    _add_arrival(columns)
    operator = _operator(node, spec, context)
    port = columns.port(node.input, hash_columns=columns.keys, arrival=True)
    if context.keeps_late:
        columns.add_all("l", column_sql(node.input))
        port = columns.port(node.input, hash_columns=columns.keys, arrival=True)
        operator = replace(operator, late_rows=_late(operator, spec))
    return BuiltOperator(operator, (port,))


def _add_arrival(columns: PortColumns) -> None:
    from tidegate.columns import ARRIVAL_FILE, ARRIVAL_ROW

    columns.add(ARRIVAL_FILE, ARRIVAL_FILE)
    columns.add(ARRIVAL_ROW, ARRIVAL_ROW)


def _store_time_sql(node: n.Over) -> str | None:
    """Return the time when a row is final, as far as its own event time determines it."""
    item = node.time_field if node.mode is n.OverMode.TIME else node.closing_field
    if item is None or node.mode is n.OverMode.END:
        return None
    return _moment(item)


def _moment(item: n.Field) -> str:
    """Return the time after which no row with a value of a column can arrive."""
    return closing_sql(item) + (" + 1L" if item.role is n.Role.TIME else "")


def _operator(node: n.Over, spec: OverSpec, context: BuildContext) -> Any:
    from tidegate.operators.over.functions import PartitionWindowFunctions
    from tidegate.operators.over.streaming import OverOperator
    from tidegate.operators.top_n.updating import UpdatingTopN
    from tidegate.operators.top_n.window import WindowTopN

    limits, name = context.limits, operator_name(node)
    closes = node.closing_field is not None
    if node.mode is n.OverMode.TIME:
        return OverOperator(spec, closes, node.ttl_us, limits=limits, name=name)
    whole, start = PartitionWindowFunctions(spec), _start(node)
    if node.mode is n.OverMode.WINDOW:
        return WindowTopN(whole, limits=limits, start=start, name=name)
    changes = node.mode is n.OverMode.CHANGES
    return UpdatingTopN(
        whole,
        retracts=carries_op(node.input),
        has_closing_key=changes and closes,
        at_end=not changes,
        with_op=changes,
        ttl_us=node.ttl_us,
        limits=limits,
        start=start,
        name=name,
    )


def _start(node: n.Over) -> str | None:
    """Return the column with the start of the window that closes a partition."""
    closing = node.closing_field
    for index, item in enumerate(node.input.fields):
        starts = item.role is n.Role.WINDOW_START
        if closing is not None and starts and item.window == closing.window:
            return f"c{index}"
    return None


def _late(operator: Any, spec: OverSpec) -> LateRowFormat:
    """Return late rows unchanged."""
    from tidegate.operators.late_rows import LateRowFormat

    return LateRowFormat(operator.name, _needed(operator), spec.columns)


def _needed(operator: Operator) -> pa.Schema:
    """Return the schema of the packed columns, without the counter."""
    from tidegate.columns import INPUT_ROWS

    schema = operator.shuffle_schemas[0][0]
    index = schema.get_field_index(INPUT_ROWS)
    return schema if index < 0 else schema.remove(index)


# Functions of operators


def _spec(node: n.Over, plans: list[FunctionPlan], types: Types) -> OverSpec:
    from tidegate.operators.over.functions import OverSpec

    sorts, order_positions = _sorts(node), []
    orders: list[Ordering] = []
    for parts in sorts:
        order_positions.append(tuple(range(len(orders), len(orders) + len(parts))))
        orders += [ordering(part, types) for part in parts]
    functions = []
    for plan, name in zip(plans, _added(node, types), strict=True):
        sort = sorts.index(plan.function.order)
        data_type = orders[order_positions[sort][0]].type if order_positions[sort] else None
        functions.append(_function(plan, sort, data_type, types, name))
    keys = types.all([to_sql(part) for part in node.partition])
    columns = types.columns(node.input)
    return OverSpec(
        tuple(keys), tuple(orders), tuple(order_positions), tuple(functions), tuple(columns)
    )


def _added(node: n.Over, types: Types) -> list[str]:
    """Return the result types of the functions by Spark's names."""
    return [types.name(quote_identifier(item.id)) for item in node.fields[len(node.input.fields) :]]


def _sorts(node: n.Over) -> list[tuple[exp.Expr, ...]]:
    """Return the distinct orders of a node's functions."""
    sorts: list[tuple[exp.Expr, ...]] = []
    for function in node.window_functions:
        if function.order not in sorts:
            sorts.append(function.order)
    return sorts


def _function(
    plan: FunctionPlan, sort: int, ordered_by: pa.DataType | None, types: Types, name: str
) -> OverFunction:
    from tidegate.operators.aggregate.functions import AggregateCall
    from tidegate.operators.over.frames import Frame
    from tidegate.operators.over.functions import OverFunction
    from tidegate.physical.typed import arrow_type

    function, result = plan.function, arrow_type(name)
    if function.name in _RANKS:
        return OverFunction(function.name, result, sort, buckets=plan.number)
    arguments = tuple(types.all(plan.arguments))
    default = plan.default is not None
    if plan.shift is not None:
        if not function.ignores_nulls or plan.shift == 0:
            return OverFunction(
                function.name, result, sort, plan.shift, default, argument=arguments[0]
            )
        # The nth value that is not NULL, from the current row on.
        ahead = plan.shift > 0
        call = AggregateCall("nth_value" if ahead else "lag", plan.text, arguments, result)
        call = replace(call, constants=(abs(plan.shift), True))
        frame = Frame(True, 1, None) if ahead else Frame(True, None, -1)
        return OverFunction(function.name, result, sort, default=default, frame=frame, call=call)
    frame = _frame(function, ordered_by)
    if plan.call is None:
        call = AggregateCall("nth_value", plan.text, arguments, result)
        call = replace(call, constants=(plan.number, function.ignores_nulls))
    else:
        call_plan = plan.call
        call = AggregateCall(
            call_plan.function, plan.text, arguments, result, call_plan.distinct, call_plan.filtered
        )
        call = replace(call, constants=call_plan.constants)
    return OverFunction(function.name, result, sort, frame=frame, call=call)


def _frame(function: WindowFunction, ordered_by: pa.DataType | None) -> Frame:
    from tidegate.operators.over.frames import Frame

    ends = [_offset(bound, ordered_by) for bound in (function.start, function.end)]
    return Frame(bool(function.by_rows), ends[0], ends[1])


def _offset(bound: FrameBound, data_type: pa.DataType | None) -> int | float | None:
    """Return a frame offset in the unit of the column in ORDER BY."""
    import pyarrow as pa

    if bound.value and bound.is_interval and data_type is not None and pa.types.is_date(data_type):
        return int(bound.value) // _DAY_US
    return bound.value


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
)
