"""Ctrl-C once asks to stop, twice means now."""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType

from tidegate.cli.guard import INTERRUPTED

_SHOW_CURSOR = b"\x1b[?25h\n"


class Interrupts:
    """Counts what the user or the system asked for; the one who runs looks at `requested`.

    The handler does next to nothing, because it runs in the middle of anything: locks may be held
    and lines half written.
    """

    def __init__(self) -> None:
        self._count = 0

    @property
    def requested(self) -> bool:
        return self._count > 0

    def note(self) -> str:
        return "stopping… (Ctrl-C again to leave at once)" if self.requested else ""

    def install(self) -> None:
        """Spark puts its own handler in place when it starts, so this is called again after."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self._handle)
            signal.signal(signal.SIGTERM, self._handle)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        self.count()

    def count(self) -> None:
        """One more request; the second ends the process, which leaves nothing half done on disk:
        the epoch that was under way is repeated by the next run."""
        self._count += 1
        if self._count > 1:
            if sys.stdout.isatty():
                os.write(sys.stdout.fileno(), _SHOW_CURSOR)
            os._exit(INTERRUPTED)
