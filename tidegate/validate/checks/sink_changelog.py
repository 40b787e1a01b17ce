"""A sink that only appends would show rows that were retracted: such a pair is refused."""

from __future__ import annotations

from tidegate.catalog.connector import SinkSpec
from tidegate.catalog.objects import Sink
from tidegate.errors import Place, ValidationError
from tidegate.plan import nodes as n
from tidegate.types import ChangelogKind
from tidegate.validate.finding import plan_path

_WHAT = {
    ChangelogKind.APPEND: "appends rows",
    ChangelogKind.UPSERT: "replaces rows by key (an upsert stream)",
    ChangelogKind.CHANGELOG: "retracts rows (a changelog)",
}


def sink_changelog(sink: Sink, spec: SinkSpec, plan: n.Node) -> ValidationError | None:
    """The finding for a sink and the stream it writes, if they do not fit."""
    kind = plan.changelog
    accepts = spec.accepts(sink.options)
    if kind in accepts:
        return _without_key(sink, spec, plan)
    able = " or ".join(sorted(item.value for item in accepts))
    span = sink.statement.span
    where = getattr(sink.statement, "source_span", span)
    return ValidationError(
        "TG-413",
        f"the stream {sink.source} {_WHAT[kind]}, but the sink {sink.name} can only take {able} "
        "streams",
        place=Place(sink.origin.text, where.start, where.end, sink.origin.file),
        hint=(spec.changelog_hint or "let the stream EMIT ON WINDOW CLOSE."),
        path=plan_path(plan),
    )


def _without_key(sink: Sink, spec: SinkSpec, plan: n.Node) -> ValidationError | None:
    """The finding for a sink that cannot tell which row is replaced or retracted."""
    if not spec.needs_key or plan.changelog is ChangelogKind.APPEND or plan.key:
        return None
    span = sink.statement.span
    where = getattr(sink.statement, "source_span", span)
    return ValidationError(
        "TG-413",
        f"the stream {sink.source} {_WHAT[plan.changelog]}, and no columns of it tell its rows "
        f"apart, so the sink {sink.name} cannot know which row to change",
        place=Place(sink.origin.text, where.start, where.end, sink.origin.file),
        hint="let the stream group by columns and select them all, or EMIT ON WINDOW CLOSE.",
        path=plan_path(plan),
    )
