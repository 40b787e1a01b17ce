"""A schema registry on loopback with the requests that Tidegate sends."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

USER, PASSWORD = "alice", "zz-registry-password-zz"


class FakeRegistry(ThreadingHTTPServer):
    """Stores schemas by ID. With `code` it responds with an error, with `redirect` it redirects."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.schemas: list[dict[str, Any]] = []
        self.subjects: dict[str, list[int]] = {}
        self.requests: list[str] = []
        self.needs_login = False
        self.code: int | None = None
        self.redirect: str | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def add(self, schema: str, **more: Any) -> int:
        """Return the ID of a schema, which is registered if it is new. IDs begin at 1."""
        item = {"schema": schema, **more}
        if item not in self.schemas:
            self.schemas.append(item)
        return self.schemas.index(item) + 1

    def answer(self, path: str, body: dict[str, Any] | None) -> tuple[int, Any]:
        self.requests.append(path)
        if self.code is not None:
            # Some servers repeat parts of the request.
            return self.code, {"error_code": self.code, "message": f"no, {PASSWORD}"}
        _, first, second, *rest = path.split("/")
        if body is None and (first, second) == ("schemas", "ids"):
            number = int(rest[0])
            exists = 0 < number <= len(self.schemas)
            return (200, self.schemas[number - 1]) if exists else (404, {"error_code": 40403})
        if body is not None and first == "subjects" and rest == ["versions"]:
            number = self.add(body["schema"])
            self.subjects.setdefault(unquote(second), []).append(number)
            return 200, {"id": number}
        return 404, {"error_code": 404}


class _Handler(BaseHTTPRequestHandler):
    server: FakeRegistry

    def do_GET(self) -> None:
        self._answer(None)

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        self._answer(json.loads(self.rfile.read(length)))

    def _answer(self, body: dict[str, Any] | None) -> None:
        login = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        if self.server.needs_login and self.headers["Authorization"] != f"Basic {login}":
            code, content = 401, {"error_code": 401}
        else:
            code, content = self.server.answer(self.path, body)
        data = json.dumps(content).encode()
        self.send_response(code if self.server.redirect is None else 302)
        if self.server.redirect is not None:
            self.send_header("Location", self.server.redirect + self.path)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Do not log."""


@contextmanager
def running() -> Iterator[FakeRegistry]:
    server = FakeRegistry()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
