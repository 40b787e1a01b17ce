"""Serves the console from a thread of its own."""

from __future__ import annotations

import socket
import threading

import uvicorn

from tidegate.console.app import build_app
from tidegate.console.guard import new_token
from tidegate.console.shown import Shown
from tidegate.console.watch import Watch
from tidegate.observe.address import Address
from tidegate.observe.serving import cannot_serve

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
