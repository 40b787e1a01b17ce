"""`tidegate console`: a data directory in the browser, also while it is in use. No Spark."""

from __future__ import annotations

import time

from tidegate.cli import data
from tidegate.cli.interrupts import Interrupts
from tidegate.cli.watching import CONSOLE, require_console
from tidegate.observe.address import Address

_SECONDS_BETWEEN_LOOKS = 0.25


def console(path: str, where: Address | None) -> int:
    """Serve until the user has seen enough."""
    data.require(path)
    require_console()
    from tidegate.console.server import ConsoleServer
    from tidegate.console.stored import StoredDirectory

    interrupts = Interrupts()
    interrupts.install()
    server = ConsoleServer(StoredDirectory(path), where or CONSOLE)
    print(f"console: {server.url}", flush=True)
    try:
        while not interrupts.requested:
            time.sleep(_SECONDS_BETWEEN_LOOKS)
    finally:
        server.close()
    return 0
