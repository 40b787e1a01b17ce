"""Fixtures: a store of each kind, in a folder and in a bucket of an S3 server in this process."""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tidegate.storage import Store, objects, open_store

BUCKET = "tidegate"
# Values that cannot occur in a message by chance.
SECRETS = {"access_key": "AKIAQQZZTIDEGATE", "secret_key": "zz-very-secret-zz"}


@dataclass(frozen=True)
class Server:
    """An S3 server with one bucket."""

    options: Mapping[str, str]
    boto: Any

    def names(self) -> list[str]:
        pages = self.boto.get_paginator("list_objects_v2").paginate(Bucket=BUCKET)
        return [item["Key"] for page in pages for item in page.get("Contents", [])]

    def uploads(self) -> list[Any]:
        uploads: list[Any] = self.boto.list_multipart_uploads(Bucket=BUCKET).get("Uploads", [])
        return uploads


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    import boto3
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    moto.start()
    host, port = moto.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    boto = boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id=SECRETS["access_key"],
        aws_secret_access_key=SECRETS["secret_key"],
    )
    boto.create_bucket(Bucket=BUCKET)
    yield Server(
        {"endpoint": endpoint, "region": "us-east-1", "allow_http": "true", **SECRETS}, boto
    )
    moto.stop()


@pytest.fixture(params=["local", "s3"])
def store(request: pytest.FixtureRequest) -> Store:
    """Return an empty store, once of each kind."""
    store: Store = request.getfixturevalue(request.param)
    return store


@pytest.fixture
def local(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "store"))


@pytest.fixture
def s3(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Return a store with an unused prefix and an empty cache."""
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    monkeypatch.setattr(objects, "_folder", lambda: os.fspath(folder))
    return open_store(f"s3://{BUCKET}/some %41 where/{uuid.uuid4().hex}", server.options)
