"""A small server for /metrics, /health and /ready, made of Python alone."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tidegate.errors import RunError
from tidegate.observe.address import Address
from tidegate.observe.health import Health, health, readiness
from tidegate.observe.prometheus import CONTENT_TYPE, prometheus_text
from tidegate.observe.status import StreamStatus
from tidegate.observe.timeline import EpochSums


@dataclass(frozen=True)
class Told:
    """What is told, asked for anew each time."""

    statuses: Callable[[], tuple[StreamStatus, ...]]
    sums: Callable[[], list[EpochSums]]
    version: str

    def metrics(self) -> str:
        return prometheus_text(self.statuses(), self.sums(), self.version)


@dataclass(frozen=True)
class Answer:
    code: int
    kind: str
    body: bytes


def answer(told: Told, path: str) -> Answer:
    """What is at a path."""
    if path == "/metrics":
        return Answer(200, CONTENT_TYPE, told.metrics().encode())
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
            self._send(answer(told, self.path.partition("?")[0]))

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
