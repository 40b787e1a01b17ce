"""Streams that a data directory knows and nobody declares any more.

Their offsets and their state are kept: declared again, they go on where they were. `tidegate prune`
removes what is kept of them.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable

from tidegate.catalog.catalog import Catalog
from tidegate.checkpoint.manifest import Manifest
from tidegate.checkpoint.manifests import Manifests
from tidegate.errors import RunError
from tidegate.runtime.directory import DataDirectory
from tidegate.runtime.planning import pipeline_of

# Whether a stream of a pipeline is declared.
IsDeclared = Callable[[str, str], bool]


def declared_in(*catalogs: Catalog) -> IsDeclared:
    """A stream is declared if it is so for the pipeline that knows it."""

    def is_declared(pipeline: str, stream: str) -> bool:
        found = [item for catalog in catalogs if (item := catalog.get(stream)) is not None]
        return any(pipeline_of(item) == pipeline for item in found)

    return is_declared


def parked(directory: DataDirectory, is_declared: IsDeclared) -> dict[str, list[str]]:
    """By pipeline, the streams that are not declared."""
    found = {}
    for pipeline in directory.pipelines():
        manifest = Manifests(directory.pipeline(pipeline)).last()
        streams = manifest.streams if manifest is not None else {}
        names = [name for name in sorted(streams) if not is_declared(pipeline, name)]
        if names:
            found[pipeline] = names
    return found


def state_bytes(manifest: Manifest, stream: str) -> int:
    """How large the state files are in which a stream has a part."""
    own = [o for o in manifest.operators.values() if o.stream == stream]
    return sum({file: size for o in own for file, size in o.files.items()}.values())


def parked_warning(directory: DataDirectory, catalog: Catalog) -> RunError | None:
    """What to say about streams that are kept for nobody."""
    found = parked(directory, declared_in(catalog))
    names = sorted({name for streams in found.values() for name in streams})
    if not names:
        return None
    is_one = len(names) == 1
    those = f"the stream {names[0]}" if is_one else f"the streams {', '.join(names)}"
    # By its name a stream would go from the pipeline that it runs in now, too.
    moved = any(catalog.get(name) is not None for name in names)
    which = ["--script", "FILE"] if moved else names
    command = " ".join(shlex.quote(part) for part in [str(directory.path), *which])
    return RunError(
        "TG-614",
        f"{those} {'is' if is_one else 'are'} parked: no longer declared in "
        f"{' and '.join(found)}, with offsets and state kept",
        hint=f"declare {'it' if is_one else 'them'} again to go on from there; or stop, and remove "
        f"what is kept: tidegate prune {command}",
    )
