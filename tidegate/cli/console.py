"""`tidegate console`: a data directory in the browser, also while it is in use. No Spark."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

import tidegate
from tidegate.cli import data
from tidegate.cli.guard import Interrupts
from tidegate.cli.report import InputProblem
from tidegate.cli.screen import Screen
from tidegate.cli.text import LogFormat
from tidegate.observe.server import LOOPBACK, Address, MetricsServer, StatusSource

if TYPE_CHECKING:
    from tidegate.console.app import ConsoleServer
    from tidegate.session.session import Session


# ---- Who may look at a run from outside: metrics, and the console in the browser.

CONSOLE = Address(LOOPBACK, 8571)


@dataclass(frozen=True)
class Watching:
    """What a run serves, and where; None for what was not asked for."""

    metrics: Address | None = None
    console: Address | None = None
    log: LogFormat = LogFormat.TEXT


def console_address(enabled: bool, listen: str | None) -> Address | None:
    """Return the address of the console, or None if it was not requested."""
    listen_address = address("--listen", listen, "127.0.0.1:8571")
    if listen_address is not None and not enabled:
        raise InputProblem("--listen says where the console listens", "--console --listen 8571")
    if enabled:
        require_console()
    return (listen_address or CONSOLE) if enabled else None


def address(option: str, text: str | None, example: str) -> Address | None:
    """Where an option says to serve."""
    if text is None:
        return None
    parsed = Address.parse(text)
    if parsed is None:
        raise InputProblem(f"{option} {text}: that is not a HOST:PORT", f"{option} {example}")
    return parsed


@contextmanager
def watched(session: Session, watching: Watching, screen: Screen, title: str) -> Iterator[None]:
    """Serve the metrics and the console while the session runs."""
    with ExitStack() as open_servers:
        if watching.metrics is not None:
            server = MetricsServer(watching.metrics, status_source(session))
            open_servers.callback(server.close)
            screen.line(f"metrics: http://{server.address}/metrics")
        if watching.console is not None:
            console = _console(session, title, watching.console)
            open_servers.callback(console.close)
            screen.line(f"console: {console.url}")
        yield


def _console(session: Session, title: str, where: Address) -> ConsoleServer:
    from tidegate.console.app import ConsoleServer
    from tidegate.console.providers import RunningSession

    return ConsoleServer(RunningSession(session, title), where)


def require_console() -> None:
    """What the console is made of is not installed with Tidegate itself."""
    if find_spec("starlette") is None or find_spec("uvicorn") is None:
        raise InputProblem("the console is not installed", "pip install 'tidegate[console]'")


def status_source(session: Session) -> StatusSource:
    """Return the source of metrics and health for a session."""
    return StatusSource(
        session.status,
        lambda: [timeline.sums() for timeline in session.timelines()],
        tidegate.__version__,
    )


_SECONDS_BETWEEN_LOOKS = 0.25


def console(path: str, where: Address | None) -> int:
    """Serve until the user has seen enough."""
    data.require(path)
    require_console()
    from tidegate.console.app import ConsoleServer
    from tidegate.console.providers import StoredDirectory

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
