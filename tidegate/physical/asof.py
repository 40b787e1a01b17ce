"""Temporal and ASOF joins: the match condition, key types and versions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tidegate.columns import ARRIVAL_FILE, ARRIVAL_ROW, BEFORE, DELETE, OP
from tidegate.physical.aggregate import WEIGHT_SQL
from tidegate.physical.canonical_form import CanonicalWriter, canonical_ttl
from tidegate.physical.expressions import text_of
from tidegate.physical.join import common_types, key_text, operator_name
from tidegate.physical.join import sql as join_sql
from tidegate.physical.operator_kind import BuildContext, BuiltOperator, OperatorKind, Rejection
from tidegate.physical.stage_sql import PortColumns, PortSchema, carries_op, unix_micros_sql
from tidegate.physical.typed import Operands, Types, arrow_type
from tidegate.plan import nodes as n
from tidegate.sql.dialect import to_sql
from tidegate.sql.quoting import quote_identifier
from tidegate.types import format_duration_us

if TYPE_CHECKING:
    from tidegate.operators.join.asof import AsofBounds, AsofJoin
    from tidegate.operators.kernels.join_condition import JoinCondition
    from tidegate.operators.operator import Operator

KINDS = (n.JoinKind.TEMPORAL, n.JoinKind.ASOF)


def match_bounds(node: n.Join) -> n.AsofCondition:
    """Return the match condition; open bounds in whole microseconds become closed ones."""
    condition = node.asof_condition
    assert condition is not None, "a temporal or ASOF join has a match condition"
    if not node.by_watermark:
        return condition
    lower, upper = condition.lower, condition.upper
    if lower is not None and condition.lower_open:
        lower += 1
    if upper is not None and condition.upper_open:
        upper -= 1
    return replace(condition, lower=lower, upper=upper, lower_open=False, upper_open=False)


def _keys(node: n.Join) -> tuple[list[str], list[str]]:
    left = [to_sql(pair.left) for pair in node.key_pairs]
    return left, [to_sql(pair.right) for pair in node.key_pairs]


def _values(node: n.Join) -> tuple[str, str]:
    condition = match_bounds(node)
    return to_sql(condition.left), to_sql(condition.right)


def _output_fields(node: n.Join, port: int) -> list[n.Field]:
    """Return the output columns of one input, without the column that marks valid versions."""
    out = {item.id for item in node.fields}
    return [item for item in node.inputs[port].fields if item.id in out]


# Operand types and rejections


def operands(node: n.Join) -> Iterator[Operands]:
    """Yield the keys and values of each input, and pairs whose common type Spark determines."""
    left, right = _keys(node)
    if node.asof_condition is not None and not node.by_watermark:
        one, other = _values(node)
        left, right = [*left, one], [*right, other]
    yield Operands((node.left,), tuple(left))
    yield Operands((node.right,), tuple(right))
    both = (f"coalesce({one}, {other})" for one, other in zip(left, right, strict=True))
    yield Operands(node.inputs, tuple(both))


def rejections(node: n.Join) -> Iterator[Rejection]:
    if node.asof_condition is None or node.how not in ("INNER", "LEFT"):
        yield Rejection(
            f"this {node.how} {node.kind.value} join does not define the nearest row",
            "ASOF JOIN quotes AS q MATCH_CONDITION (t.ts >= q.ts) ON t.symbol = q.symbol",
        )
        return
    if node.kind is n.JoinKind.TEMPORAL and not (node.versioned and node.timed):
        yield Rejection(
            "the right side of this temporal join has no versions",
            "join a source with PRIMARY KEY and WATERMARK, by the event time of the left side.",
        )
        return
    if node.residual is not None:
        yield Rejection(
            "an ASOF join with a condition on both sides that is neither an equality nor a bound "
            "of the distance cannot run yet",
            "use JOIN with a bound of time, or compute the condition in a stream that the join "
            "reads.",
        )
    if not node.by_watermark and node.ttl_us is None and not node.bounded:
        yield Rejection(
            "an ASOF join that no watermark makes final would keep every row in state forever",
            "compare the event times of both sides, or let state expire: CREATE STREAM … WITH "
            "(state_ttl = '1 day') AS …",
        )
    if output_watermark_delay_us(node) is None:
        yield Rejection(
            "rows of sessions that keep other event times cannot be joined yet",
            "leave those columns out of the join's inputs.",
        )


def output_watermark_delay_us(node: n.Join) -> int | None:
    """Return the delay of the output: a row is emitted once no better match can arrive."""
    if node.asof_condition is None or not node.by_watermark:
        return 0
    condition = match_bounds(node)
    times = [item for item in node.left.fields if item.id == condition.left.name]
    behind = times[0].output_watermark_delay_us(node.left.fields) if times else 0
    if behind is None or condition.lower is None:
        return behind
    return behind + max(0, -int(condition.lower))


def emits_only_at_end(node: n.Join, has_watermark: bool) -> bool:
    """Return whether rows are emitted only when the inputs have ended."""
    return node.asof_condition is not None and not node.by_watermark and not carries_op(node)


# Explain and canonical form


def describe(node: n.Join) -> str:
    text = f"Join {node.how} {node.kind.value}{key_text(node)}"
    if node.as_of is not None:
        text += f", as of {text_of(node.as_of)}"
    if node.match is not None:
        text += f", nearest {text_of(node.match)}"
    if node.kind is n.JoinKind.ASOF and node.asof_condition is not None:
        text += _distance(match_bounds(node), node.by_watermark)
    if node.asof_condition is not None and node.asof_condition.only_first_version:
        text += ", first version"
    if node.residual is not None:
        text += f", where {text_of(node.residual)}"
    return text


def _distance(condition: n.AsofCondition, times: bool) -> str:
    """Describe the maximum distance of matches, if there is one."""
    behind = condition.upper if condition.direction != n.FORWARD else None
    ahead = condition.lower if condition.direction != n.BACKWARD else None
    words = [
        f"{format_duration_us(int(limit)) if times else limit} {where}"
        for limit, where in ((behind, "behind"), (ahead and -ahead, "ahead"))
        if limit is not None
    ]
    return f", up to {' and '.join(words)}" if words else ""


def canonical_form(node: n.Join, writer: CanonicalWriter) -> list[str]:
    words = [node.how.lower(), node.kind.value]
    for pair in node.key_pairs:
        same = "<=>" if pair.null_safe else "="
        words.append(f"{writer.text(pair.left)}{same}{writer.text(pair.right)}")
    if node.asof_condition is not None:
        condition = match_bounds(node)
        ends = f"{'(' if condition.lower_open else '['}{condition.lower} {condition.upper}"
        ends += ")" if condition.upper_open else "]"
        which = "first" if condition.only_first_version else condition.direction
        words.append(
            f"{which}({writer.text(condition.left)} {writer.text(condition.right)} {ends})"
        )
    words += [f"where={writer.text(node.residual)}"] if node.residual is not None else []
    words += [f"alive={writer.columns[node.validity_id]}"] if node.validity_id is not None else []
    return [*words, *([] if node.by_watermark else canonical_ttl(node))]


# Building


def build(node: n.Join, context: BuildContext) -> BuiltOperator:
    output_ids = [item.id for port in (0, 1) for item in _output_fields(node, port)]
    assert output_ids == [item.id for item in node.fields], (
        "the output has the columns of both sides"
    )
    keys = common_types(*_keys(node), context.types)
    if node.by_watermark:
        return BuiltOperator(
            _by_watermark(node, keys, context),
            (_timed_left(node, keys, context.types), _timed_right(node, keys, context.types)),
        )
    left, right = _values(node)
    (value,) = common_types([left], [right], context.types)
    ports = tuple(_updating_port(node, port, keys, value, context.types) for port in (0, 1))
    return BuiltOperator(_updating_operator(node, keys, value, context), ports)


def _matching(node: n.Join, keys: list[str]) -> JoinCondition:
    from tidegate.operators.kernels.join_condition import JoinCondition

    safe = tuple(pair.null_safe for pair in node.key_pairs)
    return JoinCondition(tuple(arrow_type(name) for name in keys), safe)


def _asof_bounds(node: n.Join) -> AsofBounds:
    from tidegate.operators.join.asof import AsofBounds

    f = match_bounds(node)
    return AsofBounds(
        f.direction, f.lower, f.upper, f.lower_open, f.upper_open, f.only_first_version
    )


def _columns(node: n.Join, types: Types) -> Any:
    return tuple(
        tuple(types.of(quote_identifier(item.id)) for item in _output_fields(node, port))
        for port in (0, 1)
    )


def _by_watermark(node: n.Join, keys: list[str], context: BuildContext) -> Operator:
    from tidegate.operators.join.asof import AsofJoin

    join = AsofJoin(
        _matching(node, keys),
        _asof_bounds(node),
        _columns(node, context.types),
        node.how,
        versions=_has_tombstones(node),
        retracts=carries_op(node.left),
        with_op=carries_op(node),
        limits=context.limits,
        name=operator_name(node),
    )
    return _with_late(join) if context.keeps_late else join


def _with_late(join: AsofJoin) -> AsofJoin:
    import pyarrow as pa

    from tidegate.operators.late_rows import LateRowFormat

    left, right = (
        LateRowFormat(f"{join.name} ({side})", pa.schema([]), join.columns[port])
        for port, side in enumerate(("left", "right"))
    )
    return replace(join, late_rows=(left, right))


def _updating_operator(
    node: n.Join, keys: list[str], value: str, context: BuildContext
) -> Operator:
    from tidegate.operators.join.asof_updating import UpdatingAsofJoin

    return UpdatingAsofJoin(
        _matching(node, keys),
        _asof_bounds(node),
        arrow_type(value),
        _columns(node, context.types),
        node.how,
        None if node.bounded else node.ttl_us,
        at_end=node.bounded,
        with_op=carries_op(node),
        limits=context.limits,
        name=operator_name(node),
    )


def _has_tombstones(node: n.Join) -> bool:
    return node.validity_id is not None or carries_op(node.right)


def _cast(sql: str, sql_type: str, types: Types) -> str:
    return sql if types.name(sql) == sql_type else f"CAST({sql} AS {sql_type})"


def _base_columns(node: n.Join, port: int, keys: list[str], types: Types) -> PortColumns:
    columns = PortColumns()
    key_sql = _keys(node)[port]
    columns.add_all(
        "k", [_cast(key, sql_type, types) for key, sql_type in zip(key_sql, keys, strict=True)]
    )
    columns.add_all("c", [quote_identifier(item.id) for item in _output_fields(node, port)])
    return columns


def _timed_left(node: n.Join, keys: list[str], types: Types) -> PortSchema:
    from tidegate.columns import STORE_TIME, WEIGHT

    columns = _base_columns(node, 0, keys, types)
    columns.add(STORE_TIME, unix_micros_sql(_values(node)[0]))
    if carries_op(node.left):
        columns.add(WEIGHT, WEIGHT_SQL)
    return columns.port(node.left, hash_columns=columns.keys)


def _timed_right(node: n.Join, keys: list[str], types: Types) -> PortSchema:
    from tidegate.columns import STORE_TIME
    from tidegate.operators.join.asof import IS_VERSION

    columns = _base_columns(node, 1, keys, types)
    columns.add(STORE_TIME, unix_micros_sql(_values(node)[1]))
    if _has_tombstones(node):
        columns.add(IS_VERSION, _alive_sql(node))
    columns.add(ARRIVAL_FILE, ARRIVAL_FILE)
    columns.add(ARRIVAL_ROW, ARRIVAL_ROW)
    return columns.port(node.right, hash_columns=columns.keys, arrival=True)


def _alive_sql(node: n.Join) -> str:
    """Keep deletes, which end a version, and drop the old rows of updates."""
    alive = quote_identifier(node.validity_id) if node.validity_id is not None else "true"
    if not carries_op(node.right):
        return alive
    return (
        f"CASE {OP} WHEN '{BEFORE}' THEN CAST(NULL AS BOOLEAN) WHEN '{DELETE}' THEN false "
        f"ELSE {alive} END"
    )


def _updating_port(
    node: n.Join, port: int, keys: list[str], value: str, types: Types
) -> PortSchema:
    from tidegate.columns import WEIGHT
    from tidegate.operators.join.asof_updating import VALUE

    columns = _base_columns(node, port, keys, types)
    columns.add(VALUE, _cast(_values(node)[port], value, types))
    columns.add(WEIGHT, WEIGHT_SQL if carries_op(node.inputs[port]) else "1L")
    if port == 1:
        columns.add(ARRIVAL_FILE, ARRIVAL_FILE)
        columns.add(ARRIVAL_ROW, ARRIVAL_ROW)
    return columns.port(node.inputs[port], hash_columns=columns.keys, arrival=port == 1)


KIND = OperatorKind(
    name=operator_name,
    describe=describe,
    build=build,
    canonical_form=canonical_form,
    sql=join_sql,
    operands=operands,
    rejections=rejections,
    output_watermark_delay_us=output_watermark_delay_us,
    emits_only_at_end=emits_only_at_end,
)
