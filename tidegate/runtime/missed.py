"""Sinks that were away while their stream went on, or came to it later: they lack what it gave."""

from __future__ import annotations

from tidegate.catalog.objects import SideKind, Sink
from tidegate.checkpoint.manifest import Manifest
from tidegate.errors import RunError
from tidegate.runtime.late_inputs import late_rows_of
from tidegate.runtime.members import Member


def rows_so_far(manifest: Manifest, member: Member, sink: Sink) -> int:
    """How many rows its stream has given out for a sink, whether that was there or not."""
    takes = member.takes(sink)
    if takes is None:
        return manifest.streams[member.key].rows_out
    if takes is SideKind.FAILED_ROWS:
        return manifest.streams[member.key].failed
    return late_rows_of(member.key, manifest.operators.values())


def missed(manifest: Manifest, member: Member, sink: Sink) -> RunError | None:
    """What to say about a declared sink that does not have all rows of its stream."""
    if sink.implied:
        return None
    now = rows_so_far(manifest, member, sink)
    state = manifest.sinks.get(sink.name)
    if state is None or state.stream != member.key:
        had = 0
    elif state.rows is None:
        return None
    else:
        had = state.rows
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
