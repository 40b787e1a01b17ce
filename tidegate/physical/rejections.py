"""Rejects streams that cannot run (TG-501, TG-505), with the location in the query."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tidegate.catalog.objects import SideKind, Stream
from tidegate.errors import Location, RunError, unsupported_error
from tidegate.physical import lookup
from tidegate.physical.canonical_form import canonical_form
from tidegate.physical.operator_kind import Rejection
from tidegate.physical.stage_sql import GENERATORS
from tidegate.physical.stages import (
    Stage,
    all_lookups,
    all_scans,
    all_stateful,
    node_calls_udf,
    plan_stages,
)
from tidegate.plan import nodes as n
from tidegate.sql import expressions as ex
from tidegate.sql.statements import EmitMode
from tidegate.types import Span


@dataclass(frozen=True)
class _Locations:
    """Finds the location of a node; nodes of another stream are located at its name."""

    stream: Stream
    plan: n.Node

    def of(self, node: n.Node, span: Span | None = None) -> Location:
        script = self.stream.script
        at = self._span(node, span) or self.stream.statement.span
        return Location(script.text, at.start, at.end, script.file)

    def _span(self, target: n.Node, span: Span | None) -> Span | None:
        for node in n.walk(self.plan, into_inlined=False):
            if node is target:
                return span or node.span
            if isinstance(node, n.StreamReference) and target in n.walk(node):
                return node.span
        return None


def find_rejections(stream: Stream, plan: n.Emit) -> list[RunError]:
    """Return an error for everything in the plan of a stream that cannot run."""
    locations = _Locations(stream, plan)
    return [
        unsupported_error(rejection.message, rejection.hint, locations.of(node, rejection.span))
        for node, rejection in _rejections(stream, plan_stages(plan))
    ]


def rejection_error(stream: Stream, plan: n.Emit, node: n.Node, rejection: Rejection) -> RunError:
    """Return the error for a node that cannot run with its types."""
    return unsupported_error(
        rejection.message, rejection.hint, _Locations(stream, plan).of(node, rejection.span)
    )


def _rejections(stream: Stream, stage: Stage) -> Iterator[tuple[n.Node, Rejection]]:
    yield from _looked_up_twice(stage)
    yield from _dead_letter_readers(stage)
    for lookup_node in all_lookups(stage):
        for rejection in lookup.rejections(lookup_node.node):
            yield lookup_node.node, rejection
        yield from _of_stage(lookup_node.node.left)
    for leaf in all_stateful(stage):
        for rejection in leaf.kind.rejections(leaf.node):
            yield leaf.node, rejection
        for child in leaf.inputs:
            yield from _of_stage(child.node)
    filters_failed_rows = stream.on_error == "dead_letter"
    if filters_failed_rows:
        yield from _unattributable_failures(stage)
    emit = stream.query.emit
    if filters_failed_rows or (emit is not None and emit.late_to is not None):
        yield from _of_stage(stage.node)
    if emit is None or emit.mode is not EmitMode.EVERY:
        return
    for leaf in stage.stateful:
        if not leaf.kind.supports_emit_every:
            yield (
                stage.node,
                Rejection(
                    f"EMIT EVERY over the operator {leaf.name} cannot run yet",
                    "use EMIT ON UPDATE, which emits the changes of each epoch.",
                    emit.span,
                ),
            )


def _unattributable_failures(stage: Stage) -> Iterator[tuple[n.Node, Rejection]]:
    """Reject expressions whose failures cannot be attributed to single rows."""
    for node in n.walk(stage.node):
        what = None
        if isinstance(node, n.Match):
            what = "MATCH_RECOGNIZE"
        elif node_calls_udf(node):
            what = "a Python function"
        elif isinstance(node, n.Join) and isinstance(node.right, n.LookupScan):
            what = (
                "a lookup join with a condition other than its keys"
                if lookup.residual_conditions(node)
                else None
            )
        if what is not None:
            yield (
                node,
                Rejection(
                    f"{what} in a stream with on_error = 'dead_letter' cannot run yet",
                    "leave on_error out, and use TRY_CAST and NULLIF where values may fail.",
                ),
            )


def _dead_letter_readers(stage: Stage) -> Iterator[tuple[n.Node, Rejection]]:
    """Reject readers of the dead letters of a stream."""
    for scan in all_scans(stage):
        if isinstance(scan, n.SideScan) and scan.side.side_kind is SideKind.FAILED_ROWS:
            yield (
                scan,
                Rejection(
                    f"a stream that reads {scan.side.name}, the dead letters of the stream "
                    f"{scan.side.parent}, cannot run yet",
                    f"write them to a sink: CREATE SINK letters FROM {scan.side.name} WITH (…).",
                ),
            )


def _looked_up_twice(stage: Stage) -> Iterator[tuple[n.Node, Rejection]]:
    """Reject lookups that a query reads twice, because both reads may give different rows."""
    lookups: set[str] = set()
    for lookup_node in all_lookups(stage):
        table = lookup_node.node.right
        if not isinstance(table, n.LookupScan) or table.table.consistent_in_epoch:
            continue
        form = canonical_form(lookup_node.node)
        if form in lookups:
            yield (
                lookup_node.node,
                Rejection(
                    f"this query reads the result of the lookup in {table.table.name} twice, and "
                    f"{table.table.name} may return different rows each time",
                    "look up after the join, union or subquery that reads the rows twice, or use a "
                    "lookup table on files, which returns the same rows within an epoch.",
                ),
            )
        lookups.add(form)


def _of_stage(node: n.Node) -> Iterator[tuple[n.Node, Rejection]]:
    """Reject expressions that a stage below an operator cannot compute."""
    if not node.stateless:
        return
    if isinstance(node, n.Explode):
        name = ex.call_name(node.generator) or ""
        if name not in GENERATORS:
            names = ", ".join(sorted(item.lower() for item in GENERATORS))
            yield (
                node,
                Rejection(
                    f"{name.lower()} in the input of a join or an aggregate cannot run yet",
                    f"use {names}.",
                ),
            )
    for child in node.inputs:
        yield from _of_stage(child)


def require_end(stream: Stream, plan: n.Emit) -> None:
    """Reject a stream that only emits at the end of its input, if the run does not reach it."""
    for leaf in all_stateful(plan_stages(plan)):
        node = leaf.node
        watermark = all(child.has_watermark for child in node.inputs)
        if not leaf.kind.emits_only_at_end(node, watermark):
            continue
        other = "declare a WATERMARK in its sources"
        if isinstance(node, n.Aggregate):
            other = "end the statement with EMIT CHANGES"
        raise RunError(
            "TG-505",
            f"stream {stream.name} emits rows only at the end of its input, and this run does not "
            "have an end",
            location=_Locations(stream, plan).of(node),
            hint=f"run it with --until-end (Python: db.start(until_end=True)); or {other}.",
        )
