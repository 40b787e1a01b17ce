"""What a pipeline remembers about itself, so that a changed one is not mistaken for the old one.

Spark numbers the sources of a query by position. If the sources of a stream change, old offsets
would be applied to other sources; that is refused here. An operator whose meaning changed, its own
or that of anything below it, would mix old state with new rows; that is refused too, unless the
stream says to go on without its state.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tidegate.errors import DataDirectoryError

FORMAT = 2


@dataclass(frozen=True)
class SourceIdentity:
    """A source as its offsets know it."""

    name: str
    connector: str
    options: tuple[tuple[str, str], ...]

    def as_json(self) -> dict[str, object]:
        return {"name": self.name, "connector": self.connector, "options": dict(self.options)}


@dataclass(frozen=True)
class OperatorIdentity:
    """An operator as its state knows it."""

    name: str
    fingerprint: str


@dataclass(frozen=True)
class PipelineRecord:
    """The stored identity of a pipeline; its key groups are fixed by its first epoch."""

    id: str
    key_groups: int
    # The operators that mean something else than at the last epoch: their state is discarded.
    changed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Pipeline:
    """A pipeline as it is declared now."""

    stream: str
    sources: Sequence[SourceIdentity]
    operators: Sequence[OperatorIdentity]
    # Whether an operator that changed goes on without its state.
    discards: bool
    key_groups: int = 16


def open_record(directory: Path, pipeline: Pipeline) -> PipelineRecord:
    """Load and check the record of a pipeline, or start a new one."""
    path = directory / "pipeline.json"
    record = PipelineRecord(uuid.uuid4().hex[:8], pipeline.key_groups)
    if path.exists():
        stored = _load(path)
        _require_same_sources(stored, pipeline, directory)
        changed = _changed(stored, pipeline, directory)
        record = PipelineRecord(str(stored["id"]), int(str(stored["key_groups"])), changed)
    write_json(
        path,
        {
            "format": FORMAT,
            "id": record.id,
            "stream": pipeline.stream,
            "sources": [source.as_json() for source in pipeline.sources],
            "operators": [asdict(operator) for operator in pipeline.operators],
            "key_groups": record.key_groups,
        },
    )
    return record


def _require_same_sources(stored: dict[str, object], pipeline: Pipeline, directory: Path) -> None:
    wanted = [source.as_json() for source in pipeline.sources]
    if stored["sources"] != wanted:
        raise DataDirectoryError(
            "TG-603",
            f"the sources of the stream {pipeline.stream} changed since its last epoch: it read "
            f"{_names(stored['sources'])}, now it reads {_names(wanted)}",
            hint=_start_over(directory),
        )


def _changed(stored: dict[str, object], pipeline: Pipeline, directory: Path) -> tuple[str, ...]:
    """The operators that changed; refused if they are others, or if nobody allows it."""
    before = stored["operators"]
    assert isinstance(before, list), "a record lists its operators"
    names = [str(operator["name"]) for operator in before]
    if names != [operator.name for operator in pipeline.operators]:
        now = [operator.name for operator in pipeline.operators]
        raise DataDirectoryError(
            "TG-603",
            f"the stream {pipeline.stream} needs other operators than at its last epoch: "
            f"{_listed(names)} then, {_listed(now)} now",
            hint=_start_over(directory),
        )
    changed = tuple(
        operator.name
        for old, operator in zip(before, pipeline.operators, strict=True)
        if old["fingerprint"] != operator.fingerprint
    )
    if changed and not pipeline.discards:
        raise DataDirectoryError(
            "TG-603",
            f"the query of the stream {pipeline.stream} changed since its last epoch, in or below "
            f"{_listed(changed)}: what is stored belongs to the query of before",
            hint="keep the query of before; or "
            + _start_over(directory)
            + " Or CREATE STREAM … WITH (on_change = 'continue'): it goes on from the committed "
            "offsets without what was stored, and windows that are open now come out incomplete.",
        )
    return changed


def _start_over(directory: Path) -> str:
    return (
        f"give the stream another name, or remove its data: rm -r {directory} (it then starts "
        "from the beginning)."
    )


def _load(path: Path) -> dict[str, object]:
    try:
        stored = json.loads(path.read_text("utf-8"))
        if stored["format"] != FORMAT:
            raise ValueError(f"format {stored['format']}")
    except (ValueError, KeyError, OSError) as error:
        raise DataDirectoryError(
            "TG-601",
            f"{path} cannot be read: {error}",
            hint=f"it was damaged, or written by another version; rm -r {path.parent} starts the "
            "stream from the beginning.",
        ) from None
    return dict(stored)


def _listed(operators: Sequence[str]) -> str:
    return ", ".join(operators) or "none"


def _names(sources: object) -> str:
    assert isinstance(sources, list), "a record lists its sources"
    return ", ".join(
        f"{source['name']} ({source['connector']}"
        + "".join(f", {key}={value}" for key, value in source["options"].items())
        + ")"
        for source in sources
    )


def write_json(path: Path, content: object, indent: int | None = 1) -> None:
    """Write aside, sync, rename: a crash leaves the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.tmp")
    with aside.open("w", encoding="utf-8") as file:
        json.dump(content, file, indent=indent, sort_keys=True)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)
