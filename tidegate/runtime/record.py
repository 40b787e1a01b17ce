"""What a pipeline remembers about itself, so that a changed one is not mistaken for the old one.

Spark numbers the sources of a query by position. If the sources of a stream change, old offsets
would be applied to other sources; that is refused here. A changed query over the same sources goes
on at the committed offsets.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tidegate.errors import DataDirectoryError

FORMAT = 1


@dataclass(frozen=True)
class SourceIdentity:
    """A source as its offsets know it."""

    name: str
    connector: str
    options: tuple[tuple[str, str], ...]

    def as_json(self) -> dict[str, object]:
        return {"name": self.name, "connector": self.connector, "options": dict(self.options)}


@dataclass(frozen=True)
class PipelineRecord:
    """The stored identity of a pipeline; its key groups are fixed by its first epoch."""

    id: str
    query_hash: str
    key_groups: int


def query_hash(text: str) -> str:
    """The same for texts that differ in white space only."""
    return hashlib.sha256(" ".join(text.split()).encode()).hexdigest()


def open_record(
    directory: Path,
    stream: str,
    sources: Sequence[SourceIdentity],
    text: str,
    refuse_change: bool,
    operators: Sequence[str] = (),
    key_groups: int = 16,
) -> PipelineRecord:
    """Load and check the record of a pipeline, or start a new one."""
    path = directory / "pipeline.json"
    wanted = [source.as_json() for source in sources]
    digest = query_hash(text)
    identity = uuid.uuid4().hex[:8]
    fingerprints: object = {}
    if path.exists():
        stored = _load(path)
        if stored["sources"] != wanted:
            raise DataDirectoryError(
                "TG-603",
                f"the sources of the stream {stream} changed since its last epoch: it read "
                f"{_names(stored['sources'])}, now it reads {_names(wanted)}",
                hint="give the stream another name, or remove its data: "
                f"rm -r {directory} (it then starts from the beginning).",
            )
        if refuse_change and stored["query_hash"] != digest:
            raise DataDirectoryError(
                "TG-603",
                f"the query of the stream {stream} changed since its last epoch",
                hint="it has on_change = 'refuse'; set on_change = 'continue' to go on from the "
                "committed offsets.",
            )
        if stored.get("operators", []) != list(operators):
            raise DataDirectoryError(
                "TG-603",
                f"the stream {stream} needs other operators than at its last epoch: "
                f"{_listed(stored.get('operators', []))} then, {_listed(operators)} now",
                hint="give the stream another name, or remove its data: "
                f"rm -r {directory} (it then starts from the beginning).",
            )
        identity = str(stored["id"])
        fingerprints = stored.get("fingerprints", {})
        key_groups = int(str(stored.get("key_groups", key_groups)))
    record = {
        "format": FORMAT,
        "id": identity,
        "stream": stream,
        "sources": wanted,
        "query_hash": digest,
        "operators": list(operators),
        "key_groups": key_groups,
        "fingerprints": fingerprints,
    }
    write_json(path, record)
    return PipelineRecord(identity, digest, key_groups)


def changed_operators(directory: Path, fingerprints: Mapping[str, str]) -> list[str]:
    """Remember what the operators mean, and say which meant something else before."""
    path = directory / "pipeline.json"
    record = _load(path)
    before = record.get("fingerprints", {})
    assert isinstance(before, dict), "a record has its fingerprints by operator"
    if before != dict(fingerprints):
        write_json(path, {**record, "fingerprints": dict(fingerprints)})
    return [name for name, now in fingerprints.items() if before.get(name, now) != now]


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


def _listed(operators: object) -> str:
    assert isinstance(operators, list | tuple), "a record lists its operators"
    return ", ".join(str(name) for name in operators) or "none"


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
