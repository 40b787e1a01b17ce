"""A small server for /metrics, /health and /ready, made of Python alone."""

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
from tidegate.observe.timeline import EpochSums

# ---- Where somebody may look from: addresses to serve on, and names to be called by.

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Address:
    """A host and a port to serve on; without a host, only this machine can reach it."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address | None:
        """`HOST:PORT`, `[IPv6]:PORT` or `PORT`; None if it is none of them."""
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
        return is_loopback(self.host)

    def answers_to(self, host_header: str) -> bool:
        """Whether a request may call this machine so.

        A page of somebody else's can make its own name mean this machine (DNS rebinding); then the
        request still carries that name. Addresses cannot be made to mean another machine.
        """
        name = _host_of(host_header)
        if name is None:
            return False
        if is_loopback(name):
            return True
        if self.is_loopback:
            return False
        own = {self.host.lower(), socket.gethostname().lower(), socket.getfqdn().lower()}
        return _is_ip(name) or name in own


def is_loopback(host: str) -> bool:
    """Whether a host is always this machine."""
    if host.lower() == "localhost":
        return True
    return _is_ip(host) and ipaddress.ip_address(host).is_loopback


def same_origin(origin: str, host_header: str) -> bool:
    """Whether a page that sends a request came from the place that it sends it to."""
    return urlsplit(origin).netloc.lower() == host_header.lower()


def _host_of(header: str) -> str | None:
    try:
        return urlsplit(f"//{header}").hostname
    except ValueError:
        return None


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


# ---- Whether streams are well, for whoever restarts processes or sends them work.

_READY = (State.RUNNING, State.FINISHED)


@dataclass(frozen=True)
class Health:
    """An answer to /health or /ready: whether all is well, and what is not."""

    well: bool
    problems: tuple[str, ...] = ()

    @property
    def code(self) -> int:
        return 200 if self.well else 503

    def content(self) -> dict[str, Any]:
        return {"status": "ok" if self.well else "failing", "problems": list(self.problems)}


def health(statuses: Sequence[StreamStatus]) -> Health:
    """Well unless a stream has failed: waiting for another system is no reason for a restart."""
    failed = [status for status in statuses if status.state is State.FAILED]
    return Health(not failed, tuple(map(_problem, failed)))


def readiness(statuses: Sequence[StreamStatus]) -> Health:
    """Ready if all streams run, or have finished, and none waits for another system."""
    if not statuses:
        return Health(False, ("no stream has been started yet",))
    waiting = [s for s in statuses if s.state not in _READY or s.error is not None]
    return Health(not waiting, tuple(map(_problem, waiting)))


def _problem(status: StreamStatus) -> str:
    reason = f": {status.error}" if status.error is not None else ""
    return f"{status.name} is {status.state.value}{reason}"


@dataclass(frozen=True)
class Told:
    """What is told, asked for anew each time."""

    statuses: Callable[[], tuple[StreamStatus, ...]]
    sums: Callable[[], list[EpochSums]]
    version: str

    def metrics(self, accept: str) -> tuple[bytes, str]:
        """Return the metrics and their content type."""
        # prometheus_client takes 50 ms to import: only when Prometheus scrapes.
        from tidegate.observe.prometheus import StatusCollector, exposition

        return exposition(StatusCollector(self.statuses(), self.sums(), self.version), accept)


@dataclass(frozen=True)
class Answer:
    code: int
    kind: str
    body: bytes


def answer(told: Told, path: str, accept: str = "") -> Answer:
    """What is at a path."""
    if path == "/metrics":
        body, content_type = told.metrics(accept)
        return Answer(200, content_type, body)
    if path == "/health":
        return _health(health(told.statuses()))
    if path == "/ready":
        return _health(readiness(told.statuses()))
    return Answer(404, "text/plain", b"there are /metrics, /health and /ready\n")


def _health(found: Health) -> Answer:
    return Answer(found.code, "application/json", json.dumps(found.content()).encode())


class MetricsServer:
    """Serves in threads of its own, from the moment it is made until it is closed."""

    def __init__(self, address: Address, told: Told) -> None:
        try:
            self._server = _Server((address.host, address.port), _handler(address, told))
        except OSError as error:
            raise cannot_serve(address, error) from None
        self.address = Address(address.host, self._server.server_address[1])
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="tidegate metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True


def _handler(address: Address, told: Told) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        server_version = "tidegate"
        sys_version = ""

        def do_GET(self) -> None:
            if not address.answers_to(self.headers.get("Host", "")):
                self._send(Answer(403, "text/plain", b"this is not the name of this machine\n"))
                return
            path, accept = self.path.partition("?")[0], self.headers.get("Accept", "")
            self._send(answer(told, path, accept))

        def _send(self, found: Answer) -> None:
            self.send_response(found.code)
            self.send_header("Content-Type", found.kind)
            self.send_header("Content-Length", str(len(found.body)))
            self.end_headers()
            self.wfile.write(found.body)

        def log_message(self, format: str, *args: Any) -> None:
            """Nobody wants a line for each look."""

    return Handler


def cannot_serve(address: Address, error: OSError) -> RunError:
    return RunError(
        "TG-511",
        f"nothing can be served on {address}: {error.strerror or error}",
        hint="choose another port, or 0 for any that is free.",
    )
