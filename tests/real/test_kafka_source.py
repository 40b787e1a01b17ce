"""The Kafka source without Spark: planned ranges, what tasks read, and rejected topics."""

from __future__ import annotations

import json
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.real.kafka import PASSWORD, USER, Broker
from tests.support.compiling import compile_text
from tidegate.catalog.objects import Source
from tidegate.catalog.settings import Settings
from tidegate.columns import ARRIVAL_ROW, PARTITION
from tidegate.connectors.base import InputRange, ScanRequest, SourceContext
from tidegate.connectors.formats.lines import TEXT_BYTES
from tidegate.connectors.kafka import reader as kafka_tasks
from tidegate.connectors.kafka import source as kafka_source
from tidegate.connectors.kafka.reader import KafkaReader
from tidegate.connectors.kafka.source import KafkaSource, connection_of
from tidegate.errors import RunError, SystemUnavailable
from tidegate.operators.vectorized import VectorFailed


def declare(broker: Broker, topic: str, options: str = "") -> Source:
    brokers = "" if "brokers =" in options else f", brokers = '{broker.brokers}'"
    compiled = compile_text(
        f"CREATE SOURCE s (a BIGINT) WITH (connector = 'kafka', topic = '{topic}'{brokers}{options});"
    )
    source = compiled.catalog.get("s")
    assert isinstance(source, Source), compiled.errors
    return source


def open_source(broker: Broker, topic: str, options: str = "") -> KafkaSource:
    return KafkaSource(SourceContext(declare(broker, topic, options), "", "", Settings()))


@pytest.fixture
def topic() -> str:
    return f"t-{uuid.uuid4().hex[:8]}"


@pytest.fixture(autouse=True)
def refresh_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_source, "_REFRESH_S", 0.0)


def read(source: KafkaSource, input_range: InputRange | None) -> list[str]:
    """Return the records that the tasks of a range read, in the order of tasks."""
    assert input_range is not None
    reader = KafkaReader(source.connection, ("topic", "offset"))
    batches = [
        batch for split in input_range.splits for part in split for batch, _ in reader.read(part)
    ]
    return [text.decode() for batch in batches for text in batch.column(TEXT_BYTES).to_pylist()]


def texts(count: int, first: int = 0) -> list[str]:
    return [f"{number:04d}" for number in range(first, first + count)]


def ends(input_range: InputRange | None) -> list[int]:
    assert input_range is not None
    return [end for _, _, end in input_range.offset["partitions"]]


def test_plans_every_record_once_and_an_empty_first_range(broker: Broker, topic: str) -> None:
    broker.create(topic, 3)
    source = open_source(broker, topic)
    first = source.plan_range(None, 2)
    assert first is not None and first.partitions == 3 and not first.has_more
    assert read(source, first) == [] and ends(first) == [0, 0, 0]
    assert source.plan_range(first.offset, 2) is None
    broker.produce(topic, texts(2500), 1)
    broker.produce(topic, texts(10, 5000), 2)
    input_range = source.plan_range(first.offset, 2)
    assert input_range is not None and [len(parts) for (parts,) in input_range.splits] == [1, 2]
    assert read(source, input_range) == [*texts(2500), *texts(10, 5000)], "in order, in two tasks"
    assert read(source, input_range) == read(source, input_range), "repeatable"
    assert ends(input_range) == [0, 2500, 10] and source.plan_range(input_range.offset, 2) is None


def test_limits_an_epoch_and_reads_from_all_partitions(broker: Broker, topic: str) -> None:
    broker.create(topic, 2)
    broker.produce(topic, texts(90), 0)
    broker.produce(topic, texts(10, 90), 1)
    source = open_source(broker, topic, ", rows_per_epoch = 20")
    input_range = source.plan_range(None, 2)
    assert input_range is not None and (
        ends(input_range),
        input_range.has_more,
        input_range.pending_records,
    ) == ([18, 2], True, 80)
    records = read(source, input_range)
    while input_range is not None and input_range.has_more:
        input_range = source.plan_range(input_range.offset, 2)
        records += read(source, input_range)
    assert sorted(records) == texts(100)


def test_skips_aborted_and_uncommitted_transactions(broker: Broker, topic: str) -> None:
    broker.create(topic)
    broker.produce_in_transaction(topic, ["a", "b"], 0, commit=True)
    broker.produce_in_transaction(topic, ["never"], 0, commit=False)
    source = open_source(broker, topic)
    input_range = source.plan_range(None, 1)
    assert read(source, input_range) == ["a", "b"]
    assert ends(input_range) == [5], "markers and aborted records have offsets"
    assert input_range is not None and source.plan_range(input_range.offset, 1) is None
    broker.produce_in_transaction(topic, ["never"], 0, commit=False)
    next_range = source.plan_range(input_range.offset, 1)
    assert read(source, next_range) == [] and ends(next_range) == [7]
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": broker.brokers, "transactional.id": topic})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(topic, "late")
    producer.flush(60)
    broker.produce(topic, ["behind"])
    assert next_range is not None and source.plan_range(next_range.offset, 1) is None
    producer.commit_transaction(60)
    broker.settle(topic)
    assert read(source, source.plan_range(next_range.offset, 1)) == ["late", "behind"]


def test_starts_where_the_option_says(broker: Broker, topic: str) -> None:
    broker.create(topic, 2)
    broker.produce(topic, ["1", "2"], 0, timestamp=1_000_000)
    broker.produce(topic, ["3"], 0, timestamp=2_000_000)
    broker.produce(topic, ["4"], 1, timestamp=1_500_000)

    def first_records(start: str) -> list[str]:
        source = open_source(broker, topic, f", start = '{start}'")
        return read(source, source.plan_range(None, 2))

    assert first_records("earliest") == ["1", "2", "3", "4"]
    assert first_records("latest") == []
    assert first_records("1970-01-01 00:25:00") == ["3", "4"]
    assert first_records("1970-01-01T00:33:20Z") == ["3"]
    assert first_records("2100-01-01") == []
    assert first_records(json.dumps({topic: {"0": 1}})) == ["2", "3", "4"]
    with pytest.raises(
        RunError, match=f"offset 9 of partition 0 of the topic {topic}, which has 0 to 3"
    ):
        first_records(json.dumps({topic: {"0": 9}}))


def test_loses_nothing_after_a_start_at_the_end(broker: Broker, topic: str) -> None:
    broker.create(topic)
    broker.produce(topic, ["before"])
    first = open_source(broker, topic, ", start = 'latest'").plan_range(None, 1)
    assert first is not None
    broker.produce(topic, ["after"])
    source = open_source(broker, topic, ", start = 'latest'")
    assert read(source, source.plan_range(first.offset, 1)) == ["after"]
    broker.grow(topic, 2)
    broker.produce(topic, ["in a new partition"], 1)
    input_range = source.plan_range(first.offset, 1)
    assert read(source, input_range) == ["after", "in a new partition"]
    assert input_range is not None and input_range.partitions == 2


def test_reads_lists_and_patterns_of_topics(broker: Broker) -> None:
    stem = f"p{uuid.uuid4().hex[:6]}"
    for name in ("a", "b"):
        broker.create(f"{stem}-{name}")
        broker.produce(f"{stem}-{name}", [name])
    listed = open_source(broker, f"{stem}-b, {stem}-a")
    assert read(listed, listed.plan_range(None, 1)) == ["b", "a"]
    pattern = open_source(broker, f"^{stem}-.*")
    input_range = pattern.plan_range(None, 1)
    assert read(pattern, input_range) == ["a", "b"]
    broker.create(f"{stem}-c")
    broker.produce(f"{stem}-c", ["c"])
    assert input_range is not None
    later = pattern.plan_range(input_range.offset, 1)
    assert read(pattern, later) == ["c"] and later is not None and later.partitions == 3


@pytest.mark.usefixtures("impatient")
def test_rejects_missing_topics_settings_and_brokers(broker: Broker, topic: str) -> None:
    broker.create(topic)
    with pytest.raises(RunError, match=f"reads the topic {topic}x, which does not exist") as error:
        open_source(broker, f"{topic}x")
    assert error.value.hint == f"did you mean {topic}?"
    with pytest.raises(RunError, match="but there are none"):
        open_source(broker, f"^{topic}-nothing.*")
    with pytest.raises(RunError, match="kafka") as rejected:
        open_source(broker, topic, ", kafka.no.such.setting = 'x'")
    assert rejected.value.code == "TG-207"
    with pytest.raises(SystemUnavailable, match="cannot reach the brokers 127"):
        open_source(broker, topic, ", brokers = '127.0.0.1:1'")


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("password", [PASSWORD, "zz-wrong-zz"])
def test_never_shows_a_password(
    broker: Broker, topic: str, password: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create(topic)
    options = (
        f", brokers = '{broker.sasl_brokers}', security_protocol = 'sasl_plaintext', "
        f"sasl_username = '{USER}', sasl_password = '{password}'"
    )
    source = declare(broker, topic, options)
    context = SourceContext(source, "", "", Settings())
    if password == PASSWORD:
        broker.produce(topic, ["a"])
        connected = KafkaSource(context)
        input_range = connected.plan_range(None, 1)
        assert read(connected, input_range) == ["a"]
        reader = KafkaReader(connected.connection, ())
        shown = [repr(connected.connection), repr(reader), repr(source)]
        shown += [json.dumps(input_range.offset) if input_range else "", source.create_sql()]
    else:
        monkeypatch.setattr(kafka_tasks, "_SILENCE_TIMEOUT_S", 2.0)
        task = KafkaReader(connection_of("s", source.options), ())
        shown = []
        for work in (
            lambda: KafkaSource(context),
            lambda: list(task.read([[0, topic, 0, 0, 1, 0]])),
        ):
            with pytest.raises(RunError, match="rejected the login of") as error:
                work()
            assert error.value.code == "TG-512"
            shown.append(error.value.render())
    assert not any(password in text for text in shown)


def test_rejects_or_counts_removed_records(broker: Broker, topic: str) -> None:
    broker.create(topic)
    broker.produce(topic, texts(10))
    source = open_source(broker, topic, ", rows_per_epoch = 4")
    input_range = source.plan_range(None, 1)
    broker.delete_before(topic, 0, 7)
    assert input_range is not None
    with pytest.raises(
        RunError, match="begins at offset 7, but the next offset to read is 4"
    ) as error:
        source.plan_range(input_range.offset, 1)
    assert "on_data_loss = 'continue'" in (error.value.hint or "")
    tolerant = open_source(broker, topic, ", on_data_loss = 'continue'")
    after = tolerant.plan_range(input_range.offset, 1)
    assert after is not None and after.lost_records == 3
    assert read(tolerant, after) == ["0007", "0008", "0009"]
    with pytest.raises(SystemUnavailable, match="do not exist anymore"):
        read(tolerant, input_range)


def test_detects_a_topic_that_was_created_again(broker: Broker, topic: str) -> None:
    broker.create(topic)
    broker.produce(topic, ["old"])
    source = open_source(broker, topic)
    input_range = source.plan_range(None, 1)
    broker.drop(topic)
    _wait_until_deleted(broker, topic)
    broker.create(topic)
    broker.produce(topic, ["new", "newer"])
    assert input_range is not None
    with pytest.raises(RunError, match="was deleted and created again"):
        open_source(broker, topic).plan_range(input_range.offset, 1)
    tolerant = open_source(broker, topic, ", on_data_loss = 'continue'")
    assert read(tolerant, tolerant.plan_range(input_range.offset, 1)) == ["new", "newer"]


def _wait_until_deleted(broker: Broker, topic: str) -> None:
    deadline = time.monotonic() + 30
    while topic in broker.admin().list_topics(timeout=10).topics:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_rejects_offsets_of_another_cluster(broker: Broker, topic: str) -> None:
    broker.create(topic)
    source = open_source(broker, topic)
    input_range = source.plan_range(None, 1)
    assert input_range is not None
    with pytest.raises(RunError, match="was read from the cluster elsewhere") as error:
        source.plan_range({**input_range.offset, "cluster": "elsewhere"}, 1)
    assert error.value.code == "TG-603"


def test_task_fails_if_the_broker_is_silent(
    broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create(topic)
    broker.produce(topic, ["a"])
    source = open_source(broker, topic)
    input_range = source.plan_range(None, 1)
    assert input_range is not None
    monkeypatch.setattr(kafka_tasks, "_SILENCE_TIMEOUT_S", 0.2)
    ((part,),) = input_range.splits[0]
    beyond: list[Any] = [*part[:4], part[4] + 5, part[5]]
    with pytest.raises(SystemUnavailable, match="silent"):
        list(KafkaReader(source.connection, ()).read([beyond]))


def test_reads_the_metadata_of_records(broker: Broker, topic: str, tmp_path: Path) -> None:
    broker.create(topic)
    broker.produce(
        topic, ["v", None], 0, keys=["k", None], timestamp=1_500, headers=[("h", b"1"), ("h", None)]
    )
    source = open_source(broker, topic)
    input_range = source.plan_range(None, 1)
    assert input_range is not None
    names = ("topic", "partition", "offset", "timestamp", "key", "headers")
    ((batch, count),) = KafkaReader(source.connection, names).read(input_range.splits[0][0])
    assert count == 2
    metadata = [batch.column(f"_tg_meta_{name}").to_pylist() for name in names]
    assert metadata[:3] == [[topic, topic], [0, 0], [0, 1]]
    assert [at.timestamp() for at in metadata[3]] == [1.5, 1.5]
    assert metadata[4] == [b"k", None]
    assert metadata[5][0] == [{"key": "h", "value": b"1"}, {"key": "h", "value": None}]
    assert batch.column(kafka_tasks.TOMBSTONE).to_pylist() == [False, True]


def test_tasks_decode_plain_json_and_leave_the_rest_to_spark(broker: Broker, topic: str) -> None:
    broker.create(topic, 2)
    for partition in range(2):
        broker.produce(topic, [json.dumps({"a": 10 * partition + n}) for n in range(3)], partition)
    source = open_source(broker, topic)
    reader = source.create_reader(ScanRequest((("a", "BIGINT"),), with_arrival=True))
    input_range = source.plan_range(None, 1)
    assert reader is not None and input_range is not None
    batches = [
        batch for split in input_range.splits for part in split for batch, _ in reader.read(part)
    ]
    assert all(batch.schema == reader.schema for batch in batches)
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert [(row["a"], row[PARTITION], row[ARRIVAL_ROW]) for row in rows] == [
        *((n, 0, n) for n in range(3)),
        *((10 + n, 1, n) for n in range(3)),
    ]
    broker.produce(topic, ["{'a': 1}"])
    with pytest.raises(VectorFailed):
        later = source.plan_range(input_range.offset, 1)
        assert later is not None
        list(reader.read(later.splits[0][0]))
    for options in (", format = 'csv'", ", changelog = true", ", timestamp_format = 'yyyy'"):
        assert (
            open_source(broker, topic, options).create_reader(ScanRequest((("a", "BIGINT"),)))
            is None
        )
    assert source.create_reader(ScanRequest((("a", "BIGINT"),), with_location=True)) is None
