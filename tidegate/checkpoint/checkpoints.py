"""CHECKPOINT, DROP CHECKPOINT, SHOW CHECKPOINTS and RESTORE, for all pipelines together."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from tidegate.checkpoint.manifest import Manifest, OperatorState
from tidegate.checkpoint.manifests import Manifests, Name, NewestManifest
from tidegate.errors import DataDirectoryError, Location, RunError, TidegateError, did_you_mean

# ---- Going back: the content of an older manifest becomes the newest, in a new generation.
#
# Epoch numbers are never used twice, so that files, tokens and markers of the epochs that are given
# up cannot be taken for others.

# Whether sinks of a connector can forget rows that were given to them.
Forgets = Callable[[str], bool]


@dataclass(frozen=True)
class Ahead:
    """A sink that has rows from after a checkpoint and cannot forget them."""

    sink: str
    connector: str
    epoch: int


def sinks_ahead(manifests: Manifests, chosen: Manifest, supports_rollback: Forgets) -> list[Ahead]:
    """The sinks that would get rows again which they have."""
    newest = _or_none(manifests.newest)
    found = []
    for name, sink in (newest.sinks if newest is not None else {}).items():
        if sink.epoch < 0 or supports_rollback(sink.connector):
            continue
        if not chosen.knows(sink.generation, sink.epoch):
            found.append(Ahead(name, sink.connector, sink.epoch))
    return found


def restore(manifests: Manifests, chosen: Manifest, keep: bool) -> Manifest:
    """Begin a new generation with the content of a manifest; returns its first manifest.

    The line of before is ended first by an epoch without news: a process that still believes in it
    finds the next number taken.
    """
    newest = _or_none(manifests.settled)
    if newest is not None:
        manifests.create(replace(newest, epoch=newest.epoch + 1))
    generation, epoch = manifests.top()
    begun = chosen.restored_as(generation + 1, epoch + 1)
    before = max(chosen.keep_before_generation, newest.keep_before_generation if newest is not None else 0)
    begun = replace(begun, keep_before_generation=generation + 1 if keep else before)
    manifests.create(begun)
    return begun


def _or_none(find: Callable[[], NewestManifest]) -> Manifest | None:
    """What was found; going back is the way out where nothing can be used."""
    try:
        return find().manifest
    except DataDirectoryError as error:
        if error.code != "TG-605":
            raise
        return None


# ---- What a manifest says, for people.

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
            ("sink", "connector", "stream", "committables", "last_epoch"),
            [
                (
                    name,
                    s.connector,
                    s.stream,
                    len(s.committables),
                    s.epoch if s.epoch >= 0 else None,
                )
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


_MADE_UP = re.compile(r"checkpoint-(\d+)")


@dataclass(frozen=True)
class RestoreRequest:
    """What RESTORE asks for: a name or the number of an epoch, and what is to become of sinks."""

    checkpoint: str | int
    # Whether sinks that cannot forget keep the rows from after the checkpoint.
    keep: bool = False
    # Only this one; all by default.
    pipeline: str | None = None
    location: Location | None = None


@dataclass(frozen=True)
class Restored:
    """A pipeline that went back."""

    pipeline: str
    chosen: Manifest
    begun: Manifest
    warnings: tuple[TidegateError, ...] = ()


class Checkpoints:
    """The checkpoints of the pipelines of a data directory."""

    def __init__(self, pipelines: Mapping[str, Manifests], supports_rollback: Forgets) -> None:
        self.pipelines = pipelines
        self.supports_rollback = supports_rollback

    # Keeping

    def keep(self, name: str | None, location: Location | None = None) -> dict[str, Name]:
        """Give the newest manifest of every pipeline a name; one is made up if none is given."""
        if name is not None and self._named(name):
            raise RunError(
                "TG-202",
                f"there is a checkpoint {name!r} already",
                location=location,
                hint=f"choose another name, or DROP CHECKPOINT '{name}'; first.",
            )
        name = name if name is not None else self._made_up()
        kept = {key: item.name_newest(name) for key, item in self.pipelines.items()}
        found = {key: item for key, item in kept.items() if item is not None}
        if not found:
            raise RunError(
                "TG-609",
                "there is nothing to keep yet: no epoch was run",
                location=location,
                hint="start the streams, and wait for their first rows.",
            )
        return found

    def _made_up(self) -> str:
        found = (_MADE_UP.fullmatch(name) for name in self.names())
        return f"checkpoint-{max((int(m.group(1)) for m in found if m is not None), default=0) + 1}"

    def names(self) -> list[str]:
        return sorted({n.name for item in self.pipelines.values() for n in item.named.all()})

    def _named(self, name: str) -> dict[str, Name]:
        found = {key: item.named.find(name) for key, item in self.pipelines.items()}
        return {key: item for key, item in found.items() if item is not None}

    def has(self, name: str) -> bool:
        return bool(self._named(name))

    def drop(self, name: str, location: Location | None = None) -> None:
        found = self._named(name)
        if not found:
            raise self._unknown(name, location)
        for key, item in found.items():
            self.pipelines[key].drop_name(item)

    def _unknown(self, name: str, location: Location | None) -> RunError:
        hint = did_you_mean(name, self.names(), "checkpoints with a name")
        return RunError("TG-609", f"there is no checkpoint {name!r}", location=location, hint=hint)

    def listed(self) -> list[Checkpoint]:
        """All that can be restored, by pipeline, newest first."""
        found = []
        for key, item in self.pipelines.items():
            for manifest, names in _with_names(item):
                found += [summary(key, name, manifest) for name in names]
        return found

    # Going back

    def check(self, wanted: RestoreRequest) -> None:
        """Reject what `restore` would reject, and change nothing."""
        self._require_room(wanted, self._chosen(wanted))

    def restore(self, wanted: RestoreRequest) -> list[Restored]:
        chosen = self._chosen(wanted)
        warnings = self._require_room(wanted, chosen)
        return [
            Restored(
                key,
                manifest,
                restore(self.pipelines[key], manifest, wanted.keep),
                tuple(warnings.get(key, ())),
            )
            for key, manifest in chosen.items()
        ]

    def _chosen(self, wanted: RestoreRequest) -> dict[str, Manifest]:
        """By pipeline, the manifest to go back to; nothing is done unless all are there."""
        if isinstance(wanted.checkpoint, int):
            return self._of_epoch(wanted.checkpoint, wanted)
        named = self._named(wanted.checkpoint)
        if not named:
            raise self._unknown(wanted.checkpoint, wanted.location)
        keys = [key for key in named if key in self._asked(wanted)]
        if not keys:
            raise RunError(
                "TG-609",
                f"the checkpoint {wanted.checkpoint!r} has nothing of the pipeline "
                f"{wanted.pipeline}",
                location=wanted.location,
                hint=f"it has: {', '.join(named)}.",
            )
        return {key: self._usable(key, named[key], wanted) for key in keys}

    def _asked(self, wanted: RestoreRequest) -> list[str]:
        if wanted.pipeline is None:
            return list(self.pipelines)
        if wanted.pipeline.lower() not in self.pipelines:
            hint = did_you_mean(wanted.pipeline, self.pipelines, "pipelines")
            raise RunError(
                "TG-609",
                f"there is no pipeline {wanted.pipeline}",
                location=wanted.location,
                hint=hint,
            )
        return [wanted.pipeline.lower()]

    def _of_epoch(self, epoch: int, wanted: RestoreRequest) -> dict[str, Manifest]:
        keys = self._asked(wanted)
        if len(keys) > 1:
            raise RunError(
                "TG-609",
                f"each of the pipelines {', '.join(keys)} counts its own epochs",
                location=wanted.location,
                hint=f"RESTORE FROM CHECKPOINT {epoch} WITH (pipeline = '{keys[0]}');",
            )
        for key in keys:
            usable = self.pipelines[key].usable()
            found = next((m for m in usable if m.epoch == epoch), None)
            if found is not None:
                return {key: found}
            there = sorted({m.epoch for m in usable})
            raise RunError(
                "TG-609",
                f"epoch {epoch} of the pipeline {key} is not kept, or its state cannot be used",
                location=wanted.location,
                hint=f"epochs that are kept: {', '.join(map(str, there)) or 'none'}.",
            )
        raise RunError(
            "TG-609",
            "there is nothing to restore: no epoch was run",
            location=wanted.location,
            hint="SHOW CHECKPOINTS; lists what is there.",
        )

    def _usable(self, key: str, name: Name, wanted: RestoreRequest) -> Manifest:
        for manifest in self.pipelines[key].usable():
            if manifest.stamp == name.stamp:
                return manifest
        raise RunError(
            "TG-605",
            f"the checkpoint {name.name!r} of the pipeline {key} cannot be used: its manifest or "
            "its state is damaged",
            location=wanted.location,
            hint="SHOW CHECKPOINTS; lists the others.",
        )

    def _require_room(
        self, wanted: RestoreRequest, chosen: Mapping[str, Manifest]
    ) -> dict[str, list[TidegateError]]:
        """Sinks that cannot forget reject, unless they may keep what they have; then it is said."""
        warnings: dict[str, list[TidegateError]] = {}
        for key, manifest in chosen.items():
            ahead = sinks_ahead(self.pipelines[key], manifest, self.supports_rollback)
            if not ahead:
                continue
            have = ", ".join(f"{a.sink} ({a.connector}) up to epoch {a.epoch}" for a in ahead)
            if not wanted.keep:
                raise RunError(
                    "TG-610",
                    f"sinks have rows from after epoch {manifest.epoch}, and cannot forget them: "
                    f"{have}",
                    location=wanted.location,
                    hint=f"RESTORE FROM CHECKPOINT {_shown(wanted)}; leaves them there: rows that "
                    "are read again will be there twice.",
                )
            warnings[key] = [_twice(manifest, have)]
        return warnings


def _with_names(manifests: Manifests) -> Iterator[tuple[Manifest, Sequence[str | None]]]:
    """All that are kept, each with its names; one without a name has None."""
    names = manifests.checkpoint_names.all()
    for manifest in manifests.load_all():
        yield manifest, [n.name for n in names if n.stamp == manifest.stamp] or [None]


def _shown(wanted: RestoreRequest) -> str:
    """The statement that was written, with the sinks in it."""
    what = f"'{wanted.checkpoint}'" if isinstance(wanted.checkpoint, str) else wanted.checkpoint
    only = f"pipeline = '{wanted.pipeline}', " if wanted.pipeline is not None else ""
    return f"{what} WITH ({only}sinks = 'keep')"


def _twice(manifest: Manifest, have: str) -> RunError:
    return RunError(
        "TG-610",
        f"rows from after epoch {manifest.epoch} stay in sinks that cannot forget them, and will "
        f"be there twice: {have}",
        hint="remove them by hand if they matter: their files are named after their epochs.",
    )
