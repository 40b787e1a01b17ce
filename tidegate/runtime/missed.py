"""Sinks that were away while their stream went on, or came to it later: they lack what it gave."""

from __future__ import annotations

from tidegate.catalog.objects import Sink
from tidegate.checkpoint.manifest import Manifest
from tidegate.errors import RunError
from tidegate.runtime.members import Member


def given(manifest: Manifest, member: Member, sink: Sink) -> int:
    """How many rows a sink would have been given so far."""
    if not member.is_late(sink):
        return manifest.streams[member.key].rows_out
    own = (o for o in manifest.operators.values() if o.stream == member.key)
    return sum(int(operator.report.get("late_rows") or 0) for operator in own)


def missed(manifest: Manifest, member: Member, sink: Sink) -> RunError | None:
    """What to say about a declared sink that does not have all rows of its stream."""
    if sink.implied:
        return None
    now = given(manifest, member, sink)
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
