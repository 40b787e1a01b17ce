"""Where the machines of a cluster find files: a path of one machine's disk is not such a place."""

from __future__ import annotations

from collections.abc import Iterable

from tidegate.catalog.objects import Declared
from tidegate.errors import CatalogError, DataDirectoryError, Place, TidegateError
from tidegate.storage import uri

_HINT = (
    "use a URI that all machines reach, such as s3://bucket/folder; or, if this path leads to the "
    "same files on all of them (NFS, say), SET shared_disk = true;"
)


def is_cluster(master: str | None) -> bool:
    """Whether tasks run on other machines than the driver."""
    return master is not None and not master.startswith("local")


def unshared_directory(data: str) -> TidegateError | None:
    """A data directory that tasks on other machines could not read or write."""
    if not data.startswith("file:"):
        return None
    return DataDirectoryError(
        "TG-601",
        f"the data directory {data} is on the disk of one machine, and tasks of a cluster run on "
        "others",
        hint=_HINT,
    )


def unshared_paths(declared: Iterable[Declared]) -> list[TidegateError]:
    """Sources and sinks with a path that tasks on other machines could not read or write."""
    return [_misplaced(item) for item in declared if _is_local(item)]


def _is_local(item: Declared) -> bool:
    path = item.options.get("path")
    return isinstance(path, str) and uri(path).startswith("file:")


def _misplaced(item: Declared) -> TidegateError:
    given = next(option for option in item.statement.options if option.name.lower() == "path")
    span = given.value_span
    return CatalogError(
        "TG-207",
        f"the path of {item.name} is on the disk of one machine, and tasks of a cluster run on "
        "others",
        place=Place(item.origin.text, span.start, span.end, item.origin.file),
        hint=_HINT,
    )
