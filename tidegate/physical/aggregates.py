"""What an aggregate asks of its input: SQL for the pane, the keys and the arguments of a row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from sqlglot import exp

from tidegate.columns import OP
from tidegate.errors import RunError
from tidegate.operators.accumulators import constants_from
from tidegate.operators.panes import Grid, Panes
from tidegate.physical.stage_sql import carries_op, quoted
from tidegate.plan import nodes as n
from tidegate.sql import expressions as ex
from tidegate.sql.dialect import to_sql
from tidegate.sql.statements import Emit, EmitMode
from tidegate.types import Span

NOW = "unix_micros(current_timestamp())"


# 1 for a row that is added, −1 for one that is taken back.
WEIGHT_SQL = f"CASE WHEN {OP} IN ('+I', '+U') THEN 1L ELSE -1L END"


@dataclass(frozen=True)
class CallPlan:
    """One aggregate: its function, the SQL of its arguments, and its constants."""

    function: str
    text: str
    arguments: tuple[str, ...]
    constants: tuple[Any, ...]
    distinct: bool
    filter: str | None


@dataclass(frozen=True)
class Output:
    """Where a field of the aggregate comes from: a key, or a time of the window."""

    kind: str
    index: int


@dataclass(frozen=True, eq=False)
class AggregatePlan:
    """An aggregate in terms of its operator.

    `input` is the node whose rows it reads: windows that are made of panes are not applied below.
    """

    node: n.Aggregate
    input: n.Node
    panes: Panes | None
    session_gap_us: int | None
    processing_time: bool
    # The time of a row in microseconds, and the grid that makes a pane of it; None without windows.
    time: str | None
    grid: Grid | None
    keys: tuple[str, ...]
    outputs: tuple[Output, ...]
    calls: tuple[CallPlan, ...]

    @property
    def time_id(self) -> str | None:
        """The column that is the time of a row, if it is one as it stands."""
        window = self.node.input
        if not isinstance(window, n.Window) or not window.grouped or self.processing_time:
            return None
        return window.time_id

    @property
    def meaning(self) -> tuple[str, ...]:
        """The keys and the time in the words of the query."""
        below = self.node.input
        words = [in_words(key, below) for key in self.node.keys]
        time = in_words(below.time, below.input) if isinstance(below, n.Window) else ""
        return (*words, time)

    @property
    def retracts(self) -> bool:
        return carries_op(self.input)


def plan_aggregate(node: n.Aggregate) -> AggregatePlan:
    """Cut an aggregate into panes, keys and calls."""
    below = node.input
    calls = tuple(replace(plan_call(call), text=in_words(call, below)) for call in node.aggregates)
    if isinstance(below, n.Window) and below.grouped:
        return _windowed(node, below, calls)
    return _closed_by_key(node, calls)


def as_aggregate(node: n.Distinct) -> n.Aggregate:
    """DISTINCT is a GROUP BY of all columns that says of each group only that it is there."""
    fields = node.fields
    if not node.timed:
        fields = tuple(replace(item, role=n.Role.PLAIN, window=None) for item in fields)
    mode = EmitMode.WINDOW_CLOSE if node.at_close and node.timed else EmitMode.CHANGES
    keys = tuple(exp.column(exp.to_identifier(item.id, quoted=True)) for item in fields)
    return n.Aggregate(
        fields,
        input=node.input,
        keys=keys,
        aggregates=(),
        window=None,
        emit=Emit(mode, node.span or Span(0, 0)),
        ttl_us=node.ttl_us,
        span=node.span,
    )


def in_words(tree: exp.Expr, node: n.Node) -> str:
    """An expression with the names that the query gives to the columns of a node."""
    names = {item.id: item.name for item in node.fields}

    def named(part: exp.Expr) -> exp.Expr:
        if isinstance(part, exp.Column) and part.name in names:
            return exp.column(exp.to_identifier(names[part.name], quoted=True))
        return part

    return to_sql(tree.copy().transform(named)).replace("`", "")


def _windowed(node: n.Aggregate, window: n.Window, calls: tuple[CallPlan, ...]) -> AggregatePlan:
    spec = window.spec
    time = NOW if spec.processing_time else _micros(to_sql(window.time))
    names = [item.id for item in window.fields[-3:]]
    derived = _window_columns(spec, names)
    panes, gap = _panes(spec)
    grid = Grid(panes.width_us, spec.offset_us) if gap is None else None
    keys, outputs = _keys(node, derived)
    return AggregatePlan(
        node, window.input, panes, gap, spec.processing_time, time, grid, keys, outputs, calls
    )


def _panes(spec: n.WindowSpec) -> tuple[Panes, int | None]:
    if spec.kind is n.WindowKind.SESSION:
        return Panes("DUE"), spec.size_us
    return Panes(spec.kind.value, spec.size_us, spec.slide_us, spec.offset_us), None


def _window_columns(spec: n.WindowSpec, names: list[str]) -> dict[str, Output]:
    start, end, time = names
    fixed = spec.kind in (n.WindowKind.TUMBLE, n.WindowKind.HOP)
    return {
        start: Output("due", -spec.size_us) if fixed else Output("start", 0),
        end: Output("due", 0),
        time: Output("due", -1),
    }


def _closed_by_key(node: n.Aggregate, calls: tuple[CallPlan, ...]) -> AggregatePlan:
    """Groups that the watermark closes because one of their keys tells when; or never."""
    found = _closing_key(node)
    if found is None:
        keys, outputs = _keys(node, {})
        return AggregatePlan(node, node.input, None, None, False, None, None, keys, outputs, calls)
    item, delta = found
    tree = node.keys[node.key_fields.index(item)]
    pane = f"{_micros(to_sql(tree))} + {delta}L" if delta else _micros(to_sql(tree))
    keys, outputs = _keys(node, {item.id: Output("due", -delta)})
    clock = item.window is not None and item.window.processing_time
    return AggregatePlan(
        node, node.input, Panes("DUE"), None, clock, pane, None, keys, outputs, calls
    )


def _closing_key(node: n.Aggregate) -> tuple[n.Field, int] | None:
    """The key that closes groups, and how long after its value the watermark does it."""
    best: tuple[n.Field, int] | None = None
    for item in node.key_fields:
        if not item.closes:
            continue
        if item.role is n.Role.WINDOW_END:
            return item, 0
        if item.role is n.Role.TIME:
            best = (item, 1)
        elif best is None and item.window is not None:
            best = (item, item.window.size_us)
    return best


def _keys(
    node: n.Aggregate, derived: dict[str, Output]
) -> tuple[tuple[str, ...], tuple[Output, ...]]:
    keys: list[str] = []
    outputs: list[Output] = []
    for item, tree in zip(node.key_fields, node.keys, strict=True):
        known = derived.get(item.id)
        if known is None:
            known = Output("key", len(keys))
            keys.append(to_sql(tree))
        outputs.append(known)
    outputs += [Output("result", index) for index, _ in enumerate(node.aggregates)]
    return tuple(keys), tuple(outputs)


def _micros(time: str) -> str:
    return f"unix_micros(CAST({time} AS TIMESTAMP))"


def plan_call(tree: exp.Expr) -> CallPlan:
    """Take an aggregate call apart."""
    text = to_sql(tree).replace("`", "")
    condition: str | None = None
    constants: list[Any] = []
    while isinstance(tree, exp.Filter | exp.IgnoreNulls | exp.RespectNulls | exp.WithinGroup):
        if isinstance(tree, exp.WithinGroup):
            raise _unsupported(text, "WITHIN GROUP")
        if isinstance(tree, exp.Filter):
            condition = to_sql(tree.expression.this)
        elif isinstance(tree, exp.IgnoreNulls | exp.RespectNulls):
            constants.append(isinstance(tree, exp.IgnoreNulls))
        tree = tree.this
    name = ex.call_name(tree)
    assert name is not None, f"{text} is a call"
    parts = list(tree.expressions)
    distinct = bool(parts) and isinstance(parts[0], exp.Distinct)
    if distinct:
        parts = list(parts[0].expressions)
    first_constant = constants_from(name.lower())
    arguments = []
    for place, part in enumerate(parts):
        if isinstance(part, exp.Star):
            continue
        known, value = _constant(part)
        if first_constant is None or place < first_constant:
            arguments.append(to_sql(part))
        elif known:
            constants.append(value)
        else:
            raise _unsupported(text, f"{to_sql(part)} is not a constant, and such a call")
    if name == "COUNT" and len(parts) == 1 and arguments and _constant(parts[0])[0]:
        # count(1) counts rows; count(NULL) counts none and is left as it is.
        arguments = [] if _constant(parts[0])[1] is not None and not distinct else arguments
    return CallPlan(name.lower(), text, tuple(arguments), tuple(constants), distinct, condition)


def _constant(tree: exp.Expr) -> tuple[bool, Any]:
    """Whether an expression is a literal (or an array of them), and its value."""
    tree = tree.unnest()
    if isinstance(tree, exp.Literal):
        if tree.is_string:
            return True, tree.name
        return True, int(tree.name) if tree.is_int else float(tree.name)
    if isinstance(tree, exp.Boolean):
        return True, bool(tree.this)
    if isinstance(tree, exp.Neg):
        known, value = _constant(tree.this)
        return (True, -value) if known and isinstance(value, int | float) else (False, None)
    if isinstance(tree, exp.Null):
        return True, None
    if ex.call_name(tree) == "ARRAY":
        values = [_constant(part) for part in tree.expressions]
        return all(known for known, _ in values), tuple(value for _, value in values)
    return False, None


def _unsupported(text: str, what: str) -> RunError:
    return RunError("TG-501", f"{text}: {what} cannot run on streams yet")


def columns_of(node: n.Node) -> Iterator[str]:
    """The columns of a node, quoted."""
    for item in node.fields:
        yield quoted(item.id)
