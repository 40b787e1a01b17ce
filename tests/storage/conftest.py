"""A store of each kind: a folder, and a bucket on an S3 server in this process."""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tidegate.storage import Store, open_store
from tidegate.storage import cache as fetched

BUCKET = "tidegate"
# Names that nobody would find by chance in a message.
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
        found: list[Any] = self.boto.list_multipart_uploads(Bucket=BUCKET).get("Uploads", [])
        return found


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
    """A store of either kind, with nothing in it."""
    found: Store = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def local(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "place"))


@pytest.fixture
def s3(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A prefix of its own in the bucket, and a cache of its own."""
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    monkeypatch.setattr(fetched, "_folder", lambda: os.fspath(cache))
    return open_store(f"s3://{BUCKET}/some %41 where/{uuid.uuid4().hex}", server.options)
