"""The options of the kafka connector, and the checks of a declared source or sink.

`tidegate check` imports this module: it must not import pyspark, and pyarrow only in functions.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from tidegate.catalog.connector import (
    ANY_KIND,
    ColumnTypes,
    ConnectorSpec,
    OptionProblem,
    OptionValues,
    SinkSpec,
    SourceSpec,
)
from tidegate.catalog.options import OptionSpec, OptionType
from tidegate.connectors.common_options import CSV_READING, DELIMITER, not_empty, timestamp_format
from tidegate.types import MICROS, ChangelogKind

# ---- Options of the format Avro.

_AVRO = ("format", ("avro",))


def _url_problem(url: str) -> str | None:
    """Check the URL of a registry; return the problem or None.

    The problem does not contain the URL, which may contain a password.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        return "it is not a URL"
    if parts.scheme not in ("http", "https") or not parts.netloc:
        return "it does not begin with http:// or https:// and a host"
    if "@" in parts.netloc:
        return "use registry_username and registry_password for the login"
    return None


def _schema_problem(text: str) -> str | None:
    from tidegate.connectors.kafka.avro import schema_problem

    return schema_problem(text)


AVRO_WRITING = (
    OptionSpec(
        "registry_url",
        OptionType.TEXT,
        "URL of the schema registry; records start with the ID of their schema",
        only_with=_AVRO,
        example="'http://registry:8081'",
        check=_url_problem,
    ),
    OptionSpec("registry_username", OptionType.TEXT, "user name for the registry", only_with=_AVRO),
    OptionSpec(
        "registry_password",
        OptionType.TEXT,
        "password for the registry",
        secret=True,
        only_with=_AVRO,
    ),
)
AVRO_READING = (
    OptionSpec(
        "avro_schema",
        OptionType.TEXT,
        "Avro schema of the records as JSON, if they have no registry",
        only_with=_AVRO,
        example='\'{"type": "record", "name": "bid", "fields": [{"name": "id", "type": "long"}]}\'',
        check=_schema_problem,
    ),
    *AVRO_WRITING,
)


def check_avro(options: OptionValues, reads: bool = False) -> OptionProblem | None:
    """Check a combination of Avro options; return the problem or None."""
    if options["format"] != "avro":
        return None
    schemas = [name for name in ("avro_schema", "registry_url") if options.get(name) is not None]
    if reads and len(schemas) != 1:
        problem = "two schemas are declared" if schemas else "no schema is declared"
        return (
            f"Avro records need one schema, but {problem}",
            "declare either registry_url = 'http://…' or avro_schema = '{…}'.",
        )
    has_login = options["registry_username"] is not None or options["registry_password"] is not None
    if has_login and options["registry_url"] is None:
        return (
            "registry_username and registry_password need a registry",
            "add registry_url = 'http://…'.",
        )
    return None


def writing_problem(options: OptionValues, columns: ColumnTypes) -> str | None:
    """Return why Avro cannot represent the columns of a sink, or None."""
    if options["format"] != "avro":
        return None
    import pyarrow as pa

    from tidegate.connectors.kafka.avro import avro_schema
    from tidegate.physical.typed import arrow_type

    try:
        fields = [(name, arrow_type(sql_type)) for name, sql_type in columns]
        avro_schema("row", pa.schema(fields))
    except ValueError as error:
        return f"Avro cannot represent these columns: {error}; use format = 'json'"
    return None


def reading_problem(columns: ColumnTypes) -> str | None:
    """Return why the columns of a source cannot be read from Avro, or None."""
    from tidegate.physical.typed import arrow_type

    for name, sql_type in columns:
        try:
            arrow_type(sql_type)
        except ValueError:
            return f"the column {name} has the type {sql_type}, which Avro does not support"
    return None


# ---- Options of topics.

_TEXT = ("format", ("json", "csv", "debezium-json"))
# Settings of the client that exactly-once depends on, and what to use instead.
_RESERVED_SETTINGS = {
    "bootstrap.servers": "use the option brokers",
    "group.id": "sources do not use consumer groups; their offsets are in the manifest",
    "isolation.level": "only committed records are read",
    "enable.auto.commit": "offsets are in the manifest",
    "auto.offset.reset": "use the options start and on_data_loss",
    "transactional.id": "it is derived from the stream and the sink",
    "enable.idempotence": "transactions require it",
    "acks": "transactions require acknowledgments of all replicas",
    "transaction.timeout.ms": "use the option transaction_timeout",
    "security.protocol": "use the option security_protocol",
    "sasl.mechanism": "use the option sasl_mechanism",
    "sasl.mechanisms": "use the option sasl_mechanism",
    "sasl.username": "use the option sasl_username",
    "sasl.password": "use the option sasl_password",
}
# The metadata of records, and the types that a METADATA column may have.
METADATA = {
    "topic": ("STRING",),
    "partition": ("INT",),
    "offset": ("BIGINT",),
    "timestamp": ("TIMESTAMP",),
    "key": ("STRING", "BINARY"),
    "headers": ("ARRAY<STRUCT<key: STRING, value: BINARY>>",),
}


def _check_setting(name: str) -> str | None:
    alternative = _RESERVED_SETTINGS.get(name)
    return None if alternative is None else f"it cannot be set: {alternative}"


def _topics_problem(topic: str) -> str | None:
    """Check a topic, a list of topics or a pattern; return the problem or None."""
    if not topic.startswith("^"):
        return None if all(topic_names(topic)) else "a name in the list is empty"
    try:
        re.compile(topic)
    except re.error as error:
        return f"{topic!r} is not a regular expression ({error})"
    return None


def topic_names(topic: str) -> list[str]:
    """Split a list of topics."""
    return [name.strip() for name in topic.split(",")]


def parse_start(text: str) -> str | int | dict[str, dict[int, int]]:
    """Parse the option start.

    Returns 'earliest', 'latest', milliseconds since 1970, or offsets by topic and partition. Raises
    ValueError for any other text.
    """
    if text.lower() in ("earliest", "latest"):
        return text.lower()
    if text.lstrip().startswith("{"):
        return _parse_offsets(text)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is not earliest, latest, a time or offsets") from None
    time = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    return int(time.timestamp() * 1000)


def _parse_offsets(text: str) -> dict[str, dict[int, int]]:
    invalid = ValueError(f'{text!r} is not like {{"topic": {{"0": 17, "1": 4}}}}')
    try:
        parsed = {
            str(topic): {int(number): int(offset) for number, offset in offsets.items()}
            for topic, offsets in json.loads(text).items()
        }
    except (ValueError, AttributeError, TypeError):
        raise invalid from None
    pairs = (pair for offsets in parsed.values() for pair in offsets.items())
    if any(number < 0 or offset < 0 for number, offset in pairs):
        raise invalid
    return parsed


def _check_start(text: str) -> str | None:
    try:
        parse_start(text)
    except ValueError as error:
        return str(error)
    return None


_CONNECTION = (
    OptionSpec(
        "brokers", OptionType.TEXT, "host:port of the brokers, separated by commas", required=True
    ),
    OptionSpec(
        "security_protocol",
        OptionType.TEXT,
        "encryption and authentication of the connection",
        default="plaintext",
        choices=("plaintext", "ssl", "sasl_plaintext", "sasl_ssl"),
    ),
    OptionSpec(
        "sasl_mechanism",
        OptionType.TEXT,
        "authentication mechanism",
        default="plain",
        choices=("plain", "scram-sha-256", "scram-sha-512", "oauthbearer", "gssapi"),
        only_with=("security_protocol", ("sasl_plaintext", "sasl_ssl")),
    ),
    OptionSpec("sasl_username", OptionType.TEXT, "user name for the brokers"),
    OptionSpec("sasl_password", OptionType.TEXT, "password for the brokers", secret=True),
    OptionSpec(
        "kafka.",
        OptionType.TEXT,
        "any setting of librdkafka, such as kafka.ssl.ca.location",
        prefix=True,
        check=_check_setting,
    ),
)
_KEY_FORMAT = OptionSpec(
    "key_format",
    OptionType.TEXT,
    "format of record keys: a JSON object with the key columns, or the only key column as a string",
    default="json",
    choices=("json", "text"),
)
_READING = (
    OptionSpec(
        "format",
        OptionType.TEXT,
        "format of the records",
        default="json",
        choices=("json", "csv", "raw", "avro", "debezium-json"),
    ),
    *AVRO_READING,
    _KEY_FORMAT,
    OptionSpec(
        "start",
        OptionType.TEXT,
        "start position of a stream that has not read the source before: earliest, latest, a "
        'timestamp, or offsets such as {"topic": {"0": 17}}',
        default="earliest",
        example="'earliest', 'latest', '2026-01-31 12:00' or '{\"topic\": {\"0\": 17}}'",
        check=_check_start,
    ),
    OptionSpec(
        "rows_per_epoch",
        OptionType.INTEGER,
        "maximum number of records read per epoch; default: SET rows_per_epoch",
        minimum=1,
    ),
    OptionSpec(
        "on_data_loss",
        OptionType.TEXT,
        "action if records were removed before they were read: fail, or count them and continue",
        default="fail",
        choices=("fail", "continue"),
    ),
    timestamp_format(_TEXT),
    DELIMITER,
    *CSV_READING,
)


def _check_connection(options: OptionValues) -> OptionProblem | None:
    if options["sasl_password"] is None or options["security_protocol"].startswith("sasl"):
        return None
    return (
        "there is a password, but security_protocol does not use one",
        "add security_protocol = 'sasl_ssl'.",
    )


def _implies_changelog(options: OptionValues, has_key: bool) -> bool:
    return has_key or options["format"] == "debezium-json"


def _check_source(
    options: OptionValues, columns: ColumnTypes, has_key: bool
) -> OptionProblem | None:
    record_format = options["format"]
    if options["changelog"] and (has_key or record_format in ("raw", "debezium-json")):
        reason = "a PRIMARY KEY" if has_key else f"the format {record_format}"
        return f"records of a source with {reason} have no _op", "leave out changelog."
    if record_format == "raw":
        if len(columns) != 1 or columns[0][1] not in ("STRING", "BINARY"):
            hint = "CREATE SOURCE s (value STRING) WITH (…); METADATA columns are also allowed."
            return "the format raw needs exactly one column, a STRING or BINARY", hint
        if has_key:
            return "the format raw does not support a PRIMARY KEY", "use format = 'json'."
    problem = reading_problem(columns) if record_format == "avro" else None
    return (problem, "declare another type, or use format = 'json'.") if problem else None


def _check_sink(options: OptionValues) -> OptionProblem | None:
    if options["key_format"] == "text" and options["key"] and len(options["key"]) > 1:
        return "a text key has one column", "use key_format = 'json'."
    return check_avro(options) or _check_connection(options)


def _accepts(options: OptionValues) -> frozenset[ChangelogKind]:
    if options["changelog"] == "column":
        return ANY_KIND
    return ANY_KIND - {ChangelogKind.CHANGELOG}


def _is_read_by(sink: OptionValues, source: OptionValues) -> bool:
    """Return whether a source reads the topic of a sink, as far as the options show it."""
    topic = source["topic"]
    if sink["brokers"] != source["brokers"]:
        return False
    if topic.startswith("^"):
        return re.fullmatch(topic, sink["topic"]) is not None
    return sink["topic"] in topic_names(topic)


def _check_topic(name: Any) -> str | None:
    if "," in name or name.startswith("^"):
        return "a sink writes to one topic"
    return not_empty(name)


SPEC = ConnectorSpec(
    "kafka",
    "topics of Apache Kafka",
    source=SourceSpec(
        (
            OptionSpec(
                "topic",
                OptionType.TEXT,
                "name of the topic, a list of names separated by commas, or a regular expression "
                "that starts with ^",
                required=True,
                example="'bids', 'bids, asks' or '^bids.*'",
                check=_topics_problem,
            ),
            *_CONNECTION,
            *_READING,
        ),
        check=lambda options: check_avro(options, reads=True) or _check_connection(options),
        metadata=METADATA,
        implies_changelog=_implies_changelog,
        check_columns=_check_source,
        partitioned=True,
        identity_options=("topic",),
    ),
    sink=SinkSpec(
        (
            OptionSpec(
                "topic",
                OptionType.TEXT,
                "name of the topic",
                required=True,
                example="'bids'",
                check=_check_topic,
            ),
            *_CONNECTION,
            OptionSpec(
                "format",
                OptionType.TEXT,
                "format of the records",
                default="json",
                choices=("json", "avro"),
            ),
            *AVRO_WRITING,
            OptionSpec(
                "key",
                OptionType.NAMES,
                "columns of the record key; upsert streams always use their own key",
            ),
            _KEY_FORMAT,
            OptionSpec(
                "changelog",
                OptionType.TEXT,
                "reject streams that retract rows, or write the operation to a field _op",
                default="reject",
                choices=("reject", "column"),
            ),
            OptionSpec(
                "transaction_timeout",
                OptionType.DURATION,
                "time after which the broker aborts an open transaction",
                default=MICROS["minute"],
                minimum=MICROS["second"],
            ),
        ),
        accepts=_accepts,
        check=_check_sink,
        is_read_by=_is_read_by,
        check_columns=writing_problem,
        changelog_hint="write the operation to a field _op: changelog = 'column'",
    ),
)
