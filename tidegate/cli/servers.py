"""The metrics and console servers: of a run, and of a data directory (`tidegate console`)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

import tidegate
from tidegate.cli.directory import require_data_directory
from tidegate.cli.errors import Interrupts, UsageError
from tidegate.cli.screen import Screen
from tidegate.observe.server import LOOPBACK, Address, MetricsServer, StatusSource

if TYPE_CHECKING:
    from tidegate.session.session import Session

CONSOLE_ADDRESS = Address(LOOPBACK, 8571)

# ---- Options


def parse_address(option: str, text: str | None, example: str) -> Address | None:
    """Return the address that an option names, or None if the option is missing."""
    if text is None:
        return None
    address = Address.from_text(text)
    if address is None:
        raise UsageError(f"{option} {text}: expected [HOST:]PORT", f"{option} {example}")
    return address


def parse_console_address(enabled: bool, listen: str | None) -> Address | None:
    """Return the address of the console of a run, or None without --console."""
    address = parse_address("--listen", listen, "127.0.0.1:8571")
    if address is not None and not enabled:
        raise UsageError("--listen requires --console", "--console --listen 8571")
    if enabled:
        _require_console()
    return (address or CONSOLE_ADDRESS) if enabled else None


def _require_console() -> None:
    """Raise an error if the optional dependencies of the console are not installed."""
    if find_spec("starlette") is None or find_spec("uvicorn") is None:
        raise UsageError("the console is not installed", "pip install 'tidegate[console]'")


# ---- Servers


@contextmanager
def serve_session(
    session: Session, title: str, screen: Screen, metrics: Address | None, console: Address | None
) -> Iterator[None]:
    """Serve the metrics and the console of a session at the addresses that are not None."""
    with ExitStack() as servers:
        if metrics is not None:
            metrics_server = MetricsServer(metrics, _status_source(session))
            servers.callback(metrics_server.close)
            screen.print_line(f"metrics: http://{metrics_server.address}/metrics")
        if console is not None:
            from tidegate.console.app import ConsoleServer
            from tidegate.console.providers import SessionProvider

            console_server = ConsoleServer(SessionProvider(session, title), console)
            servers.callback(console_server.close)
            screen.print_line(f"console: {console_server.url}")
        yield


def _status_source(session: Session) -> StatusSource:
    return StatusSource(
        session.status,
        lambda: [timeline.totals() for timeline in session.timelines()],
        tidegate.__version__,
    )


_POLL_INTERVAL_S = 0.25


def console(path: str, address: Address | None) -> int:
    """Serve the console of a data directory until Ctrl-C."""
    require_data_directory(path)
    _require_console()
    from tidegate.console.app import ConsoleServer
    from tidegate.console.providers import DirectoryProvider

    interrupts = Interrupts()
    interrupts.install()
    server = ConsoleServer(DirectoryProvider(path), address or CONSOLE_ADDRESS)
    print(f"console: {server.url}", flush=True)
    try:
        while not interrupts.requested:
            time.sleep(_POLL_INTERVAL_S)
    finally:
        server.close()
    return 0
