"""The catalog: all declared objects by name, with their dependencies."""

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
    """The declared objects. Names are case-insensitive and unique across all kinds of objects."""

    def __init__(self) -> None:
        self._objects: dict[str, Declared] = {}

    def copy(self) -> Catalog:
        """Return an independent copy with the same objects."""
        other = Catalog()
        other._objects = dict(self._objects)
        return other

    def add(self, declared: Declared) -> None:
        assert declared.name.lower() not in self._objects, f"{declared.name} exists"
        self._objects[declared.name.lower()] = declared

    def replace(self, declared: Declared) -> None:
        """Replace an object, for example by one with the types that Spark has determined."""
        assert declared.name.lower() in self._objects, f"{declared.name} does not exist"
        self._objects[declared.name.lower()] = declared

    def remove(self, name: str) -> None:
        """Remove an object and its side streams."""
        removed = self._objects.pop(name.lower())
        for side in [
            s for s in self.of_type(SideStream) if s.parent.lower() == removed.name.lower()
        ]:
            del self._objects[side.name.lower()]

    def get(self, name: str) -> Declared | None:
        return self._objects.get(name.lower())

    def of_type(self, kind: type[T]) -> Iterator[T]:
        return (item for item in list(self._objects.values()) if isinstance(item, kind))

    def of_kind(self, kind: ObjectKind) -> list[Declared]:
        return [item for item in self._objects.values() if item.kind is kind]

    def readable_names(self) -> list[str]:
        """Return the names that a query can read."""
        kinds = (Source, Stream, LookupTable, SideStream)
        return [item.name for item in self._objects.values() if isinstance(item, kinds)]

    def names(self) -> list[str]:
        return [item.name for item in self._objects.values()]

    def dependents(self, name: str) -> list[Declared]:
        """Return the objects that read this object or one of its side streams."""
        targets = {name.lower()} | {
            side.name.lower()
            for side in self.of_type(SideStream)
            if side.parent.lower() == name.lower()
        }
        readers: list[Declared] = []
        for stream in self.of_type(Stream):
            if targets & {table.lower() for table in tables_in(stream.query.tree)}:
                readers.append(stream)
        readers += [sink for sink in self.of_type(Sink) if sink.stream.lower() in targets]
        if isinstance(self.get(name), Function):
            readers += [d for d in self._objects.values() if name.lower() in functions_in(d)]
        return readers

    def all_dependents(self, name: str) -> list[Declared]:
        """Return the direct and indirect readers of an object, in the order of declaration."""
        names = {item.name for item in self.dependents(name)}
        frontier = set(names)
        while frontier:
            frontier = {item.name for name in frontier for item in self.dependents(name)} - names
            names |= frontier
        return [item for item in self._objects.values() if item.name in names]


# The code, message and hint of an error.
Problem = tuple[str, str, str]


def drop_problem(statement: st.Drop, declared: Declared | None, catalog: Catalog) -> Problem | None:
    """Return why an object cannot be dropped, or None."""
    if declared is None:
        hint = did_you_mean(statement.name, catalog.names(), "names")
        return "TG-201", f"unknown name {statement.name}", hint
    if declared.kind is not statement.kind:
        message = f"{declared.name} is a {declared.kind.value.lower()}"
        return "TG-201", message, f"DROP {declared.kind.value} {declared.name};"
    if isinstance(declared, SideStream):
        parent = catalog.get(declared.parent)
        assert parent is not None, "a side stream has a parent"
        message = (
            f"{declared.name} holds the {declared.side_kind.value} of {parent.kind.value.lower()} "
            f"{parent.name} and is dropped with it"
        )
        clause = f"dead_letters = '{declared.name}'"
        if declared.is_late:
            clause = f"LATE DATA TO {declared.name}"
        return "TG-204", message, f"to stop keeping them, remove {clause} from {parent.name}."
    readers = catalog.dependents(declared.name)
    if readers:
        names = ", ".join(f"{item.kind.value.lower()} {item.name}" for item in readers)
        message = f"{declared.name} cannot be dropped, because other objects depend on it: {names}"
        first = readers[0]
        return "TG-204", message, f"DROP {first.kind.value} {first.name}; first."
    return None


# The presence of the lock file marks a directory as a data directory.
LOCK = "tidegate.lock"
SPARK_LOG = "spark.log"
# File systems allow 255 bytes; a file of a sink contains the names of the pipeline and the sink.
MAX_NAME_BYTES = 100
_RESERVED = frozenset({LOCK, SPARK_LOG})
_SIGNS = frozenset("_-. ")


def name_problem(name: str) -> str | None:
    """Return why a name cannot be the name of a directory, or None if it can."""
    folder = name.lower()
    if not name.strip():
        return "it is empty"
    if len(folder.encode("utf-8", "replace")) > MAX_NAME_BYTES:
        return f"it is longer than {MAX_NAME_BYTES} bytes"
    if folder in _RESERVED:
        return "it is the name of a file of the data directory"
    invalid = next((sign for sign in name if not (sign.isalnum() or sign in _SIGNS)), None)
    if invalid is not None:
        return f"it contains {invalid!r}"
    if folder[0] in "_.":
        return "names that start with _ or . are reserved"
    if name != name.strip() or name.endswith("."):
        return "it starts or ends with a space or a dot"
    return None


def side_names(statement: st.Declaration) -> list[str]:
    """Return the names of the side streams of a declaration: dead letters and late rows."""
    if not isinstance(statement, st.CreateSource | st.CreateStream):
        return []
    names = [item.value for item in statement.options if item.name.lower() == "dead_letters"]
    if isinstance(statement, st.CreateStream) and statement.query.emit is not None:
        late_to = statement.query.emit.late_to
        names += [late_to] if late_to is not None else []
    return names


def declarations_by_name(script: st.Script) -> dict[str, st.Declaration]:
    """Return the declarations of a script by lower-case name, including side streams."""
    declarations: dict[str, st.Declaration] = {}
    for statement in script.statements:
        if isinstance(statement, st.Declaration):
            declarations.setdefault(statement.name.lower(), statement)
    for statement in list(declarations.values()):
        for name in side_names(statement):
            declarations.setdefault(name.lower(), statement)
    return declarations


def name_errors(created: Iterable[Declared]) -> list[CatalogError]:
    """Return an error for each name that cannot be the name of a directory."""
    return [
        CatalogError(
            "TG-210",
            f"{item.name!r} cannot be a name: {reason}",
            location=_name_location(item),
            hint="use letters, digits, _ and -, for example my_stream.",
        )
        for item in created
        if (reason := name_problem(item.name)) is not None
    ]


def _name_location(item: Declared) -> Location:
    span = side_span(item) if isinstance(item, SideStream) else item.statement.name_span
    return Location(item.script.text, span.start, span.end, item.script.file)


def side_span(item: SideStream) -> Span:
    """Return the position of the name of a side stream in its statement."""
    statement = item.statement
    emit = statement.query.emit if isinstance(statement, st.CreateStream) else None
    if item.is_late and emit is not None and emit.late_to_span is not None:
        return emit.late_to_span
    spans = [item.value_span for item in statement.options if item.name.lower() == "dead_letters"]
    return spans[0] if spans else statement.name_span
