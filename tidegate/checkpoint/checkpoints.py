"""The statements CHECKPOINT, DROP CHECKPOINT, SHOW CHECKPOINTS and RESTORE.

`Checkpoints` runs them for all pipelines of a data directory. `checkpoint_row` and
`manifest_tables` present a manifest to users.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from tidegate.checkpoint.manifest import Manifest, OperatorState
from tidegate.checkpoint.manifests import CheckpointName, Manifests, NewestManifest
from tidegate.errors import DataDirectoryError, Location, RunError, TidegateError, did_you_mean

# ---- Restoring: an older manifest becomes the newest one, in a new generation
#
# Epoch numbers are never reused, so that files, committables and commit markers of epochs that are
# rolled back cannot be mistaken for those of later epochs.

# Returns whether a restore leaves no duplicates in the sinks of a connector.
ToleratesRestore = Callable[[str], bool]


@dataclass(frozen=True)
class NonRevertibleSink:
    """A sink that contains rows of epochs after a checkpoint and cannot roll them back."""

    sink: str
    connector: str
    epoch: int


def non_revertible_sinks(
    manifests: Manifests, checkpoint: Manifest, tolerates_restore: ToleratesRestore
) -> list[NonRevertibleSink]:
    """Return the sinks that would contain duplicates after a restore of `checkpoint`."""
    newest = _load_or_none(manifests.load_newest)
    sinks = []
    for name, sink in (newest.sinks if newest is not None else {}).items():
        if sink.epoch < 0 or tolerates_restore(sink.connector):
            continue
        if not checkpoint.includes(sink.generation, sink.epoch):
            sinks.append(NonRevertibleSink(name, sink.connector, sink.epoch))
    return sinks


def restore(manifests: Manifests, checkpoint: Manifest, keep_sink_rows: bool) -> Manifest:
    """Start a new generation with the content of `checkpoint`; return its first manifest.

    Before that, an empty epoch is committed to the old generation, so that a zombie driver fails to
    create its next manifest.
    """
    newest = _load_or_none(manifests.recover)
    if newest is not None:
        manifests.create(replace(newest, epoch=newest.epoch + 1))
    generation, epoch = manifests.highest_numbers()
    manifest = checkpoint.restored_as(generation + 1, epoch + 1)
    previous = max(
        checkpoint.keep_before_generation,
        newest.keep_before_generation if newest is not None else 0,
    )
    manifest = replace(
        manifest, keep_before_generation=generation + 1 if keep_sink_rows else previous
    )
    manifests.create(manifest)
    return manifest


def _load_or_none(load: Callable[[], NewestManifest]) -> Manifest | None:
    """Return the loaded manifest, or None if all are damaged: RESTORE must work then, too."""
    try:
        return load().manifest
    except DataDirectoryError as error:
        if error.code != "TG-605":
            raise
        return None


# ---- Presenting manifests

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Rows = list[tuple[Any, ...]]


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint, as SHOW CHECKPOINTS lists it. Epochs without a name have `name` None."""

    pipeline: str
    name: str | None
    generation: int
    epoch: int
    time: datetime
    streams: int
    rows_in: int
    state_bytes: int


COLUMNS = tuple(Checkpoint.__dataclass_fields__)


def checkpoint_row(pipeline: str, name: str | None, manifest: Manifest) -> Checkpoint:
    """Return the row of a manifest in SHOW CHECKPOINTS."""
    return Checkpoint(
        pipeline,
        name,
        manifest.generation,
        manifest.epoch,
        _EPOCH + timedelta(microseconds=manifest.processing_time_us),
        len(manifest.streams),
        sum(stream.rows_in for stream in manifest.streams.values()),
        sum(_counter(operator, "bytes") for operator in manifest.operators.values()),
    )


@dataclass(frozen=True)
class ManifestTable:
    """A part of a manifest, as a table."""

    title: str
    columns: tuple[str, ...]
    rows: Rows


def manifest_tables(manifest: Manifest) -> list[ManifestTable]:
    """Return the sources, streams, operators and sinks of a manifest as tables."""
    return [
        ManifestTable("sources", ("source", "connector", "stream", "offset"), _sources(manifest)),
        ManifestTable(
            "streams",
            ("stream", "rows_in", "rows_out", "dead_letters", "ended"),
            [
                (name, s.rows_in, s.rows_out, s.dead_letters, s.ended)
                for name, s in manifest.streams.items()
            ],
        ),
        ManifestTable(
            "operators",
            ("stream", "operator", "groups", "rows", "bytes", "late_rows", "files", "watermark"),
            [_operator(operator) for operator in manifest.operators.values()],
        ),
        ManifestTable(
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
    numbers = [_counter(operator, name) for name in ("groups", "rows", "bytes", "late_rows")]
    return (operator.stream, operator.name, *numbers, len(operator.files), _watermark(operator))


def _counter(operator: OperatorState, name: str) -> int:
    return int(operator.report.get(name) or 0)


def _watermark(operator: OperatorState) -> datetime | str | None:
    micros = operator.report.get("watermark_us")
    if micros is None:
        return None
    try:
        return _EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        # After the end of input the watermark is larger than every time.
        return "end" if micros > 0 else None


def offset_text(offset: Any) -> str:
    """Format an offset in one line; of lists only the length is shown."""
    if offset is None:
        return "nothing read yet"
    if not isinstance(offset, dict):
        return str(offset)
    return ", ".join(
        f"{key} {len(value) if isinstance(value, list | dict) else value}"
        for key, value in offset.items()
    )


# ---- The statements

_GENERATED_NAME = re.compile(r"checkpoint-(\d+)")


@dataclass(frozen=True)
class RestoreRequest:
    """The arguments of RESTORE: the name of a checkpoint or an epoch, and options."""

    checkpoint: str | int
    # Whether sinks that cannot roll back keep the rows of epochs after the checkpoint.
    keep_sink_rows: bool = False
    # Restore only this pipeline; by default all.
    pipeline: str | None = None
    location: Location | None = None


@dataclass(frozen=True)
class Restored:
    """A restored pipeline: the manifest that was restored, and the first one after it."""

    pipeline: str
    checkpoint: Manifest
    manifest: Manifest
    warnings: tuple[TidegateError, ...] = ()


class Checkpoints:
    """The checkpoints of the pipelines of a data directory."""

    def __init__(
        self, pipelines: Mapping[str, Manifests], tolerates_restore: ToleratesRestore
    ) -> None:
        self.pipelines = pipelines
        self.tolerates_restore = tolerates_restore

    def create(
        self, name: str | None, location: Location | None = None
    ) -> dict[str, CheckpointName]:
        """Name the newest manifest of every pipeline; generate a name if there is none."""
        if name is not None and self._find_name(name):
            raise RunError(
                "TG-202",
                f"the checkpoint {name!r} already exists",
                location=location,
                hint=f"choose another name, or run DROP CHECKPOINT '{name}'; first.",
            )
        name = name if name is not None else self._generate_name()
        names = {
            pipeline: checkpoint
            for pipeline, manifests in self.pipelines.items()
            if (checkpoint := manifests.name_newest(name)) is not None
        }
        if not names:
            raise RunError(
                "TG-609",
                "there is nothing to checkpoint: no epoch has been committed",
                location=location,
                hint="start the streams and wait for their first rows.",
            )
        return names

    def _generate_name(self) -> str:
        matches = [_GENERATED_NAME.fullmatch(name) for name in self.names()]
        numbers = [int(match.group(1)) for match in matches if match is not None]
        return f"checkpoint-{max(numbers, default=0) + 1}"

    def names(self) -> list[str]:
        return sorted(
            {n.name for item in self.pipelines.values() for n in item.checkpoint_names.all()}
        )

    def _find_name(self, name: str) -> dict[str, CheckpointName]:
        return {
            pipeline: checkpoint
            for pipeline, manifests in self.pipelines.items()
            if (checkpoint := manifests.checkpoint_names.find(name)) is not None
        }

    def exists(self, name: str) -> bool:
        return bool(self._find_name(name))

    def drop(self, name: str, location: Location | None = None) -> None:
        names = self._find_name(name)
        if not names:
            raise self._unknown_name(name, location)
        for pipeline, checkpoint in names.items():
            self.pipelines[pipeline].drop_name(checkpoint)

    def _unknown_name(self, name: str, location: Location | None) -> RunError:
        hint = did_you_mean(name, self.names(), "named checkpoints")
        return RunError(
            "TG-609", f"the checkpoint {name!r} does not exist", location=location, hint=hint
        )

    def list_all(self) -> list[Checkpoint]:
        """List all stored manifests by pipeline, newest first, once per name."""
        checkpoints = []
        for pipeline, manifests in self.pipelines.items():
            all_names = manifests.checkpoint_names.all()
            for manifest in manifests.load_all():
                names: list[str | None]
                names = [item.name for item in all_names if item.stamp == manifest.stamp]
                checkpoints += [
                    checkpoint_row(pipeline, name, manifest) for name in names or [None]
                ]
        return checkpoints

    def check(self, request: RestoreRequest) -> None:
        """Raise the errors that `restore` would raise, without changing anything."""
        self._check_sinks_can_roll_back(request, self._find_manifests(request))

    def restore(self, request: RestoreRequest) -> list[Restored]:
        """Restore the requested pipelines."""
        manifests = self._find_manifests(request)
        warnings = self._check_sinks_can_roll_back(request, manifests)
        return [
            Restored(
                pipeline,
                manifest,
                restore(self.pipelines[pipeline], manifest, request.keep_sink_rows),
                tuple(warnings.get(pipeline, ())),
            )
            for pipeline, manifest in manifests.items()
        ]

    def _find_manifests(self, request: RestoreRequest) -> dict[str, Manifest]:
        """Return the requested manifest of each pipeline, or raise if one is missing."""
        if isinstance(request.checkpoint, int):
            return self._find_epoch(request.checkpoint, request)
        names = self._find_name(request.checkpoint)
        if not names:
            raise self._unknown_name(request.checkpoint, request.location)
        pipelines = [key for key in names if key in self._requested_pipelines(request)]
        if not pipelines:
            raise RunError(
                "TG-609",
                f"the checkpoint {request.checkpoint!r} does not contain the pipeline "
                f"{request.pipeline}",
                location=request.location,
                hint=f"it contains: {', '.join(names)}.",
            )
        return {key: self._load_usable(key, names[key], request) for key in pipelines}

    def _requested_pipelines(self, request: RestoreRequest) -> list[str]:
        if request.pipeline is None:
            return list(self.pipelines)
        if request.pipeline.lower() not in self.pipelines:
            hint = did_you_mean(request.pipeline, self.pipelines, "pipelines")
            raise RunError(
                "TG-609",
                f"the pipeline {request.pipeline} does not exist",
                location=request.location,
                hint=hint,
            )
        return [request.pipeline.lower()]

    def _find_epoch(self, epoch: int, request: RestoreRequest) -> dict[str, Manifest]:
        keys = self._requested_pipelines(request)
        if len(keys) > 1:
            raise RunError(
                "TG-609",
                f"epoch {epoch} is ambiguous: each of the pipelines {', '.join(keys)} has its own "
                "epochs",
                location=request.location,
                hint=f"RESTORE FROM CHECKPOINT {epoch} WITH (pipeline = '{keys[0]}');",
            )
        for key in keys:
            usable = self.pipelines[key].load_usable()
            manifest = next((m for m in usable if m.epoch == epoch), None)
            if manifest is not None:
                return {key: manifest}
            epochs = sorted({m.epoch for m in usable})
            raise RunError(
                "TG-609",
                f"epoch {epoch} of the pipeline {key} has expired or does not exist, or its state "
                "is damaged",
                location=request.location,
                hint=f"available epochs: {', '.join(map(str, epochs)) or 'none'}.",
            )
        raise RunError(
            "TG-609",
            "there is nothing to restore: no epoch has been committed",
            location=request.location,
            hint="SHOW CHECKPOINTS; lists the checkpoints.",
        )

    def _load_usable(self, key: str, name: CheckpointName, request: RestoreRequest) -> Manifest:
        for manifest in self.pipelines[key].load_usable():
            if manifest.stamp == name.stamp:
                return manifest
        raise RunError(
            "TG-605",
            f"the checkpoint {name.name!r} of the pipeline {key} cannot be used: its manifest or "
            "its state is damaged",
            location=request.location,
            hint="SHOW CHECKPOINTS; lists the others.",
        )

    def _check_sinks_can_roll_back(
        self, request: RestoreRequest, manifests: Mapping[str, Manifest]
    ) -> dict[str, list[TidegateError]]:
        """Raise if a sink that cannot roll back is ahead; return warnings with `keep_sink_rows`."""
        warnings: dict[str, list[TidegateError]] = {}
        for key, manifest in manifests.items():
            ahead = non_revertible_sinks(self.pipelines[key], manifest, self.tolerates_restore)
            if not ahead:
                continue
            sinks = ", ".join(f"{s.sink} ({s.connector}) up to epoch {s.epoch}" for s in ahead)
            if not request.keep_sink_rows:
                raise RunError(
                    "TG-610",
                    f"sinks contain rows of epochs after epoch {manifest.epoch} and cannot roll "
                    f"them back: {sinks}",
                    location=request.location,
                    hint=f"RESTORE FROM CHECKPOINT {_with_keep(request)}; keeps these rows. Rows "
                    "that are read again will then be in these sinks twice.",
                )
            warnings[key] = [
                RunError(
                    "TG-610",
                    f"sinks that cannot roll back keep the rows of epochs after epoch "
                    f"{manifest.epoch}, which will be duplicated: {sinks}",
                    hint="remove the duplicates by hand: the files of a sink are named after "
                    "their epochs.",
                )
            ]
        return warnings


def _with_keep(request: RestoreRequest) -> str:
    """Return the arguments of the RESTORE statement with sinks = 'keep' added."""
    is_name = isinstance(request.checkpoint, str)
    checkpoint = f"'{request.checkpoint}'" if is_name else request.checkpoint
    pipeline = f"pipeline = '{request.pipeline}', " if request.pipeline is not None else ""
    return f"{checkpoint} WITH ({pipeline}sinks = 'keep')"
