"""Top-N from plan nodes."""

from __future__ import annotations

import pyarrow as pa
from sqlglot import exp

from tidegate.columns import ARRIVAL_FILE, ARRIVAL_ROW, OP
from tidegate.operators.group_kernels import HASH, PANE
from tidegate.operators.late import LateRows
from tidegate.operators.limits import Limits
from tidegate.operators.ordering import Ordering
from tidegate.operators.top_n import TopN
from tidegate.physical.aggregates import in_words
from tidegate.physical.joins import closing_sql
from tidegate.physical.ranks import closes_by_window, closing_column, limit_of, top_n_behind_us
from tidegate.physical.stage_sql import carries_op, quoted
from tidegate.plan import nodes as n
from tidegate.spark.ports import Built, Columns, Types, hash_columns
from tidegate.sql.dialect import to_sql


def build_top_n(node: n.TopN, types: Types, limits: Limits, keeps_late: bool) -> Built:
    """The operator of a top-N, and what feeds it."""
    columns = Columns()
    windowed, retracts = closes_by_window(node), carries_op(node.input)
    if windowed:
        columns.add(PANE, closing_sql(closing_column(node)))
    keys = [to_sql(part) for part in node.partition]
    for index, key in enumerate(keys):
        columns.add(f"k{index}", key)
    ordered = [_ordered(part) for part in node.order]
    for index, (tree, _, _) in enumerate(ordered):
        columns.add(f"o{index}", to_sql(tree))
    for index, item in enumerate(node.input.fields):
        columns.add(f"c{index}", quoted(item.id))
    if retracts:
        columns.add(OP, OP)
    columns.add(ARRIVAL_FILE, ARRIVAL_FILE)
    columns.add(ARRIVAL_ROW, ARRIVAL_ROW)
    kinds = types.of(node.input, keys)
    orders = types.of(node.input, [to_sql(tree) for tree, _, _ in ordered])
    limit = limit_of(node)
    assert limit is not None, "it was checked before anything started"
    rows = types.columns(node)
    count = len(node.input.fields)
    late = _late(columns, node, kinds, orders, rows[:count]) if keeps_late else None
    operator = TopN(
        tuple(kinds),
        tuple(_ordering(kind, o) for kind, o in zip(orders, ordered, strict=True)),
        tuple(rows[:count]),
        limit,
        node.function,
        rows[count] if node.rank_id is not None else None,
        retracts,
        windowed,
        with_op=carries_op(node),
        at_end=not windowed and not carries_op(node),
        ttl_us=None if windowed else node.ttl_us,
        late_rows=late,
        start=_start(node) if windowed else None,
        limits=limits,
        meaning=_meaning(node),
        name="window_top_n" if node.windowed else "top_n",
    )
    hashed = hash_columns(columns, keys, kinds)
    port = columns.port(node.input, hashed=hashed, arrival=True)
    return Built(operator, (port,), held_back_us=top_n_behind_us(node) or 0)


def _late(
    columns: Columns,
    node: n.TopN,
    keys: list[pa.DataType],
    orders: list[pa.DataType],
    rows: list[pa.DataType],
) -> LateRows:
    """What comes too late is kept as it was."""
    needed = [pa.field(PANE, pa.int64()), pa.field(HASH, pa.int64())]
    for letter, kinds in (("k", keys), ("o", orders), ("c", rows)):
        needed += [pa.field(f"{letter}{index}", kind) for index, kind in enumerate(kinds)]
    needed += [pa.field(ARRIVAL_FILE, pa.string()), pa.field(ARRIVAL_ROW, pa.int64())]
    for index, item in enumerate(node.input.fields):
        columns.add(f"l{index}", quoted(item.id))
    return LateRows("window_top_n", pa.schema(needed), tuple(rows))


def _start(node: n.TopN) -> str | None:
    """The column with the start of the window that closes a partition."""
    window = closing_column(node).window
    for index, item in enumerate(node.input.fields):
        if item.role is n.Role.WINDOW_START and item.window == window:
            return f"c{index}"
    return None


def _ordered(tree: exp.Expr) -> tuple[exp.Expr, bool, bool]:
    """What is ordered by, whether downwards, and whether NULLs come first."""
    if not isinstance(tree, exp.Ordered):
        return tree, False, True
    descending = bool(tree.args.get("desc"))
    first = tree.args.get("nulls_first")
    return tree.this, descending, (not descending if first is None else bool(first))


def _ordering(kind: pa.DataType, ordered: tuple[exp.Expr, bool, bool]) -> Ordering:
    _, descending, nulls_first = ordered
    return Ordering(kind, descending, nulls_first)


def _meaning(node: n.TopN) -> tuple[str, ...]:
    words = [in_words(part, node.input) for part in (*node.partition, *node.order)]
    return (*words, *(item.name for item in node.fields))
