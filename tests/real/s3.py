"""An S3 server in this process; it can be stopped for a while without losing data."""

from __future__ import annotations

import logging
from typing import Any

BUCKET = "tidegate"
# Words that do not appear in a log by chance.
SECRETS = ("AKIAQQZZTIDEGATE", "zz-very-secret-zz")


class S3:
    """One bucket on a free port of loopback."""

    def __init__(self) -> None:
        import boto3

        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._server: Any = None
        self._port = 0
        self.start()
        self.boto = boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id=SECRETS[0],
            aws_secret_access_key=SECRETS[1],
        )
        self.boto.create_bucket(Bucket=BUCKET)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": SECRETS[0],
            "AWS_SECRET_ACCESS_KEY": SECRETS[1],
        }

    def stop(self) -> None:
        """Stop responding; the data is kept."""
        self._server.stop()

    def start(self) -> None:
        from moto.server import ThreadedMotoServer

        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=self._port)
        self._server.start()
        self._port = self._server.get_host_and_port()[1]

    def names(self, prefix: str) -> list[str]:
        pages = self.boto.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        return [item["Key"] for page in pages for item in page.get("Contents", [])]

    def put(self, name: str, data: bytes) -> None:
        self.boto.put_object(Bucket=BUCKET, Key=name, Body=data)

    def get(self, name: str) -> bytes:
        content: bytes = self.boto.get_object(Bucket=BUCKET, Key=name)["Body"].read()
        return content
