"""Clients of object stores, from a URI, options and the usual variables of the environment."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

from tidegate.errors import RunError, did_you_mean
from tidegate.storage import uris
from tidegate.storage.failure import StorageError

if TYPE_CHECKING:
    from obstore.store import AzureStore, GCSStore, S3Store

# Our options with the names that obstore has for them.
S3_OPTIONS = {
    "endpoint": "endpoint",
    "region": "region",
    "access_key": "access_key_id",
    "secret_key": "secret_access_key",
    "session_token": "session_token",
}
_SECRET_OPTIONS = ("access_key", "secret_key", "session_token")
_SECRET_VARIABLES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")

# The process whose threads serve the clients. A fork has its memory, but not its threads.
_owner: int | None = None


@dataclass(frozen=True)
class Client:
    """A bucket that can be asked; what must not be shown is not shown."""

    store: S3Store | GCSStore | AzureStore = field(repr=False)
    endpoint: str
    secrets: tuple[str, ...] = field(repr=False)


def open_client(uri: str, options: dict[str, str]) -> Client:
    """The client for the bucket of a URI."""
    scheme = uri.partition(":")[0]
    known = [*S3_OPTIONS, "allow_http"] if scheme == "s3" else []
    for name in options:
        if name not in known:
            hint = did_you_mean(name, known, "options") if known else None
            raise RunError("TG-206", f"{scheme} has no option {name}", hint=hint)
    endpoint = options.get("endpoint") or _variable("AWS_ENDPOINT_URL", "AWS_ENDPOINT")
    secrets = [options.get(name, "") for name in _SECRET_OPTIONS]
    secrets += [os.environ.get(name, "") for name in _SECRET_VARIABLES]
    store = _s3(uri, options, endpoint) if scheme == "s3" else _other(scheme, uri)
    return Client(store, endpoint, tuple(secret for secret in secrets if secret))


def claim(uri: str) -> None:
    """Refuse a process that was forked from one that used object stores: it would wait for ever."""
    global _owner
    if _owner is None:
        _owner = os.getpid()
    if _owner != os.getpid():
        reason = "cannot be reached: this process was forked from one that used object stores"
        raise StorageError(uri, reason, hint="start processes by spawn, not by fork.")


def _s3(uri: str, options: dict[str, str], endpoint: str) -> S3Store:
    from obstore.store import S3Store

    allow_http = (options.get("allow_http") or _variable("AWS_ALLOW_HTTP")).lower() == "true"
    if endpoint.startswith("http:") and not allow_http:
        raise RunError(
            "TG-207",
            f"the endpoint {endpoint} is not encrypted",
            hint="use https, or allow it: allow_http = 'true'.",
        )
    config: dict[str, Any] = {
        S3_OPTIONS[name]: options[name] for name in S3_OPTIONS if name in options
    }
    if endpoint:
        config["endpoint"] = endpoint
    return S3Store(uris.bucket_and_key(uri)[0], **config, **_patience(allow_http))


def _other(scheme: str, uri: str) -> GCSStore | AzureStore:
    from obstore.store import GCSStore, from_url

    bucket = uris.bucket_and_key(uri)[0]
    if scheme == "gs":
        return GCSStore(bucket, **_patience(False))
    authority = quote(bucket, safe="@")
    return cast("AzureStore", from_url(f"{scheme}://{authority}", **_patience(False)))


def _patience(allow_http: bool) -> dict[str, Any]:
    """A few quick tries: the loop that runs a pipeline waits and tries again itself."""
    return {
        "client_options": {
            "allow_http": allow_http,
            "connect_timeout": timedelta(seconds=5),
            "read_timeout": timedelta(seconds=30),
            "timeout": timedelta(minutes=10),
        },
        "retry_config": {
            "max_retries": 3,
            "retry_timeout": timedelta(seconds=30),
            "backoff": {
                "init_backoff": timedelta(milliseconds=100),
                "max_backoff": timedelta(seconds=2),
                "base": 2,
            },
        },
    }


def _variable(*names: str) -> str:
    return next((os.environ[name] for name in names if os.environ.get(name)), "")
