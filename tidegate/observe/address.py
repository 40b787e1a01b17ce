"""Where somebody may look from: addresses to serve on, and names to be called by."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass
from urllib.parse import urlsplit

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
