"""The requests that the console answers."""

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
from tidegate.checkpoint.checkpoints import Wanted
from tidegate.console.graph import layout
from tidegate.console.providers import Shown
from tidegate.console.watch import Watch
from tidegate.errors import TidegateError
from tidegate.observe.server import Address, Told, answer, cannot_serve, same_origin
from tidegate.observe.status import json_value

# ---- Turns away requests that the console must not answer.
#
# Another page in the same browser must not read or change anything: a request calls this machine by
# one of its own names, comes from a page of ours if it comes from a page, and carries the token in a
# header if it changes something or shows rows. No page can set that header across origins.

TOKEN_HEADER = "X-Tidegate-Token"
_READS = ("GET", "HEAD")
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def new_token() -> str:
    return secrets.token_urlsafe(24)


@dataclass(frozen=True)
class Guard:
    """Stands before an application."""

    app: ASGIApp
    address: Address
    token: str

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        reason = self.refusal(scope["method"], Headers(scope=scope))
        if reason is None:
            await self.app(scope, receive, send_guarded)
        else:
            refused = JSONResponse({"error": reason}, status_code=403)
            await refused(scope, receive, send_guarded)

    def refusal(self, method: str, headers: Headers) -> str | None:
        """Why a request is turned away; None if it is not."""
        host, origin = headers.get("host", ""), headers.get("origin")
        if not self.address.answers_to(host):
            return "this is not the name of this machine"
        if origin is not None and not same_origin(origin, host):
            return "requests of other pages are not answered"
        if method in _READS:
            return None
        given = headers.get(TOKEN_HEADER, "")
        if not secrets.compare_digest(given.encode(), self.token.encode()):
            return "this needs the token: open the page by the URL that was printed at the start"
        return None


STATIC = Path(__file__).parent / "static"
MOST_ROWS = 500
_LOOK_SECONDS = 0.25
# So that a connection that is gone is noticed, also when nothing happens.
_PING_SECONDS = 15.0

Endpoint = Callable[[Request], Awaitable[Response]]


def build_app(watch: Watch, address: Address, token: str) -> Starlette:
    """The application of the console; the guard stands before all of it."""
    pages = _Pages(watch.shown, watch)
    routes: list[Route | Mount] = [
        Route("/", pages.index),
        Route("/api/state", pages.state),
        Route("/api/events", pages.events),
        Route("/api/graph", _careful(pages.graph)),
        Route("/api/objects/{name}", _careful(pages.described)),
        Route("/api/checkpoints", _careful(pages.checkpoints)),
        Route("/api/checkpoints", _careful(pages.keep), methods=["POST"]),
        Route("/api/peek", _careful(pages.peek), methods=["POST"]),
        Route("/api/restore", _careful(pages.restore), methods=["POST"]),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]
    if watch.shown.live:
        routes += [Route(path, pages.told) for path in ("/metrics", "/health", "/ready")]
    return Starlette(routes=routes, middleware=[Middleware(Guard, address=address, token=token)])


class _Refused(Exception):
    """A request that makes no sense."""


def _careful(endpoint: Endpoint) -> Endpoint:
    """What a person did wrong is an answer, with its code and its hint."""

    async def answered(request: Request) -> Response:
        try:
            return await endpoint(request)
        except TidegateError as error:
            content = {"code": error.code, "error": error.message, "hint": error.hint}
            return JSONResponse(content, status_code=409)
        except _Refused as error:
            return JSONResponse({"error": str(error)}, status_code=400)

    return answered


@dataclass(frozen=True)
class _Pages:
    shown: Shown
    watch: Watch

    async def index(self, request: Request) -> Response:
        return FileResponse(STATIC / "index.html")

    async def state(self, request: Request) -> Response:
        """All that is known, for a page that has just been opened."""
        about = {"title": self.shown.title, "live": self.shown.live}
        return JSONResponse({**about, **self.watch.since(-1)})

    async def events(self, request: Request) -> Response:
        """What is new, as it comes."""
        try:
            since = int(request.query_params.get("since", "-1"))
        except ValueError:
            return JSONResponse({"error": "since is a number"}, status_code=400)
        return StreamingResponse(ticks(self.watch, since), media_type="text/event-stream")

    async def graph(self, request: Request) -> Response:
        return JSONResponse(await run_in_threadpool(graph_json, self.shown))

    async def described(self, request: Request) -> Response:
        found = await run_in_threadpool(self.shown.described, request.path_params["name"])
        return JSONResponse(asdict(found))

    async def checkpoints(self, request: Request) -> Response:
        found = await run_in_threadpool(self.shown.checkpoints)
        return JSONResponse([{k: json_value(v) for k, v in asdict(c).items()} for c in found])

    async def told(self, request: Request) -> Response:
        told = Told(self.shown.statuses, self.shown.sums, tidegate.__version__)
        found = answer(told, request.url.path, request.headers.get("accept", ""))
        return Response(found.body, found.code, media_type=found.kind)

    # What needs the token

    async def peek(self, request: Request) -> Response:
        asked = await _body(request)
        stream, rows = asked.get("stream"), asked.get("rows", 20)
        if not isinstance(stream, str) or type(rows) is not int or not 0 < rows <= MOST_ROWS:
            raise _Refused(f"a peek needs a stream, and rows between 1 and {MOST_ROWS}")
        found = await run_in_threadpool(self.shown.peek, stream, rows)
        values = [[json_value(item) for item in row.values()] for row in found]
        return JSONResponse({"columns": found.columns, "rows": values})

    async def keep(self, request: Request) -> Response:
        name = (await _body(request)).get("name") or None
        if not isinstance(name, str | None):
            raise _Refused("the name of a checkpoint is a text")
        kept = await run_in_threadpool(self.shown.keep, name)
        self.watch.say("info", f"checkpoint '{kept}' was made")
        return JSONResponse({"name": kept})

    async def restore(self, request: Request) -> Response:
        asked = await _body(request)
        checkpoint, pipeline = asked.get("checkpoint"), asked.get("pipeline")
        named = isinstance(checkpoint, str | int) and not isinstance(checkpoint, bool)
        if not named or not isinstance(pipeline, str | None):
            raise _Refused("a restore needs the name of a checkpoint, or the number of an epoch")
        assert checkpoint is not None
        wanted = Wanted(checkpoint, asked.get("keep_sinks") is True, pipeline)
        warnings = await run_in_threadpool(self.shown.restore, wanted)
        self.watch.say("info", f"went back to {checkpoint!r}")
        for warning in warnings:
            self.watch.say("warning", warning)
        return JSONResponse({"warnings": warnings})


async def _body(request: Request) -> dict[str, Any]:
    try:
        found = await request.json()
    except ValueError:
        raise _Refused("the request is no JSON") from None
    if not isinstance(found, dict):
        raise _Refused("the request is no JSON object")
    return found


async def ticks(watch: Watch, since: int) -> AsyncIterator[str]:
    """Server-sent events: one whenever something is new."""
    quiet = 0.0
    while not watch.closed:
        if watch.number > since:
            news = watch.since(since)
            since, quiet = news["number"], 0.0
            yield f"data: {json.dumps(news)}\n\n"
        elif quiet >= _PING_SECONDS:
            quiet = 0.0
            yield ": still here\n\n"
        await asyncio.sleep(_LOOK_SECONDS)
        quiet += _LOOK_SECONDS


def graph_json(shown: Shown) -> dict[str, Any]:
    """The graph with the places of everything in it."""
    graph = shown.graph()
    placed = layout(graph)
    nodes = [
        {**asdict(node), "layer": placed.positions[node.id][0], "row": placed.positions[node.id][1]}
        for node in graph.nodes.values()
    ]
    edges = [{**asdict(edge), "path": path} for edge, path in placed.paths.items()]
    return {"nodes": nodes, "edges": edges, "layers": placed.layers, "rows": placed.rows}


# ---- Serves the console from a thread of its own.

_CLOSE_SECONDS = 5.0


class ConsoleServer:
    """Serves from the moment it is made until it is closed."""

    def __init__(self, shown: Shown, address: Address) -> None:
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        try:
            listening = socket.create_server((address.host, address.port), family=family)
        except OSError as error:
            raise cannot_serve(address, error) from None
        self.address = Address(address.host, listening.getsockname()[1])
        self.token = new_token()
        self.watch = Watch(shown)
        app = build_app(self.watch, self.address, self.token)
        config = uvicorn.Config(
            app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=1
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, args=([listening],), name="tidegate console", daemon=True
        )
        self.watch.start()
        self._thread.start()

    @property
    def url(self) -> str:
        """With the token behind a #, where browsers keep it to themselves."""
        return f"http://{self.address}/#token={self.token}"

    def close(self) -> None:
        self.watch.close()
        self._server.should_exit = True
        self._thread.join(_CLOSE_SECONDS)
