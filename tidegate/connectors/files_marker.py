"""The marker of a files sink: the last epoch that it has, and what its files look like."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from tidegate.catalog.connector import Columns, Values
from tidegate.connectors.protocols import EpochId

_TEXT_OPTIONS = ("header", "delimiter")


class Damaged(Exception):
    """A marker that cannot be believed, and why."""


@dataclass(frozen=True)
class Shape:
    """What the files of a sink look like: columns with types, folders, and how they are written."""

    format: str
    partition_by: tuple[str, ...]
    columns: Columns
    # How CSV is written.
    header: bool | None = None
    delimiter: str | None = None

    @classmethod
    def of(cls, options: Values, columns: Columns) -> Shape:
        text = _TEXT_OPTIONS if options["format"] == "csv" else ()
        folders = tuple(name.lower() for name in options["partition_by"] or ())
        return cls(options["format"], folders, columns, **{name: options[name] for name in text})

    @classmethod
    def stored(cls, content: dict[str, Any]) -> Shape:
        columns = tuple((str(name), str(kind)) for name, kind in content["columns"])
        folders = tuple(map(str, content["partition_by"]))
        return cls(**{**content, "columns": columns, "partition_by": folders})

    def changes(self, before: Shape) -> list[str]:
        """How these files are others than those of before, in words."""
        found = [
            f"{name} was {_shown(old)} and is {_shown(new)} now"
            for name in ("format", "partition_by", *_TEXT_OPTIONS)
            if (old := getattr(before, name)) != (new := getattr(self, name))
        ]
        was, now = dict(before.columns), dict(self.columns)
        found += [f"the column {name} {was[name]} is gone" for name in was if name not in now]
        found += [f"the column {name} {now[name]} is new" for name in now if name not in was]
        found += [
            f"the column {name} was {was[name]} and is {now[name]} now"
            for name in was
            if name in now and was[name].lower() != now[name].lower()
        ]
        if not found and self.format == "csv" and list(was) != list(now):
            found = [f"the columns were {', '.join(was)} and are {', '.join(now)} now"]
        return found


@dataclass(frozen=True)
class Marker:
    """What a sink has; one without a shape was written before there were any."""

    epoch: EpochId
    shape: Shape | None = None

    def to_bytes(self) -> bytes:
        content: dict[str, Any] = asdict(self.epoch)
        if self.shape is not None:
            content["shape"] = asdict(self.shape)
        return json.dumps(content).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Marker:
        try:
            stored = json.loads(data)
            epoch = EpochId(int(stored.get("generation", 0)), int(stored["epoch"]))
            shape = Shape.stored(stored["shape"]) if "shape" in stored else None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Damaged(str(error)) from None
        return cls(epoch, shape)


def _shown(value: Any) -> str:
    return (", ".join(value) or "nothing") if isinstance(value, tuple) else str(value)
