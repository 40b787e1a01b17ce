"""The streams of a pipeline as they are declared now, against what its last manifest says.

Operators are found by what they are: one whose fingerprint is in the manifest keeps its state. A
stream whose operators changed is rejected, unless it says what to do.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tidegate.catalog.connector import Columns
from tidegate.catalog.declare import FAILED_COLUMNS, LATE_COLUMNS
from tidegate.catalog.objects import SideKind, SideStream, Sink, Stream
from tidegate.catalog.options import Options
from tidegate.checkpoint.manifest import Manifest, OperatorState, SourceState, StreamState
from tidegate.columns import OP
from tidegate.connectors import view
from tidegate.connectors.base import StreamRows
from tidegate.connectors.view import ViewSchema
from tidegate.errors import DataDirectoryError, RunError, TidegateError
from tidegate.physical.fingerprint import canonical
from tidegate.physical.planner import PhysicalPlan, ScanPlan, runner_of
from tidegate.physical.stage_sql import carries_op
from tidegate.physical.typed import TypedPlan
from tidegate.plan.side_streams import late_stream
from tidegate.types import ChangelogKind

# ---- Late rows that other streams read: how many there were, and who does not have all of them.

# Stands in manifests where sources have their connector.
LATE_ROWS = "late rows"


def late_rows_of(stream: str, operators: Iterable[OperatorState]) -> int:
    """How many rows came too late for a stream so far."""
    own = (o for o in operators if o.stream == stream)
    return sum(int(operator.report.get("late_rows") or 0) for operator in own)


def late_offsets(member: PipelineStream, operators: Iterable[OperatorState]) -> dict[str, Any]:
    """How far a member has read the late rows of others: it takes those of every epoch."""
    known = tuple(operators)
    return {
        name: {"rows": late_rows_of(parent, known)} for name, parent in member.late_inputs.items()
    }


def missed_late_rows(
    member: PipelineStream, offsets: Mapping[str, Any], operators: Iterable[OperatorState]
) -> list[RunError]:
    """What to say about a stream that was not there when rows came too late for another one."""
    found = []
    for name, now in late_offsets(member, operators).items():
        had = offsets.get(name, {"rows": 0})
        lacks = now["rows"] - had["rows"]
        if lacks > 0:
            parent = member.late_inputs[name]
            found.append(
                RunError(
                    "TG-612",
                    f"the stream {member.name} does not have {lacks:,} rows of {name}: they were "
                    "given out when it was not there, and what was given out is not computed again",
                    hint=f"to have all rows, give the streams {parent} and {member.name} other "
                    "names, or drop both and create them again.",
                )
            )
    return found


# ---- Materialised views: the sink that keeps what a stream gives out, and when it is another view.


def shape_of(stream: Stream) -> ViewSchema:
    """What the rows of a stream mean, once Spark has found its types."""
    plan = stream.plan
    key = tuple(plan.field(column).name for column in plan.key or ())
    columns = tuple((item.name, str(item.type)) for item in plan.fields)
    return ViewSchema(plan.changelog, key, columns)


def view_sink(stream: Stream) -> Sink:
    """The sink of a materialised view, which nobody declares."""
    shape = shape_of(stream)
    canonical_form = (
        shape.canonical_form(canonical(stream.typed.plan)) if stream.typed is not None else ""
    )
    options = Options({"shape": shape, "meaning": canonical_form}, {}, set())
    name = view.sink_name(stream.name)
    return Sink(
        name, options, stream.statement, stream.origin, view.CONNECTOR, stream.name, implied=True
    )


def changed_view(name: str, now: str | None, stored: StreamState) -> DataDirectoryError | None:
    """A view whose rows would be those of two queries, or not all; None if it goes on."""
    if now is None or now == stored.view_definition or not stored.rows_out:
        return None
    if stored.view_definition is None:
        what = (
            f"{name} is a materialized view now, and {stored.rows_out:,} rows that it gave out "
            "before are not kept"
        )
    else:
        what = (
            f"the query of the materialized view {name} changed since its last epoch: the rows "
            "that it has are those of the query before"
        )
    return DataDirectoryError(
        "TG-603",
        what,
        hint="give the view another name, or keep the query of before; or run once with "
        "--on-change restart, or CREATE MATERIALIZED VIEW … WITH (on_change = 'restart'): it "
        "starts from the beginning.",
    )


@dataclass(frozen=True)
class PipelineStream:
    """A stream of a pipeline."""

    name: str
    typed: TypedPlan
    plan: PhysicalPlan
    sources: Mapping[str, SourceState]
    sinks: tuple[Sink, ...]
    late: SideStream | None = None
    on_change: str = "reject"
    # The late streams that it reads, and the members whose late rows they are.
    late_inputs: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    # What the catalog has: another object is another declaration of the same name.
    declared: object = field(default=None, kw_only=True, compare=False, repr=False)
    # Its dead letters, where they have a name.
    failed: SideStream | None = field(default=None, kw_only=True)

    def is_same(self, other: PipelineStream) -> bool:
        """Whether both are one declaration of a stream."""
        return self.key == other.key and self.declared is other.declared

    @property
    def key(self) -> str:
        return self.name.lower()

    def operators(self) -> dict[int, tuple[str, OperatorState]]:
        """By number, its operators with the keys under which manifests know them."""
        found: dict[int, tuple[str, OperatorState]] = {}
        taken: set[str] = set()
        for plan in self.plan.operators:
            fingerprint = runner_of(plan).fingerprint.hex()
            key = base = f"{self.key}.{fingerprint}"
            while key in taken:
                key = f"{base}.{len(taken)}"
            taken.add(key)
            found[plan.number] = (key, OperatorState(self.key, plan.name, fingerprint))
        return found

    @property
    def source_scans(self) -> list[ScanPlan]:
        """The scans that read sources: late rows come from another member."""
        return [scan for scan in self.plan.scans if scan.late_of is None]

    def rows_of(self, sink: Sink) -> StreamRows:
        """What the rows look like that a sink gets."""
        side = self.side(sink)
        if side is not None:
            return StreamRows(tuple((c.name, str(c.type)) for c in side.columns))
        node = self.plan.node
        columns = tuple((item.name, str(item.type)) for item in node.fields)
        nullable = frozenset(item.name for item in node.fields if item.nullable)
        if node.changelog is ChangelogKind.APPEND:
            return StreamRows(columns, has_op=carries_op(node), nullable=nullable)
        key = None if node.key is None else tuple(node.field(item).name for item in node.key)
        return StreamRows(columns, node.changelog, key, carries_op(node), nullable)

    @property
    def view(self) -> str | None:
        """What the rows of its materialised view mean, if it is one."""
        views = (sink for sink in self.sinks if sink.connector == view.CONNECTOR)
        return next((str(sink.options["meaning"]) for sink in views), None)

    def side(self, sink: Sink) -> SideStream | None:
        """The stream beside this one whose rows a sink takes; None if it takes those of this."""
        if sink.source.lower() == self.key:
            return None
        sides = (side for side in (self.late, self.failed) if side is not None)
        return next(side for side in sides if side.name.lower() == sink.source.lower())

    def takes(self, sink: Sink) -> SideKind | None:
        """What a sink takes, if it is not the rows of this stream."""
        side = self.side(sink)
        return side.holds if side is not None else None

    def columns(self, sink: Sink) -> Columns:
        """What a sink is given, with Spark's names of the types."""
        plan = self.typed.plan
        takes = self.takes(sink)
        if takes is SideKind.FAILED_ROWS:
            return tuple((item.name, str(item.type)) for item in FAILED_COLUMNS)
        if takes is SideKind.LATE_ROWS:
            late = [(item.name, str(item.type)) for item in late_stream(plan).columns]
            return (*late, *((item.name, str(item.type)) for item in LATE_COLUMNS))
        own = tuple((item.name, str(item.type)) for item in plan.fields)
        return (*own, (OP, "STRING")) if carries_op(plan) else own


def with_dependencies(
    member: PipelineStream, members: Sequence[PipelineStream]
) -> list[PipelineStream]:
    """A member, after those whose late rows it needs."""
    wanted = {member.key}
    found = []
    for other in reversed(members):
        if other.key in wanted:
            wanted |= set(other.late_inputs.values())
            found.append(other)
    return found[::-1]


@dataclass
class Reconciled:
    """What a pipeline starts from: a manifest that was not written, and what to say about it."""

    manifest: Manifest
    warnings: list[TidegateError] = field(default_factory=list)


def reconcile(before: Manifest, members: Sequence[PipelineStream]) -> Reconciled:
    """The manifest of before with the members as they are now; rejected if they do not fit."""
    streams = dict(before.streams)
    operators = dict(before.operators)
    warnings: list[TidegateError] = []
    for member in members:
        stored = streams.get(member.key)
        sources = _inputs(member, streams)
        old = {k: o for k, o in before.operators.items() if o.stream == member.key}
        new = dict(member.operators().values())
        changed = _change(member, sources, stored, old, new) if stored is not None else None
        if stored is None or (changed is not None and member.on_change == "restart"):
            stored, old = StreamState(uuid.uuid4().hex[:8]), {}
        elif changed is not None:
            warnings += [_discarded(member, o) for k, o in new.items() if k not in old]
        operators = {k: o for k, o in operators.items() if o.stream != member.key}
        operators |= _with_state(new, old)
        offsets = {k: o for k, o in stored.offsets.items() if k in sources}
        streams[member.key] = replace(
            stored, sources=sources, offsets=offsets, view_definition=member.view
        )
        warnings += missed_late_rows(member, offsets, operators.values())
        if stored.ended and new:
            warnings.append(_ended(member))
    manifest = replace(before, streams=streams, operators=operators)
    return Reconciled(manifest, warnings)


def _inputs(member: PipelineStream, streams: Mapping[str, StreamState]) -> dict[str, SourceState]:
    """What a stream reads: its sources, and late rows of streams that come before it.

    A stream that starts over has another id, and its late rows come again.
    """
    late = {
        name: SourceState(LATE_ROWS, {"of": parent, "id": streams[parent].id})
        for name, parent in member.late_inputs.items()
    }
    return {**member.sources, **late}


def _change(
    member: PipelineStream,
    sources: Mapping[str, SourceState],
    stored: StreamState,
    old: Mapping[str, OperatorState],
    new: Mapping[str, OperatorState],
) -> DataDirectoryError | None:
    """How a stream is another one than at its last epoch; raised unless it says what to do."""
    moved = _moved_source(member, sources, stored)
    moved = moved or changed_view(member.name, member.view, stored)
    if moved is not None and member.on_change != "restart":
        # Where it was in the one says nothing about the other.
        raise moved
    changed = moved or _other_sources(member, sources, stored)
    if changed is None and set(old) != set(new):
        changed = _changed(member, list(old.values()), list(new.values()))
    if changed is not None and member.on_change == "reject":
        raise changed
    return changed


def _with_state(
    new: Mapping[str, OperatorState], old: Mapping[str, OperatorState]
) -> dict[str, OperatorState]:
    """Operators with the state that fits them.

    One that changed gets the heads of one of its name that is gone: it discards what it finds
    there, but for the time, which must not go back.
    """
    gone = [operator for key, operator in old.items() if key not in new]
    found: dict[str, OperatorState] = {}
    for key, operator in new.items():
        if key in old:
            found[key] = old[key]
            continue
        same = next((o for o in gone if o.name == operator.name), None)
        if same is None:
            found[key] = operator
        else:
            gone.remove(same)
            found[key] = replace(operator, state_handles=same.state_handles, files=same.files)
    return found


def _moved_source(
    member: PipelineStream, sources: Mapping[str, SourceState], stored: StreamState
) -> DataDirectoryError | None:
    """A source that was read and is another one now."""
    for name, source in sources.items():
        before = stored.sources.get(name)
        if name in stored.offsets and before is not None and before != source:
            what = f"it was {_shown(before)}, now it is {_shown(source)}"
            if before.connector == source.connector == LATE_ROWS:
                what = f"{source.options['of']} starts over, and its late rows come again"
            return DataDirectoryError(
                "TG-603",
                f"the source {name} of the stream {member.name} changed since its last epoch: "
                f"{what}",
                hint=_ways_out(),
            )
    return None


def _other_sources(
    member: PipelineStream, sources: Mapping[str, SourceState], stored: StreamState
) -> DataDirectoryError | None:
    if set(stored.sources) == set(sources):
        return None
    return DataDirectoryError(
        "TG-603",
        f"the sources of the stream {member.name} changed since its last epoch: it read "
        f"{_all_shown(stored.sources)}, now it reads {_all_shown(sources)}",
        hint=_ways_out(),
    )


def _all_shown(sources: Mapping[str, SourceState]) -> str:
    return ", ".join(f"{name} ({_shown(source)})" for name, source in sorted(sources.items()))


def _shown(source: SourceState) -> str:
    if source.connector == LATE_ROWS:
        return f"late rows of {source.options['of']}"
    options = "".join(f", {key}={value}" for key, value in source.options.items())
    return f"{source.connector}{options}"


def _changed(
    member: PipelineStream, old: list[OperatorState], new: list[OperatorState]
) -> DataDirectoryError:
    before, now = sorted(o.name for o in old), sorted(o.name for o in new)
    if before != now:
        what = (
            f"the stream {member.name} needs other operators than at its last epoch: "
            f"{_listed(before)} then, {_listed(now)} now"
        )
    else:
        known = {o.fingerprint for o in old}
        names = [o.name for o in new if o.fingerprint not in known]
        what = (
            f"the query of the stream {member.name} changed since its last epoch, in or below "
            f"{_listed(names)}: what is stored belongs to the query of before"
        )
    return DataDirectoryError("TG-603", what, hint=_ways_out())


def _ways_out() -> str:
    return (
        "keep the query of before, or give the stream another name; or run once with --on-change "
        "restart, or CREATE STREAM … WITH (on_change = 'restart'): it starts from the beginning; "
        "or say 'continue' there: it goes on from the committed offsets without what was stored, "
        "and windows that are open now come out incomplete."
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def _discarded(member: PipelineStream, operator: OperatorState) -> RunError:
    return RunError(
        "TG-606",
        f"the operator {operator.name} of the stream {member.name} changed: its state is "
        "discarded, and it goes on from the committed offsets",
        hint="to start from the beginning: CREATE STREAM … WITH (on_change = 'restart').",
    )


def _ended(member: PipelineStream) -> RunError:
    return RunError(
        "TG-607",
        f"the stream {member.name} was run to its end before: all its windows are closed, and rows "
        "that come now are late",
        hint="to start from the beginning, give the stream another name, or DROP STREAM "
        f"{member.name} and create it again.",
    )


# ---- Sinks that were away while their stream went on, or came to it later: they lack what it gave.


def rows_so_far(manifest: Manifest, member: PipelineStream, sink: Sink) -> int:
    """How many rows its stream has given out for a sink, whether that was there or not."""
    takes = member.takes(sink)
    if takes is None:
        return manifest.streams[member.key].rows_out
    if takes is SideKind.FAILED_ROWS:
        return manifest.streams[member.key].failed_rows
    return late_rows_of(member.key, manifest.operators.values())


def missed(manifest: Manifest, member: PipelineStream, sink: Sink) -> RunError | None:
    """What to say about a declared sink that does not have all rows of its stream."""
    if sink.implied:
        return None
    now = rows_so_far(manifest, member, sink)
    state = manifest.sinks.get(sink.name)
    if state is None or state.stream != member.key:
        had = 0
    elif state.stream_rows is None:
        return None
    else:
        had = state.stream_rows
    if now <= had:
        return None
    since = "before the sink was there" if had == 0 else "while the sink was away"
    return RunError(
        "TG-612",
        f"the sink {sink.name} does not have {now - had:,} rows of {sink.source}: they were given "
        f"out {since}, and what was given out is not computed again",
        hint=f"to have all rows, give the stream {member.name} another name, or DROP STREAM "
        f"{member.name} and create it again.",
    )
