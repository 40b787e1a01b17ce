"""An object in the making: small ones are sent at once when they are closed, big ones in parts."""

from __future__ import annotations

from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING

import obstore

from tidegate.storage.clients import Client
from tidegate.storage.failure import AlreadyThere

if TYPE_CHECKING:
    from obstore import WritableFile

    from tidegate.storage.objects import ObjectStore

_PART_BYTES = 8 << 20


class ObjectWriter:
    """Collects bytes; nobody sees anything of them before `close`.

    Only an object of one part is created on condition that it is not there. For bigger ones it is
    asked before, which is enough for names that nobody else uses.
    """

    def __init__(self, store: ObjectStore, client: Client, key: str, name: str) -> None:
        self._store = store
        self._client = client
        self._key = key
        self._name = name
        self._pending = bytearray()
        self._written = 0
        self._upload: WritableFile | None = None
        self._open = True

    @property
    def closed(self) -> bool:
        return not self._open

    def write(self, data: bytes | memoryview) -> int:
        if not self._open:
            raise ValueError("write to a closed writer")
        view = memoryview(data).cast("B")
        self._pending += view
        self._written += len(view)
        if len(self._pending) > _PART_BYTES:
            self._send()
        return len(view)

    def tell(self) -> int:
        return self._written

    def flush(self) -> None:
        """Nothing: parts have a size of their own."""

    def close(self) -> None:
        """Make it visible under its name; closing twice is fine."""
        if not self._open:
            return
        try:
            if self._upload is None:
                self._create(bytes(self._pending))
            else:
                self._send()
                with self._store.asking(self._name, "cannot be written"):
                    self._upload.close()
                self._upload = None
        finally:
            self.abort()

    def _create(self, data: bytes) -> None:
        """Where an answer was lost, what is already there is ours."""
        try:
            self._store.put_new(self._name, data)
        except AlreadyThere:
            if self._store.get(self._name) != data:
                raise

    def abort(self) -> None:
        """Leave nothing behind; also after an error, and twice is fine."""
        self._open = False
        self._pending.clear()
        upload, self._upload = self._upload, None
        if upload is not None:
            # Leaving it by an exception is how an upload is told to remove its parts.
            stop = RuntimeError("aborted")
            with suppress(obstore.exceptions.BaseError, OSError, RuntimeError):
                upload.__exit__(RuntimeError, stop, None)

    def __enter__(self) -> ObjectWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            self.abort()

    def _send(self) -> None:
        if self._upload is None:
            if self._store.exists(self._name):
                raise AlreadyThere(f"{self._store.uri}/{self._name}")
            self._upload = obstore.open_writer(
                self._client.store, self._key, buffer_size=_PART_BYTES, max_concurrency=4
            )
        with self._store.asking(self._name, "cannot be written"):
            self._upload.write(bytes(self._pending))
        self._pending.clear()
