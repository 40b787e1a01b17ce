"""Checks for clusters, whose tasks cannot read paths on the disk of the driver."""

from __future__ import annotations

from collections.abc import Iterable

from tidegate.catalog.objects import Declared
from tidegate.errors import CatalogError, DataDirectoryError, Location, TidegateError
from tidegate.storage import uri

_HINT = (
    "use a URI that all machines can access, such as s3://bucket/folder. If the path is a network "
    "file system that is mounted on all machines, SET shared_disk = true;"
)


def is_cluster(master: str | None) -> bool:
    """Return whether tasks run on other machines than the driver."""
    return master is not None and not master.startswith("local")


def unshared_directory(data: str) -> TidegateError | None:
    """Return the error for a data directory that tasks on other machines cannot access."""
    if not data.startswith("file:"):
        return None
    return DataDirectoryError(
        "TG-601",
        f"the data directory {data} is on the disk of one machine, but tasks of a cluster run on "
        "others",
        hint=_HINT,
    )


def unshared_paths(declared: Iterable[Declared]) -> list[TidegateError]:
    """Return errors for sources and sinks with a path that only the driver can access."""
    errors: list[TidegateError] = []
    for item in declared:
        path = item.options.get("path")
        if not isinstance(path, str) or not uri(path).startswith("file:"):
            continue
        option = next(o for o in item.statement.options if o.name.lower() == "path")
        span = option.value_span
        errors.append(
            CatalogError(
                "TG-207",
                f"the path of {item.name} is on the disk of one machine, but tasks of a cluster "
                "run on others",
                location=Location(item.script.text, span.start, span.end, item.script.file),
                hint=_HINT,
            )
        )
    return errors
