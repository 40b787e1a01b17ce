"""A store on an object store: S3 and what speaks like it, Google Cloud Storage, Azure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import obstore

from tidegate.storage import fetched, uris
from tidegate.storage.clients import Client, claim
from tidegate.storage.failure import NotThere, StorageError
from tidegate.storage.object_failure import of_store_error
from tidegate.storage.object_writer import ObjectWriter
from tidegate.storage.store import Item, Items, checked, is_moved

if TYPE_CHECKING:
    import pyarrow as pa
    from obstore import GetOptions


class ObjectStore:
    """The objects of a bucket below a prefix."""

    def __init__(self, uri: str, client: Client) -> None:
        self.uri = uri
        self._client = client
        self._prefix = uris.bucket_and_key(uri)[1]

    def __repr__(self) -> str:
        return f"ObjectStore(uri={self.uri!r})"

    @property
    def local(self) -> bool:
        return False

    def child(self, name: str) -> ObjectStore:
        return ObjectStore(self._uri(checked(name)), self._client)

    def put_new(self, name: str, data: bytes) -> None:
        key = self._key(name)
        with self.asking(name, "cannot be written"):
            obstore.put(self._client.store, key, data, mode="create")

    def put(self, name: str, data: bytes, durable: bool = True) -> None:
        key = self._key(name)
        with self.asking(name, "cannot be written"):
            obstore.put(self._client.store, key, data)

    def get(self, name: str) -> bytes:
        key = self._key(name)
        with self.asking(name, "cannot be read"):
            return obstore.get(self._client.store, key).bytes().to_bytes()

    def get_range(self, name: str, start: int, length: int) -> bytes:
        key = self._key(name)
        # A range must have bytes in it, so that what is left of it is asked for.
        length = min(length, self.size(name) - start)
        if length <= 0:
            return b""
        with self.asking(name, "cannot be read"):
            return obstore.get_range(self._client.store, key, start=start, length=length).to_bytes()

    def exists(self, name: str) -> bool:
        try:
            self.size(name)
        except NotThere:
            return False
        return True

    def size(self, name: str) -> int:
        key = self._key(name)
        with self.asking(name, "cannot be read"):
            return obstore.head(self._client.store, key)["size"]

    def list(self, folder: str = "") -> Items:
        below = self._key(folder) + "/" if folder else self._prefix and self._prefix + "/"
        cut = len(self._prefix) + 1 if self._prefix else 0
        with self.asking(folder, "cannot be listed"):
            pages = obstore.list(self._client.store, below.rstrip("/") or None)
            found = [
                Item(meta["path"][cut:], meta["size"], _micros(meta["last_modified"].timestamp()))
                for page in pages
                for meta in page
                # Some tools put an empty object in the place of a folder.
                if meta["path"].startswith(below)
            ]
        return sorted(found, key=lambda item: item.name)

    def asides(self, folder: str = "") -> Items:
        """None: what was uploaded half cannot be seen, and the store's own rules remove it."""
        return []

    def delete(self, names: Iterable[str]) -> None:
        keys = [self._key(name) for name in names]
        if not keys:
            return
        try:
            with self.asking("", "cannot be deleted"):
                obstore.delete(self._client.store, keys)
        except NotThere:
            # Not every store thinks that deleting what is gone is fine.
            self._delete_each(keys)

    def delete_all(self, folder: str) -> None:
        self.delete(item.name for item in self.list(folder))

    def move_new(self, source: str, goal: str) -> None:
        keys = self._key(source), self._key(goal)
        if is_moved(self, source, goal):
            return
        try:
            with self.asking(source, f"cannot be moved to {goal}"):
                obstore.copy(self._client.store, *keys)
        except NotThere:
            # Another process was faster, and did the same.
            if not is_moved(self, source, goal):
                raise
        self.delete([source])

    def sync(self, folders: Iterable[str]) -> None:
        """Nothing: what an object store has accepted is durable."""

    def sync_files(self, names: Iterable[str]) -> None:
        """Nothing, for the same reason."""

    def writer(self, name: str) -> ObjectWriter:
        return ObjectWriter(self, self._client, self._key(name), name)

    def map(self, name: str) -> pa.Buffer:
        key = self._key(name)
        with self.asking(name, "cannot be read"):
            meta = obstore.head(self._client.store, key)

        def download(write: Callable[[memoryview], object]) -> None:
            with self.asking(name, "cannot be read"):
                same: GetOptions = {"if_match": meta["e_tag"]}
                for chunk in obstore.get(self._client.store, key, options=same).stream():
                    write(memoryview(chunk))

        version = f"{self._client.endpoint}\n{meta['e_tag']}\n{meta['last_modified']}"
        return fetched.mapped(self._uri(name), version, meta["size"], download)

    def local_path(self, name: str = "") -> Path:
        raise AssertionError(f"{self._uri(name)} has no path on this machine")

    def spark_uri(self, name: str = "") -> str:
        return uris.for_spark(self._uri(name))

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{checked(name)}" if self._prefix else checked(name)

    def _uri(self, name: str) -> str:
        return f"{self.uri}/{name}" if name else self.uri

    def _delete_each(self, keys: Iterable[str]) -> None:
        for key in keys:
            try:
                with self.asking("", "cannot be deleted"):
                    obstore.delete(self._client.store, key)
            except NotThere:
                continue

    @contextmanager
    def asking(self, name: str, what: str) -> Iterator[None]:
        """Errors of the object store as ours. Theirs are left out: they may show more than ours."""
        claim(self.uri)
        try:
            yield
        except StorageError:
            raise
        except (obstore.exceptions.BaseError, OSError, ValueError) as error:
            raise of_store_error(error, self._uri(name), what, self._client.secrets) from None


def _micros(seconds: float) -> int:
    return round(seconds * 1_000_000)
