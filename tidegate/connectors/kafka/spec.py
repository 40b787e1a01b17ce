"""Topics of Apache Kafka, as a source and as a sink.

What they are and what can be said of them; `kafka_source` and `kafka_sink` do the work.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from tidegate.catalog.connector import (
    ANY_KIND,
    Columns,
    OptionProblem,
    ConnectorSpec,
    SinkSpec,
    SourceSpec,
    Values,
)
from tidegate.catalog.options import OptionSpec, OptionType
from tidegate.connectors.common_options import CSV_READING, DELIMITER, not_empty, timestamp_format
from tidegate.types import MICROS, ChangelogKind

# ---- What can be said of records in Avro: the schema, or the registry that knows it.

_AVRO = ("format", ("avro",))


def _is_url(url: str) -> str | None:
    """What is wrong with the address of a registry; not shown, as it may hold a password."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "it is not an address"
    if parts.scheme not in ("http", "https") or not parts.netloc:
        return "it does not begin with http:// or https:// and a host"
    if "@" in parts.netloc:
        return "names and passwords belong into registry_username and registry_password"
    return None


def _is_schema(text: str) -> str | None:
    from tidegate.connectors.kafka.avro import schema_problem

    return schema_problem(text)


AVRO_WRITING = (
    OptionSpec(
        "registry_url",
        OptionType.TEXT,
        "the schema registry; its numbers of schemas stand before the records",
        only_with=_AVRO,
        check=_is_url,
    ),
    OptionSpec(
        "registry_username", OptionType.TEXT, "the user to ask the registry as", only_with=_AVRO
    ),
    OptionSpec(
        "registry_password",
        OptionType.TEXT,
        "the password to ask the registry with",
        secret=True,
        only_with=_AVRO,
    ),
)
AVRO_READING = (
    OptionSpec(
        "avro_schema",
        OptionType.TEXT,
        "the schema that records were written with, where no registry knows it",
        only_with=_AVRO,
        check=_is_schema,
    ),
    *AVRO_WRITING,
)


def check_avro(options: Values, reads: bool = False) -> OptionProblem | None:
    """What is wrong with the options of a format, together."""
    if options["format"] != "avro":
        return None
    given = [name for name in ("avro_schema", "registry_url") if options.get(name) is not None]
    if reads and len(given) != 1:
        why = "two schemas" if given else "no schema"
        return (
            f"with {why} records in Avro cannot be read",
            "say either registry_url = 'http://…' or avro_schema = '{…}'.",
        )
    named = options["registry_username"] is not None or options["registry_password"] is not None
    if named and options["registry_url"] is None:
        return "there is a login for a registry, and no registry", "add registry_url = 'http://…'."
    return None


def unwritable(options: Values, columns: Columns) -> str | None:
    """A column that Avro has no name or no type for."""
    if options["format"] != "avro":
        return None
    import pyarrow as pa

    from tidegate.connectors.kafka.avro import avro_schema
    from tidegate.physical.typed import arrow_type

    try:
        avro_schema("row", pa.schema([(name, arrow_type(kind)) for name, kind in columns]))
    except ValueError as error:
        return f"records in Avro cannot hold these columns: {error}; use format = 'json'"
    return None


def unreadable(columns: Columns) -> str | None:
    """A column whose values Avro does not have."""
    from tidegate.physical.typed import arrow_type

    for name, kind in columns:
        try:
            arrow_type(kind)
        except ValueError:
            return f"Avro has no values of the type {kind}, which {name} has"
    return None


_TEXT = ("format", ("json", "csv", "debezium-json"))
# What exactly-once hangs on: settings of the client that are not the user's to choose.
_OURS = {
    "bootstrap.servers": "use the option brokers",
    "group.id": "a source belongs to no group: its offsets are in the manifest",
    "isolation.level": "only committed records are read",
    "enable.auto.commit": "offsets are in the manifest",
    "auto.offset.reset": "use the options start and on_data_loss",
    "transactional.id": "it is made of the stream and the sink",
    "enable.idempotence": "transactions need it",
    "acks": "transactions need all of them",
    "transaction.timeout.ms": "use the option transaction_timeout",
    "security.protocol": "use the option security_protocol",
    "sasl.mechanism": "use the option sasl_mechanism",
    "sasl.mechanisms": "use the option sasl_mechanism",
    "sasl.username": "use the option sasl_username",
    "sasl.password": "use the option sasl_password",
}
# What a record tells besides its content, and the types it can have.
METADATA = {
    "topic": ("STRING",),
    "partition": ("INT",),
    "offset": ("BIGINT",),
    "timestamp": ("TIMESTAMP",),
    "key": ("STRING", "BINARY"),
    "headers": ("ARRAY<STRUCT<key: STRING, value: BINARY>>",),
}


def _passed_on(name: str) -> str | None:
    instead = _OURS.get(name)
    return None if instead is None else f"{name} cannot be set: {instead}"


def _is_pattern(topic: str) -> str | None:
    """What is wrong with a topic, a list of them, or a pattern."""
    if not topic.startswith("^"):
        return None if all(topics_of(topic)) else "a name in the list is empty"
    try:
        re.compile(topic)
    except re.error as error:
        return f"{topic!r} is not a regular expression ({error})"
    return None


def topics_of(topic: str) -> list[str]:
    """The topics of a list."""
    return [name.strip() for name in topic.split(",")]


def read_start(text: str) -> str | int | dict[str, dict[int, int]]:
    """Where to begin: 'earliest', 'latest', milliseconds since 1970, or offsets by partition."""
    if text.lower() in ("earliest", "latest"):
        return text.lower()
    if text.lstrip().startswith("{"):
        return _read_offsets(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is no place to begin at") from None
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)


def _read_offsets(text: str) -> dict[str, dict[int, int]]:
    wrong = ValueError(f'{text!r} is not like {{"topic": {{"0": 17, "1": 4}}}}')
    try:
        given = json.loads(text)
        found = {
            str(topic): {int(number): int(offset) for number, offset in offsets.items()}
            for topic, offsets in given.items()
        }
    except (ValueError, AttributeError, TypeError):
        raise wrong from None
    if any(number < 0 or offset < 0 for by in found.values() for number, offset in by.items()):
        raise wrong
    return found


def _check_start(text: str) -> str | None:
    try:
        read_start(text)
    except ValueError as error:
        return str(error)
    return None


_CONNECTION = (
    OptionSpec("brokers", OptionType.TEXT, "host:port of the brokers, with commas", required=True),
    OptionSpec(
        "security_protocol",
        OptionType.TEXT,
        "how the connection is secured",
        default="plaintext",
        choices=("plaintext", "ssl", "sasl_plaintext", "sasl_ssl"),
    ),
    OptionSpec(
        "sasl_mechanism",
        OptionType.TEXT,
        "how to log in",
        default="plain",
        choices=("plain", "scram-sha-256", "scram-sha-512", "oauthbearer", "gssapi"),
        only_with=("security_protocol", ("sasl_plaintext", "sasl_ssl")),
    ),
    OptionSpec("sasl_username", OptionType.TEXT, "the user to log in as"),
    OptionSpec("sasl_password", OptionType.TEXT, "the password to log in with", secret=True),
    OptionSpec(
        "kafka.",
        OptionType.TEXT,
        "any setting of the client (librdkafka), such as kafka.ssl.ca.location",
        prefix=True,
        check=_passed_on,
    ),
)
_KEY_FORMAT = OptionSpec(
    "key_format",
    OptionType.TEXT,
    "how keys are written: an object with the key columns, or the text of the one key column",
    default="json",
    choices=("json", "text"),
)
_READING = (
    OptionSpec(
        "format",
        OptionType.TEXT,
        "how records are written",
        default="json",
        choices=("json", "csv", "raw", "avro", "debezium-json"),
    ),
    *AVRO_READING,
    _KEY_FORMAT,
    OptionSpec(
        "start",
        OptionType.TEXT,
        'where to begin: earliest, latest, a time, or offsets such as {"topic": {"0": 17}}',
        default="earliest",
        check=_check_start,
    ),
    OptionSpec(
        "rows_per_epoch",
        OptionType.INTEGER,
        "records read per epoch; the setting of that name if left out",
        minimum=1,
    ),
    OptionSpec(
        "on_data_loss",
        OptionType.TEXT,
        "what to do if records are gone before they were read: stop, or count them and go on",
        default="fail",
        choices=("fail", "continue"),
    ),
    timestamp_format(_TEXT),
    DELIMITER,
    *CSV_READING,
)


def _check_connection(options: Values) -> OptionProblem | None:
    if options["sasl_password"] is None or options["security_protocol"].startswith("sasl"):
        return None
    return (
        "there is a password, and the connection is not one that logs in",
        "add security_protocol = 'sasl_ssl'.",
    )


def _gives_op(options: Values, has_key: bool) -> bool:
    return has_key or options["format"] == "debezium-json"


def _check_source(options: Values, columns: Columns, has_key: bool) -> OptionProblem | None:
    kind = options["format"]
    if options["changelog"] and (has_key or kind in ("raw", "debezium-json")):
        why = "a PRIMARY KEY" if has_key else f"the format {kind}"
        return f"with {why} there is no _op in the records", "leave out changelog."
    if kind == "raw":
        if len(columns) != 1 or columns[0][1] not in ("STRING", "BINARY"):
            hint = "CREATE SOURCE s (value STRING) WITH (…), and METADATA columns beside it."
            return "a raw record is one column, a STRING or BINARY", hint
        if has_key:
            return "a raw record has no columns that a PRIMARY KEY could be", "use format = 'json'."
    unread = unreadable(columns) if kind == "avro" else None
    return (unread, "declare another type, or use format = 'json'.") if unread else None


def _check_sink(options: Values) -> OptionProblem | None:
    if options["key_format"] == "text" and options["key"] and len(options["key"]) > 1:
        return "as text a key has one column", "use key_format = 'json'."
    return check_avro(options) or _check_connection(options)


def _accepts(options: Values) -> frozenset[ChangelogKind]:
    if options["changelog"] == "column":
        return ANY_KIND
    return ANY_KIND - {ChangelogKind.CHANGELOG}


def _is_read_by(sink: Values, source: Values) -> bool:
    """Whether a source reads what a sink writes, as far as options tell."""
    topic = source["topic"]
    if sink["brokers"] != source["brokers"]:
        return False
    if topic.startswith("^"):
        return re.fullmatch(topic, sink["topic"]) is not None
    return sink["topic"] in topics_of(topic)


def _nothing_but_name(name: Any) -> str | None:
    if "," in name or name.startswith("^"):
        return "rows are written to one topic"
    return not_empty(name)


SPEC = ConnectorSpec(
    "kafka",
    "topics of Apache Kafka",
    source=SourceSpec(
        (
            OptionSpec(
                "topic",
                OptionType.TEXT,
                "the topic; several with commas; a regular expression if it begins with ^",
                required=True,
                check=_is_pattern,
            ),
            *_CONNECTION,
            *_READING,
        ),
        check=lambda options: check_avro(options, reads=True) or _check_connection(options),
        metadata=METADATA,
        implies_changelog=_gives_op,
        check_columns=_check_source,
        partitioned=True,
        identity=("topic",),
    ),
    sink=SinkSpec(
        (
            OptionSpec(
                "topic", OptionType.TEXT, "the topic", required=True, check=_nothing_but_name
            ),
            *_CONNECTION,
            OptionSpec(
                "format",
                OptionType.TEXT,
                "how records are written",
                default="json",
                choices=("json", "avro"),
            ),
            *AVRO_WRITING,
            OptionSpec(
                "key",
                OptionType.NAMES,
                "the columns that records are keyed by; an upsert stream is keyed by its own",
            ),
            _KEY_FORMAT,
            OptionSpec(
                "changelog",
                OptionType.TEXT,
                "what to do with streams that retract rows: with column, records have a field _op",
                default="reject",
                choices=("reject", "column"),
            ),
            OptionSpec(
                "transaction_timeout",
                OptionType.DURATION,
                "how long a transaction may take; the broker then ends it",
                default=MICROS["minute"],
                minimum=MICROS["second"],
            ),
        ),
        accepts=_accepts,
        check=_check_sink,
        is_read_by=_is_read_by,
        check_columns=unwritable,
        changelog_hint="let the stream EMIT ON WINDOW CLOSE or EMIT ON UPDATE, or keep _op in the "
        "records: changelog = 'column'.",
    ),
)
