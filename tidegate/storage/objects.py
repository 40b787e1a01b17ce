"""A store on an object store: S3 and what speaks like it, Google Cloud Storage, Azure."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

import obstore
import obstore.exceptions as theirs

from tidegate.errors import RunError, did_you_mean
from tidegate.storage import cache as fetched
from tidegate.storage import uris
from tidegate.storage.store import (
    AlreadyThere,
    Item,
    Items,
    NotThere,
    StorageError,
    checked,
    is_moved,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from obstore import GetOptions, WritableFile
    from obstore.store import AzureStore, GCSStore, S3Store


# ---- Clients of object stores, from a URI, options and the usual variables of the environment.

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
    """Reject a process that was forked from one that used object stores: it would wait for ever."""
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


# ---- An object in the making: small ones are sent at once when they are closed, big ones in parts.

_PART_BYTES = 8 << 20


class ObjectWriter:
    """Collects bytes; nobody sees anything of them before `close`.

    Only an object of one part is created on condition that it is not there. For bigger ones it is
    asked before, which is enough for names that nobody else uses.
    """

    def __init__(self, store: ObjectStore, client: Client, key: str, name: str) -> None:
        self._store = store
        self._client = client
        self._key = key
        self._name = name
        self._pending = bytearray()
        self._written = 0
        self._upload: WritableFile | None = None
        self._open = True

    @property
    def closed(self) -> bool:
        return not self._open

    def write(self, data: bytes | memoryview) -> int:
        if not self._open:
            raise ValueError("write to a closed writer")
        view = memoryview(data).cast("B")
        self._pending += view
        self._written += len(view)
        if len(self._pending) > _PART_BYTES:
            self._send()
        return len(view)

    def tell(self) -> int:
        return self._written

    def flush(self) -> None:
        """Nothing: parts have a size of their own."""

    def close(self) -> None:
        """Make it visible under its name; closing twice is fine."""
        if not self._open:
            return
        try:
            if self._upload is None:
                self._create(bytes(self._pending))
            else:
                self._send()
                with self._store.asking(self._name, "cannot be written"):
                    self._upload.close()
                self._upload = None
        finally:
            self.abort()

    def _create(self, data: bytes) -> None:
        """Where an answer was lost, what is already there is ours."""
        try:
            self._store.put_new(self._name, data)
        except AlreadyThere:
            if self._store.get(self._name) != data:
                raise

    def abort(self) -> None:
        """Leave nothing behind; also after an error, and twice is fine."""
        self._open = False
        self._pending.clear()
        upload, self._upload = self._upload, None
        if upload is not None:
            # Leaving it by an exception is how an upload is told to remove its parts.
            stop = RuntimeError("aborted")
            with suppress(obstore.exceptions.BaseError, OSError, RuntimeError):
                upload.__exit__(RuntimeError, stop, None)

    def __enter__(self) -> ObjectWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            self.abort()

    def _send(self) -> None:
        if self._upload is None:
            if self._store.exists(self._name):
                raise AlreadyThere(f"{self._store.uri}/{self._name}")
            self._upload = obstore.open_writer(
                self._client.store, self._key, buffer_size=_PART_BYTES, max_concurrency=4
            )
        with self._store.asking(self._name, "cannot be written"):
            self._upload.write(bytes(self._pending))
        self._pending.clear()


# ---- Errors of object stores as ours: short, without secrets, and whether waiting may help.

_STATUS = re.compile(r"status code: (\d{3}) ?([A-Za-z ]*)")
_CODE = re.compile(r"<Code>([^<]*)</Code>")
_MESSAGE = re.compile(r"<Message>([^<]*)</Message>")
_NETWORK = re.compile(r"HTTP error: (.*)")
# Answers that say: not now.
_PASSING = (408, 409, 425, 429)
_FORBIDDEN = (PermissionError, theirs.PermissionDeniedError, theirs.UnauthenticatedError)
_NEVER = (
    ValueError,
    theirs.InvalidPathError,
    theirs.NotSupportedError,
    theirs.UnknownConfigurationKeyError,
)


def of_store_error(error: Exception, uri: str, what: str, secrets: Iterable[str]) -> StorageError:
    """The error of an object store as ours."""
    # What follows is for the authors of the client, and shows all that it knows.
    text = str(error).partition("\n\nDebug source")[0]
    if "NoSuchBucket" in text:
        reason = f"{what}: there is no such bucket"
        return StorageError(uri, reason, hint="create the bucket, or correct the URI.")
    if isinstance(error, (FileNotFoundError, theirs.NotFoundError)):
        return NotThere(uri)
    if isinstance(error, (FileExistsError, theirs.AlreadyExistsError)):
        return AlreadyThere(uri)
    forbidden = isinstance(error, _FORBIDDEN)
    passing = not forbidden and not isinstance(error, _NEVER) and _passes(text)
    hint = "check the credentials (options, or AWS_… in the environment)." if forbidden else None
    reason = f"{what}: {_hidden(_reason(text), secrets)}"
    return StorageError(uri, reason, retryable=passing, hint=hint)


def _passes(text: str) -> bool:
    """Whether the same request may succeed later: without an answer, or with one that says so."""
    status = _STATUS.search(text)
    return status is None or int(status[1]) >= 500 or int(status[1]) in _PASSING


def _reason(text: str) -> str:
    """What the server said, or that nobody answered."""
    code, message, status = _CODE.search(text), _MESSAGE.search(text), _STATUS.search(text)
    if code is not None:
        return f"{code[1]}: {message[1]}" if message is not None else code[1]
    if status is not None:
        return f"the server answered {status[1]} {status[2].strip()}".rstrip()
    network = _NETWORK.search(text)
    if network is not None:
        return f"the server does not answer ({network[1].strip()})"
    return text.partition("\n")[0]


def _hidden(text: str, secrets: Iterable[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, "***")
    return text


class ObjectStore:
    """The objects of a bucket below a prefix."""

    def __init__(self, uri: str, client: Client) -> None:
        self.uri = uri
        self._client = client
        self._prefix = uris.bucket_and_key(uri)[1]

    def __repr__(self) -> str:
        return f"ObjectStore(uri={self.uri!r})"

    @property
    def local(self) -> bool:
        return False

    def child(self, name: str) -> ObjectStore:
        return ObjectStore(self._uri(checked(name)), self._client)

    def put_new(self, name: str, data: bytes) -> None:
        key = self._key(name)
        with self.asking(name, "cannot be written"):
            obstore.put(self._client.store, key, data, mode="create")

    def put(self, name: str, data: bytes, durable: bool = True) -> None:
        key = self._key(name)
        with self.asking(name, "cannot be written"):
            obstore.put(self._client.store, key, data)

    def get(self, name: str) -> bytes:
        key = self._key(name)
        with self.asking(name, "cannot be read"):
            return obstore.get(self._client.store, key).bytes().to_bytes()

    def get_range(self, name: str, start: int, length: int) -> bytes:
        key = self._key(name)
        # A range must have bytes in it, so that what is left of it is asked for.
        length = min(length, self.size(name) - start)
        if length <= 0:
            return b""
        with self.asking(name, "cannot be read"):
            return obstore.get_range(self._client.store, key, start=start, length=length).to_bytes()

    def exists(self, name: str) -> bool:
        try:
            self.size(name)
        except NotThere:
            return False
        return True

    def size(self, name: str) -> int:
        key = self._key(name)
        with self.asking(name, "cannot be read"):
            return obstore.head(self._client.store, key)["size"]

    def list(self, folder: str = "") -> Items:
        below = self._key(folder) + "/" if folder else self._prefix and self._prefix + "/"
        cut = len(self._prefix) + 1 if self._prefix else 0
        with self.asking(folder, "cannot be listed"):
            pages = obstore.list(self._client.store, below.rstrip("/") or None)
            found = [
                Item(meta["path"][cut:], meta["size"], _micros(meta["last_modified"].timestamp()))
                for page in pages
                for meta in page
                # Some tools put an empty object in the place of a folder.
                if meta["path"].startswith(below)
            ]
        return sorted(found, key=lambda item: item.name)

    def asides(self, folder: str = "") -> Items:
        """None: what was uploaded half cannot be seen, and the store's own rules remove it."""
        return []

    def delete(self, names: Iterable[str]) -> None:
        keys = [self._key(name) for name in names]
        if not keys:
            return
        try:
            with self.asking("", "cannot be deleted"):
                obstore.delete(self._client.store, keys)
        except NotThere:
            # Not every store thinks that deleting what is gone is fine.
            self._delete_each(keys)

    def delete_all(self, folder: str) -> None:
        self.delete(item.name for item in self.list(folder))

    def move_new(self, source: str, goal: str) -> None:
        keys = self._key(source), self._key(goal)
        if is_moved(self, source, goal):
            return
        try:
            with self.asking(source, f"cannot be moved to {goal}"):
                obstore.copy(self._client.store, *keys)
        except NotThere:
            # Another process was faster, and did the same.
            if not is_moved(self, source, goal):
                raise
        self.delete([source])

    def sync(self, folders: Iterable[str]) -> None:
        """Nothing: what an object store has accepted is durable."""

    def sync_files(self, names: Iterable[str]) -> None:
        """Nothing, for the same reason."""

    def writer(self, name: str) -> ObjectWriter:
        return ObjectWriter(self, self._client, self._key(name), name)

    def map(self, name: str) -> pa.Buffer:
        key = self._key(name)
        with self.asking(name, "cannot be read"):
            meta = obstore.head(self._client.store, key)

        def download(write: Callable[[memoryview], object]) -> None:
            with self.asking(name, "cannot be read"):
                same: GetOptions = {"if_match": meta["e_tag"]}
                for chunk in obstore.get(self._client.store, key, options=same).stream():
                    write(memoryview(chunk))

        version = f"{self._client.endpoint}\n{meta['e_tag']}\n{meta['last_modified']}"
        return fetched.cached(self._uri(name), version, meta["size"], download)

    def local_path(self, name: str = "") -> Path:
        raise AssertionError(f"{self._uri(name)} has no path on this machine")

    def spark_uri(self, name: str = "") -> str:
        return uris.for_spark(self._uri(name))

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{checked(name)}" if self._prefix else checked(name)

    def _uri(self, name: str) -> str:
        return f"{self.uri}/{name}" if name else self.uri

    def _delete_each(self, keys: Iterable[str]) -> None:
        for key in keys:
            try:
                with self.asking("", "cannot be deleted"):
                    obstore.delete(self._client.store, key)
            except NotThere:
                continue

    @contextmanager
    def asking(self, name: str, what: str) -> Iterator[None]:
        """Errors of the object store as ours. Theirs are left out: they may show more than ours."""
        claim(self.uri)
        try:
            yield
        except StorageError:
            raise
        except (obstore.exceptions.BaseError, OSError, ValueError) as error:
            raise of_store_error(error, self._uri(name), what, self._client.secrets) from None


def _micros(seconds: float) -> int:
    return round(seconds * 1_000_000)
