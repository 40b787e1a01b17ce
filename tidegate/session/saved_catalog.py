"""What was declared in a data directory, for a shell that opens it again.

A script is the home of its declarations; what people type has no other home than this.
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

_FILE = "_declared.json"


@dataclass(frozen=True)
class SavedDeclarations:
    """Declarations as SQL, by the file they came from, and the names of those that are not kept:
    they hold a secret, were declared in Python, or depend on such a thing."""

    scripts: tuple[tuple[str | None, str], ...] = ()
    secret: tuple[str, ...] = ()


def save_declarations(directory: DataDirectory, catalog: Catalog) -> None:
    """Keep what is declared; what holds a secret or is Python is left out, with its dependents."""
    secret = _secret(catalog)
    items = [item for item in map(catalog.get, catalog.names()) if item is not None]
    kept = [
        {"sql": item.statement.text, "file": _absolute(item.origin.file)}
        for item in items
        if not isinstance(item, SideStream) and item.name not in secret
    ]
    data = json.dumps({"declared": kept, "secret": secret}, indent=1).encode()
    try:
        known = directory.store.get(_FILE)
    except NotFound:
        known = b""
    if data != known and (kept or known):
        directory.store.put(_FILE, data, durable=False)


def _secret(catalog: Catalog) -> list[str]:
    found = [
        item.name
        for item in map(catalog.get, catalog.names())
        if item is not None and (SECRET in item.statement.text or not item.statement.text)
    ]
    for name in found:
        found += [d.name for d in catalog.dependents(name) if d.name not in found]
    return found


def _absolute(file: str | None) -> str | None:
    """Relative paths of a script begin beside it, also for whoever comes from elsewhere."""
    return str(Path(file).resolve()) if file is not None and Path(file).is_file() else None


def load_declarations(directory: DataDirectory) -> SavedDeclarations:
    """What was declared last."""
    try:
        stored = json.loads(directory.store.get(_FILE))
    except NotFound:
        return SavedDeclarations()
    scripts: dict[str | None, list[str]] = {}
    for item in stored["declared"]:
        scripts.setdefault(item["file"], []).append(item["sql"] + ";")
    texts = tuple((file, "\n".join(parts)) for file, parts in scripts.items())
    return SavedDeclarations(texts, tuple(stored["secret"]))
