"""Turns away requests that the console must not answer.

Another page in the same browser must not read or change anything: a request calls this machine by
one of its own names, comes from a page of ours if it comes from a page, and carries the token in a
header if it changes something or shows rows. No page can set that header across origins.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tidegate.observe.address import Address, same_origin

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
