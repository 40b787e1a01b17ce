"""Top-N and the first row of each key: ordering, the time that closes a partition, rejections."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from sqlglot import exp

from tidegate.columns import ARRIVAL_FILE, ARRIVAL_ROW, OP
from tidegate.physical.canonical_form import CanonicalWriter, canonical_ttl
from tidegate.physical.expressions import ordered_by, ordering, text_of
from tidegate.physical.join import closing_sql
from tidegate.physical.operator_kind import BuildContext, BuiltOperator, OperatorKind, Rejection
from tidegate.physical.stage_sql import PortColumns, SqlWriter, carries_op, column_sql
from tidegate.physical.typed import Operands
from tidegate.plan import nodes as n
from tidegate.sql.dialect import to_sql
from tidegate.sql.quoting import quote_identifier

if TYPE_CHECKING:
    import pyarrow as pa

    from tidegate.operators.late_rows import LateRowFormat
    from tidegate.operators.operator import Limits, Operator
    from tidegate.operators.top_n.window import Ranking

# The limit of ORDER BY in a window without LIMIT.
ALL_ROWS = 2**62
_WHOLE = ("TINYINT", "SMALLINT", "INT", "BIGINT")


def limit_of(node: n.TopN) -> int | None:
    """Return the number of rows that each partition emits, if it is constant."""
    if node.limit is None or limit_column(node) is not None:
        return ALL_ROWS
    tree = node.limit.unnest()
    return int(tree.name) if isinstance(tree, exp.Literal) and tree.is_int else None


def limit_column(node: n.TopN) -> int | None:
    """Return the index of the integer column with the limit of each row, if there is one."""
    tree = node.limit.unnest() if node.limit is not None else None
    if not isinstance(tree, exp.Column):
        return None
    names = [item.id for item in node.input.fields]
    sql_types = [(item.type or "").upper() for item in node.input.fields]
    if tree.name not in names or sql_types[names.index(tree.name)] not in _WHOLE:
        return None
    return names.index(tree.name)


def closes_by_window(node: n.TopN) -> bool:
    """Return whether each window is emitted once, when the watermark passes its end."""
    return node.windowed and not carries_op(node.input) and not node.deduplicates


def closes_partitions(node: n.TopN) -> bool:
    """Return whether the watermark finalizes partitions."""
    return closes_by_window(node) or (node.windowed and carries_op(node))


def closing_column(node: n.TopN) -> n.Field:
    """Return the partition column that contains the time when the partition is complete."""
    fields = {item.id: item for item in node.input.fields}
    columns = [fields[part.name] for part in node.partition if isinstance(part, exp.Column)]
    closing = [item for item in columns if item.closed_by_watermark and item.window is not None]
    ends = [item for item in closing if item.role is not n.Role.WINDOW_START]
    return (ends or closing)[0]


def output_watermark_delay_us(node: n.TopN) -> int | None:
    return (
        closing_column(node).output_watermark_delay_us(node.fields)
        if closes_partitions(node)
        else 0
    )


def operands(node: n.TopN) -> Iterator[Operands]:
    partition = [to_sql(part) for part in node.partition]
    yield Operands((node.input,), (*partition, *(ordered_by(o) for o in node.order)))


def rejections(node: n.TopN) -> Iterator[Rejection]:
    limit = limit_of(node)
    if limit is None:
        yield Rejection(
            "the number of rows to keep must be a whole number, or a column of whole numbers",
            "write a number, or compute the number as a column in a subquery.",
        )
    elif limit < 1:
        yield Rejection(
            "this top-N keeps no rows: its limit is below 1", "write a limit of at least 1."
        )
    if output_watermark_delay_us(node) is None:
        yield Rejection(
            "the top rows of sessions that keep another event time cannot run yet",
            "leave that column out.",
        )


def emits_only_at_end(node: n.TopN, has_watermark: bool) -> bool:
    if node.deduplicates:
        return node.at_close and not has_watermark
    return not has_watermark if closes_by_window(node) else not carries_op(node)


def operator_name(node: n.TopN) -> str:
    if node.deduplicates:
        return "deduplicate"
    return "window_top_n" if node.windowed else "top_n"


def describe(node: n.TopN) -> str:
    limit = text_of(node.limit) if node.limit is not None else "all"
    text = f"TopN {limit} by {node.function.lower()}"
    if node.latest:
        text = f"TopN {limit} by arrival, the last first"
    if node.deduplicates:
        text = f"Deduplicate {'when the watermark passes' if node.at_close else 'by arrival'}"
    if node.partition:
        text += f" partition by {', '.join(text_of(part) for part in node.partition)}"
    if node.order:
        text += f" order by {', '.join(text_of(part) for part in node.order)}"
    return text


def canonical_form(node: n.TopN, writer: CanonicalWriter) -> list[str]:
    words = [node.function.lower(), f"by={writer.texts(node.partition)}"]
    words += [f"order={writer.texts(node.order)}", f"limit={writer.text(node.limit)}"]
    words += ["latest"] if node.latest else []
    words += ["ranked"] if node.rank_id is not None else []
    if node.deduplicates:
        words.append("first_at_close" if node.at_close else "first_by_arrival")
    return [*words, *(["windowed"] if node.windowed else []), *canonical_ttl(node)]


def sql(node: n.TopN, writer: SqlWriter) -> str:
    columns = [quote_identifier(item.id) for item in node.input.fields]
    op = [OP if carries_op(node.input) else f"'+I' AS {OP}"] if carries_op(node) else []
    if node.rank_id is None:
        return f"SELECT {', '.join([*columns, *op])} FROM {writer.child(node.input)}"
    partition = ", ".join(to_sql(part) for part in node.partition)
    ordering_sql = ", ".join(to_sql(part) for part in node.order)
    over = f"PARTITION BY {partition} " if partition else ""
    over += f"ORDER BY {ordering_sql or 1}"
    rank = f"{node.function.lower()}() OVER ({over}) AS {quote_identifier(node.rank_id)}"
    return f"SELECT {', '.join([*columns, rank, *op])} FROM {writer.child(node.input)}"


def build(node: n.TopN, context: BuildContext) -> BuiltOperator:
    from tidegate.columns import STORE_TIME
    from tidegate.operators.top_n.window import Ranking

    types = context.types
    columns = PortColumns()
    store_time = _store_time_sql(node)
    if store_time is not None:
        columns.add(STORE_TIME, store_time)
    keys = [to_sql(part) for part in node.partition]
    columns.add_all("k", keys)
    columns.add_all("o", [ordered_by(part) for part in node.order])
    columns.add_all("c", column_sql(node.input))
    if carries_op(node.input):
        columns.add(OP, OP)
    columns.add(ARRIVAL_FILE, ARRIVAL_FILE)
    columns.add(ARRIVAL_ROW, ARRIVAL_ROW)
    data_types = types.all(keys)
    orders = [ordering(part, types) for part in node.order]
    limit = limit_of(node)
    assert limit is not None, "limits that are not constant were rejected before"
    rows = types.columns(node)
    count = len(node.input.fields)
    late = None
    if context.keeps_late:
        late = _late(columns, node, data_types, [item.type for item in orders], rows[:count])
    rank = rows[count] if node.rank_id is not None else None
    ranking = Ranking(
        tuple(data_types),
        tuple(orders),
        tuple(rows[:count]),
        limit,
        node.function,
        rank,
        limit_column=limit_column(node),
        latest=node.latest,
    )
    operator = _operator(node, ranking, late, context.limits)
    port = columns.port(node.input, hash_columns=columns.keys, arrival=True)
    return BuiltOperator(operator, (port,))


def _store_time_sql(node: n.TopN) -> str | None:
    """Return the time that closes a row: the watermark must have passed its event time."""
    if not node.deduplicates:
        time = closing_column(node) if closes_partitions(node) else None
    else:
        time = node.first_by_time if node.at_close else node.closing_key
    if time is None:
        return None
    return closing_sql(time) + (" + 1L" if time.role is n.Role.TIME else "")


def _operator(
    node: n.TopN, ranking: Ranking, late: LateRowFormat | None, limits: Limits
) -> Operator:
    from tidegate.operators.top_n.dedup import Deduplicate
    from tidegate.operators.top_n.updating import UpdatingTopN
    from tidegate.operators.top_n.window import WindowTopN

    start = _start(node) if node.windowed else None
    if node.deduplicates:
        closes = node.closing_key is not None
        return Deduplicate(ranking, node.at_close, closes, node.ttl_us, late, limits, start=start)
    with_op = carries_op(node)
    if closes_by_window(node):
        return WindowTopN(ranking, with_op, late, limits, start=start)
    return UpdatingTopN(
        ranking,
        retracts=carries_op(node.input),
        has_closing_key=closes_partitions(node),
        at_end=not with_op,
        with_op=with_op,
        ttl_us=node.ttl_us,
        late_rows=late,
        limits=limits,
        start=start,
        name=operator_name(node),
    )


def _late(
    columns: PortColumns,
    node: n.TopN,
    keys: list[pa.DataType],
    orders: list[pa.DataType],
    rows: list[pa.DataType],
) -> LateRowFormat:
    """Return late rows unchanged."""
    import pyarrow as pa

    from tidegate.columns import HASH, STORE_TIME
    from tidegate.operators.kernels.ordering import ARRIVAL_FIELDS
    from tidegate.operators.late_rows import LateRowFormat

    needed = [pa.field(STORE_TIME, pa.int64()), pa.field(HASH, pa.int64())]
    for letter, data_types in (("k", keys), ("o", orders), ("c", rows)):
        needed += [
            pa.field(f"{letter}{index}", data_type) for index, data_type in enumerate(data_types)
        ]
    needed += [pa.field(OP, pa.string())] if carries_op(node.input) else []
    needed += ARRIVAL_FIELDS
    columns.add_all("l", column_sql(node.input))
    return LateRowFormat(operator_name(node), pa.schema(needed), tuple(rows))


def _start(node: n.TopN) -> str | None:
    """Return the column with the start of the window that closes a partition."""
    window = closing_column(node).window
    for index, item in enumerate(node.input.fields):
        if item.role is n.Role.WINDOW_START and item.window == window:
            return f"c{index}"
    return None


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
