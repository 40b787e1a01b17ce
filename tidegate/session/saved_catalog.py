"""Save the declarations of a session in its data directory, so that the shell can load them again.

Scripts contain their own declarations. Statements that users type into the shell are stored only
here.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from tidegate.catalog.catalog import Catalog
from tidegate.catalog.objects import SideStream
from tidegate.errors import SECRET
from tidegate.runtime.directory import DataDirectory
from tidegate.storage import NotFound

_FILE = "_declarations.json"


@dataclass(frozen=True)
class SavedDeclarations:
    """Saved declarations as SQL, grouped by script file, and the names of those that are not saved.

    A declaration is not saved if it contains a secret, was made in Python, or depends on such a
    one.
    """

    scripts: tuple[tuple[str | None, str], ...] = ()
    unsaved: tuple[str, ...] = ()


def save_declarations(directory: DataDirectory, catalog: Catalog) -> None:
    """Save the declarations, except those with secrets or Python code and their dependents."""
    unsaved = _unsaved_names(catalog)
    items = [item for item in map(catalog.get, catalog.names()) if item is not None]
    declarations = [
        {"sql": item.statement.text, "file": _absolute(item.script.file)}
        for item in items
        if not isinstance(item, SideStream) and item.name not in unsaved
    ]
    data = json.dumps({"declarations": declarations, "unsaved": unsaved}, indent=1).encode()
    try:
        stored = directory.store.get(_FILE)
    except NotFound:
        stored = b""
    if data != stored and (declarations or stored):
        directory.store.put(_FILE, data, durable=False)


def _unsaved_names(catalog: Catalog) -> list[str]:
    """Return the names of declarations with secrets or Python code, and of their dependents."""
    names = [
        item.name
        for item in map(catalog.get, catalog.names())
        if item is not None and (SECRET in item.statement.text or not item.statement.text)
    ]
    for name in names:
        names += [d.name for d in catalog.dependents(name) if d.name not in names]
    return names


def _absolute(file: str | None) -> str | None:
    """Return the absolute path of a script; its relative paths start at its directory."""
    return str(Path(file).resolve()) if file is not None and Path(file).is_file() else None


def load_declarations(directory: DataDirectory) -> SavedDeclarations:
    """Load the declarations that were saved last."""
    try:
        stored = json.loads(directory.store.get(_FILE))
    except NotFound:
        return SavedDeclarations()
    scripts: dict[str | None, list[str]] = {}
    for item in stored["declarations"]:
        scripts.setdefault(item["file"], []).append(item["sql"] + ";")
    texts = tuple((file, "\n".join(parts)) for file, parts in scripts.items())
    return SavedDeclarations(texts, tuple(stored["unsaved"]))
