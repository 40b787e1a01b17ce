"""SELECT DISTINCT: a GROUP BY of all columns without aggregates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from sqlglot import exp

from tidegate.physical import aggregate
from tidegate.physical.canonical_form import CanonicalWriter, canonical_ttl
from tidegate.physical.expressions import names_of
from tidegate.physical.operator_kind import BuildContext, BuiltOperator, OperatorKind, Rejection
from tidegate.physical.stage_sql import SqlWriter, carries_op
from tidegate.physical.typed import Operands
from tidegate.plan import nodes as n
from tidegate.sql.statements import EmitClause, EmitMode
from tidegate.types import Span


def as_aggregate(node: n.Distinct) -> n.Aggregate:
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
        emit=EmitClause(mode, node.span or Span(0, 0)),
        ttl_us=node.ttl_us,
        span=node.span,
    )


def operands(node: n.Distinct) -> Iterator[Operands]:
    yield from aggregate.operands(as_aggregate(node))


def rejections(node: n.Distinct) -> Iterator[Rejection]:
    if output_watermark_delay_us(node) is None:
        yield Rejection(
            "DISTINCT over rows of sessions that keep another event time cannot run yet",
            "leave that column out of it.",
        )


def output_watermark_delay_us(node: n.Distinct) -> int | None:
    return aggregate.output_watermark_delay_us(as_aggregate(node))


def emits_only_at_end(node: n.Distinct, has_watermark: bool) -> bool:
    return node.at_close and not has_watermark


def operator_name(node: n.Distinct) -> str:
    return "distinct"


def describe(node: n.Distinct) -> str:
    return f"Distinct {names_of(node.fields)}"


def canonical_form(node: n.Distinct, writer: CanonicalWriter) -> list[str]:
    return [*(["at_close"] if node.at_close else []), *canonical_ttl(node)]


def sql(node: n.Distinct, writer: SqlWriter) -> str:
    return f"SELECT DISTINCT {', '.join(writer.ids(node))} FROM {writer.child(node.input)}"


def build(node: n.Distinct, context: BuildContext) -> BuiltOperator:
    plan = aggregate.plan_aggregate(as_aggregate(node))
    return aggregate.build_groups(plan, context, operator_name(node), carries_op(node))


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
