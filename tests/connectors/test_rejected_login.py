"""A rejected login stops the pipeline with the reason; an unavailable system is waited for."""

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
from tidegate.spark.errors import JobFailed

CONNECTION = Connection("the source s", "b:9092", {})
REJECTED = KafkaError(
    KafkaError._AUTHENTICATION, "sasl://b:9092: SASL authentication error: Invalid credentials."
)
# The client's error for a broker that is killed during the handshake.
CUT_OFF = KafkaError(
    KafkaError._AUTHENTICATION,
    "sasl://b:9092: SASL PLAIN mechanism handshake failed: Local: Broker transport failure: "
    "broker's supported mechanisms: (n/a) (after 0ms in state DOWN)",
)


def kafka_error(error: KafkaError) -> TidegateError:
    complaints = ClientErrors(CONNECTION)
    complaints(error)
    return complaints.error("they are silent")


def database_error(reason: str) -> TidegateError:
    return postgres_client._translated(psycopg.OperationalError(reason), "the database h/d")


@pytest.mark.parametrize(
    "error",
    [
        lambda: kafka_error(REJECTED),
        lambda: database_error('FATAL:  password authentication failed for user "u"'),
        lambda: database_error('FATAL:  LDAP authentication failed for user "u"'),
        lambda: database_error('FATAL:  role "u" is not permitted to log in'),
        lambda: database_error("fe_sendauth: no password supplied"),
    ],
)
def test_login_rejected_in_a_task_stops_the_pipeline_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Callable[[], TidegateError]
) -> None:
    attempts = [20]

    def job(*_: Any) -> None:
        attempts[0] -= 1
        assert attempts[0], "the login is retried forever"
        raise JobFailed(RuntimeError(f"in a task: {error().render()}"))

    monkeypatch.setattr("tidegate.runtime.retry.INITIAL_DELAY_S", 0.001)
    monkeypatch.setattr(PythonPipeline, "job", staticmethod(job))
    harness = PipelineHarness(tmp_path)
    harness.insert(1)
    failure = harness.run().failure
    assert isinstance(failure, RunError) and failure.code == "TG-512", failure
    assert error().message in failure.message and failure.hint == error().hint


def test_broker_that_closes_the_handshake_is_unavailable() -> None:
    assert isinstance(kafka_error(CUT_OFF), SystemUnavailable)


@pytest.mark.parametrize(
    "reason",
    ["connection refused", "FATAL:  the database system is starting up", "server closed"],
)
def test_database_that_starts_or_stops_is_unavailable(reason: str) -> None:
    assert isinstance(database_error(reason), SystemUnavailable)


class _Forbidden(BaseHTTPRequestHandler):
    """An object store that rejects all credentials."""

    def do_GET(self) -> None:
        body = b"<Error><Code>InvalidAccessKeyId</Code><Message>no such key</Message></Error>"
        self.send_response(403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_PUT = do_HEAD = do_POST = do_GET  # noqa: N815

    def log_message(self, *_: Any) -> None: ...


@pytest.mark.parametrize("create", ["true", "false"])
def test_rejected_credentials_of_a_delta_table_are_permanent(
    monkeypatch: pytest.MonkeyPatch, create: str
) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Forbidden) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        options = {"ENDPOINT_URL": f"http://127.0.0.1:{server.server_address[1]}", "REGION": "eu-1"}
        options |= {
            "ALLOW_HTTP": "true",
            "ACCESS_KEY_ID": "zz-key",
            "SECRET_ACCESS_KEY": "zz-secret",
        }
        for name, value in options.items():
            monkeypatch.setenv(f"AWS_{name}", value)
        with pytest.raises(RunError, match="InvalidAccessKeyId") as rejected:
            opened("s3://bucket/table", create_table=create)
        server.shutdown()
    assert rejected.value.code == "TG-512" and "zz-" not in str(rejected.value)
