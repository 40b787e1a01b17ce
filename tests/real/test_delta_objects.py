"""Delta tables on an object store, without Spark: append, merge by key, read."""

from __future__ import annotations

import uuid

import pytest
from deltalake import DeltaTable

from tests.real.s3 import BUCKET, S3, SECRETS
from tests.support.delta import (
    E0,
    E1,
    E2,
    KEYED,
    opened,
    row,
    rows_of,
    sink_of,
    source_of,
    staged,
    table_rows,
)
from tidegate.connectors.base import CommittedState
from tidegate.errors import TidegateError


@pytest.fixture
def uri(s3: S3, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/{uuid.uuid4().hex}"


def test_publishes_an_epoch_once_and_a_source_reads_it(
    uri: str,
) -> None:
    sink = opened(uri, partition_by="name")
    committables = staged(sink, E0, [row(1, "a b"), row(2, None)], [], [row(3, "a b")])
    assert table_rows(uri) == []
    for _ in range(2):
        sink.publish(E0, committables)
    version = DeltaTable(uri).version()
    source = source_of(uri)
    first = source.plan_range(None, 2)
    assert sorted(r["id"] for r in rows_of(source, first)) == [1, 2, 3]
    # A later process publishes the committed epoch, once, and deletes other staged files.
    committed = staged(sink, E1, [row(4, "c")])
    staged(sink, E2, [row(5, "lost")])
    for _ in range(2):
        sink_of(uri).recover(CommittedState(E1, committed, E1))
    sink.publish(E1, committed)
    assert table_rows(uri) == [(1, "a b"), (2, None), (3, "a b"), (4, "c")]
    assert DeltaTable(uri).version() > version and first is not None
    assert [r["id"] for r in rows_of(source, source.plan_range(first.offset, 2))] == [4]


def test_merges_by_key_and_one_of_two_publishers_wins(uri: str) -> None:
    first = opened(uri, KEYED)
    first.publish(E0, staged(first, E0, [row(1, "a", "+I"), row(2, "b", "+I")]))
    second = sink_of(uri, KEYED)
    second.recover(CommittedState(E0, (), E0))
    committables = staged(first, E1, [row(1, "a", "-U"), row(1, "c", "+U"), row(2, "b", "-D")])
    first.publish(E1, committables)
    second.publish(E1, committables)
    assert table_rows(uri) == [(1, "c")]


def test_unavailable_store_is_transient_and_errors_contain_no_secrets(s3: S3, uri: str) -> None:
    sink = opened(uri)
    committables = staged(sink, E0, [row(1, "a")])
    s3.stop()
    try:
        with pytest.raises(TidegateError) as error:
            sink.publish(E0, committables)
    finally:
        s3.start()
    assert getattr(error.value, "retryable", False), error.value
    assert not any(secret in str(error.value) for secret in SECRETS)
    sink.publish(E0, committables)
    assert table_rows(uri) == [(1, "a")]
