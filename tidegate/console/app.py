"""The HTTP application of the console, and the server that runs it."""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import tidegate
from tidegate.checkpoint.checkpoints import RestoreRequest
from tidegate.console.graph import layout
from tidegate.console.history import ConsoleHistory
from tidegate.console.providers import ConsoleProvider
from tidegate.errors import TidegateError
from tidegate.observe.rendering import json_value
from tidegate.observe.server import (
    FOREIGN_HOST,
    Address,
    StatusSource,
    listen_error,
    respond,
    same_origin,
)

# ---- Access
#
# Other pages in the same browser must not be able to read or change anything. The Host header must
# name this machine, and an Origin header must name this server. Actions, and requests that return
# rows, need the token in a header that pages of other origins cannot set.

TOKEN_HEADER = "X-Tidegate-Token"
_READ_METHODS = ("GET", "HEAD")
_SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def new_token() -> str:
    """Return a random token."""
    return secrets.token_urlsafe(24)


@dataclass(frozen=True)
class AccessMiddleware:
    """Rejects requests that the console must not answer, and adds the security headers."""

    app: ASGIApp
    address: Address
    token: str

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_SECURITY_HEADERS)
            await send(message)

        reason = self.rejection(scope["method"], Headers(scope=scope))
        if reason is None:
            await self.app(scope, receive, send_with_headers)
        else:
            rejection = JSONResponse({"error": reason}, status_code=403)
            await rejection(scope, receive, send_with_headers)

    def rejection(self, method: str, headers: Headers) -> str | None:
        """Return why a request is rejected, or None if it is allowed."""
        host, origin = headers.get("host", ""), headers.get("origin")
        if not self.address.accepts_host(host):
            return FOREIGN_HOST
        if origin is not None and not same_origin(origin, host):
            return "requests from other origins are not allowed"
        if method in _READ_METHODS:
            return None
        token = headers.get(TOKEN_HEADER, "")
        if not secrets.compare_digest(token.encode(), self.token.encode()):
            return "this action needs the token: open the URL that was printed at startup"
        return None


# ---- Requests

STATIC = Path(__file__).parent / "static"
MAX_PEEK_ROWS = 500
_POLL_SECONDS = 0.25
# Without traffic, a closed connection would go unnoticed.
_PING_SECONDS = 15.0

Endpoint = Callable[[Request], Awaitable[Response]]


def build_app(history: ConsoleHistory, address: Address, token: str) -> Starlette:
    """Create the application; every request passes the access checks."""
    endpoints = _Endpoints(history.provider, history)
    routes: list[Route | Mount] = [
        Route("/", endpoints.index),
        Route("/api/state", endpoints.state),
        Route("/api/events", endpoints.events),
        Route("/api/graph", _with_errors(endpoints.graph)),
        Route("/api/objects/{name}", _with_errors(endpoints.describe)),
        Route("/api/checkpoints", _with_errors(endpoints.checkpoints)),
        Route("/api/checkpoints", _with_errors(endpoints.create_checkpoint), methods=["POST"]),
        Route("/api/peek", _with_errors(endpoints.peek), methods=["POST"]),
        Route("/api/restore", _with_errors(endpoints.restore), methods=["POST"]),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]
    if history.provider.live:
        routes += [Route(path, endpoints.monitoring) for path in ("/metrics", "/health", "/ready")]
    access = Middleware(AccessMiddleware, address=address, token=token)
    return Starlette(routes=routes, middleware=[access])


class _BadRequest(Exception):
    """A request with invalid content."""


def _with_errors(endpoint: Endpoint) -> Endpoint:
    """Return errors as JSON: 409 with code and hint for a TidegateError, 400 for a bad request."""

    async def call(request: Request) -> Response:
        try:
            return await endpoint(request)
        except TidegateError as error:
            content = {"code": error.code, "error": error.message, "hint": error.hint}
            return JSONResponse(content, status_code=409)
        except _BadRequest as error:
            return JSONResponse({"error": str(error)}, status_code=400)

    return call


@dataclass(frozen=True)
class _Endpoints:
    provider: ConsoleProvider
    history: ConsoleHistory

    async def index(self, request: Request) -> Response:
        return FileResponse(STATIC / "index.html")

    async def state(self, request: Request) -> Response:
        """Return the whole history, for a page that has just been opened."""
        header = {"title": self.provider.title, "live": self.provider.live}
        return JSONResponse({**header, **self.history.since(-1)})

    async def events(self, request: Request) -> Response:
        """Stream the updates after the number `since`."""
        try:
            since = int(request.query_params.get("since", "-1"))
        except ValueError:
            return JSONResponse({"error": "since must be a number"}, status_code=400)
        return StreamingResponse(updates(self.history, since), media_type="text/event-stream")

    async def graph(self, request: Request) -> Response:
        return JSONResponse(await run_in_threadpool(graph_json, self.provider))

    async def describe(self, request: Request) -> Response:
        name = request.path_params["name"]
        description = await run_in_threadpool(self.provider.describe, name)
        return JSONResponse(asdict(description))

    async def checkpoints(self, request: Request) -> Response:
        checkpoints = await run_in_threadpool(self.provider.checkpoints)
        rows = [{k: json_value(v) for k, v in asdict(c).items()} for c in checkpoints]
        return JSONResponse(rows)

    async def monitoring(self, request: Request) -> Response:
        """Answer /metrics, /health and /ready."""
        source = StatusSource(
            self.provider.statuses, self.provider.epoch_totals, tidegate.__version__
        )
        response = respond(source, request.url.path, request.headers.get("accept", ""))
        return Response(
            response.body, response.status_code, headers={"Content-Type": response.content_type}
        )

    # The following requests need the token.

    async def peek(self, request: Request) -> Response:
        body = await _body(request)
        stream, rows = body.get("stream"), body.get("rows", 20)
        if not isinstance(stream, str) or type(rows) is not int or not 0 < rows <= MAX_PEEK_ROWS:
            raise _BadRequest(f"a peek needs a stream, and rows between 1 and {MAX_PEEK_ROWS}")
        result = await run_in_threadpool(self.provider.peek, stream, rows)
        values = [[json_value(item) for item in row.values()] for row in result]
        return JSONResponse({"columns": result.columns, "rows": values})

    async def create_checkpoint(self, request: Request) -> Response:
        name = (await _body(request)).get("name") or None
        if not isinstance(name, str | None):
            raise _BadRequest("the name of a checkpoint must be a string")
        created = await run_in_threadpool(self.provider.create_checkpoint, name)
        self.history.record("info", f"created checkpoint '{created}'")
        return JSONResponse({"name": created})

    async def restore(self, request: Request) -> Response:
        body = await _body(request)
        checkpoint, pipeline = body.get("checkpoint"), body.get("pipeline")
        is_valid = isinstance(checkpoint, str | int) and not isinstance(checkpoint, bool)
        if not is_valid or not isinstance(pipeline, str | None):
            raise _BadRequest("a restore needs the name of a checkpoint or the number of an epoch")
        assert checkpoint is not None
        target = RestoreRequest(checkpoint, body.get("keep_sinks") is True, pipeline)
        warnings = await run_in_threadpool(self.provider.restore, target)
        is_epoch = isinstance(checkpoint, int)
        restored = f"epoch {checkpoint}" if is_epoch else f"checkpoint '{checkpoint}'"
        self.history.record("info", f"restored {restored}")
        for warning in warnings:
            self.history.record("warning", warning)
        return JSONResponse({"warnings": warnings})


async def _body(request: Request) -> dict[str, Any]:
    try:
        body = await request.json()
    except ValueError:
        raise _BadRequest("the request body is not valid JSON") from None
    if not isinstance(body, dict):
        raise _BadRequest("the request body is not a JSON object")
    return body


async def updates(history: ConsoleHistory, since: int) -> AsyncIterator[str]:
    """Yield a server-sent event for every update, until the history is closed."""
    idle_seconds = 0.0
    while not history.closed:
        if history.number > since:
            update = history.since(since)
            since, idle_seconds = update["number"], 0.0
            yield f"data: {json.dumps(update)}\n\n"
        elif idle_seconds >= _PING_SECONDS:
            idle_seconds = 0.0
            yield ": ping\n\n"
        await asyncio.sleep(_POLL_SECONDS)
        idle_seconds += _POLL_SECONDS


def graph_json(provider: ConsoleProvider) -> dict[str, Any]:
    """Return the graph as JSON, with the positions of its nodes and edges."""
    graph = provider.graph()
    placement = layout(graph)
    nodes = []
    for node in graph.nodes.values():
        layer, row = placement.positions[node.id]
        nodes.append({**asdict(node), "layer": layer, "row": row})
    edges = [{**asdict(edge), "path": path} for edge, path in placement.paths.items()]
    return {"nodes": nodes, "edges": edges, "layers": placement.layers, "rows": placement.rows}


# ---- The server

_CLOSE_SECONDS = 5.0


class ConsoleServer:
    """Serves the console from a background thread, from construction until `close`."""

    def __init__(self, provider: ConsoleProvider, address: Address) -> None:
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        try:
            listener = socket.create_server((address.host, address.port), family=family)
        except OSError as error:
            raise listen_error(address, error) from None
        self.address = Address(address.host, listener.getsockname()[1])
        self.token = new_token()
        self.history = ConsoleHistory(provider)
        app = build_app(self.history, self.address, self.token)
        config = uvicorn.Config(
            app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=1
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, args=([listener],), name="tidegate console", daemon=True
        )
        self.history.start()
        self._thread.start()

    @property
    def url(self) -> str:
        """The URL with the token in its fragment, which browsers do not send."""
        return f"http://{self.address}/#token={self.token}"

    def close(self) -> None:
        """Stop serving and sampling."""
        self.history.close()
        self._server.should_exit = True
        self._thread.join(_CLOSE_SECONDS)
