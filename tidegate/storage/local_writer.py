"""A file in the making on a local disk: written aside, synced, then given its name."""

from __future__ import annotations

import os
from contextlib import suppress
from types import TracebackType

from tidegate.storage import disk
from tidegate.storage.failure import AlreadyThere, changing

_BUFFER_BYTES = 1 << 20


class LocalWriter:
    """Collects bytes beside their goal; `close` makes them the goal, `abort` forgets them."""

    def __init__(
        self, uri: str, goal: str, aside: tuple[str, int], replace: bool, durable: bool = True
    ) -> None:
        self._uri = uri
        self._goal = goal
        self._aside, self._handle = aside
        self._replace = replace
        self._durable = durable
        self._pending = bytearray()
        self._written = 0
        self._open = True

    @property
    def closed(self) -> bool:
        return not self._open

    def write(self, data: bytes | memoryview) -> int:
        """Take more bytes; small ones are collected first."""
        if not self._open:
            raise ValueError("write to a closed writer")
        view = memoryview(data).cast("B")
        if len(self._pending) + len(view) > _BUFFER_BYTES:
            self.flush()
        if len(view) > _BUFFER_BYTES:
            self._send(view)
        else:
            self._pending += view
        return len(view)

    def tell(self) -> int:
        return self._written + len(self._pending)

    def flush(self) -> None:
        """Hand to the disk what was collected."""
        pending, self._pending = self._pending, bytearray()
        self._send(memoryview(pending))

    def close(self) -> None:
        """Make it durable under its name; closing twice is fine."""
        if not self._open:
            return
        try:
            self.flush()
            with changing(self._uri):
                if self._durable:
                    disk.current().sync(self._handle)
                self._release()
                self._give_name()
                if self._durable:
                    disk.current().sync_folder(os.path.dirname(self._goal))
        except BaseException:
            self.abort()
            raise

    def abort(self) -> None:
        """Leave nothing behind; also after an error, and twice is fine."""
        self._release()
        with suppress(OSError):
            disk.current().unlink(self._aside)

    def __enter__(self) -> LocalWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        elif self._open:
            self.abort()

    def _send(self, data: memoryview) -> None:
        with changing(self._uri):
            disk.current().write(self._handle, data)
        self._written += len(data)

    def _give_name(self) -> None:
        if self._replace:
            disk.current().rename(self._aside, self._goal)
            return
        try:
            disk.current().link(self._aside, self._goal)
        except FileExistsError:
            # A network file system may have linked it, lost its answer and tried again.
            if not os.path.samefile(self._aside, self._goal):
                raise AlreadyThere(self._uri) from None
        disk.current().unlink(self._aside)

    def _release(self) -> None:
        if self._open:
            self._open = False
            with suppress(OSError):
                disk.current().close(self._handle)
