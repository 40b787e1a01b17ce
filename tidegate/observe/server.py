"""An HTTP server for /metrics, /health and /ready, and the addresses that servers listen on."""

from __future__ import annotations

import ipaddress
import json
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from tidegate.errors import RunError
from tidegate.observe.status import State, StreamStatus
from tidegate.observe.timeline import EpochTotals

# ---- Addresses and request headers

LOOPBACK = "127.0.0.1"
FOREIGN_HOST = "the Host header does not name this machine"


@dataclass(frozen=True)
class Address:
    """A host and a port to listen on."""

    host: str
    port: int

    @classmethod
    def from_text(cls, text: str) -> Address | None:
        """Parse `HOST:PORT`, `[IPv6]:PORT` or `PORT`. Returns None if the text is none of them.

        Without a host, the address is that of the loopback interface.
        """
        host, colon, port = text.rpartition(":")
        if host.startswith("[") != host.endswith("]") or (":" in host and "[" not in host):
            return None
        if not (port.isascii() and port.isdigit()) or int(port) > 65535:
            return None
        if colon and not host:
            return None
        return cls(host.strip("[]") or LOOPBACK, int(port))

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the address."""
        return is_loopback(self.host)

    def accepts_host(self, host_header: str) -> bool:
        """Return whether a request with this Host header may be answered.

        This prevents DNS rebinding: a foreign page can make its own host name resolve to this
        machine, but the request still carries that name. IP addresses cannot be redirected.
        """
        name = _host_name(host_header)
        if name is None:
            return False
        if is_loopback(name):
            return True
        if self.is_loopback:
            return False
        local_names = {self.host.lower(), socket.gethostname().lower(), socket.getfqdn().lower()}
        return _is_ip(name) or name in local_names


def is_loopback(host: str) -> bool:
    """Return whether a host is the loopback interface."""
    if host.lower() == "localhost":
        return True
    return _is_ip(host) and ipaddress.ip_address(host).is_loopback


def same_origin(origin: str, host_header: str) -> bool:
    """Return whether an Origin header names the host that the request was sent to."""
    return urlsplit(origin).netloc.lower() == host_header.lower()


def _host_name(host_header: str) -> str | None:
    try:
        return urlsplit(f"//{host_header}").hostname
    except ValueError:
        return None


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


# ---- Health, for process supervisors and load balancers

_READY_STATES = (State.RUNNING, State.FINISHED)


@dataclass(frozen=True)
class Health:
    """The result of a health or readiness check."""

    ok: bool
    problems: tuple[str, ...] = ()

    @property
    def status_code(self) -> int:
        """The HTTP status."""
        return 200 if self.ok else 503

    def content(self) -> dict[str, Any]:
        """Return the JSON body."""
        return {"status": "ok" if self.ok else "failing", "problems": list(self.problems)}


def health(statuses: Sequence[StreamStatus]) -> Health:
    """Return whether no stream has failed.

    A stream that waits for another system is healthy: a restart would not help.
    """
    failed = [status for status in statuses if status.state is State.FAILED]
    return Health(not failed, tuple(map(_problem, failed)))


def readiness(statuses: Sequence[StreamStatus]) -> Health:
    """Return whether every stream is running or finished, and none waits for another system."""
    if not statuses:
        return Health(False, ("no stream has been started yet",))
    unready = [s for s in statuses if s.state not in _READY_STATES or s.error is not None]
    return Health(not unready, tuple(map(_problem, unready)))


def _problem(status: StreamStatus) -> str:
    reason = f": {status.error}" if status.error is not None else ""
    return f"{status.name} is {status.state.value}{reason}"


# ---- The server


@dataclass(frozen=True)
class StatusSource:
    """Provides the current status; the functions are called for every request."""

    statuses: Callable[[], tuple[StreamStatus, ...]]
    epoch_totals: Callable[[], list[EpochTotals]]
    version: str


@dataclass(frozen=True)
class HttpResponse:
    """A complete response."""

    status_code: int
    content_type: str
    body: bytes


def respond(source: StatusSource, path: str, accept: str = "") -> HttpResponse:
    """Answer a GET request. `accept` is the Accept header, which selects the metrics format."""
    if path == "/metrics":
        return _metrics(source, accept)
    if path == "/health":
        return _health_response(health(source.statuses()))
    if path == "/ready":
        return _health_response(readiness(source.statuses()))
    return HttpResponse(404, "text/plain", b"use /metrics, /health or /ready\n")


def _metrics(source: StatusSource, accept: str) -> HttpResponse:
    # Importing prometheus_client takes about 50 ms: do it for the first scrape, not at startup.
    from tidegate.observe.prometheus import StatusCollector, exposition

    collector = StatusCollector(source.statuses(), source.epoch_totals(), source.version)
    body, content_type = exposition(collector, accept)
    return HttpResponse(200, content_type, body)


def _health_response(result: Health) -> HttpResponse:
    return HttpResponse(
        result.status_code, "application/json", json.dumps(result.content()).encode()
    )


class MetricsServer:
    """Serves in background threads from construction until `close`."""

    def __init__(self, address: Address, source: StatusSource) -> None:
        try:
            self._server = _Server((address.host, address.port), _handler(address, source))
        except OSError as error:
            raise listen_error(address, error) from None
        self.address = Address(address.host, self._server.server_address[1])
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="tidegate metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop serving and release the port."""
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True


def _handler(address: Address, source: StatusSource) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        server_version = "tidegate"
        sys_version = ""

        def do_GET(self) -> None:
            if not address.accepts_host(self.headers.get("Host", "")):
                self._send(HttpResponse(403, "text/plain", f"{FOREIGN_HOST}\n".encode()))
                return
            path, accept = self.path.partition("?")[0], self.headers.get("Accept", "")
            self._send(respond(source, path, accept))

        def _send(self, response: HttpResponse) -> None:
            self.send_response(response.status_code)
            self.send_header("Content-Type", response.content_type)
            self.send_header("Content-Length", str(len(response.body)))
            self.end_headers()
            self.wfile.write(response.body)

        def log_message(self, format: str, *args: Any) -> None:
            """Suppress the access log."""

    return Handler


def listen_error(address: Address, error: OSError) -> RunError:
    """Return the error for an address that cannot be listened on."""
    return RunError(
        "TG-511",
        f"cannot listen on {address}: {error.strerror or error}",
        hint="choose another port, or 0 for any free port.",
    )
