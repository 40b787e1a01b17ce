"""Topics as a source, without Spark: what is cut, what tasks read of it, what is rejected."""

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
from tidegate.connectors.base import InputRange, Read, SourceContext
from tidegate.connectors.formats.lines import TEXT_BYTES
from tidegate.connectors.kafka import reader as kafka_tasks
from tidegate.connectors.kafka import source as kafka_source
from tidegate.connectors.kafka.reader import KafkaReader
from tidegate.connectors.kafka.source import KafkaSource, connection_of
from tidegate.errors import RunError, SystemUnavailable
from tidegate.operators.vectorized import VectorFailed


def declared(broker: Broker, topic: str, options: str = "") -> Source:
    brokers = "" if "brokers =" in options else f", brokers = '{broker.brokers}'"
    compiled = compile_text(
        f"CREATE SOURCE s (a BIGINT) WITH (connector = 'kafka', topic = '{topic}'{brokers}{options});"
    )
    source = compiled.catalog.get("s")
    assert isinstance(source, Source), compiled.errors
    return source


def opened(broker: Broker, topic: str, options: str = "") -> KafkaSource:
    return KafkaSource(SourceContext(declared(broker, topic, options), "", "", Settings()))


@pytest.fixture
def topic() -> str:
    return f"t-{uuid.uuid4().hex[:8]}"


@pytest.fixture(autouse=True)
def always_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_source, "_LOOK_SECONDS", 0.0)


def read(source: KafkaSource, input_range: InputRange | None) -> list[str]:
    """The texts that the tasks of a cut read, in the order of tasks."""
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


def test_every_record_is_cut_once_and_the_first_cut_tells_the_partitions(
    broker: Broker, topic: str
) -> None:
    broker.create(topic, 3)
    source = opened(broker, topic)
    first = source.plan_range(None, 2)
    assert first is not None and first.partitions == 3 and not first.more
    assert read(source, first) == [] and ends(first) == [0, 0, 0]
    assert source.plan_range(first.offset, 2) is None
    broker.produce(topic, texts(2500), 1)
    broker.produce(topic, texts(10, 5000), 2)
    input_range = source.plan_range(first.offset, 2)
    assert input_range is not None and [len(parts) for (parts,) in input_range.splits] == [1, 2]
    assert read(source, input_range) == [*texts(2500), *texts(10, 5000)], "in order, over two tasks"
    assert read(source, input_range) == read(source, input_range), "any number of times"
    assert ends(input_range) == [0, 2500, 10] and source.plan_range(input_range.offset, 2) is None


def test_an_epoch_has_a_limit_and_all_partitions_move(broker: Broker, topic: str) -> None:
    broker.create(topic, 2)
    broker.produce(topic, texts(90), 0)
    broker.produce(topic, texts(10, 90), 1)
    source = opened(broker, topic, ", rows_per_epoch = 20")
    input_range = source.plan_range(None, 2)
    assert input_range is not None and (
        ends(input_range),
        input_range.more,
        input_range.behind,
    ) == ([18, 2], True, 80)
    seen = read(source, input_range)
    while input_range is not None and input_range.more:
        input_range = source.plan_range(input_range.offset, 2)
        seen += read(source, input_range)
    assert sorted(seen) == texts(100)


def test_what_a_transaction_aborted_or_has_not_committed_is_not_read(
    broker: Broker, topic: str
) -> None:
    broker.create(topic)
    broker.produce_in_transaction(topic, ["a", "b"], 0, commit=True)
    broker.produce_in_transaction(topic, ["never"], 0, commit=False)
    source = opened(broker, topic)
    input_range = source.plan_range(None, 1)
    assert read(source, input_range) == ["a", "b"]
    assert ends(input_range) == [5], "markers and what was aborted take offsets"
    assert input_range is not None and source.plan_range(input_range.offset, 1) is None
    broker.produce_in_transaction(topic, ["never"], 0, commit=False)
    again = source.plan_range(input_range.offset, 1)
    assert read(source, again) == [] and ends(again) == [7]
    from confluent_kafka import Producer

    open_one = Producer({"bootstrap.servers": broker.brokers, "transactional.id": topic})
    open_one.init_transactions(60)
    open_one.begin_transaction()
    open_one.produce(topic, "late")
    open_one.flush(60)
    broker.produce(topic, ["behind"])
    assert again is not None and source.plan_range(again.offset, 1) is None
    open_one.commit_transaction(60)
    broker.settle(topic)
    assert read(source, source.plan_range(again.offset, 1)) == ["late", "behind"]


def test_where_a_stream_begins(broker: Broker, topic: str) -> None:
    broker.create(topic, 2)
    broker.produce(topic, ["1", "2"], 0, timestamp=1_000_000)
    broker.produce(topic, ["3"], 0, timestamp=2_000_000)
    broker.produce(topic, ["4"], 1, timestamp=1_500_000)

    def begins(start: str) -> list[str]:
        source = opened(broker, topic, f", start = '{start}'")
        return read(source, source.plan_range(None, 2))

    assert begins("earliest") == ["1", "2", "3", "4"]
    assert begins("latest") == []
    assert begins("1970-01-01 00:25:00") == ["3", "4"]
    assert begins("1970-01-01T00:33:20Z") == ["3"]
    assert begins("2100-01-01") == []
    assert begins(json.dumps({topic: {"0": 1}})) == ["2", "3", "4"]
    with pytest.raises(
        RunError, match=f"offset 9 of partition 0 of the topic {topic}, which has 0 to 3"
    ):
        begins(json.dumps({topic: {"0": 9}}))


def test_what_comes_after_a_start_at_the_end_is_never_lost(broker: Broker, topic: str) -> None:
    broker.create(topic)
    broker.produce(topic, ["before"])
    first = opened(broker, topic, ", start = 'latest'").plan_range(None, 1)
    assert first is not None
    broker.produce(topic, ["after"])
    source = opened(broker, topic, ", start = 'latest'")
    assert read(source, source.plan_range(first.offset, 1)) == ["after"]
    broker.grow(topic, 2)
    broker.produce(topic, ["in a new partition"], 1)
    input_range = source.plan_range(first.offset, 1)
    assert read(source, input_range) == ["after", "in a new partition"]
    assert input_range is not None and input_range.partitions == 2


def test_lists_and_patterns_of_topics(broker: Broker) -> None:
    stem = f"p{uuid.uuid4().hex[:6]}"
    for name in ("a", "b"):
        broker.create(f"{stem}-{name}")
        broker.produce(f"{stem}-{name}", [name])
    both = opened(broker, f"{stem}-b, {stem}-a")
    assert read(both, both.plan_range(None, 1)) == ["b", "a"]
    pattern = opened(broker, f"^{stem}-.*")
    input_range = pattern.plan_range(None, 1)
    assert read(pattern, input_range) == ["a", "b"]
    broker.create(f"{stem}-c")
    broker.produce(f"{stem}-c", ["c"])
    assert input_range is not None
    later = pattern.plan_range(input_range.offset, 1)
    assert read(pattern, later) == ["c"] and later is not None and later.partitions == 3


@pytest.mark.usefixtures("impatient")
def test_what_is_not_there_is_rejected_when_it_is_opened(broker: Broker, topic: str) -> None:
    broker.create(topic)
    with pytest.raises(RunError, match=f"reads the topic {topic}x, and there is no") as error:
        opened(broker, f"{topic}x")
    assert error.value.hint == f"did you mean {topic}?"
    with pytest.raises(RunError, match="no such topic"):
        opened(broker, f"^{topic}-nothing.*")
    with pytest.raises(RunError, match="kafka") as rejected:
        opened(broker, topic, ", kafka.no.such.setting = 'x'")
    assert rejected.value.code == "TG-207"
    with pytest.raises(SystemUnavailable, match="cannot reach the brokers 127"):
        opened(broker, topic, ", brokers = '127.0.0.1:1'")


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("password", [PASSWORD, "zz-wrong-zz"])
def test_a_password_is_never_shown(
    broker: Broker, topic: str, password: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create(topic)
    options = (
        f", brokers = '{broker.sasl_brokers}', security_protocol = 'sasl_plaintext', "
        f"sasl_username = '{USER}', sasl_password = '{password}'"
    )
    source = declared(broker, topic, options)
    context = SourceContext(source, "", "", Settings())
    if password == PASSWORD:
        broker.produce(topic, ["a"])
        good = KafkaSource(context)
        input_range = good.plan_range(None, 1)
        assert read(good, input_range) == ["a"]
        shown = [repr(good.connection), repr(KafkaReader(good.connection, ())), repr(source)]
        shown += [json.dumps(input_range.offset) if input_range else "", source.create_sql()]
    else:
        monkeypatch.setattr(kafka_tasks, "_SILENT_SECONDS", 2.0)
        task = KafkaReader(connection_of("s", source.options), ())
        shown = []
        for work in (
            lambda: KafkaSource(context),
            lambda: list(task.read([[0, topic, 0, 0, 1, 0]])),
        ):
            with pytest.raises(RunError, match="is not let in") as error:
                work()
            assert error.value.code == "TG-512"
            shown.append(error.value.render())
    assert not any(password in text for text in shown)


def test_records_that_are_gone_are_an_error_or_counted(broker: Broker, topic: str) -> None:
    broker.create(topic)
    broker.produce(topic, texts(10))
    source = opened(broker, topic, ", rows_per_epoch = 4")
    input_range = source.plan_range(None, 1)
    broker.delete_before(topic, 0, 7)
    assert input_range is not None
    with pytest.raises(
        RunError, match="begins at offset 7, and the next one to read was 4"
    ) as error:
        source.plan_range(input_range.offset, 1)
    assert "on_data_loss = 'continue'" in (error.value.hint or "")
    going_on = opened(broker, topic, ", on_data_loss = 'continue'")
    after = going_on.plan_range(input_range.offset, 1)
    assert after is not None and after.lost == 3
    assert read(going_on, after) == ["0007", "0008", "0009"]
    with pytest.raises(SystemUnavailable, match="are gone"):
        read(going_on, input_range)


def test_a_topic_that_was_created_again_is_another_one(broker: Broker, topic: str) -> None:
    broker.create(topic)
    broker.produce(topic, ["old"])
    source = opened(broker, topic)
    input_range = source.plan_range(None, 1)
    broker.drop(topic)
    _until_gone(broker, topic)
    broker.create(topic)
    broker.produce(topic, ["new", "newer"])
    assert input_range is not None
    with pytest.raises(RunError, match="was deleted and created again"):
        opened(broker, topic).plan_range(input_range.offset, 1)
    going_on = opened(broker, topic, ", on_data_loss = 'continue'")
    assert read(going_on, going_on.plan_range(input_range.offset, 1)) == ["new", "newer"]


def _until_gone(broker: Broker, topic: str) -> None:
    deadline = time.monotonic() + 30
    while topic in broker.admin().list_topics(timeout=10).topics:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_offsets_of_another_cluster_are_rejected(broker: Broker, topic: str) -> None:
    broker.create(topic)
    source = opened(broker, topic)
    input_range = source.plan_range(None, 1)
    assert input_range is not None
    with pytest.raises(RunError, match="was read from the cluster elsewhere") as error:
        source.plan_range({**input_range.offset, "cluster": "elsewhere"}, 1)
    assert error.value.code == "TG-603"


def test_a_task_gives_up_on_a_broker_that_is_silent(
    broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create(topic)
    broker.produce(topic, ["a"])
    source = opened(broker, topic)
    input_range = source.plan_range(None, 1)
    assert input_range is not None
    monkeypatch.setattr(kafka_tasks, "_SILENT_SECONDS", 0.2)
    ((part,),) = input_range.splits[0]
    beyond: list[Any] = [*part[:4], part[4] + 5, part[5]]
    with pytest.raises(SystemUnavailable, match="silent"):
        list(KafkaReader(source.connection, ()).read([beyond]))


def test_what_a_record_tells_besides_its_content(
    broker: Broker, topic: str, tmp_path: Path
) -> None:
    broker.create(topic)
    broker.produce(
        topic, ["v", None], 0, keys=["k", None], timestamp=1_500, headers=[("h", b"1"), ("h", None)]
    )
    source = opened(broker, topic)
    input_range = source.plan_range(None, 1)
    assert input_range is not None
    names = ("topic", "partition", "offset", "timestamp", "key", "headers")
    ((batch, count),) = KafkaReader(source.connection, names).read(input_range.splits[0][0])
    assert count == 2
    told = [batch.column(f"_tg_meta_{name}").to_pylist() for name in names]
    assert told[:3] == [[topic, topic], [0, 0], [0, 1]]
    assert [at.timestamp() for at in told[3]] == [1.5, 1.5]
    assert told[4] == [b"k", None]
    assert told[5][0] == [{"key": "h", "value": b"1"}, {"key": "h", "value": None}]
    assert batch.column(kafka_tasks.TOMBSTONE).to_pylist() == [False, True]


def test_plain_json_is_decoded_by_tasks_and_all_else_by_spark(broker: Broker, topic: str) -> None:
    broker.create(topic, 2)
    for partition in range(2):
        broker.produce(topic, [json.dumps({"a": 10 * partition + n}) for n in range(3)], partition)
    source = opened(broker, topic)
    reader = source.direct(Read((("a", "BIGINT"),), arrival=True))
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
        assert opened(broker, topic, options).direct(Read((("a", "BIGINT"),))) is None
    assert source.direct(Read((("a", "BIGINT"),), located=True)) is None
