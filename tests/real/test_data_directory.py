"""A data directory on an object store, without Spark."""

from __future__ import annotations

import os
import uuid

import pytest
from typer.testing import CliRunner

import tidegate
from tests.real.s3 import BUCKET, S3, SECRETS
from tidegate.cli.directory import remove_data_directory
from tidegate.cli.main import app
from tidegate.errors import DataDirectoryError
from tidegate.runtime.directory import DataDirectory
from tidegate.storage import StorageError


@pytest.fixture
def uri(s3: S3, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/{uuid.uuid4().hex}"


def names_below(s3: S3, uri: str) -> list[str]:
    prefix = uri.removeprefix(f"s3://{BUCKET}/") + "/"
    return sorted(name.removeprefix(prefix) for name in s3.names(prefix))


def test_directory_is_opened_by_one_process_at_a_time(s3: S3, uri: str) -> None:
    with tidegate.open(uri) as session:
        assert session.directory.is_open
        with pytest.raises(DataDirectoryError, match=f"in use by process {os.getpid()} ") as caught:
            tidegate.open(uri + "/")
        assert caught.value.code == "TG-602"
    assert names_below(s3, uri) == ["_format", "_lock/000000000001.json"]
    with tidegate.open(uri):
        assert names_below(s3, uri) == ["_format", "_lock/000000000002.json"]
    assert CliRunner().invoke(app, ["checkpoints", uri]).stdout.endswith("no epoch was run\n")
    assert CliRunner().invoke(app, ["inspect", uri]).stdout == f"{uri} has no epochs yet\n"


def test_foreign_directory_is_rejected_and_not_changed(s3: S3, uri: str) -> None:
    key = uri.removeprefix(f"s3://{BUCKET}/")
    s3.put(f"{key}/letters/1.txt", b"dear")
    for attempt in (lambda: tidegate.open(uri), lambda: remove_data_directory(uri, None)):
        with pytest.raises(DataDirectoryError) as caught:
            attempt()
        assert caught.value.code == "TG-601"
    assert names_below(s3, uri) == ["letters/1.txt"]


def test_fresh_deletes_everything_but_the_lease(s3: S3, uri: str) -> None:
    remove_data_directory(uri, None)
    with tidegate.open(uri) as session:
        session.directory.pipeline("main").put("manifests/x.json", b"{}")
    remove_data_directory(uri, None)
    assert [name for name in names_below(s3, uri) if not name.startswith("_lock/")] == []
    with tidegate.open(uri):
        pass


def test_unknown_format_is_rejected(s3: S3, uri: str) -> None:
    with tidegate.open(uri):
        pass
    s3.put(uri.removeprefix(f"s3://{BUCKET}/") + "/_format", b"99\n")
    with pytest.raises(DataDirectoryError, match=r"99.* this version"):
        tidegate.open(uri)
    # The lease was released.
    with pytest.raises(DataDirectoryError, match=r"99.* this version"):
        tidegate.open(uri)


def test_unavailable_store_is_one_error_without_secrets(s3: S3, uri: str) -> None:
    s3.stop()
    try:
        with pytest.raises(StorageError) as caught:
            DataDirectory(uri).open()
    finally:
        s3.start()
    assert caught.value.code == "TG-613" and "does not respond" in caught.value.message
    assert not any(secret in caught.value.render() for secret in SECRETS)
