"""EMIT ON WINDOW CLOSE without an aggregate: rows wait until the watermark has passed them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tidegate.columns import OP
from tidegate.physical.kind import Built, OperatorKind, Request
from tidegate.physical.ports import Columns, column_sql
from tidegate.physical.refusal import Refusal
from tidegate.physical.stage_sql import carries_op, micros, quoted
from tidegate.physical.times import behind_us
from tidegate.plan import nodes as n

if TYPE_CHECKING:
    pass


def refusals(node: n.Hold) -> Iterator[Refusal]:
    if _behind_us(node) is None:
        yield Refusal(
            "rows of sessions that keep another event time cannot wait for their end yet",
            "leave that column out of it.",
        )


def _behind_us(node: n.Hold) -> int | None:
    return behind_us(node.fields, node.field(node.end_id))


def waits_for_end(node: n.Hold, has_watermark: bool) -> bool:
    return not has_watermark


def operator_name(node: n.Hold) -> str:
    return "hold_until_close"


def describe(node: n.Hold) -> str:
    if node.spec is None:
        return f"Hold until the watermark passes {node.field(node.end_id).name}"
    return f"Hold until {node.spec} closes"


def build(node: n.Hold, request: Request) -> Built:
    import pyarrow as pa

    from tidegate.operators.group_kernels import PANE
    from tidegate.operators.hold import Hold, spread_by
    from tidegate.operators.late import LateRows

    columns = Columns()
    end = micros(quoted(node.end_id))
    # A row without a window may go when the watermark is behind its own time.
    waits = node.field(node.end_id).role is n.Role.TIME
    columns.add(PANE, f"{end} + 1L" if waits else end)
    names = column_sql(node)
    columns.add_all("c", names)
    with_op = carries_op(node.input)
    if with_op:
        columns.add(OP, OP)
    kinds = request.types.columns(node.input)
    fields = [pa.field(f"c{index}", kind) for index, kind in enumerate(kinds)]
    output = pa.schema([*fields, pa.field(OP, pa.string())] if with_op else fields)
    # A late stream has the columns that rows had before windows were put on them.
    window = node.input if isinstance(node.input, n.Window) else None
    original = len(window.input.fields) if window is not None else len(names)
    late = None
    if request.keeps_late:
        late = LateRows(operator_name(node), output, tuple(output.types[:original]))
    start = f"c{len(names) - 3}" if window is not None else None
    operator = Hold(output, start=start, late_rows=late, limits=request.limits)
    port = columns.port(node.input, hashed=spread_by(output))
    return Built(operator, (port,), held_back_us=_behind_us(node) or 0)


KIND = OperatorKind(operator_name, describe, build, refusals=refusals, waits_for_end=waits_for_end)
