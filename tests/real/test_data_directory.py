"""A data directory on an object store, without Spark."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

import tidegate
from tests.real.s3 import BUCKET, S3, SECRETS
from tidegate.cli.directory import remove_data_directory
from tidegate.cli.main import app
from tidegate.errors import DataDirectoryError
from tidegate.runtime.directory import DataDirectory
from tidegate.storage import StorageError


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    server = S3()
    yield server
    server.away()


@pytest.fixture
def place(s3: S3, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/{uuid.uuid4().hex}"


def below(s3: S3, place: str) -> list[str]:
    prefix = place.removeprefix(f"s3://{BUCKET}/") + "/"
    return sorted(name.removeprefix(prefix) for name in s3.names(prefix))


def test_one_process_at_a_time_and_the_next_one_goes_on(s3: S3, place: str) -> None:
    with tidegate.open(place) as session:
        assert session.directory.is_open
        with pytest.raises(DataDirectoryError, match=f"in use by process {os.getpid()} ") as caught:
            tidegate.open(place + "/")
        assert caught.value.code == "TG-602"
    assert below(s3, place) == ["_format", "_lock/000000000001.json"]
    with tidegate.open(place):
        assert below(s3, place) == ["_format", "_lock/000000000002.json"]
    assert CliRunner().invoke(app, ["checkpoints", place]).stdout.endswith("no epoch was run\n")
    assert CliRunner().invoke(app, ["inspect", place]).stdout == f"{place} has no epochs yet\n"


def test_what_is_not_ours_is_left_alone(s3: S3, place: str) -> None:
    key = place.removeprefix(f"s3://{BUCKET}/")
    s3.put(f"{key}/letters/1.txt", b"dear")
    for attempt in (lambda: tidegate.open(place), lambda: remove_data_directory(place, None)):
        with pytest.raises(DataDirectoryError) as caught:
            attempt()
        assert caught.value.code == "TG-601"
    assert below(s3, place) == ["letters/1.txt"]


def test_fresh_leaves_nothing_but_the_lease(s3: S3, place: str) -> None:
    remove_data_directory(place, None)
    with tidegate.open(place) as session:
        session.directory.pipeline("main").put("manifests/x.json", b"{}")
    remove_data_directory(place, None)
    assert [name for name in below(s3, place) if not name.startswith("_lock/")] == []
    with tidegate.open(place):
        pass


def test_another_format_is_not_read(s3: S3, place: str) -> None:
    with tidegate.open(place):
        pass
    s3.put(place.removeprefix(f"s3://{BUCKET}/") + "/_format", b"99\n")
    with pytest.raises(DataDirectoryError, match=r"99.* this version"):
        tidegate.open(place)
    # The lease was given back.
    with pytest.raises(DataDirectoryError, match=r"99.* this version"):
        tidegate.open(place)


def test_a_store_that_is_away_is_one_error_without_secrets(s3: S3, place: str) -> None:
    s3.away()
    try:
        with pytest.raises(StorageError) as caught:
            DataDirectory(place).open()
    finally:
        s3.back()
    assert caught.value.code == "TG-613" and "does not respond" in caught.value.message
    assert not any(secret in caught.value.render() for secret in SECRETS)
