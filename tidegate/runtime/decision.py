"""The decision of an epoch: what its manifest says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from tidegate.catalog.objects import Sink
from tidegate.checkpoint.manifest import Manifest, SinkState, StreamState
from tidegate.connectors.base import Cut
from tidegate.runtime.cutting import Epoch
from tidegate.runtime.late_inputs import late_offsets
from tidegate.runtime.members import Member
from tidegate.runtime.missed import rows_so_far
from tidegate.runtime.notes import Notes
from tidegate.spark.order import Order


def decision(
    before: Manifest,
    members: Iterable[Member],
    sinks: Mapping[str, tuple[Member, Sink]],
    epoch: Epoch,
    order: Order,
    notes: Notes,
) -> Manifest:
    """The manifest after an epoch."""
    streams = dict(before.streams)
    operators = {k: notes.operator(k, o) for k, o in before.operators.items()}
    for member in members:
        own = {source: cut for (key, source), cut in epoch.cuts.items() if key == member.key}
        stream = _stream(streams[member.key], member, own, epoch.ends, notes)
        late = late_offsets(member, operators.values())
        streams[member.key] = replace(stream, offsets={**stream.offsets, **late})
    after = replace(
        before,
        epoch=order.epoch,
        now_us=order.now_us,
        streams=streams,
        operators=operators,
    )
    return replace(after, sinks=_sinks(after, sinks, notes))


def _stream(
    stream: StreamState, member: Member, own: Mapping[str, Cut], ends: bool, notes: Notes
) -> StreamState:
    told = notes.stream(member.name)
    told.rows_in += sum(cut.rows or 0 for cut in own.values())
    marks = {**stream.marks}
    for origin, mark in told.marks.items():
        marks[origin] = max(mark, marks.get(origin, mark))
    return replace(
        stream,
        offsets={**stream.offsets, **{name: cut.offset for name, cut in own.items()}},
        marks=marks,
        ended=stream.ended or (ends and bool(member.plan.operators)),
        rows_in=stream.rows_in + told.rows_in,
        rows_out=stream.rows_out + told.rows_out,
        dead_letters=stream.dead_letters + told.bad + told.failed,
        failed=stream.failed + told.failed,
    )


def _sinks(
    now: Manifest, sinks: Mapping[str, tuple[Member, Sink]], notes: Notes
) -> dict[str, SinkState]:
    """Sinks that take no part now may still have to finish an older epoch when they are back."""
    found = dict(now.sinks)
    for name, (member, sink) in sinks.items():
        tokens = notes.tokens.get(name, [])
        rows = rows_so_far(now, member, sink)
        state = SinkState(member.key, sink.connector, now.epoch, tokens, now.generation, rows)
        found[name] = state.following(now.sinks.get(name))
    return found
