"""Compares the declared streams of a pipeline with its last manifest.

Operators are identified by their fingerprints: an operator whose fingerprint is in the manifest
keeps its state. A stream whose operators or sources changed is rejected, unless its `on_change`
option allows the change.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tidegate.catalog.objects import SideKind, Sink, Stream
from tidegate.catalog.options import Options
from tidegate.checkpoint.manifest import (
    Manifest,
    OperatorState,
    SourceIdentity,
    StreamState,
)
from tidegate.connectors import view
from tidegate.connectors.view import ViewSchema
from tidegate.errors import DataDirectoryError, RunError, TidegateError, list_names
from tidegate.physical.canonical_form import canonical_form
from tidegate.runtime.planning import PipelineStream


@dataclass
class ReconciledManifest:
    """The manifest that a pipeline starts from, which is not written yet, and warnings."""

    manifest: Manifest
    warnings: list[TidegateError] = field(default_factory=list)


def reconcile(previous: Manifest, streams: Sequence[PipelineStream]) -> ReconciledManifest:
    """Adapt the previous manifest to the declared streams; raise if a stream does not fit it."""
    states = dict(previous.streams)
    operators = dict(previous.operators)
    warnings: list[TidegateError] = []
    for stream in streams:
        state = states.get(stream.key)
        sources = _inputs(stream, states)
        old = {k: o for k, o in previous.operators.items() if o.stream == stream.key}
        new = dict(stream.operators().values())
        change = _find_change(stream, sources, state, old, new) if state is not None else None
        if state is None or (change is not None and stream.on_change == "restart"):
            state, old = StreamState(uuid.uuid4().hex[:8]), {}
        elif change is not None:
            warnings += [_discarded_warning(stream, o) for k, o in new.items() if k not in old]
        operators = {k: o for k, o in operators.items() if o.stream != stream.key}
        operators |= _with_state(new, old)
        offsets = {k: o for k, o in state.offsets.items() if k in sources}
        states[stream.key] = replace(
            state, sources=sources, offsets=offsets, view_definition=stream.view_definition
        )
        warnings += missed_late_rows_warnings(stream, offsets, operators.values())
        if state.ended and new:
            warnings.append(_ended_warning(stream))
    manifest = replace(previous, streams=states, operators=operators)
    return ReconciledManifest(manifest, warnings)


def _inputs(stream: PipelineStream, states: Mapping[str, StreamState]) -> dict[str, SourceIdentity]:
    """Return the sources of a stream, including the streams whose late rows it reads.

    If one of these streams starts over, it has a new id, and its late rows are emitted again.
    """
    late = {
        name: SourceIdentity(LATE_ROWS, {"of": parent, "id": states[parent].id})
        for name, parent in stream.late_inputs.items()
    }
    return {**stream.sources, **late}


def _find_change(
    stream: PipelineStream,
    sources: Mapping[str, SourceIdentity],
    state: StreamState,
    old: Mapping[str, OperatorState],
    new: Mapping[str, OperatorState],
) -> DataDirectoryError | None:
    """Return the change of a stream since its last epoch as an error; None if nothing changed.

    The error is raised if `on_change` does not allow the change.
    """
    replaced = _replaced_source_error(stream, sources, state)
    replaced = replaced or view_change_error(stream.name, stream.view_definition, state)
    if replaced is not None and stream.on_change != "restart":
        # The offset of one source is meaningless for another, so 'continue' is impossible.
        raise replaced
    change = replaced or _sources_error(stream, sources, state)
    if change is None and set(old) != set(new):
        change = _operators_error(stream, list(old.values()), list(new.values()))
    if change is not None and stream.on_change == "reject":
        raise change
    return change


def _with_state(
    new: Mapping[str, OperatorState], old: Mapping[str, OperatorState]
) -> dict[str, OperatorState]:
    """Return the new operators with the state of old operators of the same fingerprint.

    A changed operator gets the state handles of an old operator of the same name. It discards this
    state except for the watermark, which must not go back.
    """
    removed = [operator for key, operator in old.items() if key not in new]
    operators: dict[str, OperatorState] = {}
    for key, operator in new.items():
        if key in old:
            operators[key] = old[key]
            continue
        predecessor = next((o for o in removed if o.name == operator.name), None)
        if predecessor is None:
            operators[key] = operator
        else:
            removed.remove(predecessor)
            operators[key] = replace(
                operator, state_handles=predecessor.state_handles, files=predecessor.files
            )
    return operators


# ---- Changes that are rejected

_RESTART_HINT = (
    "keep the previous source, or rename the stream. To start from the beginning, run once with "
    "--on-change restart, or CREATE STREAM … WITH (on_change = 'restart')."
)
_ON_CHANGE_HINT = (
    "keep the previous query, or rename the stream. To start from the beginning, run once with "
    "--on-change restart, or CREATE STREAM … WITH (on_change = 'restart'). With 'continue', the "
    "stream continues from its committed offsets, but changed operators start without state: their "
    "open windows are emitted incomplete."
)


def _replaced_source_error(
    stream: PipelineStream, sources: Mapping[str, SourceIdentity], state: StreamState
) -> DataDirectoryError | None:
    """Return the error for a source that was read before and is a different one now."""
    for name, source in sources.items():
        previous = state.sources.get(name)
        if name in state.offsets and previous is not None and previous != source:
            change = f"it was {_source_text(previous)}, now it is {_source_text(source)}"
            if previous.connector == source.connector == LATE_ROWS:
                change = f"{source.options['of']} starts over and emits its late rows again"
            return DataDirectoryError(
                "TG-603",
                f"the source {name} of the stream {stream.name} changed since its last epoch: "
                f"{change}",
                hint=_RESTART_HINT,
            )
    return None


def _sources_error(
    stream: PipelineStream, sources: Mapping[str, SourceIdentity], state: StreamState
) -> DataDirectoryError | None:
    if set(state.sources) == set(sources):
        return None
    return DataDirectoryError(
        "TG-603",
        f"the sources of the stream {stream.name} changed since its last epoch: it read "
        f"{_sources_text(state.sources)}, now it reads {_sources_text(sources)}",
        hint=_ON_CHANGE_HINT,
    )


def _sources_text(sources: Mapping[str, SourceIdentity]) -> str:
    return ", ".join(f"{name} ({_source_text(source)})" for name, source in sorted(sources.items()))


def _source_text(source: SourceIdentity) -> str:
    if source.connector == LATE_ROWS:
        return f"late rows of {source.options['of']}"
    options = "".join(f", {key}={value}" for key, value in source.options.items())
    return f"{source.connector}{options}"


def _operators_error(
    stream: PipelineStream, old: list[OperatorState], new: list[OperatorState]
) -> DataDirectoryError:
    old_names, new_names = sorted(o.name for o in old), sorted(o.name for o in new)
    if old_names != new_names:
        message = (
            f"the operators of the stream {stream.name} changed since its last epoch: from "
            f"{list_names(old_names)} to {list_names(new_names)}"
        )
    else:
        fingerprints = {o.fingerprint for o in old}
        names = [o.name for o in new if o.fingerprint not in fingerprints]
        message = (
            f"the query of the stream {stream.name} changed since its last epoch, in or below "
            f"{list_names(names)}: the stored state belongs to the previous query"
        )
    return DataDirectoryError("TG-603", message, hint=_ON_CHANGE_HINT)


def _discarded_warning(stream: PipelineStream, operator: OperatorState) -> RunError:
    return RunError(
        "TG-606",
        f"the operator {operator.name} of the stream {stream.name} changed: it continues from the "
        "committed offsets without its previous state",
        hint="to start from the beginning: CREATE STREAM … WITH (on_change = 'restart').",
    )


def _ended_warning(stream: PipelineStream) -> RunError:
    return RunError(
        "TG-607",
        f"an earlier run with --until-end closed all windows of the stream {stream.name}: new rows "
        "are late",
        hint="to start from the beginning, rename the stream, or DROP STREAM "
        f"{stream.name} and create it again.",
    )


# ---- Materialized views


def view_schema(stream: Stream) -> ViewSchema:
    """Return the schema of a materialized view."""
    plan = stream.plan
    key = tuple(plan.field(column).name for column in plan.key or ())
    columns = tuple((item.name, str(item.type)) for item in plan.fields)
    return ViewSchema(plan.changelog, key, columns)


def view_sink(stream: Stream) -> Sink:
    """Return the implicit sink of a materialized view."""
    schema = view_schema(stream)
    definition = (
        schema.definition_hash(canonical_form(stream.typed_plan.plan))
        if stream.typed_plan is not None
        else ""
    )
    options = Options({"schema": schema, "definition": definition}, {}, set())
    name = view.sink_name(stream.name)
    return Sink(
        name, options, stream.statement, stream.script, view.CONNECTOR, stream.name, implicit=True
    )


def view_change_error(
    name: str, definition: str | None, state: StreamState
) -> DataDirectoryError | None:
    """Return the error for a view whose stored rows belong to another query or are incomplete."""
    if definition is None or definition == state.view_definition or not state.rows_out:
        return None
    if state.view_definition is None:
        message = (
            f"{name} is a materialized view now, and {state.rows_out:,} rows that it emitted "
            "before were not stored"
        )
    else:
        message = (
            f"the query of the materialized view {name} changed since its last epoch: its stored "
            "rows belong to the previous query"
        )
    return DataDirectoryError(
        "TG-603",
        message,
        hint="rename the view, or keep the previous query. To start from the beginning, run once "
        "with --on-change restart, or CREATE MATERIALIZED VIEW … WITH (on_change = 'restart').",
    )


# ---- Rows that a sink or a reader of late rows has missed

# The connector of streams of late rows in manifests.
LATE_ROWS = "late rows"


def late_row_count(stream: str, operators: Iterable[OperatorState]) -> int:
    """Return the number of late rows of a stream since its first epoch."""
    return sum(int(o.report.get("late_rows") or 0) for o in operators if o.stream == stream)


def late_offsets(stream: PipelineStream, operators: Iterable[OperatorState]) -> dict[str, Any]:
    """Return the offsets, after an epoch, of a stream that reads the late rows of other streams.

    An offset is the number of late rows since the first epoch, because a stream reads all late rows
    of an epoch in the same epoch.
    """
    states = tuple(operators)
    return {
        name: {"rows": late_row_count(parent, states)}
        for name, parent in stream.late_inputs.items()
    }


def missed_late_rows_warnings(
    stream: PipelineStream, offsets: Mapping[str, Any], operators: Iterable[OperatorState]
) -> list[RunError]:
    """Warn about late rows that were emitted while the stream that reads them was not running."""
    warnings = []
    for name, end in late_offsets(stream, operators).items():
        missed = end["rows"] - offsets.get(name, {"rows": 0})["rows"]
        if missed > 0:
            parent = stream.late_inputs[name]
            warnings.append(
                RunError(
                    "TG-612",
                    f"the stream {stream.name} has missed {missed:,} rows of {name}: they were "
                    "emitted while it was not running, and emitted rows are not computed again",
                    hint=f"to get all rows, rename the streams {parent} and {stream.name}, or drop "
                    "both and create them again.",
                )
            )
    return warnings


def emitted_rows(manifest: Manifest, stream: PipelineStream, sink: Sink) -> int:
    """Return how many rows a stream has emitted that a sink should contain."""
    kind = stream.side_kind(sink)
    if kind is None:
        return manifest.streams[stream.key].rows_out
    if kind is SideKind.FAILED_ROWS:
        return manifest.streams[stream.key].failed_rows
    return late_row_count(stream.key, manifest.operators.values())


def missed_rows_warning(manifest: Manifest, stream: PipelineStream, sink: Sink) -> RunError | None:
    """Warn about a declared sink that was added later, or was detached for some epochs."""
    if sink.implicit:
        return None
    emitted = emitted_rows(manifest, stream, sink)
    state = manifest.sinks.get(sink.name)
    if state is None or state.stream != stream.key:
        received = 0
    elif state.stream_rows_at_last_epoch is None:
        return None
    else:
        received = state.stream_rows_at_last_epoch
    if emitted <= received:
        return None
    since = "before the sink was added" if received == 0 else "while the sink was detached"
    return RunError(
        "TG-612",
        f"the sink {sink.name} has missed {emitted - received:,} rows of {sink.stream}: they were "
        f"emitted {since}, and emitted rows are not computed again",
        hint=f"to get all rows, rename the stream {stream.name}, or DROP STREAM {stream.name} and "
        "create it again.",
    )
