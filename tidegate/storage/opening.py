"""Opening a store by its URI, and asking whether a place can be trusted with data."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

from tidegate.storage.local import LocalStore
from tidegate.storage.store import AlreadyThere, StorageError, Store
from tidegate.storage.uris import uri as absolute

NO_OPTIONS: Mapping[str, str] = MappingProxyType({})


def open_store(uri: str, options: Mapping[str, str] = NO_OPTIONS) -> Store:
    """The store at a URI; nothing is read or made yet, and the same URI gives the same store."""
    return _opened(absolute(uri), tuple(sorted(options.items())))


@lru_cache(maxsize=256)
def _opened(uri: str, options: tuple[tuple[str, str], ...]) -> Store:
    if uri.startswith("file:"):
        return LocalStore(uri)
    from tidegate.storage.objects import ObjectStore, open_client

    return ObjectStore(uri, open_client(uri, dict(options)))


def probe(store: Store) -> None:
    """Raise a StorageError unless the store can be written and creates each name only once.

    Some servers that speak S3 do not know the condition, and would replace what is there.
    """
    name = f"probe-{os.getpid()}-{os.urandom(8).hex()}"
    store.put_new(name, b"1")
    try:
        store.put_new(name, b"2")
    except AlreadyThere:
        return
    finally:
        store.delete([name])
    raise StorageError(
        store.uri,
        "replaces what is already there (it ignores If-None-Match)",
        hint="use a store that supports conditional writes.",
    )
