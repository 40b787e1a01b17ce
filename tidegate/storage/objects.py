"""Stores in buckets: S3 and compatible servers, Google Cloud Storage, Azure Blob Storage."""

from __future__ import annotations

import hashlib
import os
import re
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

import obstore
from obstore import exceptions

from tidegate.errors import RunError, did_you_mean
from tidegate.storage import uris
from tidegate.storage.local import map_file
from tidegate.storage.store import (
    AlreadyExists,
    NotFound,
    StorageError,
    StoredFile,
    StoredFiles,
    is_moved,
    translate_write_errors,
    valid_name,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from obstore import GetOptions, WritableFile
    from obstore.store import AzureStore, GCSStore, S3Store


# Options of Tidegate and their names in obstore.
S3_OPTIONS = {
    "endpoint": "endpoint",
    "region": "region",
    "access_key": "access_key_id",
    "secret_key": "secret_access_key",
    "session_token": "session_token",
}
_SECRET_OPTIONS = ("access_key", "secret_key", "session_token")
_SECRET_VARIABLES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")

# The process that runs the threads of the clients. A forked process does not have these threads.
_owner_pid: int | None = None


@dataclass(frozen=True)
class BucketClient:
    """The client of a bucket. Its repr does not contain secrets."""

    store: S3Store | GCSStore | AzureStore = field(repr=False)
    endpoint: str
    secrets: tuple[str, ...] = field(repr=False)


def open_client(uri: str, options: dict[str, str]) -> BucketClient:
    """Create the client for the bucket of a URI."""
    scheme = uri.partition(":")[0]
    valid_options = [*S3_OPTIONS, "allow_http"] if scheme == "s3" else []
    for name in options:
        if name not in valid_options:
            hint = did_you_mean(name, valid_options, "options") if valid_options else None
            raise RunError("TG-206", f"{scheme} has no option {name}", hint=hint)
    endpoint = options.get("endpoint") or _environment("AWS_ENDPOINT_URL", "AWS_ENDPOINT")
    secrets = [options.get(name, "") for name in _SECRET_OPTIONS]
    secrets += [os.environ.get(name, "") for name in _SECRET_VARIABLES]
    store = _open_s3(uri, options, endpoint) if scheme == "s3" else _open_other(scheme, uri)
    return BucketClient(store, endpoint, tuple(secret for secret in secrets if secret))


def _reject_fork(uri: str) -> None:
    """Raise an error in a process forked from one that used object stores: it would hang."""
    global _owner_pid
    if _owner_pid is None:
        _owner_pid = os.getpid()
    if _owner_pid != os.getpid():
        reason = "cannot be reached: this process was forked from one that used object stores"
        raise StorageError(uri, reason, hint="start processes with spawn instead of fork.")


def _open_s3(uri: str, options: dict[str, str], endpoint: str) -> S3Store:
    from obstore.store import S3Store

    allow_http = (options.get("allow_http") or _environment("AWS_ALLOW_HTTP")).lower() == "true"
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
    return S3Store(uris.bucket_and_key(uri)[0], **config, **_client_config(allow_http))


def _open_other(scheme: str, uri: str) -> GCSStore | AzureStore:
    from obstore.store import GCSStore, from_url

    bucket = uris.bucket_and_key(uri)[0]
    if scheme == "gs":
        return GCSStore(bucket, **_client_config(False))
    authority = quote(bucket, safe="@")
    return cast("AzureStore", from_url(f"{scheme}://{authority}", **_client_config(False)))


def _client_config(allow_http: bool) -> dict[str, Any]:
    """Return timeouts and a few quick retries; the loop of a pipeline retries for longer."""
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


def _environment(*names: str) -> str:
    return next((os.environ[name] for name in names if os.environ.get(name)), "")


# ---- Writing: small objects are uploaded with one request, larger ones in parts

_PART_BYTES = 8 << 20


class ObjectWriter:
    """Buffers bytes; the object becomes visible on `close`.

    Only an object of one part is created with a conditional request. For larger objects the writer
    checks before the upload that the name is free, which suffices for names that no other process
    uses.
    """

    def __init__(self, store: ObjectStore, client: BucketClient, key: str, name: str) -> None:
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
            self._upload_part()
        return len(view)

    def tell(self) -> int:
        return self._written

    def flush(self) -> None:
        """Do nothing: parts have a fixed size."""

    def close(self) -> None:
        """Make the object visible under its name. Idempotent."""
        if not self._open:
            return
        try:
            if self._upload is None:
                self._create(bytes(self._pending))
            else:
                self._upload_part()
                with self._store.translate_errors(self._name, "cannot be written"):
                    self._upload.close()
                self._upload = None
        finally:
            self.abort()

    def _create(self, data: bytes) -> None:
        try:
            self._store.put_new(self._name, data)
        except AlreadyExists:
            # If the response to a request was lost, the retry finds our own object.
            if self._store.get(self._name) != data:
                raise

    def abort(self) -> None:
        """Discard the data and the uploaded parts. Idempotent, and safe after an error."""
        self._open = False
        self._pending.clear()
        upload, self._upload = self._upload, None
        if upload is not None:
            # obstore removes the parts of an upload whose `with` block raises.
            error = RuntimeError("aborted")
            with suppress(exceptions.BaseError, OSError, RuntimeError):
                upload.__exit__(RuntimeError, error, None)

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

    def _upload_part(self) -> None:
        if self._upload is None:
            if self._store.exists(self._name):
                raise AlreadyExists(f"{self._store.uri}/{self._name}")
            self._upload = obstore.open_writer(
                self._client.store, self._key, buffer_size=_PART_BYTES, max_concurrency=4
            )
        with self._store.translate_errors(self._name, "cannot be written"):
            self._upload.write(bytes(self._pending))
        self._pending.clear()


# ---- Errors: short, without secrets, and marked as retryable if a retry may succeed

_STATUS_PATTERN = re.compile(r"status code: (\d{3}) ?([A-Za-z ]*)")
_CODE_PATTERN = re.compile(r"<Code>([^<]*)</Code>")
_MESSAGE_PATTERN = re.compile(r"<Message>([^<]*)</Message>")
_NETWORK_PATTERN = re.compile(r"HTTP error: (.*)")
# Request timeout, conflict, too early, too many requests. All 5xx are transient, too.
_TRANSIENT_STATUS = (408, 409, 425, 429)
_FORBIDDEN = (PermissionError, exceptions.PermissionDeniedError, exceptions.UnauthenticatedError)
_PERMANENT = (
    ValueError,
    exceptions.InvalidPathError,
    exceptions.NotSupportedError,
    exceptions.UnknownConfigurationKeyError,
)


def storage_error(error: Exception, uri: str, action: str, secrets: Iterable[str]) -> StorageError:
    """Convert an error of obstore; `action` is what failed, such as "cannot be read"."""
    # The debug part of the message contains the configuration of the client.
    text = str(error).partition("\n\nDebug source")[0]
    if "NoSuchBucket" in text:
        reason = f"{action}: the bucket does not exist"
        return StorageError(uri, reason, hint="create the bucket, or correct the URI.")
    if isinstance(error, (FileNotFoundError, exceptions.NotFoundError)):
        return NotFound(uri)
    if isinstance(error, (FileExistsError, exceptions.AlreadyExistsError)):
        return AlreadyExists(uri)
    forbidden = isinstance(error, _FORBIDDEN)
    retryable = not forbidden and not isinstance(error, _PERMANENT) and _is_transient(text)
    hint = "check the credentials (options, or AWS_… in the environment)." if forbidden else None
    reason = f"{action}: {_without_secrets(_message_of(text), secrets)}"
    return StorageError(uri, reason, retryable=retryable, hint=hint)


def _is_transient(text: str) -> bool:
    """Return whether a retry may succeed: no response, or a transient status."""
    status = _STATUS_PATTERN.search(text)
    return status is None or int(status[1]) >= 500 or int(status[1]) in _TRANSIENT_STATUS


def _message_of(text: str) -> str:
    """Extract the message of the server, or of the network without a response."""
    code, message = _CODE_PATTERN.search(text), _MESSAGE_PATTERN.search(text)
    status = _STATUS_PATTERN.search(text)
    if code is not None:
        return f"{code[1]}: {message[1]}" if message is not None else code[1]
    if status is not None:
        return f"the server returned {status[1]} {status[2].strip()}".rstrip()
    network = _NETWORK_PATTERN.search(text)
    if network is not None:
        return f"the server does not respond ({network[1].strip()})"
    return text.partition("\n")[0]


def _without_secrets(text: str, secrets: Iterable[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, "***")
    return text


class ObjectStore:
    """The objects of a bucket below a prefix."""

    def __init__(self, uri: str, client: BucketClient) -> None:
        self.uri = uri
        self._client = client
        self._prefix = uris.bucket_and_key(uri)[1]

    def __repr__(self) -> str:
        return f"ObjectStore(uri={self.uri!r})"

    @property
    def local(self) -> bool:
        return False

    def child(self, name: str) -> ObjectStore:
        return ObjectStore(self._uri(valid_name(name)), self._client)

    def put_new(self, name: str, data: bytes) -> None:
        key = self._key(name)
        with self.translate_errors(name, "cannot be written"):
            obstore.put(self._client.store, key, data, mode="create")

    def put(self, name: str, data: bytes, durable: bool = True) -> None:
        key = self._key(name)
        with self.translate_errors(name, "cannot be written"):
            obstore.put(self._client.store, key, data)

    def get(self, name: str) -> bytes:
        key = self._key(name)
        with self.translate_errors(name, "cannot be read"):
            return obstore.get(self._client.store, key).bytes().to_bytes()

    def get_range(self, name: str, start: int, length: int) -> bytes:
        key = self._key(name)
        # Object stores reject a range that is empty or ends after the object.
        length = min(length, self.size(name) - start)
        if length <= 0:
            return b""
        with self.translate_errors(name, "cannot be read"):
            return obstore.get_range(self._client.store, key, start=start, length=length).to_bytes()

    def exists(self, name: str) -> bool:
        try:
            self.size(name)
        except NotFound:
            return False
        return True

    def size(self, name: str) -> int:
        key = self._key(name)
        with self.translate_errors(name, "cannot be read"):
            return obstore.head(self._client.store, key)["size"]

    def list(self, folder: str = "") -> StoredFiles:
        prefix = self._key(folder) + "/" if folder else self._prefix and self._prefix + "/"
        prefix_length = len(self._prefix) + 1 if self._prefix else 0
        with self.translate_errors(folder, "cannot be listed"):
            pages = obstore.list(self._client.store, prefix.rstrip("/") or None)
            files = [
                StoredFile(
                    meta["path"][prefix_length:],
                    meta["size"],
                    round(meta["last_modified"].timestamp() * 1_000_000),
                )
                for page in pages
                for meta in page
                # Some tools create an empty object with the name of a folder.
                if meta["path"].startswith(prefix)
            ]
        return sorted(files, key=lambda file: file.name)

    def list_unfinished(self, folder: str = "") -> StoredFiles:
        """Return nothing: incomplete uploads are invisible, and lifecycle rules remove them."""
        return []

    def delete(self, names: Iterable[str]) -> None:
        keys = [self._key(name) for name in names]
        if not keys:
            return
        try:
            with self.translate_errors("", "cannot be deleted"):
                obstore.delete(self._client.store, keys)
        except NotFound:
            # Some stores fail if one of the objects does not exist.
            for key in keys:
                with suppress(NotFound), self.translate_errors("", "cannot be deleted"):
                    obstore.delete(self._client.store, key)

    def delete_all(self, folder: str) -> None:
        self.delete(file.name for file in self.list(folder))

    def move_new(self, source: str, target: str) -> None:
        keys = self._key(source), self._key(target)
        if is_moved(self, source, target):
            return
        try:
            with self.translate_errors(source, f"cannot be moved to {target}"):
                obstore.copy(self._client.store, *keys)
        except NotFound:
            # Another process may have moved the object in the meantime.
            if not is_moved(self, source, target):
                raise
        self.delete([source])

    def sync(self, folders: Iterable[str]) -> None:
        """Do nothing: objects are durable once the store has accepted them."""

    def sync_files(self, names: Iterable[str]) -> None:
        """Do nothing: objects are durable once the store has accepted them."""

    def writer(self, name: str) -> ObjectWriter:
        return ObjectWriter(self, self._client, self._key(name), name)

    def map(self, name: str) -> pa.Buffer:
        key = self._key(name)
        with self.translate_errors(name, "cannot be read"):
            meta = obstore.head(self._client.store, key)

        def download(write: Callable[[memoryview], object]) -> None:
            with self.translate_errors(name, "cannot be read"):
                options: GetOptions = {"if_match": meta["e_tag"]}
                for chunk in obstore.get(self._client.store, key, options=options).stream():
                    write(memoryview(chunk))

        version = f"{self._client.endpoint}\n{meta['e_tag']}\n{meta['last_modified']}"
        return map_object(self._uri(name), version, meta["size"], download)

    def local_path(self, name: str = "") -> Path:
        raise AssertionError(f"{self._uri(name)} has no path on this machine")

    def spark_uri(self, name: str = "") -> str:
        return uris.to_spark_uri(self._uri(name))

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{valid_name(name)}" if self._prefix else valid_name(name)

    def _uri(self, name: str) -> str:
        return f"{self.uri}/{name}" if name else self.uri

    @contextmanager
    def translate_errors(self, name: str, action: str) -> Iterator[None]:
        """Raise errors of obstore as `StorageError`, without the cause: it may contain secrets."""
        _reject_fork(self.uri)
        try:
            yield
        except StorageError:
            raise
        except (exceptions.BaseError, OSError, ValueError) as error:
            raise storage_error(error, self._uri(name), action, self._client.secrets) from None


MAX_CACHE_BYTES = 8 << 30
# Another process may evict a file just before it is mapped.
_MAX_ATTEMPTS = 5

Download = Callable[[Callable[[memoryview], object]], None]


def map_object(uri: str, version: str, size: int, download: Download) -> pa.Buffer:
    """Return an object as a memory map, downloading it if this version is not in the cache.

    `download` is called with a function that writes bytes to the cache.
    """
    name = hashlib.sha256(f"{uri}\n{version}\n{size}".encode("utf-8", "surrogateescape"))
    path = f"{_folder()}/{name.hexdigest()}"
    for _ in range(_MAX_ATTEMPTS):
        with suppress(FileNotFoundError):
            if os.stat(path).st_size == size:
                # Update only the access time: the modification time identifies the memory map.
                os.utime(path, ns=(time.time_ns(), os.stat(path).st_mtime_ns))
                return map_file(path)
        _fetch(uri, path, size, download)
    raise StorageError(uri, f"cannot be cached in {path}: other processes keep removing the file")


def _folder() -> str:
    """Return the cache folder, which only this user can read and write."""
    path = f"{tempfile.gettempdir()}/tidegate-{os.geteuid()}"
    with translate_write_errors(path), suppress(FileExistsError):
        os.mkdir(path, 0o700)
    status = os.lstat(path)
    private = stat.S_ISDIR(status.st_mode) and not status.st_mode & 0o077
    if not private or status.st_uid != os.geteuid():
        hint = "remove it, or set TMPDIR to a folder that only you can access."
        raise StorageError(path, "is not a private folder of this user", hint=hint)
    return path


def _fetch(uri: str, path: str, size: int, download: Download) -> None:
    """Download an object to a temporary file, then rename it."""
    folder = os.path.dirname(path)
    _evict(folder, size)
    with translate_write_errors(folder):
        handle, temporary = tempfile.mkstemp(dir=folder)
        try:
            with os.fdopen(handle, "wb") as file:
                download(file.write)
                file.flush()
                # The cache survives a power failure, so its files must be complete, too.
                os.fsync(file.fileno())
                received = file.tell()
            if received != size:
                reason = f"has {size} bytes, but {received} were received"
                raise StorageError(uri, reason, retryable=True)
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise


def _evict(folder: str, size: int) -> None:
    """Remove the least recently used files until an object of this size fits."""
    files = []
    for entry in os.scandir(folder):
        with suppress(FileNotFoundError):
            status = entry.stat(follow_symlinks=False)
            files.append((status.st_atime_ns, status.st_size, entry.path))
    total = sum(file[1] for file in files) + size
    for _, file_size, path in sorted(files):
        if total <= MAX_CACHE_BYTES:
            return
        with suppress(FileNotFoundError):
            os.unlink(path)
        total -= file_size
