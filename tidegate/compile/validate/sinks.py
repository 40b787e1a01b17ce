"""Checks of sinks: their stream, its changelog kind, and their options."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tidegate.catalog.connector import SinkSpec
from tidegate.catalog.objects import (
    Declared,
    Function,
    LookupTable,
    SideStream,
    Sink,
    Source,
    Stream,
)
from tidegate.catalog.options import OptionType
from tidegate.compile.validate.finding import hidden_key, plan_path, window_hint
from tidegate.compile.validate.validator import ValidatorMode
from tidegate.errors import CatalogError, Location, TidegateError, ValidationError, did_you_mean
from tidegate.plan import nodes as n
from tidegate.sql import statements as st
from tidegate.sql.statements import EmitMode
from tidegate.types import ChangelogKind, Span

# ---- An append-only sink cannot write a stream that retracts rows

_EMITS = {
    ChangelogKind.APPEND: "appends rows",
    ChangelogKind.UPSERT: "replaces rows by key (an upsert stream)",
    ChangelogKind.CHANGELOG: "retracts rows (a changelog)",
}

# What a sink that does not accept all changes can do, by whether it accepts upserts.
_WRITES = {False: "append rows", True: "append rows or replace them by key"}


def sink_changelog(sink: Sink, spec: SinkSpec, plan: n.Node) -> ValidationError | None:
    """Return the error of a sink that does not accept the changelog kind of its stream."""
    kind = plan.changelog
    accepts = spec.accepts(sink.options)
    if kind in accepts:
        return _without_key(sink, spec, plan)
    writes = _WRITES[ChangelogKind.UPSERT in accepts]
    span = sink.statement.span
    source_span = getattr(sink.statement, "source_span", span)
    return ValidationError(
        "TG-413",
        f"stream {sink.stream} {_EMITS[kind]}, but a {sink.connector} sink can only {writes}",
        location=Location(sink.script.text, source_span.start, source_span.end, sink.script.file),
        hint=_hint([*_other_emits(sink, plan, accepts), spec.changelog_hint])
        or "write the stream to a sink that accepts changes, such as postgres.",
        path=plan_path(plan),
    )


def _without_key(sink: Sink, spec: SinkSpec, plan: n.Node) -> ValidationError | None:
    """Return the finding for a sink that cannot identify the row that is replaced or retracted."""
    if not spec.needs_key or plan.changelog is ChangelogKind.APPEND or plan.key:
        return None
    span = sink.statement.span
    source_span = getattr(sink.statement, "source_span", span)
    ways = _other_emits(sink, plan, frozenset({ChangelogKind.APPEND}))
    missing = hidden_key(plan) if isinstance(plan, n.Emit) else []
    if missing:
        ways.insert(0, f"add the key to SELECT: {', '.join(missing)}")
    elif any(isinstance(node, n.TopN) for node in n.walk(plan)):
        ways.append("keep one row per key: QUALIFY row_number() OVER (…) = 1")
    elif any(isinstance(node, n.Join) for node in n.walk(plan)):
        ways.append("aggregate the rows of the join: SELECT k, max(x) AS x … GROUP BY k")
        ways.append("use a files or kafka sink with changelog = 'column'")
    ways.append("give the rows a key: GROUP BY columns, and select all of them")
    return ValidationError(
        "TG-413",
        f"stream {sink.stream} {_EMITS[plan.changelog]}, but it has no key, so sink {sink.name} "
        "cannot identify the row to change",
        location=Location(sink.script.text, source_span.start, source_span.end, sink.script.file),
        hint=_hint(ways[:2]),
        path=plan_path(plan),
    )


def _hint(ways: Sequence[str | None]) -> str:
    hint = "; or ".join(way.rstrip(".") for way in ways if way)
    return f"{hint}." if hint else ""


def _other_emits(sink: Sink, plan: n.Node, accepts: frozenset[ChangelogKind]) -> list[str]:
    """Return changes of the EMIT clause after which the sink accepts the stream."""
    if not isinstance(plan, n.Emit):
        return []
    clause = plan.clause
    mode = clause.mode if clause is not None else EmitMode.DEFAULT
    has_lateness = clause is not None and clause.lateness_us is not None
    ways = []
    if _retracts_only_open_windows(plan):
        if mode in (EmitMode.DEFAULT, EmitMode.WINDOW_CLOSE):
            ways.append("remove ALLOW LATENESS")
        else:
            lateness = ", without ALLOW LATENESS" if has_lateness else ""
            ways.append(f"end the query of {sink.stream} with EMIT ON WINDOW CLOSE{lateness}")
    elif not has_lateness and ChangelogKind.UPSERT not in accepts:
        groups = [node for node in _origins(plan) if isinstance(node, n.Aggregate)]
        window = window_hint(groups[0]) if len(groups) == len(_origins(plan)) == 1 else ""
        if window:
            ways.append(f"{window.removesuffix(', or ')}, and end the query without EMIT")
    if ChangelogKind.UPSERT in accepts and plan.input.key is not None:
        clauses = " ALLOW LATENESS …" if has_lateness else ""
        ways.append(f"end the query of {sink.stream} with EMIT ON UPDATE{clauses}")
    return ways


def _retracts_only_open_windows(plan: n.Emit) -> bool:
    """Return whether all changes come from windows that the watermark closes."""
    return plan.has_watermark and all(
        isinstance(node, n.Aggregate) and node.windowed for node in _origins(plan)
    )


def _origins(plan: n.Emit) -> list[n.Node]:
    """Return the nodes that turn appended rows into changes."""
    return [
        node
        for node in n.walk(plan.input, into_inlined=False)
        if node.changelog is not ChangelogKind.APPEND
        and all(child.changelog is ChangelogKind.APPEND for child in node.inputs)
    ]


# ---- Options of a sink that depend on its stream, or on the other sinks


def sink_options(
    sink: Sink, spec: SinkSpec, plan: n.Node | None, others: Iterable[Sink]
) -> Iterator[CatalogError]:
    """Yield errors of unknown columns, and of targets that another sink or the stream uses."""
    location = _location(sink, spec)
    if plan is not None:
        yield from _unknown_columns(sink, spec, [item.name for item in plan.fields])
        yield from _own_input(sink, spec, plan, location)
    for other in others:
        if not location or other.connector != sink.connector:
            continue
        if _location(other, spec) == location:
            target = ", ".join(str(other.options[name]) for name in spec.exclusive_options)
            message = f"sink {other.name} already writes {target}"
            hint = f"give {sink.name} another {spec.exclusive_options[0]}."
            yield _error(sink, "TG-210", message, sink.statement.name_span, hint)


def _location(declared: Sink | Source, spec: SinkSpec) -> list[object]:
    """Return the target that only one sink may write; out, ./out/ and file:out are equal."""
    return [_normalize(declared.options[name]) for name in spec.exclusive_options]


def _normalize(value: object) -> object:
    if not isinstance(value, str):
        return value
    scheme, separator, rest = value.partition("://")
    if separator and scheme != "file":
        return f"{scheme}://{posixpath.normpath(rest)}"
    return posixpath.normpath(str(Path.cwd() / value.removeprefix("file:")))


def _own_input(
    sink: Sink, spec: SinkSpec, plan: n.Node, location: list[object]
) -> Iterator[CatalogError]:
    """Yield an error if a sink writes to a source of its stream, which would never end."""
    for node in n.walk(plan):
        if not isinstance(node, n.Scan) or node.source.connector != sink.connector:
            continue
        same = bool(location) and _location(node.source, spec) == location
        if same or spec.is_read_by(sink.options, node.source.options):
            option = spec.exclusive_options[0] if same else "topic"
            target = node.source.options[option]
            message = f"stream {sink.stream} reads {target} through source {node.source.name}, so "
            message += f"sink {sink.name} would feed its own source"
            hint = f"give {sink.name} another {option}."
            yield _error(sink, "TG-210", message, sink.statement.name_span, hint)
            return


def _unknown_columns(sink: Sink, spec: SinkSpec, columns: list[str]) -> Iterator[CatalogError]:
    names = {name.lower() for name in columns}
    lists_of_names = {option.name for option in spec.options if option.type is OptionType.NAMES}
    spans = {option.name.lower(): option.value_span for option in sink.statement.options}
    for option in lists_of_names & set(spans):
        for name in sink.options[option]:
            if name.lower() not in names:
                hint = did_you_mean(name, columns, f"columns of {sink.stream}")
                message = f"{option}: {sink.stream} has no column {name}"
                yield _error(sink, "TG-301", message, spans[option], hint)


def _error(sink: Sink, code: str, message: str, span: Span, hint: str) -> CatalogError:
    location = Location(sink.script.text, span.start, span.end, sink.script.file)
    return CatalogError(code, message, location=location, hint=hint)


def check_sink(
    sink: Sink, spec: SinkSpec, source: Declared, others: Sequence[Sink], mode: ValidatorMode
) -> tuple[list[TidegateError], list[TidegateError]]:
    """Return the errors and the warnings of a sink."""
    if not isinstance(source, Stream | SideStream):
        return [_not_a_stream(sink, source)], []
    plan = source.plan if isinstance(source, Stream) else None
    errors: list[TidegateError] = list(sink_options(sink, spec, plan, others))
    if plan is None or errors:
        return errors, []
    finding = None if mode is ValidatorMode.OFF else sink_changelog(sink, spec, plan)
    if finding is None:
        return [], []
    return ([], [finding]) if mode is ValidatorMode.WARN else ([finding], [])


def _not_a_stream(sink: Sink, source: Declared) -> CatalogError:
    """Return the error of a sink that does not write a stream."""
    hint = f"CREATE STREAM all_{source.name} AS SELECT * FROM {source.name}; and write that stream."
    if isinstance(source, LookupTable):
        hint = (
            f"join a stream with it, and write the result: FROM my_stream JOIN {source.name} ON …."
        )
    if isinstance(source, Function):
        hint = f"call it in a stream, and write that stream: SELECT {source.name}(…) AS x FROM …."
    message = f"{source.name} is a {source.kind.value.lower()}, but a sink writes a stream"
    assert isinstance(sink.statement, st.CreateSink), "a sink was declared by CREATE SINK"
    span = sink.statement.source_span
    location = Location(sink.script.text, span.start, span.end, sink.script.file)
    return CatalogError("TG-201", message, location=location, hint=hint)
