"""Refuses what cannot run, at its place in the query, before anything is started."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.catalog.objects import Stream
from tidegate.errors import Place, RunError
from tidegate.operators.accumulators import FUNCTIONS
from tidegate.physical.aggregates import as_aggregate, plan_call
from tidegate.physical.joins import join_refusal, waits_for_end
from tidegate.physical.planner import (
    BUILT_OPERATORS,
    Operator,
    Stage,
    all_operators,
    all_scans,
    plan_stages,
)
from tidegate.physical.ranks import closes_by_window, top_n_refusal
from tidegate.physical.stage_sql import carries_op
from tidegate.physical.times import aggregate_behind_us, behind_us
from tidegate.plan import nodes as n
from tidegate.plan.properties import properties
from tidegate.sql.dialect import own_span
from tidegate.sql.statements import EmitMode
from tidegate.types import Span

_EARLY = (EmitMode.UPDATE, EmitMode.CHANGES, EmitMode.EVERY)


@dataclass(frozen=True)
class _Places:
    """Where the nodes of a stream stand in its SQL; those of a stream it reads, at its name."""

    stream: Stream

    def of(self, node: n.Node, span: Span | None = None) -> Place:
        origin = self.stream.origin
        at = self._span(self.stream.plan, node, span) or self.stream.statement.span
        return Place(origin.text, at.start, at.end, origin.file)

    def _span(self, plan: n.Node, wanted: n.Node, span: Span | None) -> Span | None:
        for node in n.walk(plan, into_inlined=False):
            if node is wanted:
                return span or node.span
            if isinstance(node, n.Inlined) and wanted in n.walk(node):
                return node.span
        return None


def check_runnable(stream: Stream) -> None:
    """Refuse a stream whose plan needs what is not built."""
    stage = plan_stages(stream.plan)
    places = _Places(stream)
    for operator in all_operators(stage):
        _require_built(operator, stream.name, places)
    _require_every(stream, stage, places)
    for scan in all_scans(stage):
        if isinstance(scan, n.SideScan) and scan.side.reason == "late rows":
            raise RunError(
                "TG-501",
                f"the late rows of {scan.side.parent} cannot be read by another stream yet",
                hint=f"put a sink on it: CREATE SINK late FROM {scan.side.name} WITH (…).",
            )
    for operator in all_operators(stage):
        if isinstance(operator.node, n.Aggregate):
            _require_sessions(operator.node, places)
            _require_functions(operator.node, places)
        _require_times(operator.node, places)


def _require_built(operator: Operator, stream: str, places: _Places) -> None:
    if operator.name in BUILT_OPERATORS:
        return
    raise RunError(
        "TG-501",
        f"the stream {stream} needs the operator {operator.name}, which this version cannot run "
        "yet",
        place=places.of(operator.node),
        hint="tidegate check and tidegate explain work on it; projections, filters, UNION ALL, "
        "LATERAL VIEW, windows, aggregates, DISTINCT, top-N, interval, window and regular joins "
        "run.",
    )


def _require_every(stream: Stream, stage: Stage, places: _Places) -> None:
    """Only aggregates hold their changes back."""
    emit = stream.query.emit
    if emit is None or emit.mode is not EmitMode.EVERY:
        return
    for operator in stage.operators:
        if not isinstance(operator.node, n.Aggregate):
            raise RunError(
                "TG-501",
                f"EMIT EVERY over the operator {operator.name} cannot run yet",
                place=places.of(stream.plan, emit.span),
                hint="use EMIT ON UPDATE, which gives out what changed in each epoch.",
            )


def _require_sessions(node: n.Aggregate, places: _Places) -> None:
    if not node.makes_sessions:
        return
    if carries_op(node.input):
        raise RunError(
            "TG-501",
            "sessions of rows that are taken back cannot run yet",
            place=places.of(node),
            hint="use TUMBLE or HOP, or make sessions of a stream that only adds rows.",
        )
    if node.emit is not None and node.emit.mode is EmitMode.EVERY:
        raise RunError(
            "TG-501",
            "EMIT EVERY of sessions cannot run yet",
            place=places.of(node, node.emit.span),
            hint="use EMIT ON UPDATE, which gives out what changed in each epoch.",
        )


def _require_times(node: n.Node, places: _Places) -> None:
    """Refuse joins that no operator runs, and rows whose times come out too late for others."""
    refusal = join_refusal(node) if isinstance(node, n.Join) else None
    if isinstance(node, n.TopN):
        refusal = top_n_refusal(node)
    behind: int | None = 0
    if isinstance(node, n.Aggregate | n.Distinct):
        behind = aggregate_behind_us(node if isinstance(node, n.Aggregate) else as_aggregate(node))
    elif isinstance(node, n.Hold):
        behind = behind_us(node.fields, node.field(node.end_id))
    if behind is None:
        refusal = (
            "sessions of rows that keep another event time cannot run yet",
            f"leave that column out of {'GROUP BY' if isinstance(node, n.Aggregate) else 'it'}.",
        )
    if refusal is not None:
        message, hint = refusal
        raise RunError("TG-501", message, place=places.of(node), hint=hint)


def _require_functions(node: n.Aggregate, places: _Places) -> None:
    for call in node.aggregates:
        planned = plan_call(call)
        if planned.function not in FUNCTIONS:
            raise RunError(
                "TG-501",
                f"the aggregate {planned.function} cannot run on streams yet",
                place=places.of(node, own_span(call)),
                hint=f"aggregates that run: {', '.join(sorted(FUNCTIONS))}.",
            )


def require_end(stream: Stream) -> None:
    """Refuse a stream that says nothing before its input ends, if that is not waited for."""
    for operator in all_operators(plan_stages(stream.plan)):
        node = operator.node
        if not _waits_for_end(node):
            continue
        other = "give its sources a WATERMARK"
        if isinstance(node, n.Aggregate):
            other = "end the statement with EMIT CHANGES or EMIT ON UPDATE"
        raise RunError(
            "TG-505",
            f"the stream {stream.name} gives out nothing before its input ends, and this run does "
            "not wait for that",
            place=_Places(stream).of(node),
            hint=f"run it with --until-end (in Python start(until_end=True)), or {other}.",
        )


def _waits_for_end(node: n.Node) -> bool:
    """Whether neither an epoch nor the watermark makes a node give something out."""
    watermark = all(properties(child).has_watermark for child in node.inputs)
    if isinstance(node, n.Hold):
        return not watermark
    if isinstance(node, n.Distinct):
        return node.at_close and not watermark
    if isinstance(node, n.TopN):
        return not watermark if closes_by_window(node) else not carries_op(node)
    if isinstance(node, n.Join):
        return waits_for_end(node, watermark)
    if not isinstance(node, n.Aggregate):
        return False
    if node.emit is not None and node.emit.mode in _EARLY:
        return False
    clock = node.window is not None and node.window.processing_time
    return not node.windowed or not (clock or properties(node.input).has_watermark)
