"""What a stream is doing or waiting for, and in the end what was written where."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from tidegate.catalog.catalog import Catalog
from tidegate.catalog.objects import SideStream, Sink, Stream
from tidegate.cli.text import plural
from tidegate.observe.status import State, StreamStatus


def doing(status: StreamStatus, ends: bool) -> str | None:
    """What a person should know beside the numbers; None if rows are passing."""
    if status.error is not None:
        return status.error
    if status.state not in (State.STARTING, State.RUNNING):
        return None
    working = status.working_seconds
    if status.epoch is None and working is not None:
        return f"working on the first epoch, which takes longest: {int(working)} s"
    if status.epoch is None:
        return "waiting for the first rows"
    if status.rows_in_per_second > 0:
        return None
    if working is not None and working >= 1:
        return f"working on an epoch: {int(working)} s"
    if not status.open_windows:
        return "waiting for rows"
    windows = f"{plural(status.open_windows, 'window')} open"
    closing = "" if ends else "; what is open at the end closes with --until-end"
    return f"waiting for rows; {windows}{closing}"


def notes(statuses: Sequence[StreamStatus], ends: bool) -> list[str]:
    """One line for each thing to know, with the streams that it is about."""
    streams: dict[str, list[str]] = {}
    for status in statuses:
        said = doing(status, ends)
        if said is not None:
            streams.setdefault(said, []).append(status.name)
    if len(streams) == 1 and len(statuses) == sum(map(len, streams.values())):
        return list(streams)
    return [f"{', '.join(names)}: {said}" for said, names in streams.items()]


def written(catalog: Catalog, statuses: Sequence[StreamStatus], data: str) -> Iterator[str]:
    """For each sink how many rows it got, and where they are."""
    rows = {status.name.lower(): status.rows_out for status in statuses}
    for sink in catalog.of(Sink):
        source = catalog.get(sink.source)
        given = rows.get(sink.source.lower())
        if isinstance(source, SideStream) and source.of_stream:
            parent = next((s for s in statuses if s.name.lower() == source.parent.lower()), None)
            if parent is not None:
                given = parent.late_rows if source.is_late else parent.dead_letters
        where = _place(sink, data)
        if given is not None and where is not None:
            yield f"{sink.name}: {plural(given, 'row')} of {sink.source} {where}"
    for stream in catalog.of(Stream):
        if stream.materialized and stream.name.lower() in rows:
            changes = plural(rows[stream.name.lower()], "change")
            yield f"{stream.name}: {changes} kept; {_asking(stream.name, data)}"


def _place(sink: Sink, data: str) -> str | None:
    if sink.connector == "files":
        folder = Path(sink.origin.folder) / sink.options["path"]
        local = "://" not in sink.options["path"]
        return f"→ {sink.options['format']} in {folder if local else sink.options['path']}"
    if sink.connector == "memory":
        return f"kept; {_asking(sink.source, data)}"
    if sink.connector in ("console", "blackhole"):
        return None
    target = sink.options.get("topic") or sink.options.get("table")
    return f"→ {sink.connector}{f' {target}' if target else ''}"


def _asking(name: str, data: str) -> str:
    return f'tidegate query {data} "SELECT * FROM {name}"'
