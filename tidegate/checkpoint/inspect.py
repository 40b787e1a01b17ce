"""What a manifest says, for people."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from tidegate.checkpoint.manifest import Manifest, OperatorState

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Rows = list[tuple[Any, ...]]


@dataclass(frozen=True)
class Checkpoint:
    """A manifest that is kept, and under which name; `rows_in` is what its streams have read."""

    pipeline: str
    name: str | None
    generation: int
    epoch: int
    time: datetime
    streams: int
    rows_in: int
    state_bytes: int


COLUMNS = tuple(Checkpoint.__dataclass_fields__)


def summary(pipeline: str, name: str | None, manifest: Manifest) -> Checkpoint:
    return Checkpoint(
        pipeline,
        name,
        manifest.generation,
        manifest.epoch,
        _EPOCH + timedelta(microseconds=manifest.now_us),
        len(manifest.streams),
        sum(stream.rows_in for stream in manifest.streams.values()),
        sum(_number(operator, "bytes") for operator in manifest.operators.values()),
    )


@dataclass(frozen=True)
class Section:
    """A part of a manifest as a table."""

    title: str
    columns: tuple[str, ...]
    rows: Rows


def sections(manifest: Manifest) -> list[Section]:
    """Sources, streams, operators and sinks, each as a table."""
    return [
        Section("sources", ("source", "connector", "stream", "offset"), _sources(manifest)),
        Section(
            "streams",
            ("stream", "rows_in", "rows_out", "dead_letters", "ended"),
            [
                (name, s.rows_in, s.rows_out, s.dead_letters, s.ended)
                for name, s in manifest.streams.items()
            ],
        ),
        Section(
            "operators",
            ("stream", "operator", "groups", "rows", "bytes", "late_rows", "files", "watermark"),
            [_operator(operator) for operator in manifest.operators.values()],
        ),
        Section(
            "sinks",
            ("sink", "connector", "stream", "tokens", "last_epoch"),
            [
                (name, s.connector, s.stream, len(s.tokens), s.epoch if s.epoch >= 0 else None)
                for name, s in manifest.sinks.items()
            ],
        ),
    ]


def _sources(manifest: Manifest) -> Rows:
    return [
        (name, source.connector, key, offset_text(stream.offsets.get(name)))
        for key, stream in manifest.streams.items()
        for name, source in stream.sources.items()
    ]


def _operator(operator: OperatorState) -> tuple[Any, ...]:
    numbers = [_number(operator, name) for name in ("groups", "rows", "bytes", "late_rows")]
    return (operator.stream, operator.name, *numbers, len(operator.files), _watermark(operator))


def _number(operator: OperatorState, name: str) -> int:
    return int(operator.report.get(name) or 0)


def _watermark(operator: OperatorState) -> datetime | str | None:
    micros = operator.report.get("watermark_us")
    if micros is None:
        return None
    try:
        return _EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        # After the end of its input it is beyond all times.
        return "end" if micros > 0 else None


def offset_text(offset: Any) -> str:
    """How far a source is, in a line: lists are counted."""
    if offset is None:
        return "nothing read yet"
    if not isinstance(offset, dict):
        return str(offset)
    return ", ".join(
        f"{key} {len(value) if isinstance(value, list | dict) else value}"
        for key, value in offset.items()
    )
