"""Who is not let in stops and says why; who meets a system that is away waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import KafkaError

from tests.support.delta import opened
from tests.support.pipelines import PipelineHarness, PythonPipeline
from tidegate.connectors.kafka.client import ClientErrors, Connection
from tidegate.connectors.postgres import client as postgres_client
from tidegate.errors import RunError, SystemUnavailable, TidegateError
from tidegate.runtime import pipeline as module
from tidegate.spark.errors import JobFailed

CONNECTION = Connection("the source s", "b:9092", {})
REJECTED = KafkaError(
    KafkaError._AUTHENTICATION, "sasl://b:9092: SASL authentication error: Invalid credentials."
)
# What the client says of a broker that is killed while it is asked how to log in.
CUT_OFF = KafkaError(
    KafkaError._AUTHENTICATION,
    "sasl://b:9092: SASL PLAIN mechanism handshake failed: Local: Broker transport failure: "
    "broker's supported mechanisms: (n/a) (after 0ms in state DOWN)",
)


def complained(error: KafkaError) -> TidegateError:
    complaints = ClientErrors(CONNECTION)
    complaints(error)
    return complaints.error("they are silent")


def of_database(reason: str) -> TidegateError:
    return postgres_client._translated(psycopg.OperationalError(reason), "the database h/d")


@pytest.mark.parametrize(
    "found",
    [
        lambda: complained(REJECTED),
        lambda: of_database('FATAL:  password authentication failed for user "u"'),
        lambda: of_database('FATAL:  LDAP authentication failed for user "u"'),
        lambda: of_database('FATAL:  role "u" is not permitted to log in'),
        lambda: of_database("fe_sendauth: no password supplied"),
    ],
)
def test_who_is_not_let_in_in_a_task_stops_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: Callable[[], TidegateError]
) -> None:
    left = [20]

    def job(*_: Any) -> None:
        left[0] -= 1
        assert left[0], "it is tried for ever"
        raise JobFailed(RuntimeError(f"in a task: {found().render()}"))

    monkeypatch.setattr(module, "_BACKOFF_SECONDS", 0.001)
    monkeypatch.setattr(PythonPipeline, "job", staticmethod(job))
    harness = PipelineHarness(tmp_path)
    harness.insert(1)
    failure = harness.run().failure
    assert isinstance(failure, RunError) and failure.code == "TG-512", failure
    assert found().message in failure.message and failure.hint == found().hint


def test_a_broker_that_is_cut_off_in_the_handshake_is_away() -> None:
    assert isinstance(complained(CUT_OFF), SystemUnavailable)


@pytest.mark.parametrize(
    "reason",
    ["connection refused", "FATAL:  the database system is starting up", "server closed"],
)
def test_a_database_that_starts_or_is_gone_is_away(reason: str) -> None:
    assert isinstance(of_database(reason), SystemUnavailable)


class _Forbidden(BaseHTTPRequestHandler):
    """An object store that knows nobody."""

    def do_GET(self) -> None:
        body = b"<Error><Code>InvalidAccessKeyId</Code><Message>no such key</Message></Error>"
        self.send_response(403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_PUT = do_HEAD = do_POST = do_GET  # noqa: N815

    def log_message(self, *_: Any) -> None: ...


@pytest.mark.parametrize("create", ["true", "false"])
def test_a_store_that_rejects_the_keys_of_a_delta_table_is_not_away(
    monkeypatch: pytest.MonkeyPatch, create: str
) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Forbidden) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        given = {"ENDPOINT_URL": f"http://127.0.0.1:{server.server_address[1]}", "REGION": "eu-1"}
        given |= {"ALLOW_HTTP": "true", "ACCESS_KEY_ID": "zz-key", "SECRET_ACCESS_KEY": "zz-secret"}
        for name, value in given.items():
            monkeypatch.setenv(f"AWS_{name}", value)
        with pytest.raises(RunError, match="InvalidAccessKeyId") as rejected:
            opened("s3://bucket/table", create_table=create)
        server.shutdown()
    assert rejected.value.code == "TG-512" and "zz-" not in str(rejected.value)
