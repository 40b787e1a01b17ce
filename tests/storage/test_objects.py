"""Object stores: options, errors of the server, and the cache of downloaded objects."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.storage.conftest import BUCKET, SECRETS, Server
from tidegate.errors import RunError
from tidegate.storage import AlreadyExists, NotFound, StorageError, Store, objects, open_store
from tidegate.storage.objects import storage_error

CREATE = """
import json, sys
from tidegate.storage import AlreadyExists, open_store
uri, options, me = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
store = open_store(uri, options)
print("ready", flush=True)
sys.stdin.readline()
for number in range(20):
    try:
        store.put_new(f"m/{number}", me.encode())
    except AlreadyExists:
        continue
    print(number, flush=True)
"""

FORK = """
import json, os, sys
from tidegate.storage import StorageError, open_store
uri, options = sys.argv[1], json.loads(sys.argv[2])
store = open_store(uri, options)
if os.fork() == 0:
    store.put_new("child", b"1")
    os._exit(0)
os.wait()
print(store.get("child") == b"1", flush=True)
if os.fork() == 0:
    try:
        open_store(uri + "/x", options).put_new("late", b"1")
    except StorageError as error:
        print(error.reason, flush=True)
    os._exit(0)
os.wait()
"""


def prefix(store: Store) -> str:
    return store.uri.removeprefix(f"s3://{BUCKET}/")


def test_keys_are_file_names(s3: Store, server: Server) -> None:
    s3.put_new("a b/%20/ü[1]", b"1")
    assert f"{prefix(s3)}/a b/%20/ü[1]" in server.names()
    assert s3.spark_uri("a b") == f"s3a://{BUCKET}/{prefix(s3)}/a b"
    with pytest.raises(AssertionError, match="no path on this machine"):
        s3.local_path("a")


def test_same_uri_and_options_return_same_store(server: Server) -> None:
    first = open_store("s3://bucket/x", server.options)
    assert first is open_store("s3a://bucket/x/", dict(server.options))
    assert first is not open_store("s3://bucket/x", {**server.options, "region": "eu-west-1"})


def test_bucket_without_prefix_is_a_store(server: Server, s3: Store) -> None:
    s3.put_new("a", b"1")
    bucket = open_store(f"s3://{BUCKET}", server.options)
    assert bucket.get(f"{prefix(s3)}/a") == b"1"
    assert [item.name for item in bucket.list(prefix(s3))] == [f"{prefix(s3)}/a"]
    assert f"{prefix(s3)}/a" in [item.name for item in bucket.list()]
    assert bucket.child(prefix(s3)).get("a") == b"1"


def test_exactly_one_process_creates_a_name(s3: Store, server: Server) -> None:
    command = [sys.executable, "-c", CREATE, s3.uri, json.dumps(dict(server.options))]
    processes = [
        subprocess.Popen(
            [*command, str(process)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for process in range(3)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    created_by = [process.communicate("go\n")[0].split() for process in processes]
    assert sorted(int(number) for numbers in created_by for number in numbers) == list(range(20))
    for process, numbers in enumerate(created_by):
        for number in numbers:
            assert s3.get(f"m/{number}") == b"%d" % process


def test_forked_process_raises_error_instead_of_hanging(s3: Store, server: Server) -> None:
    command = [sys.executable, "-c", FORK, s3.uri, json.dumps(dict(server.options))]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    first, second = process.stdout.splitlines()
    assert first == "True"
    assert "was forked from one that used object stores" in second


def test_listing_ignores_folder_markers(s3: Store, server: Server) -> None:
    s3.put_new("a/b", b"1")
    server.boto.put_object(Bucket=BUCKET, Key=f"{prefix(s3)}/a/", Body=b"")
    assert [item.name for item in s3.list("a")] == ["a/b"]


def test_aborted_upload_leaves_no_parts(s3: Store, server: Server) -> None:
    writer = s3.writer("a")
    for _ in range(20):
        writer.write(bytes(1 << 20))
    assert len(server.uploads()) == 1
    writer.abort()
    assert server.uploads() == []
    with pytest.raises(NotFound):
        s3.get("a")


def test_large_upload_rejects_existing_name(s3: Store, server: Server) -> None:
    s3.put_new("a", b"old")
    with pytest.raises(AlreadyExists), s3.writer("a") as writer:
        for _ in range(20):
            writer.write(bytes(1 << 20))
    assert s3.get("a") == b"old"
    assert server.uploads() == []


def test_downloads_each_version_once(s3: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    s3.put_new("a", b"x" * 1000)
    first = s3.map("a")
    monkeypatch.setattr(objects, "_fetch", lambda *_: pytest.fail("fetched again"))
    assert s3.map("a").to_pybytes() == first.to_pybytes()


def test_downloads_new_version(s3: Store) -> None:
    s3.put("a", b"x" * 1000)
    assert s3.map("a").to_pybytes() == b"x" * 1000
    s3.put("a", b"y" * 1000)
    assert s3.map("a").to_pybytes() == b"y" * 1000


def cache_files() -> list[Path]:
    return sorted(Path(objects._folder()).iterdir())


def test_cache_evicts_least_recently_used_files(s3: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "MAX_CACHE_BYTES", 2500)
    for number in range(6):
        s3.put_new(str(number), b"%d" % number * 1000)
        s3.map("0")
        assert s3.map(str(number)).to_pybytes() == b"%d" % number * 1000
    assert sum(path.stat().st_size for path in cache_files()) <= 2500
    assert sorted(path.read_bytes()[:1] for path in cache_files()) == [b"0", b"5"]


def test_downloads_damaged_cache_file_again(s3: Store) -> None:
    s3.put_new("a", b"x" * 1000)
    s3.map("a")
    (path,) = cache_files()
    path.write_bytes(b"short")
    assert s3.map("a").to_pybytes() == b"x" * 1000


def test_failed_download_leaves_no_file(s3: Store) -> None:
    def download(write: Callable[[memoryview], object]) -> None:
        write(memoryview(b"half"))
        raise StorageError("s3://x", "gone", retryable=True)

    with pytest.raises(StorageError, match="gone"):
        objects.map_object("s3://x", "1", 1000, download)
    with pytest.raises(StorageError, match="has 1000 bytes, but 4 were received"):
        objects.map_object("s3://x", "1", 1000, lambda write: write(memoryview(b"half")))  # type: ignore[arg-type,return-value]
    assert cache_files() == []


def test_cache_folder_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = Path(objects._folder())
    assert folder.parent == tmp_path
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o755)
    with pytest.raises(StorageError, match="not a private folder of this user"):
        objects._folder()
    folder.rmdir()
    folder.symlink_to(tmp_path)
    with pytest.raises(StorageError, match="not a private folder of this user"):
        objects._folder()


def full_text(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)) + repr(error)


def test_unreachable_server_is_retryable_and_shows_no_secrets(server: Server) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = {**server.options, "endpoint": f"http://127.0.0.1:{port}"}
    store = open_store("s3://bucket/x", options)
    operations = (
        lambda: store.put_new("a", b"1"),
        lambda: store.list(),
        lambda: store.exists("a"),
        lambda: store.map("a"),
        lambda: store.delete(["a"]),
    )
    for operation in operations:
        with pytest.raises(StorageError, match="the server does not respond") as caught:
            operation()
        assert caught.value.retryable
        assert not isinstance(caught.value, (NotFound, AlreadyExists))
        for secret in SECRETS.values():
            assert secret not in full_text(caught.value)


def test_missing_bucket_is_not_retryable(server: Server) -> None:
    store = open_store("s3://no-such-bucket/x", server.options)
    for operation in (store.put_new, store.put):
        with pytest.raises(StorageError, match="the bucket does not exist") as caught:
            operation("a", b"1")
        assert not caught.value.retryable
    for read in (lambda: store.list(), lambda: store.get("a")):
        with pytest.raises(StorageError, match="the bucket does not exist") as caught:
            read()
        assert not isinstance(caught.value, NotFound)


def test_rejects_keys_that_the_server_rejects(s3: Store) -> None:
    for operation in (s3.get, s3.exists, lambda name: s3.put_new(name, b"1")):
        with pytest.raises(StorageError) as caught:
            operation("tab\there")
        assert not caught.value.retryable


def server_error(kind: type[Exception], status: str, body: str = "") -> StorageError:
    text = f"Error performing GET http://x - Server returned non-2xx status code: {status}: {body}"
    error = kind(f"{text}\n\nDebug source: {SECRETS['secret_key']}")
    return storage_error(error, "s3://b/x", "cannot be read", SECRETS.values())


@pytest.mark.parametrize(
    ("kind", "status", "retryable"),
    [
        (OSError, "500 Internal Server Error", True),
        (OSError, "503 Slow Down", True),
        (OSError, "429 Too Many Requests", True),
        (OSError, "400 Bad Request", False),
        (OSError, "301 Moved Permanently", False),
        (PermissionError, "403 Forbidden", False),
    ],
)
def test_retryable_status_codes(kind: type[Exception], status: str, retryable: bool) -> None:
    error = server_error(kind, status)
    assert error.retryable == retryable
    assert status in error.reason
    assert (error.hint is not None) == (kind is PermissionError)


def test_error_shows_server_message_without_secrets() -> None:
    key = SECRETS["access_key"]
    body = (
        f"<Error><Code>InvalidAccessKeyId</Code><Message>no {key}</Message><Id>{key}</Id></Error>"
    )
    error = server_error(PermissionError, "403 Forbidden", body)
    assert error.reason == "cannot be read: InvalidAccessKeyId: no ***"
    assert SECRETS["secret_key"] not in str(error)


def test_repr_shows_no_secrets(s3: Store) -> None:
    assert repr(s3) == f"ObjectStore(uri={s3.uri!r})"
    for text in (repr(s3._client), str(vars(s3))):  # type: ignore[attr-defined]
        for secret in SECRETS.values():
            assert secret not in text


def test_reads_options_from_environment(
    server: Server, s3: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3.put_new("a", b"1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.options["endpoint"])
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", SECRETS["access_key"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRETS["secret_key"])
    assert open_store(s3.uri).get("a") == b"1"


def test_rejects_invalid_options(server: Server) -> None:
    with pytest.raises(RunError, match="s3 has no option acces_key") as caught:
        open_store("s3://bucket/x", {"acces_key": "1"})
    assert caught.value.hint == "did you mean access_key?"
    plain = {name: text for name, text in server.options.items() if name != "allow_http"}
    with pytest.raises(RunError, match="is not encrypted"):
        open_store("s3://bucket/x", plain)
    with pytest.raises(RunError, match="gs has no option region"):
        open_store("gs://bucket/x", {"region": "1"})


@pytest.mark.parametrize(
    ("uri", "client"),
    [
        ("gs://bucket/some where/%41", "GCSStore"),
        ("az://box/some where/%41", "AzureStore"),
        ("abfss://box@account.dfs.core.windows.net/some where/%41", "AzureStore"),
    ],
)
def test_opens_google_and_azure_stores(
    uri: str, client: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "c2VjcmV0")
    store = open_store(uri)
    assert type(store._client.store).__name__ == client  # type: ignore[attr-defined]
    assert store.spark_uri("x") == uri + "/x"
    assert store.uri == uri
