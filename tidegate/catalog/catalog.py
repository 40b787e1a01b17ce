"""The catalog: everything declared, by name, and who depends on whom."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from tidegate.catalog.objects import (
    Declared,
    Function,
    LookupTable,
    SideStream,
    Sink,
    Source,
    Stream,
    functions_in,
    tables_in,
)
from tidegate.sql.statements import ObjectKind

T = TypeVar("T", bound=Declared)


class Catalog:
    """Names are case-insensitive and shared by all kinds of objects."""

    def __init__(self) -> None:
        self._objects: dict[str, Declared] = {}

    def copy(self) -> Catalog:
        """A catalog with the same objects that can be changed on its own."""
        other = Catalog()
        other._objects = dict(self._objects)
        return other

    def add(self, declared: Declared) -> None:
        assert declared.name.lower() not in self._objects, f"{declared.name} exists"
        self._objects[declared.name.lower()] = declared

    def replace(self, declared: Declared) -> None:
        """Put a better-known version of an object in its place (types found out by Spark)."""
        assert declared.name.lower() in self._objects, f"{declared.name} does not exist"
        self._objects[declared.name.lower()] = declared

    def remove(self, name: str) -> None:
        """Forget an object and the streams it brought along."""
        removed = self._objects.pop(name.lower())
        for side in [s for s in self.of(SideStream) if s.parent.lower() == removed.name.lower()]:
            del self._objects[side.name.lower()]

    def get(self, name: str) -> Declared | None:
        return self._objects.get(name.lower())

    def of(self, kind: type[T]) -> Iterator[T]:
        return (item for item in list(self._objects.values()) if isinstance(item, kind))

    def listed(self, kind: ObjectKind) -> list[Declared]:
        return [item for item in self._objects.values() if item.kind is kind]

    def readable(self) -> list[str]:
        """The names a query may read."""
        kinds = (Source, Stream, LookupTable, SideStream)
        return [item.name for item in self._objects.values() if isinstance(item, kinds)]

    def names(self) -> list[str]:
        return [item.name for item in self._objects.values()]

    def dependents(self, name: str) -> list[Declared]:
        """What reads this object, or the streams it brought along."""
        targets = {name.lower()} | {
            side.name.lower() for side in self.of(SideStream) if side.parent.lower() == name.lower()
        }
        readers: list[Declared] = []
        for stream in self.of(Stream):
            if targets & {table.lower() for table in tables_in(stream.query.tree)}:
                readers.append(stream)
        readers += [sink for sink in self.of(Sink) if sink.source.lower() in targets]
        if isinstance(self.get(name), Function):
            readers += [d for d in self._objects.values() if name.lower() in functions_in(d)]
        return readers

    def all_dependents(self, name: str) -> list[Declared]:
        """What reads this object, directly or through others, in the order of declaration."""
        found = {item.name for item in self.dependents(name)}
        new = set(found)
        while new:
            new = {item.name for other in new for item in self.dependents(other)} - found
            found |= new
        return [item for item in self._objects.values() if item.name in found]
