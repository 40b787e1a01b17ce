"""Names of checkpoints: a manifest that has one is kept until the name is dropped.

A name is a small file of its own, so that a manifest is never written again. What it stands for is
in the name of the file: to know what must be kept, nothing has to be read.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidegate.storage import Store

FOLDER = "names"
_FILE = re.compile(r"names/(.+)\.(\d+)-(\d+)\.json")


@dataclass(frozen=True)
class Name:
    """A name and the epoch it stands for."""

    name: str
    generation: int
    epoch: int

    @property
    def stamp(self) -> str:
        return f"{self.generation:03d}-{self.epoch:012d}"

    @property
    def file(self) -> str:
        return f"{FOLDER}/{self.name}.{self.stamp}.json"


class Names:
    """The names that were given in one pipeline; upper and lower case are the same."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def all(self) -> list[Name]:
        found = (_FILE.fullmatch(item.name) for item in self.store.list(FOLDER))
        return [Name(m.group(1), int(m.group(2)), int(m.group(3))) for m in found if m is not None]

    def find(self, name: str) -> Name | None:
        return next((item for item in self.all() if item.name.lower() == name.lower()), None)

    def add(self, name: Name) -> None:
        self.store.put_new(name.file, json.dumps(asdict(name)).encode())

    def remove(self, name: Name) -> None:
        self.store.delete([name.file])
