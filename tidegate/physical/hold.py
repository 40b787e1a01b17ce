"""EMIT ON WINDOW CLOSE without an aggregate: rows wait for the watermark."""

from __future__ import annotations

from collections.abc import Iterator

from tidegate.columns import OP
from tidegate.physical.canonical_form import CanonicalWriter, canonical_window
from tidegate.physical.operator_kind import BuildContext, BuiltOperator, OperatorKind, Rejection
from tidegate.physical.stage_sql import (
    PortColumns,
    SqlWriter,
    carries_op,
    column_sql,
    unix_micros_sql,
)
from tidegate.plan import nodes as n
from tidegate.sql.quoting import quote_identifier


def rejections(node: n.Hold) -> Iterator[Rejection]:
    if output_watermark_delay_us(node) is None:
        yield Rejection(
            "rows of sessions that keep another event time cannot wait for their end yet",
            "leave that column out of it.",
        )


def output_watermark_delay_us(node: n.Hold) -> int | None:
    return node.field(node.end_id).output_watermark_delay_us(node.fields)


def emits_only_at_end(node: n.Hold, has_watermark: bool) -> bool:
    return not has_watermark


def operator_name(node: n.Hold) -> str:
    return "hold_until_close"


def describe(node: n.Hold) -> str:
    if node.spec is None:
        return f"Hold until the watermark passes {node.field(node.end_id).name}"
    return f"Hold until {node.spec} closes"


def canonical_form(node: n.Hold, writer: CanonicalWriter) -> list[str]:
    return [writer.columns[node.end_id], *([canonical_window(node.spec)] if node.spec else [])]


def sql(node: n.Hold, writer: SqlWriter) -> str:
    return writer.write(node.input)


def build(node: n.Hold, context: BuildContext) -> BuiltOperator:
    import pyarrow as pa

    from tidegate.columns import STORE_TIME
    from tidegate.operators.hold import HoldOperator, hash_columns
    from tidegate.operators.late_rows import LateRowFormat

    columns = PortColumns()
    end = unix_micros_sql(quote_identifier(node.end_id))
    # A row without a window is emitted when the watermark passes its event time.
    waits = node.field(node.end_id).role is n.Role.TIME
    columns.add(STORE_TIME, f"{end} + 1L" if waits else end)
    names = column_sql(node)
    columns.add_all("c", names)
    with_op = carries_op(node.input)
    if with_op:
        columns.add(OP, OP)
    data_types = context.types.columns(node.input)
    fields = [pa.field(f"c{index}", data_type) for index, data_type in enumerate(data_types)]
    output = pa.schema([*fields, pa.field(OP, pa.string())] if with_op else fields)
    # A late stream has the columns of rows before windows were assigned.
    window = node.input if isinstance(node.input, n.Window) else None
    original = len(window.input.fields) if window is not None else len(names)
    late = None
    if context.keeps_late:
        late = LateRowFormat(operator_name(node), output, tuple(output.types[:original]))
    start = f"c{len(names) - 3}" if window is not None else None
    operator = HoldOperator(output, start=start, late_rows=late, limits=context.limits)
    port = columns.port(node.input, hash_columns=hash_columns(output))
    return BuiltOperator(operator, (port,))


KIND = OperatorKind(
    name=operator_name,
    describe=describe,
    build=build,
    canonical_form=canonical_form,
    sql=sql,
    rejections=rejections,
    output_watermark_delay_us=output_watermark_delay_us,
    emits_only_at_end=emits_only_at_end,
)
