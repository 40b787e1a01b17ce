"""Interval, window and regular joins: event times, key types and bounds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from tidegate.columns import OP
from tidegate.physical.aggregate import WEIGHT_SQL
from tidegate.physical.canonical_form import CanonicalWriter, canonical_ttl
from tidegate.physical.expressions import text_of
from tidegate.physical.operator_kind import (
    BuildContext,
    BuiltOperator,
    OperatorKind,
    Rejection,
    Unrunnable,
)
from tidegate.physical.stage_sql import (
    PortColumns,
    PortSchema,
    SqlWriter,
    carries_op,
    column_sql,
    unix_micros_sql,
)
from tidegate.physical.typed import Operands, Types, arrow_type
from tidegate.plan import nodes as n
from tidegate.plan.bind.scope import referenced_ids
from tidegate.sql import expressions as ex
from tidegate.sql.dialect import to_sql
from tidegate.sql.quoting import quote_identifier
from tidegate.types import format_duration_us

if TYPE_CHECKING:
    import pyarrow as pa

    from tidegate.operators.join.interval import IntervalJoin
    from tidegate.operators.operator import Operator

SUPPORTED_KINDS = (n.JoinKind.INTERVAL, n.JoinKind.WINDOW, n.JoinKind.REGULAR)
_NUMBERS = ("TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL")


@dataclass(frozen=True)
class JoinPlan:
    """A join divided into the parts that its operator needs."""

    node: n.Join
    # The SQL of the time of each input in microseconds; None for a join without time bounds.
    times: tuple[str, str] | None
    pairs: tuple[n.KeyPair, ...]
    lower_us: int
    upper_us: int
    # See `IntervalJoin`; None for a join without time bounds.
    close_delay_us: int | None

    @property
    def retracts(self) -> tuple[bool, bool]:
        return carries_op(self.node.left), carries_op(self.node.right)

    @property
    def updates(self) -> bool:
        """Whether rows may be retracted, or wait for the end of the input."""
        return self.times is None or any(self.retracts)

    @property
    def at_end(self) -> bool:
        """Whether rows without a match are only known when the input has ended."""
        return self.times is None and emits_only_at_end(self.node, False)

    @property
    def keys(self) -> tuple[list[str], list[str]]:
        """The SQL of the keys of each input."""
        left = [to_sql(pair.left) for pair in self.pairs]
        return left, [to_sql(pair.right) for pair in self.pairs]


def plan_join(node: n.Join) -> JoinPlan:
    pairs = node.key_pairs + tuple(_as_pair(piece, node) for piece in ex.conjuncts(node.residual))
    if node.kind is n.JoinKind.REGULAR:
        return JoinPlan(node, None, pairs, 0, 0, None)
    closing = _closing(node)
    times = (closing_sql(closing[0]), closing_sql(closing[1]))
    if node.kind is n.JoinKind.WINDOW:
        return JoinPlan(node, times, pairs, 0, 0, 0)
    lower, upper = _bounds(node)
    return JoinPlan(node, times, pairs, lower, upper, 1)


def _bounds(node: n.Join) -> tuple[int, int]:
    assert node.bounds is not None, "an interval join has bounds"
    lower, upper = node.bounds.lower_us, node.bounds.upper_us
    assert lower is not None and upper is not None, "an interval join has both bounds"
    return lower, upper


def closing_sql(item: n.Field) -> str:
    """Return the time that closes a row; the end of a window follows from its start."""
    at = unix_micros_sql(quote_identifier(item.id))
    if item.role is n.Role.WINDOW_START and item.window is not None:
        return f"{at} + {item.window.size_us}L"
    return at


def _closing(node: n.Join) -> tuple[n.Field, n.Field]:
    """Return the columns of both sides that contain the time when a row is closed."""
    if node.kind is n.JoinKind.INTERVAL:
        assert node.bounds is not None, "an interval join has bounds"
        return node.left.field(node.bounds.left_id), node.right.field(node.bounds.right_id)
    pairs: dict[n.Role, tuple[n.Field, n.Field]] = {}
    left = {item.id: item for item in node.left.fields}
    right = {item.id: item for item in node.right.fields}
    for pair in node.key_pairs:
        one, other = left.get(pair.left.name), right.get(pair.right.name)
        if one is None or other is None or one.role is not other.role or one.window is None:
            continue
        if one.window == other.window:
            pairs.setdefault(one.role, (one, other))
    return pairs.get(n.Role.WINDOW_END) or pairs[n.Role.WINDOW_START]


def output_watermark_delay_us(node: n.Join) -> int | None:
    """Return the delay of the output: unmatched rows are emitted once no match can arrive."""
    if node.kind is n.JoinKind.REGULAR:
        return 0
    behind = 0
    for side, item in zip(node.inputs, _closing(node), strict=True):
        delay = item.output_watermark_delay_us(side.fields)
        if delay is None:
            return None
        behind = max(behind, delay)
    if node.kind is n.JoinKind.WINDOW:
        return behind
    lower, upper = _bounds(node)
    pair_delay = upper - lower if node.at_close else 0
    return max(0, upper, -lower, pair_delay) + behind


def _as_pair(piece: exp.Expr, node: n.Join) -> n.KeyPair:
    """Turn a condition on one input into a key pair that matches only where it is true."""
    true = exp.true()
    if referenced_ids(piece) <= {item.id for item in node.left.fields}:
        return n.KeyPair(piece, true)
    return n.KeyPair(true, piece)


# Operand types and rejections


def operands(node: n.Join) -> Iterator[Operands]:
    """Yield the keys of each input, and pairs whose common type Spark determines."""
    left, right = plan_join(node).keys
    yield Operands((node.left,), tuple(left))
    yield Operands((node.right,), tuple(right))
    yield Operands(node.inputs, tuple(map(_both, left, right)))


def _both(left: str, right: str) -> str:
    return f"coalesce({left}, {right})"


def rejections(node: n.Join) -> Iterator[Rejection]:
    if node.kind not in SUPPORTED_KINDS:
        yield Rejection(
            f"{node.kind.value} joins cannot run yet",
            "interval, window, regular, temporal and ASOF joins run: join by equality and a bound "
            "of time.",
        )
        return
    left = {item.id for item in node.left.fields}
    right = {item.id for item in node.right.fields}
    for piece in ex.conjuncts(node.residual):
        ids = referenced_ids(piece)
        if not (ids <= left or ids <= right):
            yield Rejection(
                f"a {node.how} join with a condition on both sides that is neither an equality "
                "nor a bound of time cannot run yet",
                "use JOIN, or compute the condition in a stream that the join reads.",
            )
    if node.kind is n.JoinKind.REGULAR:
        return
    if node.at_close and any(carries_op(side) for side in node.inputs):
        yield Rejection(
            "EMIT ON WINDOW CLOSE over a join of rows that are retracted cannot run yet",
            "use EMIT CHANGES, or join streams without ALLOW LATENESS.",
        )
    if output_watermark_delay_us(node) is None:
        yield Rejection(
            "rows of sessions that keep other event times cannot be joined yet",
            "leave those columns out of the join's inputs.",
        )


def emits_only_at_end(node: n.Join, has_watermark: bool) -> bool:
    """Return whether some rows are emitted only when the inputs have ended."""
    if node.kind not in SUPPORTED_KINDS or carries_op(node):
        return False
    outer = node.how not in ("INNER", "SEMI")
    if node.kind is n.JoinKind.REGULAR:
        return outer
    return not has_watermark and (outer or node.at_close)


def operator_name(node: n.Join) -> str:
    return f"{node.kind.value}_join"


def describe(node: n.Join) -> str:
    text = f"Join {node.how} {node.kind.value}{key_text(node)}"
    if node.bounds is not None:
        lower = format_duration_us(node.bounds.lower_us or 0)
        upper = format_duration_us(node.bounds.upper_us or 0)
        text += f", {node.bounds.left_id} - {node.bounds.right_id} in [{lower}, {upper}]"
    if node.as_of is not None:
        text += f", as of {text_of(node.as_of)}"
    if node.residual is not None:
        text += f", where {text_of(node.residual)}"
    return text


def key_text(node: n.Join) -> str:
    """Format the keys of a join for `explain`."""
    if not node.key_pairs:
        return ""
    return " on " + " AND ".join(
        f"{text_of(pair.left)} {'<=>' if pair.null_safe else '='} {text_of(pair.right)}"
        for pair in node.key_pairs
    )


def canonical_form(node: n.Join, writer: CanonicalWriter) -> list[str]:
    words = [node.how.lower(), node.kind.value]
    for pair in node.key_pairs:
        same = "<=>" if pair.null_safe else "="
        words.append(f"{writer.text(pair.left)}{same}{writer.text(pair.right)}")
    if node.bounds is not None:
        times = f"{writer.columns[node.bounds.left_id]} {writer.columns[node.bounds.right_id]}"
        words.append(f"bounds({times} {node.bounds.lower_us} {node.bounds.upper_us})")
    for name, tree in (("where", node.residual), ("as_of", node.as_of)):
        words += [f"{name}={writer.text(tree)}"] if tree is not None else []
    return [*words, *(["at_close"] if node.at_close else []), *canonical_ttl(node)]


def sql(node: n.Join, writer: SqlWriter) -> str:
    conditions = [part for part in (node.condition, node.match) if part is not None]
    how = {"SEMI": "LEFT SEMI", "ANTI": "LEFT ANTI", "FULL": "FULL OUTER"}.get(node.how, node.how)
    condition = " AND ".join(f"({to_sql(part)})" for part in conditions) or "true"
    columns = [quote_identifier(item.id) for item in node.fields]
    columns += [f"'+I' AS {OP}"] if carries_op(node) else []
    left, right = writer.child(node.left), writer.child(node.right)
    return f"SELECT {', '.join(columns)} FROM {left} {how} JOIN {right} ON {condition}"


# Building


def build(node: n.Join, context: BuildContext) -> BuiltOperator:
    plan = plan_join(node)
    common = common_types(*plan.keys, context.types)
    data_types = tuple(arrow_type(name) for name in common)
    operator = _operator(plan, data_types, context)
    ports = tuple(_port(plan, port, common, context.types) for port in (0, 1))
    return BuiltOperator(operator, ports)


def common_types(left: list[str], right: list[str], types: Types) -> list[str]:
    """Return the type in which Spark compares each pair of values."""
    common = []
    for one_sql, other_sql in zip(left, right, strict=True):
        one, other = types.name(one_sql), types.name(other_sql)
        if one != other and not _comparable(one, other):
            text = f"{one_sql} = {other_sql}: a join of {one} with {other} cannot run yet"
            hint = "CAST one side to the type of the other."
            raise Unrunnable(Rejection(text.replace("`", ""), hint))
        common.append(one if one == other else types.name(_both(one_sql, other_sql)))
    return common


def _comparable(one: str, other: str) -> bool:
    numbers = all(sql_type.split("(")[0] in _NUMBERS for sql_type in (one, other))
    return numbers or all(sql_type.startswith("TIMESTAMP") for sql_type in (one, other))


def _operator(plan: JoinPlan, keys: tuple[pa.DataType, ...], context: BuildContext) -> Operator:
    from tidegate.operators.join.interval import IntervalJoin
    from tidegate.operators.join.regular import RegularJoin
    from tidegate.operators.kernels.join_condition import JoinCondition

    node = plan.node
    columns = (
        tuple(context.types.columns(node.left)),
        tuple(context.types.columns(node.right)),
    )
    safe = tuple(pair.null_safe for pair in plan.pairs)
    matching = JoinCondition(keys, safe, plan.lower_us, plan.upper_us)
    named: dict[str, Any] = {"limits": context.limits, "name": operator_name(node)}
    if not plan.updates:
        assert plan.close_delay_us is not None, "a join with time bounds has a delay"
        join = IntervalJoin(
            matching, columns, node.how, plan.close_delay_us, node.at_close, **named
        )
        return _with_late(join, node) if context.keeps_late else join
    ttl = node.ttl_us if plan.close_delay_us is None else None
    return RegularJoin(
        matching,
        columns,
        node.how,
        any(plan.retracts),
        plan.close_delay_us,
        ttl,
        plan.at_end,
        carries_op(node),
        **named,
    )


def _with_late(join: IntervalJoin, node: n.Join) -> IntervalJoin:
    """Add late rows, which have the columns of their input and the window as the reason."""
    import pyarrow as pa

    from tidegate.operators.late_rows import LateRowFormat

    left, right = (
        LateRowFormat(f"{join.name} ({side})", pa.schema([]), join.columns[port])
        for port, side in enumerate(("left", "right"))
    )
    starts: tuple[str | None, str | None] = (None, None)
    if node.kind is n.JoinKind.WINDOW:
        starts = (_window_start(node.left), _window_start(node.right))
    return replace(join, late_rows=(left, right), starts=starts)


def _window_start(side: n.Node) -> str | None:
    fields = enumerate(side.fields)
    return next((f"c{index}" for index, f in fields if f.role is n.Role.WINDOW_START), None)


def _port(plan: JoinPlan, port: int, common: list[str], types: Types) -> PortSchema:
    from tidegate.columns import STORE_TIME, WEIGHT

    side = plan.node.inputs[port]
    columns = PortColumns()
    if plan.times is not None:
        columns.add(STORE_TIME, plan.times[port])
    keys = [
        key if types.name(key) == sql_type else f"CAST({key} AS {sql_type})"
        for key, sql_type in zip(plan.keys[port], common, strict=True)
    ]
    columns.add_all("k", keys)
    columns.add_all("c", column_sql(side))
    if any(plan.retracts):
        columns.add(WEIGHT, WEIGHT_SQL if plan.retracts[port] else "1L")
    return columns.port(side, hash_columns=columns.keys)


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
