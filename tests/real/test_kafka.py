"""Pipelines from Kafka to Kafka on a real broker: formats, watermarks, upserts, failures."""

from __future__ import annotations

import json
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.real.kafka import Broker
from tests.support.sessions import bag, eventually, open_with, rows_of, standing
from tidegate.errors import RunError, TidegateError
from tidegate.session.session import Session

pytestmark = pytest.mark.spark

Rows = list[dict[str, Any]]


@pytest.fixture
def topic(broker: Broker) -> str:
    return f"t-{uuid.uuid4().hex[:8]}"


def source(broker: Broker, topic: str, columns: str, options: str = "", name: str = "s") -> str:
    return (
        f"CREATE SOURCE {name} ({columns}) WITH (connector = 'kafka', topic = '{topic}', "
        f"brokers = '{broker.brokers}'{options});"
    )


def sink(broker: Broker, topic: str, stream: str, options: str = "") -> str:
    return (
        f"CREATE SINK {stream}_out FROM {stream} WITH (connector = 'kafka', topic = '{topic}', "
        f"brokers = '{broker.brokers}'{options});"
    )


def run(path: Path, spark: Any, script: str, *streams: str) -> dict[str, Rows]:
    """Read the available records; return the rows that each stream emits."""
    with open_with(path, spark, script) as session:
        subscriptions = {stream: session.subscribe(stream) for stream in streams}
        session.start(available_now=True)
        session.wait()
        return {name: rows_of(item.take_all()) for name, item in subscriptions.items()}


def values_by_key(broker: Broker, topic: str) -> list[tuple[Any, Any]]:
    """Return the keys and values of a topic, parsed from JSON."""
    return [
        (
            json.loads(message.key) if message.key is not None else None,
            json.loads(message.value) if message.value is not None else None,
        )
        for message in broker.read(topic)
    ]


def compacted(broker: Broker, topic: str) -> dict[str, Any]:
    """Return the last value of each key that was not deleted, as compaction would keep it."""
    last = {message.key.decode(): message.value for message in broker.read(topic)}
    return {key: json.loads(value) for key, value in last.items() if value is not None}


JSON = [
    '{"id": 1, "name": "a", "at": "2026-01-01T00:00:00.123456Z", "who": {"age": 3}, "xs": [1, 2]}',
    '{"id": 2, "name": 1.10, "more": {}, "at": "2026-01-01"}',
    ' {"id": 3, "name": null} ',
    '{"ID": 4, "name": "\\u00e4 }{"}',
    '{"id": 1}{"id": 2}',
    '{"id": 1} trailing',
    '{"id": "one"}',
    '{"id": 1, "xs": [1, "b"]}',
    '{"id": 1, "who": {"age": 1.5}}',
    "[1]",
    "null",
    "nonsense",
    '{"id": 9223372036854775808}',
]
CSV = ["1,a,2026-01-01 00:00:00", '2,"b, c",', "3,,x", "4", "5,a,,", '6,"open,', 'x,"",']


@pytest.mark.parametrize("kind", ["json", "csv"])
def test_reads_records_like_lines_of_files(
    broker: Broker, topic: str, spark: Any, data: Path, kind: str
) -> None:
    texts, columns = (
        (JSON, "id BIGINT, name STRING, at TIMESTAMP, who STRUCT<age: INT>, xs ARRAY<INT>")
        if kind == "json"
        else (CSV, "id BIGINT, name STRING, at TIMESTAMP")
    )
    broker.create(topic, 2)
    broker.produce(topic, texts, 1)
    folder = data.parent / "in"
    folder.mkdir()
    (folder / f"lines.{kind}").write_text("\n".join(texts))
    header = ", header = false" if kind == "csv" else ""
    options = f", format = '{kind}', dead_letters"
    script = (
        source(broker, topic, columns, f"{options} = 'bad_records'", "records")
        + f"CREATE SOURCE lines ({columns}) WITH (connector = 'files', path = '{folder}'{header}"
        f"{options} = 'bad_lines');"
        "CREATE STREAM a AS SELECT * FROM records; CREATE STREAM b AS SELECT * FROM lines;"
    )
    rows_by_stream = run(data, spark, script, "a", "b", "bad_records", "bad_lines")
    assert bag(rows_by_stream["a"]) == bag(rows_by_stream["b"]) and len(rows_by_stream["a"]) >= 2

    def comparable(letters: Rows) -> Any:
        return bag({n: row[n] for n in ("reason", "record", "column_name")} for row in letters)

    assert comparable(rows_by_stream["bad_records"]) == comparable(rows_by_stream["bad_lines"])
    assert {row["file"] for row in rows_by_stream["bad_records"]} == {f"{topic}/1"}
    by_offset = {row["line"]: row["record"] for row in rows_by_stream["bad_records"]}
    assert all(texts[offset] == record for offset, record in by_offset.items())


def test_raw_records_metadata_columns_and_dead_letters(
    broker: Broker, topic: str, spark: Any, data: Path
) -> None:
    broker.create(topic)
    broker.produce(topic, ["one", None, b"\xff\xfe"], keys=["k", b"\xff", None], timestamp=1_500)
    broker.produce(topic, ["two"], headers=[("h", b"1")], timestamp=2_000)
    metadata = (
        "topic STRING METADATA, p INT METADATA FROM 'partition', o BIGINT METADATA FROM 'offset', "
        "ts TIMESTAMP METADATA FROM 'timestamp', k BINARY METADATA FROM 'key', "
        "h ARRAY<STRUCT<key: STRING, value: BINARY>> METADATA FROM 'headers'"
    )
    script = (
        source(broker, topic, f"v STRING, {metadata}", ", format = 'raw', dead_letters = 'bad'")
        + source(broker, topic, "v BIGINT", ", dead_letters = 'bad_json'", "j")
        + "CREATE STREAM t AS SELECT * FROM s; CREATE STREAM u AS SELECT v FROM j;"
    )
    rows_by_stream = run(data, spark, script, "t", "bad", "bad_json")
    rows = sorted(rows_by_stream["t"], key=lambda row: row["o"])
    assert [(row["v"], row["topic"], row["p"], row["o"], row["k"]) for row in rows] == [
        ("one", topic, 0, 0, b"k"),
        (None, topic, 0, 1, b"\xff"),
        ("two", topic, 0, 3, None),
    ]
    assert [row["ts"].timestamp() for row in rows] == [1.5, 1.5, 2.0]
    assert rows[2]["h"] == [{"key": "h", "value": b"1"}] and rows[0]["h"] == []
    assert [(row["reason"], row["line"]) for row in rows_by_stream["bad"]] == [
        ("not text in utf-8", 2)
    ]
    reasons = {row["line"]: row["reason"] for row in rows_by_stream["bad_json"]}
    assert reasons[1].startswith("the record has no value") and len(reasons) == 4


def event(second: int, key: str = "a") -> str:
    return json.dumps({"k": key, "ts": f"2026-01-01T00:00:{second:02d}Z"})


def watermark(session: Session) -> float | None:
    (status,) = (item for item in session.status() if item.name == "w")
    return status.watermark.timestamp() % 60 if status.watermark is not None else None


def test_slowest_partition_holds_the_watermark_until_idle(
    broker: Broker, topic: str, spark: Any, data: Path
) -> None:
    broker.create(topic, 2)
    columns = "k STRING, ts TIMESTAMP, WATERMARK FOR ts AS ts - INTERVAL '1' SECOND"
    query = (
        "CREATE STREAM w AS SELECT window_end, count(*) AS n FROM s "
        "GROUP BY TUMBLE(ts, INTERVAL '10' SECOND);"
    )
    script = source(broker, topic, columns) + query
    with open_with(data, spark, script) as session:
        session.subscribe("w")
        session.start()
        broker.produce(topic, [event(1), event(40)], 0)
        session.wait()
        assert watermark(session) is None, (
            "a partition without records may still deliver any event time"
        )
        broker.produce(topic, [event(15)], 1)
        session.wait()
        assert watermark(session) == 14
        before = _epochs(session)
        broker.grow(topic, 3)
        eventually(lambda: _epochs(session) > before)
        broker.produce(topic, [event(35)], 1)
        session.wait()
        assert watermark(session) == 14, "a new partition holds the watermark"
    idle = source(broker, topic, columns, ", idle_timeout = '1 s'") + query
    with open_with(data, spark, idle) as session:
        subscription = session.subscribe("w")
        session.start()
        # However fast this session started, the others have been silent for a second now.
        time.sleep(1.1)
        broker.produce(topic, [event(36)], 1)
        session.wait()
        assert watermark(session) == 35, "the other partitions are idle"
        broker.produce(topic, [event(50)], 0)
        eventually(lambda: watermark(session) == 49)
        session.stop()
        rows = rows_of(subscription.take_all())
    assert [row["n"] for row in sorted(rows, key=lambda row: row["window_end"])] == [1, 1, 2]


def _epochs(session: Session) -> int:
    return max((item.epoch or 0 for item in session.status()), default=0)


def test_upserts_and_tombstones(broker: Broker, topic: str, spark: Any, data: Path) -> None:
    broker.create(topic, 2)
    copies, counts, changes = (broker.create(f"{topic}-{name}", 2) for name in ("c", "n", "l"))
    script = (
        source(broker, topic, "id BIGINT, name STRING NOT NULL, PRIMARY KEY (id)")
        + "CREATE STREAM copy AS SELECT id, upper(name) AS name FROM s EMIT ON UPDATE;"
        "CREATE STREAM counts AS SELECT name, count(*) AS n FROM s GROUP BY name EMIT ON UPDATE;"
        "CREATE STREAM log AS SELECT name, count(*) AS n FROM s GROUP BY name EMIT CHANGES;"
        + sink(broker, copies, "copy", ", key_format = 'text'")
        + sink(broker, counts, "counts")
        + sink(broker, changes, "log", ", changelog = 'column', key = 'name'")
    )

    def put(number: int, name: str | None) -> None:
        value = None if name is None else json.dumps({"id": number, "name": name})
        broker.produce(topic, [value], number % 2, keys=[json.dumps({"id": number})])

    for number, name in enumerate(["x", "x", "y", "z"]):
        put(number, name)
    run(data, spark, script, "copy")
    put(1, "y")
    put(1, None)
    put(3, None)
    put(2, "y2")
    broker.produce(topic, [None], 0, keys=["no json"])
    rows_by_stream = run(data, spark, script, "copy")
    assert sorted(row["_op"] for row in rows_by_stream["copy"]).count("-D") == 2
    assert {key: row["name"] for key, row in compacted(broker, copies).items()} == {
        "0": "X",
        "2": "Y2",
    }
    assert compacted(broker, counts) == {
        '{"name":"x"}': {"name": "x", "n": 1},
        '{"name":"y2"}': {"name": "y2", "n": 1},
    }
    log = [value for _, value in values_by_key(broker, changes)]
    assert bag(standing(log)) == bag([{"name": "x", "n": 1}, {"name": "y2", "n": 1}])


def test_reads_debezium_envelopes(broker: Broker, topic: str, spark: Any, data: Path) -> None:
    def envelope(op: str, before: Any, after: Any) -> str:
        rows = [None if v is None else {"id": v[0], "v": v[1]} for v in (before, after)]
        return json.dumps({"before": rows[0], "after": rows[1], "op": op, "ts_ms": 1})

    broker.create(topic)
    records = [
        envelope("r", None, (1, "a")),
        envelope("c", None, (2, "b")),
        json.dumps({"schema": {}, "payload": json.loads(envelope("u", (1, "a"), (1, "c")))}),
        envelope("d", (2, "b"), None),
        None,
        envelope("u", None, (3, "d")),
        envelope("t", None, None),
        '{"op": 1',
    ]
    broker.produce(topic, records)
    columns = "id BIGINT, v STRING"
    options = ", format = 'debezium-json', dead_letters = "
    script = (
        source(broker, topic, columns, f"{options}'bad'")
        + source(broker, topic, f"{columns}, PRIMARY KEY (id)", f"{options}'bad_keyed'", "keyed")
        + "CREATE STREAM t AS SELECT id, v FROM s;"
        "CREATE STREAM u AS SELECT v, count(*) AS n FROM keyed GROUP BY v EMIT CHANGES;"
    )
    rows_by_stream = run(data, spark, script, "t", "u", "bad", "bad_keyed")
    assert bag(standing(rows_by_stream["t"])) == bag([{"id": 1, "v": "c"}])
    assert [row["_op"] for row in rows_by_stream["t"]] == ["+I", "+I", "-U", "+U", "-D"]
    assert bag(standing(rows_by_stream["u"])) == bag([{"v": "c", "n": 1}, {"v": "d", "n": 1}])
    reasons = {row["line"]: row["reason"].partition(":")[0] for row in rows_by_stream["bad"]}
    assert reasons == {
        5: "the envelope has no before",
        6: "op is not c, u, d or r",
        7: "not a JSON object",
    }
    assert {row["line"] for row in rows_by_stream["bad_keyed"]} == {6, 7}


def _is_unavailable(session: Session) -> bool:
    return any("cannot reach" in (status.error or "") for status in session.status())


@pytest.mark.usefixtures("impatient")
def test_survives_broker_kill_without_loss_or_duplicates(
    broker: Broker, topic: str, spark: Any, data: Path
) -> None:
    broker.create(topic, 2)
    out = broker.create(f"{topic}-out")
    script = (
        source(broker, topic, "a BIGINT", ", rows_per_epoch = 40")
        + "CREATE STREAM t AS SELECT a, rand() AS dice FROM s;"
        + sink(broker, out, "t")
    )
    numbers = list(range(400))
    with open_with(data, spark, script) as session:
        subscription = session.subscribe("t")
        session.start()
        broker.produce(topic, [json.dumps({"a": n}) for n in numbers[:200]], 0)
        eventually(lambda: _epochs(session) >= 2)
        broker.kill()
        try:
            eventually(lambda: _is_unavailable(session), 180)
        finally:
            threading.Thread(target=broker.start).start()
        eventually(lambda: all(s.error is None for s in session.status()), 180)
        broker.produce(topic, [json.dumps({"a": n}) for n in numbers[200:300]], 1)
        session.wait()
        # Spark decodes records that tasks cannot decode, also in the middle of a stream.
        broker.produce(topic, ["no JSON", '{"a": "b"}'], 0)
        broker.produce(topic, [json.dumps({"a": n}) for n in numbers[300:]], 1)
        session.wait()
        assert [status.dead_letters for status in session.status()] == [2]
        rows = rows_of(subscription.take_all())
    values = [value for _, value in values_by_key(broker, out)]
    assert sorted(row["a"] for row in values) == numbers
    assert bag(rows) == bag(values), "rows were computed again"


def test_rejects_missing_topics_and_lost_records_at_the_start(
    broker: Broker, topic: str, spark: Any, data: Path
) -> None:
    broker.create(topic)
    script = source(broker, f"{topic}x", "a BIGINT") + "CREATE STREAM t AS SELECT a FROM s;"
    with open_with(data, spark, script) as session:
        session.subscribe("t")
        with pytest.raises(RunError, match="which does not exist"):
            session.start()
    good = source(broker, topic, "a BIGINT") + "CREATE STREAM t AS SELECT a FROM s;"
    run(data, spark, good, "t")
    other = broker.create(f"{topic}-other")
    moved = source(broker, other, "a BIGINT") + "CREATE STREAM t AS SELECT a FROM s;"
    with pytest.raises(TidegateError, match=f"topic={topic}, now it is kafka, topic={other}"):
        run(data, spark, moved, "t")
    broker.produce(topic, [json.dumps({"a": n}) for n in range(5)])
    broker.delete_before(topic, 0, 3)
    with pytest.raises(RunError, match="has lost records"):
        run(data, spark, good, "t")
    tolerant = good.replace("'kafka'", "'kafka', on_data_loss = 'continue'")
    with open_with(data, spark, tolerant) as session:
        subscription = session.subscribe("t")
        session.start()
        session.wait()
        (status,) = session.status()
        assert (status.lost_records, status.pending_records) == (3, 0)
        assert [row["a"] for row in rows_of(subscription.take_all())] == [3, 4]


def test_example_of_the_documentation_runs(
    broker: Broker, spark: Any, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = Path(__file__).parents[2] / "docs" / "connectors" / "kafka.md"
    script = page.read_text("utf-8").split("```sql\n")[1].split("```")[0]
    monkeypatch.setenv("KAFKA_BROKERS", broker.brokers)
    for name in ("bids", "minutes", "best"):
        broker.create(name)
    bids = [{"auction": 1, "price": price, "ts": "2026-01-01T00:00:01Z"} for price in (10, 20)]
    broker.produce("bids", [json.dumps(bid) for bid in bids])
    with open_with(data, spark, script) as session:
        session.start(until_end=True)
        session.wait()
    assert compacted(broker, "best") == {'{"auction":1}': {"auction": 1, "top": 20}}
    assert [(value["n"], value["top"]) for _, value in values_by_key(broker, "minutes")] == [
        (2, 20)
    ]
