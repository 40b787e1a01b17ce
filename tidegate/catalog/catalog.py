"""The catalog: everything declared, by name, and who depends on whom."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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
from tidegate.errors import CatalogError, Location, did_you_mean
from tidegate.sql import statements as st
from tidegate.sql.statements import ObjectKind
from tidegate.types import Span

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


# ---- DROP against what is declared: what depends on a thing keeps it.

# A code, a message and a hint.
Reason = tuple[str, str, str]


def drop_rejection(
    statement: st.Drop, declared: Declared | None, catalog: Catalog
) -> Reason | None:
    """Why a thing cannot be dropped."""
    if declared is None:
        hint = did_you_mean(statement.name, catalog.names(), "names")
        return "TG-201", f"unknown name {statement.name}", hint
    if declared.kind is not statement.kind:
        message = f"{declared.name} is a {declared.kind.value.lower()}"
        return "TG-201", message, f"DROP {declared.kind.value} {declared.name};"
    if isinstance(declared, SideStream):
        message = (
            f"{declared.name} goes with {declared.parent}: it holds its {declared.holds.value}"
        )
        return "TG-204", message, f"drop {declared.parent}."
    readers = catalog.dependents(declared.name)
    if readers:
        names = ", ".join(f"{item.kind.value.lower()} {item.name}" for item in readers)
        message = f"{declared.name} cannot be dropped while others depend on it: {names}"
        first = readers[0]
        return "TG-204", message, f"DROP {first.kind.value} {first.name}; first."
    return None


# ---- Names of declared things, which are also names of folders and files.

# Its name also says that a directory is ours.
LOCK = "tidegate.lock"
SPARK_LOG = "spark.log"
# File systems take 255 bytes, and the files of a sink have the names of its pipeline and its own.
MOST_BYTES = 100
_RESERVED = frozenset({LOCK, SPARK_LOG})
_SIGNS = frozenset("_-. ")


def unsafe(name: str) -> str | None:
    """Why a name cannot name a folder of the data directory; None if it can."""
    folder = name.lower()
    if not name.strip():
        return "it is empty"
    if len(folder.encode("utf-8", "replace")) > MOST_BYTES:
        return f"it is longer than {MOST_BYTES} bytes"
    if folder in _RESERVED:
        return "the data directory has a file of that name"
    wrong = next((sign for sign in name if not (sign.isalnum() or sign in _SIGNS)), None)
    if wrong is not None:
        return f"it contains {wrong!r}"
    if folder[0] in "_.":
        return "what begins with _ or . in the data directory is Tidegate's own"
    if name != name.strip() or name.endswith("."):
        return "it begins or ends with a blank or a dot"
    return None


# ---- The names a declaration gives: its own, and those of the streams it brings along.


def side_names(statement: st.Declaration) -> list[str]:
    """The streams a declaration brings along: dead letters, late rows of a stream."""
    if not isinstance(statement, st.CreateSource | st.CreateStream):
        return []
    found = [item.value for item in statement.options if item.name.lower() == "dead_letters"]
    if isinstance(statement, st.CreateStream) and statement.query.emit is not None:
        late_to = statement.query.emit.late_to
        found += [late_to] if late_to is not None else []
    return found


def names_of(script: st.Script) -> dict[str, st.Declaration]:
    """By name, in lower case: what a script declares, and the streams that come with it."""
    found: dict[str, st.Declaration] = {}
    for statement in script.statements:
        if isinstance(statement, st.Declaration):
            found.setdefault(statement.name.lower(), statement)
    for statement in list(found.values()):
        for name in side_names(statement):
            found.setdefault(name.lower(), statement)
    return found


def unsafe_names(created: Iterable[Declared]) -> list[CatalogError]:
    """Names are also folders of the data directory, and must stay inside of it."""
    return [
        CatalogError(
            "TG-210",
            f"{item.name!r} cannot be a name: {reason}",
            location=_name_place(item),
            hint="a name is made of letters, digits, _ and -, for example my_stream.",
        )
        for item in created
        if (reason := unsafe(item.name)) is not None
    ]


def _name_place(item: Declared) -> Location:
    span = _side_span(item) if isinstance(item, SideStream) else item.statement.name_span
    return Location(item.origin.text, span.start, span.end, item.origin.file)


def _side_span(item: SideStream) -> Span:
    """Where the name of dead letters or late rows stands."""
    statement = item.statement
    emit = statement.query.emit if isinstance(statement, st.CreateStream) else None
    if item.is_late and emit is not None and emit.late_to_span is not None:
        return emit.late_to_span
    spans = [item.value_span for item in statement.options if item.name.lower() == "dead_letters"]
    return spans[0] if spans else statement.name_span
